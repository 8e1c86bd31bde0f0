"""Every loss treats each record by itself; a new loss meets these tests by its name in ``LOSSES``."""

import pytest
import torch

from fedamp.data.form import BINARY, CLASSES, NUMBERS, TOKENS
from fedamp.federation.losses import LOSSES, Loss

CLIENTS, RECORDS, OUTPUTS, LENGTH = 3, 4, 5, 6
LABELS = {
    CLASSES: lambda: torch.randint(OUTPUTS, (CLIENTS, RECORDS)),
    NUMBERS: lambda: torch.randn(CLIENTS, RECORDS, OUTPUTS),
    BINARY: lambda: torch.randint(2, (CLIENTS, RECORDS, OUTPUTS)).float(),
    TOKENS: lambda: torch.randint(OUTPUTS, (CLIENTS, RECORDS, LENGTH)),
}


@pytest.fixture(params=LOSSES)
def loss(request) -> Loss:
    return LOSSES[request.param]()


@pytest.fixture
def task(loss) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and labels of some clients."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        labels = LABELS[loss.labels]()
        return torch.randn(CLIENTS, RECORDS, *([LENGTH] * (loss.output_axes == 3)), OUTPUTS), labels


def test_a_record_depends_on_itself_alone(loss, task):
    outputs, labels = (each[0] for each in task)
    before = loss.each(outputs, labels)
    assert before.shape == (RECORDS,)
    outputs[1:] = torch.nan
    assert loss.each(outputs, labels)[0] == before[0]


def test_clients_together_are_clients_alone(loss, task):
    alone = torch.stack([loss.each(*client) for client in zip(*task, strict=True)])
    torch.testing.assert_close(loss.of_clients(*task), alone)


def test_gradients_are_those_of_the_weighted_sum(loss, task):
    outputs, labels = task
    weights = torch.rand(CLIENTS, RECORDS)
    leaf = outputs.clone().requires_grad_()
    (loss.of_clients(leaf, labels) * weights).sum().backward()
    torch.testing.assert_close(loss.gradients(outputs, labels, weights), leaf.grad)


def test_metrics_follow_from_sums_over_batches(loss, task):
    outputs, labels = (each.flatten(0, 1) for each in task)
    parts = [loss.tally(outputs[part], labels[part]) for part in (slice(0, 5), slice(5, None))]
    added = {key: parts[0][key] + parts[1][key] for key in parts[0]}
    whole = loss.metrics(loss.tally(outputs, labels))
    assert loss.metrics(added) == pytest.approx(whole, rel=1e-12)  # sums in float64
    assert next(iter(whole.values())) <= 1
