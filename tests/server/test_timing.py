"""How clients train together follows from the scenario and the model: no clock decides it, and nothing else does."""

import json
import time

import pytest
import torch
from torch import nn

from fedamp.federation import reader
from fedamp.server.launch import launch
from fedamp.server.preflight import how_clients_train
from fedamp.server.setup import prepare
from tests.federations import Silent, small, write_small
from tests.server.plays import model_of

OURS = "tests.server.test_timing:"


class Sluggish(nn.Module):
    """Its pass of a stack takes long, and its pass for one client does not."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.output = nn.Linear(input_shape[0], num_classes)

    def forward(self, inputs):
        if torch._C._functorch.is_batchedtensor(inputs):
            time.sleep(0.1)
        return self.output(inputs)


class Normalised(nn.Module):
    """A perceptron with a layer norm, whose kernels round by the shape of a stack."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.first, self.norm = nn.Linear(input_shape[0], 24), nn.LayerNorm(24)
        self.output = nn.Linear(24, num_classes)

    def forward(self, inputs):
        return self.output(torch.relu(self.norm(self.first(inputs))))


def own(name, *overrides):
    return small(f"model={{name: '{OURS}{name}'}}", "rounds=3", *overrides)


def test_a_model_that_is_slow_in_a_stack_trains_in_one_all_the_same(tmp_path, fedamp):
    asked = own("Sluggish", "client.steps=1")
    prepared = prepare(asked)
    assert prepared.task.stack.units == 32
    assert how_clients_train(prepared) == "up to 32 clients train together"
    run = launch(asked, Silent(), tmp_path / "run")
    assert reader.load(run / "scenario.yaml").engine.clients_per_batch == "auto"
    assert "up to 32 clients train together" in (run / "log.txt").read_text()
    told = fedamp("check", write_small(tmp_path, f"model={{name: '{OURS}Sluggish'}}"), "--import", "--json")
    [found] = [check["found"] for check in json.loads(told.out)["checks"] if check["name"] == "together"]
    assert "with engine.clients_per_batch 1" in found


@pytest.mark.parametrize(("asked", "words"), [(4, "up to 4 clients train together"), (1, "clients train one by one")])
def test_what_the_scenario_says_is_done(asked, words):
    prepared = prepare(own("Normalised", f"engine.clients_per_batch={asked}"))
    assert (prepared.task.stack.units, how_clients_train(prepared)) == (asked, words)


@pytest.mark.slow  # of a model of one's own; tests/engines/test_grids.py has Ray for a built-in one
@pytest.mark.parametrize("units", ["auto", 2])
def test_any_engine_and_number_of_workers_give_the_same_model_to_the_bit(tmp_path, units):
    pytest.importorskip("ray")
    asked = f"engine.clients_per_batch={units}"
    serial = launch(own("Normalised", asked), Silent(), tmp_path / "serial")
    on_ray = own("Normalised", asked, "engine.kind=ray", "engine.workers=2")
    assert model_of(launch(on_ray, Silent(), tmp_path / "ray")) == model_of(serial)
