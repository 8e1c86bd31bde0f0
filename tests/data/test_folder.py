"""npz and parquet folders: the same records from either, read by need, and folders that hold some clients only."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedamp.data import count_clients, count_records, load, parquet
from fedamp.data.sections import FolderData
from fedamp.errors import DataError

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
    pq.write_table(table(arrays), path.with_suffix(".parquet"), row_group_size=17)


def write_several_parquet(path, arrays):
    for part, rows in enumerate(np.array_split(np.arange(len(arrays["y"])), 3)):
        columns = {name: array[rows] for name, array in arrays.items()}
        pq.write_table(table(columns), path.with_name(f"{path.stem}-0000{part}.parquet"), row_group_size=11)


def table(arrays):
    """Nested lists for inputs, strings as a dictionary column: the awkward kinds."""
    columns = {name: pa.array(array.tolist()) for name, array in arrays.items()}
    if "client" in columns and columns["client"].type == pa.string():
        columns["client"] = columns["client"].dictionary_encode()
    return pa.table(columns)


def write_npy(path, arrays):
    for name, array in arrays.items():
        np.save(path.with_name(f"{path.stem}_{name}.npy"), array)


WRITERS = {
    "npz": ("npz", write_npz),
    "npy": ("npz", write_npy),
    "parquet": ("parquet", write_parquet),
    "several": ("parquet", write_several_parquet),
}


@pytest.fixture(params=WRITERS)
def stored(request, tmp_path):
    """A function that stores splits in a folder, and says how to read them."""
    name, write = WRITERS[request.param]

    def store(train, test=None, **keys):
        write(tmp_path / "train.npz", train)
        if test is not None:
            write(tmp_path / "test.npz", test)
        return FolderData(name=name, path=tmp_path.name, **keys), tmp_path.parent

    return store


def test_a_natural_partition_comes_back_as_it_was_stored(stored):
    train, test = records(), records(40, seed=1)
    config, base = stored(train, test, partition=NATURAL)
    dataset = load(config, 5, base)
    assert count_clients(config, base) == dataset.num_clients == 6
    assert count_records(config, base) == dataset.by_record().num_clients == 120
    for client, name in enumerate(np.unique(train["client"])):
        cohort = dataset.gather(np.array([client]))
        assert np.array_equal(cohort.inputs[0], train["x"][train["client"] == name])
        assert np.array_equal(cohort.labels[0], train["y"][train["client"] == name])
    assert np.array_equal(dataset.test()[0], test["x"])
    assert np.array_equal(dataset.test()[1], test["y"])


def test_nobody_and_the_empty_handed_are_gathered_too(stored):
    config, base = stored(records(), clients=300, partition={"scheme": "dirichlet", "alpha": 0.01})
    dataset = load(config, 5, base)
    empty = np.flatnonzero(dataset.sizes(np.arange(300)) == 0)
    assert dataset.gather(empty[:3]).inputs.shape == (3, 0, 2, 3)
    assert dataset.gather(empty[:0]).inputs.shape == (0, 0, 2, 3)


def test_shape_and_scale(stored):
    train = records()
    train["x"] = (train["x"] * 50).astype(np.int16)
    config, base = stored(train, train, clients=None, shape=(6,), scale=255)
    dataset = load(config, 5, base)
    expected = train["x"].reshape(120, 6).astype(np.float32) / np.float32(255)
    assert dataset.input_shape == (6,)
    assert np.array_equal(dataset.gather(np.arange(120)).inputs[:, 0], expected)
    assert np.array_equal(dataset.test()[0], expected)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 119), max_size=40), st.integers(0, 4000))
def test_parquet_reads_any_records_whatever_it_may_keep(tmp_path_factory, numbers, kept):
    folder = tmp_path_factory.mktemp("parquet")
    train = records()
    write_several_parquet(folder / "train.npz", train)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "KEPT", kept)
        opened = parquet.ParquetTable(sorted(folder.iterdir()), FolderData(name="parquet", path=str(folder)))
        assert np.array_equal(opened.read(np.array(numbers, dtype=np.int64)), train["x"][numbers])


def test_parquet_features_may_be_several_columns(tmp_path):
    columns = {"a": [0.5, 1.5, 2.5, 3.5], "b": [4, 5, 6, 7], "y": [0, 1, 0, 1]}
    for split in ("train", "test"):
        pq.write_table(pa.table(columns), tmp_path / f"{split}.parquet")
    config = FolderData(name="parquet", path=str(tmp_path), features=["b", "a"], clients=1)
    inputs = load(config, 0, Path("/")).gather(np.array([0])).inputs[0]
    assert inputs.tolist() == [[4, 0.5], [5, 1.5], [6, 2.5], [7, 3.5]]


def test_npz_in_column_order_is_read_in_place(tmp_path):
    x = np.asfortranarray(np.arange(30, dtype=np.float32).reshape(6, 5))
    for split in ("train", "test"):
        np.savez(tmp_path / f"{split}.npz", y=[0, 1] * 3, x=x)
    dataset = load(FolderData(name="npz", path=str(tmp_path), clients=1), 0, Path("/"))
    assert np.array_equal(dataset.gather(np.array([0])).inputs[0], x)


def test_npy_files_are_not_held_in_memory(tmp_path):
    np.save(tmp_path / "train_x.npy", np.zeros((2000, 10_000), np.uint8))
    np.save(tmp_path / "train_y.npy", np.arange(2000) % 2)
    config = FolderData(name="npz", path=str(tmp_path), clients=1000, scale=255)
    load(config, 0, Path("/"))
    tracemalloc.start()
    cohort = load(config, 0, Path("/")).gather(np.arange(5))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cohort.inputs.shape == (5, 2, 10_000)
    # The file has 20 MB of inputs. Ten records are 0.1 MB stored and 0.4 MB as float32, of which there are a few
    # copies; labels and offsets are 16 kB each.
    assert peak < 3_000_000


def test_counting_the_records_of_an_archive_leaves_its_inputs_alone(tmp_path):
    np.savez_compressed(tmp_path / "train.npz", x=np.zeros((2000, 10_000), np.uint8), y=np.arange(2000) % 2)
    config = FolderData(name="npz", path=str(tmp_path), clients=1000)
    tracemalloc.start()
    assert (count_clients(config, Path("/")), count_records(config, Path("/"))) == (1000, 1600)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000  # the inputs are 20 MB


# --- folders of a deployment ---------------------------------------------------------------------------------------


@pytest.fixture
def silo(tmp_path):
    """A machine that hosts clients 3 and 7 of 12, of which 7 has nothing yet; and what it holds."""

    def write(split="train", hosted=(3, 7), client=(3, 3, 3), **federation):
        (tmp_path / "federation.json").write_text(
            json.dumps({"clients": 12, "hosted": list(hosted), "classes": 5, **federation})
        )
        np.savez(tmp_path / f"{split}.npz", x=np.eye(3), y=[2, 1, 4], client=np.array(client))
        return FolderData(name="npz", path=str(tmp_path), partition=NATURAL)

    return write


def test_a_machine_has_its_own_clients_only(silo):
    config = silo()
    dataset = load(config, 0, Path("/"))
    assert dataset.hosted.tolist() == [3, 7]
    assert (dataset.num_clients, dataset.num_classes) == (12, 5)
    assert count_clients(config, Path("/")) == 12
    cohort = dataset.gather(np.array([7, 3]))
    assert cohort.sizes.tolist() == [0, 3]
    assert cohort.inputs[1].tolist() == np.eye(3).tolist()
    assert len(dataset.test()[1]) == 0
    counts = dataset.label_counts(10)
    assert (counts.clients.tolist(), counts.num_clients, counts.num_records) == ([3, 7], 2, 3)
    assert counts.counts.tolist() == [[0, 1, 1, 0, 1], [0] * 5]


def test_what_is_not_here_is_refused(silo):
    config = silo()
    dataset = load(config, 0, Path("/"))
    with pytest.raises(DataError, match="client 4 is not hosted here"):
        dataset.gather(np.array([3, 4]))
    for by_record in (dataset.by_record, lambda: count_records(config, Path("/"))):
        with pytest.raises(DataError, match=r"privacy\.unit sample needs all records in one place"):
            by_record()


def test_the_server_hosts_nobody_and_has_the_test_set(silo):
    config = silo(split="test", hosted=())
    dataset = load(config, 0, Path("/"))
    assert dataset.hosted.tolist() == []
    assert (dataset.num_clients, dataset.num_classes, dataset.input_shape) == (12, 5, (3,))
    assert dataset.test()[1].tolist() == [2, 1, 4]
    assert dataset.label_counts(5).num_records == 0


CONTRADICTIONS = [
    ({"hosted": [3, 12]}, "hosted must be different ids from 0 to 11"),
    ({"hosted": [3, 3]}, "hosted must be different ids from 0 to 11"),
    ({"clients": 0}, "clients: Input should be greater than or equal to 1"),
    ({"hoster": 1}, "hoster: Extra inputs are not permitted; keys are clients, hosted, classes"),
    ({"client": [3, 3, 5]}, "client 5 is not among the hosted clients of federation.json"),
    ({"client": ["3", "3", "3"]}, "client 3 is not among the hosted clients of federation.json"),
    ({"classes": 4}, "label 4; federation.json says there are 4 classes"),
]


def test_a_folder_that_contradicts_itself_is_refused(silo, subtests):
    for change, message in CONTRADICTIONS:
        with subtests.test(message):
            with pytest.raises(DataError) as refused:
                load(silo(**change), 0, Path("/"))
            assert message in str(refused.value)
            assert "\n" not in str(refused.value)
