"""Decide how pictures look: readable in grey (dashes and markers, never colour alone) and on a phone (large text).

:mod:`fedamp.report.pictures` and extensions draw with these functions, never with pyplot. A picture is the same bytes
whatever another program has set, and has no date.
"""

import base64
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from fedamp.base.files import as_its_folder, make_folder
from fedamp.errors import RunFolderError

WIDTH = 4.8  # inches; 11 points of text at this width are 12 pixels on a phone that is 390 pixels wide
TEXT = 11  # points
PAPER_WIDTH, PAPER_TEXT = 3.3, 8  # inches and points in a column of a paper
GREY = "#5f5f5f"
UNDATED: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
_PROGRAMS = {"backend", "interactive", "toolbar"}  # settings of windows
VECTOR: Any = {"svg.hashsalt": "fedamp", "pdf.fonttype": 42}  # TrueType, as journals ask for


@contextmanager
def usual() -> Iterator[None]:
    """Have matplotlib draw as it is delivered while the context lasts, whatever another program has set: LaTeX, say."""
    with mpl.rc_context({key: value for key, value in mpl.rcParamsDefault.items() if key not in _PROGRAMS} | VECTOR):
        yield


class ChartStyle(NamedTuple):
    """The look of a line.

    Attributes:
        color: of the line, in hexadecimal.
        dash: pattern, as matplotlib takes it.
        marker: letter of matplotlib.
    """

    color: str
    dash: Any
    marker: str

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for matplotlib."""
        return {"color": self.color, "linestyle": self.dash, "marker": self.marker}


LOOKS = (  # each of another lightness, for a grey print
    ChartStyle("#0a2f5a", "-", "o"),
    ChartStyle("#d86910", (0, (5, 2)), "s"),
    ChartStyle("#1a7a5c", (0, (1, 1.4)), "^"),
    ChartStyle("#000000", (0, (6, 2, 1, 2)), "D"),
    ChartStyle("#8a2f10", (0, (3, 1, 1, 1, 1, 1)), "v"),
    ChartStyle("#60aadc", "-", "X"),
)


class Picture(Figure):
    """A figure that a notebook shows, without pyplot, and in which no text is a formula."""

    def _repr_html_(self) -> str:
        """Return the figure as an image for a notebook."""
        return all_inline({"": self})

    @usual()
    def draw(self, renderer: Any) -> None:
        """Draw the figure, with each dollar in a text as it is."""
        for text in self.findobj(Text):
            text.set_parse_math(False)  # a dollar in a folder's name is no formula
        super().draw(renderer)


def look(index: int) -> ChartStyle:
    """Return the look of line ``index``, from 0; after six lines the colours repeat with other dashes and markers."""
    turn, place = divmod(index, len(LOOKS))
    other = LOOKS[(place + turn) % len(LOOKS)]
    return ChartStyle(LOOKS[place].color, other.dash, other.marker)


@usual()
def figure(title: str, subtitle: str, heights: tuple[float, ...] = (3.2,)) -> tuple[Figure, list[Axes]]:
    """Make a figure with one axes below the other, and a title above.

    Args:
        title: in bold.
        subtitle: in grey, below the title.
        heights: of the axes, in inches.

    Returns:
        The figure, 4.8 inches wide, and its axes from above.
    """
    canvas = Picture(figsize=(WIDTH, sum(heights) + 0.6), layout="constrained")
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


@usual()
def for_paper(canvas: Figure) -> Figure:
    """Change a figure to what a column of a paper shows: 3.3 inches wide, text of 8 points, and no title."""
    top = canvas.axes[0]
    top.set_title("", loc="left")
    top.texts[0].remove()  # the subtitle
    for text in canvas.findobj(Text):
        text.set_fontsize(min(text.get_fontsize(), PAPER_TEXT))
    canvas.set_size_inches(PAPER_WIDTH, (canvas.get_figheight() - 0.6) * PAPER_WIDTH / WIDTH)
    return canvas


@usual()
def save_all(pictures: Mapping[str, Figure], folder: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write figures as ``NAME.png``, or ``.pdf`` and ``.svg``, into a folder.

    Args:
        pictures: by name.
        folder: is made if it is missing.
        formats: endings of file names.

    Returns:
        The files.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    files = {folder / f"{name}.{format_}": picture for name, picture in pictures.items() for format_ in formats}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        make_folder(folder)
        for file, picture in files.items():
            with open(file, "wb", opener=as_its_folder) as stream:
                picture.savefig(stream, format=file.suffix[1:], dpi=220, metadata=UNDATED.get(file.suffix))
        return list(files)
    except OSError as error:
        raise RunFolderError(f"{folder}: pictures cannot be written there ({error.strerror})") from None


def all_inline(pictures: Mapping[str, Figure]) -> str:
    """Return HTML elements of pictures, which need no other files."""
    return "".join(f'<img src="{inline(picture)}">' for picture in pictures.values())


@usual()
def inline(canvas: Figure) -> str:
    """Return a figure as a ``data:`` address for an HTML page: SVG, sharp at any size."""
    stream = io.BytesIO()
    canvas.savefig(stream, format="svg", metadata=UNDATED[".svg"])
    return "data:image/svg+xml;base64," + base64.b64encode(stream.getvalue()).decode()


def at_end(axes: Axes, text: str, height: float) -> None:
    """Write words at the right of the axes, at the height of the end of a line."""
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (5, 0), "textcoords": "offset points"}
    look: dict[str, Any] = {"fontsize": TEXT, "fontweight": "bold", "va": "center", "annotation_clip": False}
    axes.annotate(text, (1, height), **place, **look)


def key(canvas: Figure, handles: Sequence[Artist]) -> None:
    """Put a line for each look below the picture, where it covers nothing."""
    canvas.set_figheight(canvas.get_figheight() + 0.24 * len(handles) + 0.1)
    canvas.legend(handles=handles, loc="outside lower left", handlelength=4, frameon=False, fontsize=TEXT)


def shortened(name: str, longest: int) -> str:
    """Keep the end of a name: it differs more than the beginning.

    >>> shortened("runs/digits-epsilon-8", 10)
    '…epsilon-8'
    """
    return name if len(name) <= longest else "…" + name[1 - longest :]


def quality(axes: Axes, name: str, percent: bool, values: Iterable[float]) -> None:
    """Limit and label a vertical axis so that it shows the values, and at least 5 % (or 0.05) of the scale.

    Args:
        axes: to change.
        name: of the metric.
        percent: whether values are in per cent.
        values: that are drawn; those that are not finite are left out.
    """
    whole, shown = 100.0 if percent else 1.0, [value for value in values if math.isfinite(value)] or [0.0]
    margin = max(0.06 * (max(shown) - min(shown)), 0.025 * whole)
    bottom, top = min(shown) - margin, max(shown) + margin
    limits = (max(bottom, 0.0), min(top, whole)) if percent else (bottom, top)
    axes.set(ylabel=f"{name}, %" if percent else name, ylim=limits)


def logarithmic(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, with ticks such as 0.5, 2, 10."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
