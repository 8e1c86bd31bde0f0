"""Checks that measured numbers in pages name their command and the commit at which it measured them.

    python docs/site/sources.py             list what lacks; the exit status is 1 if there is any
    python docs/site/sources.py --write     write the commits of the stored results beside the commands

A page names a source as ``python -m benchmarks.studies.tuning`` at ``81096599``. The commit is the one in the stored
results of that command. Numbers of a marked table are put there by the command itself (benchmarks/record.py).
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = re.compile(
    r"`(?:python\s+-m\s+benchmarks\.(?P<module>[\w.]+)(?P<words>[^`]*)|make\s+papers\s+PAPER=(?P<paper>\w+))`"
    r"(?:\s+at\s+(?P<commits>`[0-9a-f]{8}`(?:\s+to\s+`[0-9a-f]{8}`)?))?"
)
"""A command in prose, and the commits behind it."""

OTHERS = re.compile(
    r"`(?:fedamp\s+privacy\s[^`]*`|(?:fedamp\s+(?:study|sweep|run)\s[^`]*|make\s+rehearsal)`\s+at\s+`[0-9a-f]{8}`)"
)
"""Commands outside of the benchmarks: the answer is the same at any commit, or the commit is named."""

EARLIER = {
    "papers/allocation.json": "abbd3f8d",
    "papers/k_of_t.json": "8fb5d754",
    "papers/merging.json": "abbd3f8d",
    "papers/modelmix.json": "1f0993b2",
    "papers/partitioning.json": "1f0993b2",
    "papers/published.json": "6ee3e593",
    "studies/clipping.jsonl": "6a5de764",
    "studies/federations.jsonl": "b991ed59",
    "studies/lora_remedies.jsonl": "0f8701e2",
    "studies/submodels.jsonl": "c6c963a3",
}
"""Results from before results held their commit: the one that added the last of them (``git log --follow``)."""

COMPUTED = {"docs/research/accounting.md", "docs/matrix.md", "docs/research/leaderboard.md"}
"""Pages whose tables of numbers are no measurements: tests compute them again, or a verified file is beside each."""


WRITTEN_BY_HAND = {
    ("docs/research/audit.md", "## Canaries in a run"): ("studies/canaries.json", 0),
    ("docs/research/architecture.md", "## Speed"): ("speed/gpu.json", 1),
}
"""Tables that no command puts into its page: page and heading; their results, and which table of the section it is."""


def results(module: str, words: str) -> Path | None:
    """The file of stored results of a command; None if it stores none."""
    asked = words.split()
    if module == "papers":
        found = ROOT / "benchmarks" / "papers" / f"{asked[0]}.json" if asked else None
        return found if found and found.exists() else None
    stem = {"peers": "peers/bench"}.get(module, module.replace(".", "/"))
    files = [ROOT / "benchmarks" / f"{stem}{ending}" for ending in (".json", ".jsonl")]
    return next((file for file in files if file.exists()), None)


def commits(file: Path, words: str) -> str:
    """The commits of stored results, as a page writes them: one, or the first and the last.

    ``--only PART`` in the command chooses that part of the results.
    """
    text = file.read_text(encoding="utf-8")
    if part := re.search(r"--only (\w+)", words):
        text = json.dumps(json.loads(text)[part[1]])
    found = list(dict.fromkeys(re.findall(r'"commit": ?"([0-9a-f]{8})(?:-dirty)?"', text)))
    found = found or [EARLIER[str(file.relative_to(ROOT / "benchmarks"))]]
    return f"`{found[0]}`" if len(found) == 1 else f"`{found[0]}` to `{found[-1]}`"


def with_commits(page: str) -> str:
    """A page whose commands name the commits of their stored results."""

    def named(found: re.Match[str]) -> str:
        words = " ".join((found["words"] or "").split())
        file = results("papers", found["paper"]) if found["paper"] else results(found["module"], words)
        if file is None:
            return found[0]
        command = found[0].partition("`")[2].partition("`")[0]
        return f"`{command}` at {commits(file, words)}"

    return SOURCE.sub(named, page)


def sections(page: str) -> Iterator[tuple[str, str]]:
    """The heading and the text of each part of a page, with the page's opening before each text."""
    opening, *rest = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    yield opening.partition("\n")[0], opening
    for section in rest:
        yield section.partition("\n")[0], f"{opening}\n{section}"


def tables(text: str) -> Iterator[list[str]]:
    """The cells of each table of numbers: at least half of those behind the first column begin with a digit."""
    for table in re.findall(r"^\|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE):
        cells = [cell.strip() for line in table.splitlines() for cell in line.strip("|").split("|")[1:]]
        if 2 * sum(bool(re.match(r"[\d*]*\d", cell)) for cell in cells) >= len(cells):
            yield cells


def without_source(page: str) -> list[str]:
    """Headings of sections that have a table of numbers and name no command with its commit.

    A benchmark that stores nothing computes: its numbers are the same at any commit.
    """
    lacking = []
    for heading, text in sections(page):
        own = text if heading.startswith("# ") else text[text.rindex(f"\n{heading}") :]
        sources = [each for each in SOURCE.finditer(with_commits(text)) if each["commits"] or not stored(each)]
        if any(tables(own)) and not sources and not OTHERS.search(own):
            lacking.append(heading)
    return lacking


def stored(found: re.Match[str]) -> bool:
    """Whether the command of a source stores results."""
    words = found["words"] or ""
    return (results("papers", found["paper"]) if found["paper"] else results(found["module"], words)) is not None


def unexplained(cells: list[str], file: Path) -> list[str]:
    """Numbers of a table that no stored number rounds to: to its decimals, or to three digits; also in per cent."""
    held = [float(each) for each in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.])", file.read_text())]
    missing = []
    for cell in cells:
        for number in re.findall(r"(?<![\w-])\d[\d,]*(?:\.\d+)?", cell):
            shown = float(number.replace(",", ""))
            places = len(number.partition(".")[2])
            step = 10.0**-places if places else max(1.0, 10.0 ** (len(number.replace(",", "")) - 3))
            if not any(abs(scale * value - shown) <= 0.51 * step for value in held for scale in (1.0, 100.0)):
                missing.append(number)
    return missing


def pages() -> list[Path]:
    """README and all pages below docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    """Write the commits, or list what lacks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the commits into the pages")
    write, lacking = parser.parse_args().write, []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if write and with_commits(text) != text:
            page.write_text(with_commits(text), encoding="utf-8")
        name = str(page.relative_to(ROOT))
        if not write and with_commits(text) != text:
            lacking.append(f"{name}: commits differ from those of the stored results; --write mends that")
        if name not in COMPUTED:
            lacking += [f"{name}: no command with its commit: {heading}" for heading in without_source(text)]
    print(*lacking, sep="\n")
    sys.exit(1 if lacking else 0)


if __name__ == "__main__":
    main()
