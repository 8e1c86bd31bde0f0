"""The contract of every data set in fedamp/data/sections.py. One that needs keys has an example here."""

import math
import struct
from pathlib import Path
from typing import get_args

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fedamp.data.form import BINARY, CLASSIFICATION, NUMBERS, TOKENS, Form
from fedamp.data.partition import IidPartition
from fedamp.data.sections import Data
from fedamp.errors import DataError

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
    x = generator.permutation(records * 6).reshape(records, 6).astype(np.float32)
    return {"x": x, "y": np.arange(records) % 4, "client": generator.choice(["ann", "bob", "eve"], records)}


def synthetic(folder):
    return {"clients": 12, "records_per_client": 5, "features": 3, "heterogeneity": 1.0, "test_records": 40}


def npz(folder):
    np.savez_compressed(folder / "train.npz", **stored())
    return {"path": str(folder), "classes": 4}


def parquet(folder):
    columns = {name: pa.array(array.tolist()) for name, array in stored().items()}
    pq.write_table(pa.table(columns), folder / "train.parquet", row_group_size=17)
    return {"path": str(folder), "classes": 4, "shape": (6,)}


def huggingface(folder):
    datasets.Dataset.from_dict({name: array.tolist() for name, array in stored().items()}).save_to_disk(folder / "set")
    columns = {"features": "x", "label": "y", "scale": 1.0, "test_split": None, "classes": 4, "shape": (6,)}
    return {"dataset": str(folder / "set"), **columns}


def idx(folder):
    for name, array, kind in (("images-idx2", stored()["x"], 0x0D), ("labels-idx1", stored()["y"], 0x0C)):
        header = struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape)
        (folder / f"train-{name}-ubyte").write_bytes(header + array.astype({0x0D: ">f4", 0x0C: ">i4"}[kind]).tobytes())
    return {"path": str(folder), "scale": 1.0, "classes": 4}


def csv(folder):
    arrays = stored()
    columns = {name: arrays["x"][:, number] for number, name in enumerate("abcdef")}
    pd.DataFrame({**columns, "y": arrays["y"], "client": arrays["client"]}).to_csv(folder / "train.csv", index=False)
    return {"path": str(folder), "features": list("abcdef"), "classes": 4}


NAMES = [name for section in get_args(get_args(Data)[0]) for name in get_args(section.model_fields["name"].annotation)]
# Known by name, and texts (test_published.py, test_texts.py); records of a custom app on the nodes (tests/client);
# arrays of Python, which have a test set (tests/test_given.py).
ELSEWHERE = {"fashion-mnist", "mnist", "external", "given", "insteval", "text", "descriptions", "sections"}
# A data set that fedamp brings needs no keys.
EXAMPLES = {name: lambda folder: {} for name in NAMES if name not in ELSEWHERE} | {
    each.__name__: each for each in (synthetic, npz, parquet, csv, huggingface, idx)
}
STORED = ("npz", "parquet", "csv", "huggingface", "idx")
PUBLIC = {"test_is_public": True, "test_fraction": 0.2}  # of people's own records none is, unless it is said
# The labels of data sets, where they are not classes.
FORMS = {"diabetes": Form(NUMBERS), "segments": Form(BINARY), "shakespeare": Form(TOKENS, vocabulary=61)}


# Every kind of data, and every partition of one of them.
CASES = [*((name, "iid") for name in EXAMPLES), *(("npz", scheme) for scheme in PARTITIONS if scheme != "iid")]


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def config(request, tmp_path_factory):
    name, scheme = request.param
    keys = EXAMPLES[name](tmp_path_factory.mktemp(name)) | (PARTITIONS[scheme] if name != "synthetic" else {})
    keys |= PUBLIC if name in STORED else {}
    return TypeAdapter(Data).validate_python({"name": name, **keys})


def load(config, seed=7):
    return config.load(seed, HERE, FORMS.get(config.name, CLASSIFICATION))


@pytest.fixture(scope="module")
def dataset(config):
    return load(config)


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
    assert config.count_clients(HERE) == dataset.num_clients
    assert config.count_records(HERE) == dataset.by_record().num_clients == len(everything(dataset)[1])


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
    if config.name in STORED:
        assert together == rows(stored()["x"], stored()["y"])  # each once, and none lost
    assert len({tuple(row) for row, _ in together}) == len(together)


