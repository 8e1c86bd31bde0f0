"""Server optimizers: apply the noisy mean update to the model. That is post-processing, so it costs no privacy.

A further optimizer is one class here and its name in ``OPTIMIZERS``, or a class that an extension offers as a choice of
``server.optimizer``. The release of a round calls :meth:`ServerOptimizer.apply` (:mod:`fedamp.strategies.pipeline`).
The plan asks for the response to one round's update, by which correlated noise is chosen.

>>> rule = ServerUpdate(learning_rate=0.5).rule()
>>> model, sums = {"w": np.zeros(2, np.float32)}, {"w": np.array([4.0, 8.0])}
>>> moved, state = rule.apply(model, sums, {"w": 4.0}, rule.init(model), round_=1)
>>> moved["w"].tolist()
[0.5, 1.0]
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, partial
from itertools import accumulate
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, GetJsonSchemaHandler

from fedamp.base.arrays import BLOCK, Arrays, State, Sums, zeros_like
from fedamp.base.section import Positive, Section
from fedamp.extension import offered, path_of
from fedamp.federation import facts
from fedamp.federation.added_keys import extend
from fedamp.federation.facts import ScenarioFact

AVERAGE = "average"  # of the models so far, in the state

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]
Step = tuple[Singles, dict[str, Singles]]


class ServerOptimizer(ABC):
    """Base of optimizers: a step of the server, with the mean update in place of the negative gradient.

    A subclass is a dataclass: its fields are the keys of ``server`` that it takes.

    Attributes:
        scheme: its name in ``server.optimizer``.
        keeps: facts about the step that it keeps (without momentum).
        learning_rate: the factor of the mean update, if there is no state.
        broadcast: the kind of its state that clients get beside the model; empty: none. It follows from noisy sums.
    """

    scheme: ClassVar[str]
    broadcast: ClassVar[str] = ""
    keeps: ClassVar[frozenset[ScenarioFact]] = frozenset()
    learning_rate: float

    @abstractmethod
    def init(self, parameters: Arrays) -> State:
        """Make the state before the first step: sets of arrays like the model, by name; empty without a memory."""

    @abstractmethod
    def step(self, parameters: Singles, update: Doubles, state: Mapping[str, Singles], round_: int) -> Step:
        """Compute some coordinates after a step, and their state, as new arrays.

        Coordinates do not depend on each other, so a model is handled in blocks.

        Args:
            parameters: shape [n].
            update: mean update, shape [n].
            state: as :meth:`init` or the step before left it, by name, shape [n] each.
            round_: number of this round, from 1.

        Returns:
            The coordinates, float32 of shape [n], and their state by the same names.
        """

    def step_response(self, rounds: int) -> Doubles:
        """Compute how much a unit of one round's mean update has added to the model after 0, 1, .. further rounds.

        It serves the choice of correlated noise. A step that is not linear counts as its learning rate.

        Returns:
            Array of shape [rounds].
        """
        return np.full(rounds, self.learning_rate)

    def step_responses(self, rounds: int) -> tuple[Doubles, ...]:
        """Compute :meth:`step_response` of the model that clients start from, and of the released one if it differs."""
        return (self.step_response(rounds),)

    def apply(
        self, parameters: Arrays, sums: Sums, denominators: Mapping[str, float], state: State, round_: int
    ) -> tuple[Arrays, State]:
        """Apply the mean update, and return the model and the state in new arrays.

        No other arrays of their size are made: a block of coordinates is handled at a time.

        Args:
            parameters: the model, by name.
            sums: of updates, by name; an array without one stays the same.
            denominators: of the sums, by name.
            state: as :meth:`init` or the step before left it.
            round_: number of this round, from 1.
        """
        moved, following = dict(parameters), {kind: dict(arrays) for kind, arrays in state.items()}
        for name, total in sums.items():
            start, flat = parameters[name].reshape(-1), total.reshape(-1)
            before = {kind: arrays[name].reshape(-1) for kind, arrays in state.items()}
            for arrays in (moved, *following.values()):
                arrays[name] = np.empty(total.shape, np.float32)
            for place in range(0, total.size, BLOCK):
                block = slice(place, place + BLOCK)
                remembered = {kind: array[block] for kind, array in before.items()}
                after, new = self.step(start[block], flat[block] / denominators[name], remembered, round_)
                moved[name].reshape(-1)[block] = after
                for kind, arrays in following.items():  # a kind that a step does not return is an error
                    arrays[name].reshape(-1)[block] = new[kind]
        return moved, following


@dataclass(frozen=True)
class Sgd(ServerOptimizer):
    """Gradient descent with momentum: ``v = m v + u; w = w + r v``."""

    learning_rate: float
    momentum: float = 0.0
    scheme = "sgd"
    keeps = frozenset({facts.SHOWN_ONCE, facts.LINEAR_STEP})

    def init(self, parameters: Arrays) -> State:
        return {"velocity": zeros_like(parameters)} if self.momentum else {}

    def step_response(self, rounds: int) -> Doubles:
        return self.learning_rate * (1 - self.momentum ** np.arange(1, rounds + 1)) / (1 - self.momentum)

    def step(self, parameters: Singles, update: Doubles, state: Mapping[str, Singles], round_: int) -> Step:
        if not self.momentum:
            return parameters + (self.learning_rate * update).astype(np.float32), {}
        velocity = np.float32(self.momentum) * state["velocity"] + update.astype(np.float32)
        return parameters + np.float32(self.learning_rate) * velocity, {"velocity": velocity}


@dataclass(frozen=True)
class Adam(ServerOptimizer):
    """Adam with bias correction (Kingma, Ba 2015), and the constants of Reddi et al. 2021 for federated updates."""

    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    scheme = "adam"

    def init(self, parameters: Arrays) -> State:
        return {"first": zeros_like(parameters), "second": zeros_like(parameters)}

    def step(self, parameters: Singles, update: Doubles, state: Mapping[str, Singles], round_: int) -> Step:
        change, first, second = update.astype(np.float32), state["first"], state["second"]
        first = first + np.float32(1 - self.beta1) * (change - first)
        second = second + np.float32(1 - self.beta2) * (change * change - second)
        root = np.sqrt(second / np.float32(1 - self.beta2**round_)) + np.float32(self.epsilon)
        rate = np.float32(self.learning_rate / (1 - self.beta1**round_))
        return parameters + rate * first / root, {"first": first, "second": second}


@dataclass(frozen=True)
class WrappedOptimizer(ServerOptimizer):
    """Base of rules that move the model as another optimizer does, and remember something beside it.

    Attributes:
        optimizer: the rule that moves the model.
    """

    optimizer: ServerOptimizer

    @property
    def learning_rate(self) -> float:  # type: ignore[override]
        return self.optimizer.learning_rate

    def init(self, parameters: Arrays) -> State:
        return self.optimizer.init(parameters)

    def step_response(self, rounds: int) -> Doubles:
        return self.optimizer.step_response(rounds)

    def step_responses(self, rounds: int) -> tuple[Doubles, ...]:
        return self.optimizer.step_responses(rounds)


@dataclass(frozen=True)
class Averaged(WrappedOptimizer):
    """Another optimizer with an exponential moving average of its models, which averages out noise.

    Clients continue from the last model; the average is released. The decay is min(``decay``, t / (t + 9)) in round t,
    so that the first models soon have little weight (De et al. 2022, section 3.2).

    Attributes:
        optimizer: the rule that moves the last model.
        decay: in [0, 1).
    """

    decay: float

    def init(self, parameters: Arrays) -> State:
        return super().init(parameters) | {AVERAGE: parameters}

    def step_response(self, rounds: int) -> Doubles:
        steps = ((1 - self.decay) * self.optimizer.step_response(rounds)).tolist()
        return np.array(list(accumulate(steps, lambda average, step: self.decay * average + step)))

    def step_responses(self, rounds: int) -> tuple[Doubles, ...]:
        return (*self.optimizer.step_responses(rounds), self.step_response(rounds))

    def step(self, parameters: Singles, update: Doubles, state: Mapping[str, Singles], round_: int) -> Step:
        moved, following = self.optimizer.step(parameters, update, state, round_)
        weight = np.float32(1 - min(self.decay, round_ / (round_ + 9)))
        return moved, {**following, AVERAGE: state[AVERAGE] + weight * (moved - state[AVERAGE])}


OPTIMIZERS: dict[str, type[Any]] = {each.scheme: each for each in (Sgd, Adam)}
"""Optimizers of the core, by the names that a scenario accepts."""


@cache
def optimizers() -> dict[str, type[Any]]:
    """List the optimizers by name: the core's own, then those of extensions, which cannot take a name of the core."""
    offered_ = {kind.scheme: kind for kind in offered("choices", "server.optimizer")}
    return OPTIMIZERS | {name: kind for name, kind in offered_.items() if name not in OPTIMIZERS}


