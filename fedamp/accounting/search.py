"""The least noise and the best whole number for a budget."""

import math
from collections.abc import Callable
from itertools import count

import numpy as np

from fedamp.accounting import checks
from fedamp.accounting.answers import is_sampled, law_upper, sampled_profile, upper_epsilon
from fedamp.accounting.bounds import Method, NotEvaluable, in_floating_point
from fedamp.accounting.events import Allocation, Mechanism, Spaced
from fedamp.accounting.risk import trade_off
from fedamp.accounting.sampling import PRECISION, QUESTIONS, pilot_draws
from fedamp.accounting.theorems import normal


def with_a_law(event: Mechanism) -> Mechanism:
    """A mechanism of about the same cost that has a law, for searches to start from."""
    return Allocation(event.mechanism, event.k, -(-event.rounds // event.gap)) if isinstance(event, Spaced) else event


_ATTEMPTS = QUESTIONS // 4
"""The most mechanisms that a search certifies, in both directions. The other certificates are for the curve."""
assert 2 * (_ATTEMPTS + 7) + 1 <= QUESTIONS

_MOST_NOISE = 1e18  # up to where a search looks


def calibrate(
    build: Callable[[float], Mechanism],
    epsilon: float | None = None,
    delta: float | None = None,
    *,
    advantage: float | None = None,
    tpr_at: tuple[float, float] | None = None,
    tolerance: float = 1e-4,
    precision: float = PRECISION,
) -> float:
    """Smallest noise multiplier that keeps (epsilon, delta), or a risk, on the safe side.

    Args:
        build: from a noise multiplier > 0 to a mechanism whose epsilon falls as the noise rises.
        epsilon: > 0.
        delta: in (0, 1).
        advantage, tpr_at: a risk instead of epsilon and delta; see ``calibrate_risk``.
        tolerance: relative; the answer is at most this much above the smallest one.
        precision: of sampling, as in ``Mechanism.epsilon``; the answer is about as much above the smallest one.

    Returns:
        A noise multiplier s with ``build(s).epsilon(delta).upper <= epsilon``; some s < 1e-3 if that is enough.

    Raises:
        ValueError: no noise multiplier up to 1e18 keeps the budget.
    """
    if advantage is not None or tpr_at is not None:
        if epsilon is not None or delta is not None:
            raise ValueError("epsilon and delta, or a risk (advantage or tpr_at), must be given, got both")
        return calibrate_risk(build, advantage=advantage, tpr_at=tpr_at, tolerance=tolerance)
    epsilon, delta = checks.positive("epsilon", epsilon), checks.delta(delta)
    checks.positive("tolerance", tolerance)
    if is_sampled(normal(build(1.0))):
        try:
            with in_floating_point():
                return _calibrate_sampled(
                    lambda noise: normal(build(noise)), epsilon, delta, checks.precision(precision)
                )
        except ValueError:
            pass  # the law has to answer
    goal = f"epsilon = {epsilon:g}"
    coarse = _search(lambda noise: upper_epsilon(normal(build(noise)), delta, 200), epsilon, goal, 1.0, 0.01, 0.7)
    return _search(lambda noise: upper_epsilon(normal(build(noise)), delta), epsilon, goal, coarse, tolerance, 0.01)


def _calibrate_sampled(build: Callable[[float], Mechanism], epsilon: float, delta: float, precision: float) -> float:
    """A noise multiplier some 0.4 ``precision`` above the smallest. All candidates of the search have the same random
    numbers. The last candidates are certified on fresh draws. NotEvaluable, ArithmeticError: no answer by sampling.
    """
    goal = f"epsilon = {epsilon:g}"
    near = _search(lambda noise: law_upper(with_a_law(build(noise)), delta, 200), epsilon, goal, 1.0, 0.02, 0.3)
    first = sampled_profile(build(near))
    first.most_draws(PRECISION / precision)  # or NotEvaluable
    proposal, draws = first.estimate(delta).proposal, 8 * pilot_draws(first.upper)

    def estimated(noise: float, draws: int = 0) -> float:
        return sampled_profile(build(noise)).estimate(delta, proposal, draws).epsilon

    near = _search(estimated, epsilon, goal, near, 5e-3, 0.01)
    # The slope is known well enough from few draws, the height is not. Where epsilon falls to 0 there is no slope.
    slope = math.log(estimated(near * 0.99) / estimated(near)) / -math.log(0.99)
    noise = near * float((estimated(near, draws) / epsilon) ** (1 / slope)) * (1 + 0.3 * precision)
    for _ in range(_ATTEMPTS):
        found = build(noise).epsilon(delta, precision=precision)
        if found.upper <= epsilon:
            return noise
        if found.origin.method is not Method.SAMPLED:
            break  # the law is as good, and quicker
        noise *= max((found.upper / epsilon) ** (1 / slope), 1 + 0.1 * precision)
    raise NotEvaluable(f"no noise multiplier near {near:.4g} is certified to keep epsilon = {epsilon:g}")


def calibrate_risk(
    build: Callable[[float], Mechanism],
    *,
    advantage: float | None = None,
    tpr_at: tuple[float, float] | None = None,
    tolerance: float = 1e-4,
) -> float:
    """Smallest noise multiplier that keeps one risk, on the safe side.

    Args:
        build: from a noise multiplier > 0 to a mechanism whose risks fall as the noise rises.
        advantage: in (0, 1); see :attr:`TradeOff.advantage`.
        tpr_at: a false positive rate and the true positive rate allowed there, 0 < first < second < 1.
        tolerance: relative; the answer is at most this much above the smallest one that ``trade_off`` knows.

    Returns:
        A noise multiplier s with ``trade_off(build(s)).advantage.upper <= advantage``, or with
        ``trade_off(build(s)).true_positive_rate(tpr_at[0])[1] <= tpr_at[1]``; some s < 1e-3 if that is enough.

    Raises:
        ValueError: no noise multiplier up to 1e18 keeps the risk.
    """
    checks.positive("tolerance", tolerance)
    if (advantage is None) == (tpr_at is None):
        raise ValueError("exactly one of advantage and tpr_at must be given")
    if tpr_at is None:
        false, true = 0.0, checks.number("advantage", advantage)
        valid, expected = 0 < true < 1, "advantage must be in (0, 1)"
    else:
        false, true = tpr_at if np.shape(tpr_at) == (2,) else (math.nan, math.nan)
        valid, expected = 0 < false < true < 1, "tpr_at must be two rates, 0 < first < second < 1"
    if not valid:
        raise ValueError(f"{expected}, got {advantage if tpr_at is None else tpr_at!r}")

    def gain(noise: float) -> float:
        """What the best attack gains over guessing."""
        if tpr_at is None:
            return build(noise).delta(0.0).upper
        return float(trade_off(build(noise)).true_positive_rate(false)[1]) - false

    goal = f"advantage = {advantage}" if tpr_at is None else f"tpr_at = {tpr_at}"
    return _search(gain, true - false, goal, 1.0, tolerance, 0.7)


def _search(
    cost: Callable[[float], float], budget: float, goal: str, start: float, tolerance: float, first_step: float
) -> float:
    """The noise at which a falling cost meets the budget, from the right. In logarithms the cost is nearly straight."""

    def excess(position: float) -> float:
        return min(math.log(max(cost(math.exp(position)), 1e-9 * budget)) - math.log(budget), 50.0)

    ends: dict[bool, tuple[float, float]] = {}  # whether the budget is exceeded: (position, excess)
    position, step = math.log(start), first_step
    while len(ends) < 2:
        value = excess(position)
        ends[value > 0] = position, value
        if value > 0 and position >= math.log(_MOST_NOISE):
            raise ValueError(f"{goal} is not reached by any noise multiplier up to {_MOST_NOISE:g}")
        if value <= 0 and position < math.log(1e-3):
            return math.exp(position)
        position, step = min(position + (step if value > 0 else -step), math.log(_MOST_NOISE)), 2 * step
    (low, low_value), (high, high_value) = ends[True], ends[False]
    for turn in range(100):
        if high - low <= tolerance:
            break
        # The root of the line through both ends, a little to the safe side; the middle now and then.
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
    """The last whole number (of a person's rounds, of all rounds, of submodels) that keeps a budget.

    Args:
        build: from a whole number to a mechanism whose epsilon only rises, or only falls, with it.
        epsilon: > 0.
        delta: in (0, 1).
        smallest, largest: the range of numbers.

    Returns:
        The largest number that keeps the budget if epsilon rises with it; the smallest one if it falls.

    Raises:
        ValueError: no number in the range keeps the budget.
    """
    checks.positive("epsilon", epsilon)
    checks.delta(delta)
    checks.count("largest", largest, checks.count("smallest", smallest, 0))

    sampled = count()

    def fits(number: int) -> bool:
        mechanism = build(number)
        if upper_epsilon(mechanism, delta) <= epsilon:
            return True
        ask = is_sampled(mechanism) and next(sampled) < _ATTEMPTS  # then the law decides
        return ask and mechanism.epsilon(delta).upper <= epsilon

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
