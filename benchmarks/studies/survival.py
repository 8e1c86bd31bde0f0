"""What noise at epsilon 1 costs a survival curve, on public data sets of lifelines.

    python -m benchmarks.studies.survival

``lifelines-times.json`` has the times and events of the data sets, as lifelines 0.30 ships them. The grid is the deciles
of the times. Each draw of the noise is one answer; nothing else is random.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import ROOT, made, put_in, store, table
from fedamp import accounting
from fedamp.extensions.statistics.questions import NoisySum, SurvivalQuestion

RESULTS = Path(__file__).with_suffix(".json")
DATA, PAGE = Path(__file__).with_name("lifelines-times.json"), ROOT / "docs" / "research" / "statistics.md"
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
    data: dict[str, Any] = json.loads(DATA.read_text())
    rows = [{"data set": name} | measure(each["time"], each["event"], noise) for name, each in data.items()]
    store(RESULTS, made() | {"epsilon": EPSILON, "delta": DELTA, "noise": noise, "draws": DRAWS, "rows": rows})
    put_in(PAGE, "survival", table(rows))


if __name__ == "__main__":
    main()
