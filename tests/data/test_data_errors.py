"""What is wrong with a person's data is said in one line that names the file and what is accepted."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedamp.data.sections import NpzData, TabularData
from fedamp.errors import DataError

GOOD = {"x": np.eye(6, dtype=np.float32), "y": np.array([0, 1, 2] * 2), "client": np.arange(6) // 2}


CASES = {
    "no inputs": ({"x": None}, {}, "no column 'x'; data.features must be one of y, client"),
    "no labels": ({"y": None}, {}, "no column 'y'; data.label must be one of x, client"),
    "no clients": ({"client": None}, {}, "no column 'client'; data.partition.column must be one of x, y"),
    "wrong lengths": (
        {"y": np.zeros(5, int)},
        {},
        "labels have shape [5], inputs 6 records; give integers 0, 1, 2, ..., one for each record",
    ),
    "label matrix": ({"y": np.eye(6, dtype=int)}, {}, "labels have shape [6, 6]"),
    "text labels": ({"y": np.array(["a"] * 6)}, {}, "labels must be integers 0, 1, 2, ..."),
    "text inputs": ({"x": np.array(["a"] * 6)}, {}, "inputs must be numbers of shape [records, ...]"),
    "objects": ({"x": np.array([{}] * 6)}, {}, "array 'x' cannot be read"),
    "object labels": ({"y": np.array([{}] * 6)}, {}, "array 'y' cannot be read"),
    "empty inputs": ({"x": np.zeros((6, 0))}, {}, "one input has shape [0]; it must hold at least one number"),
    "no records": ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, {}, "no records; at least one is needed"),
    "wrong shape": ({}, {"shape": (2, 2)}, "one input has 6 numbers (stored as [6]), data.shape [2, 2] needs 4"),
    "client lengths": ({"client": np.zeros(5)}, {}, "column 'client' must name a client (a number or a string)"),
    "client nan": (
        {"client": np.full(6, np.nan)},
        {},
        "column 'client' must name a client, and names none for record 0",
    ),
    "two arrays": ({}, {"features": ["x", "z"]}, "npz takes the name of one array, got 2"),
}


def npz(folder, **keys):
    return NpzData(
        name="npz", path=str(folder), **({"clients": 2} if "partition" not in keys else {}), classes=3, **keys
    )


def refused(config):
    with pytest.raises(DataError) as error:
        config.load(0, Path("/"))
    message = str(error.value)
    assert "\n" not in message
    return message


def test_what_is_wrong_with_npz_arrays_is_named(tmp_path_factory, subtests):
    for name in CASES:
        with subtests.test(name):
            folder = tmp_path_factory.mktemp("npz")
            change, keys, expected = CASES[name]
            arrays = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
            np.savez(folder / "train.npz", **arrays)
            message = refused(npz(folder, partition={"scheme": "natural"}, **keys))
            assert expected in message
            assert "data.features: npz" in message or str(folder / "train.npz") in message


NO_NUMBERS = "column 'x' must hold numbers or equally long lists of numbers (inputs: or images)"
PARQUET_CASES = {
    "no inputs": ({"x": None}, "no column 'x'; data.features must be one of y, client"),
    "no clients": ({"client": None}, "no column 'client'; data.partition.column must be one of x, y"),
    "only empty cells": ({"x": pa.array([None] * 3)}, NO_NUMBERS),
    "text": ({"x": ["a", "b", "c"]}, NO_NUMBERS),
    "list of clients": ({"client": [[1], [2], [3]]}, "column 'client' must name a client"),
    "no records": (
        {"x": pa.array([], pa.list_(pa.float32())), "y": pa.array([], pa.int64()), "client": []},
        "no records; at least one is needed",
    ),
}


def test_what_is_wrong_with_parquet_columns_is_named(tmp_path_factory, subtests):
    for name in PARQUET_CASES:
        with subtests.test(name):
            folder = tmp_path_factory.mktemp("parquet")
            change, expected = PARQUET_CASES[name]
            columns = {"x": [[1.0], [2.0], [3.0]], "y": [0, 1, 0], "client": ["a", "b", "c"], **change}
            pq.write_table(
                pa.table({key: value for key, value in columns.items() if value is not None}), folder / "train.parquet"
            )
            message = refused(
                TabularData(name="parquet", path=str(folder), partition={"scheme": "natural"}, classes=2, shape=(1,))
            )
            assert expected in message
            assert str(folder / "train.parquet") in message


@pytest.mark.parametrize(
    ("name", "expected"), [("npz", "not a readable npz archive"), ("parquet", "cannot be read as parquet")]
)
def test_files_that_are_something_else_or_cut_short(tmp_path, name, expected):
    path = tmp_path / f"train.{name}"
    section = NpzData if name == "npz" else TabularData
    config = section(name=name, path=str(tmp_path), clients=2)
    for content in (b"", b"x,y\n1,0\n"):
        path.write_bytes(content)
        assert expected in refused(config)
    if name == "npz":
        np.savez(path, **GOOD)
    else:
        pq.write_table(pa.table({"x": [1.0, 2.0], "y": [0, 1]}), path)
    path.write_bytes(path.read_bytes()[:-40])
    assert expected in refused(config)


def test_npy_files_that_are_something_else_or_cut_short(tmp_path):
    for name, array in GOOD.items():
        np.save(tmp_path / f"train_{name}.npy", array)
    path = tmp_path / "train_x.npy"
    for content in (b"", b"x,y\n1,0\n", path.read_bytes()[:-40]):
        path.write_bytes(content)
        assert "train_x.npy: not a readable npy file" in refused(npz(tmp_path))


def test_folders(tmp_path):
    assert f"data.path: {tmp_path / 'nowhere'} is not a folder" in refused(npz(tmp_path / "nowhere"))
    (tmp_path / "training.npz").touch()
    assert "no train.npz; the folder holds training.npz" in refused(npz(tmp_path))


def test_a_test_file_of_another_shape(tmp_path):
    np.savez(tmp_path / "train.npz", **GOOD)
    np.savez(tmp_path / "test.npz", **{**GOOD, "x": np.zeros((6, 5))})
    message = refused(npz(tmp_path, test_is_public=True))
    assert f"{tmp_path / 'test.npz'}: inputs have shape [5]" in message
    assert "they must agree" in message


def test_a_single_record_cannot_be_split(tmp_path):
    np.savez(tmp_path / "train.npz", x=[[1.0]], y=[0])
    message = refused(npz(tmp_path, test_is_public=True, test_fraction=0.2))
    assert "1 records; at least 2 are needed to hold out a test set" in message


def test_a_part_of_a_federation_needs_a_natural_partition(tmp_path):
    np.savez(tmp_path / "train.npz", **GOOD)
    (tmp_path / "federation.json").write_text("{}")
    message = refused(npz(tmp_path))
    assert "federation.json: a folder that holds a part of the federation needs data.partition" in message
