"""Columns of words as inputs: their words are declared, and no record decides how many inputs there are."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedamp
from fedamp.client import app
from fedamp.engines.wire import RoundOrder, rows
from fedamp.errors import DataError, InputError
from fedamp.runs.ledger import fingerprint
from fedamp.server.setup import prepare

COLOURS, CITIES = ["red", "blue", "caf\u00e9"], ["Rome", "*"]
WORDS = {"colour": COLOURS, "city": CITIES}


def table(**changes):
    """Four people with three records each; the last city is nowhere declared, and one accent is a letter of its own."""
    colour = ["red", "blue", "cafe\u0301"] * 4
    city = ["Rome"] * 9 + ["Rome", "Oslo", ""]
    columns = {"age": np.arange(12) / 10, "colour": colour, "city": city, "y": [0, 1] * 6, "client": np.arange(12) // 3}
    return pd.DataFrame(columns | changes)


def scenario(folder, kind="csv", words=WORDS, **changes):
    data = {"name": kind, "path": str(folder), "features": ["age", "colour", "city"], "label": "y", "classes": 2}
    content = {
        "name": "words",
        "known_seed": True,
        "data": {**data, "categories": words, "partition": {"scheme": "natural", "column": "client"}},
        "model": {"name": "logistic"},
        "rounds": 2,
        "client": {"steps": 1, "learning_rate": 0.5},
        "privacy": {"clip": 1.0, "noise_multiplier": 2.0, "precision": 0.05},
        "engine": {"kind": "serial"},
    }
    return fedamp.load(content, **changes)


def written(folder, frame, kind="csv", split="train"):
    folder.mkdir(exist_ok=True)
    path = folder / f"{split}.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    return folder


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_each_declared_word_is_an_input_of_its_own(tmp_path, kind):
    frame = table()
    data = scenario(written(tmp_path, frame, kind), kind).data.load(0, Path())
    expected = np.array(
        [
            [age, word == "red", word == "blue", word not in ("red", "blue"), city == "Rome", city != "Rome"]
            for age, word, city in zip(frame.age, frame.colour, frame.city, strict=True)
        ],
        np.float32,
    )
    assert np.array_equal(data.gather(np.arange(4)).inputs.reshape(12, 6), expected)


@pytest.mark.usefixtures("few_tries")
def test_a_run_has_the_declared_inputs_and_loses_who_has_another_word(tmp_path):
    """No person's word makes the model larger; the log of who holds the records names file, row and column."""
    frame = table()
    frame.loc[7, "colour"] = "green"
    run = fedamp.run(scenario(written(tmp_path / "data", frame)), out=tmp_path / "run", anyway=True)
    assert run.model().state_dict()["output.weight"].shape == (2, 6)
    data = run.scenario.data.load(0, Path())
    assert data.sizes(np.arange(4)).tolist() == [3, 3, 0, 3]
    said = data.why(2)
    assert "train.csv: row 8: column 'colour': the inputs of record 7 are others than finite numbers, or words" in said


def test_a_node_of_a_deployment_has_the_same_inputs_and_its_server_needs_no_records(tmp_path):
    for name, hosted in (("server", []), ("node", [0, 1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "federation.json").write_text(json.dumps({"clients": 4, "hosted": hosted}))
    written(tmp_path / "node", table()[:6])
    prepared = prepare(scenario(tmp_path / "server"))
    assert prepared.task.input_shape == (6,)
    node = app.node_of(prepared.task.without_places().to_json(), str(tmp_path / "node"), "cpu", None)
    order = RoundOrder("", 1, (1.0,), rows([0, 1], bytes(32)), prepared.state.parameters)
    answer = node.train(order)
    assert answer.reported == [0, 1]
    assert answer.failed == 0
    assert np.count_nonzero(answer.sums["output.weight"][:, 5]) == 0  # nobody here comes from another city
    with pytest.raises(InputError, match=r"no test\.csv; expected: test\.csv of public records, or data\.shape"):
        prepare(scenario(tmp_path / "server", words={}, **{"data.features": ["a*", "colour", "city"]}))


def test_a_column_of_words_without_them_names_the_key(tmp_path):
    frame = table()
    written(tmp_path, frame)
    said = scenario(tmp_path, words={"city": CITIES}).data.load(0, Path()).why(0)
    assert said.endswith(
        "column 'colour': the inputs of record 0 are others than finite numbers, or words that "
        "data.categories has of the column"
    )
    said = scenario(tmp_path, words={}).data.load(0, Path()).why(0)
    assert said.endswith(
        "column 'colour': the inputs of record 0 are others than finite numbers; if it holds words, "
        "data.categories: {colour: [WORD, ..]}"
    )
    with pytest.raises(DataError, match=r"column 'colour' must hold .* data.categories: \{colour: \[WORD, ..\]\}"):
        scenario(written(tmp_path, frame, "parquet"), "parquet", {}).data.load(0, Path())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"colour": ["red", "red"]}, "the words must differ"),
        ({"colour": []}, "data.categories"),
        (WORDS | {"taste": ["sweet"]}, "no column 'taste'; data.categories must be one of age, colour"),
        (WORDS, "data.features names a column twice"),
    ],
)
def test_what_declares_no_column_is_refused(tmp_path, words, said):
    features = ["age"] * said.endswith("twice") + ["age", "colour", "city"]
    written(tmp_path, table())
    with pytest.raises(InputError, match=said):
        scenario(tmp_path, words=words, **{"data.features": features}).data.load(0, Path())


def test_a_scenario_without_them_has_the_fingerprint_of_before(tmp_path):
    without = scenario(tmp_path, words={})
    assert "categories" not in without.to_yaml()
    assert fingerprint(without) != fingerprint(scenario(tmp_path))
