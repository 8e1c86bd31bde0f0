"""How pictures look: readable in grey (dashes and markers, never colour alone) and on a phone (large text)."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from fedamp.errors import RunFolderError

WIDTH = 4.8  # inches; 11 points of text at this width are 12 pixels on a phone that is 390 pixels wide
TEXT = 11  # points
GREY = "#5f5f5f"


class Look(NamedTuple):
    """The colour, the dash pattern and the marker of a line."""

    color: str
    dash: Any
    marker: str

    @property
    def options(self) -> dict[str, Any]:
        """For matplotlib."""
        return {"color": self.color, "linestyle": self.dash, "marker": self.marker}


LOOKS = (  # each of another lightness, for a grey print
    Look("#0a2f5a", "-", "o"),
    Look("#d86910", (0, (5, 2)), "s"),
    Look("#1a7a5c", (0, (1, 1.4)), "^"),
    Look("#000000", (0, (6, 2, 1, 2)), "D"),
    Look("#8a2f10", (0, (3, 1, 1, 1, 1, 1)), "v"),
    Look("#60aadc", "-", "X"),
)


def look(index: int) -> Look:
    """The look of line ``index``; after six lines the colours repeat with other dashes and markers."""
    turn, place = divmod(index, len(LOOKS))
    other = LOOKS[(place + turn) % len(LOOKS)]
    return Look(LOOKS[place].color, other.dash, other.marker)


def figure(title: str, subtitle: str, heights: tuple[float, ...] = (3.2,)) -> tuple[Figure, list[Axes]]:
    """A figure with one axes below the other, their heights in inches, and the title above."""
    canvas = Figure(figsize=(WIDTH, sum(heights) + 0.6), layout="constrained")
    FigureCanvasAgg(canvas)
    with mpl.rc_context({"font.size": TEXT}):
        axes = canvas.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        for each in axes:
            each.grid(alpha=0.25)
            each.spines[["top", "right"]].set_visible(False)
        axes[0].set_title(title, loc="left", fontsize=13, fontweight="bold", pad=26)
        above: dict[str, Any] = {"xycoords": "axes fraction", "xytext": (0, 9), "textcoords": "offset points"}
        axes[0].annotate(subtitle, (0, 1), color=GREY, **above)
    return canvas, list(axes)


def save_all(pictures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write figures as ``NAME.png`` into a folder; returns the files. Raises RunFolderError if this fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in pictures.items():
            picture.savefig(folder / f"{name}.png", dpi=220)
        return [folder / f"{name}.png" for name in pictures]
    except OSError as error:
        raise RunFolderError(f"{folder}: pictures cannot be written there ({error.strerror})") from None


def inline(canvas: Figure) -> str:
    """A figure as a ``data:`` address for an HTML page: SVG, sharp at any size."""
    stream = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fedamp"}):
        canvas.savefig(stream, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(stream.getvalue()).decode()


def label(axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], **options: Any) -> None:
    """Words ``shift`` points away from a point of the data, on a background that hides the grid."""
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    axes.annotate(text, at, xytext=shift, textcoords="offset points", fontsize=TEXT, bbox=ground, **options)


def at_end(axes: Axes, text: str, height: float) -> None:
    """Words at the right of the axes, at the height of the end of a line."""
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (5, 0), "textcoords": "offset points"}
    look: dict[str, Any] = {"fontsize": TEXT, "fontweight": "bold", "va": "center", "annotation_clip": False}
    axes.annotate(text, (1, height), **place, **look)


def key(canvas: Figure, handles: Sequence[Artist]) -> None:
    """A line for each look below the picture, where it covers nothing."""
    canvas.set_figheight(canvas.get_figheight() + 0.24 * len(handles) + 0.1)
    canvas.legend(handles=handles, loc="outside lower left", handlelength=4, frameon=False, fontsize=TEXT)


def shortened(name: str, longest: int) -> str:
    """The end of a name: it differs more than the beginning."""
    return name if len(name) <= longest else "…" + name[1 - longest :]


def quality(axes: Axes, name: str, percent: bool, lowest: float = 0.0) -> None:
    """A vertical axis up to 100 %, or to 1; from ``lowest`` if that is below zero."""
    top = 100 if percent else 1
    bottom = min(0.0, max(lowest, -top)) * 1.1
    axes.set(ylabel=f"{name}, %" if percent else name, ylim=(bottom, top))
    axes.set_yticks([top * tick / 5 for tick in range(-5 if bottom < 0 else 0, 6) if top * tick / 5 >= bottom])


def logarithmic(axes: Axes) -> None:
    """A logarithmic horizontal axis with ticks such as 0.5, 2, 10."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
