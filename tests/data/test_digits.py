"""Digits: the constants that spare the import of scikit-learn, the test set, and reading by client."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedamp.data import count_clients, count_records, load
from fedamp.data.sections import BuiltInData
from fedamp.errors import DataError

HERE = Path(".")


def digits(**keys):
    return BuiltInData(name="digits", **keys)


def rows(inputs, labels):
    """Records as a sorted list that two sets of records can be compared by."""
    return sorted(zip(map(tuple, np.round(inputs * 16).astype(int).tolist()), labels.tolist(), strict=True))


def training_records(dataset):
    clients = np.arange(dataset.num_clients)
    cohort = dataset.gather(clients)
    real = np.arange(cohort.labels.shape[1]) < cohort.sizes[:, None]
    return cohort.inputs[real], cohort.labels[real]


def test_training_and_test_records_are_the_digits_of_scikit_learn_each_once():
    dataset = load(digits(clients=479), 7, HERE)
    inputs, labels = training_records(dataset)
    test_inputs, test_labels = dataset.test()
    pixels, truth = load_digits(return_X_y=True)
    assert rows(np.concatenate([inputs, test_inputs]), np.concatenate([labels, test_labels])) == rows(
        pixels / 16, truth
    )


def test_sizes_are_known_before_anything_is_read():
    assert count_records(digits(clients=479), HERE) == 1437
    assert len(load(digits(clients=479), 1, HERE).test()[1]) == 360


def test_inputs_are_float32_between_0_and_1():
    inputs = load(digits(clients=479), 7, HERE).gather(np.arange(479)).inputs
    assert inputs.dtype == np.float32
    assert inputs.shape == (479, 3, 64)
    assert inputs.min() == 0
    assert inputs.max() == 1


def test_the_test_set_has_every_label_in_proportion():
    dataset = load(digits(clients=479), 7, HERE)
    counts = np.bincount(dataset.test()[1])
    everywhere = np.bincount(load_digits(return_X_y=True)[1])
    assert np.abs(counts - everywhere * 360 / 1797).max() < 1  # a share rounded down or up


def test_the_partition_does_not_change_the_test_set_nor_the_order_by_record():
    one = load(digits(clients=479), 5, HERE)
    other = load(digits(clients=50, partition={"scheme": "dirichlet"}), 5, HERE)
    records = np.arange(1437)
    assert np.array_equal(one.test()[0], other.test()[0])
    assert np.array_equal(one.by_record().gather(records).inputs, other.by_record().gather(records).inputs)


def test_more_clients_than_records_are_refused_before_and_while_loading():
    for act in (lambda config: load(config, 1, HERE), lambda config: count_clients(config, HERE)):
        with pytest.raises(DataError, match="1438 clients for 1437 training records; give at most 1437"):
            act(digits(clients=1438))


def test_digits_have_no_natural_partition():
    with pytest.raises(DataError, match="digits: no column 'client'"):
        count_clients(digits(partition={"scheme": "natural"}), HERE)


def test_counting_imports_neither_torch_nor_scikit_learn():
    code = (
        "import sys; from pathlib import Path; from fedamp import data; from fedamp.data.sections import BuiltInData;"
        "config = BuiltInData(name='digits', clients=479);"
        "assert data.count_clients(config, Path('.')) == 479;"
        "heavy = {'torch', 'sklearn', 'pyarrow', 'datasets', 'flwr'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_digits_can_be_images():
    images = load(digits(clients=479, shape=(8, 8)), 1, HERE)
    flat = load(digits(clients=479), 1, HERE)
    assert images.input_shape == (8, 8)
    some = np.arange(3)
    assert np.array_equal(images.gather(some).inputs.reshape(3, -1, 64), flat.gather(some).inputs)
    with pytest.raises(DataError, match="64 numbers"):
        load(digits(shape=(7, 9)), 1, HERE)
