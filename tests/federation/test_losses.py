"""Every loss treats each record by itself; a new loss meets these tests by its name in ``LOSSES``."""

import numpy as np
import pytest
import torch

import fedamp
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


PLACES = torch.tensor([[1, 2, 0, 3, 4], [1, -100, -100, -100, -100], [-100, 0, -100, 2, -100], [-100] * 5])


def logarithms(outputs: np.ndarray) -> np.ndarray:
    """Of the probabilities."""
    return outputs - np.log(np.exp(outputs).sum(-1, keepdims=True))


def of_places(outputs: np.ndarray, labels: np.ndarray) -> tuple[list[float], float, float]:
    """Of each sequence the mean over the places that count; accuracy and perplexity over all of these."""
    each, right, places = [], [], []
    for sequence, wanted in zip(logarithms(outputs.astype(np.float64)), labels, strict=True):
        losses = [-sequence[place, label] for place, label in enumerate(wanted) if label != -100]
        right += [sequence[place].argmax() == label for place, label in enumerate(wanted) if label != -100]
        each.append(sum(losses) / len(losses) if losses else 0.0)
        places += losses
    return each, float(np.mean(right)), float(np.exp(np.mean(places)))


def test_a_sequence_counts_by_its_own_places_and_not_by_all() -> None:
    """Sums were divided by the length of the sequences in one planted fault, and no test failed."""
    loss, outputs = (
        LOSSES["token-cross-entropy"](),
        torch.randn(4, 5, OUTPUTS, generator=torch.Generator().manual_seed(2)),
    )
    each, accuracy, perplexity = of_places(outputs.numpy(), PLACES.numpy())
    assert loss.each(outputs.double(), PLACES).tolist() == pytest.approx(each, rel=1e-12)
    found = loss.metrics(loss.tally(outputs, PLACES))
    assert found == pytest.approx({"accuracy": accuracy, "perplexity": perplexity}, rel=1e-9)


def test_the_stated_loss_of_a_run_is_that_of_the_places_that_count(tmp_path) -> None:
    generator = np.random.default_rng(4)
    x, y = generator.integers(0, 7, (60, 5)), generator.integers(0, 7, (60, 5))
    y[np.arange(5) >= generator.integers(1, 6, 60)[:, None]] = -100
    run = fedamp.run(
        out=tmp_path / "run",
        model={"name": "lstm", "vocabulary": 7, "hidden": [4]},
        data=(x, y, np.arange(60) // 6),
        test=(x, y),
        rounds=1,
        check_in={"scheme": "all"},
        client={"loss": "token-cross-entropy", "steps": 2, "learning_rate": 0.5},
        privacy={"clip": 1.0, "noise_multiplier": 0},
        known_seed=True,
        engine={"kind": "serial"},
        **{"data.classes": 7},
    )
    each, accuracy, perplexity = of_places(run.predict(x), y)
    assert run.rounds[0].loss == pytest.approx(np.mean(each), rel=1e-5)  # of float32 logits
    assert run.rounds[0].accuracy == pytest.approx(accuracy)
    assert run.rounds[0].metrics["perplexity"] == pytest.approx(perplexity, rel=1e-5)
