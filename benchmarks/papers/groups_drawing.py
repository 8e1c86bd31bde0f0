"""How the figures of Schuchardt et al. 2024 look: panels side by side, group sizes written at the curves."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from benchmarks.papers.bounds.groups import Curve
from benchmarks.papers.bounds.mixtures import Floats
from benchmarks.papers.drawing import OURS, Style, make_readable, save
from fedamp.accounting import Mechanism

TIGHT: Style = {
    "color": "0.2",
    "linewidth": 0.8,
    "marker": "o",
    "markersize": 5,
    "markerfacecolor": "white",
    "zorder": 6,
    "label": "paper, tight",
}
TIGHT_CONVERTED: Style = TIGHT | {"label": "paper, tight (Rényi)"}
BASELINE: Style = {  # above fedamp's, and pale, so that it is seen where the two agree
    "color": "0.65",
    "linestyle": (0, (5, 2)),
    "linewidth": 1.6,
    "zorder": 5.5,
    "label": "(baseline: group property)",
}

GENERIC_LAW: Style = {
    "color": "0.35",
    "linestyle": ":",
    "marker": "x",
    "linewidth": 1.4,
    "label": "group property of fedamp's law",
}

OfRounds = Callable[[int], float]
"""Epsilon after so many rounds."""


class ByLaw(NamedTuple):
    """Epsilons by numerical laws after ``rounds``: of the group's own, and by the group property of one person's."""

    rounds: Sequence[int]
    tight: Sequence[float]
    generic: Sequence[float]


MOST_ORDERS = 512
"""The highest order asked of fedamp here; what is charged uses orders up to 256 and numerical laws."""


@contextmanager
def panels(path: Path, title: str, rows: int = 1, columns: int = 3) -> Iterator[NDArray[Any]]:
    """Axes of shape (rows, columns), logarithmic, with one legend for all; saved at ``path`` in the end."""
    size = (12, 4.6) if rows == 1 else (12, 1.6 + 2.2 * rows)
    figure, all_axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes in all_axes.flat:
        axes.set(xscale="log", yscale="log")
    yield all_axes
    for axes in all_axes.flat:
        low, high = axes.get_ylim()
        if high < 60 * low:
            make_readable(axes)
        axes.grid(visible=False, which="minor")
        axes.grid(color="0.9")
        axes.margins(x=0.04 + 0.04 * columns)  # room for the names of curves
    handles, labels = all_axes[0, 0].get_legend_handles_labels()
    known = dict(zip(labels, handles, strict=True))
    figure.suptitle(title, fontsize=11)
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=4, fontsize=9)
    save(figure, path)


def draw_orders(axes: Axes, orders: Floats, tight: Curve, generic: Curve, mechanism: Mechanism, size: int) -> Floats:
    """Divergences over orders: the paper's two curves, and fedamp's beneath the marks of the tight one.

    Returns:
        the baseline over the tight bound, at ``orders``.
    """
    values, above = tight(orders), generic(orders)
    few = orders[(orders >= 2) & (orders <= MOST_ORDERS)]
    axes.plot(orders, above, **BASELINE)
    axes.plot(few, mechanism.rdp(few), **OURS)
    axes.plot(orders, values, markevery=max(1, len(orders) // 10), **TIGHT)
    name_curve(axes, orders[-1], values[-1], str(size))
    if above[-1] > 1.15 * values[-1]:
        name_curve(axes, orders[0], above[0], f"({size})", before=True)
    return np.asarray(above / values)


def draw_converted(
    axes: Axes, rounds: Sequence[int], by_tight: OfRounds, by_generic: OfRounds, by_law: ByLaw, size: int
) -> None:
    """Epsilon over rounds."""
    fine = np.unique(np.geomspace(rounds[0], rounds[-1], 60).astype(int))
    values = [by_tight(int(t)) for t in fine]
    axes.plot(fine, [by_generic(int(t)) for t in fine], **BASELINE | {"label": "baseline (group property, Rényi)"})
    axes.plot(rounds, by_law.generic, **GENERIC_LAW)
    axes.plot(rounds, by_law.tight, **OURS | {"label": "fedamp (numerical law)"})
    axes.plot(fine, values, markevery=8, **TIGHT_CONVERTED)
    name_curve(axes, fine[-1], values[-1], str(size))


def name_curve(axes: Axes, x: float, y: float, name: str, before: bool = False) -> None:
    """A name at the right (or left) end of a curve."""
    side = "right" if before else "left"
    offset = (-6 if before else 6, 0)
    axes.annotate(name, (x, y), xytext=offset, textcoords="offset points", va="center", ha=side, fontsize=9)
