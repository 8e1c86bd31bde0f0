"""Server optimisers against torch's own, step by step."""

import numpy as np
import pytest
import torch

from fedamp import scenario
from fedamp.strategies.optimizers import step

SHAPES = {"w": (4, 3), "b": (3,)}


def train(config: scenario.Server, rounds: int = 20) -> tuple[dict, dict, list]:
    generator = np.random.default_rng(5)
    parameters = {name: generator.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    start = {name: array.copy() for name, array in parameters.items()}
    moments: dict = {}
    updates = []
    for round_ in range(1, rounds + 1):
        updates.append({name: generator.normal(size=shape) for name, shape in SHAPES.items()})
        step(config, parameters, updates[-1], moments, round_)
    return start, parameters, updates


@pytest.mark.parametrize(
    ("config", "oracle"),
    [
        (scenario.Server(learning_rate=0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
        (scenario.Server(learning_rate=0.3, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9)),
        (
            scenario.Server(optimizer="adam", learning_rate=0.05, beta1=0.8, beta2=0.95, epsilon=1e-3),
            lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3),
        ),
        (
            scenario.Server(optimizer="adam", learning_rate=0.05),
            lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.9, 0.99), eps=1e-3),
        ),
    ],
)
def test_twenty_steps_as_torch_takes_them(config, oracle):
    start, parameters, updates = train(config)
    expected = {name: torch.nn.Parameter(torch.from_numpy(array).double()) for name, array in start.items()}
    optimizer = oracle(list(expected.values()))
    for update in updates:
        for name, parameter in expected.items():
            parameter.grad = -torch.from_numpy(update[name])  # an update stands in the place of the negative gradient
        optimizer.step()
    for name, array in parameters.items():
        assert array.dtype == np.float32
        # float32 here, float64 there: 2**-24 relative a step, numbers up to 10, 20 steps
        np.testing.assert_allclose(array, expected[name].detach().numpy(), atol=2e-5)


def test_arrays_that_were_handed_out_stay_what_they_were():
    parameters = {"w": np.ones(3, np.float32)}
    handed_out = parameters["w"]
    moments: dict = {}
    for config in (scenario.Server(), scenario.Server(momentum=0.5), scenario.Server(optimizer="adam")):
        step(config, parameters, {"w": np.ones(3)}, moments, 1)
    assert np.array_equal(handed_out, np.ones(3))
    assert not np.array_equal(parameters["w"], handed_out)
