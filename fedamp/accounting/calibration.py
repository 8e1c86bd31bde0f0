"""The least noise, or the best whole number, that keeps a budget."""

import math
from collections.abc import Callable

from fedamp.accounting import checks
from fedamp.accounting.mechanism import Mechanism, upper_epsilon


def calibrate(build: Callable[[float], Mechanism], epsilon: float, delta: float, *, tolerance: float = 1e-4) -> float:
    """Smallest noise multiplier that keeps (epsilon, delta), on the safe side.

    Args:
        build: from a noise multiplier > 0 to a mechanism whose epsilon falls as the noise rises.
        epsilon: > 0.
        delta: in (0, 1).
        tolerance: relative; the answer is at most this much above the smallest one.

    Returns:
        A noise multiplier s with ``build(s).epsilon(delta).upper <= epsilon``.

    Raises:
        ValueError: no noise multiplier up to 1e6 keeps the budget, or 1e-3 already does.
    """
    checks.positive("epsilon", epsilon)
    checks.delta(delta)
    checks.positive("tolerance", tolerance)
    coarse = _search(lambda noise: upper_epsilon(build(noise), delta, 200), epsilon, 1.0, 0.01, first_step=0.7)
    return _search(lambda noise: upper_epsilon(build(noise), delta), epsilon, coarse, tolerance, first_step=0.01)


def _search(
    cost: Callable[[float], float], budget: float, start: float, tolerance: float, *, first_step: float
) -> float:
    """Where a falling cost meets the budget, from the right; in log noise and log cost it is nearly a straight line."""

    def excess(position: float) -> float:
        return math.log(min(max(cost(math.exp(position)), 1e-9), 1e9) / budget)

    ends: dict[bool, tuple[float, float]] = {}  # whether the budget is exceeded: (position, excess)
    position, step = math.log(start), first_step
    while len(ends) < 2:
        value = excess(position)
        ends[value > 0] = position, value
        if position > math.log(1e6):
            raise ValueError(f"epsilon = {budget:g} is not reached by any noise multiplier up to 1e6")
        if position < math.log(1e-3):
            return math.exp(position)
        position, step = position + (step if value > 0 else -step), 2 * step
    (low, low_value), (high, high_value) = ends[True], ends[False]
    for turn in range(100):
        if high - low <= tolerance:
            break
        # The root of the line through both ends, a little to the right so that it is on the safe side; the middle now
        # and then.
        slope = (high_value - low_value) / (high - low)
        guess = high - high_value / slope + 0.2 * tolerance if turn % 4 < 3 and low_value < 20 else (low + high) / 2
        position = min(max(guess, low + 0.3 * tolerance), high - 0.3 * tolerance)
        value = excess(position)
        if value > 0:
            low, low_value = position, value
        else:
            high, high_value = position, value
    return math.exp(high)


def calibrate_count(
    build: Callable[[int], Mechanism], epsilon: float, delta: float, *, smallest: int = 1, largest: int
) -> int:
    """The whole number (rounds a person takes part in, rounds in all, submodels) at which a budget is just kept.

    Args:
        build: from a whole number to a mechanism whose epsilon only rises, or only falls, with it.
        epsilon: > 0.
        delta: in (0, 1).
        smallest: first number to consider.
        largest: last number to consider.

    Returns:
        The largest number that keeps the budget if epsilon rises with it; the smallest one if it falls.

    Raises:
        ValueError: no number in the range keeps the budget.
    """
    checks.positive("epsilon", epsilon)
    checks.delta(delta)
    checks.count("largest", largest, checks.count("smallest", smallest, 0))

    def fits(number: int) -> bool:
        return upper_epsilon(build(number), delta) <= epsilon

    good, bad = (smallest, largest) if fits(smallest) else (largest, smallest)
    if good == largest and not fits(largest):
        raise ValueError(f"epsilon = {epsilon:g} is not kept by any number from {smallest} to {largest}")
    if good == smallest and fits(largest):
        rises = upper_epsilon(build(smallest), delta) <= upper_epsilon(build(largest), delta)
        return largest if rises else smallest
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good
