"""Planning sees no private number: neighbouring data sets have one plan, one task, one first model."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedamp import rng
from fedamp.client.worker import TrainingNode
from fedamp.engines.wire import RoundOrder, rows
from fedamp.federation import reader
from fedamp.server.preflight import preflight
from fedamp.server.setup import prepare

UNITS, RECORDS, SOMEBODY = 40, 20, 7
OTHERS = [unit for unit in range(UNITS) if unit != SOMEBODY]
MODELS = {"built in": "{name: mlp, hidden: [8]}", "custom": "{name: 'tests.server.test_timing:Normalised'}"}


def federation(folder, records=RECORDS, model="built in"):
    """Forty units with twenty records each, of which one has another number of records."""
    counts = np.full(UNITS, RECORDS)
    counts[SOMEBODY] = records
    folder.mkdir()
    parts = []
    for unit, count in enumerate(counts):
        drawn = np.random.default_rng(unit)
        parts.append((drawn.normal(size=(count, 6)), drawn.integers(0, 10, count), np.full(count, unit)))
    x, y, client = (np.concatenate(each) for each in zip(*parts, strict=True))
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
privacy: {{clip: 0.5, noise_multiplier: 1.0, delta: 1.0e-3}}
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
    return task, model, prepared.evaluate_every, prepared.how_clients_train, prepared.worker_bytes, said


def updates_of_others(prepared):
    """The sum of the others' clipped updates, which is exact: no rounding of a single one is lost in it."""
    dataset = prepared.task.data.load(prepared.task.data_seed, Path("/"))
    seeds = [bytes([unit]) * rng.SEED_BYTES for unit in OTHERS]
    order = RoundOrder("", 1, (0.5,), rows(OTHERS, seeds), prepared.state.parameters)
    return TrainingNode(prepared.task, dataset).train(order).sums


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("records", [1, 2000])
def test_how_many_records_one_unit_has_changes_no_plan_and_no_other_update(tmp_path, model, records):
    usual, other = (prepare(federation(tmp_path / str(each), each, model)) for each in (RECORDS, records))
    assert usual.evaluate_every > 1, "it is chosen, not a bound"
    assert planned(other) == planned(usual)
    ours, theirs = updates_of_others(usual), updates_of_others(other)
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_what_the_scenario_says_of_a_client_decides_how_often_models_are_tested(tmp_path):
    asked = federation(tmp_path / "folder")
    every = [
        prepare(reader.load(tmp_path / "folder" / "neighbours.yaml", changes)).evaluate_every
        for changes in ([], ["data.records_per_client=10"], ["data.records_per_client=200"])
    ]
    assert asked.data.records_per_client == 10
    assert every[0] == every[1] > every[2]
