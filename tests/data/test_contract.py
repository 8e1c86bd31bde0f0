"""What every kind of data keeps: a built-in data set is tested by being there, another kind by an example here."""

import struct
from pathlib import Path
from pkgutil import iter_modules

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fedamp import data
from fedamp.data import builtin, count_clients, count_records
from fedamp.data.form import BINARY, NUMBERS, TOKENS, Form
from fedamp.data.sections import Data, IidPartition
from fedamp.data.source import sources

HERE = Path("/")
PARTITIONS = {
    "iid": {"clients": 12},
    "dirichlet": {"clients": 12, "partition": {"scheme": "dirichlet", "alpha": 0.1}},
    "shards": {"clients": 12, "partition": {"scheme": "shards"}},
    "natural": {"partition": {"scheme": "natural"}},
    "by record": {},
}


def stored(records=90):
    """Inputs that are all different, so that a record is known by its first number."""
    generator = np.random.default_rng(0)
    x = generator.permutation(records * 6).reshape(records, 2, 3).astype(np.float32)
    return {"x": x, "y": np.arange(records) % 4, "client": generator.choice(["ann", "bob", "eve"], records)}


def synthetic(folder):
    return {"clients": 12, "records_per_client": 5, "features": 3, "heterogeneity": 1.0, "test_records": 40}


def npz(folder):
    np.savez_compressed(folder / "train.npz", **stored())
    return {"path": str(folder)}


def parquet(folder):
    columns = {name: pa.array(array.tolist()) for name, array in stored().items()}
    pq.write_table(pa.table(columns), folder / "train.parquet", row_group_size=17)
    return {"path": str(folder)}


def huggingface(folder):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({name: array.tolist() for name, array in stored().items()}).save_to_disk(folder / "set")
    columns = {"features": "x", "label": "y", "scale": 1.0, "test_split": None}
    return {"dataset": str(folder / "set"), **columns}


def idx(folder):
    for name, array, kind in (("images-idx3", stored()["x"], 0x0D), ("labels-idx1", stored()["y"], 0x0C)):
        header = struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape)
        (folder / f"train-{name}-ubyte").write_bytes(header + array.astype({0x0D: ">f4", 0x0C: ">i4"}[kind]).tobytes())
    return {"path": str(folder), "scale": 1.0}


# A data set that fedamp brings needs no example: it is asked for by its name alone.
EXAMPLES = {module.name: lambda folder: {} for module in iter_modules(builtin.__path__)} | {
    each.__name__: each for each in (synthetic, npz, parquet, huggingface, idx)
}
# Known by name, read as IDX files (test_idx.py); records that only the nodes' own app has (tests/client).
ELSEWHERE = {"fashion-mnist", "mnist", "external"}


def test_every_kind_of_data_has_an_example():
    assert set(EXAMPLES) | ELSEWHERE == set(sources.all())


# Every kind of data, and every partition of one of them.
CASES = [*((name, "iid") for name in EXAMPLES), *(("npz", dealt) for dealt in PARTITIONS if dealt != "iid")]


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def config(request, tmp_path_factory):
    name, dealt = request.param
    keys = EXAMPLES[name](tmp_path_factory.mktemp(name)) | (PARTITIONS[dealt] if name != "synthetic" else {})
    return TypeAdapter(Data).validate_python({"name": name, **keys})


# What a data set's own labels are, where they are not classes.
FORMS = {
    "diabetes": Form(NUMBERS),
    "segments": Form(BINARY),
    "shakespeare": Form(TOKENS, vocabulary=61),
}


def load(config, seed, folder):
    return data.load(config, seed, folder, FORMS.get(config.name, Form()))


@pytest.fixture(scope="module")
def dataset(config):
    return load(config, 7, HERE)


def everything(dataset):
    """All training records, in the order of the clients."""
    cohort = dataset.gather(np.arange(dataset.num_clients))
    real = np.arange(cohort.labels.shape[1]) < cohort.sizes[:, None]
    return cohort.inputs[real], cohort.labels[real]


def rows(inputs, labels):
    return sorted(zip(inputs.reshape(len(labels), -1).tolist(), labels.tolist(), strict=True))


