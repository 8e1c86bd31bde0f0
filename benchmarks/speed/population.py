"""Ten million clients on one machine: time and memory of a round against population, cohort and model size.

``python -m benchmarks.speed.population`` measures each case in a process of its own, with one serial worker, and puts a
table and its slopes into docs/research/machines.md. A slope of 1 means: ten times as much costs ten times as much.
"""

import json
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

from benchmarks.record import ROOT, made, put_in, store, table
from benchmarks.speed.scale import SMALL, _apart, _start

RESULTS, PAGE = Path(__file__).with_suffix(".json"), ROOT / "docs" / "research" / "machines.md"
MIDDLE = {"population": 1_000_000, "cohort": 10_000, "hidden": 128}
"""The case from which one number at a time is varied."""

VARIED = {"population": (100_000, 1_000_000, 10_000_000), "cohort": (1_000, 10_000, 40_000), "hidden": (32, 128, 512)}
COLUMNS = {
    "start, processor s": "processor_seconds_to_start",
    "a round, processor s": "processor_seconds_a_round",
    "peak MB": "peak_megabytes",
}


def measure(population: int, cohort: int, hidden: int) -> dict[str, Any]:
    """One case: processor seconds until clients are asked, and of a round; and megabytes at the peak."""
    model = {"name": "mlp", "hidden": [hidden]}
    work = replace(SMALL, clients=population, rounds=2, model=model)
    sections = {"check_in": {"scheme": "poisson", "rate": cohort / population}}
    found = _apart("fedamp", work, kind="serial", workers=1, **sections)
    return {
        "processor_seconds_to_start": _start(work, sections),
        "processor_seconds_a_round": found["processor_seconds"] / work.rounds,
        "peak_megabytes": found["peak_bytes"] / 1e6,
    }


def slope(cases: list[dict[str, Any]], key: str, figure: str) -> float:
    """The slope of a figure from the smallest to the largest case, both as logarithms."""
    first, last = cases[0], cases[-1]
    return log(last[figure] / first[figure]) / log(last[key] / first[key])


def rows(cases: list[dict[str, Any]]) -> list[dict[str, str]]:
    """A row for each case, and for each number that is varied a row of slopes."""
    found: list[dict[str, str]] = []
    for key, values in VARIED.items():
        own = [next(case for case in cases if case.items() >= (MIDDLE | {key: value}).items()) for value in values]
        for case in own:
            what = {"population": case["population"], "cohort": case["cohort"], "hidden units": case["hidden"]}
            figures = {name: f"{case[figure]:.3g}" for name, figure in COLUMNS.items()}
            found.append({"varied": key.replace("hidden", "model")} | {k: f"{n:,}" for k, n in what.items()} | figures)
        slopes = {name: f"{round(slope(own, key, figure), 2) + 0.0:g}" for name, figure in COLUMNS.items()}
        found.append({"varied": "slope"} | dict.fromkeys(("population", "cohort", "hidden units"), "") | slopes)
    return found


def main() -> None:
    """Measure what is not stored yet, and write the table."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else made() | {"cases": []}
    for key, values in VARIED.items():
        for value in values:
            case = MIDDLE | {key: value}
            if not any(each.items() >= case.items() for each in kept["cases"]):
                kept["cases"].append(case | measure(**case))
                store(RESULTS, kept)
                print(kept["cases"][-1], flush=True)
    put_in(PAGE, "population", table(rows(kept["cases"])))


if __name__ == "__main__":
    main()
