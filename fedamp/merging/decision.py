"""Which weights a merger takes, what it costs, and on which assumptions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting import Bounds, LinearCombination, Mechanism, RandomSelection
from fedamp.errors import MergeError
from fedamp.merging import combination, selection
from fedamp.merging.candidates import Candidates
from fedamp.merging.selection import Rank

RANDOM_SELECTION, LINEAR_COMBINATION = "random-selection", "linear-combination"
METHODS = (RANDOM_SELECTION, LINEAR_COMBINATION)
LEAST_PRIVATE, ACCURACY, MOST_ACCURATE = "least-private", "accuracy", "most-accurate-first"

ONLY_RELEASE = (
    "Only the merged model is released. Nothing else of its inputs was or will be, and no second merger of them; if it "
    "is, the costs add up."
)
SAME_DATA = "The inputs were trained on the same units' data, which did not change between the runs."
FIXED_INPUTS = (
    "Which runs are merged, and at which rounds they were taken or stopped, was not decided by looking at them."
)
FIXED_WEIGHTS = "The weights (or the utility that they maximise) were given without looking at the trained models."
PUBLIC_ACCURACIES = (
    "The weights follow from the inputs' accuracies, which are taken to be public knowledge: what they tell about the "
    "units is not part of epsilon (--assume-public-accuracies)."
)
DATA_INDEPENDENT_GRADIENTS = (
    "No update depends on the model that it starts from (--assume-data-independent-gradients), as with one step or "
    "mean estimation; where that is wrong, so is epsilon."
)
ONE_DRAW = "The model was drawn once, and no draw was discarded."
INDEPENDENT_NOISE = "The inputs' noise and hidden assignments are independent of one another."


@dataclass(frozen=True)
class MergeRequest:
    """What a person asks for.

    Attributes:
        models: ``RUN`` or ``RUN@ROUND``, two or more.
        method: ``random-selection`` or ``linear-combination``.
        epsilon, delta: the budget.
        weights: given weights; None: chosen by the utility.
        utility: ``least-private``, ``accuracy``, ``most-accurate-first``, or a number for each model; None:
            least-private for random selection, accuracy for linear combination.
        data_independent_gradients, public_accuracies: assumptions that a person vouches for.
        seed: of the draw; None: from the operating system.
    """

    models: tuple[str, ...]
    method: str
    epsilon: float
    delta: float
    weights: tuple[float, ...] | None = None
    utility: str | tuple[float, ...] | None = None
    data_independent_gradients: bool = False
    public_accuracies: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise MergeError(f"--method {self.method}: accepted: {' or '.join(METHODS)}")
        if not 0 < self.epsilon < math.inf:
            raise MergeError(f"--epsilon {self.epsilon:g}: accepted: a number > 0")
        if not 0 < self.delta < 1:
            raise MergeError(f"--delta {self.delta:g}: accepted: a number between 0 and 1")
        if self.weights is not None and self.utility is not None:
            raise MergeError("--weights and --utility: accepted: one of them")
        for name, numbers in (("weights", self.weights), ("utility", self.utility)):
            if isinstance(numbers, tuple) and len(numbers) != len(self.models):
                raise MergeError(f"--{name}: {len(numbers)} numbers for {len(self.models)} models; accepted: one each")
            if isinstance(numbers, tuple) and not all(map(math.isfinite, numbers)):
                raise MergeError(f"--{name}: accepted: finite numbers")
        if self.weights is not None and (min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-9):
            raise MergeError("--weights: accepted: numbers >= 0 that sum to 1")
        if self.data_independent_gradients and self.method == RANDOM_SELECTION:
            raise MergeError("--assume-data-independent-gradients: accepted with --method linear-combination")
        if self.seed is not None and self.seed < 0:
            raise MergeError(f"--seed {self.seed}: accepted: a whole number >= 0")


def weights_of(text: str | None) -> tuple[float, ...] | None:
    """Weights as a person writes them: ``0.3,0.7``.

    Raises:
        MergeError: naming what is accepted.
    """
    try:
        return None if text is None else tuple(float(number) for number in text.split(","))
    except ValueError:
        raise MergeError(f"--weights {text}: accepted: a number for each model such as 0.3,0.7") from None


def utility_of(text: str | None) -> str | tuple[float, ...] | None:
    """A utility as a person writes it: by name, or ``0.8,0.9``.

    Raises:
        MergeError: naming what is accepted.
    """
    if text in (None, LEAST_PRIVATE, ACCURACY, MOST_ACCURATE):
        return text
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        accepted = f"{LEAST_PRIVATE}, {ACCURACY}, {MOST_ACCURATE}, or a number for each model such as 0.8,0.9"
        raise MergeError(f"--utility {text}: accepted: {accepted}") from None


@dataclass(frozen=True)
class Decision:
    """Weights within the budget.

    Attributes:
        weights: of the models, in their order.
        epsilon: what the merged model costs.
        mechanism: the accounting expression of that.
        chosen_by: where the weights come from, in words.
        assumptions: what the cost relies on, beyond what the inputs' ledgers say.
        feasible: the best weights by each accounting (random selection); empty elsewhere.
        epsilons: what any other weights would cost; shape (rows, models) to (rows,).
    """

    weights: tuple[float, ...]
    epsilon: Bounds
    mechanism: Mechanism
    chosen_by: str
    assumptions: tuple[str, ...]
    feasible: dict[str, tuple[float, ...]]
    epsilons: Callable[[NDArray[np.float64]], NDArray[np.float64]]


def decide(request: MergeRequest, candidates: Candidates) -> Decision:
    """The weights that a request leads to.

    Raises:
        MergeError: no weights, or not the given ones, are within the budget; or the cost rests on an assumption that
            was not made.
    """
    decision = _select(request, candidates) if request.method == RANDOM_SELECTION else _combine(request, candidates)
    if decision.epsilon.upper > request.epsilon:
        raise MergeError(
            f"weights {', '.join(f'{weight:.6g}' for weight in decision.weights)} cost epsilon = "
            f"{decision.epsilon.upper:.6g} at delta = {request.delta:g}, more than the budget of {request.epsilon:g}"
        )
    return decision


# --- random selection -------------------------------------------------------------------------------------------------


def _select(request: MergeRequest, candidates: Candidates) -> Decision:
    mechanisms, feasible = candidates.mechanisms, dict[str, tuple[float, ...]]()
    assumptions: tuple[str, ...]
    if request.weights is not None:
        weights, chosen_by, assumptions = request.weights, "given", (FIXED_WEIGHTS,)
    else:
        rank, chosen_by, assumptions = _rank(request, candidates)
        best = selection.best_weights(mechanisms, rank, request.epsilon, request.delta)
        if not best:
            cheapest = min(part.epsilon(request.delta).upper for part in mechanisms)
            raise MergeError(
                f"no weights keep epsilon <= {request.epsilon:g} at delta = {request.delta:g}; "
                f"the most private model alone costs {cheapest:.4g}"
            )
        feasible = {accounting: found.weights for accounting, found in best.items()}
        weights = max(best.values(), key=lambda found: rank(found.weights)).weights
    return Decision(
        weights=weights,
        epsilon=selection.selection_epsilon(mechanisms, weights, request.delta),
        mechanism=RandomSelection(mechanisms, weights),
        chosen_by=chosen_by,
        assumptions=(ONE_DRAW, *assumptions),
        feasible=feasible,
        epsilons=lambda grid: selection.selection_epsilons(mechanisms, grid, request.delta),
    )


def _rank(request: MergeRequest, candidates: Candidates) -> tuple[Rank, str, tuple[str, ...]]:
    """What to maximise, that in words, and the assumptions that it takes."""
    if request.utility in (None, LEAST_PRIVATE):
        rank = selection.least_private_first(candidates.mechanisms, request.delta)
        return rank, "least private model first", ()
    if isinstance(request.utility, tuple):
        return _expected(request.utility), f"largest expected utility of {list(request.utility)}", (FIXED_WEIGHTS,)
    _check_public(request)
    if request.utility == MOST_ACCURATE:
        rank = selection.most_accurate_first(candidates.accuracies)
        return rank, "most accurate model on the public test set first", (PUBLIC_ACCURACIES,)
    return _expected(candidates.accuracies), "largest expected accuracy on the public test set", (PUBLIC_ACCURACIES,)


def _expected(utility: Sequence[float]) -> Rank:
    return lambda weights: float(np.dot(weights, utility))


def _check_public(request: MergeRequest) -> None:
    if not request.public_accuracies:
        raise MergeError(
            f"--utility {request.utility or ACCURACY}: weights that follow from the models' accuracies depend on the "
            f"data, which the cost of the merger does not cover; accepted: --utility {LEAST_PRIVATE}, numbers known "
            "beforehand, or --assume-public-accuracies"
        )


# --- linear combination -----------------------------------------------------------------------------------------------


def _combine(request: MergeRequest, candidates: Candidates) -> Decision:
    combination.check_independent(candidates.models)
    if request.utility not in (None, ACCURACY):
        raise MergeError("--utility: accepted with --method linear-combination: accuracy, or --weights instead")
    if request.data_independent_gradients:
        return _per_step(request, candidates)
    mechanisms, models = candidates.mechanisms, range(len(candidates.models))
    fixed: tuple[str, ...] = ()
    if request.weights is None:
        # Whatever is computed from the release of all the models considered is free, the choice of weights too.
        considered = combination.affordable(mechanisms, request.epsilon, request.delta)
        weights = combination.most_accurate(considered, len(models), _quality(candidates))[0]
        names = ", ".join(candidates.models[index].name for index in considered)
        chosen_by = f"best accuracy of {names}, which are charged as released together"
    else:
        weights, chosen_by, fixed = request.weights, "given", (FIXED_WEIGHTS,)
        considered = tuple(index for index in models if weights[index] > 0)
    mechanism = combination.together(mechanisms, considered)

    def epsilons(grid: NDArray[np.float64]) -> NDArray[np.float64]:
        supports = [tuple(np.flatnonzero(row)) for row in grid]
        cost = {
            chosen: combination.together(mechanisms, chosen).epsilon(request.delta, points=200).upper
            for chosen in set(supports)
        }
        return np.array([cost[chosen] for chosen in supports])

    return Decision(
        weights,
        combination.joint_epsilon(mechanism, len(considered), request.delta),
        mechanism,
        chosen_by,
        (INDEPENDENT_NOISE, *fixed),
        {},
        epsilons,
    )


def _per_step(request: MergeRequest, candidates: Candidates) -> Decision:
    models = candidates.models
    combination.per_step(models, [1 / len(models)] * len(models))  # refused before anything long is done
    if request.weights is None:
        _check_public(request)
        rows = combination.most_accurate(range(len(models)), len(models), _quality(candidates))
        weights, _ = combination.first_affordable(rows, models, request.epsilon, request.delta)
        chosen_by, fixed = "best accuracy within the budget", PUBLIC_ACCURACIES
    else:
        weights, chosen_by, fixed = request.weights, "given", FIXED_WEIGHTS
    mechanism = combination.per_step(models, weights)
    assert isinstance(mechanism, LinearCombination)
    return Decision(
        weights,
        mechanism.epsilon(request.delta),
        mechanism,
        chosen_by,
        (INDEPENDENT_NOISE, DATA_INDEPENDENT_GRADIENTS, fixed),
        {},
        lambda grid: np.array(
            [combination.per_step(models, row.tolist()).epsilon(request.delta, points=200).upper for row in grid]
        ),
    )


def _quality(candidates: Candidates) -> Callable[[tuple[float, ...]], tuple[float, float]]:
    return lambda weights: candidates.prepared.evaluate(candidates.combined(weights))
