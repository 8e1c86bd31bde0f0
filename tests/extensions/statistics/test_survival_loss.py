"""The discrete-time survival model: its loss keeps the contract of losses, and training finds the hazards."""

import numpy as np
import pytest
import torch

from fedamp.extensions.statistics.survival_loss import DiscreteTime
from fedamp.federation import reader
from fedamp.testing import LossContract
from tests.server.plays import model_of, play_in


class TestDiscreteTime(LossContract):
    loss = DiscreteTime()
    outputs = 6


def hazards_of(labels: np.ndarray, intervals: int) -> list[float]:
    """Oracle: of the people at risk in each interval, the share with the event."""
    return [float((labels == 2 * at + 1).sum() / (labels // 2 >= at).sum()) for at in range(intervals)]


@pytest.mark.slow
def test_without_noise_training_finds_the_hazards_of_the_people(tmp_path):
    """All inputs are zero, so the model's bias alone is the curve of all people; its gradient step is a mean."""
    draw = np.random.default_rng(0)
    labels = np.append(draw.choice(6, 299, p=[0.1, 0.2, 0.1, 0.25, 0.15, 0.2]), 5)
    data = tmp_path / "data"
    data.mkdir()
    np.savez(data / "train.npz", x=np.zeros((300, 1), np.float32), y=labels, client=np.arange(300))
    natural = {"scheme": "natural", "column": "client"}
    raw = {
        "name": "life",
        "known_seed": True,
        "data": {"name": "npz", "path": str(data), "classes": 6, "partition": natural},
        "model": {"name": "logistic"},
        "rounds": 60,
        "client": {"loss": "fedamp.extensions.statistics.survival_loss:DiscreteTime", "steps": 1, "learning_rate": 1.0},
        "server": {"learning_rate": 1.0, "momentum": 0.5},
        "privacy": {"clip": 10, "noise_multiplier": 0},
        "engine": {"kind": "serial"},
    }
    play_in(tmp_path / "run", reader.load(raw))
    from safetensors.torch import load

    bias = load(model_of(tmp_path / "run"))["output.bias"].reshape(-1, 2)
    found = torch.sigmoid(bias[:, 1] - bias[:, 0]).tolist()
    # sixty steps of a concave likelihood with curvature of at least a tenth: the rest is below a thousandth
    assert np.allclose(found, hazards_of(labels, 3), atol=2e-3)
