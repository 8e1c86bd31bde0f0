"""Data sets that fedamp brings: read from scikit-learn's files, without importing it."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedamp.data.sections import DigitsData
from fedamp.errors import DataError

HERE = Path(".")


def test_training_and_test_records_are_the_digits_of_scikit_learn_each_once():
    dataset = DigitsData(name="digits").load(7, HERE)
    cohort, (inputs, labels) = dataset.gather(np.arange(dataset.num_clients)), dataset.test()
    found = np.concatenate([cohort.inputs[:, 0], inputs]), np.concatenate([cohort.labels[:, 0], labels])
    pixels, truth = load_digits(return_X_y=True)
    assert sorted(map(tuple, np.column_stack(found))) == sorted(map(tuple, np.column_stack([pixels / 16, truth])))


def test_more_clients_than_records_are_refused_before_and_while_loading():
    digits = DigitsData(name="digits", clients=1438)
    for act in (lambda: digits.load(1, HERE), lambda: digits.count_clients(HERE)):
        with pytest.raises(DataError, match="1438 clients for 1437 training records; give at most 1437"):
            act()


def test_digits_have_no_natural_partition():
    with pytest.raises(DataError, match="digits: no column 'client'"):
        DigitsData(name="digits", partition={"scheme": "natural"}).count_clients(HERE)
