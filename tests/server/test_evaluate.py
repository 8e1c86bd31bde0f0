"""Evaluation against scikit-learn's metrics."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    log_loss,
    mean_absolute_error,
    mean_squared_error,
    r2_score,
)

from fedamp.federation.losses import LOSSES
from fedamp.models.model import Model
from fedamp.models.networks import build, initial_parameters
from fedamp.server.evaluate import evaluate
from fedamp.server.setup import prepare
from tests.federations import small


@pytest.mark.parametrize("batch", [7, 1024])
def test_accuracy_and_loss_are_those_of_the_logits(batch):
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(50, 6)).astype(np.float32)
    labels = generator.integers(0, 4, size=50)
    config = Model(name="logistic")
    parameters = initial_parameters(config, (6,), 4, seed=1)
    logits = inputs @ parameters["output.weight"].T + parameters["output.bias"]
    loss, metrics = evaluate(build(config, (6,), 4), parameters, inputs, labels, batch=batch)
    assert metrics == {"accuracy": accuracy_score(labels, logits.argmax(1))}
    # float32 logits of 6 products
    assert loss == pytest.approx(log_loss(labels, np.exp(log_softmax(logits, axis=1)), labels=range(4)), rel=1e-5)


@pytest.mark.parametrize("batch", [7, 1024])
def test_numbers_and_labels_have_metrics_of_their_own(batch):
    generator = np.random.default_rng(0)
    inputs, config = generator.normal(size=(50, 6)).astype(np.float32), Model(name="logistic")
    parameters = initial_parameters(config, (6,), 3, seed=1)
    outputs = inputs @ parameters["output.weight"].T + parameters["output.bias"]
    wanted = (outputs + generator.normal(size=outputs.shape) + [0, 5, 100]).astype(np.float32)

    def measured(loss, labels):
        return evaluate(build(config, (6,), 3), parameters, inputs, labels, batch=batch, loss=LOSSES[loss]())

    # float32 outputs of 6 products, and squares of labels up to 100
    loss, metrics = measured("mean-squared-error", wanted)
    assert loss == pytest.approx(mean_squared_error(wanted, outputs), rel=1e-5)
    assert list(metrics) == ["r2", "mean_absolute_error"]
    assert metrics["r2"] == pytest.approx(r2_score(wanted, outputs), rel=1e-4)
    assert metrics["mean_absolute_error"] == pytest.approx(mean_absolute_error(wanted, outputs), rel=1e-5)
    there = (outputs + generator.normal(size=outputs.shape) > [0, 0, 1e9]).astype(np.float32)  # one is never there
    loss, metrics = measured("binary-cross-entropy", there)
    assert loss == pytest.approx(np.mean(np.logaddexp(0, outputs) - there * outputs), rel=1e-5)
    assert metrics["accuracy"] == accuracy_score(there.ravel(), (outputs > 0).ravel())
    assert metrics["f1"] == pytest.approx(f1_score(there, outputs > 0, average="macro", zero_division=0), rel=1e-9)


def test_numbers_that_are_all_alike_have_nothing_to_explain():
    module = build(Model(name="logistic"), (2,), 1)
    parameters = {"output.weight": np.zeros((1, 2), np.float32), "output.bias": np.full(1, 3.0, np.float32)}
    for label, expected in ((3.0, 1.0), (4.0, 0.0)):
        labels = np.full((5, 1), label, np.float32)
        found = evaluate(module, parameters, np.ones((5, 2), np.float32), labels, loss=LOSSES["mean-squared-error"]())
        assert found.score == expected == r2_score(labels, np.full((5, 1), 3.0))


def test_tokens_that_do_not_count_do_not():
    config = Model(name="lstm", vocabulary=5, hidden=(4,))
    module, parameters = build(config, (6,), 5), initial_parameters(config, (6,), 5, seed=1)
    generator = np.random.default_rng(0)
    inputs, labels = generator.integers(0, 5, (20, 6)), generator.integers(0, 5, (20, 6))
    labels[generator.random(labels.shape) < 0.3] = -100
    module.load_state_dict({name: torch.from_numpy(value) for name, value in parameters.items()})
    likely = log_softmax(module(torch.from_numpy(inputs)).detach().numpy().astype(float), axis=2)
    counted = labels >= 0
    each = -np.take_along_axis(likely, np.where(counted, labels, 0)[..., None], 2)[..., 0]
    loss, metrics = evaluate(module, parameters, inputs, labels, batch=7, loss=LOSSES["token-cross-entropy"]())
    # each record weighs the same in the loss, and each token in the metrics
    records = [row[real].mean() for row, real in zip(each, counted, strict=True)]
    assert loss == pytest.approx(np.mean(records), rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(np.exp(each[counted].mean()), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx((likely.argmax(2) == labels)[counted].mean(), rel=1e-12)


def test_the_module_is_left_as_it_was():
    module = build(Model(name="mlp"), (6,), 4).train()
    before = {name: value.clone() for name, value in module.named_parameters()}
    zeros = {name: np.zeros(value.shape, np.float32) for name, value in before.items()}
    found = evaluate(module, zeros, np.ones((3, 6), np.float32), np.array([0, 1, 2]))
    assert (found.score, found.loss) == (pytest.approx(1 / 3), pytest.approx(np.log(4)))
    assert module.training
    assert all(bool((value == before[name]).all()) for name, value in module.named_parameters())


@pytest.mark.parametrize(
    ("test_records", "rounds", "every"),
    # 20 clients take part in each round, with 3 records in each of 2 steps: 3 passes' worth each, so 360 in all
    [(100, 40, 1), (360, 40, 1), (361, 40, 2), (1000, 40, 3), (5000, 40, 4), (5000, 4, 1)],
)
def test_evaluations_cost_no_more_than_training_but_there_are_ten(test_records, rounds, every):
    data = f"data={{name: synthetic, clients: 20, records_per_client: 3, features: 5, test_records: {test_records}}}"
    asked = small(data, f"rounds={rounds}", "check_in={scheme: all}")
    assert prepare(asked).evaluate_every == every
    assert prepare(small(data, "federation={evaluate_every: 7}")).evaluate_every == 7
