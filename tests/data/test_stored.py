"""npz and parquet folders: the same records from either, read by need, and folders that hold some clients only."""

import json
import os
import stat
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedamp.data.sections import NpzData, TabularData
from fedamp.errors import DataError

HERE = Path("/")
NATURAL = {"scheme": "natural"}


def records(count=120, shape=(2, 3), seed=0):
    generator = np.random.default_rng(seed)
    names = np.array(["ann", "bob", "eve", "kim", "lee", "zoe"])
    return {
        "x": generator.normal(size=(count, *shape)).astype(np.float32),
        "y": generator.permutation(np.arange(count) % 4),
        "client": names[generator.integers(0, 6, count)],
    }


def write_npz(path, arrays):
    np.savez_compressed(path, **arrays)


def write_parquet(path, arrays):
    """Several files; nested lists for inputs, strings as a dictionary column: the awkward kinds."""
    columns = {name: pa.array(array.tolist()) for name, array in arrays.items()}
    columns["client"] = columns["client"].dictionary_encode()
    table = pa.table(columns)
    for part in range(3):
        rows = table.slice(part * 50, 50)
        pq.write_table(rows, path.with_name(f"{path.stem}-0000{part}.parquet"), row_group_size=11)


def write_npy(path, arrays):
    for name, array in arrays.items():
        np.save(path.with_name(f"{path.stem}_{name}.npy"), array)


WRITERS = {
    "npz": ("npz", write_npz),
    "npy": ("npz", write_npy),
    "parquet": ("parquet", write_parquet),
}


@pytest.fixture(params=WRITERS)
def stored(request, tmp_path):
    """A function that stores splits in a folder, and says how to read them."""
    name, write = WRITERS[request.param]

    def store(train, test=None, **keys):
        write(tmp_path / "train.npz", train)
        if test is not None:
            write(tmp_path / "test.npz", test)
        if name == "npz":
            return NpzData(name=name, path=tmp_path.name, **keys), tmp_path.parent
        declared = {"shape": train["x"].shape[1:]} | keys
        return TabularData(name=name, path=tmp_path.name, **declared), tmp_path.parent

    return store


def test_a_natural_partition_comes_back_as_it_was_stored(stored):
    train, test = records(), records(40, seed=1)
    config, base = stored(train, test, partition=NATURAL, test_is_public=True)
    dataset = config.load(5, base)
    assert config.count_clients(base) == dataset.num_clients == 6
    assert config.count_records(base) == dataset.by_record().num_clients == 120
    for client, name in enumerate(np.unique(train["client"])):
        cohort = dataset.gather(np.array([client]))
        assert np.array_equal(cohort.inputs[0], train["x"][train["client"] == name])
        assert np.array_equal(cohort.labels[0], train["y"][train["client"] == name])
    assert np.array_equal(dataset.test()[0], test["x"])
    assert np.array_equal(dataset.test()[1], test["y"])


def test_nobody_and_the_empty_handed_are_gathered_too(stored):
    config, base = stored(records(), classes=10, clients=300, partition={"scheme": "dirichlet", "alpha": 0.01})
    dataset = config.load(5, base)
    empty = np.flatnonzero(dataset.sizes(np.arange(300)) == 0)
    assert dataset.gather(empty[:3]).inputs.shape == (3, 0, 2, 3)
    assert dataset.gather(empty[:0]).inputs.shape == (0, 0, 2, 3)


def test_shape_and_scale(stored):
    train = records()
    train["x"] = (train["x"] * 50).astype(np.int16)
    config, base = stored(train, train, clients=None, shape=(6,), scale=255, test_is_public=True)
    dataset = config.load(5, base)
    expected = train["x"].reshape(120, 6).astype(np.float32) / np.float32(255)
    assert dataset.input_shape == (6,)
    assert np.array_equal(dataset.gather(np.arange(120)).inputs[:, 0], expected)
    assert np.array_equal(dataset.test()[0], expected)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 119), max_size=40), st.integers(0, 4000))
