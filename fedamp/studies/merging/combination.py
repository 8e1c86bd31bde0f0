"""Linear combination: the weighted sum of several models is released.

It costs as much as the release of all the models that were considered (Yin, Zaheer, Li 2026, Theorem 6.1), and the
models must have independent noise. Post-processing of such a release is free, so weights may follow from the models.
The paper's cheaper charge per step (Theorems 6.2 and 6.4) holds if gradients do not depend on the models.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from fedamp.accounting import FIXED_GRADIENTS, Bounds, Compose, LinearCombination, Mechanism
from fedamp.errors import MergeError
from fedamp.studies.merging.candidates import Candidate, Candidates
from fedamp.studies.merging.decision import FIXED_WEIGHTS, Array, Decision, MergeRequest, Weights

INDEPENDENT_NOISE = "The inputs' noise and hidden assignments are independent of one another."
DATA_INDEPENDENT_GRADIENTS = (
    "No update depends on the model that it starts from (--assume-data-independent-gradients), as with one step or "
    "mean estimation; otherwise epsilon is wrong."
)

_MOST_CONSIDERED = 8  # 255 sets of models
_COMPARED, _DRAWN = 300, 200  # points of laws for a comparison with a budget, and for a picture; fewer cost a bit more
_STEPS = {2: 50, 3: 20, 4: 9, 5: 6, 6: 5}  # of each weight, so that a grid has at most about 230 points


def combine(request: MergeRequest, candidates: Candidates) -> Decision:
    """The weights of a linear combination.

    Raises:
        MergeError: models share their noise, nothing is within the budget, or the charge per step does not apply.
    """
    for first, second in itertools.combinations(candidates.models, 2):
        if first.shares_noise_with(second):
            raise MergeError(
                f"{first.name} and {second.name} draw their noise from the same seed, so a combination can cancel it; "
                "expected: runs with independent noise (without --known-seed), or --method random-selection"
            )
    return _per_step(request, candidates) if request.data_independent_gradients else _jointly(request, candidates)


def _jointly(request: MergeRequest, candidates: Candidates) -> Decision:
    """Charged as the joint release of all the models that were considered."""
    mechanisms = candidates.mechanisms
    assumptions: tuple[str, ...] = (INDEPENDENT_NOISE,)
    if request.weights is None:
        if not candidates.prepared.evaluate_every:
            raise MergeError("--weights: no public test records choose them; expected: one for each model")
        considered = _affordable(mechanisms, request.epsilon, request.delta)
        weights = _most_accurate(candidates, considered)
        names = ", ".join(candidates.models[index].name for index in considered)
        chosen_by = f"best accuracy of {names}, which are charged as released together"
    else:
        weights, chosen_by, assumptions = request.weights, "given", (INDEPENDENT_NOISE, FIXED_WEIGHTS)
        considered = _used(weights)
    mechanism = _together(mechanisms, considered)
    cost = mechanism.epsilon(request.delta)
    if len(considered) > 1:  # a sum may hide its parts, so no lower end is known
        cost = Bounds(0.0, cost.upper, f"joint release, {cost.method}")

    def epsilons(grid: Array) -> Array:
        rows = [_used(row) for row in grid]
        costs = {some: _together(mechanisms, some).epsilon(request.delta, points=_DRAWN).upper for some in set(rows)}
        return np.array([costs[some] for some in rows])

    return Decision(weights, mechanism, cost, chosen_by, assumptions, epsilons, {})


def _used(weights: Array | Weights) -> tuple[int, ...]:
    """The models with a weight above 0."""
    return tuple(np.flatnonzero(weights).tolist())


def _affordable(mechanisms: Sequence[Mechanism], epsilon: float, delta: float) -> tuple[int, ...]:
    """The models to consider: the most expensive set whose joint release is within the budget.

    It depends on the mechanisms alone, not on the data.
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
                cost = _together(mechanisms, chosen).epsilon(delta, points=points).upper
                if cost <= epsilon:
                    costs[chosen] = cost
    return max(costs, key=lambda chosen: costs[chosen])


def _together(mechanisms: Sequence[Mechanism], chosen: Sequence[int]) -> Mechanism:
    """The joint release of several models."""
    return mechanisms[chosen[0]] if len(chosen) == 1 else Compose(tuple(mechanisms[index] for index in chosen))


def _per_step(request: MergeRequest, candidates: Candidates) -> Decision:
    """The paper's charge per step, under the assumption that gradients do not depend on the models."""
    assert request.weights is not None, "checked by the request"
    models = candidates.models
    mechanism = _step_by_step(models, request.weights)

    def epsilons(grid: Array) -> Array:
        return np.array([_step_by_step(models, row).epsilon(request.delta, points=_DRAWN).upper for row in grid])

    assumptions = (INDEPENDENT_NOISE, DATA_INDEPENDENT_GRADIENTS, FIXED_WEIGHTS)
    return Decision(request.weights, mechanism, mechanism.epsilon(request.delta), "given", assumptions, epsilons, {})


def _step_by_step(models: Sequence[Candidate], weights: Sequence[float]) -> LinearCombination:
    """The charge per step of one combination; a MergeError for models that are not plain private averages."""
    option, momentum = "--assume-data-independent-gradients", models[0].run.scenario.server.momentum
    scales = []
    for model in models:
        server, clipping = model.run.scenario.server, model.run.plan.clipping
        # A step enters the merged model with the learning rate times a factor that momentum gives it. All models must
        # have this factor in common. Adam's steps are not sums of updates, and mixed models not sums of fixed ones.
        plain = server.optimizer == "sgd" and not server.averaging and model.run.scenario.mixing is None
        if not (plain and clipping.is_fixed and model.mechanism.is_private):
            raise MergeError(
                f"{model.name}: {option} needs noise, server.optimizer sgd without averaging, a fixed clipping norm "
                "and no mixing"
            )
        if server.momentum != momentum:
            raise MergeError(
                f"{model.name}: {option} needs one server.momentum for all models, got {server.momentum:g} "
                f"and {momentum:g}"
            )
        part = model.run.plan.parts[0]
        scales.append(server.learning_rate * part.clip / part.denominator)  # how far a unit moves it in a step
    try:
        return LinearCombination([model.mechanism for model in models], list(weights), FIXED_GRADIENTS, scales)
    except ValueError as error:
        raise MergeError(f"{option}: {error}") from None


def _most_accurate(candidates: Candidates, chosen: Sequence[int]) -> Weights:
    """The weights with the best score on the public test set, then the least loss; on an even grid, corners included.

    Only the chosen models have weights above 0.
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
