"""Models that draw random numbers: each unit's come from its own seed, whoever else trains."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedamp
from fedamp.client.worker import TrainingNode
from fedamp.models.model import Model
from fedamp.models.networks import initial_parameters
from fedamp.models.units import Units
from fedamp.server.preflight import how_clients_train
from fedamp.server.setup import prepare
from tests.client.federation import order_of, records, task_of, trained
from tests.federations import small


class Dropping(nn.Module):
    """Drops features in its own way; in evaluation, too."""

    def __init__(self, input_shape, num_classes, how):
        super().__init__()
        self.first, self.second = nn.Linear(input_shape[0], 6), nn.Linear(6, num_classes)
        self.layer, self.activation = nn.Dropout(0.5), nn.ReLU()
        self.drop = {
            "functional": lambda values: F.dropout(values, 0.5, training=True),
            "layer": self.layer,
            "python": lambda values: values * (random.random() < 0.5),  # the depth of a network, stochastically
            "numpy": lambda values: values + np.random.normal(),
        }[how]

    def forward(self, inputs):
        return self.second(self.activation(self.drop(self.first(inputs))))

    def units_to_split(self):
        return [Units("first", 6, {"first.weight": 0, "first.bias": 0, "second.weight": 1}, "activation")]


HOW = ["functional", "layer", "python", "numpy"]


def disturb(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@pytest.mark.parametrize("how", HOW)
def test_a_units_numbers_are_its_own(how):
    model = Model(name=f"{__name__}:Dropping", options={"how": how})
    task, arrays = task_of(model=model), initial_parameters(model, (5,), 3, seed=1)
    worker = TrainingNode(task, records())

    def change(clients, **changes):
        return trained(worker, arrays, order_of(clients, task, **changes))[0]

    disturb(1)
    alone, another = change([2]), change([2], seeds=[bytes(31) + b"\7"])
    disturb(2)
    with_mates, mates = change([4, 2, 0]), change([4, 0])
    state = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    again = change([2])
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (np.random.get_state()[1] == state[1]).all()
    assert random.getstate() == state[2]
    for name, update in alone.items():
        np.testing.assert_array_equal(again[name], update)
        np.testing.assert_array_equal(with_mates[name] - mates[name], update)  # whole quanta: exact
    assert any((another[name] != update).any() for name, update in alone.items())


@pytest.mark.few(0)
@pytest.mark.parametrize(
    ("how", "submodels"),
    [
        ("functional", "{scheme: none}"),
        ("python", "{scheme: dropout, keep: 0.5}"),
        ("functional", "{scheme: disjoint, count: 2}"),
    ],
)
def test_two_runs_with_a_known_seed_are_equal(how, submodels, tmp_path):
    asked = small(
        f"model={{name: '{__name__}:Dropping', options: {{how: {how}}}}}",
        f"submodels={submodels}",
        "rounds=2",
        "check_in.k=1",
    )
    assert how_clients_train(prepare(asked)).endswith(
        "the model draws random numbers, for each client from its own stream"
    )
    runs = []
    for number in (1, 2):
        disturb(number)
        runs.append(fedamp.run(asked, tmp_path / str(number)))
    first, second = runs
    assert [entry.digest for entry in first.ledger.releases] == [entry.digest for entry in second.ledger.releases]
    assert [each.loss for each in first.rounds] == [each.loss for each in second.rounds]  # evaluation draws, too
