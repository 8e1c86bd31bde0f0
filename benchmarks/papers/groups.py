"""Schuchardt, Stoian, Kosmala, Günnemann 2024: Group Privacy Amplification and Unified Amplification by Subsampling."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np

import fedamp
from benchmarks.papers import charges
from benchmarks.papers.bounds.groups import Curve, group_property, response_rdp
from benchmarks.papers.bounds.mixtures import Floats, sampled_gaussian_rdp
from benchmarks.papers.bounds.partitioning import smallest_noise
from benchmarks.papers.groups_drawing import ByLaw, draw_converted, draw_orders, panels
from benchmarks.papers.groups_substituted import figure_3, figure_6, figure_7, whole_orders
from benchmarks.papers.record import Figure
from benchmarks.record import Row
from fedamp.accounting import (
    Gaussian,
    Group,
    Mechanism,
    Poisson,
    RandomisedResponse,
    Repeat,
    epsilon_from_rdp,
    group,
)
from fedamp.accounting.bounds import EpsilonAt

PAPER = "Schuchardt et al. 2024"
DELTA = 1e-5
SIZES, RATES = (2, 4, 8), (0.2, 0.1, 0.001)
NOISES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""The noise multipliers of Figures 9 and 10."""
RESPONSES = (0.6, 0.7, 0.75, 0.8, 0.9)
"""The true response probabilities of Figure 8."""
# The paper's orders for conversions, but above 200 only some whole ones: every jump is below order 300.
ORDERS = np.unique(np.concatenate([np.geomspace(1.02, 10, 121), np.arange(10.0, 201.0), whole_orders(121, 1000)]))

Curves = tuple[Curve, Curve, Mechanism]
"""The paper's tight bound of a group, the group property of its case of one person, and fedamp's mechanism."""


def response_curves(truth: float, rate: float, size: int) -> Curves:
    """Theorem G.1: randomised response under Poisson sampling."""
    one = partial(response_rdp, truth, rate, 1)
    ours = group(Poisson(RandomisedResponse(truth), rate), size)
    return partial(response_rdp, truth, rate, size), partial(group_property, one, size), ours


def gaussian_curves(noise: float, rate: float, size: int) -> Curves:
    """Theorem 4.2: Gaussian noise under Poisson sampling."""

    def tight(orders: Floats) -> Floats:
        return sampled_gaussian_rdp(noise, rate, orders, size)

    def one(orders: Floats) -> Floats:
        return np.array([_one_person(noise, rate, order) for order in orders.tolist()])

    return tight, partial(group_property, one, size), group(Poisson(Gaussian(noise), rate), size)


@cache
def _one_person(noise: float, rate: float, order: float) -> float:
    return float(sampled_gaussian_rdp(noise, rate, order)[0])


def by_property(person: Mechanism, size: int, delta: float) -> float:
    """Epsilon by the plain group property (Mironov 2017, Corollary 4), where ``Group`` takes an exact rule."""
    return Group(person, size).by_group_property(EpsilonAt(delta)).upper


def households(_: Path) -> Sequence[Row]:
    """The noise of the scenario ``households``: four people together at (2, 1e-5), by each analysis."""
    asked = fedamp.load("households")
    rounds, rate, size = asked.rounds, asked.check_in.rate, asked.privacy.group_size
    budget, delta = asked.privacy.epsilon, asked.privacy.delta

    def run(noise: float) -> Mechanism:
        return Repeat(Poisson(Gaussian(noise), rate), rounds)

    def by_rdp(curve: int, noise: float) -> float:
        return epsilon_from_rdp(ORDERS, rounds * gaussian_curves(noise, rate, size)[curve](ORDERS), delta)

    needed = float(fedamp.privacy(asked)["noise_multiplier"])
    noises = {
        "fedamp (what is charged)": charges.Charged(needed, charges.Question(group(run(needed), size), delta, budget)),
        "group property of the numerical law": smallest_noise(lambda s: by_property(run(s), size, delta), budget),
        "the paper's tight Rényi bound": smallest_noise(partial(by_rdp, 0), budget),
        "the paper's baseline": smallest_noise(partial(by_rdp, 1), budget),
    }
    return [{"": words, "noise multiplier": noise} for words, noise in noises.items()]


