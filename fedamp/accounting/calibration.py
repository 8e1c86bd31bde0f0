"""The least noise, or the best whole number, that keeps a budget."""

import math
from collections.abc import Callable

from fedamp.accounting import checks, renyi
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.renyi import HIGHEST_ORDER


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
    orders = renyi.search_orders(HIGHEST_ORDER)

    def by_renyi(noise: float) -> float:
        return renyi.best_epsilon(orders, build(noise).rdp(orders), delta).value

    start = _search(by_renyi, epsilon, 1.0, 0.05, required=False)
    return _search(lambda noise: build(noise).epsilon(delta).upper, epsilon, start, tolerance, required=True)


def _search(cost: Callable[[float], float], budget: float, start: float, tolerance: float, *, required: bool) -> float:
    """Where a falling cost meets the budget, from the right; in log noise and log cost the two are nearly a straight
    line.
    """

    def excess(position: float) -> float:
        return math.log(min(max(cost(math.exp(position)), 1e-9), 1e9) / budget)

    high, high_value, low, low_value = math.log(start), excess(math.log(start)), math.nan, math.nan
    step = 0.02 if required else 0.7
    while math.isnan(low) or high_value > 0:
        if high_value > 0:
            low, low_value, high = high, high_value, high + step
            if high > math.log(1e6):
                if required:
                    raise ValueError(f"epsilon = {budget:g} is not reached by any noise multiplier up to 1e6")
                return 1.0
            high_value = excess(high)
        else:
            position = (high if math.isnan(low) else low) - step
            if position < math.log(1e-3):
                return math.exp(high)
            value = excess(position)
            if value > 0:
                low, low_value = position, value
            else:
                high, high_value = position, value
        step *= 2
    for _ in range(60):
        if high - low <= tolerance:
            break
        # The line's root, kept off the ends so that both of them move.
        slope = (high_value - low_value) / (high - low)
        guess = high - high_value / slope + 0.3 * tolerance
        if high_value > -1e-12 or low_value > 20:
            guess = (low + high) / 2
        position = min(max(guess, low + 0.05 * tolerance), high - 0.4 * tolerance)
        value = excess(position)
        if value > 0:
            low, low_value = position, value
            high_value *= 0.9
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
    checks.count("largest", largest, checks.count("smallest", smallest, 0))

    def fits(number: int) -> bool:
        return build(number).epsilon(delta).upper <= epsilon

    good, bad = (smallest, largest) if fits(smallest) else (largest, smallest)
    if good == largest and not fits(largest):
        raise ValueError(f"epsilon = {epsilon:g} is not kept by any number from {smallest} to {largest}")
    if good == smallest and fits(largest):
        rises = build(smallest).epsilon(delta).upper <= build(largest).epsilon(delta).upper
        return largest if rises else smallest
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good
