"""Dong, Chen, Özgür 2025: Leveraging Randomness in Model and Data Partitioning for Privacy Amplification."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers import published
from benchmarks.papers.bounds import allocation, partitioning
from benchmarks.papers.drawing import (
    EXACT,
    LOCAL,
    LOOSE,
    OURS,
    POISSON,
    POISSON_RDP,
    Style,
    finish,
    start,
)
from benchmarks.papers.partitioning_training import table_1
from benchmarks.papers.record import Comparison, Figure
from fedamp.accounting import Allocation, Gaussian, Mechanism, Poisson, Repeat, Submodels, calibrate

Floats = NDArray[Any]

PAPER = "Dong, Chen, Özgür 2025"
RATE, DELTA = 0.1, 1e-5
ORDERS = np.arange(2, 101)
NOISE, SHARE, EPSILON = 2.0, 0.4, 8.0
COUNTED = 14  # orders up to here: Eq. (2) for 4 of 10 takes a second and a half; twice that two orders further on


# The text counts 10 more rounds out of 60 and does not say against which of its two curves of Poisson sampling.
GAINS = [
    (
        "both by Rényi",
        "balanced in epochs of 10, Eq. (2), tight conversion",
        "Poisson, Rényi, tight conversion",
        10,
        "the text: out of 60",
    ),
    ("both by their laws", "balanced, fedamp", "Poisson, loss distribution", None, ""),
]


def figure_1(path: Path) -> Sequence[Comparison]:
    """Noise for (3, 1e-5) over the number of rounds: rate 0.1, with and without three submodels."""
    rounds = [50, 100, 200, 400, 800, 1600]
    noise: dict[tuple[str, int], list[float]] = {}
    for count in (1, 3):
        noise["paper", count] = [_noise_by_formula(count, times) for times in rounds]
        noise["fedamp", count] = [calibrate(partial(_training, count, times), 3.0, DELTA) for times in rounds]
    axes = start(f"{PAPER}, Figure 1: rate {RATE}, (3, 1e-5)", "rounds", "noise multiplier")
    axes.plot(rounds, noise["paper", 1], **LOCAL | {"label": "paper, not amplified", "color": "0.45"})
    axes.plot(rounds, noise["paper", 3], **EXACT | {"label": "paper, 3 submodels", "color": "0.45"})
    axes.plot(rounds, noise["fedamp", 1], **OURS | {"label": "fedamp, not amplified", "linestyle": ":"})
    axes.plot(rounds, noise["fedamp", 3], **OURS | {"label": "fedamp, 3 submodels"})
    axes.set_xscale("log")
    axes.set_xticks(rounds, minor=False)
    axes.minorticks_off()
    finish(axes, path)
    at = rounds.index(400)
    words = {"paper": "paper's formula", "fedamp": "numerical law"}
    numbers = [
        Comparison(f"noise multiplier of 400 rounds, {words[who]}, {count} submodel{'s' * (count > 1)}", None, each[at])
        for (who, count), each in noise.items()
    ]
    saved = [100 * (1 - noise["fedamp", 3][i] / noise["fedamp", 1][i]) for i in (0, -1)]
    numbers += [
        Comparison(f"noise that three submodels save, {times} rounds, %", None, percent, remark)
        for times, percent, remark in zip((50, 1600), saved, ("the text calls it significant", ""), strict=True)
    ]
    return numbers


def _training(count: int, times: int, noise_multiplier: float) -> Mechanism:
    part = Gaussian(noise_multiplier)
    return Repeat(Poisson(Submodels(part, count) if count > 1 else part, RATE), times)


def _noise_by_formula(count: int, times: int) -> float:
    """Theorem 3.4 inside Theorem 3.11, orders 2 to 100, Proposition 2.3."""

    def epsilon(noise_multiplier: float) -> float:
        rdp = partitioning.submodel_rdp(noise_multiplier, count, ORDERS)
        log_moments = np.concatenate([[0.0, 0.0], rdp * (ORDERS - 1)])
        return partitioning.epsilon_from_rdp(
            times * partitioning.poisson_rdp_of_moments(log_moments, RATE, ORDERS), ORDERS, DELTA
        )

    return published.smallest_noise(epsilon, 3.0)


def figure_2(path: Path) -> Sequence[Comparison]:
    """Rényi divergence over its order: 4 of 10 rounds, noise multiplier 2."""
    orders = np.arange(2, COUNTED + 1)
    curves = {
        "Poisson sampling at 0.4, Theorem 3.11": (10 * partitioning.poisson_rdp(NOISE, SHARE, orders), POISSON_RDP),
        "Eq. (3)": (partitioning.forward_rdp_upper(NOISE, 10, orders, 4), LOOSE),
        "Eq. (2)": (partitioning.forward_rdp(NOISE, 10, orders, 4), EXACT),
        "fedamp": (Allocation(Gaussian(NOISE), 4, 10).rdp(orders.astype(float)), OURS),
    }
    axes = start(f"{PAPER}, Figure 2: 4 of 10 rounds, noise {NOISE:g}", "order", "Rényi divergence, nats")
    for divergences, style in curves.values():
        axes.plot(orders, divergences, **style)
    axes.set_xticks(range(2, COUNTED + 1, 2))
    finish(axes, path)
    numbers = [
        Comparison(f"order {order}, {what}", None, float(divergences[order - 2]))
        for order in (2, 8, COUNTED)
        for what, (divergences, _) in curves.items()
    ]
    remark = "of 100 rounds, by epsilon at delta 1e-5"
    return [*numbers, Comparison("smallest k / T at which Eq. (3) beats Poisson", 0.2, _least_share(100), remark)]


def _least_share(rounds: int) -> float:
    """Where Eq. (3) begins to cost less than Poisson sampling, both by Proposition 2.3."""

    def wins(chosen: int) -> bool:
        balanced = partitioning.forward_rdp_upper(NOISE, rounds, ORDERS, chosen)
        poisson = rounds * partitioning.poisson_rdp(NOISE, chosen / rounds, ORDERS)
        balanced_epsilon, poisson_epsilon = (
            partitioning.epsilon_from_rdp(rdp, ORDERS, DELTA) for rdp in (balanced, poisson)
        )
        return balanced_epsilon < poisson_epsilon

    return next(chosen for chosen in range(1, rounds) if wins(chosen)) / rounds


def figure_3(path: Path) -> Sequence[Comparison]:
    """Delta at epsilon 8 over the number of rounds: two fifths of them, noise multiplier 2."""
    rounds, orders, few = np.arange(20, 101, 10), np.arange(2, 41), np.arange(2, COUNTED + 1)
    epoch = partitioning.forward_rdp(NOISE, 10, few, 4)
    by_rdp: dict[str, tuple[Callable[[int], Floats], Floats, Style]] = {
        "Poisson, Rényi": (lambda t: t * partitioning.poisson_rdp(NOISE, SHARE, orders), orders, POISSON_RDP),
        "balanced, Eq. (3)": (
            lambda t: partitioning.forward_rdp_upper(NOISE, t, orders, _chosen(t)),
            orders,
            LOOSE,
        ),
        "balanced in epochs of 10, Eq. (2)": (
            lambda t: t / 10 * epoch,
            few,
            EXACT | {"label": "Dong et al., Eq. (2), epochs of 10"},
        ),
    }
    by_law: dict[str, tuple[Callable[[int], Mechanism], Style]] = {
        "Poisson, loss distribution": (lambda t: published.poisson(NOISE, t, SHARE), POISSON),
        "balanced, fedamp": (lambda t: Allocation(Gaussian(NOISE), _chosen(t), t), OURS),
    }
    longest = {}
    axes = start(f"{PAPER}, Figure 3: 0.4 T of T rounds, noise {NOISE:g}, epsilon 8", "rounds T", "delta")
    for what, (rdp, at, style) in by_rdp.items():
        deltas = [_delta(rdp(int(t)), at) for t in rounds]
        axes.plot(rounds, deltas, **style)
        longest[what] = _crossing(rounds, deltas)
        tight = [allocation.delta_from_rdp(rdp(int(t)), at, EPSILON) for t in rounds]
        longest[f"{what}, tight conversion"] = _crossing(rounds, tight)
    for what, (mechanism, style) in by_law.items():
        deltas = [mechanism(int(t)).delta(EPSILON).upper for t in rounds]
        axes.plot(rounds, deltas, **style)
        longest[what] = _crossing(rounds, deltas)
    axes.axhline(DELTA, color="0.5", linewidth=1.0, linestyle=":", label="delta 1e-5")
    axes.set_yscale("log")
    finish(axes, path)
    return [
        *(Comparison(f"rounds at delta 1e-5, {what}", None, times) for what, times in longest.items()),
        *(
            Comparison(f"rounds that balancing gains, {how}", printed, longest[more] - longest[less], remark)
            for how, more, less, printed, remark in GAINS
        ),
    ]


def _crossing(rounds: NDArray[np.int64], deltas: Sequence[float]) -> float:
    """Where delta reaches 1e-5, between points of the plot by a straight line in log delta."""
    return float(np.interp(math.log(DELTA), np.log(deltas), rounds))


def _chosen(rounds: int) -> int:
    return round(SHARE * rounds)


def _delta(rdp: Floats, orders: Floats) -> float:
    """Proposition 2.3, solved for delta."""
    return math.exp(min(0.0, float(np.min((orders - 1) * (rdp - EPSILON)))))


FIGURES: Sequence[Figure] = (figure_1, figure_2, figure_3, table_1)
