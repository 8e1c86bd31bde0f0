"""Planning sees no private number: neighbouring data sets have one plan, one task, one first model."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from fedamp import rng
from fedamp.client.worker import TrainingNode
from fedamp.engines.wire import RoundOrder, rows
from fedamp.federation import reader
from fedamp.server.preflight import how_clients_train, preflight
from fedamp.server.setup import prepare

UNITS, RECORDS, SOMEBODY = 40, 20, 7
OTHERS = [unit for unit in range(UNITS) if unit != SOMEBODY]
MODELS = {"built in": "{name: mlp, hidden: [8]}", "custom": "{name: 'tests.server.test_timing:Normalised'}"}


def federation(folder, records=RECORDS, model="built in", label=None):
    """Forty units with twenty records each, of which one has another number of records, or another label."""
    counts = np.full(UNITS, RECORDS)
    counts[SOMEBODY] = records
    folder.mkdir()
    parts = []
    for unit, count in enumerate(counts):
        drawn = np.random.default_rng(unit)
        parts.append((drawn.normal(size=(count, 6)), drawn.integers(0, 10, count), np.full(count, unit)))
    x, y, client = (np.concatenate(each) for each in zip(*parts, strict=True))
    if label is not None:
        y[np.flatnonzero(client == SOMEBODY)[0]] = label
    np.savez(folder / "train.npz", x=x.astype(np.float32), y=y, client=client)
    public = np.random.default_rng(99)
    np.savez(folder / "test.npz", x=public.normal(size=(20_000, 6)), y=public.integers(0, 10, 20_000))
    data = f"{{name: npz, path: {folder}, partition: {{scheme: natural}}, test_is_public: true}}"
    content = f"""
name: neighbours
seed: 3
known_seed: true
data: {data}
model: {MODELS[model]}
rounds: 200
check_in: {{scheme: balanced, k: 20}}
client: {{epochs: 2, batch_size: 8, learning_rate: 0.1}}
privacy: {{clip: 0.5, noise_multiplier: 1.0, delta: 1.0e-3, precision: 0.05}}
engine: {{kind: serial}}
"""
    file = folder / "neighbours.yaml"
    file.write_text(content)
    return reader.load(file)


def planned(prepared):
    """All that is decided before the first round, and what is said of it."""
    task = json.loads(prepared.task.without_places().model_dump_json(exclude={"data"}))
    model = {name: array.tolist() for name, array in prepared.state.parameters.items()}
    said = [check.found for check in preflight(prepared.plan, prepared)]
    return task, model, prepared.evaluate_every, how_clients_train(prepared), prepared.worker_bytes, said


def updates_of_others(prepared):
    """The sum of the others' clipped updates, which is exact: no rounding of a single one is lost in it."""
    dataset = prepared.task.data.load(prepared.task.data_seed, Path("/"))
    seeds = [bytes([unit]) * rng.SEED_BYTES for unit in OTHERS]
    order = RoundOrder("", 1, (0.5,), rows(OTHERS, seeds), prepared.state.parameters)
    return TrainingNode(prepared.task, dataset).train(order).sums


@pytest.mark.few(0)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("records", [2000, 1])
def test_how_many_records_one_unit_has_changes_no_plan_and_no_other_update(tmp_path, model, records):
    usual, other = (prepare(federation(tmp_path / str(each), each, model)) for each in (RECORDS, records))
    assert usual.evaluate_every > 1, "it is chosen, not a bound"
    assert planned(other) == planned(usual)
    ours, theirs = updates_of_others(usual), updates_of_others(other)
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.few(0)
@pytest.mark.parametrize("label", [2**40, -1, 11])
def test_a_label_that_nobody_else_has_changes_no_plan_no_model_and_no_other_update(tmp_path, label, fedamp):
    """It changed the model's shape, up to 8 TiB; ``fedamp check`` and ``run`` answer as without it."""
    usual, other = (prepare(federation(tmp_path / str(each), label=each)) for each in (None, label))
    assert planned(other) == planned(usual)
    ours, theirs = updates_of_others(usual), updates_of_others(other)
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    place = str(tmp_path / str(label) / "neighbours.yaml")
    few = "--set", "rounds=1", "--set", "check_in={scheme: all}"
    said = [fedamp("check", tmp_path / str(each) / "neighbours.yaml", *few, "--json") for each in (None, label)]
    judged = [[(check["name"], check["verdict"]) for check in json.loads(each.out)["checks"]] for each in said]
    assert judged[0] == judged[1]
    assert said[0].status == said[1].status
    done = fedamp("run", place, *few, "--out", tmp_path / "run")
    assert done.status == 0
    shapes = {name: array.shape for name, array in load_file(tmp_path / "run" / "model.safetensors").items()}
    assert shapes == {name: array.shape for name, array in usual.state.parameters.items()}


TIME = np.datetime64("2026-11-25T09:00:00", "us")


@pytest.mark.parametrize(("column", "said"), [("y", "column 'y' must hold numbers"), ("x", "column 'x' must hold")])
def test_a_column_of_times_is_no_label_and_no_input(tmp_path, column, said, fedamp):
    """Times as labels were classes up to 2^50: 14 GB. A column's type is a fact that no record changes."""
    columns = {"x": np.arange(40.0), "y": np.arange(40) % 2, "client": np.arange(40) % 10}
    columns[column] = TIME + np.arange(40)
    result = started(tmp_path, columns, "check", fedamp)
    assert result.status == 2
    assert said in result.err
    columns[column] = columns[column].astype(np.int64)  # as whole numbers they are inputs, and no class of the two
    result = started(tmp_path, columns, "run", fedamp)
    assert result.status == (1 if column == "y" else 0), result.err


def test_each_time_in_a_column_of_clients_is_a_client(tmp_path, fedamp):
    columns = {"x": np.arange(40.0), "y": np.arange(40) % 2, "client": TIME + np.arange(40) % 10}
    assert started(tmp_path, columns, "run", fedamp).status == 0
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert ledger["units"] == 10


def started(folder, columns, command, fedamp):
    """``fedamp check`` or ``run`` of these columns of parquet."""
    pq.write_table(pa.table(columns), folder / "train.parquet")
    file = folder / "times.yaml"
    file.write_text(
        f"""
name: times
data: {{name: parquet, path: {folder}, classes: 2, scale: 1.0e+18, partition: {{scheme: natural}}}}
model: {{name: logistic}}
rounds: 1
client: {{learning_rate: 0.1}}
privacy: {{clip: 0.5, noise_multiplier: 1.0, precision: 0.05}}
engine: {{kind: serial}}
"""
    )
    return fedamp(command, str(file), *(("--out", str(folder / "run")) if command == "run" else ()))


def test_what_the_scenario_says_of_a_client_decides_how_often_models_are_tested(tmp_path):
    asked = federation(tmp_path / "folder")
    every = [
        prepare(reader.load(tmp_path / "folder" / "neighbours.yaml", changes)).evaluate_every
        for changes in ([], ["data.records_per_client=10"], ["data.records_per_client=200"])
    ]
    assert asked.data.records_per_client == 10
    assert every[0] == every[1] > every[2]
