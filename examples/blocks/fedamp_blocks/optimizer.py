"""A server optimizer that moves each parameter by the sign of an average of the updates."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedamp.base.arrays import Arrays, State, zeros_like
from fedamp.federation.optimizers import Doubles, ServerOptimizer, Singles, Step


@dataclass(frozen=True)
class SignDescent(ServerOptimizer):
    """Take the signs of averaged updates (Bernstein et al. 2018): ``v = m v + (1 - m) u; w = w + r sign(v)``.

    A step sees the noisy mean update alone, so it costs no privacy. Its fields are keys of ``server`` in a scenario.
    """

    learning_rate: float
    momentum: float = 0.0
    scheme = "sign"

    def init(self, parameters: Arrays) -> State:
        return {"velocity": zeros_like(parameters)}

    def step(self, parameters: Singles, update: Doubles, state: Mapping[str, Singles], round_: int) -> Step:
        average = np.float32(self.momentum) * state["velocity"] + np.float32(1 - self.momentum) * update.astype(
            np.float32
        )
        return parameters + np.float32(self.learning_rate) * np.sign(average), {"velocity": average}
