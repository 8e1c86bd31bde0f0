"""The grid as it is written, and the folders that its runs get."""

import numpy as np
import pytest

from fedamp.errors import ScenarioError
from fedamp.extensions.tune.sweep import checked, folder_name, grid_of, points


def test_values_are_yaml_with_commas_between_and_ranges():
    texts = ["privacy.epsilon=1,2.5", "seed=1..3,7", "model.hidden=[8],[16, 8]", "check_in={scheme: all}", "name=a"]
    assert grid_of(texts) == {
        "privacy.epsilon": [1, 2.5],
        "seed": [1, 2, 3, 7],
        "model.hidden": [[8], [16, 8]],
        "check_in": [{"scheme": "all"}],
        "name": ["a"],
    }


def test_values_of_python_are_taken_as_they_are():
    given = {"seed": range(2), "client.learning_rate": np.array([0.5, 1.0]), "rounds": 3, "model.hidden": [(8,), (4,)]}
    assert checked(given) == {
        "seed": [0, 1],
        "client.learning_rate": [0.5, 1.0],
        "rounds": [3],
        "model.hidden": [(8,), (4,)],
    }


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["seed"], "--set seed: expected: key.path=value"),
        (["seed=1,{"], "--set seed=1,{: cannot be read"),
        (["name=a #1,b"], "--set name=a #1,b: cannot be read"),
        (["seed=1", "seed=2"], "--set seed: given twice"),
        (["seed=1,1"], "seed: a value is given twice"),
        (["seed="], "seed: no value"),
        (["seed=5..1"], "5..1: expected: FIRST..LAST"),
        (["seed=1..200", "rounds=1..200"], "the grid has 40,000 runs; expected: at most 10,000"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(texts, words):
    with pytest.raises(ScenarioError) as caught:
        grid_of(texts)
    assert str(caught.value).startswith(words)
    assert len(str(caught.value).splitlines()) == 1


def test_every_combination_has_a_folder_of_its_own_that_tells_what_varies():
    grid = {"seed": [1, 2], "rounds": [9], "model.name": ["a:b", "a/b", "ab"], "server": [{}, {"momentum": 0.5}]}
    names = [folder_name(settings, grid) for settings in points(grid)]
    assert len(set(names)) == len(points(grid)) == 12
    assert not any("/" in name or "rounds" in name for name in names)
    assert folder_name({"seed": 1, "rounds": 9}, {"seed": [1, 2], "rounds": [9]}) == "seed=1"
    assert len(folder_name({"name": "x" * 500}, {"name": ["x" * 500]})) < 100
