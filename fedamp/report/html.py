"""Pieces of an HTML report; all text of others is escaped here."""

from collections.abc import Iterable
from html import escape
from typing import Any


def heading(title: str, alone: bool) -> str:
    """The heading of a part: a level lower where the page is about several models."""
    return f"<h2>{title}</h2>" if alone else f"<h3>{title}</h3>"


def figures(pictures: Iterable[tuple[str, str]]) -> str:
    """Pictures beside each other, each as its address and its caption."""
    drawn = [
        f'<figure><img src="{address}" alt="{escape(caption)}"><figcaption>{escape(caption)}</figcaption></figure>'
        for address, caption in pictures
    ]
    return '<div class="figures">\n' + "\n".join(drawn) + "\n</div>"


def facts(named: dict[str, str]) -> str:
    """Facts with their names."""
    rows = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in named.items())
    return f"<dl>\n{rows}\n</dl>"


def bullets(lines: Iterable[str]) -> str:
    """A list of sentences."""
    return "<ul>\n" + "\n".join(f"<li>{escape(line)}</li>" for line in lines) + "\n</ul>"


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table that scrolls sideways on a phone."""
    header = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table>\n<tr>{header}</tr>\n{body}\n</table></div>'
