"""Figures 3, 6 and 7 of Schuchardt et al. 2024: batches of fixed size, drawn without replacement."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from benchmarks.papers.bounds.groups import (
    Curve,
    coin_rdp,
    group_property,
    group_transport_rdp,
    substituted_response_rdp,
    substitution_baseline,
)
from benchmarks.papers.bounds.mixtures import Floats
from benchmarks.papers.drawing import OURS
from benchmarks.papers.groups_drawing import BASELINE, MOST_ORDERS, TIGHT, name_curve, panels
from benchmarks.record import Row
from fedamp.accounting import Gaussian, RandomisedResponse, WithoutReplacement, group

PAPER = "Schuchardt et al. 2024"
WITHOUT_GROUP = BASELINE | {"label": "(baseline: Wang et al. 2019)"}
TRANSPORT = TIGHT | {"marker": "s", "label": "paper, Proposition E.5"}
NOISE = 5.0
TRUE_RESPONSES = (0.6, 0.75, 0.9)


def whole_orders(number: int = 121, highest: float = 1e4) -> Floats:
    """Equidistant in logarithm from 2 on, rounded down to whole orders: the paper's own (appendix B)."""
    return np.unique(np.floor(np.geomspace(2, highest, number) + 1e-9))


def figure_3(path: Path) -> Sequence[Row]:
    """Rényi divergence over its order: randomised response on 1 of 1000 without replacement."""
    cases = [(truth, 0.001) for truth in TRUE_RESPONSES]
    _responses(path, "Figure 3: randomised response, q / N = 0.001", cases)
    at = np.array([2.0, 10.0, 100.0, 1000.0])
    return [
        {"baseline over tight": f"true response {truth:g}"}
        | {f"order {order:g}": ratio for order, ratio in zip(at, _ratio(truth, fraction, at).tolist(), strict=True)}
        for truth, fraction in cases
    ]


def figure_6(path: Path) -> Sequence[Row]:
    """Rényi divergence over its order: randomised response without replacement, three ratios."""
    fractions, orders = (0.1, 0.01, 0.001), whole_orders()
    cases = [(truth, fraction) for truth in TRUE_RESPONSES for fraction in fractions]
    _responses(path, "Figure 6: randomised response without replacement", cases)
    return [
        {"baseline over tight, largest": f"true response {truth:g}"}
        | {f"q / N = {fraction:g}": float(np.max(_ratio(truth, fraction, orders))) for fraction in fractions}
        for truth in TRUE_RESPONSES
    ]


def figure_7(path: Path) -> Sequence[Row]:
    """Rényi divergence over its order: groups substituted without replacement, Gaussian noise multiplier 5."""
    orders = whole_orders(41)
    settings = [(100, 1000), (100, 10_000), (100, 100_000), (1, 10), (1, 100), (1, 1000)]
    rows: list[Row] = []
    with panels(path, f"{PAPER}, Figure 7: Gaussian noise 5, groups of 2 and 8", rows=2) as all_axes:
        for axes, (batch, population) in zip(all_axes.flat, settings, strict=True):
            axes.set(title=f"{batch} of {population}", xlabel="order", ylabel="Rényi divergence (nats)")
            row: Row = {"Proposition E.5 over baseline, smallest": f"{batch} of {population}"}
            for size in (1, 2, 8):
                transport, generic = substituted(batch, population, size)
                if size > 1:
                    _draw_substituted(axes, orders, transport, generic, batch, population, size)
                row[f"group of {size}"] = _where_smaller(orders, transport(orders) / generic(orders))
            rows.append(row)
    return rows


def substituted(batch: int, population: int, size: int) -> tuple[Curve, Curve]:
    """Proposition E.5, and the group property of the bound of Wang et al. for one record."""

    def gaussian(orders: Floats) -> Floats:
        return orders / (2 * NOISE**2)

    individual = partial(substitution_baseline, gaussian, math.inf, batch / population)
    return partial(group_transport_rdp, NOISE, batch, population, size), partial(group_property, individual, size)


def charged(batch: int, population: int, size: int, orders: Floats) -> Floats:
    """fedamp's divergence. Its noise is in sizes of one contribution, the paper's in sizes of one substitution."""
    return group(WithoutReplacement(Gaussian(2 * NOISE), batch, population), size).rdp(orders)


def responses(truth: float, fraction: float) -> tuple[Curve, Curve]:
    """Theorem 3.7, and the bound of Wang et al."""

    def without_sampling(orders: Floats) -> Floats:
        return coin_rdp(truth, 1 - truth, orders)

    odds = math.log(truth / (1 - truth))
    return (
        partial(substituted_response_rdp, truth, fraction),
        partial(substitution_baseline, without_sampling, odds, fraction),
    )


def _ratio(truth: float, fraction: float, orders: Floats) -> Floats:
    tight, generic = responses(truth, fraction)
    return generic(orders) / tight(orders)


def _where_smaller(orders: Floats, ratios: Floats) -> str:
    """The smallest ratio and the ranges of orders at which it is below one."""
    smaller = np.concatenate([[False], ratios < 0.999, [False]])
    starts, stops = np.flatnonzero(~smaller[:-1] & smaller[1:]), np.flatnonzero(smaller[:-1] & ~smaller[1:]) - 1
    ranges = [f"{orders[start]:g} to {orders[stop]:g}" for start, stop in zip(starts, stops, strict=True)]
    return f"{np.min(ratios):.3g} (orders {', '.join(ranges)})" if ranges else "never smaller"


def _draw_substituted(
    axes: Axes, orders: Floats, transport: Curve, generic: Curve, batch: int, population: int, size: int
) -> None:
    few = orders[orders <= MOST_ORDERS]
    ours, above = charged(batch, population, size, few), generic(orders)
    axes.plot(few, ours, **OURS)
    axes.plot(orders, transport(orders), markevery=3, **TRANSPORT)
    axes.plot(orders, above, **WITHOUT_GROUP)
    name_curve(axes, few[0], ours[0], str(size), before=True)
    name_curve(axes, orders[-1], above[-1], f"({size})")


def _responses(path: Path, title: str, cases: Sequence[tuple[float, float]]) -> None:
    """A panel for each pair of true response probability and ratio q / N."""
    orders = whole_orders()
    with panels(path, f"{PAPER}, {title}", rows=len(cases) // 3) as all_axes:
        for axes, (truth, fraction) in zip(all_axes.flat, cases, strict=True):
            axes.set(title=f"true response {truth:g}, q / N = {fraction:g}", xlabel="order")
            axes.set_ylabel("Rényi divergence (nats)")
            tight, generic = responses(truth, fraction)
            axes.plot(orders, generic(orders), **WITHOUT_GROUP)
            few = orders[orders <= MOST_ORDERS]
            axes.plot(few, WithoutReplacement(RandomisedResponse(truth), round(1000 * fraction), 1000).rdp(few), **OURS)
            axes.plot(orders, tight(orders), markevery=12, **TIGHT)
