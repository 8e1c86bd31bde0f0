"""Schuchardt, Stoian, Kosmala, Günnemann 2024: Group Privacy Amplification and Unified Amplification by Subsampling."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.papers import groups_curves as curves
from benchmarks.papers.groups_drawing import ByLaw, OfRounds, draw_converted, draw_orders, panels
from benchmarks.papers.groups_replacement import figure_3, figure_6, figure_7
from benchmarks.papers.record import Comparison, Figure
from fedamp.accounting import Group, Mechanism, Repeat

PAPER = "Schuchardt et al. 2024"
DELTA = 1e-5
NOISES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""The noise multipliers of Figures 9 and 10."""
RESPONSES = (0.6, 0.7, 0.75, 0.8, 0.9)
"""The true response probabilities of Figure 8."""


def figure_4(path: Path) -> Sequence[Comparison]:
    """Rényi divergence over its order: groups under Poisson sampling, randomised response (0.75)."""
    orders, numbers = curves.whole_orders(), []
    with panels(path, f"{PAPER}, Figure 4: randomised response 0.75, groups of 2, 4, 8") as all_axes:
        for axes, rate in zip(all_axes.flat, curves.RATES, strict=True):
            axes.set(title=f"Poisson, rate {rate:g}", xlabel="order", ylabel="Rényi divergence (nats)")
            for size in curves.SIZES:
                draw_orders(axes, orders, *_response(0.75, rate, size), size)
                numbers.append(_baseline_over_tight(rate, size))
    return numbers


def figure_5(path: Path) -> Sequence[Comparison]:
    """Rényi divergence over its order: groups under Poisson sampling, Gaussian noise multiplier 1."""
    orders, numbers = curves.all_orders(41), []
    with panels(path, f"{PAPER}, Figure 5: Gaussian noise 1, groups of 2, 4, 8") as all_axes:
        for axes, rate in zip(all_axes.flat, curves.RATES, strict=True):
            axes.set(title=f"Poisson, rate {rate:g}", xlabel="order", ylabel="Rényi divergence (nats)")
            for size in curves.SIZES:
                draw_orders(axes, orders, *_gaussian_curves(1.0, rate, size), size)
        for size in curves.SIZES:
            numbers += _transitions(1.0, 0.001, size, np.geomspace(1.05, 40, 60))
    return numbers


def figure_8(path: Path) -> Sequence[Comparison]:
    """Rényi divergence over its order: groups under Poisson sampling, randomised response, five probabilities."""
    orders = curves.whole_orders(61)
    ratios = _grid(path, "Figure 8: randomised response", "true response", RESPONSES, orders, _response)
    what = "true response {:g}, rate {:g}, group of 8: baseline over tight, order 8"
    at = int(np.flatnonzero(orders == 8)[0])
    return [
        Comparison(what.format(truth, rate), None, float(ratios[rate, truth, 8][at]))
        for rate in curves.RATES
        for truth in RESPONSES
    ]


def figure_9(path: Path) -> Sequence[Comparison]:
    """Rényi divergence over all orders: Gaussian noise, five noise multipliers and three rates."""
    orders = curves.all_orders(25)
    ratios = _grid(path, "Figure 9: Gaussian noise, all orders", "noise", NOISES, orders, _gaussian_curves)
    what = "noise {:g}, rate 0.001, group of 8: last order drawn with the baseline a tenth above the tight bound"
    return [Comparison(what.format(n), None, float(orders[ratios[0.001, n, 8] > 1.1].max())) for n in NOISES]


def figure_10(path: Path) -> Sequence[Comparison]:
    """Rényi divergence over small orders: Gaussian noise, five noise multipliers and three rates."""
    orders = np.geomspace(1.1, 300, 30)
    _grid(path, "Figure 10: Gaussian noise, small orders", "noise", NOISES, orders, _gaussian_curves)
    cases = [(0.5, 2), (1.0, 2), (2.0, 2), (5.0, 2), (5.0, 8)]
    return [line for noise, size in cases for line in _transitions(noise, 0.001, size, np.geomspace(1.05, 400, 90))]


def figure_11(path: Path) -> Sequence[Comparison]:
    """Epsilon over the number of rounds: Gaussian noise under Poisson sampling, rate 0.001, delta 1e-5."""
    rounds, numbers = [int(10**power) for power in (0, 1, 2, 3, 4, 5)], []
    with panels(path, f"{PAPER}, Figure 11: rate 0.001, delta 1e-5, groups of 2, 4, 8") as all_axes:
        for axes, noise in zip(all_axes.flat, (1.0, 2.0, 5.0), strict=True):
            axes.set(title=f"noise multiplier {noise:g}", xlabel="rounds", ylabel="epsilon")
            for size in curves.SIZES:
                pair = _gaussian(noise, 0.001, size)  # every jump is below order 300
                by_tight, by_generic = (curves.converted(curve, DELTA, 1000) for curve in pair)
                sampled = curves.sampled_gaussian(noise, 0.001, size)
                one = curves.sampled_gaussian(noise, 0.001, 1)
                by_law = _by_law(sampled, one, size, rounds)
                draw_converted(axes, rounds, by_tight, by_generic, by_law, size)
                numbers += _savings(f"noise {noise:g}, group of {size}", by_tight, by_generic, by_law)
    return numbers


