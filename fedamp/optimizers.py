"""Server optimisers: what becomes of the noisy mean update. Post-processing, so it costs no privacy."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedamp import scenario
from fedamp.arrays import Arrays, State, Update, zeros_like

AVERAGE = "average"  # of the models so far, among what is remembered


class ServerOptimizer(ABC):
    """A step of the server, with the mean update in the place of the negative gradient.

    Attributes:
        scheme: its name in ``server.optimizer``.
        learning_rate: what a mean update is multiplied by, at least where nothing is remembered.
    """

    scheme: ClassVar[str]
    learning_rate: float

    @abstractmethod
    def init(self, parameters: Arrays) -> State:
        """What is remembered before the first step: some model-shaped sets of arrays, by name."""

    @abstractmethod
    def apply(self, parameters: Arrays, update: Update, state: State, round_: int) -> tuple[Arrays, State]:
        """The model after a step, and what is remembered then, in new arrays.

        Args:
            parameters: the model, by name.
            update: mean update, by name, same shapes.
            state: as :meth:`init` or the step before left it.
            round_: number of this round, from 1.
        """


@dataclass(frozen=True)
class Sgd(ServerOptimizer):
    """Gradient descent with momentum: ``v = m v + u; w = w + r v``."""

    learning_rate: float
    momentum: float = 0.0
    scheme = "sgd"

    def init(self, parameters: Arrays) -> State:
        return {"velocity": zeros_like(parameters)} if self.momentum else {}

    def apply(self, parameters: Arrays, update: Update, state: State, round_: int) -> tuple[Arrays, State]:
        if not self.momentum:
            steps = ((name, self.learning_rate * update[name]) for name in parameters)  # one at a time in memory
            return {name: parameters[name] + step.astype(np.float32) for name, step in steps}, state
        velocity = {
            name: np.float32(self.momentum) * before + update[name].astype(np.float32)
            for name, before in state["velocity"].items()
        }
        rate = np.float32(self.learning_rate)
        return {name: array + rate * velocity[name] for name, array in parameters.items()}, {"velocity": velocity}


@dataclass(frozen=True)
class Adam(ServerOptimizer):
    """Adam with bias correction (Kingma, Ba 2015; on federated updates: Reddi et al. 2021)."""

    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    scheme = "adam"

    def init(self, parameters: Arrays) -> State:
        return {"first": zeros_like(parameters), "second": zeros_like(parameters)}

    def apply(self, parameters: Arrays, update: Update, state: State, round_: int) -> tuple[Arrays, State]:
        rate = np.float32(self.learning_rate / (1 - self.beta1**round_))
        correction = np.float32(1 - self.beta2**round_)
        moved, first, second = {}, {}, {}
        for name, array in parameters.items():
            change = update[name].astype(np.float32)
            one, two = state["first"][name], state["second"][name]
            first[name] = one + np.float32(1 - self.beta1) * (change - one)
            second[name] = two + np.float32(1 - self.beta2) * (change * change - two)
            root = np.sqrt(second[name] / correction) + np.float32(self.epsilon)
            moved[name] = array + rate * first[name] / root
        return moved, {"first": first, "second": second}


@dataclass(frozen=True)
class Averaged(ServerOptimizer):
    """Another optimiser, and beside its models an exponential moving average of them, of which noise is averaged out.

    The decay is min(``decay``, t / (t + 9)) in round t, so that the first models are soon forgotten (De et al. 2022,
    section 3.2).
    """

    optimizer: ServerOptimizer
    decay: float

    @property
    def learning_rate(self) -> float:  # type: ignore[override]
        return self.optimizer.learning_rate

    def init(self, parameters: Arrays) -> State:
        return self.optimizer.init(parameters) | {AVERAGE: parameters}

    def apply(self, parameters: Arrays, update: Update, state: State, round_: int) -> tuple[Arrays, State]:
        moved, following = self.optimizer.apply(parameters, update, state, round_)
        weight = np.float32(1 - min(self.decay, round_ / (round_ + 9)))
        average = {name: before + weight * (moved[name] - before) for name, before in state[AVERAGE].items()}
        return moved, following | {AVERAGE: average}


OPTIMIZERS: dict[str, type[ServerOptimizer]] = {each.scheme: each for each in (Sgd, Adam)}


def optimizer_of(section: scenario.Server) -> ServerOptimizer:
    """The optimiser that a scenario's ``server`` section names; keys that are another's mean nothing to it."""
    kind = OPTIMIZERS[section.optimizer]
    own = set(getattr(kind, "__dataclass_fields__"))  # noqa: B009 (which type it is, is known when it runs)
    optimizer = kind(**section.model_dump(include=own))
    return Averaged(optimizer, section.averaging) if section.averaging else optimizer
