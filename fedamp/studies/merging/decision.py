"""What a person asks of a merger, and what is decided: which weights, at what cost, on which assumptions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting import Bounds, Mechanism
from fedamp.errors import MergeError

Array = NDArray[np.float64]
Weights = tuple[float, ...]

RANDOM_SELECTION, LINEAR_COMBINATION = METHODS = ("random-selection", "linear-combination")
LEAST_PRIVATE, ACCURACY, MOST_ACCURATE = "least-private", "accuracy", "most-accurate-first"

FIXED_WEIGHTS = "The weights (or the utility that they maximise) were given without looking at the trained models."
PUBLIC_ACCURACIES = (
    "The weights follow from the inputs' accuracies, which are taken to be public knowledge: what they tell about the "
    "units is not part of epsilon (--assume-public-accuracies)."
)


@dataclass(frozen=True)
class MergeRequest:
    """What a person asks for.

    Attributes:
        models: ``RUN`` or ``RUN@ROUND``, two or more.
        method: ``random-selection`` or ``linear-combination``.
        epsilon, delta: the budget.
        weights: given weights, made exact; None: chosen by the utility.
        utility: ``least-private``, ``accuracy``, ``most-accurate-first``, or a number for each model; None:
            least-private for random selection, accuracy for linear combination.
        data_independent_gradients, public_accuracies: assumptions that a person vouches for.
        seed: of the draw; None: from the operating system.

    Raises:
        MergeError: one line that names the option and what is expected.
    """

    models: tuple[str, ...]
    method: str
    epsilon: float
    delta: float
    weights: Weights | None = None
    utility: str | tuple[float, ...] | None = None
    data_independent_gradients: bool = False
    public_accuracies: bool = False
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
        if self.weights is not None and (min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-9):
            raise MergeError("--weights: expected: numbers >= 0 that sum to 1")
        if self.weights is not None:
            object.__setattr__(self, "weights", exact(self.weights))
        if self.data_independent_gradients and self.method == RANDOM_SELECTION:
            raise MergeError("--assume-data-independent-gradients: expected with --method linear-combination")
        if self.seed is not None and self.seed < 0:
            raise MergeError(f"--seed {self.seed}: expected: a whole number >= 0")

    def check_public_accuracies(self) -> None:
        """Check that weights may follow from accuracies.

        Raises:
            MergeError: nobody vouched for that.
        """
        if not self.public_accuracies:
            raise MergeError(
                f"--utility {self.utility or ACCURACY}: weights that follow from the models' accuracies depend on the "
                f"data, which the cost of the merger does not cover; expected: --utility {LEAST_PRIVATE}, numbers "
                "known beforehand, or --assume-public-accuracies"
            )


@dataclass(frozen=True)
class Decision:
    """Weights within the budget.

    Attributes:
        weights: of the models, in their order.
        mechanism: the accounting expression of the release.
        epsilon: what it costs.
        chosen_by: where the weights come from, in words.
        assumptions: what the cost relies on, beyond what the inputs' ledgers say.
        epsilons: what any other weights would cost; shape (rows, models) to (rows,).
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

    Float64 holds them without rounding. They are rounded down, and what is left goes to the largest; 0 stays 0.
    """
    total = sum(map(Fraction, weights))
    shares = [math.floor(Fraction(weight) / total * 2**53) for weight in weights]
    shares[shares.index(max(shares))] += 2**53 - sum(shares)
    return tuple(share * 2.0**-53 for share in shares)


def weights_of(text: str | None) -> Weights | None:
    """Weights as a person writes them: ``0.3,0.7``.

    Raises:
        MergeError: naming what is expected.
    """
    return None if text is None else _numbers("weights", text, "a number for each model such as 0.3,0.7")


def utility_of(text: str | None) -> str | tuple[float, ...] | None:
    """A utility as a person writes it: by name, or ``0.8,0.9``.

    Raises:
        MergeError: naming what is expected.
    """
    if text in (None, LEAST_PRIVATE, ACCURACY, MOST_ACCURATE):
        return text
    names = f"{LEAST_PRIVATE}, {ACCURACY}, {MOST_ACCURATE}"
    return _numbers("utility", text, f"{names}, or a number for each model such as 0.8,0.9")


def _numbers(option: str, text: str, expected: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise MergeError(f"--{option} {text}: expected: {expected}") from None
