"""The grid of a sweep: keys of the scenario, and their values."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedamp.errors import ScenarioError
from fedamp.federation.reader import key_and_value

MOST_RUNS = 10_000
LONGEST_NAME = 80  # letters of a run's folder

Grid = dict[str, list[Any]]  # values by key path
Settings = dict[str, Any]  # one value for each key of a grid


def grid_of(texts: Sequence[str]) -> Grid:
    """The grid from ``--set``: ``privacy.epsilon=1,2,4``, ``seed=1..5``, ``model.hidden=[8],[16,8]``.

    Raises:
        ScenarioError: a key without values, a key or value that is given twice, or too many runs.
    """
    pairs = [key_and_value(text, several=True) for text in texts]
    for key, _ in pairs:
        if [key for key, _ in pairs].count(key) > 1:
            raise ScenarioError(f"--set {key}: given twice; expected: all values together, e.g. {key}=1,2,4")
    return checked({key: [each for value in values for each in _unrolled(value)] for key, values in pairs})


def checked(grid: Mapping[str, Any]) -> Grid:
    """A grid of Python values, checked; a single value is a list of one. Raises ScenarioError as :func:`grid_of`."""
    lists = {str(key): _listed(values) for key, values in grid.items()}
    for key, values in lists.items():
        if not values or len(set(map(_text, values))) < len(values):
            wrong = "a value is given twice" if values else "no value"
            raise ScenarioError(f"{key}: {wrong}; expected: one value or several different ones")
    runs = math.prod(len(values) for values in lists.values())
    if runs > MOST_RUNS:
        raise ScenarioError(f"the grid has {runs:,} runs; expected: at most {MOST_RUNS:,}")
    return lists


def points(grid: Grid) -> list[Settings]:
    """Every combination of the values; the last key changes fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def folder_name(settings: Settings, grid: Grid) -> str:
    """The name of a run's folder: the keys that vary, with their values."""
    varying = {key: value for key, value in settings.items() if len(grid[key]) > 1}
    name = ",".join(f"{key}={_text(value)}" for key, value in (varying or settings).items())
    safe = re.sub(r"[^A-Za-z0-9.,=_+-]+", "", name)
    if safe == name and len(name) <= LONGEST_NAME:
        return name or "run"
    return f"{safe[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _listed(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, list | tuple | range):
        return [value.item() if isinstance(value, np.generic) else value for value in values]
    return [values]


def _unrolled(value: Any) -> list[Any]:
    """``1..5`` means the whole numbers from 1 to 5."""
    ends = re.fullmatch(r"(-?\d{1,9})\.\.(-?\d{1,9})", value) if isinstance(value, str) else None
    if ends is None:
        return [value]
    first, last = map(int, ends.groups())
    if not first <= last < first + MOST_RUNS:
        raise ScenarioError(f"{value}: expected: FIRST..LAST, LAST >= FIRST, at most {MOST_RUNS:,} numbers")
    return list(range(first, last + 1))