def figure_4(path: Path) -> Sequence[Row]:
    """Rényi divergence over its order: groups under Poisson sampling, randomised response (0.75)."""
    orders, at = whole_orders(), np.array([8.0])
    rows: list[Row] = []
    with panels(path, f"{PAPER}, Figure 4: randomised response 0.75, groups of 2, 4, 8") as all_axes:
        for axes, rate in zip(all_axes.flat, RATES, strict=True):
            axes.set(title=f"Poisson, rate {rate:g}", xlabel="order", ylabel="Rényi divergence (nats)")
            row: Row = {"baseline over tight, order 8": f"rate {rate:g}"}
            for size in SIZES:
                tight, generic, ours = response_curves(0.75, rate, size)
                draw_orders(axes, orders, tight, generic, ours, size)
                row[f"group of {size}"] = (generic(at) / tight(at)).item()
            printed = group_property(response_curves(0.75, rate, 1)[0], 8, at, printed=True)
            rows.append(row | {"8, with the printed factor": (printed / tight(at)).item()})
    return rows


def figure_5(path: Path) -> Sequence[Row]:
    """Rényi divergence over its order: groups under Poisson sampling, Gaussian noise multiplier 1."""
    orders = _all_orders(41)
    with panels(path, f"{PAPER}, Figure 5: Gaussian noise 1, groups of 2, 4, 8") as all_axes:
        for axes, rate in zip(all_axes.flat, RATES, strict=True):
            axes.set(title=f"Poisson, rate {rate:g}", xlabel="order", ylabel="Rényi divergence (nats)")
            for size in SIZES:
                draw_orders(axes, orders, *gaussian_curves(1.0, rate, size), size)
    return [_jump(1.0, size, np.geomspace(1.05, 40, 60)) for size in SIZES]


def figure_8(path: Path) -> Sequence[Row]:
    """Rényi divergence over its order: groups under Poisson sampling, randomised response, five probabilities."""
    orders = whole_orders(61)
    ratios = _grid(path, "Figure 8: randomised response", "true response", RESPONSES, orders, response_curves)
    at = int(np.flatnonzero(orders == 8)[0])
    return [
        {"baseline over tight, group of 8, order 8": f"rate {rate:g}"}
        | {f"true response {truth:g}": float(ratios[rate, truth, 8][at]) for truth in RESPONSES}
        for rate in RATES
    ]


def figure_9(path: Path) -> Sequence[Row]:
    """Rényi divergence over all orders: Gaussian noise, five noise multipliers and three rates."""
    orders = _all_orders(25)
    ratios = _grid(path, "Figure 9: Gaussian noise, all orders", "noise", NOISES, orders, gaussian_curves)
    words = "last order with the baseline a tenth above the tight bound"
    return [
        {"rate 0.001, group of 8": words}
        | {f"noise {noise:g}": float(orders[ratios[0.001, noise, 8] > 1.1].max()) for noise in NOISES}
    ]


def figure_10(path: Path) -> Sequence[Row]:
    """Rényi divergence over small orders: Gaussian noise, five noise multipliers and three rates."""
    orders = np.geomspace(1.1, 300, 30)
    _grid(path, "Figure 10: Gaussian noise, small orders", "noise", NOISES, orders, gaussian_curves)
    cases = [(0.5, 2), (2.0, 2), (5.0, 8)]
    return [_jump(noise, size, np.geomspace(1.05, 400, 90)) for noise, size in cases]


def figure_11(path: Path) -> Sequence[Row]:
    """Epsilon over the number of rounds: Gaussian noise under Poisson sampling, rate 0.001, delta 1e-5."""
    cases = [(f"noise multiplier {noise:g}", partial(gaussian_curves, noise, 0.001)) for noise in (1.0, 2.0, 5.0)]
    return _epsilons(path, "Figure 11: rate 0.001", cases)


