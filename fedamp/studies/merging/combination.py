"""Linear combination: the weighted sum of several models is released.

Its cost is that of releasing all the models that were considered (Yin, Zaheer, Li 2026, Theorem 6.1), which needs
models with independent noise. Everything computed from such a release is free, so weights may be chosen by looking at
the models. The paper's cheaper charge per step (Theorems 6.2 and 6.4) holds where gradients do not depend on the
models, and must be asked for by that assumption.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from fedamp.accounting import FIXED_GRADIENTS, Bounds, Compose, LinearCombination, Mechanism
from fedamp.errors import MergeError
from fedamp.studies.merging import decision
from fedamp.studies.merging.candidates import Candidate, Candidates
from fedamp.studies.merging.decision import Array, Decision, MergeRequest, Weights

INDEPENDENT_NOISE = "The inputs' noise and hidden assignments are independent of one another."
DATA_INDEPENDENT_GRADIENTS = (
    "No update depends on the model that it starts from (--assume-data-independent-gradients), as with one step or "
    "mean estimation; where that is wrong, so is epsilon."
)

_MOST_CONSIDERED = 8  # 255 sets of models
_COMPARED, _DRAWN = 300, 200  # points of laws that are compared with a budget, or drawn; fewer cost a bit more
_STEPS = {2: 50, 3: 20, 4: 9, 5: 6, 6: 5}  # of each weight, so that a grid has about 230 points at most


def combine(request: MergeRequest, candidates: Candidates) -> Decision:
    """The weights of a linear combination.

    Raises:
        MergeError: models share their noise; nothing is within the budget; or an assumption was not made.
    """
    for first, second in itertools.combinations(candidates.models, 2):
        if first.shares_noise_with(second):
            raise MergeError(
                f"{first.name} and {second.name} draw their noise from the same seed, so that a combination can cancel "
                "it; expected: runs with noise of their own (without --known-seed), or --method random-selection"
            )
    if request.utility not in (None, decision.ACCURACY):
        raise MergeError("--utility: accepted with --method linear-combination: accuracy, or --weights instead")
    return _per_step(request, candidates) if request.data_independent_gradients else _jointly(request, candidates)


def _jointly(request: MergeRequest, candidates: Candidates) -> Decision:
    """Charged as the release of all the models that were considered."""
    mechanisms = candidates.mechanisms
    fixed: tuple[str, ...] = ()
    if request.weights is None:
        # Whatever is computed from the release of all the models considered is free, the choice of weights too.
        considered = affordable(mechanisms, request.epsilon, request.delta)
        weights = _most_accurate(candidates, considered)[0]
        names = ", ".join(candidates.models[index].name for index in considered)
        chosen_by = f"best accuracy of {names}, which are charged as released together"
    else:
        weights, chosen_by, fixed = request.weights, "given", (decision.FIXED_WEIGHTS,)
        considered = tuple(np.flatnonzero(weights).tolist())
    mechanism = _together(mechanisms, considered)
    cost = mechanism.epsilon(request.delta)
    if len(considered) > 1:  # a sum may hide its parts, so that no lower end is known
        cost = Bounds(0.0, cost.upper, f"joint release, {cost.method}")

    def epsilons(grid: Array) -> Array:
        used = [tuple(np.flatnonzero(row).tolist()) for row in grid]
        costs = {some: _together(mechanisms, some).epsilon(request.delta, points=_DRAWN).upper for some in set(used)}
        return np.array([costs[some] for some in used])

    return Decision(weights, mechanism, cost, chosen_by, (INDEPENDENT_NOISE, *fixed), epsilons, {})


def affordable(mechanisms: Sequence[Mechanism], epsilon: float, delta: float) -> tuple[int, ...]:
    """The models that are considered: of the sets that can be released together within the budget, the one that costs
    most. It depends on the mechanisms alone, not on the data.

    Raises:
        MergeError: if not even one model is within the budget, or there are too many.
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
            # Releasing more costs no less, so what is inside a set that is within the budget need not be computed.
            if not any(set(chosen) < set(larger) for larger in costs):
                points = None if size == 1 else _COMPARED
                cost = _together(mechanisms, chosen).epsilon(delta, points=points).upper
                if cost <= epsilon:
                    costs[chosen] = cost
    return max(costs, key=lambda chosen: costs[chosen])


