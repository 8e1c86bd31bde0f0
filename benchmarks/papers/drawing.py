"""The look of the pictures. Every line has its own dashes and markers, so that no colour is needed.

The thick black line is fedamp's.
"""

from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image

Style = dict[str, Any]

OURS: Style = {"color": "black", "linewidth": 2.6, "label": "fedamp", "zorder": 5}
POISSON: Style = {"color": "0.35", "linestyle": (0, (5, 2)), "marker": "x", "label": "Poisson, loss distribution"}
POISSON_RDP: Style = {
    "color": "0.55",
    "linestyle": (0, (1, 1.5)),
    "marker": "v",
    "label": "Poisson, Rényi (whole orders)",
}
DIRECT: Style = {"color": "0.25", "linestyle": "-.", "marker": "o", "label": "allocation, direct (Rényi)"}
DECOMPOSITION: Style = {"color": "0.5", "linestyle": "--", "marker": "s", "label": "allocation, decomposition"}
RECURSIVE: Style = {
    "color": "0.4",
    "linestyle": (0, (3, 1, 1, 1, 1, 1)),
    "marker": "^",
    "label": "allocation, recursive",
}
COMBINED: Style = DIRECT | {"label": "allocation, the paper's best bound"}
SAMPLED: Style = {"color": "0.45", "linestyle": "none", "marker": "s", "label": "Monte Carlo, mean", "zorder": 6}
SAMPLED_LIMIT: Style = {
    "color": "0.55",
    "linestyle": (0, (8, 3)),
    "marker": "D",
    "label": "Monte Carlo, limit of 99 % confidence",
}
LOWER: Style = {"color": "0.6", "linestyle": (0, (1, 1.5)), "marker": "^", "label": "lower bound of Chua et al."}
LOOSE: Style = {"color": "0.6", "linestyle": (0, (8, 3)), "marker": "D", "label": "Dong et al., Eq. (3)"}
EXACT: Style = {"color": "0.25", "linestyle": "-.", "marker": "o", "label": "Dong et al., Eq. (2)"}
LOCAL: Style = {"color": "0.7", "linestyle": "-", "marker": "*", "label": "no amplification"}


def start(title: str, x: str, y: str) -> Axes:
    """One pair of axes."""
    _, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
    axes.set_title(title, fontsize=11)
    axes.set(xlabel=x, ylabel=y)
    return axes


def finish(axes: Axes, path: Path) -> None:
    """Legend, and the file."""
    make_readable(axes)
    axes.legend(fontsize=9)
    save(plt.gcf(), path)


def save(figure: Figure, path: Path) -> None:
    """Save a PNG of sixteen greys, a third of the usual size, and close the figure."""
    with BytesIO() as file:
        figure.savefig(file, dpi=120)
        Image.open(file).convert("L").quantize(16).save(path, optimize=True)
    plt.close(figure)


def make_readable(axes: Axes) -> None:
    """A pale grid, and plain numbers on logarithmic axes that span a few decades only."""
    axes.grid(color="0.9", which="both")
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if axis.get_scale() == "log" and limits[1] < 1e4 * limits[0]:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            width = limits[1] / limits[0]
            short = "23456789" if width < 3 else "246" if width < 100 else ""
            axis.set_minor_formatter(FuncFormatter(lambda value, _, of=short: _minor_label(value, of)))


def _minor_label(value: float, digits: str) -> str:
    """Minor ticks that begin with one of ``digits`` are labelled."""
    return f"{value:g}" if f"{value:e}"[0] in digits else ""
