"""Survival beside lifelines: its own data sets and its answers are in ``lifelines.json``, which names its version.

The file is made by a few lines of Python: for each data set, ``KaplanMeierFitter().fit(times, events)`` by group, with
``survival_function_`` and ``confidence_interval_``, and the ``p_value`` of ``logrank_test`` of the first two groups.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fedamp.extensions.statistics.questions import NoisySum, SurvivalQuestion

REFERENCE = json.loads(Path(__file__).with_name("lifelines.json").read_text())
SETS = [name for name in REFERENCE if name != "made_by"]


def question_and_cells(name: str, grid=None) -> tuple[SurvivalQuestion, np.ndarray]:
    """The question about a data set, one record a person, and its exact counts."""
    known = REFERENCE[name]
    grid = grid or sorted({time for time in known["time"] if time > 0})
    groups = {"by": "group", "words": known["groups"]} if known["p"] is not None else {}
    asked = SurvivalQuestion(ask="survival", time="time", event="event", grid=grid, **groups)
    columns = {key: np.array(known[key], object) for key in ("time", "event", "group")}
    [(cells, values)] = asked.record_parts(columns)
    return asked, np.bincount(cells, values, asked.number_of_cells).astype(float)


@pytest.mark.parametrize("name", SETS)
def test_without_noise_curves_intervals_and_log_rank_are_those_of_lifelines(name):
    asked, cells = question_and_cells(name)
    found = {number.name: number for number in asked.answer_numbers(NoisySum(cells, 0.0, 0.05, 0))}
    compared = 0
    for group, rows in REFERENCE[name]["km"].items():
        for time, *right in rows:
            number = found.get(f"{group}: " * bool(group) + f"survival at {time:g}")
            if number is not None:  # nobody is at risk any more
                assert [number.value, number.people_lower, number.people_upper] == pytest.approx(right, abs=1e-6)
                compared += 1
    assert compared >= 20
    if REFERENCE[name]["p"] is not None:
        [p] = [number.value for number in found.values() if number.name.endswith(": p")]
        assert p == pytest.approx(REFERENCE[name]["p"], rel=1e-4)


@pytest.mark.parametrize("seeds", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_with_noise_the_log_rank_difference_is_covered(seeds):
    grid = [20, 35, 50, 65]
    asked, cells = question_and_cells("waltons", grid)
    exact = {}
    for last in range(1, 5):  # over the intervals up to each time
        until, counts = question_and_cells("waltons", grid[:last])
        exact |= {each.name: each.value for each in until.answer_numbers(NoisySum(counts, 0.0, 0.05, 0))}
    draw, hits = np.random.default_rng(1), 0
    for _ in range(seeds):
        noisy = NoisySum(cells + draw.normal(0, 1, len(cells)), 1.0, 0.05, 0)
        found = next(number for number in asked.answer_numbers(noisy) if number.name.startswith("log-rank"))
        hits += found.lower <= exact[found.name] <= found.upper
    assert hits >= 0.95 * seeds - 4 * math.sqrt(seeds * 0.95 * 0.05)
