"""What the simulators are measured on: models, data and local training, the same for everybody."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedamp.data import Dataset
from fedamp.federation import reader
from fedamp.federation.scenario import Scenario
from fedamp.models.model import Model
from fedamp.models.networks import build, initial_parameters

CLIP, NOISE_MULTIPLIER, RATE = 0.5, 1.0, 0.1


@dataclass(frozen=True)
class Workload:
    """A model, data, and how many local steps; everybody takes part in every round.

    Attributes:
        name: for the tables.
        model: the scenario's model section.
        data: its data section, without the number of clients.
        steps: full-batch steps of a client.
        clients: a round.
        rounds: how many are measured, in each pass.
        unit: what is clipped; ``sample`` where every client has one record and takes one step.
    """

    name: str
    model: dict[str, Any]
    data: dict[str, Any]
    steps: int
    clients: int
    rounds: int
    unit: str = "client"

    def scenario(self, kind: str, workers: int, rounds: int, device: str = "cpu", **sections: Any) -> Scenario:
        """The workload as a scenario."""
        raw = {
            "name": "benchmark",
            "seed": 1,
            "data": {**self.data, "clients": self.clients},
            "model": self.model,
            "rounds": rounds,
            "client": {"steps": self.steps, "learning_rate": RATE},
            "privacy": {"clip": CLIP, "noise_multiplier": NOISE_MULTIPLIER, "unit": self.unit},
            "engine": {"kind": kind, "workers": workers, "device": device},
        }
        return reader.validate_scenario(raw | sections, "benchmark")

    def dataset(self) -> Dataset:
        """The clients' records."""
        return self._sections.data.load(1, Path())

    def module(self, dataset: Dataset) -> nn.Module:
        """The model, with initial parameters that are the same for everybody."""
        shape = (self._model, dataset.input_shape, dataset.num_classes)
        module = build(*shape)
        values = {name: torch.from_numpy(value.copy()) for name, value in initial_parameters(*shape, seed=1).items()}
        module.load_state_dict(values, strict=False)
        return module

    @property
    def _sections(self) -> Scenario:
        return self.scenario("serial", 1, 1)

    @property
    def _model(self) -> Model:
        return self._sections.model


def records_of(dataset: Dataset, client: int) -> tuple[Tensor, Tensor]:
    """One client's inputs and labels."""
    cohort = dataset.gather(np.array([client]))
    return torch.from_numpy(cohort.inputs[0]), torch.from_numpy(cohort.labels[0])


def train_one(
    module: nn.Module, start: dict[str, Tensor], inputs: Tensor, labels: Tensor, steps: int
) -> dict[str, Tensor]:
    """One client, as one writes it in torch: local steps from ``start``, and the clipped update."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(start[name])
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()
    with torch.no_grad():
        update = {name: parameter - start[name] for name, parameter in module.named_parameters()}
        norm = torch.sqrt(torch.stack([value.square().sum() for value in update.values()]).sum())
        scale = torch.clamp(CLIP / norm, max=1.0)
        return {name: value * scale for name, value in update.items()}
