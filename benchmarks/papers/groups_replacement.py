"""Figures 3, 6 and 7 of Schuchardt et al. 2024: batches of fixed size, drawn without replacement."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from benchmarks.papers import groups_curves as curves
from benchmarks.papers.bounds import base, subsampling
from benchmarks.papers.drawing import OURS
from benchmarks.papers.groups_drawing import BASELINE, MOST_ORDERS, TIGHT, name_curve, panels
from benchmarks.papers.record import Comparison
from fedamp.accounting import RandomisedResponse, WithoutReplacement, group

PAPER = "Schuchardt et al. 2024"
WITHOUT_GROUP = BASELINE | {"label": "(baseline: Wang et al. 2019)"}
TRANSPORT = TIGHT | {"marker": "s", "label": "paper, Proposition E.5"}


def figure_3(path: Path) -> Sequence[Comparison]:
    """Rényi divergence over its order: randomised response on 1 of 1000 without replacement."""
    return _responses(path, "Figure 3: randomised response, q / N = 0.001", [(t, 0.001) for t in (0.6, 0.75, 0.9)])


def figure_6(path: Path) -> Sequence[Comparison]:
    """Rényi divergence over its order: randomised response without replacement, three ratios."""
    cases = [(t, fraction) for t in (0.6, 0.75, 0.9) for fraction in (0.1, 0.01, 0.001)]
    return _responses(path, "Figure 6: randomised response without replacement", cases)


def figure_7(path: Path) -> Sequence[Comparison]:
    """Rényi divergence over its order: groups substituted without replacement, Gaussian noise multiplier 5."""
    orders, numbers = curves.whole_orders(41), []
    settings = [(100, 1000), (100, 10_000), (100, 100_000), (1, 10), (1, 100), (1, 1000)]
    with panels(path, f"{PAPER}, Figure 7: Gaussian noise 5, groups of 2 and 8", rows=2) as all_axes:
        for axes, (batch, population) in zip(all_axes.flat, settings, strict=True):
            axes.set(title=f"{batch} of {population}", xlabel="order", ylabel="Rényi divergence (nats)")
            for size in (1, 2, 8):
                transport, generic = substituted(batch, population, size)
                if size > 1:
                    _draw_substituted(axes, orders, transport, generic, batch, population, size)
                ratios = transport(orders) / generic(orders)
                what = f"{batch} of {population}, group of {size}: Proposition E.5 over baseline, smallest"
                numbers.append(Comparison(what, None, float(np.min(ratios)), _where_smaller(orders, ratios)))
    return numbers


def substituted(batch: int, population: int, size: int, noise: float = 5.0) -> tuple[curves.Curve, curves.Curve]:
    """Proposition E.5, and the group property of the bound of Wang et al. for one record."""
    one = base.gaussian(noise)

    def individual(orders: curves.Floats) -> curves.Floats:
        return subsampling.substitution_baseline(one, batch / population, orders, tightened=True)

    def transport(orders: curves.Floats) -> curves.Floats:
        return subsampling.group_substitution_without_replacement(one, batch, population, size, orders)

    return transport, curves.baseline(individual, size)


def _where_smaller(orders: curves.Floats, ratios: curves.Floats) -> str:
    """The ranges of orders at which a ratio is below one."""
    smaller = np.concatenate([[False], ratios < 0.999, [False]])
    starts, stops = np.flatnonzero(~smaller[:-1] & smaller[1:]), np.flatnonzero(smaller[:-1] & ~smaller[1:]) - 1
    ranges = [f"{orders[start]:g} to {orders[stop]:g}" for start, stop in zip(starts, stops, strict=True)]
    return f"smaller at orders {', '.join(ranges)}" if ranges else "never smaller"


def _draw_substituted(
    axes: Axes,
    orders: curves.Floats,
    transport: curves.Curve,
    generic: curves.Curve,
    batch: int,
    population: int,
    size: int,
) -> None:
    few = orders[orders <= MOST_ORDERS]
    ours, above = group(curves.drawn_gaussian(5.0, batch, population), size).rdp(few), generic(orders)
    axes.plot(few, ours, **OURS)
    axes.plot(orders, transport(orders), markevery=3, **TRANSPORT)
    axes.plot(orders, above, **WITHOUT_GROUP)
    name_curve(axes, few[0], ours[0], str(size), before=True)
    name_curve(axes, orders[-1], above[-1], f"({size})")


def _responses(path: Path, title: str, cases: Sequence[tuple[float, float]]) -> Sequence[Comparison]:
    """A panel for each pair of true response probability and ratio q / N."""
    orders, numbers = curves.whole_orders(), []
    with panels(path, f"{PAPER}, {title}", rows=len(cases) // 3) as all_axes:
        for axes, (true_response, fraction) in zip(all_axes.flat, cases, strict=True):
            axes.set(title=f"true response {true_response:g}, q / N = {fraction:g}", xlabel="order")
            axes.set_ylabel("Rényi divergence (nats)")
            tight, generic = curves.drawn_response(true_response, fraction)
            axes.plot(orders, generic(orders), **WITHOUT_GROUP)
            few = orders[orders <= MOST_ORDERS]
            mechanism = WithoutReplacement(RandomisedResponse(true_response), round(1000 * fraction), 1000)
            axes.plot(few, mechanism.rdp(few), **OURS)
            axes.plot(orders, tight(orders), markevery=12, **TIGHT)
            at = np.array([2.0, 10.0, 100.0, 1000.0])
            ratios = generic(at) / tight(at)
            remark = ", ".join(f"{ratio:.3g}" for ratio in ratios) + " at orders 2, 10, 100, 1000"
            what = f"true response {true_response:g}, q / N {fraction:g}: baseline over tight, largest"
            numbers.append(Comparison(what, None, float(np.max(generic(orders) / tight(orders))), remark))
    return numbers
