"""Every numbered statement of the five papers, and what became of it: makes docs/papers/statements.md.

python -m benchmarks.papers.statements

A YAML file per paper lists its statements. Which tests check one, their marker says:
``@pytest.mark.statement("groups", "Theorem 3.4")``. Tests that call code of fedamp are in ``tests/papers``; a change of
fedamp cannot break the others, so they are here, and run where the page is made.
"""

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "papers" / "statements.md"
TITLES = {
    "partitioning": "Dong, Chen, Özgür 2025: model and data partitioning",
    "allocation": "Feldman, Shenfeld 2025: random allocation",
    "modelmix": "Xiao, Wan, Devadas 2022: ModelMix",
    "groups": "Schuchardt, Stoian, Kosmala, Günnemann 2024: groups",
    "merging": "Yin, Zaheer, Li 2026: merging",
}
HERE = [file for file in sorted(Path(__file__).parent.glob("*.py")) if not file.stem.startswith("__")]
STATES = {
    "charged": "fedamp charges by it, or by something at least as tight",
    "checked": "a test checks it; nothing is charged by it",
    "reproduced": "a figure or table of these pages computes it",
    "corrected": "false or incomplete as printed; a test shows it",
    "definition": "nothing to prove",
    "left out": "for the reason given",
}
IN_SHORT = ("charged", "checked", "definition")
"""States whose statements are named only; the lists say the rest, and ``grep`` finds a test by its marker."""
TESTED = {"charged", "checked", "corrected"}  # states that need a test

Tests = dict[tuple[str, str], list[str]]
"""Places of the tests of a statement, as ``tests/papers/test_groups.py::test_name``, by paper and name."""


@dataclass(frozen=True)
class Statement:
    """One of a paper, by its number there, in our words."""

    name: str
    says: str
    state: str
    where: str


def statements(paper: str) -> list[Statement]:
    """Those of a paper, in its order."""
    listed = yaml.safe_load((Path(__file__).parent / f"{paper}.yaml").read_text(encoding="utf-8"))
    return [Statement(**each) for each in listed]


def tests() -> Tests:
    """Of all statements that a marker names."""
    found: Tests = defaultdict(list)
    for file in [*sorted((ROOT / "tests").rglob("test_*.py")), *HERE]:
        source = file.read_text(encoding="utf-8")
        if "mark.statement(" in source:
            for test, statement in _marked(ast.parse(source)):
                found[statement].append(f"{file.relative_to(ROOT).as_posix()}::{test}")
    return dict(found)


def _marked(module: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    for function in ast.walk(module):
        for decorator in getattr(function, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.statement":
                paper, *names = (ast.literal_eval(argument) for argument in decorator.args)
                yield from ((function.name, (paper, name)) for name in names)  # type: ignore[attr-defined]


def check() -> None:
    """Run the tests that call no code of fedamp; CalledProcessError if one fails."""
    subprocess.run([sys.executable, "-m", "pytest", "-q", *HERE], cwd=ROOT, check=True)


def page() -> str:
    """The page, with a table per paper."""
    known = tests()
    every = {paper: statements(paper) for paper in TITLES}
    total = Counter(each.state for listed in every.values() for each in listed)
    lines = [
        "# Every numbered statement of the five papers",
        "",
        f"{total.total()} statements. `python -m benchmarks.papers.statements` makes this page from the lists in",
        "`benchmarks/papers/statements/`, which say of each what it states, and from the markers of the tests.",
        "Tests there call no code of fedamp; this command runs them. [papers.md](../papers.md) is the overview.",
        "",
        "| state | meaning | " + " | ".join(TITLES) + " | all |",
        "| --- | --- |" + " --- |" * (len(TITLES) + 1),
    ]
    for state, meaning in STATES.items():
        counts = [sum(each.state == state for each in listed) for listed in every.values()]
        lines.append(f"| {state} | {meaning} | {' | '.join(map(str, counts))} | {total[state]} |")
    for paper, listed in every.items():
        lines += ["", f"## {TITLES[paper]}", "", "| statement | says | state | where or why, and tests |"]
        lines += ["| --- | --- | --- | --- |"]
        for each in listed:
            if each.state not in IN_SHORT:
                files = dict.fromkeys(place.split("::")[0] for place in known.get((paper, each.name), ()))
                where = " ".join([f"{each.where};" if files else each.where, ", ".join(map(_link, files))]).strip()
                cells = (each.name, each.says, each.state, where)
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        for state in IN_SHORT:
            kinds: dict[str, list[str]] = {}
            for kind, _, number in (each.name.partition(" ") for each in listed if each.state == state):
                kinds.setdefault(kind, []).append(number)
            names = "; ".join(f"{kind} {', '.join(numbers)}" for kind, numbers in kinds.items())
            lines += ["", f"{state.capitalize()}: {names}."]
    return "\n".join([*lines, ""])


def _link(file: str) -> str:
    return f"[{Path(file).stem}](../../{file})"
