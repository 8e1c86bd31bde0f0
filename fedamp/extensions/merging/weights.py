"""Choose the weights of a merger within a budget, by two methods of Yin, Zaheer, Li 2026.

**Random selection**: one of several models is released, drawn with weights that do not depend on the data. The cost
follows from each model's own cost. Models may be correlated, because only one of them is released (Theorems 5.1 and
5.2). The weights that keep a budget are a union of half-spaces: one by privacy loss, ``sum of w_i delta_i(epsilon) <=
delta``, and one for every Rényi order a, ``sum of w_i E[X_i^a] <= exp((a - 1) epsilon')``. Both are written as ``costs
@ w <= 1`` below.

**Linear combination**: the weighted sum of several models is released. It costs as much as the release of all the
models that were considered (Theorem 6.1), and the models must have independent noise. Post-processing of such a release
is free, so weights may follow from the models.

:mod:`fedamp.extensions.merging.merge` calls :func:`select` and :func:`combine`.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedamp.accounting import Bounds, Compose, Mechanism, RandomSelection
from fedamp.accounting.arithmetic import Array
from fedamp.accounting.bounds import Method, Origin, log_deltas, search_orders
from fedamp.errors import RunFolderError
from fedamp.extensions.merging.candidates import MergeCandidates, MergeError
from fedamp.runs.total import check_independent

Weights = tuple[float, ...]
WeightRank = Callable[[Weights], Any]  # to maximise: linear or lexicographic, so that a vertex attains the maximum

RANDOM_SELECTION, _ = METHODS = ("random-selection", "linear-combination")
FIXED_WEIGHTS = "The weights (or the utility that they maximise) were given without looking at the trained models."
INDEPENDENT_NOISE = "The inputs' noise and hidden assignments are independent of one another."
ONE_DRAW = "The model was drawn once, and no draw was discarded."
BY_PRIVACY_LOSS, BY_RENYI = "privacy loss", "Rényi divergences"

_MOST_CONSIDERED = 8  # 255 sets of models
_COMPARED = 300  # points of laws for a comparison with a budget; fewer cost a bit more
_STEPS = {2: 50, 3: 20, 4: 9, 5: 6, 6: 5}  # of each weight, so that a grid has at most about 230 points
# Rounding: the second model is drawn this much less often than a half-space allows. The first margin that keeps the
# budget is taken.
_MARGINS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 1.0)
_RAISES = 2  # how often the weight of a model grows to what the accountant allows beyond the theorem
_ORDERS = search_orders(256)


@dataclass(frozen=True)
class MergeRequest:
    """A request to merge two or more models, each ``RUN`` or ``RUN@ROUND``, within a budget.

    Attributes:
        models: as the user gave them.
        method: ``random-selection`` or ``linear-combination``.
        epsilon: budget, above 0.
        delta: budget, in (0, 1).
        weights: given weights, made exact; None: chosen.
        utility: for random selection, a number for each model; the weights maximise its expected value. None: the
            weights prefer models with less privacy.
        seed: of the draw; None: from the operating system.

    Raises:
        MergeError: one line that names the option and the expected value.
    """

    models: tuple[str, ...]
    method: str
    epsilon: float
    delta: float
    weights: Weights | None = None
    utility: tuple[float, ...] | None = None
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
            if numbers is not None and len(numbers) != len(self.models):
                raise MergeError(f"--{name}: {len(numbers)} numbers for {len(self.models)} models; expected: one each")
            if not all(map(math.isfinite, numbers or ())):
                raise MergeError(f"--{name}: expected: finite numbers")
        if self.weights is not None:
            if min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-9:
                raise MergeError("--weights: expected: numbers >= 0 that sum to 1")
            object.__setattr__(self, "weights", exact(self.weights))
        if self.utility is not None and self.method != RANDOM_SELECTION:
            raise MergeError(f"--utility: expected: only with --method {RANDOM_SELECTION}")
        if self.seed is not None and self.seed < 0:
            raise MergeError(f"seed {self.seed}: expected: a whole number >= 0")


class ChosenWeights(NamedTuple):
    """Weights within the budget, in the order of the models.

    Attributes:
        weights: at least 0.
        mechanism: accounting expression of the release.
        epsilon: cost of the release.
        chosen_by: the origin of the weights, for a reader.
        assumptions: of the cost, beyond those of the inputs' ledgers.
        best: the best weights by each accounting (random selection).
    """

    weights: Weights
    mechanism: Mechanism
    epsilon: Bounds
    chosen_by: str
    assumptions: tuple[str, ...]
    best: dict[str, Weights]


def exact(weights: Sequence[float]) -> Weights:
    """Round weights to whole multiples of 2**-53 whose sum is exactly 1.

    The result is the one distribution that is charged and drawn. Float64 holds such weights without rounding. They are
    rounded down, and the largest gets the rest; 0 stays 0.

    >>> sum(exact([0.1, 0.2, 0.7])), exact([1, 3])
    (1.0, (0.25, 0.75))
    """
    total = sum(map(Fraction, weights))
    shares = [math.floor(Fraction(weight) / total * 2**53) for weight in weights]
    shares[shares.index(max(shares))] += 2**53 - sum(shares)
    return tuple(share * 2.0**-53 for share in shares)


def numbers_of(option: str, text: str | None) -> tuple[float, ...] | None:
    """Read the numbers of an option of the command line: ``0.3,0.7``.

    Raises:
        MergeError: one of them is no number.
    """
    try:
        return None if text is None else tuple(float(number) for number in text.split(","))
    except ValueError:
        raise MergeError(f"--{option} {text}: expected: a number for each model such as 0.3,0.7") from None


def select(request: MergeRequest, candidates: MergeCandidates) -> ChosenWeights:
    """Choose the weights of a random selection.

    Raises:
        MergeError: no weights are within the budget.
    """
    mechanisms, best, delta, utility = candidates.mechanisms, dict[str, Weights](), request.delta, request.utility
    assumptions: tuple[str, ...] = (ONE_DRAW, FIXED_WEIGHTS)
    if request.weights is not None:
        weights, chosen_by = request.weights, "given"
    else:
        rank: WeightRank
        if utility is not None:
            rank, chosen_by = partial(np.dot, utility), f"largest expected utility of {list(utility)}"
        else:
            rank, chosen_by = least_private_first(mechanisms, delta), "least private model first"
            assumptions = (ONE_DRAW,)
        best = best_weights(mechanisms, rank, request.epsilon, delta)
        if not best:
            cheapest = min(part.epsilon(delta).upper for part in mechanisms)
            raise MergeError(
                f"no weights keep epsilon <= {request.epsilon:g} at delta = {delta:g}; "
                f"the most private model alone costs {cheapest:.4g}"
            )
        weights = _raised_weights(mechanisms, max(best.values(), key=rank), request.epsilon, delta)
    mechanism, cost = RandomSelection(mechanisms, weights), selection_epsilon(mechanisms, weights, delta)
    return ChosenWeights(tuple(mechanism.weights), mechanism, cost, chosen_by, assumptions, best)


def least_private_first(mechanisms: Sequence[Mechanism], delta: float) -> WeightRank:
    """Make the rank that keeps probability away from the most private model first, then from the next one, and so on.

    It depends on the mechanisms alone, not on the data. Less noise is usually more accurate.
    """
    order = np.argsort([part.epsilon(delta).upper for part in mechanisms], kind="stable")
    return lambda weights: tuple(-round(weights[index], 12) for index in order)


def selection_epsilon(mechanisms: Sequence[Mechanism], weights: Sequence[float], delta: float) -> Bounds:
    """Charge a random selection: the accountant's bracket, with the upper end of Theorem 5.2 where that is smaller.

    Theorem 5.2 uses the tightest bound of each model: an exact law of one, Rényi divergences of another. A model
    without privacy costs all of its weight in delta, for every epsilon.
    """
    used = [(part, weight) for part, weight in zip(mechanisms, weights, strict=True) if weight > 0]
    if len(used) == 1:
        return used[0][0].epsilon(delta)
    cost = RandomSelection(mechanisms, weights).epsilon(delta)

    def fits(epsilon: float) -> bool:
        spent = math.fsum(weight * part.delta(epsilon).upper for part, weight in used)
        return spent * (1 + 2**-51) <= delta  # products and sum are rounded, by 2**-53 each

    if math.isinf(cost.upper) or not fits(cost.upper):
        return cost
    low, high = cost.lower, cost.upper
    while high - low > 1e-10 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return Bounds(min(cost.lower, high), high, Origin(Method.SELECTION, (BY_PRIVACY_LOSS,)))


def best_weights(mechanisms: Sequence[Mechanism], rank: WeightRank, epsilon: float, delta: float) -> dict[str, Weights]:
    """Find the weights of the highest rank by each accounting; an accounting without weights in the budget has none.

    Args:
        mechanisms: the cost of each model's release; ``NotPrivate`` for a model without privacy.
        rank: of weights, to maximise; it is linear or lexicographic, so that a vertex attains the maximum.
        epsilon, delta: budget.

    Returns:
        Exact weights, by the name of the accounting.
    """
    models, best = len(mechanisms), {}
    for name, by in ((BY_PRIVACY_LOSS, _costs_by_privacy_loss), (BY_RENYI, _costs_by_renyi)):
        edges = [edge for costs in by(mechanisms, epsilon, delta) for edge in _budget_corners(costs)]
        if edges:
            first, second, share = max(edges, key=lambda edge: rank(_weights_of_pair(models, *edge)))
            tried = (_weights_of_pair(models, first, second, share * (1 - margin)) for margin in _MARGINS)
            best[name] = next(row for row in tried if selection_epsilon(mechanisms, row, delta).upper <= epsilon)
    return best


def _raised_weights(mechanisms: Sequence[Mechanism], weights: Weights, epsilon: float, delta: float) -> Weights:
    """Raise the weight of the second of two models where the accountant charges less than Theorems 5.1 and 5.2.

    It grows as Theorem 5.2's own would from the epsilon that is really spent to the budget.
    """
    used = sorted(
        (index for index, weight in enumerate(weights) if weight),
        key=lambda index: mechanisms[index].epsilon(delta).upper,
    )
    if len(used) != 2:
        return weights
    pair, cost = [mechanisms[index] for index in used], selection_epsilon(mechanisms, weights, delta).upper
    for _ in range(_RAISES):
        (low,), (high,) = (_costs_by_privacy_loss(pair, at, delta) for at in (cost, epsilon))
        if not high[0] < high[1] or not low[0] < min(low[1], 1.0):
            break
        grown = (1 - high[0]) / (high[1] - high[0]) * (low[1] - low[0]) / (1 - low[0])
        share = float(weights[used[1]]) * 0.999 * grown  # the rest is for what the theorem does not tell
        raised = _weights_of_pair(len(weights), used[0], used[1], min(1.0, share))
        if share <= weights[used[1]] or (cost := selection_epsilon(mechanisms, raised, delta).upper) > epsilon:
            break
        weights = raised
    return weights


def _costs_by_privacy_loss(mechanisms: Sequence[Mechanism], epsilon: float, delta: float) -> Array:
    """Compute the half-space by privacy loss (Theorem 5.2), float64 [1, models]."""
    costs = np.array([part.delta(epsilon).upper / delta for part in mechanisms])
    # Epsilon and delta are inverse only up to rounding; a model that just keeps the budget must stay in it.
    alone = np.array([part.epsilon(delta).upper <= epsilon for part in mechanisms])
    return np.where(alone, np.minimum(costs, 1.0), np.maximum(costs, np.nextafter(1.0, 2.0)))[None]


def _costs_by_renyi(mechanisms: Sequence[Mechanism], epsilon: float, delta: float) -> Array:
    """Compute the half-spaces by Rényi orders (Theorem 5.1), float64 [orders, models]."""
    logs = np.stack([log_deltas(_ORDERS, part.rdp(_ORDERS), epsilon) for part in mechanisms], axis=1)
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(logs - math.log(delta)))


def _budget_corners(costs: Array) -> Iterator[tuple[int, int, float]]:
    """Yield the corners of {w on the simplex: costs @ w <= 1}: two models, and the weight of the second."""
    for first in np.flatnonzero(costs <= 1):
        yield int(first), int(first), 1.0
        for second in np.flatnonzero(costs > 1):
            yield int(first), int(second), float((1 - costs[first]) / (costs[second] - costs[first]))


def _weights_of_pair(models: int, first: int, second: int, share: float) -> Weights:
    """Make exact weights of two models."""
    weights = np.zeros(models)
    weights[first] = 1 - share
    weights[second] = 1.0 if first == second else share
    return exact(weights.tolist())


def combine(request: MergeRequest, candidates: MergeCandidates) -> ChosenWeights:
    """Choose the weights of a linear combination, charged as the joint release of all models that were considered.

    Raises:
        MergeError: models share their noise, or nothing is within the budget.
    """
    try:
        check_independent([(Path(model.name), model.run.ledger.content()) for model in candidates.models])
    except RunFolderError as error:
        raise MergeError(f"{error}; or --method random-selection") from None
    mechanisms = candidates.mechanisms
    assumptions: tuple[str, ...] = (INDEPENDENT_NOISE,)
    if request.weights is None:
        if not candidates.prepared.evaluate_every:
            raise MergeError("--weights: no public test records choose them; expected: one for each model")
        considered = _affordable_models(mechanisms, request.epsilon, request.delta)
        weights = _most_accurate(candidates, considered)
        names = ", ".join(candidates.models[index].name for index in considered)
        chosen_by = f"best accuracy of {names}, which are charged as released together"
    else:
        weights, chosen_by, assumptions = request.weights, "given", (INDEPENDENT_NOISE, FIXED_WEIGHTS)
        considered = _used_models(weights)
    mechanism = _joint_release(mechanisms, considered)
    cost = mechanism.epsilon(request.delta)
    if len(considered) > 1:  # a sum may hide its parts, so no lower end is known
        cost = Bounds(0.0, cost.upper, cost.origin.used_by(Method.JOINT_RELEASE))
    return ChosenWeights(weights, mechanism, cost, chosen_by, assumptions, {})


def _used_models(weights: Array | Weights) -> tuple[int, ...]:
    """Return the models with a weight above 0."""
    return tuple(np.flatnonzero(weights).tolist())


def _affordable_models(mechanisms: Sequence[Mechanism], epsilon: float, delta: float) -> tuple[int, ...]:
    """Choose the models to consider: the most expensive set whose joint release is within the budget.

    It depends on the mechanisms alone, not on the data.

    Raises:
        MergeError: more than eight models, or none is within the budget.
    """
    if len(mechanisms) > _MOST_CONSIDERED:
        raise MergeError(
            f"{len(mechanisms)} models to choose from; expected: at most {_MOST_CONSIDERED}, or --weights for all"
        )
    alone = [part.epsilon(delta).upper for part in mechanisms]
    within = [index for index, cost in enumerate(alone) if cost <= epsilon]
    if not within:
        raise MergeError(
            f"no model alone keeps epsilon <= {epsilon:g} at delta = {delta:g}; the best costs {min(alone):.4g}"
        )
    costs: dict[tuple[int, ...], float] = {}
    for size in range(len(within), 0, -1):
        for chosen in itertools.combinations(within, size):
            # Releasing more costs no less, so subsets of a set within the budget need no computation.
            if not any(set(chosen) < set(larger) for larger in costs):
                points = None if size == 1 else _COMPARED
                cost = _joint_release(mechanisms, chosen).epsilon(delta, points=points).upper
                if cost <= epsilon:
                    costs[chosen] = cost
    return max(costs, key=lambda chosen: costs[chosen])


def _joint_release(mechanisms: Sequence[Mechanism], chosen: Sequence[int]) -> Mechanism:
    """Return the joint release of several models."""
    return mechanisms[chosen[0]] if len(chosen) == 1 else Compose(tuple(mechanisms[index] for index in chosen))


def _most_accurate(candidates: MergeCandidates, chosen: Sequence[int]) -> Weights:
    """Choose the weights with the best score on the public test set, then the least loss.

    They are on an even grid, corners included. Only the chosen models have weights above 0.
    """
    steps, bars = _STEPS.get(len(chosen), 4), len(chosen) - 1
    places = itertools.combinations(range(steps + bars), bars)
    between = np.array([(-1, *place, steps + bars) for place in places])
    rows = np.zeros((len(between), len(candidates.models)))
    rows[:, list(chosen)] = (np.diff(between, axis=1) - 1) / steps

    def rank(row: Weights) -> tuple[float, float]:
        found = candidates.prepared.evaluate(candidates.combined(row))
        return -found.score, found.loss

    return min((tuple(row) for row in rows.tolist()), key=rank)
