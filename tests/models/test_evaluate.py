"""Evaluation against scikit-learn's metrics."""

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.metrics import accuracy_score, log_loss

from fedamp.models.evaluate import evaluate
from fedamp.models.registry import build, initial_parameters
from fedamp.scenario import Model


@pytest.mark.parametrize("batch", [7, 1024])
def test_accuracy_and_loss_are_those_of_the_logits(batch):
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(50, 6)).astype(np.float32)
    labels = generator.integers(0, 4, size=50)
    config = Model(name="logistic")
    parameters = initial_parameters(config, (6,), 4, seed=1)
    logits = inputs @ parameters["output.weight"].T + parameters["output.bias"]
    accuracy, loss = evaluate(build(config, (6,), 4), parameters, inputs, labels, batch=batch)
    assert accuracy == accuracy_score(labels, logits.argmax(1))
    # float32 logits of 6 products
    assert loss == pytest.approx(log_loss(labels, np.exp(log_softmax(logits, axis=1)), labels=range(4)), rel=1e-5)


def test_the_module_is_left_as_it_was():
    module = build(Model(name="mlp"), (6,), 4).train()
    before = {name: value.clone() for name, value in module.named_parameters()}
    zeros = {name: np.zeros(value.shape, np.float32) for name, value in before.items()}
    accuracy, loss = evaluate(module, zeros, np.ones((3, 6), np.float32), np.array([0, 1, 2]))
    assert (accuracy, loss) == (pytest.approx(1 / 3), pytest.approx(np.log(4)))
    assert module.training
    assert all(bool((value == before[name]).all()) for name, value in module.named_parameters())
