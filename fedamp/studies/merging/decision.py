"""The request for a merger, and the decision: weights, their cost, and its assumptions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting import Bounds, Mechanism
from fedamp.errors import MergeError

Array = NDArray[np.float64]
Weights = tuple[float, ...]

RANDOM_SELECTION, LINEAR_COMBINATION = METHODS = ("random-selection", "linear-combination")
LEAST_PRIVATE = "least-private"
FIXED_WEIGHTS = "The weights (or the utility that they maximise) were given without looking at the trained models."


@dataclass(frozen=True)
class MergeRequest:
    """A request to merge two or more models, each ``RUN`` or ``RUN@ROUND``, within a budget of epsilon and delta.

    Attributes:
        method: ``random-selection`` or ``linear-combination``.
        weights: given weights, made exact; None: chosen.
        utility: for random selection, a number for each model; the weights maximise its expected value. None or
            ``least-private``: the weights prefer models with less privacy.
        data_independent_gradients: the user vouches for this assumption.
        seed: of the draw; None: from the operating system.

    Raises:
        MergeError: one line that names the option and the expected value.
    """

    models: tuple[str, ...]
    method: str
    epsilon: float
    delta: float
    weights: Weights | None = None
    utility: str | tuple[float, ...] | None = None
    data_independent_gradients: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise MergeError(f"--method {self.method}: expected: {' or '.join(METHODS)}")
        if not 0 < self.epsilon < math.inf:
            raise MergeError(f"--epsilon {self.epsilon:g}: expected: a number > 0")
        if not 0 < self.delta < 1:
            raise MergeError(f"--delta {self.delta:g}: expected: a number between 0 and 1")
        if self.weights is not None and self.utility is not None:
            raise MergeError("--weights and --utility: expected: one of them")
        for name, numbers in (("weights", self.weights), ("utility", self.utility)):
            if isinstance(numbers, tuple) and len(numbers) != len(self.models):
                raise MergeError(f"--{name}: {len(numbers)} numbers for {len(self.models)} models; expected: one each")
            if isinstance(numbers, tuple) and not all(map(math.isfinite, numbers)):
                raise MergeError(f"--{name}: expected: finite numbers")
        if self.weights is not None:
            if min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-9:
                raise MergeError("--weights: expected: numbers >= 0 that sum to 1")
            object.__setattr__(self, "weights", exact(self.weights))
        for name, is_given, method in (
            ("utility", self.utility is not None, RANDOM_SELECTION),
            ("assume-data-independent-gradients", self.data_independent_gradients, LINEAR_COMBINATION),
        ):
            if is_given and self.method != method:
                raise MergeError(f"--{name}: expected: only with --method {method}")
        if self.data_independent_gradients and self.weights is None:
            raise MergeError("--assume-data-independent-gradients: expected: --weights, one for each model")
        if self.seed is not None and self.seed < 0:
            raise MergeError(f"--seed {self.seed}: expected: a whole number >= 0")


class Decision(NamedTuple):
    """Weights within the budget, in the order of the models.

    Attributes:
        mechanism, epsilon: the accounting expression of the release, and its cost.
        chosen_by: the origin of the weights, for a reader.
        assumptions: of the cost, beyond those of the inputs' ledgers.
        epsilons: the cost of any other weights; shape (rows, models) to (rows,).
        best: the best weights by each accounting (random selection).
    """

    weights: Weights
    mechanism: Mechanism
    epsilon: Bounds
    chosen_by: str
    assumptions: tuple[str, ...]
    epsilons: Callable[[Array], Array]
    best: dict[str, Weights]


def exact(weights: Sequence[float]) -> Weights:
    """The one distribution that is charged and drawn: weights in whole multiples of 2**-53, whose sum is exactly 1.

    Float64 holds them without rounding. They are rounded down, and the largest gets the rest; 0 stays 0.
    """
    total = sum(map(Fraction, weights))
    shares = [math.floor(Fraction(weight) / total * 2**53) for weight in weights]
    shares[shares.index(max(shares))] += 2**53 - sum(shares)
    return tuple(share * 2.0**-53 for share in shares)


def weights_of(text: str | None) -> Weights | None:
    """Weights from the command line: ``0.3,0.7``; anything else is a MergeError."""
    return None if text is None else _numbers("weights", text, "a number for each model such as 0.3,0.7")


def utility_of(text: str | None) -> str | tuple[float, ...] | None:
    """A utility from the command line: ``least-private``, or ``0.8,0.9``; anything else is a MergeError."""
    if text in (None, LEAST_PRIVATE):
        return text
    return _numbers("utility", text, f"{LEAST_PRIVATE}, or a number for each model such as 0.8,0.9")


def _numbers(option: str, text: str, expected: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise MergeError(f"--{option} {text}: expected: {expected}") from None
