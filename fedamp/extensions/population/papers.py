"""Write a text for a person as a page and as a PDF, from a template that an organisation may edit.

A template is a Jinja template of plain text: ``#`` and ``##`` begin a heading, ``-`` a line of a list, and an empty
line ends a paragraph. Both files show the same blocks. A name that comes from elsewhere is one line, without markup.
"""

import html
import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from jinja2 import TemplateError

from fedamp.base.files import write_atomically, writing
from fedamp.base.numbers import at_most, power
from fedamp.base.reading import read_typed
from fedamp.base.text import printable, with_texts
from fedamp.errors import InputError
from fedamp.extensions.pages.templates import environment

Language = Literal["en", "de"]
SIZES = {"#": (15.0, 46), "##": (12.0, 60), "-": (10.0, 78), "": (10.0, 80)}  # points, and letters of a line
A4 = (8.27, 11.69)  # inches
MARGIN = 0.9  # inches


def template_of(name: str, language: Language, file: Path | None) -> str:
    """Return the text of a template: one of the organisation, or fedamp's own.

    Args:
        name: of fedamp's template, ``history`` or ``certificate``.
        language: of fedamp's template.
        file: of the organisation's template; if there is none, fedamp's is written there to be edited. None: fedamp's.

    Raises:
        InputError: the file cannot be read; or it is new, so that nobody has edited it.
    """
    own = (Path(__file__).parent / "templates" / f"{name}.{language}.md.j2").read_text("utf-8")
    if file is None:
        return own
    try:
        if not file.exists():
            write_atomically(file, own.encode(), durable=False)
            raise InputError(f"{file}: is new, with fedamp's text; expected: your text, then the same command")
        return str(read_typed(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read or written ({error})") from None


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Fill in a template; every text of ``values`` becomes one printable line.

    Raises:
        InputError: the template is wrong, or asks for a value that there is not.
    """
    made = environment().overlay(autoescape=False, keep_trailing_newline=True)
    made.filters |= {"at_most": at_most, "power": power}
    try:
        return str(made.from_string(template).render(with_texts(values, printable)))
    except TemplateError as error:
        raise InputError(f"template: {printable(error)}; expected: a Jinja template with these values") from None


def write_both(text: str, folder: Path, name: str, language: Language) -> list[Path]:
    """Write a text as ``NAME.html`` and ``NAME.pdf`` into a folder, which is made if it is missing.

    A crash leaves no page beside the PDF of an older text.

    Raises:
        UnwritableError: the folder or a file cannot be written.
    """
    blocks, page, pdf = list(_blocks(text)), folder / f"{name}.html", folder / f"{name}.pdf"
    content = _pdf(blocks)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        pdf.unlink(missing_ok=True)
    write_atomically(page, _page(blocks, language).encode(), durable=False)
    write_atomically(pdf, content, durable=False)
    return [page, pdf]


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the blocks of a text: its mark (``#``, ``##``, ``-``, or nothing) and its words."""
    for piece in text.replace("\r", "").split("\n\n"):
        lines: list[tuple[str, str]] = []
        for line in filter(None, map(str.strip, piece.split("\n"))):
            mark, _, words = line.partition(" ")
            if mark in SIZES and words:
                lines.append((mark, words))
            elif lines and lines[-1][0] in ("", "-"):
                lines[-1] = lines[-1][0], f"{lines[-1][1]} {line}"
            else:
                lines.append(("", line))
        yield from lines


def _page(blocks: list[tuple[str, str]], language: Language) -> str:
    """Return the blocks as one HTML file."""
    tags = {"#": "h1", "##": "h2", "-": "li", "": "p"}
    title = next((words for mark, words in blocks if mark == "#"), "")
    body = "".join(f"<{tags[mark]}>{html.escape(words)}</{tags[mark]}>\n" for mark, words in blocks)
    style = "body{max-width:42rem;margin:2rem auto;padding:0 1rem;font:17px/1.5 sans-serif;overflow-wrap:anywhere}"
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{style}</style>'
    return f'<!doctype html>\n<html lang="{language}"><head>{head}</head>\n<body>\n{body}</body></html>\n'


def _pdf(blocks: list[tuple[str, str]]) -> bytes:
    """Return the blocks as a PDF of A4 pages, whose text can be copied and searched."""
    from io import BytesIO

    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    from fedamp.report.style import UNDATED, usual

    stream = BytesIO()
    with usual(), warnings.catch_warnings(), PdfPages(stream, metadata=UNDATED[".pdf"]) as pages:
        warnings.filterwarnings("ignore", message="Glyph")  # a letter without a shape in the font is a box
        sheet, below = None, math.inf
        for mark, words in blocks:
            size, letters = SIZES[mark]
            lines = textwrap.wrap(words, letters, initial_indent="•  " if mark == "-" else "") or [""]
            below += size / 72 * 0.7
            for line in lines:
                if below > A4[1] - MARGIN:
                    if sheet is not None:
                        pages.savefig(sheet)
                    sheet, below = Figure(figsize=A4), MARGIN
                assert sheet is not None, "the first line begins one"
                below += size / 72 * 1.4
                weight = "bold" if mark.startswith("#") else "normal"
                place = MARGIN / A4[0], 1 - below / A4[1]
                sheet.text(*place, line, size=size, weight=weight, parse_math=False)
        if sheet is not None:
            pages.savefig(sheet)
    return stream.getvalue()
