"""Server optimisers against torch's own, step by step."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedamp.federation.optimizers import AVERAGE, OPTIMIZERS, ServerUpdate, Sgd
from fedamp.testing import OptimizerContract

SHAPES = {"w": (4, 3), "b": (3,)}


def train(config: ServerUpdate, rounds: int = 20) -> tuple[dict, dict, list]:
    generator = np.random.default_rng(5)
    parameters = {name: generator.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    start = {name: array.copy() for name, array in parameters.items()}
    optimizer = config.rule()
    state = optimizer.init(parameters)
    updates = []
    for round_ in range(1, rounds + 1):
        updates.append({name: generator.normal(size=shape) for name, shape in SHAPES.items()})
        sums = {name: 7 * update for name, update in updates[-1].items()}
        parameters, state = optimizer.apply(parameters, sums, dict.fromkeys(sums, 7.0), state, round_)
    return start, parameters, updates


@pytest.mark.parametrize(
    ("config", "oracle"),
    [
        (ServerUpdate(learning_rate=0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
        (ServerUpdate(learning_rate=0.3, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9)),
        (
            ServerUpdate(optimizer="adam", learning_rate=0.05),
            lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.9, 0.99), eps=1e-3),
        ),
        (
            ServerUpdate(optimizer="adam", learning_rate=0.05, beta1=0.5, beta2=0.9, epsilon=0.01),
            lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.5, 0.9), eps=0.01),
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


def test_an_average_forgets_its_start_and_changes_nothing_else():
    """w_t beside a_t = a_(t-1) + (1 - min(decay, t / (t + 9))) (w_t - a_(t-1)), from the initial model on."""
    for server in (ServerUpdate(learning_rate=0.3, momentum=0.9), ServerUpdate(optimizer="adam")):
        plain, averaged = server.rule(), server.model_copy(update={"averaging": 0.6}).rule()
        one = other = {"w": np.ones(3, np.float32)}
        state, beside = plain.init(one), averaged.init(other)
        expected = np.ones(3)
        for round_ in range(1, 40):
            update = {"w": np.random.default_rng(round_).normal(size=3)}
            one, state = plain.apply(one, update, {"w": 1.0}, state, round_)
            other, beside = averaged.apply(other, update, {"w": 1.0}, beside, round_)
            assert np.array_equal(one["w"], other["w"])
            decay = min(0.6, round_ / (round_ + 9))
            expected = decay * expected + (1 - decay) * one["w"]
        np.testing.assert_allclose(beside[AVERAGE]["w"], expected, rtol=1e-5)  # float32 here, float64 there


def suite(name: str, averaging: float) -> type[OptimizerContract]:
    """The contract that ships with fedamp, for an optimizer of the core."""
    rule = ServerUpdate(optimizer=name, momentum=0.5, averaging=averaging).rule()
    return type(f"Test{name.title()}", (OptimizerContract,), {"optimizer": rule})


globals().update({f"Test{name.title()}": suite(name, 0.0) for name in OPTIMIZERS})
globals().update({f"TestAveraged{name.title()}": suite(name, 0.9) for name in OPTIMIZERS})


@dataclass(frozen=True)
class Remembering(Sgd):
    """It claims what Sgd keeps, and steps by the sum of all updates so far, without a key ``momentum``."""

    scheme = "remembering"

    def init(self, parameters):
        return {"velocity": {name: np.zeros_like(array) for name, array in parameters.items()}}

    def step(self, parameters, update, state, round_):
        velocity = state["velocity"] + np.asarray(update, np.float32)
        return parameters + np.float32(self.learning_rate) * velocity, {"velocity": velocity}


def test_the_contract_finds_a_memory_that_an_optimizer_does_not_declare():
    name = "test_a_step_that_claims_no_memory_depends_on_the_sum_of_its_round_alone"
    for optimizer in (Remembering(0.5), Sgd(0.5), Sgd(0.5, 0.9)):
        tested = getattr(type("Suite", (OptimizerContract,), {"optimizer": optimizer})(), name)
        if isinstance(optimizer, Remembering):
            with pytest.raises(AssertionError, match="expected: keeps without SHOWN_ONCE"):
                tested()
        else:
            tested()
