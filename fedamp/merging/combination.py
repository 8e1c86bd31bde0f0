"""Linear combination: the weighted sum of several models is released.

Its cost is that of releasing all the models that were considered (Yin, Zaheer, Li 2026, Theorem 6.1), which needs
models with independent noise. Everything computed from such a release is free, so weights may be chosen by looking at
the models. The paper's cheaper charge per step (Theorems 6.2 and 6.4) holds where gradients do not depend on the
models, and must be asked for by that assumption.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedamp import scenario
from fedamp.accounting import FIXED_GRADIENTS, Bounds, Compose, LinearCombination, Mechanism
from fedamp.errors import MergeError
from fedamp.merging.candidates import Candidate

_MOST_CONSIDERED = 8  # 255 sets of models
_POINTS = 300  # of the laws that are only compared with the budget; fewer points cost a little more
_GRID = {2: 50, 3: 20, 4: 9, 5: 6, 6: 5}  # steps of each weight, so that a grid has about 230 points at most


def check_independent(models: Sequence[Candidate]) -> None:
    """Refuse models whose noise is not independent: then neither charge holds.

    Raises:
        MergeError: naming two models whose noise is drawn from one seed.
    """
    for first, second in itertools.combinations(models, 2):
        if first.shares_noise_with(second):
            raise MergeError(
                f"{first.name} and {second.name} draw their noise from the same seed, so that a combination can cancel "
                "it; accepted: runs with noise of their own (fedamp run --secret-seed), or --method random-selection"
            )


def affordable(mechanisms: Sequence[Mechanism], epsilon: float, delta: float) -> tuple[int, ...]:
    """The models that are considered: the dearest set that can be released together within the budget.

    It depends on the mechanisms alone, not on the data.

    Raises:
        MergeError: if not even one model is within the budget, or there are too many.
    """
    if len(mechanisms) > _MOST_CONSIDERED:
        raise MergeError(
            f"{len(mechanisms)} models to choose from; accepted: at most {_MOST_CONSIDERED}, or --weights for all"
        )
    alone = {index: part.epsilon(delta).upper for index, part in enumerate(mechanisms)}
    within = [index for index in alone if alone[index] <= epsilon]
    if not within:
        cheapest = min(alone.values())
        raise MergeError(
            f"no model alone keeps epsilon <= {epsilon:g} at delta = {delta:g}; the best costs {cheapest:.4g}"
        )
    sets = [chosen for size in range(len(within), 0, -1) for chosen in itertools.combinations(within, size)]
    cost: dict[tuple[int, ...], float] = {}
    for chosen in sets:
        # Releasing more costs no less, so what is above the budget, or inside a set that is not, need not be computed.
        if any(set(chosen) < set(larger) for larger in cost if cost[larger] <= epsilon):
            continue
        points = None if len(chosen) == 1 else _POINTS
        cost[chosen] = together(mechanisms, chosen).epsilon(delta, points=points).upper
    return max((chosen for chosen in cost if cost[chosen] <= epsilon), key=lambda chosen: cost[chosen])


def together(mechanisms: Sequence[Mechanism], chosen: Sequence[int]) -> Mechanism:
    """The release of several of the models."""
    return mechanisms[chosen[0]] if len(chosen) == 1 else Compose(tuple(mechanisms[index] for index in chosen))


def joint_epsilon(mechanism: Mechanism, models: int, delta: float) -> Bounds:
    """What a combination of so many models costs; it may hide its parts, so that no lower end is known."""
    cost = mechanism.epsilon(delta)
    return cost if models == 1 else Bounds(0.0, cost.upper, f"joint release, {cost.method}")


def per_step(models: Sequence[Candidate], weights: Sequence[float]) -> Mechanism:
    """The paper's charge per step, under the assumption that gradients do not depend on the models.

    Raises:
        MergeError: for models to which it does not apply; only plain private averaging has such steps.
    """
    for model in models:
        _check_steps(model, models[0])
    try:
        return LinearCombination(
            tuple(model.mechanism for model in models), tuple(weights), FIXED_GRADIENTS, [_scale(m) for m in models]
        )
    except ValueError as error:
        raise MergeError(f"--assume-data-independent-gradients: {error}") from None


def _check_steps(model: Candidate, first: Candidate) -> None:
    server, mixing = model.run.scenario.server, model.run.scenario.mixing
    adaptive = isinstance(model.run.scenario.privacy.clip, scenario.AdaptiveClip)
    # A step enters the merged model with the learning rate times a factor that momentum gives it, which must be the
    # models' in common; Adam's steps are no sums of updates, and mixed models none of fixed ones.
    if server.optimizer != "sgd" or mixing is not None or adaptive or not model.mechanism.is_private:
        raise MergeError(
            f"{model.name}: --assume-data-independent-gradients needs noise, server.optimizer sgd, a fixed clipping "
            "norm and no mixing"
        )
    if server.momentum != first.run.scenario.server.momentum:
        raise MergeError(
            f"{model.name}: --assume-data-independent-gradients needs one server.momentum for all models, got "
            f"{server.momentum:g} and {first.run.scenario.server.momentum:g}"
        )


def _scale(model: Candidate) -> float:
    """How far one unit can move the model in a step."""
    part = model.run.plan.parts[0]
    return model.run.scenario.server.learning_rate * part.clip / part.denominator


def simplex(models: int) -> NDArray[np.float64]:
    """Weights on an even grid, corners included; shape (points, models)."""
    steps = _GRID.get(models, 4)
    corners = itertools.combinations(range(steps + models - 1), models - 1)
    bars = np.array([(-1, *corner, steps + models - 1) for corner in corners])
    return (np.diff(bars, axis=1) - 1) / steps


def most_accurate(
    chosen: Sequence[int], models: int, quality: Callable[[tuple[float, ...]], tuple[float, float]]
) -> list[tuple[float, ...]]:
    """Weights over the chosen models on a grid, best first.

    Args:
        chosen: which models may get weight.
        models: how many there are.
        quality: (accuracy, loss) of the merged model on the public test set.
    """
    grid = simplex(len(chosen))
    spread = np.zeros((len(grid), models))
    spread[:, list(chosen)] = grid
    rows = [tuple(row) for row in spread.tolist()]

    def rank(row: tuple[float, ...]) -> tuple[float, float]:
        accuracy, loss = quality(row)
        return -accuracy, loss

    return sorted(rows, key=rank)


def first_affordable(
    rows: Sequence[tuple[float, ...]], models: Sequence[Candidate], epsilon: float, delta: float
) -> tuple[tuple[float, ...], Bounds]:
    """The first weights whose charge per step is within the budget.

    Raises:
        MergeError: if none is.
    """
    for row in rows:
        cost = per_step(models, row).epsilon(delta)
        if cost.upper <= epsilon:
            return row, cost
    raise MergeError(f"no weights on a grid keep epsilon <= {epsilon:g} at delta = {delta:g}")
