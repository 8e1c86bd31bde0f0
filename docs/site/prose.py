"""Lists long sentences and listed words in the texts that users read.

    python docs/site/prose.py [PAGE ...]    user pages, README and CONTRIBUTING; --research: also the research pages
    python docs/site/prose.py --code        docstrings of fedamp
    python docs/site/prose.py --helps       helps of commands

A test holds the counts for pages (tests/test_site.py).
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 25
"""Words of a sentence."""

LISTED = re.compile(
    r"\b(gone|whoever|whosoever|stands? twice|likewise|mends?|mended|with charge|nobody but|not the least|to the letter"
    r"|otherwise than|than what|what .{1,30} is not so|tells? of|says? of|of use|by heart|whereof|thereof|therein"
    r"|in vain|at whose|such as are|as it were|be it)\b",
    re.IGNORECASE,
)
"""Words and phrases that a second-language reader reads twice."""


def user_pages() -> list[Path]:
    """The pages for users: README, CONTRIBUTING, and those of ``docs`` that are no research."""
    inside = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(page for page in inside if "research" not in page.parts)]


def research_pages() -> list[Path]:
    """Proofs, papers and measurements."""
    return sorted((ROOT / "docs" / "research").rglob("*.md"))


def words(page: Path) -> int:
    """Everything between spaces, as ``wc -w`` counts it."""
    return len(page.read_text(encoding="utf-8").split())


def paragraphs(markdown: str) -> Iterator[str]:
    """Paragraphs and list items, without code, tables, headings and formulas."""
    markdown = re.sub(r"^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    markdown = re.sub(r"<!--.*?-->|\$\$.*?\$\$", "", markdown, flags=re.DOTALL)
    markdown = re.sub(r"^(#.*|\|.*|!\[.*)$", "", markdown, flags=re.MULTILINE)
    markdown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    markdown = re.sub(r"`[^`]*`|\$[^$]*\$", "code", markdown)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*>]|\d+\.) )", markdown):
        text = " ".join(paragraph.split())
        if text:
            yield re.sub(r"[*_]{2}", "", re.sub(r"^(?:[-*>]|\d+\.) ", "", text))


def sentences(markdown: str) -> Iterator[str]:
    """Sentences, which end with a full stop, a question mark or a colon."""
    for paragraph in paragraphs(markdown):
        yield from re.split(
            r"(?:(?<=[.?!:])|(?<=[.?!]\)))\s+(?=[A-Z0-9(\"'*]|code|(?:fedamp|pfl|float64)\b)", paragraph
        )


def long_sentences(markdown: str) -> list[str]:
    """Those of more than ``LONGEST`` words."""
    return [each for each in sentences(markdown) if len(each.split()) > LONGEST]


def listed(markdown: str) -> list[str]:
    """The listed words of a text, each with its sentence."""
    return [f"{found[0]!r}: {each}" for each in sentences(markdown) for found in LISTED.finditer(each)]


def docstrings() -> Iterator[tuple[str, str]]:
    """Where each docstring of fedamp is, and its text without examples."""
    for file in sorted((ROOT / "fedamp").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", text.partition(">>>")[0]


def helps() -> Iterator[tuple[str, str]]:
    """The help of each command and of each of its parameters."""
    import typer

    from fedamp.cli.commands import app

    waiting = [("fedamp", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop(0)
        yield name, command.help or ""
        yield from ((f"{name} {each.name}", getattr(each, "help", None) or "") for each in command.params)
        waiting += [(f"{name} {each}", below) for each, below in getattr(command, "commands", {}).items()]


def main() -> None:
    """Print what the options ask for; the exit status is 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path)
    for option in ("research", "code", "helps"):
        parser.add_argument(f"--{option}", action="store_true")
    asked = parser.parse_args()
    pages = asked.pages or [*user_pages(), *(research_pages() if asked.research else [])]
    texts = docstrings() if asked.code else helps() if asked.helps else ((str(p), p.read_text("utf-8")) for p in pages)
    found = 0
    for place, text in texts:
        for kind, lines in (("long", long_sentences(text)), ("word", listed(text))):
            for line in lines:
                print(f"{place}: {kind}: {line}")
                found += 1
    if not (asked.code or asked.helps):
        print(f"{len(pages)} pages, {sum(map(words, pages)):,} words, {found} findings")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