@pytest.mark.parametrize("name", STORED)
def test_no_record_is_tested_on_unless_it_is_said_to_be_public(name, tmp_path):
    """Also with a share that an older version wrote down as its default: nobody has declared anything."""
    keys = {"name": name, "clients": 6, **EXAMPLES[name](tmp_path)}
    for said in ({}, {"test_fraction": 0.2}, {"test_is_public": False}):
        dataset = load(TypeAdapter(Data).validate_python(keys | said))
        inputs, labels = dataset.test()
        assert (inputs.shape, labels.shape, dataset.label_counts(1).test_records) == (
            (0, *dataset.input_shape),
            (0,),
            0,
        )
        assert rows(*everything(dataset)) == rows(stored()["x"], stored()["y"])
    with pytest.raises(
        DataError, match=r"data\.test_is_public, but no test files; expected: them, or data.test_fraction"
    ):
        load(TypeAdapter(Data).validate_python(keys | {"test_is_public": True}))


def test_what_is_held_out_of_a_client_depends_on_no_other_clients_records(tmp_path):
    """Else one person's labels, or their number, would move other people's records in and out of the training."""
    keys = {"name": "npz", "path": str(tmp_path), "classes": 4, "partition": {"scheme": "natural"}} | PUBLIC
    config, arrays = TypeAdapter(Data).validate_python(keys), stored()

    def of_others():
        np.savez(tmp_path / "train.npz", **arrays)
        cohort = load(config).gather(np.array([0, 2]))
        return cohort.inputs, cohort.labels

    before, bob = of_others(), arrays["client"] == "bob"
    arrays["y"] = np.where(bob, 3, arrays["y"])
    relabelled = of_others()
    arrays = {name: array[~bob | (np.arange(len(bob)) > 60)] for name, array in arrays.items()}
    for after in (relabelled, of_others()):
        assert all(np.array_equal(one, same) for one, same in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["digits", "diabetes", "shakespeare"])
@pytest.mark.parametrize("said", [{"test_fraction": 0}, {"test_is_public": False}])
def test_benchmarks_can_be_trained_on_whole(name, said):
    data, whole = (TypeAdapter(Data).validate_python({"name": name, "clients": 5, **more}) for more in (said, {}))
    assert len(load(data).test()[1]) == 0
    assert data.count_records(HERE) == whole.count_records(HERE) + len(load(whole).test()[1])


def test_the_seed_decides_and_nothing_else(config, dataset):
    again, other = load(config), load(config, 8)
    for one, same in zip((*everything(dataset), *dataset.test()), (*everything(again), *again.test()), strict=True):
        assert np.array_equal(one, same)
    assert rows(*other.test()) != rows(*dataset.test())


def test_by_record_the_records_are_the_same_in_an_order_that_no_partition_changes(config, dataset):
    by_record = dataset.by_record()
    assert (by_record.sizes(np.arange(by_record.num_clients)) == 1).all()
    assert rows(*everything(by_record)) == rows(*everything(dataset))
    if config.name != "synthetic":
        whole = {"test_is_public": False}  # what is held out of a client depends on whose a record is
        plain = load(config.model_copy(update={"clients": None, "partition": IidPartition(), **whole}))
        by_record = load(config.model_copy(update=whole)).by_record()
        assert np.array_equal(everything(plain.by_record())[0], everything(by_record)[0])


def test_label_counts_agree_with_the_records(dataset):
    table, cohort = dataset.label_counts(5), dataset.gather(np.arange(min(5, dataset.num_clients)))
    classes = dataset.num_classes if dataset.form.labels.are_classes else 0
    assert table.counts.shape == (len(cohort.sizes), classes)
    for row, labels, size in zip(table.counts, cohort.labels, cohort.sizes, strict=True) if classes else ():
        assert np.array_equal(row, np.bincount(labels[:size], minlength=dataset.num_classes))
    assert np.array_equal(table.sizes, dataset.sizes(np.arange(dataset.num_clients)))
    assert table.test_records == len(dataset.test()[1])


def test_ids_outside_the_federation_are_refused(dataset):
    for wrong in (-1, dataset.num_clients):
        with pytest.raises(IndexError, match=f"clients must be ids from 0 to {dataset.num_clients - 1}"):
            dataset.gather(np.array([0, wrong]))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_shape_that_is_asked_for_is_given(name, tmp_path):
    keys = {"clients": 3, **EXAMPLES[name](tmp_path), **(PUBLIC if name in STORED else {})}
    config = TypeAdapter(Data).validate_python({"name": name, **keys})
    numbers = math.prod(load(config).input_shape)
    dataset = load(config.model_copy(update={"shape": (1, numbers)}))
    assert dataset.input_shape == (1, numbers)
    assert dataset.gather(np.array([0])).inputs.shape[2:] == (1, numbers)
    assert dataset.test()[0].shape[1:] == (1, numbers)