def test_parquet_reads_any_records_whatever_it_may_keep(tmp_path_factory, numbers, kept):
    folder = tmp_path_factory.mktemp("parquet")
    train = records()
    write_parquet(folder / "train.npz", train)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedamp.data.huggingface.KEPT", kept)
        opened = TabularData(name="parquet", path=str(folder), shape=(2, 3)).open(HERE).train
        assert np.array_equal(opened.read(np.array(numbers, dtype=np.int64)), train["x"][numbers])
    copies = Path(os.environ["FEDAMP_CACHE"], "tables")
    assert stat.S_IMODE(copies.stat().st_mode) == 0o700  # they are as private as the records


def test_npy_files_are_not_held_in_memory(tmp_path):
    np.save(tmp_path / "train_x.npy", np.zeros((2000, 10_000), np.uint8))
    np.save(tmp_path / "train_y.npy", np.arange(2000) % 2)
    config = NpzData(name="npz", path=str(tmp_path), clients=1000, scale=255, classes=10)
    config.load(0, HERE)
    tracemalloc.start()
    cohort = config.load(0, HERE).gather(np.arange(5))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cohort.inputs.shape == (5, 2, 10_000)
    # The file has 20 MB of inputs. Ten records are 0.1 MB stored and 0.4 MB as float32, of which there are a few
    # copies; labels and offsets are 16 kB each.
    assert peak < 3_000_000


# --- folders of a deployment ---------------------------------------------------------------------------------------


@pytest.fixture
def silo(tmp_path):
    """A machine that hosts clients 3 and 7 of 12, of which 7 has nothing yet; and what it holds."""

    def write(split="train", hosted=(3, 7), client=(3, 3, 3), **federation):
        (tmp_path / "federation.json").write_text(
            json.dumps({"clients": 12, "hosted": list(hosted), "classes": 5, **federation})
        )
        np.savez(tmp_path / f"{split}.npz", x=np.eye(3), y=[2, 1, 4], client=np.array(client))
        return NpzData(name="npz", path=str(tmp_path), partition=NATURAL)

    return write


def test_a_machine_has_its_own_clients_only(silo):
    config = silo()
    dataset = config.load(0, HERE)
    assert dataset.hosted.tolist() == [3, 7]
    assert (dataset.num_clients, dataset.num_classes) == (12, 5)
    assert config.count_clients(HERE) == 12
    cohort = dataset.gather(np.array([7, 3]))
    assert cohort.sizes.tolist() == [0, 3]
    assert cohort.inputs[1].tolist() == np.eye(3).tolist()
    assert len(dataset.test()[1]) == 0
    counts = dataset.label_counts(10)
    assert (counts.clients.tolist(), counts.sizes.tolist()) == ([3, 7], [3, 0])
    assert counts.counts.tolist() == [[0, 1, 1, 0, 1], [0] * 5]


def test_what_is_not_here_is_refused(silo):
    config = silo()
    dataset = config.load(0, HERE)
    with pytest.raises(DataError, match="client 4 is not hosted here"):
        dataset.gather(np.array([3, 4]))
    for by_record in (dataset.by_record, lambda: config.count_records(HERE)):
        with pytest.raises(DataError, match=r"privacy\.unit sample needs all records in one place"):
            by_record()


def test_the_server_hosts_nobody_and_has_the_test_set(silo):
    config = silo(split="test", hosted=())
    dataset = config.load(0, HERE)
    assert dataset.hosted.tolist() == []
    assert (dataset.num_clients, dataset.num_classes, dataset.input_shape) == (12, 5, (3,))
    assert dataset.test()[1].tolist() == [2, 1, 4]
    assert dataset.label_counts(5).sizes.sum() == 0


CONTRADICTIONS = [
    ({"hosted": [3, 12]}, "hosted must be different ids from 0 to 11"),
    ({"hosted": [3, 3]}, "hosted must be different ids from 0 to 11"),
    ({"clients": 0}, "clients: Input should be greater than or equal to 1"),
    ({"hoster": 1}, "hoster: Extra inputs are not permitted; keys are clients, hosted, classes"),
]


def test_a_folder_that_contradicts_itself_is_refused(silo, subtests):
    for change, message in CONTRADICTIONS:
        with subtests.test(message):
            with pytest.raises(DataError) as refused:
                silo(**change).load(0, HERE)
            assert message in str(refused.value)
            assert "\n" not in str(refused.value)
