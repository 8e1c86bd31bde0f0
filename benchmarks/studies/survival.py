"""What noise at epsilon 1 costs a survival curve, on public data sets of lifelines.

    python -m benchmarks.studies.survival

``lifelines_times.csv`` has the times and events of the data sets, as lifelines 0.30 ships them. The grid is the first
eight deciles of the times. Each draw of the noise is one answer; nothing else is random.
"""

import csv
from pathlib import Path

import numpy as np

from benchmarks.record import ROOT, made, put_in, store, table
from fedamp import accounting
from fedamp.extensions.statistics.questions import NoisySum, SurvivalQuestion

RESULTS = Path(__file__).with_suffix(".json")
DATA, PAGE = Path(__file__).with_name("lifelines_times.csv"), ROOT / "docs" / "research" / "statistics.md"
EPSILON, DELTA, DRAWS, ERROR, LEAST = 1.0, 1e-5, 1000, 0.05, 10.0


def measure(times: list[float], events: list[int], noise: float) -> dict[str, float]:
    """The errors of noisy curves against the curve without noise, at the points that are shown."""
    grid = sorted(set(np.quantile(times, np.arange(1, 9) / 10).tolist()))
    asked = SurvivalQuestion(ask="survival", time="time", event="event", grid=tuple(grid))
    [(cells, values)] = asked.record_parts({"time": np.array(times), "event": np.array(events)})
    exact = np.bincount(cells, values, asked.number_of_cells).astype(float)
    right = {each.name: each.value for each in asked.answer_numbers(NoisySum(exact, 0.0, ERROR, 0))}
    draw, errors, halves, hits = np.random.default_rng(0), list[float](), list[float](), list[bool]()
    for _ in range(DRAWS):
        noisy = NoisySum(exact + noise * draw.standard_normal(len(exact)), noise, ERROR, LEAST)
        for each in asked.answer_numbers(noisy):
            if each.name.startswith("survival") and each.value is not None:
                errors.append(abs(each.value - right[each.name]))
                halves.append((each.upper - each.lower) / 2)
                hits.append(each.lower <= right[each.name] <= each.upper)
    return {
        "people": len(times),
        "points": len(grid),
        "shown": len(hits) / DRAWS,
        "mean error": float(np.mean(errors)),
        "90 % of errors below": float(np.quantile(errors, 0.9)),
        "half width": float(np.mean(halves)),
        "covered": float(np.mean(hits)),
    }


def main() -> None:
    """Measure all data sets, and write the table into its page."""
    noise = accounting.calibrate(accounting.Gaussian, EPSILON, DELTA)
    data: dict[str, list[tuple[float, int]]] = {}
    with DATA.open() as file:
        for row in csv.DictReader(file):
            data.setdefault(row["data_set"], []).append((float(row["time"]), int(row["event"])))
    rows = [{"data set": name} | measure(*map(list, zip(*each, strict=True)), noise) for name, each in data.items()]
    store(RESULTS, made() | {"epsilon": EPSILON, "delta": DELTA, "noise": noise, "draws": DRAWS, "rows": rows})
    put_in(PAGE, "survival", table(rows))


if __name__ == "__main__":
    main()
