"""Every loss treats each record by itself; a new loss meets these tests by its name in ``LOSSES``."""

import numpy as np
import pytest
import torch

import fedamp
from fedamp.federation.losses import LOSSES, Loss
from fedamp.testing import LossContract

OUTPUTS = 5


def suite(kind: type[Loss]) -> type[LossContract]:
    """The contract that ships with fedamp, for a loss of the core."""
    return type(f"Test{kind.__name__}", (LossContract,), {"loss": kind()})


globals().update({f"Test{kind.__name__}": suite(kind) for kind in LOSSES.values()})


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
