"""One person's malformed record takes away that person's contribution, and nobody else's."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedamp.client.app import node_of
from fedamp.data.form import Form
from fedamp.data.partition import NaturalPartition
from fedamp.data.sections import NpzData, TabularData
from fedamp.engines.wire import RoundOrder, rows
from fedamp.federation.local_training import LocalTraining
from fedamp.models.model import Model
from fedamp.models.networks import initial_parameters
from tests.client.federation import task_of, trained

UNITS, RECORDS, CLIP = 20, 5, 0.1
VICTIM = 7


def clean() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    owners = np.repeat(np.arange(UNITS), RECORDS)
    x = generator.normal(size=(len(owners), 5)).astype(np.float32)
    return {"x": x, "y": generator.integers(0, 3, len(owners)), "client": owners}


def changed(kind: str) -> dict[str, np.ndarray]:
    arrays = clean()
    place = VICTIM * RECORDS + 2
    if kind in ("nan", "inf"):
        arrays["x"][place, 1] = float(kind)
    elif kind.startswith("label"):
        arrays["y"][place] = int(kind.split()[1])
    elif kind == "stranger":
        arrays["client"][place] = 10**9
    else:  # many records
        more = np.full(30_000, VICTIM)
        for name, value in (("x", arrays["x"][place]), ("y", 1)):
            arrays[name] = np.concatenate([arrays[name], np.repeat(np.array([value], arrays[name].dtype), 30_000, 0)])
        arrays["client"] = np.concatenate([arrays["client"], more])
    return arrays


def section(folder: Path, arrays: dict[str, np.ndarray]) -> NpzData:
    folder.mkdir(exist_ok=True)
    np.savez(folder / "train.npz", **arrays)
    about = {"clients": UNITS, "hosted": list(range(UNITS)), "classes": 3}
    (folder / "federation.json").write_text(json.dumps(about))
    return NpzData(name="npz", path=str(folder), partition=NaturalPartition(scheme="natural"))


def released(folder: Path, arrays: dict[str, np.ndarray]):
    """The node's sum, from its folder, and its report."""
    model, client = Model(name="mlp", hidden=(8, 6)), LocalTraining(epochs=1, learning_rate=0.5, max_records=50)
    task = task_of(model=model, client=client, data=section(folder, arrays))
    units = list(range(UNITS))
    order = RoundOrder("", 1, (CLIP,), rows(units, [unit.to_bytes(32) for unit in units]))
    return trained(node_of(task.to_json(), "", "cpu", None), initial_parameters(model, (5,), 3, 1), order)


@pytest.mark.parametrize("kind", ["nan", "inf", "label 7", "label -1", "label 1099511627776", "stranger", "many"])
def test_a_hostile_record_moves_the_sum_of_a_node_by_at_most_its_clip(tmp_path, kind):
    before, _ = released(tmp_path / "before", clean())
    after, report = released(tmp_path / "after", changed(kind))
    moved = np.sqrt(sum(np.square(after[name] - before[name]).sum() for name in before))
    assert moved <= 2 * CLIP * (1 + 1e-6), "a unit that is replaced: one update leaves, another one comes"
    assert kind in ("stranger", "many") or moved <= CLIP * (1 + 1e-6)
    assert report.reported == list(range(UNITS)), "it counts as there"
    assert report.failed == (kind not in ("stranger", "many"))


def test_a_wrong_record_takes_its_own_unit_away_and_by_record_itself(tmp_path):
    config = NpzData(name="npz", path=str(tmp_path), classes=3, partition=NaturalPartition(scheme="natural"))
    np.savez(tmp_path / "train.npz", **changed("nan"))
    dataset = config.load(0, Path())
    sizes = dataset.sizes(np.arange(UNITS))
    assert np.flatnonzero(sizes == 0).tolist() == np.flatnonzero(dataset.cannot_train(np.arange(UNITS))).tolist()
    assert np.flatnonzero(sizes == 0).tolist() == [VICTIM]
    records = dataset.by_record()
    assert np.flatnonzero(records.sizes(np.arange(UNITS * RECORDS)) == 0).tolist() == [VICTIM * RECORDS + 2]


WRONG = {
    "label 7": "column 'y': the label of record 37 is wrong; labels must be integers 0, 1, 2, ",
    "nan": "column 'x': the inputs of record 37 are others than finite numbers",
}