def _by_name(asked: Any) -> Any:
    """Replace the path ``package.module:Class`` of an optimizer by its name, and refuse unknown names."""
    if not isinstance(asked, str) or asked in optimizers():
        return asked
    paths = {path_of(kind): name for name, kind in optimizers().items()}
    if asked not in paths:
        raise ValueError(f"got {asked!r}; expected: {', '.join(optimizers())}")
    return paths[asked]


class _NamesInSchema:
    """Annotation by which a JSON schema lists the names of optimizers."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(optimizers())}


@partial(extend, path="server")
class ServerUpdate(Section):
    """How the server applies the noisy mean of the updates.

    The step is post-processing of a noisy sum, so it costs no privacy.
    """

    optimizer: Annotated[str, BeforeValidator(_by_name), _NamesInSchema()] = Field(
        "sgd", description="sgd, with momentum; or adam"
    )
    learning_rate: Positive = Field(1.0, description="factor of the noisy mean update")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="of sgd, over the rounds")
    averaging: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="decay of the moving average of the models so far, which is then released; clients continue from "
        "the last model. 0: no average",
    )
    beta1: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="of adam: decay of the mean of the updates")
    beta2: Annotated[float, Field(ge=0, lt=1)] = Field(0.99, description="of adam: decay of the mean of their squares")
    epsilon: Positive = Field(1e-3, description="of adam: added to the root of the mean square")

    @property
    def kind(self) -> type[ServerOptimizer]:
        """Class of the optimizer."""
        return OPTIMIZERS.get(self.optimizer) or optimizers()[self.optimizer]

    @property
    def is_linear(self) -> bool:
        """Say whether a step is linear in the update; otherwise its size does not follow from that of the update."""
        return facts.LINEAR_STEP in self.kind.keeps

    @property
    def effective_momentum(self) -> float:
        """Momentum of the optimizer; 0 where it has none."""
        return self.momentum if "momentum" in self._known else 0.0

    @property
    def _known(self) -> set[str]:
        """Keys of the section that the optimizer takes."""
        return {each.name for each in fields(self.kind)}  # type: ignore[arg-type]  # a dataclass

    def rule(self) -> ServerOptimizer:
        """Make the optimizer from the keys that it knows."""
        optimizer = self.kind(**self.model_dump(include=self._known))
        return Averaged(optimizer, self.averaging) if self.averaging else optimizer
