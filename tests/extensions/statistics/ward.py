"""A ward of made-up patients as a csv file, its questions, and the true answers, computed record by record."""

import csv
import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedamp.federation import reader
from fedamp.federation.scenario import Scenario

COLUMNS = ("patient", "age", "systolic", "diastolic", "sex", "ward", "days", "died")
BINS, GRID = (0, 20, 40, 60, 80, 100), (10, 20, 40)
QUESTIONS = {
    "patients": {"ask": "count"},
    "women": {"ask": "count", "column": "sex", "words": ["f"]},
    "age": {"ask": "mean", "column": "age", "range": [0, 90]},
    "spread": {"ask": "variance", "column": "age", "range": [0, 90]},
    "ages": {"ask": "table", "axes": [{"column": "age", "bins": list(BINS)}]},
    "where": {
        "ask": "table",
        "axes": [{"column": "sex", "words": ["f", "m"]}, {"column": "ward", "words": ["a", "b"]}],
    },
    "median": {
        "ask": "quantiles",
        "column": "age",
        "bins": {"first": 0, "last": 100, "count": 20},
        "shares": [0.25, 0.5],
    },
    "pressure": {
        "ask": "correlation",
        "of": [{"column": "systolic", "range": [70, 170]}, {"column": "diastolic", "range": [40, 120]}],
    },
    "by ward": {"ask": "means", "column": "age", "range": [0, 90], "by": "ward", "words": ["a", "b", "c"]},
    "life": {
        "ask": "survival",
        "time": "days",
        "event": "died",
        "grid": list(GRID),
        "by": "sex",
        "words": ["f", "m"],
    },
}
QUESTIONS = {name.replace(" ", "-"): asked for name, asked in QUESTIONS.items()}


def patients(count: int, seed: int = 0) -> list[tuple]:
    """One record of each patient; ages above 90 are cut by the questions."""
    draw = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        systolic = draw.normal(120, 15)
        pressure = round(systolic, 1), round(0.5 * systolic + 20 + draw.normal(0, 6), 1)
        life = round(float(draw.exponential(25)), 1), int(draw.random() < 0.6)
        rows.append(
            (f"p{number:05}", int(draw.integers(0, 100)), *pressure, "fm"[number % 2], "abc"[number % 3], *life)
        )
    return rows


def write_ward(folder: Path, rows: list[tuple], header=COLUMNS) -> Path:
    """The records as ``train.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return folder


def scenario(folder: Path, questions=None, *overrides: str, **keys) -> Scenario:
    """Questions about the ward of a folder."""
    raw = {
        "name": "ward",
        "data": {"name": "csv", "path": str(folder), "partition": {"scheme": "natural", "column": "patient"}},
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-6},
        "engine": {"kind": "serial"},
        "questions": {"ask": questions or QUESTIONS, "least": 0} | keys,
    }
    for override in overrides:
        reader.apply_override(raw, override)
    return reader.load(json.loads(json.dumps(raw)))


def truth(rows: list[tuple]) -> dict[str, dict[str, float]]:
    """Oracle: plain Python, for one record of each patient."""
    ages = [row[1] for row in rows]
    cut = [min(age, 90) for age in ages]
    mean = sum(cut) / len(cut)
    variance = sum((age - mean) ** 2 for age in cut) / len(cut)
    x, y = [min(max(row[2], 70), 170) for row in rows], [min(max(row[3], 40), 120) for row in rows]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    shared = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / len(x)
    norms = [math.sqrt(sum((a - m) ** 2 for a in each) / len(each)) for each, m in ((x, mean_x), (y, mean_y))]
    found = {
        "patients": {"count": len(rows)},
        "women": {"count": sum(row[4] == "f" for row in rows)},
        "age": {"count": len(rows), "sum": sum(cut), "mean": mean},
        "spread": {"count": len(rows), "sum": sum(cut), "mean": mean, "variance": variance},
        "ages": {f"{a} to {b}": sum(a <= age < b for age in ages) for a, b in pairwise(BINS)},
        "where": {
            f"{sex}, {ward}": sum(row[4] == sex and row[5] == ward for row in rows) for sex in "fm" for ward in "ab"
        },
        "median": {f"quantile {share:g}": sorted(ages)[math.ceil(share * len(ages)) - 1] for share in (0.25, 0.5)},
        "pressure": {"count": len(rows), "covariance": shared, "correlation": shared / norms[0] / norms[1]},
    }
    found["by-ward"] = {}
    for ward in "abc":
        of_ward = [age for age, row in zip(cut, rows, strict=True) if row[5] == ward]
        found["by-ward"] |= {f"{ward}: count": len(of_ward), f"{ward}: mean": sum(of_ward) / len(of_ward)}
    found["life"] = {}
    for sex in "fm":
        survival, of_sex = 1.0, [row for row in rows if row[4] == sex]
        found["life"][f"{sex}: people"] = len(of_sex)
        for before, time in pairwise((-1, *GRID)):
            at_risk = [row for row in of_sex if row[6] > before]
            events = sum(before < row[6] <= time and row[7] for row in at_risk)
            survival *= 1 - events / len(at_risk)
            found["life"][f"{sex}: survival at {time}"] = survival
    return found
