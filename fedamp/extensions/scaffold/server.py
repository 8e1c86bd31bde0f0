"""Compute the server's control variate from noisy mean updates, which are released anyway."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedamp.base.arrays import Arrays, State, zeros_like
from fedamp.federation.facts import AnyScenario
from fedamp.federation.optimizers import Doubles, ServerOptimizer, Singles, Step, WrappedOptimizer


@dataclass(frozen=True)
class WithVariate(WrappedOptimizer):
    """Another optimizer, beside which the server keeps the control variate ``v`` and sends it to clients.

    With the noisy mean update u, ``v = v + q (u - v)``. In the terms of Karimireddy et al. 2020 it is
    ``v = -steps * rate * c``: the mean of the clients' own variates, of which only those in the round change.

    Attributes:
        optimizer: the rule that moves the model.
        share: q, the expected cohort over the number of units.
    """

    share: float
    broadcast = "variate"

    def init(self, parameters: Arrays) -> State:
        return super().init(parameters) | {self.broadcast: zeros_like(parameters)}

    def step(self, parameters: Singles, update: Doubles, state: Mapping[str, Singles], round_: int) -> Step:
        moved, following = self.optimizer.step(parameters, update, state, round_)
        before = state[self.broadcast]
        return moved, {**following, self.broadcast: before + (self.share * (update - before)).astype(np.float32)}


def with_variate(scenario: AnyScenario, units: int, optimizer: ServerOptimizer) -> WithVariate:
    """Give an optimizer the memory of the control variate.

    Args:
        scenario: with ``client.scaffold``.
        units: number of all units.
        optimizer: of the scenario.
    """
    return WithVariate(optimizer, scenario.check_in.expected_cohort(scenario.rounds, units) / units)