def figure_12(path: Path) -> Sequence[Comparison]:
    """Epsilon over the number of rounds: randomised response (0.6) under Poisson sampling, delta 1e-5."""
    rounds, numbers = [int(10**power) for power in (0, 1, 2, 3, 4, 5)], []
    with panels(path, f"{PAPER}, Figure 12: randomised response 0.6, delta 1e-5, groups of 2, 4, 8") as all_axes:
        for axes, rate in zip(all_axes.flat, (0.1, 0.01, 0.001), strict=True):
            axes.set(title=f"Poisson, rate {rate:g}", xlabel="rounds", ylabel="epsilon")
            for size in curves.SIZES:
                by_tight = curves.converted(curves.tight_response(0.6, rate, size), DELTA)
                by_generic = curves.converted(_response_baseline(0.6, rate, size), DELTA)
                sampled = curves.sampled_response(0.6, rate, size)
                by_law = _by_law(sampled, curves.sampled_response(0.6, rate, 1), size, rounds)
                draw_converted(axes, rounds, by_tight, by_generic, by_law, size)
                numbers += _savings(f"rate {rate:g}, group of {size}", by_tight, by_generic, by_law)
    return numbers


def _grid(
    path: Path,
    title: str,
    parameter: str,
    values: Sequence[float],
    orders: curves.Floats,
    curves_of: Callable[[float, float, int], tuple[curves.Curve, curves.Curve, Mechanism]],
) -> dict[tuple[float, float, int], curves.Floats]:
    """A panel for every rate (rows) and parameter (columns); the baseline over the tight bound in each."""
    ratios = {}
    with panels(path, f"{PAPER}, {title}, groups of 2, 4, 8", rows=3, columns=5) as all_axes:
        for row, rate in zip(all_axes, curves.RATES, strict=True):
            row[0].set_ylabel(f"rate {rate:g}\nRényi divergence")
            for axes, value in zip(row, values, strict=True):
                for size in curves.SIZES:
                    tight, generic, ours = curves_of(value, rate, size)
                    ratios[rate, value, size] = draw_orders(axes, orders, tight, generic, ours, size)
        for axes, value in zip(all_axes[0], values, strict=True):
            axes.set_title(f"{parameter} {value:g}")
        for axes in all_axes[-1]:
            axes.set_xlabel("order")
    return ratios


def _response(truth: float, rate: float, size: int) -> tuple[curves.Curve, curves.Curve, Mechanism]:
    """Theorem G.1, the group property of its case of one person, and fedamp's."""
    tight = curves.tight_response(truth, rate, size)
    return tight, _response_baseline(truth, rate, size), curves.sampled_response(truth, rate, size)


def _gaussian_curves(noise: float, rate: float, size: int) -> tuple[curves.Curve, curves.Curve, Mechanism]:
    """Theorem 4.2, the group property of its case of one person, and fedamp's."""
    return *_gaussian(noise, rate, size), curves.sampled_gaussian(noise, rate, size)


def _gaussian(noise: float, rate: float, size: int) -> tuple[curves.Curve, curves.Curve]:
    """Theorem 4.2, and the group property of its case of one person."""
    return curves.tight_gaussian(noise, rate, size), curves.baseline(curves.gaussian_individual(noise, rate), size)


def _response_baseline(true_response: float, rate: float, size: int) -> curves.Curve:
    return curves.baseline(curves.tight_response(true_response, rate, 1), size)


def _baseline_over_tight(rate: float, size: int) -> Comparison:
    """At order 8, also with the factor that Appendix B.1 prints."""
    order, one = np.array([8.0]), curves.tight_response(0.75, rate, 1)
    tight = curves.tight_response(0.75, rate, size)(order)
    ratio, printed = (
        curve(order) / tight for curve in (curves.baseline(one, size), curves.printed_baseline(one, size))
    )
    what = f"rate {rate:g}, group of {size}: baseline over tight, order 8"
    return Comparison(what, None, float(ratio[0]), f"{printed[0]:.3g} with the printed factor")


def _transitions(noise: float, rate: float, size: int, orders: curves.Floats) -> list[Comparison]:
    """Where the phase transition is: the order at which the divergence passes a hundredth of the unsampled one's."""

    def relative(curve: curves.Curve) -> curves.Curve:
        return lambda a: curve(a) / (a * size**2 / (2 * noise**2))

    tight, generic = (curves.first_order_above(relative(curve), 0.01, orders) for curve in _gaussian(noise, rate, size))
    what = f"noise {noise:g}, rate {rate:g}, group of {size}: order of the transition"
    return [Comparison(f"{what}, tight", None, tight), Comparison(f"{what}, baseline", None, generic)]


def _by_law(sampled: Mechanism, one: Mechanism, size: int, rounds: Sequence[int]) -> ByLaw:
    """fedamp's epsilon over rounds, and what the group property of the whole run of one person would give."""
    tight = [Repeat(sampled, t).epsilon(DELTA).upper for t in rounds]
    return ByLaw(rounds, tight, [Group(Repeat(one, t), size).epsilon(DELTA).upper for t in rounds])


def _savings(what: str, by_tight: OfRounds, by_generic: OfRounds, by_law: ByLaw) -> list[Comparison]:
    """After 10,000 rounds."""
    tight, generic, last = by_tight(10_000), by_generic(10_000), by_law.rounds.index(10_000)
    remark = f"tight by Rényi {tight:.3g}, baseline {generic:.3g}; group property of the law {by_law.generic[last]:.3g}"
    return [Comparison(f"{what}: epsilon after 10,000 rounds", None, by_law.tight[last], remark)]


FIGURES: Sequence[Figure] = (
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
