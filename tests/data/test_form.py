"""Labels of every kind, and tokens, from every kind of file; and what is said of others."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedamp.data.form import BINARY, CLASSES, NUMBERS, TOKENS, Form
from fedamp.data.partition import NaturalPartition
from fedamp.data.sections import DiabetesData, NpzData, SyntheticData, TabularData
from fedamp.errors import DataError

COUNT = 30
GENERATOR = np.random.default_rng(0)
TOKEN = GENERATOR.integers(0, 9, (COUNT, 4))
STORED = {
    "one number": (NUMBERS, GENERATOR.normal(size=COUNT), 1),
    "whole numbers": (NUMBERS, GENERATOR.integers(-5, 5, COUNT), 1),
    "numbers": (NUMBERS, GENERATOR.normal(size=(COUNT, 3)), 3),
    "one label": (BINARY, GENERATOR.integers(0, 2, COUNT).astype(bool), 1),
    "labels": (BINARY, GENERATOR.integers(0, 2, (COUNT, 5)), 5),
    "sequences": (TOKENS, np.where(TOKEN == 3, -100, TOKEN), 9),
}


def npz(folder, **arrays):
    np.savez(folder / "train.npz", **arrays)
    return NpzData(name="npz", path=str(folder), clients=4, classes=9)


def parquet(folder, **arrays):
    table = pa.table({name: pa.array(array.tolist()) for name, array in arrays.items()})
    pq.write_table(table, folder / "train.parquet", row_group_size=7)
    shapes = {"shape": arrays["x"].shape[1:] or None}
    if "y" in arrays and arrays["y"].ndim > 1:
        shapes["label_shape"] = arrays["y"].shape[1:]
    return TabularData(name="parquet", path=str(folder), clients=4, classes=9, **shapes)


@pytest.mark.parametrize("write", [npz, parquet])
def test_every_kind_is_read_from_every_kind_of_file(write, tmp_path, subtests):
    x = np.arange(COUNT * 2).reshape(COUNT, 2)
    for case, (labels, stored, outputs) in STORED.items():
        with subtests.test(case):
            folder = tmp_path / case
            folder.mkdir()
            dataset = write(folder, x=x, y=stored).load(7, folder, Form(labels, vocabulary=2 * COUNT))
            cohort = dataset.gather(np.arange(4))
            assert dataset.num_classes == outputs
            assert cohort.inputs.dtype == np.int64
            real = np.arange(cohort.labels.shape[1]) < cohort.sizes[:, None]
            first = np.concatenate([cohort.inputs[real][:, 0], dataset.test()[0][:, 0]]) // 2  # a record's number
            found = np.concatenate([cohort.labels[real], dataset.test()[1]])
            assert sorted(first) == list(range(COUNT))
            expected = stored[first] if labels is TOKENS else stored[first].reshape(COUNT, -1).astype(np.float32)
            np.testing.assert_array_equal(found, expected)
            assert labels.fit(cohort.labels, outputs)
            assert not labels.fit(cohort.labels, outputs + 1 if labels is not TOKENS else outputs - 1)


def test_labels_may_be_several_columns(tmp_path):
    columns = {"x": np.arange(COUNT), "a": np.arange(COUNT) % 2, "b": np.ones(COUNT, int)}
    config = parquet(tmp_path, **columns).model_copy(update={"label": ["a", "b"]})
    inputs, labels = config.load(7, tmp_path, Form(BINARY)).test()
    np.testing.assert_array_equal(labels, np.stack([inputs[:, 0] % 2, np.ones(len(inputs))], axis=1))


def test_the_number_of_classes_follows_from_public_facts_alone(tmp_path):
    arrays = {"x": np.zeros((COUNT, 2)), "y": np.arange(COUNT) % 4}
    config = npz(tmp_path, **arrays)
    assert config.load(7, tmp_path).num_classes == 9
    undeclared = config.model_copy(update={"classes": None})
    with pytest.raises(DataError, match=r"the number of classes is not declared, .*; expected: data\.classes$"):
        undeclared.load(7, tmp_path)
    np.savez(tmp_path / "test.npz", x=np.zeros((3, 2)), y=[0, 11, 2])
    with pytest.raises(DataError, match="the number of classes is not declared"):
        undeclared.load(7, tmp_path)
    assert undeclared.model_copy(update={"test_is_public": True}).load(7, tmp_path).num_classes == 12
    with pytest.raises(
        DataError, match=r"test\.npz: column 'y': the label of record 1 is 11; .*, for 9 outputs \(data\.classes\)"
    ):
        config.model_copy(update={"test_is_public": True}).load(7, tmp_path)


PUBLIC = {"test_is_public": True}
REFUSED = {
    "text": (NUMBERS, np.array(["a"] * COUNT), "labels are of type <U1; labels must be finite numbers"),
    "not finite": (NUMBERS, np.where(np.arange(COUNT) == 3, np.nan, 0), "the label of record 3 is nan"),
    "too large": (NUMBERS, np.where(np.arange(COUNT) == 3, 1e39, 0), "the label of record 3 is 1e"),
    "nothing": (NUMBERS, np.zeros((COUNT, 0)), "labels are empty lists"),
    "not binary": (BINARY, np.arange(COUNT), "the label of record 2 is 2; labels must be zeros and ones"),
    "no sequence": (TOKENS, np.arange(COUNT), r"labels have shape \[30\]"),
    "a real sequence": (
        TOKENS,
        np.full((COUNT, 3), 0.5),
        "the label of record 0 is .*; labels must be lists of integers",
    ),
    "negative": (TOKENS, np.full((COUNT, 3), -1), "the label of record 0 is .*; labels must be lists of integers"),
    "lists of classes": (
        CLASSES,
        np.zeros((COUNT, 3), int),
        r"labels have shape \[30, 3\], inputs 30 records; give int",
    ),
}


def test_others_of_public_records_are_refused_in_one_line(tmp_path, subtests):
    for case, (labels, stored, message) in REFUSED.items():
        with subtests.test(case):
            config = npz(tmp_path, x=np.zeros((COUNT, 2)), y=stored).model_copy(update=PUBLIC)
            np.savez(tmp_path / "test.npz", x=np.zeros((COUNT, 2)), y=stored)
            with pytest.raises(DataError, match=message):
                config.load(7, tmp_path, Form(labels))


@pytest.mark.parametrize("wrong", [7.0, -1.0, 2.5])
def test_public_inputs_that_are_no_tokens_are_refused(wrong, tmp_path):
    arrays = {"x": np.full((COUNT, 2), wrong), "y": np.arange(COUNT) % 2}
    config = npz(tmp_path, **arrays).model_copy(update=PUBLIC)
    np.savez(tmp_path / "test.npz", **arrays)
    with pytest.raises(DataError, match=r"the inputs of record 0 are others than tokens, integers 0 to 6 \(model\.voc"):
        config.load(7, tmp_path, Form(vocabulary=7))


def test_records_without_classes_are_not_partitioned_by_them(tmp_path):
    config = DiabetesData(name="diabetes", clients=5, partition={"scheme": "dirichlet"})
    with pytest.raises(DataError, match=r"dirichlet partitions by class, .*; expected: iid, natural"):
        config.load(7, tmp_path, Form(NUMBERS))
    with pytest.raises(DataError, match="synthetic has records of numbers and classes"):
        SyntheticData(name="synthetic", clients=5).load(7, tmp_path, Form(NUMBERS))


def test_a_part_of_a_federation_needs_no_classes_where_there_are_none(tmp_path):
    arrays = {"x": np.zeros((COUNT, 2)), "y": np.zeros(COUNT), "client": np.repeat([2, 4], COUNT // 2)}
    config = npz(tmp_path, **arrays).model_copy(
        update={"clients": None, "partition": NaturalPartition(scheme="natural")}
    )
    (tmp_path / "federation.json").write_text('{"clients": 6, "hosted": [2, 4]}')
    assert config.load(7, tmp_path, Form(NUMBERS)).num_classes == 1
    np.savez(tmp_path / "train.npz", **arrays | {"y": np.zeros(COUNT, int)})
    with pytest.raises(DataError, match=r"expected: data\.classes, or classes in federation\.json"):
        config.model_copy(update={"classes": None}).load(7, tmp_path)
