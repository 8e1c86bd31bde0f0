"""Synthetic data: records depend on (seed, client) alone, follow the promised law, and are not held."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fedamp.data.sections import SyntheticData

HERE = Path(".")


def synthetic(seed=3, **keys):
    return SyntheticData(name="synthetic", **{"clients": 1000, **keys}).load(seed, HERE)


@pytest.mark.parametrize(("classes", "features"), [(4, 9), (6, 6), (3, 40)])
def test_classes_are_normal_with_centres_as_far_apart_as_asked(classes, features):
    dataset = synthetic(classes=classes, features=features, separation=4.0, records_per_client=60)
    cohort = dataset.gather(np.arange(1000))
    inputs, labels = cohort.inputs.reshape(-1, features), cohort.labels.ravel()
    counts = np.bincount(labels, minlength=classes)
    # 60,000 labels: a class's count has a standard deviation below 120; five are allowed.
    assert np.abs(counts - 60_000 / classes).max() < 600
    centres = np.stack([inputs[labels == label].mean(axis=0) for label in range(classes)])
    distances = np.linalg.norm(centres[:, None] - centres, axis=-1)[~np.eye(classes, dtype=bool)]
    # A centre is a mean of >= 9,000 normals: its error is 0.01 a coordinate, and 0.02 for a difference along a line.
    assert np.abs(distances - 4.0).max() < 0.1
    noise = inputs - centres[labels]
    assert abs(noise.std() - 1) < 0.005  # 360,000 numbers or more: standard error 0.0012 at most
    # Quantiles of the normal law at 1 %, 16 %, 84 %, 99 %; their standard errors are below 0.005 at this size.
    quantiles = np.quantile(noise, [0.01, 0.158655, 0.841345, 0.99])
    assert np.abs(quantiles - [-2.32635, -1, 1, 2.32635]).max() < 0.03
    correlation = np.corrcoef(noise[:, 0], noise[:, features // 2])[0, 1]
    assert abs(correlation) < 0.025  # standard error 0.004; features 0 and features/2 share a Box-Muller pair


def test_heterogeneity_is_a_shift_that_a_client_has_to_itself():
    plain = synthetic(records_per_client=5).gather(np.arange(1000)).inputs
    shifted = synthetic(records_per_client=5, heterogeneity=2.0).gather(np.arange(1000)).inputs
    shifts = shifted - plain
    assert np.abs(shifts - shifts[:, :1]).max() < 1e-5  # the same for all records of a client, to float32 rounding
    assert abs(shifts[:, 0].std() - 2) < 0.05  # 20,000 numbers: standard error 0.01
    assert abs(np.corrcoef(shifts[:-1, 0].ravel(), shifts[1:, 0].ravel())[0, 1]) < 0.04  # standard error 0.007


def test_the_test_set_comes_from_the_same_classes_and_is_not_training_data():
    dataset = synthetic(separation=50.0, test_records=500)
    inputs, labels = dataset.test()
    assert inputs.shape == (500, 20)
    training = dataset.gather(np.arange(200))
    flat, truth = training.inputs.reshape(-1, 20), training.labels.ravel()
    nearest = truth[np.argmin(((inputs[:, None] - flat[None]) ** 2).sum(axis=-1), axis=1)]
    assert (nearest == labels).all()  # classes 50 standard deviations apart cannot be confused
    assert not (inputs[:, None] == flat[None]).all(axis=-1).any()


def test_a_million_clients_need_no_more_memory_than_those_asked_for():
    config = SyntheticData(name="synthetic", clients=1_000_000)
    clients = np.arange(0, 1_000_000, 1000)
    config.load(3, HERE).gather(clients[:1])
    tracemalloc.start()
    dataset = config.load(3, HERE)
    gathered = dataset.gather(clients)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 1,000 clients' inputs, a second array of that size (centres by record), and temporaries of 2 MB. One byte for
    # each record of a million clients would already be 10 MB, one integer for each client 8 MB.
    assert gathered.inputs.nbytes == 800_000
    assert peak < 2 * gathered.inputs.nbytes + 3_000_000
    assert config.count_clients(HERE) == 1_000_000
    assert config.count_records(HERE) == 10_000_000
    assert np.isfinite(dataset.gather(np.array([999_999])).inputs).all()
