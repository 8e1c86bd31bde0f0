"""The least noise of a run with hidden rounds that the sampled evaluator certifies for a budget."""

import math
from collections.abc import Callable
from functools import partial

from fedamp.accounting.points import NotEvaluable
from fedamp.accounting.sampled import QUESTIONS, SampledProfile
from fedamp.accounting.tilted import Proposal


def calibrate_sampled(
    build: Callable[[float], SampledProfile], certified: Callable[[float], float], epsilon: float, delta: float
) -> float:
    """A noise multiplier that keeps (epsilon, delta), on the safe side of the smallest one by some 0.2 per cent.

    The search gives every candidate the same random numbers; the last candidates are certified, each on draws of its
    own.

    Args:
        build: from a noise multiplier > 0 to the profile with it, whose epsilon falls as the noise rises.
        certified: from a noise multiplier to an upper end of epsilon, half a per cent wide.
        epsilon: > 0.
        delta: in (0, 1).

    Returns:
        s with ``certified(s) <= epsilon``.

    Raises:
        NotEvaluable: as ``SampledProfile.epsilon``, or the add direction decides.
        ValueError: the answer is not between 1e-3 and 1e6.
    """
    near = _solve(lambda noise: build(noise).moment_epsilon(delta), epsilon, 1.0, 0.02)
    for draws, tolerance in ((4096, 5e-3), (32768, 2.5e-4)):
        proposal = build(near).estimate(delta).proposal
        near = _solve(partial(_estimated, build, delta, proposal, draws), epsilon, near, tolerance)
    for attempt in range(QUESTIONS // 2):  # each may sample both directions
        noise = near * (1 + (1.5 + 0.5 * attempt) * 1e-3)
        if certified(noise) <= epsilon:
            return noise
    raise NotEvaluable(f"no noise multiplier near {near:.4g} is certified to keep epsilon = {epsilon:g}")


def _estimated(
    build: Callable[[float], SampledProfile], delta: float, proposal: Proposal, draws: int, noise: float
) -> float:
    return build(noise).estimate(delta, proposal, draws).epsilon


def _solve(cost: Callable[[float], float], budget: float, guess: float, tolerance: float) -> float:
    """Where a falling cost meets the budget; in log noise and log cost it is nearly a straight line."""
    known: dict[bool, tuple[float, float]] = {}  # whether the budget is exceeded: (log noise, log excess)
    position, step = math.log(guess), 2 * tolerance
    while True:
        if not math.log(1e-3) <= position <= math.log(1e6):
            raise ValueError(f"epsilon = {budget:g} is not met by any noise multiplier between 1e-3 and 1e6")
        excess = math.log(max(cost(math.exp(position)), 1e-9) / budget)
        known[excess > 0] = position, excess
        if abs(excess) < tolerance / 2:
            return math.exp(position)
        if len(known) < 2:  # no bracket yet: go where the line of slope -1 says, and ever further
            position += math.copysign(max(step, min(abs(excess), 50 * tolerance)), excess)
            step *= 2
            continue
        (left, above), (right, below) = known[True], known[False]
        if right - left < tolerance:
            return math.exp(right)
        share = min(max(above / (above - below), 0.1), 0.9)
        position = left + share * (right - left)