def figure_12(path: Path) -> Sequence[Row]:
    """Epsilon over the number of rounds: randomised response (0.6) under Poisson sampling, delta 1e-5."""
    cases = [(f"rate {rate:g}", partial(response_curves, 0.6, rate)) for rate in (0.1, 0.01, 0.001)]
    return _epsilons(path, "Figure 12: randomised response 0.6", cases)


def _epsilons(path: Path, title: str, cases: Sequence[tuple[str, Callable[[int], Curves]]]) -> Sequence[Row]:
    """A panel for each case; rows after 10,000 rounds."""
    rounds = [int(10**power) for power in (0, 1, 2, 3, 4, 5)]
    rows: list[Row] = []
    with panels(path, f"{PAPER}, {title}, delta 1e-5, groups of 2, 4, 8") as all_axes:
        for axes, (words, curves_of) in zip(all_axes.flat, cases, strict=True):
            axes.set(title=words, xlabel="rounds", ylabel="epsilon")
            person = curves_of(1)[2]
            for size in SIZES:
                tight, generic, ours = curves_of(size)
                by_rdp = [_converted(curve) for curve in (tight, generic)]
                law = ByLaw(
                    rounds,
                    [charges.epsilon(Repeat(ours, t), DELTA) for t in rounds],
                    [by_property(Repeat(person, t), size, DELTA) for t in rounds],
                )
                draw_converted(axes, rounds, by_rdp[0], by_rdp[1], law, size)
                if size == 4:  # drawn, not tabulated
                    continue
                rows.append(
                    {
                        "": f"{words}, group of {size}",
                        "fedamp": law.tight[4],
                        "group property of the law": law.generic[4],
                        "paper, tight Rényi": by_rdp[0](10_000),
                        "paper, baseline": by_rdp[1](10_000),
                    }
                )
    return rows


def _converted(curve: Curve) -> Callable[[int], float]:
    """Epsilon after some rounds, by the conversion that the paper takes (Balle et al. 2020, Theorem 21)."""
    divergences = curve(ORDERS)
    return lambda rounds: epsilon_from_rdp(ORDERS, rounds * divergences, DELTA)


def _all_orders(number: int) -> Floats:
    """Whole orders above 10, and below also some between, for phase transitions."""
    return np.unique(np.concatenate([np.geomspace(1.2, 10, number // 2), whole_orders(number)]))


def _grid(
    path: Path,
    title: str,
    parameter: str,
    values: Sequence[float],
    orders: Floats,
    curves_of: Callable[[float, float, int], Curves],
) -> dict[tuple[float, float, int], Floats]:
    """A panel for every rate (rows) and parameter (columns); the baseline over the tight bound in each."""
    ratios = {}
    with panels(path, f"{PAPER}, {title}, groups of 2, 4, 8", rows=3, columns=5) as all_axes:
        for line, rate in zip(all_axes, RATES, strict=True):
            line[0].set_ylabel(f"rate {rate:g}\nRényi divergence")
            for axes, value in zip(line, values, strict=True):
                for size in SIZES:
                    ratios[rate, value, size] = draw_orders(axes, orders, *curves_of(value, rate, size), size)
        for axes, value in zip(all_axes[0], values, strict=True):
            axes.set_title(f"{parameter} {value:g}")
        for axes in all_axes[-1]:
            axes.set_xlabel("order")
    return ratios


def _jump(noise: float, size: int, orders: Floats) -> Row:
    """The order at which the divergence passes a hundredth of the one without sampling, by straight lines."""
    limits = orders * size**2 / (2 * noise**2)
    tight, generic = (
        float(np.interp(np.log(0.01), np.log(curve(orders) / limits), orders))
        for curve in gaussian_curves(noise, 0.001, size)[:2]
    )
    return {"order of the jump, rate 0.001": f"noise {noise:g}, group of {size}", "tight": tight, "baseline": generic}


FIGURES: Sequence[Figure] = (
    households,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    figure_7,
    figure_8,
    figure_9,
    figure_10,
    figure_11,
    figure_12,
)