def _together(mechanisms: Sequence[Mechanism], chosen: Sequence[int]) -> Mechanism:
    """The release of several of the models."""
    return mechanisms[chosen[0]] if len(chosen) == 1 else Compose(tuple(mechanisms[index] for index in chosen))


def _per_step(request: MergeRequest, candidates: Candidates) -> Decision:
    """The paper's charge per step, under the assumption that gradients do not depend on the models."""
    models, rows = candidates.models, [request.weights] if request.weights else []
    chosen_by, fixed = "given", decision.FIXED_WEIGHTS
    _step_by_step(models, [1 / len(models)] * len(models))  # refused before anything long is done
    if not rows:
        request.check_public_accuracies()
        rows = _most_accurate(candidates, range(len(models)))
        chosen_by, fixed = "best accuracy within the budget", decision.PUBLIC_ACCURACIES
    for weights in rows:
        mechanism = _step_by_step(models, weights)
        cost = mechanism.epsilon(request.delta)
        if cost.upper <= request.epsilon:
            break

    def epsilons(grid: Array) -> Array:
        return np.array([_step_by_step(models, row).epsilon(request.delta, points=_DRAWN).upper for row in grid])

    assumptions = (INDEPENDENT_NOISE, DATA_INDEPENDENT_GRADIENTS, fixed)
    return Decision(weights, mechanism, cost, chosen_by, assumptions, epsilons, {})


def _step_by_step(models: Sequence[Candidate], weights: Sequence[float]) -> LinearCombination:
    """The charge per step of one combination.

    Raises:
        MergeError: for models to which it does not apply; only plain private averaging has such steps.
    """
    option, momentum = "--assume-data-independent-gradients", models[0].run.scenario.server.momentum
    scales = []
    for model in models:
        asked, part = model.run.scenario, model.run.plan.parts[0]
        # A step enters the merged model with the learning rate times a factor that momentum gives it, which must be the
        # models' in common; Adam's steps are no sums of updates, and mixed models none of fixed ones.
        server = asked.server
        steps_alone = server.optimizer == "sgd" and not server.averaging
        plain = steps_alone and asked.mixing is None and model.run.plan.clipping.is_fixed
        if not plain or not model.mechanism.is_private:
            raise MergeError(
                f"{model.name}: {option} needs noise, server.optimizer sgd without averaging, a fixed clipping norm "
                "and no mixing"
            )
        if asked.server.momentum != momentum:
            raise MergeError(
                f"{model.name}: {option} needs one server.momentum for all models, got {asked.server.momentum:g} "
                f"and {momentum:g}"
            )
        scales.append(asked.server.learning_rate * part.clip / part.denominator)  # how far a unit moves it in a step
    try:
        return LinearCombination([model.mechanism for model in models], list(weights), FIXED_GRADIENTS, scales)
    except ValueError as error:
        raise MergeError(f"{option}: {error}") from None


def _most_accurate(candidates: Candidates, chosen: Sequence[int]) -> list[Weights]:
    """Weights over the chosen models on a grid: those of the most accurate combination on the public test set first."""
    grid = simplex(len(chosen))
    rows = np.zeros((len(grid), len(candidates.models)))
    rows[:, list(chosen)] = grid

    def rank(row: Weights) -> tuple[float, float]:
        found = candidates.prepared.evaluate(candidates.combined(row))
        return -found.score, found.loss

    return sorted((tuple(row) for row in rows.tolist()), key=rank)


def simplex(models: int) -> Array:
    """Weights on an even grid, corners included; shape (points, models)."""
    steps = _STEPS.get(models, 4)
    corners = itertools.combinations(range(steps + models - 1), models - 1)
    bars = np.array([(-1, *corner, steps + models - 1) for corner in corners])
    return np.asarray((np.diff(bars, axis=1) - 1) / steps)