def test_shapes_and_types_are_as_promised(dataset):
    cohort = dataset.gather(np.arange(dataset.num_clients))
    longest = int(cohort.sizes.max())
    assert cohort.inputs.shape == (dataset.num_clients, longest, *dataset.input_shape)
    assert cohort.labels.shape[:2] == (dataset.num_clients, longest)
    assert (cohort.labels.ndim == 2) == dataset.form.labels.are_classes
    assert dataset.form.labels.fit(cohort.labels, dataset.num_classes)
    assert not dataset.form.labels.fit(cohort.labels, dataset.num_classes - 1)
    types = [
        np.float32 if dataset.form.vocabulary is None else np.int64,
        np.float32 if isinstance(dataset.form.labels, type(NUMBERS)) else np.int64,
    ]
    assert [cohort.inputs.dtype, cohort.labels.dtype, cohort.sizes.dtype] == [*types, np.int64]
    assert dataset.hosted is None
    inputs, labels = dataset.test()
    assert inputs.shape == (len(labels), *dataset.input_shape)
    assert [inputs.dtype, labels.dtype] == types


def test_counts_without_loading_are_those_of_the_loaded_set(config, dataset):
    assert count_clients(config, HERE) == dataset.num_clients
    assert count_records(config, HERE) == dataset.by_record().num_clients == len(everything(dataset)[1])


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.data())
def test_gathering_together_is_reading_one_by_one(dataset, drawn):
    clients = np.array(drawn.draw(st.lists(st.integers(0, dataset.num_clients - 1), max_size=20)), dtype=np.int64)
    together = dataset.gather(clients)
    assert np.array_equal(together.sizes, dataset.sizes(clients))
    for position, client in enumerate(clients):
        size, alone = together.sizes[position], dataset.gather(np.array([client]))
        assert np.array_equal(together.inputs[position, :size], alone.inputs[0])
        assert np.array_equal(together.labels[position, :size], alone.labels[0])
        assert not together.inputs[position, size:].any()
        assert not together.labels[position, size:].any()


def test_training_and_test_records_are_all_different(config, dataset):
    inputs, labels = everything(dataset)
    together = rows(np.concatenate([inputs, dataset.test()[0]]), np.concatenate([labels, dataset.test()[1]]))
    if config.name in ("npz", "parquet", "huggingface", "idx"):
        assert together == rows(stored()["x"], stored()["y"])  # each once, and none lost
    assert len({tuple(row) for row, _ in together}) == len(together)


def test_the_seed_decides_and_nothing_else(config, dataset):
    again, other = load(config, 7, HERE), load(config, 8, HERE)
    for one, same in zip((*everything(dataset), *dataset.test()), (*everything(again), *again.test()), strict=True):
        assert np.array_equal(one, same)
    assert rows(*other.test()) != rows(*dataset.test())


def test_by_record_the_records_are_the_same_in_an_order_that_no_partition_changes(config, dataset):
    by_record = dataset.by_record()
    assert (by_record.sizes(np.arange(by_record.num_clients)) == 1).all()
    assert rows(*everything(by_record)) == rows(*everything(dataset))
    if config.name != "synthetic":
        plain = load(config.model_copy(update={"clients": None, "partition": IidPartition()}), 7, HERE)
        assert np.array_equal(everything(plain.by_record())[0], everything(by_record)[0])


def test_label_counts_agree_with_the_records(dataset):
    table, cohort = dataset.label_counts(5), dataset.gather(np.arange(min(5, dataset.num_clients)))
    classes = dataset.num_classes if dataset.form.labels.are_classes else 0
    assert table.counts.shape == (len(cohort.sizes), classes)
    for row, labels, size in zip(table.counts, cohort.labels, cohort.sizes, strict=True) if classes else ():
        assert np.array_equal(row, np.bincount(labels[:size], minlength=dataset.num_classes))
    sizes = dataset.sizes(np.arange(dataset.num_clients))
    assert (table.num_clients, table.num_records) == (len(sizes), sizes.sum())
    assert (table.smallest, table.median, table.largest) == (sizes.min(), np.median(sizes), sizes.max())
    assert table.test_records == len(dataset.test()[1])


def test_ids_outside_the_federation_are_refused(dataset):
    for wrong in (-1, dataset.num_clients):
        with pytest.raises(IndexError, match=f"clients must be ids from 0 to {dataset.num_clients - 1}"):
            dataset.gather(np.array([0, wrong]))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_shape_that_is_asked_for_is_given(name, tmp_path):
    keys = {"clients": 3, **EXAMPLES[name](tmp_path)}
    numbers = {"digits": 64, "segments": 64, "diabetes": 10, "shakespeare": 32}.get(name, 6)
    config = TypeAdapter(Data).validate_python({"name": name, **keys, "shape": (1, 2, numbers // 2)})
    dataset = load(config, 7, HERE)
    assert dataset.input_shape == (1, 2, numbers // 2)
    assert dataset.gather(np.array([0])).inputs.shape[2:] == (1, 2, numbers // 2)
    assert dataset.test()[0].shape[1:] == (1, 2, numbers // 2)