@pytest.mark.parametrize("kind", WRONG)
def test_those_who_may_see_a_wrong_record_are_told_its_file_and_its_column(tmp_path, monkeypatch, kind):
    for at_once in (2**28, 0):  # found when it is loaded, or when it is read
        monkeypatch.setattr("fedamp.data.table.CHECKED_AT_ONCE", at_once)
        said = section(tmp_path / kind, changed(kind)).load(0, Path()).why(VICTIM)
        assert said.startswith(f"{tmp_path / kind / 'train.npz'}: {WRONG[kind]}")


@pytest.mark.parametrize("transform", [(), ({"name": "standardise", "mean": 0.5, "deviation": 2.0},)])
def test_a_wrong_cell_is_told_by_file_row_and_column(tmp_path, transform):
    """Rows are counted from 1, without the header, in each of several files."""
    (tmp_path / "train-0.csv").write_text("a,b,y,client\n1,1,0,ann\n")
    (tmp_path / "train-1.csv").write_text("a,b,y,client\n1,1,0,bob\n1,,1,eve\nx,1,0,kim\n1,1,maybe,lee\n")
    keys = {"name": "csv", "path": str(tmp_path), "features": ["a", "b"], "classes": ("0", "1")}
    dataset = TabularData(
        **keys, transform=transform, partition=NaturalPartition(scheme="natural", column="client")
    ).load(0, Path())
    assert np.flatnonzero(dataset.lost(np.arange(5), dataset.gather(np.arange(5)).sizes)).tolist() == [2, 3, 4]
    for client, row, part in ((2, 2, "column 'b'"), (3, 3, "column 'a'"), (4, 4, "column 'y'")):
        assert dataset.why(client).startswith(f"{tmp_path / 'train-1.csv'}: row {row}: {part}: ")
    assert "labels must be one of 0, 1" in dataset.why(4)
    assert dataset.why_all(np.array([2, 3, 4]), most=2).endswith("; and 1 more")


def test_tokens_and_cells_of_columns_take_one_unit_away(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"x": [[1.0], None, [2.0], [1.0, 2.0], [9.0]], "y": [0, 1, None, 1, 0], "client": list("abcde")}
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    keys = {"name": "parquet", "path": str(tmp_path), "classes": 2, "shape": (1,)}
    config = TabularData(**keys, partition=NaturalPartition(scheme="natural"))
    assert config.load(0, Path(), Form(vocabulary=5)).sizes(np.arange(5)).tolist() == [1, 0, 0, 0, 0]


def test_inputs_that_are_too_many_to_check_at_load_are_found_when_read(tmp_path, monkeypatch):
    monkeypatch.setattr("fedamp.data.table.CHECKED_AT_ONCE", 0)
    dataset = section(tmp_path / "late", changed("nan")).load(0, Path())
    cohort = dataset.gather(np.arange(UNITS))
    assert np.flatnonzero(cohort.sizes == 0).tolist() == [VICTIM]
    assert np.isfinite(cohort.inputs).all()
    assert dataset.lost(np.arange(UNITS), cohort.sizes).sum() == 1


@pytest.mark.parametrize("way", ["held out", "more than are read"])
def test_how_many_records_others_have_decides_nothing_about_a_wrong_one(tmp_path, monkeypatch, way):
    """Above some megabytes in all, inputs are checked as they are read; then as before, record by record."""
    found = []
    for at_once in (2**28, 0):
        monkeypatch.setattr("fedamp.data.table.CHECKED_AT_ONCE", at_once)
        form = Form(most=None if way == "held out" else 2)
        dataset = section(tmp_path / "each", changed("nan")).load(0, Path(), form)
        parts = dataset.held_out(0.4, 1) if way == "held out" else (dataset,)
        cohorts = [part.gather(np.arange(UNITS)) for part in parts]
        found.append([part.lost(np.arange(UNITS), cohort.sizes) for part, cohort in zip(parts, cohorts, strict=True)])
        found[-1] += [cohort.sizes for cohort in cohorts]
    for early, late in zip(*found, strict=True):
        np.testing.assert_array_equal(early, late)


def test_of_a_client_with_more_records_the_first_ones_train(tmp_path):
    dataset = section(tmp_path / "many", changed("many")).load(0, Path(), Form(most=6))
    cohort = dataset.gather(np.array([VICTIM]))
    assert cohort.sizes.tolist() == [6]
    np.testing.assert_array_equal(cohort.inputs[0, :RECORDS], clean()["x"][VICTIM * RECORDS : (VICTIM + 1) * RECORDS])
