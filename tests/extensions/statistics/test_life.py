"""Survival beside lifelines: its own data sets and its answers are in ``lifelines.json``, which names its version.

The file is made by a few lines of Python: for each data set, ``KaplanMeierFitter().fit(times, events)`` by group, with
``survival_function_`` and ``confidence_interval_``, and the ``p_value`` of ``logrank_test`` of the first two groups.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, norm

from fedamp.extensions.statistics.life import greenwood_interval
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


def greenwood_variance(name: str, group: str, until: float) -> float:
    """Oracle: Greenwood's sum over the times of events."""
    known, total = REFERENCE[name], 0.0
    groups = known["group"] if group else [""] * len(known["time"])
    mine = [row[:2] for row in zip(known["time"], known["event"], groups, strict=True) if row[2] == group]
    for time in sorted({time for time, event in mine if event and time <= until}):
        risk, gone = sum(each >= time for each, _ in mine), sum(each == time and event for each, event in mine)
        total += gone / (risk * (risk - gone)) if risk > gone else math.inf
    return total


@pytest.mark.parametrize("name", SETS)
def test_without_noise_curves_intervals_and_log_rank_are_those_of_lifelines(name):
    asked, cells = question_and_cells(name)
    found = {number.name: number for number in asked.answer_numbers(NoisySum(cells, 0.0, 0.05, 0))}
    compared = 0
    for group, rows in REFERENCE[name]["km"].items():
        for time, *right in rows:
            number = found.get(f"{group}: " * bool(group) + f"survival at {time:g}")
            if number is not None:  # nobody is at risk any more
                half = norm.isf(0.025) * math.sqrt(greenwood_variance(name, group, time))
                greenwood = greenwood_interval(number.value, half)
                assert [number.value, *greenwood] == pytest.approx(right, abs=1e-6)
                assert number.people_lower <= greenwood[0] + 1e-9
                assert number.people_upper >= greenwood[1] - 1e-9
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


def few(seeds: int) -> float:
    """The number of hits that an interval of 95 % falls short of once in 100,000 tests."""
    return binom.ppf(1e-5, seeds, 0.95)


@pytest.mark.parametrize("seeds", [20, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("noise", [1.5, 3.73])  # at epsilon 1 it is 3.73
def test_a_curve_of_few_people_is_covered_among_the_answers_that_show_it(seeds, noise):
    """Noise hides most of 42 people. Each point is counted among the draws in which it is shown."""
    asked, cells = question_and_cells("leukemia", [3, 5, 6, 8, 11, 12, 17, 22])
    right = {each.name: each.value for each in asked.answer_numbers(NoisySum(cells, 0.0, 0.05, 0))}
    draw, hits = np.random.default_rng(2), {}
    for _ in range(seeds):
        for each in asked.answer_numbers(NoisySum(cells + draw.normal(0, noise, len(cells)), noise, 0.05, 10)):
            if each.name in right and each.value is not None and "log-rank" not in each.name:
                assert each.lower <= each.value <= each.upper
                hits.setdefault(each.name, []).append(each.lower <= right[each.name] <= each.upper)
    assert len(hits) >= 17
    assert {name: sum(found) for name, found in hits.items() if sum(found) < few(len(found))} == {}


@pytest.mark.parametrize("seeds", [20, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("people", "scale", "noise"), [(15, 200, 0.0), (42, 200, 0.0), (42, 25, 0.0), (42, 200, 1.0)])
def test_the_wider_interval_covers_few_people_with_few_events(seeds, people, scale, noise):
    """Exponential times; some end without the event at a time of the grid. Greenwood alone covers a quarter."""
    grid = [5, 10, 15, 20, 30, 40]
    asked = SurvivalQuestion(ask="survival", time="time", event="event", grid=grid)
    draw, hits = np.random.default_rng(3), {time: [] for time in grid}
    for _ in range(seeds):
        times, ends = draw.exponential(scale, people), draw.choice([*grid, 100, 100, 100], people)
        columns = {"time": np.minimum(times, ends), "event": (times <= ends).astype(float)}
        [(cells, values)] = asked.record_parts(columns)
        counts = np.bincount(cells, values, asked.number_of_cells) + draw.normal(0, noise, asked.number_of_cells)
        for each in asked.answer_numbers(NoisySum(counts, noise, 0.05, 0)):
            if each.name.startswith("survival") and each.value is not None:
                time = float(each.name.split()[-1])
                hits[time].append(each.people_lower <= math.exp(-time / scale) <= each.people_upper)
    assert {time: sum(found) for time, found in hits.items() if sum(found) < few(len(found))} == {}
