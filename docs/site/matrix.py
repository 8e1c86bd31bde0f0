"""Makes the tables of docs/matrix.md: which keys of a scenario run together, and how wide the bracket of epsilon is.

python -m docs.site.matrix    (a minute of one core)
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.record import put_in
from fedamp.errors import ScenarioError
from fedamp.federation import reader
from fedamp.federation.plan import make_plan

PAGE = Path(__file__).resolve().parents[1] / "matrix.md"
UNITS = 400
BASE: dict[str, Any] = {
    "name": "matrix",
    "data": {"name": "digits", "clients": UNITS},
    "model": {"name": "mlp", "hidden": [32]},
    "rounds": 40,
}
CHECK_INS: dict[str, dict[str, Any]] = {
    "all": {},
    "poisson": {"rate": 0.1},
    "balanced": {"k": 4},
    "stratified": {"k": 4},
    "capped-poisson": {"rate": 0.1, "at_most": 6},
    "batches": {"size": 40},
    "truncated-poisson": {"rate": 0.1, "size": 64},
    "classes": {"k": 4},
    "spaced": {"k": 4},
}
NOISES = ("independent", "banded", "buffered")
MODELS: dict[str, dict[str, Any]] = {
    "whole": {},
    "disjoint, 3": {"submodels": {"scheme": "disjoint", "count": 3}},
    "dropout, 0.5": {"submodels": {"scheme": "dropout", "keep": 0.5}},
    "ModelMix": {"mixing": {"width": 0.1}},
}
COLUMNS: dict[str, dict[str, Any]] = {  # unit and aggregation
    "client": {},
    "record": {"privacy": {"unit": "sample"}},
    "3 clients": {"privacy": {"group_size": 3}},
    "client, secure": {"aggregation": {"scheme": "secure", "nodes": 20}},
}
HEADS = (*COLUMNS, "answer by", "bracket")


def scenario(check_in: str, noise: str, model: str, column: str) -> dict[str, Any]:
    """One scenario of the tables, as a file has it."""
    privacy = {"clip": 0.5, "epsilon": 4, "noise_multiplier": "auto", "noise": {"scheme": noise}}
    more = COLUMNS[column]
    gap = {"gap": 2} if check_in == "spaced" and noise != "banded" else {}  # bands decide it themselves
    return {
        **BASE,
        **MODELS[model],
        "check_in": {"scheme": check_in, **CHECK_INS[check_in], **gap},
        **more,
        "privacy": privacy | more.get("privacy", {}),
    }


def refusal(raw: dict[str, Any]) -> str | None:
    """Why a scenario is refused: the fact that it breaks, or the whole reason; None: it runs."""
    try:
        reader.validate_scenario(raw, "matrix")
    except ScenarioError as error:
        fact = re.search(r"needs a fact that .* breaks: (.*?); expected", str(error))
        return fact[1] if fact else str(error).removeprefix("matrix: ")
    return None


def bracket(raw: dict[str, Any]) -> tuple[str, str]:
    """Which evaluation gave the upper end, and the lower end's distance from it in per cent of it."""
    found = make_plan(reader.validate_scenario(raw, "matrix"), UNITS).charge.planned_epsilon
    width = "no lower end" if found.lower == 0 else f"{100 * (found.upper - found.lower) / found.upper:.2g} %"
    return found.method.split(",")[0], width


def row(check_in: str, noise: str, model: str, reasons: list[str]) -> str:
    """A line of a table; new reasons of refusals are added to ``reasons``."""
    cells, runs = [], False
    for column in COLUMNS:
        why = refusal(scenario(check_in, noise, model, column))
        if why is None:
            cells.append("runs")
            runs = runs or column == "client"
            continue
        if why not in reasons:
            reasons.append(why)
        cells.append(f"no ({reasons.index(why) + 1})")
    cells += bracket(scenario(check_in, noise, model, "client")) if runs else ("", "")
    return " | ".join(cells)


def rows() -> Iterable[tuple[str, str, str]]:
    """What the lines of both tables are of: check-in, noise, model."""
    apart = ("classes", "spaced")  # correlated noise needs them
    yield from ((each, noise, "whole") for each in CHECK_INS for noise in (NOISES if each in apart else NOISES[:1]))
    yield from ((check_in, "independent", model) for model in MODELS for check_in in ("all", "poisson", "balanced"))


def tables() -> str:
    """Both tables, and the reasons."""
    reasons: list[str] = []
    found = {each: row(*each, reasons) for each in dict.fromkeys(rows())}
    head = f"{' | '.join(HEADS)} |\n| --- | ---{' | ---' * len(HEADS)} |"
    first = [f"| {c} | {n} | {found[c, n, m]} |" for c, n, m in found if m == "whole"]
    second = [f"| {m} | {c} | {found[c, n, m]} |" for c, n, m in found if m != "whole"]
    return "\n".join(
        [
            f"| check-in | noise | {head}",
            *first,
            "",
            f"| model | check-in | {head}",
            *second,
            "",
            "A scenario that does not run breaks one of these facts:",
            "",
            *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1)),
        ]
    )


def main() -> None:
    """Write the tables into the page."""
    put_in(PAGE, "matrix: generated", tables())


if __name__ == "__main__":
    main()
