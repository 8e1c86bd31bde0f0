"""Frozen weights of a custom model are part of the run: others are refused, everywhere."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import fedamp
from fedamp.client.worker import TrainingNode
from fedamp.errors import ModelError, RunFolderError
from fedamp.extensions.merging.candidates import read_candidates
from fedamp.server.setup import prepare
from tests.client.federation import records
from tests.federations import small


class Projected(nn.Module):
    """A linear model of frozen features, which lie in a file."""

    def __init__(self, input_shape, num_classes, file):
        super().__init__()
        self.register_buffer("features", torch.from_numpy(np.load(file)))
        self.output = nn.Linear(self.features.shape[1], num_classes)

    def forward(self, inputs):
        return self.output(inputs @ self.features)


@pytest.fixture
def weights(tmp_path):
    """A file of frozen weights, and what replaces it."""

    def write(seed):
        np.save(tmp_path / "features.npy", np.random.default_rng(seed).normal(size=(64, 6)).astype(np.float32))

    write(0)
    return write


@pytest.fixture
def asked(tmp_path, weights):
    options = f"{{file: {tmp_path / 'features.npy'}}}"
    return small(f"model={{name: '{__name__}:Projected', options: {options}}}", "rounds=2", "check_in.k=1")


def test_the_ledger_names_them_and_the_models_of_the_run_are_held_to_it(asked, weights, tmp_path):
    run = fedamp.run(asked, tmp_path / "run")
    assert run.ledger.frozen_sha256 == prepare(asked).task.model.frozen_sha256
    assert run.model()(torch.zeros(1, 64)).shape == (1, 10)
    other = fedamp.run(asked, tmp_path / "other")
    weights(1)
    for use in (run.model, lambda: read_candidates([str(run.folder), str(other.folder)])):
        with pytest.raises(ModelError, match=r"frozen weights .* as when the run began") as refused:
            use()
        assert "\n" not in str(refused.value)


def test_a_run_does_not_go_on_with_others(asked, weights, tmp_path):
    playing = fedamp.play(asked, tmp_path / "run")
    next(playing)
    playing.close()
    weights(1)
    with pytest.raises(RunFolderError, match=r"the ledger of another run; it differs in frozen_sha256"):
        fedamp.run(asked, tmp_path / "run", resume=True)
    weights(0)
    assert len(fedamp.run(asked, tmp_path / "run", resume=True).rounds) == 2


def test_a_node_with_others_refuses(asked, weights):
    task = prepare(asked).task
    node_data = dataclasses.replace(records(), inputs=np.zeros((9, 4, 64), np.float32), num_classes=10)
    TrainingNode(task, node_data)
    weights(1)
    with pytest.raises(ModelError, match="frozen weights"):
        TrainingNode(task, node_data)


def test_a_built_in_model_has_none(tmp_path):
    assert fedamp.run(small("rounds=1", "check_in={scheme: all}"), tmp_path / "run").ledger.frozen_sha256 is None
