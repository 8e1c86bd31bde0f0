"""Dong, Chen, Özgür 2025: Leveraging Randomness in Model and Data Partitioning for Privacy Amplification."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers import charges
from benchmarks.papers.bounds.allocation import delta_from_rdp, poisson
from benchmarks.papers.bounds.partitioning import cheap_rdp, exact_rdp, smallest_noise
from benchmarks.papers.drawing import EXACT, LOCAL, LOOSE, OURS, POISSON, POISSON_RDP, Style, finish, start
from benchmarks.papers.partitioning_training import noise_of_table_1, table_1
from benchmarks.papers.record import Figure
from benchmarks.record import Row
from fedamp.accounting import Allocation, Gaussian, Mechanism, Poisson, Repeat, Submodels, epsilon_from_rdp

Floats = NDArray[np.float64]

PAPER = "Dong, Chen, Özgür 2025"
RATE, DELTA = 0.1, 1e-5
ORDERS = np.arange(2.0, 101.0)
NOISE, SHARE, EPSILON = 2.0, 0.4, 8.0
COUNTED = 11  # the highest order at which the overlaps of 4 of 10 rounds can be counted


def figure_1(path: Path) -> Sequence[Row]:
    """Noise for (3, 1e-5) over the number of rounds: rate 0.1, with and without three submodels."""
    rounds = [50, 100, 200, 400, 800, 1600]
    ours = {
        count: [charges.noise(lambda s, t=t, c=count: _training(s, c, t), 3.0, DELTA) for t in rounds]
        for count in (1, 3)
    }
    paper = {count: [_noise_by_formula(count, times) for times in rounds] for count in (1, 3)}
    axes = start(f"{PAPER}, Figure 1: rate {RATE}, (3, 1e-5)", "rounds", "noise multiplier")
    axes.plot(rounds, paper[1], **LOCAL | {"label": "paper, not amplified", "color": "0.45"})
    axes.plot(rounds, paper[3], **EXACT | {"label": "paper, 3 submodels", "color": "0.45"})
    axes.plot(rounds, ours[1], **OURS | {"label": "fedamp, not amplified", "linestyle": ":"})
    axes.plot(rounds, ours[3], **OURS | {"label": "fedamp, 3 submodels"})
    axes.set_xscale("log")
    axes.set_xticks(rounds, minor=False)
    axes.minorticks_off()
    finish(axes, path)
    return [
        {
            "rounds": f"{rounds[i]}",
            "paper, 1 submodel": paper[1][i],
            "fedamp, 1": ours[1][i],
            "paper, 3 submodels": paper[3][i],
            "fedamp, 3": ours[3][i],
            "saved, %": 100 * (1 - ours[3][i] / ours[1][i]),
        }
        for i in (0, 3, 5)
    ]


def _training(noise_multiplier: float, count: int, times: int) -> Mechanism:
    part = Gaussian(noise_multiplier)
    return Repeat(Poisson(Submodels(part, count) if count > 1 else part, RATE), times)


def _noise_by_formula(count: int, times: int) -> float:
    """Theorem 3.4 inside Theorem 3.11, orders 2 to 100, Proposition 2.3."""
    return smallest_noise(
        lambda s: epsilon_from_rdp(ORDERS, _training(s, count, times).rdp(ORDERS), DELTA, "loose"), 3.0
    )


def figure_2(path: Path) -> Sequence[Row]:
    """Rényi divergence over its order: 4 of 10 rounds, noise multiplier 2."""
    orders = np.arange(2.0, COUNTED + 1)
    curves: dict[str, tuple[Floats, Style]] = {
        "Poisson, Theorem 3.11": (poisson(NOISE, 10, SHARE).rdp(orders), POISSON_RDP),
        "Eq. (3)": (cheap_rdp(NOISE, 4, 10, orders), LOOSE),
        "Eq. (2)": (exact_rdp(NOISE, 4, 10, COUNTED), EXACT),
        "fedamp": (Allocation(Gaussian(NOISE), 4, 10).rdp(orders), OURS),
    }
    axes = start(f"{PAPER}, Figure 2: 4 of 10 rounds, noise {NOISE:g}", "order", "Rényi divergence, nats")
    for divergences, style in curves.values():
        axes.plot(orders, divergences, **style)
    axes.set_xticks(range(2, COUNTED + 1, 2))
    finish(axes, path)
    return [
        {"order": f"{order}"} | {what: float(divergences[order - 2]) for what, (divergences, _) in curves.items()}
        for order in (2, 6, COUNTED)
    ]


def least_share(_: Path) -> Sequence[Row]:
    """The smallest k / T at which Eq. (3) costs less than Poisson sampling, of 100 rounds, both by Proposition 2.3."""
    rounds = 100

    def wins(chosen: int) -> bool:
        both = cheap_rdp(NOISE, chosen, rounds, ORDERS), poisson(NOISE, rounds, chosen / rounds).rdp(ORDERS)
        balanced, sampled = (epsilon_from_rdp(ORDERS, rdp, DELTA, "loose") for rdp in both)
        return balanced < sampled

    share = next(chosen for chosen in range(1, rounds) if wins(chosen)) / rounds
    return [{"": "smallest k / T at which Eq. (3) beats Poisson sampling", "paper": "about 0.2", "here": share}]


def figure_3(path: Path) -> Sequence[Row]:
    """Delta at epsilon 8 over the number of rounds: two fifths of them, noise multiplier 2."""
    rounds, orders, few = np.arange(20, 101, 5), np.arange(2.0, 41.0), np.arange(2.0, COUNTED + 1)
    epoch = exact_rdp(NOISE, 4, 10, COUNTED)
    epochs: Style = EXACT | {"label": "Dong et al., Eq. (2), epochs of 10"}
    by_rdp = {
        "Poisson, Rényi": ([poisson(NOISE, t, SHARE).rdp(orders) for t in rounds.tolist()], orders, POISSON_RDP),
        "balanced, Eq. (3)": ([cheap_rdp(NOISE, 2 * t // 5, t, orders) for t in rounds.tolist()], orders, LOOSE),
        "balanced in epochs of 10, Eq. (2)": ([t / 10 * epoch for t in rounds.tolist()], few, epochs),
    }
    axes = start(f"{PAPER}, Figure 3: 0.4 T of T rounds, noise {NOISE:g}, epsilon 8", "rounds T", "delta")
    deltas: dict[str, Sequence[float]] = {}
    for what, (divergences, at, style) in by_rdp.items():
        printed = [_delta(rdp, at) for rdp in divergences]
        axes.plot(rounds, printed, **style)
        deltas[what] = printed
        deltas[f"{what}, tight"] = [delta_from_rdp(rdp, at, EPSILON) for rdp in divergences]
    deltas["Poisson, loss distribution"] = [charges.delta(poisson(NOISE, t, SHARE), EPSILON) for t in rounds.tolist()]
    deltas["balanced, fedamp"] = [
        charges.delta(Allocation(Gaussian(NOISE), 2 * t // 5, t), EPSILON, precision=0.02) for t in rounds.tolist()
    ]
    axes.plot(rounds, deltas["Poisson, loss distribution"], **POISSON)
    axes.plot(rounds, deltas["balanced, fedamp"], **OURS)
    axes.axhline(DELTA, color="0.5", linewidth=1.0, linestyle=":", label="delta 1e-5")
    axes.set_yscale("log")
    finish(axes, path)
    shown = [what for what in deltas if "tight" in what or "loss" in what or "fedamp" in what]
    rows: list[Row] = [
        {"": f"delta, {t} rounds"} | {what: deltas[what][rounds.tolist().index(t)] for what in shown}
        for t in (55, 60, 65, 70)
    ]
    return [*rows, {"": "rounds at delta 1e-5"} | {what: crossing(rounds, deltas[what]) for what in shown}]


def crossing(rounds: Sequence[int] | NDArray[np.int64], deltas: Sequence[float]) -> float:
    """The number of rounds at which delta reaches 1e-5, by straight lines in log delta."""
    return float(np.interp(math.log(DELTA), np.log(deltas), rounds))


def _delta(rdp: Floats, orders: Floats) -> float:
    """Proposition 2.3, solved for delta."""
    return math.exp(min(0.0, float(np.min((orders - 1) * (rdp - EPSILON)))))


FIGURES: Sequence[Figure] = (figure_1, figure_2, least_share, figure_3, noise_of_table_1, table_1)
