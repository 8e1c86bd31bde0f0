"""Questions that take many answers: noise for a budget, the cost after each round, and budgets for many uses.

The functions ask mechanisms for upper ends, many times. They know the evaluators only to save time: the last answer of
a search is certified as any other. A budget for uses that are chosen one after the other (:class:`Budget`) is the last
part; the extension :mod:`fedamp.extensions.population` keeps it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np

from fedamp.accounting.arithmetic import UNIT, Array, delta_left, gaussian_delta, level_crossing
from fedamp.accounting.bounds import (
    EpsilonAt,
    Method,
    NotEvaluable,
    check_count,
    check_delta,
    check_number,
    check_positive,
    check_precision,
    epsilon_of_moment,
    in_floating_point,
    log_delta_of_moment,
    search_orders,
)
from fedamp.accounting.hidden import Allocation
from fedamp.accounting.law import DEFAULT_POINTS, Detail
from fedamp.accounting.mechanism import Fact, Mechanism, in_closed_form, law_upper, normal_form, upper_epsilon
from fedamp.accounting.renyi import HIGHEST_ORDER
from fedamp.accounting.risk import trade_off
from fedamp.accounting.sampling import (
    CHARGE,
    FOR_ZERO,
    PRECISION,
    QUESTIONS,
    STEPS,
    Block,
    Factor,
    Pilot,
    RemoveProposal,
    SampledProfile,
    SampledRun,
    certify_deltas,
    half_width,
    pilot_at_delta,
    pilot_at_epsilon,
    pilot_draws,
    pilots_of_columns,
)

# The least noise, and the best number.


# The most mechanisms that a search certifies, in both directions. The other certificates are for the curve.
_ATTEMPTS = QUESTIONS // 4
assert 2 * (_ATTEMPTS + 7) + 1 <= QUESTIONS

_MOST_NOISE = 1e18  # up to where a search looks
_HEIGHT = 8  # pilots whose draws tell epsilon at the noise that a search ends with, at the default precision


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
    """Find the smallest noise multiplier within a privacy budget, rounded up.

    It is some s with ``build(s).epsilon(delta).upper <= epsilon``, and some s < 1e-3 if that is enough.

    Args:
        build: from a noise multiplier > 0 to a mechanism whose epsilon falls as the noise rises.
        epsilon: > 0.
        delta: in [1e-300, 1): below, tails leave floating point.
        advantage, tpr_at: a risk instead; see :func:`calibrate_risk`.
        tolerance: relative; the answer is at most this much above the smallest one.
        precision: of sampling, that of ``Mechanism.epsilon``; the answer is about as much above the smallest one.

    Returns:
        The noise multiplier, at most 1e18.

    Raises:
        ValueError: no noise multiplier up to 1e18 keeps the budget, or an argument is out of its range.

    Example:
        >>> from fedamp.accounting import Gaussian, Poisson, Repeat
        >>> round(calibrate(lambda noise: Repeat(Poisson(Gaussian(noise), 0.1), 20), 2.0, 1e-5), 3)
        1.362
    """
    if advantage is not None or tpr_at is not None:
        if epsilon is not None or delta is not None:
            raise ValueError("epsilon and delta, or a risk (advantage or tpr_at), must be given, got both")
        return calibrate_risk(build, advantage=advantage, tpr_at=tpr_at, tolerance=tolerance)
    epsilon, delta = check_positive("epsilon", epsilon), check_delta(delta)
    if delta < 1e-300:
        raise ValueError(f"delta must be at least 1e-300, got {delta!r}")
    check_positive("tolerance", tolerance)
    if (first := normal_form(build(1.0))).is_sampled or first.is_pair:
        try:
            with in_floating_point():
                return _calibrate_sampled(
                    lambda noise: normal_form(build(noise)), epsilon, delta, check_precision(precision)
                )
        except ValueError:
            pass  # the law has to answer
    goal = f"epsilon = {epsilon:g}"

    def coarse_epsilon(noise: float) -> float:
        return upper_epsilon(normal_form(build(noise)), delta, 200)

    coarse = _search_noise(coarse_epsilon, epsilon, goal, 1.0, 0.01, 0.7)
    if Fact.LESS_REPEATED not in first.facts:
        return _search_noise(
            lambda noise: upper_epsilon(normal_form(build(noise)), delta), epsilon, goal, coarse, tolerance, 0.01
        )

    @cache
    def whole_answer(noise: float) -> float:
        return build(noise).epsilon(delta).upper

    looks = count()

    def near_answer(noise: float) -> float:  # at first that of a coarse law, which leads to the noise as well
        quick = next(looks) < 2
        found = build(noise).epsilon(delta, points=300, precision=PRECISION).upper if quick else whole_answer(noise)
        return found * (1 + 0.3 * tolerance)

    here, there = (_cost_excess(coarse_epsilon, epsilon, math.log(coarse) + each) for each in (0.0, 0.05))
    slope = min((there - here) / 0.05, -1.0)
    near = _near_noise(near_answer, epsilon, goal, coarse, 0.2 * tolerance, slope)
    if 1 - tolerance / 2 <= whole_answer(near) / epsilon <= 1:
        return near
    return _search_noise(whole_answer, epsilon, goal, near, tolerance, 2 * tolerance)


def _calibrate_sampled(build: Callable[[float], Mechanism], epsilon: float, delta: float, precision: float) -> float:
    """Return a noise multiplier some 0.4 ``precision`` above the smallest, by sampling.

    All candidates of the search have the same random numbers. The last candidates are certified on fresh draws.

    Raises:
        NotEvaluable, ArithmeticError: sampling has no answer.
    """
    goal, asked = f"epsilon = {epsilon:g}", precision

    def by_law(noise: float) -> float:
        return law_upper(build(noise).like_with_law(), delta, 200)

    near = _near_noise(by_law, epsilon, goal, 1.0, 0.02)
    first = build(near).sampled_profile()
    first.most_draws(PRECISION / precision)  # or NotEvaluable
    proposal = first.estimated_pilot(delta).proposal
    pilots = round(_HEIGHT * min(PRECISION / precision, 1.0) ** 2)

    @cache
    def estimated_epsilon(noise: float, draws: int = 0) -> float:
        return build(noise).sampled_profile().estimated_pilot(delta, proposal, draws).epsilon

    try:
        near = _near_noise(estimated_epsilon, epsilon, goal, near, 5e-3)
    except (NotEvaluable, ArithmeticError):  # the law was far off, as for spaced rounds: the proposal does not serve

        def piloted_epsilon(noise: float) -> float:
            return build(noise).sampled_profile().estimated_pilot(delta).epsilon

        near = _search_noise(piloted_epsilon, epsilon, goal, near, 0.02, 0.3)
        proposal = build(near).sampled_profile().estimated_pilot(delta).proposal
        estimated_epsilon.cache_clear()
        near = _near_noise(estimated_epsilon, epsilon, goal, near, 5e-3)
    if build(near).is_pair:  # whose brackets are twice as wide
        precision = min(2 * precision, 0.1)
    # The slope is known well enough from few draws, the height is not. Where epsilon falls to 0 there is no slope.
    height = estimated_epsilon(near)
    slope = math.log(estimated_epsilon(near * 0.99) / height) / -math.log(0.99)
    if pilots > 1:
        height = estimated_epsilon(near, pilots * pilot_draws(first.upper))
    noise = near * float((height / epsilon) ** (1 / slope)) * (1 + 0.3 * precision)
    for _ in range(_ATTEMPTS):
        found = build(noise).epsilon(delta, precision=asked)
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
    """Find the smallest noise multiplier that keeps a risk, rounded up.

    It is some s with ``trade_off(build(s)).advantage.upper <= advantage``, or with
    ``trade_off(build(s)).true_positive_rate(tpr_at[0])[1] <= tpr_at[1]``.

    Args:
        build: from a noise multiplier > 0 to a mechanism whose risk falls as the noise rises.
        advantage: in (0, 1); see :attr:`fedamp.accounting.risk.TradeOff.advantage`.
        tpr_at: a false positive rate and the true positive rate allowed there, 0 < first < second < 1.
        tolerance: relative; the answer is at most this much above the smallest one that ``trade_off`` knows.

    Raises:
        ValueError: not exactly one risk is given, or it is out of its range.

    Example:
        >>> from fedamp.accounting import Gaussian
        >>> round(calibrate_risk(Gaussian, advantage=0.2), 2)
        1.97
    """
    check_positive("tolerance", tolerance)
    if (advantage is None) == (tpr_at is None):
        raise ValueError("exactly one of advantage and tpr_at must be given")
    if tpr_at is None:
        false, true = 0.0, check_number("advantage", advantage)
        if not 0 < true < 1:
            raise ValueError(f"advantage must be in (0, 1), got {advantage}")
    else:
        false, true = tpr_at if np.shape(tpr_at) == (2,) else (math.nan, math.nan)
        if not 0 < false < true < 1:
            raise ValueError(f"tpr_at must be two rates, 0 < first < second < 1, got {tpr_at!r}")

    def attack_gain(noise: float) -> float:
        """Return the gain of the best attack over guessing."""
        if tpr_at is None:
            return build(noise).delta(0.0).upper
        return float(trade_off(build(noise)).true_positive_rate(false)[1]) - false

    goal = f"advantage = {advantage}" if tpr_at is None else f"tpr_at = {tpr_at}"
    return _search_noise(attack_gain, true - false, goal, 1.0, tolerance, 0.7)


def _near_noise(
    cost: Callable[[float], float], budget: float, goal: str, start: float, tolerance: float, slope: float = -1.0
) -> float:
    """Return a noise at which a falling cost is near the budget, on either side of it.

    In logarithms the cost is nearly straight, so the line through the last two costs leads to the next one. Three costs
    are mostly enough; :func:`_search_noise` goes on after seven.

    Args:
        cost, budget, goal, start: those of :func:`_search_noise`.
        tolerance: relative, of the cost.
        slope: of the first line; by default the cost is taken to fall as the noise rises.

    Raises:
        ValueError: no noise multiplier up to 1e18 keeps the budget.
    """
    position = math.log(start)
    excess = _cost_excess(cost, budget, position)
    for _ in range(6):
        if abs(excess) <= tolerance:
            return math.exp(position)
        before, last = position, excess
        position -= min(max(excess / slope, -1.0), 1.0)
        excess = _cost_excess(cost, budget, position)
        slope = min((excess - last) / (position - before), -0.5)
    return _search_noise(cost, budget, goal, math.exp(position), tolerance, 0.1)


def _cost_excess(cost: Callable[[float], float], budget: float, position: float) -> float:
    """Return log(cost / budget), at least log 1e-9 and at most 50, at a log noise."""
    return min(math.log(max(cost(math.exp(position)), 1e-9 * budget)) - math.log(budget), 50.0)


def _search_noise(
    cost: Callable[[float], float], budget: float, goal: str, start: float, tolerance: float, first_step: float
) -> float:
    """Return the noise at which a falling cost meets the budget, from the right.

    In logarithms the cost is nearly straight, so the search follows the line through both ends.

    Args:
        cost: from a noise multiplier to a cost.
        budget: the largest cost.
        goal: the budget in words, for the error.
        start: where the search begins.
        tolerance: relative, of the noise.
        first_step: of the log of the noise.

    Raises:
        ValueError: no noise multiplier up to 1e18 keeps the budget.
    """
    ends: dict[bool, tuple[float, float]] = {}  # whether the budget is exceeded: (position, excess)
    position, step = math.log(start), first_step
    while len(ends) < 2:
        value = _cost_excess(cost, budget, position)
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
        value = _cost_excess(cost, budget, position)
        if value > 0:
            low, low_value = position, value
        else:
            high, high_value = position, value
    return math.exp(high)


def calibrate_count(
    build: Callable[[int], Mechanism], epsilon: float, delta: float, *, smallest: int = 1, largest: int
) -> int:
    """Find the last whole number (of a person's rounds, of all rounds, of submodels) that keeps a budget.

    It is the largest one if the epsilon of ``build(number)`` rises with it, the smallest one if it falls.

    Args:
        build: from a number to a mechanism; epsilon must rise or fall with the number throughout.
        epsilon: > 0.
        delta: in (0, 1).
        smallest, largest: the numbers to try, >= 0.

    Raises:
        ValueError: none in the range keeps the budget.

    Example:
        >>> from fedamp.accounting import Gaussian, Repeat
        >>> calibrate_count(lambda rounds: Repeat(Gaussian(10.0), rounds), 2.0, 1e-5, largest=100)
        25
    """
    check_positive("epsilon", epsilon)
    check_delta(delta)
    check_count("largest", largest, check_count("smallest", smallest, 0))

    sampled = count()

    def fits_budget(number: int) -> bool:
        mechanism = build(number)
        if upper_epsilon(mechanism, delta) <= epsilon:
            return True
        less = Fact.LESS_REPEATED in mechanism.facts
        ask = less or (mechanism.is_sampled and next(sampled) < _ATTEMPTS)  # then the law decides
        return ask and mechanism.epsilon(delta).upper <= epsilon

    good, bad = (smallest, largest) if fits_budget(smallest) else (largest, smallest)
    if good == largest and not fits_budget(largest):
        raise ValueError(f"epsilon = {epsilon:g} is not kept by any number from {smallest} to {largest}")
    if good == smallest and fits_budget(largest):
        rises = upper_epsilon(build(smallest), delta) <= upper_epsilon(build(largest), delta)
        return largest if rises else smallest
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits_budget(middle) else (good, middle)
    return good


# The cost after each round: by law and Rényi divergences at some rounds, by sampling at all at once.

_CHECKPOINTS, SAMPLED_CHECKPOINTS = 13, 7  # the most rounds at which a curve is computed, without and with sampling
_FIRST_ROUNDS = 5  # of a spaced run that have draws of their own
_AHEAD, _ADD_LAWS = 64, 40  # the most rounds that share draws, and laws of the add direction
_CURVE_WORK = 1.2e9  # steps of the recursion that a curve may take: some four seconds of one core
_FEWEST = 5_000  # draws that rounds may share
_MANY_DRAWS = 10_000  # for a beginning, from which a higher order is tried
_LOOKING = 12_000  # draws that pilots take, about
_SWEPT_STEPS = STEPS[::4]  # of candidates for each of many rounds: further apart by some 0.2 per cent of epsilon


def epsilon_over_rounds(
    mechanism: Mechanism, delta: float, rounds: Sequence[int] | None = None, precision: float = PRECISION
) -> Array:
    """Return upper ends of epsilon after each round of a run.

    They come from the numerical law or sampling at some rounds, and from Rényi bounds at every round without a law. A
    round costs at most what any later round costs: the curve never falls, and ends at the epsilon of the whole run. The
    number after round r holds for a run that stops then for reasons that do not depend on the data.

    Args:
        mechanism: the whole run.
        delta: in (0, 1).
        rounds: ascending, each from 0 to ``mechanism.span``; default: all from 1 on.
        precision: of the whole run, that of ``Mechanism.epsilon``; a coarser one than the default also leaves out the
            draws that answer for all rounds at once. Most rounds then cost what a later one does.

    Returns:
        Shape (len(rounds),).

    Raises:
        ValueError: an argument is out of its range, or rounds are not ascending.

    Example:
        >>> from fedamp.accounting import Gaussian, Repeat
        >>> epsilon_over_rounds(Repeat(Gaussian(4.0), 3), 1e-5).round(3).tolist()
        [0.926, 1.356, 1.698]
    """
    check_delta(delta)
    asked = tuple(range(1, mechanism.span + 1)) if rounds is None else tuple(rounds)
    for number in asked:
        check_count("rounds", number, 0, mechanism.span)
    if sorted(asked) != list(asked):
        raise ValueError("rounds must be ascending")
    if (simpler := normal_form(mechanism, same_rounds=True)).span == mechanism.span:
        mechanism = simpler
    if Fact.REPRESENTED in mechanism.own_facts:
        run = mechanism.representative()
        begun = np.array([mechanism.rounds_begun(number) for number in asked])
        numbers, places = np.unique(begun, return_inverse=True)
        return epsilon_over_rounds(run, delta, numbers.tolist(), precision)[places]
    return _over_rounds(mechanism, delta, asked, check_precision(precision)).copy()


@lru_cache(maxsize=64)
def _over_rounds(mechanism: Mechanism, delta: float, asked: tuple[int, ...], precision: float) -> Array:
    """Compute the curve at some rounds by several bounds, and take the smallest of each round and all later ones."""
    if not mechanism.is_private:
        return np.array([mechanism.after(number).epsilon(delta).upper for number in asked])
    spent = np.full(len(asked) + 1, np.inf)
    spent[-1] = mechanism.epsilon(delta, precision=precision).upper
    with suppress(NotEvaluable), in_floating_point():
        if precision <= PRECISION:
            spent[:-1] = _by_sampling(mechanism, delta, asked)
    most = SAMPLED_CHECKPOINTS if mechanism.is_sampled else _CHECKPOINTS
    checkpoints = [i for i in _checkpoint_places(len(asked), most) if asked[i] < mechanism.span]  # the whole is known
    highest, shared, law_is_far = 0, np.flatnonzero(spent[:-1] < np.inf), Fact.LAW_IS_FAR in mechanism.own_facts
    if mechanism.is_sampled:
        with suppress(NotEvaluable):  # the beginnings of a run need at most twice its order
            order = int(mechanism.sampled_profile().by_moments(delta).order)
            highest = order + 1 if law_is_far else 2 * order  # more moves of spaced sets take long to list
    if law_is_far and len(shared):  # draws that rounds share tell the first rounds of a spaced run not at all
        first = np.setdiff1d(np.arange(shared[-1]), shared)[:_FIRST_ROUNDS].tolist()
        checkpoints = sorted({*checkpoints, *first})
    for i in checkpoints:
        beginning = normal_form(mechanism.after(asked[i]), same_rounds=True)
        # Draws of their own at a few rounds of the first half, where shared ones are a few per cent off.
        known = spent[i] < np.inf and not (law_is_far and 2 * asked[i] <= mechanism.span)
        quick = law_upper(beginning, delta, 300) if known else _quick_upper(beginning, delta, highest)
        spent[i] = min(spent[i], quick)
    less = {Fact.WORST_CASE_CHECKED, Fact.LESS_BY_MOMENTS} & mechanism.facts
    if less or not np.isfinite(spent[checkpoints]).all():
        orders = search_orders(HIGHEST_ORDER)
        for i in checkpoints if mechanism.contains(Allocation) else range(len(asked)):  # hidden rounds take long
            by_moments = EpsilonAt(delta).from_divergences(orders, mechanism.after(asked[i]).rdp(orders)).value
            spent[i] = min(spent[i], by_moments)
    spent = np.minimum.accumulate(spent[::-1])[::-1]
    hides = (whole := in_closed_form(mechanism)) is not None and not whole.is_plain
    parts = [(0, sum(number < mechanism.span for number in asked))] if hides else []
    while parts:  # rounds between checkpoints, at which the curve may be above the cost without amplification
        first, end = parts.pop()
        shown = in_closed_form(mechanism.after(asked[first]), hidden=False) if first < end else None
        if shown is not None and (unamplified := shown.epsilon(delta).upper) < spent[end - 1]:
            spent[first] = min(spent[first], unamplified)
            middle = (first + 1 + end) // 2
            parts += [(first + 1, middle), (middle, end)]
    return np.minimum.accumulate(spent[::-1])[::-1][:-1]


def _by_sampling(mechanism: Mechanism, delta: float, asked: tuple[int, ...]) -> Array:
    """Return upper ends at every round asked for, by sampling; infinite where none is known.

    The run must be one choice of hidden rounds. Blocks of rounds share draws (docs/research/k-of-t.md, Proposition 6).
    All certificates hold together, by a union bound over rounds and candidates, with the failure probability of one
    question.
    """
    spent = np.full(len(asked), np.inf)
    found = factor_beginnings(mechanism, [asked[i] for i in _rounds_to_sweep(asked) if 0 < asked[i] < mechanism.span])
    if found:
        remove = _swept_epsilons(list(found.values()), delta)
        both = np.maximum(remove, _add_by_law([mechanism.after(number) for number in found], delta, remove))
        spent[np.searchsorted(asked, list(found))] = both
    return spent


def factor_beginnings(mechanism: Mechanism, rounds: Sequence[int]) -> Mapping[int, Factor]:
    """Return the only factor of X after each of some rounds.

    None are returned where there are several factors, nothing is hidden, or draws take too long.
    """
    if mechanism.product_factors() != (0.0, {mechanism: 1}) or not mechanism.is_sampled:
        return {}
    run = mechanism.sampled_profile().upper
    return {} if _CURVE_WORK / 4 / run.draw_steps < _FEWEST else mechanism.begun_factors(run.factors[0], rounds)


def _rounds_to_sweep(asked: tuple[int, ...]) -> list[int]:
    """Return places of rounds: each one up to 100, and then steps of one per cent, in which epsilon hardly rises.

    A round between two of them costs at most what the later one does.
    """
    steps: list[int] = []
    number = 0
    for i in range(len(asked) - 1, -1, -1):
        if not steps or asked[i] <= max(number - number // 100, 100):
            steps.append(i)
            number = asked[i]
    return steps[::-1]


def _add_by_law(beginnings: list[Mechanism], delta: float, enough: Array) -> Array:
    """Return upper ends of the add direction by law.

    A later round's end serves for earlier ones; more of them are computed where that is not ``enough``.
    """
    found, parts, left = np.full(len(beginnings), np.inf), [(0, len(beginnings))], _ADD_LAWS
    while parts and left:
        first, end = parts.pop(0)
        profile = beginnings[end - 1].sampled_profile(Detail(300, with_lower=False))
        last = profile.add_by_laws("epsilon", delta, float(enough[end - 1]))
        found[first:end] = np.minimum(found[first:end], last)
        left -= 1
        if np.any(found[first : end - 1] > enough[first : end - 1]):
            middle = (first + end) // 2
            parts += [(first, middle)] * (middle > first) + [(middle, end - 1)] * (end - 1 > middle)
    return found


def _swept_epsilons(parts: Sequence[Factor], delta: float) -> Array:
    """Return upper ends of the remove direction after each of some beginnings; infinite where sampling has none."""
    spent, end, left, failure = np.full(len(parts), np.inf), len(parts), _CURVE_WORK, CHARGE * delta / QUESTIONS
    log_term, proposal, ahead = math.log(2 * len(parts) * len(_SWEPT_STEPS) / failure), None, _AHEAD // 2
    while end:
        run = SampledRun((parts[end - 1],))
        if left / 4 / run.draw_steps < _FEWEST:
            break
        spendable = delta - CHARGE * delta - RemoveProposal.infinite_loss_mass(run)
        if spendable <= 0:
            raise NotEvaluable("a round gives a person away with more than delta")
        try:
            proposal, pilots = _swept_pilots(parts[max(0, end - ahead) : end], proposal, spendable, log_term)
            needed = np.maximum.accumulate([_sweep_draws(each, log_term) for each in pilots])
            count = int(np.argmin(needed / np.arange(1, len(pilots) + 1))) + 1  # the most rounds for a draw
            draws, ahead = int(min(needed[count - 1], left / 4 / run.draw_steps)), min(_AHEAD, max(3 * count, 8))
            pilots, some = pilots[count - 1 :: -1], slice(end - count, end)
            epsilons = np.array([[each.epsilon] for each in pilots])
            above = epsilons + np.array([[half_width(each, draws, log_term)] for each in pilots]) * _SWEPT_STEPS
            above[:, :1] = np.where(epsilons > 0, above[:, :1], 0.0)
            share = failure * count / len(parts)
            held = (
                certify_deltas(Block(proposal, parts[some]), above, np.zeros((count, 0)), draws, share)[0] <= spendable
            )
        except NotEvaluable:
            if not np.isfinite(spent).any():  # it is no better earlier on
                break
            end, left = end - max(1, end // 8), left - _LOOKING * run.draw_steps
            continue
        spent[some] = np.where(held.any(axis=1), above[np.arange(count), held.argmax(axis=1)], np.inf)
        end, left = end - count, left - draws * run.draw_steps
    return spent


def _swept_pilots(
    parts: Sequence[Factor], before: RemoveProposal | None, delta: float, log_term: float
) -> tuple[RemoveProposal, list[Pilot]]:
    """Return the proposal that needs the fewest draws for the last of some beginnings, and all pilots, the last first.

    Args:
        parts: the beginnings.
        before: the proposal for later ones. Where a draw is a mean over common noise, its order serves: the best one
            changes slowly, and a table of overlaps takes long. The next one is tried as rounds halve.
        delta, log_term: as of :func:`pilots_of_columns` and :meth:`Pilot.draws_for`.
    """
    run = SampledRun((parts[-1],))

    def taken(proposal: RemoveProposal) -> tuple[RemoveProposal, list[Pilot]]:
        return proposal, pilots_of_columns(Block(proposal, parts), delta)[::-1]

    def draws(found: tuple[RemoveProposal, list[Pilot]]) -> float:
        return _sweep_draws(found[1][0], log_term)

    if before is not None and not run.independent_factors:  # without drift; each order has a table of its own
        return taken(RemoveProposal(run, before.order))
    if before is not None and before.common_points > 1:
        found = taken(RemoveProposal(run, before.order))
        with suppress(NotEvaluable):
            halved = run.factors[0].rounds.bit_length() < before.run.factors[0].rounds.bit_length()
            if halved and draws(found) > _MANY_DRAWS:
                found = min(found, taken(RemoveProposal(run, before.order + 1)), key=draws)
        return found
    look = partial(pilot_at_delta, delta=delta, draws=1024)
    best = RemoveProposal.best_pilot(run, partial(epsilon_of_moment, delta=delta), look).proposal
    assert isinstance(best, RemoveProposal)
    found = taken(best if run.independent_factors else RemoveProposal(run, best.order))
    return min(found, taken(RemoveProposal(run, best.order)), key=draws) if best.coins else found


def _sweep_draws(pilot: Pilot, log_term: float) -> float:
    """Return how many draws leave a bracket of one per cent, most of it on one side."""
    error = 0.0085 * max(pilot.epsilon, 0.02) * pilot.slope
    return max(pilot.draws_for(error, log_term) if pilot.epsilon > 0 else FOR_ZERO, 4096.0 / pilot.proposal.together)


def _quick_upper(mechanism: Mechanism, delta: float, highest: int) -> float:
    """Return an upper end of epsilon: by law, or by coarse sampling where that is much lower."""
    by_law = law_upper(mechanism, delta, 300)
    if not mechanism.is_sampled:
        return by_law
    try:
        with in_floating_point():
            profile = mechanism.sampled_profile(Detail(300, with_lower=False))
            precision = 0.01 if Fact.LAW_IS_FAR in mechanism.facts else 0.03  # no law is near
            return min(by_law, profile.epsilon(delta, precision=precision, known=by_law, highest=highest).upper)
    except NotEvaluable:
        return by_law


def _checkpoint_places(count: int, most: int) -> list[int]:
    """Return at most ``most`` of the numbers 0..count-1.

    They are denser at first, where the curve is steep, and one is near the end.
    """
    if count <= most:
        return list(range(count))
    steps = np.append((np.arange(most - 1) / (most - 1)) ** 1.5, 0.96)
    return sorted({int(step * count) for step in steps})


# A privacy filter, for uses that are chosen by earlier releases, where ``Compose`` does not apply. A budget is kept in
# two parts, fixed before the first use: a Gaussian parameter mu, and a part of delta. A use costs a *share* s of both:
# the least s with delta(e) <= Gaussian delta of parameter sqrt(s) mu at e + s * (the part of delta) for every e, in
# both directions. All uses together keep the budget as long as the shares of each person sum up to at most 1
# (docs/research/filter.md, Theorem 1; Smith, Thakurta 2022, arXiv 2210.17520; Koskela, Tobaben, Honkela 2022, arXiv
# 2209.15596).

LARGEST_EPSILON = 70.0
"""The largest epsilon of a budget: up to here ``SAMPLER`` pays for the finite precision of the noise."""

# The part of a budget's delta that pays for the tails of uses: for one to eight uses of the kinds in
# docs/research/filter.md the least epsilon needs between 3 and 25 per cent.
PART = 0.1
_MOST_USES = 1_000_000  # whose finite precision ``SAMPLER`` pays for
_CURVE_POINTS, _END = 200, 1e-7  # of a curve; over ``PART`` of delta, the delta at which it ends
_FARTHEST = 300.0  # the largest epsilon of a curve
_NORMAL = 1e-12  # relative; scipy's normal distribution and its quantile err by some 1e-14 together
_HARDLY = 1.06  # the law's delta over a first estimate, up to which sampling gains nothing
_SAMPLED, _DELTA_PRECISION = 8, 0.02  # epsilons that are sampled at once, and how precisely delta is known there
_PARAMETER_PRECISION = 2e-3  # the same, of the parameter of a Gaussian, where the law is far above


class Lines(NamedTuple):
    """Straight lines c - a x over x = e^epsilon >= 1, whose largest is at least delta everywhere.

    Attributes:
        a, c: shape (n,).
        epsilon: shape (n,), where each line begins to be the largest.
    """

    a: Array
    c: Array
    epsilon: Array  # where each line begins to be the largest


@dataclass(frozen=True)
class Budget:
    """A privacy budget for uses that are chosen one after the other, each perhaps because of earlier releases.

    ``Compose`` does not apply then; this is a privacy filter. The budget is kept in two parts: a Gaussian parameter mu,
    and a part of delta. A use costs a *share* s of both: the least s with delta(e) <= Gaussian delta of parameter
    sqrt(s) mu at e + s * (the part of delta) for every e, in both directions. All uses together keep the budget as long
    as the shares of each person sum up to at most 1 (docs/budget.md, Theorem 1; Smith, Thakurta 2022, arXiv 2210.17520;
    Koskela, Tobaben, Honkela 2022, arXiv 2209.15596).

    Attributes:
        epsilon: in (0, 70].
        delta: in (0, 1).

    Raises:
        ValueError: a number is out of its range, or delta is too small for the finite precision of noise.

    Example:
        >>> from fedamp.accounting import Gaussian
        >>> budget = Budget(4.0, 1e-5)
        >>> share = budget.share_of_use(Gaussian(4.0))
        >>> round(share, 2), round(budget.spent_epsilon(share), 2), round(budget.spent_epsilon(1.0), 2)
        (0.07, 0.93, 4.0)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not check_positive("epsilon", self.epsilon) <= LARGEST_EPSILON:
            raise ValueError(f"epsilon must be at most {LARGEST_EPSILON:g}, got {self.epsilon!r}")
        check_delta(self.delta)
        delta_left(self.delta, _MOST_USES)  # refuses what is too small

    @property
    def _usable_delta(self) -> float:
        """The part of delta without the finite precision of all uses' noise."""
        return delta_left(self.delta, _MOST_USES)

    @property
    def tail_delta(self) -> float:
        """The part of delta that pays for what no Gaussian explains."""
        return PART * self._usable_delta

    @cached_property
    def mu(self) -> float:
        """The Gaussian parameter whose delta at epsilon is the rest, rounded down."""
        return _gaussian_parameter(self.epsilon, self._usable_delta - self.tail_delta)

    def share_of_use(self, mechanism: Mechanism, sampled: bool = True) -> float:
        """Return the share of this budget that a use costs, rounded up; infinite: no budget pays for it.

        Args:
            mechanism: the use.
            sampled: whether hidden rounds are sampled. Without it they are bounded by their law, which is quicker and a
                few per cent more. A sampled curve fails with a probability of at most 1e-6 times the delta that the use
                is charged.
        """
        if mechanism.releases_nothing:
            return 0.0
        if not mechanism.is_private:
            return math.inf
        lines = _delta_lines(mechanism, self.tail_delta * _END)
        found, event = self._share_of(lines), normal_form(mechanism)
        if not sampled or not found < math.inf or not event.is_sampled:
            return found
        level = 2.0 ** math.ceil(math.log2(found * self.tail_delta))
        if Fact.ROWS_MEET in event.facts:  # the law is far above
            with suppress(NotEvaluable), in_floating_point():
                near = (_estimated_parameter(event, self.tail_delta / PART) / self.mu) ** 2
                level = min(level, 8.0 ** math.floor(math.log(near * self.tail_delta, 8)))  # for several shares
        paid = (
            (1 + CHARGE) * level / 8 / self.tail_delta
        )  # the least share whose part of delta pays for a curve that is wrong
        return min(
            found, max(paid, self._share_of(_sampled_curve(mechanism, self.tail_delta * _END, level), 1 + CHARGE))
        )

    def _share_of(self, lines: Lines, dearer: float = 1.0) -> float:
        """Return the smallest share at which no line is above the Gaussian's delta and the part for tails, rounded up.

        Args:
            lines: at least delta of the use everywhere.
            dearer: factor by which the use is charged more delta than the lines say.
        """
        from scipy.special import ndtr, ndtri  # a slow import

        with np.errstate(divide="ignore"):
            quantiles = ndtri(lines.a)

        def missing_delta(share: float) -> float:
            # inf over x >= 0 of (Gaussian delta + a x) is the true positive rate at the false positive rate a.
            power = ndtr(quantiles + self.mu * math.sqrt(share)) * (1 - _NORMAL)
            above = float(np.max(lines.c - power)) - share * self.tail_delta / dearer
            return above if above == above else math.inf  # no number: it is not shown that the share is enough

        return level_crossing(missing_delta, 0.0, 1e12, 1e-7)[1]

    def spent_epsilon(self, share: float) -> float:
        """Return the epsilon, at this delta, of a budget that is ``share`` of this one in both parts, rounded up."""
        if share == 0:
            return 0.0
        left = self._usable_delta - share * self.tail_delta
        signal = np.array([share * self.mu**2 * (1 + 4 * UNIT)])
        if not left > 0 or not math.isfinite(share):
            return math.inf
        return level_crossing(lambda epsilon: float(gaussian_delta(signal, epsilon, 1)[0]), left, 1e6, 1e-9)[1]


@lru_cache(maxsize=256)
def _delta_lines(mechanism: Mechanism, end: float) -> Lines:
    """Return lines above delta at every epsilon >= 0, in both directions; from epsilon 0 to where delta is ``end``.

    delta is convex in e^epsilon, so a chord between two upper ends is above it: no epsilon is left out.
    """
    farthest = min(mechanism.epsilon(end, points=DEFAULT_POINTS).upper, _FARTHEST)
    epsilons = np.linspace(0.0, farthest, _CURVE_POINTS)
    upper = np.array([mechanism.delta(float(epsilon)).upper for epsilon in epsilons])
    return _lower_hull(epsilons, np.minimum(upper, 1.0))


@lru_cache(maxsize=256)
def _sampled_curve(mechanism: Mechanism, end: float, level: float) -> Lines:
    """Return the same lines, with delta sampled where it is between ``level`` and 250 times that.

    There the Gaussian is closest, and a smaller delta lowers the share.
    """
    lines = _delta_lines(mechanism, end)
    known = lines.c - lines.a * np.exp(lines.epsilon)
    event, found, windows = normal_form(mechanism), [(lines.epsilon, known)], list[_Window]()
    profile, proposals = event.sampled_profile(), list[RemoveProposal]()
    if Fact.ROWS_MEET in event.facts:  # the law does not tell where to sample
        with suppress(NotEvaluable), in_floating_point():
            windows, proposals = _far_windows(event, end / _END / PART, level)
    else:
        for low, high in ((0.7, 5), (5, 40), (40, 250)):
            near = (known >= low * level) & (known <= high * level)
            if near.sum() > 1:
                at = np.linspace(lines.epsilon[near][0], lines.epsilon[near][-1], _SAMPLED)
                windows.append(_Window(at, _DELTA_PRECISION, float(known[near][-1])))
    for window in windows:
        failure = CHARGE * level / 8 / max(len(windows), 3)  # CHARGE * level / 8 in all
        with suppress(NotEvaluable), in_floating_point():
            found.append((window.epsilons, _sampled_deltas(profile, window, failure, proposals)))
    epsilons, upper = (np.concatenate(each) for each in zip(*found, strict=True))
    order = np.argsort(epsilons, kind="stable")
    return _lower_hull(epsilons[order], np.minimum(upper[order], 1.0))


def _gaussian_parameter(epsilon: float, delta: float) -> float:
    """Return the Gaussian parameter whose delta at ``epsilon`` is ``delta``, rounded down."""

    def kept(size: float) -> float:
        return -float(gaussian_delta(np.array([size**2]), epsilon, 1)[0])

    return level_crossing(kept, -delta, 1e3, 1e-12)[0]


class _Window(NamedTuple):
    """Epsilons to sample at once, how precisely delta is to be known there, and what the law says at the last one."""

    epsilons: Array
    precision: float
    by_law: float = math.inf


@lru_cache(maxsize=256)
def _estimated_parameter(event: Mechanism, delta: float) -> float:
    """Return the parameter of a Gaussian that costs about what is sampled, at ``delta``; nothing rests on it."""
    found = _gaussian_parameter(max(event.sampled_profile().estimated_pilot(delta).epsilon, 1e-3), delta)
    return float(f"{found:.3g}")  # the last bits of a pilot are not the same on every processor


def _far_windows(event: Mechanism, delta: float, level: float) -> tuple[list[_Window], list[RemoveProposal]]:
    """Return where to sample, up from epsilon 0, and laws to draw from.

    Windows begin where a Gaussian of about the cost has a third of ``level``, six times that, and so on. Its parameter
    is to be known equally well from each.

    Raises:
        NotEvaluable: epsilon is too large, or a pilot has no answer.
    """
    signal, ends, target = _estimated_parameter(event, delta) ** 2, list[float](), 0.3 * level

    def cost(epsilon: float, times: float = 1.0) -> float:
        return float(gaussian_delta(np.array([times**2 * signal]), epsilon, 0)[0])

    while not ends or ends[-1] > 0:
        ends.append(level_crossing(cost, target, 1e3, 1e-6)[1] if 2 * target < cost(0.0) else 0.0)
        target *= 6
    if ends[0] > _FARTHEST:
        raise NotEvaluable("epsilon is too large to be sampled")
    windows = list[_Window]()
    for last, first in pairwise(ends):
        precision = _PARAMETER_PRECISION * (cost(first, 1.01) / cost(first) - 1) / 0.01
        windows.append(_Window(np.linspace(first, last, _SAMPLED + 4), precision))
    run = event.sampled_profile().upper
    best = RemoveProposal.by_moments(run, partial(epsilon_of_moment, delta=delta))
    return windows, [*(RemoveProposal(run, order) for order in range(2, int(best.order))), best]


def _sampled_deltas(
    profile: SampledProfile, window: _Window, failure: float, proposals: Sequence[RemoveProposal]
) -> Array:
    """Return upper ends of delta in a window, which hold together but for a probability of ``failure``.

    They are drawn from the one of the ``proposals`` with the least bound, or from the best one if there are none.

    Raises:
        NotEvaluable: it takes too much work, or the law is about as low at the last epsilon.
    """
    epsilons, last = window.epsilons, float(window.epsilons[-1])
    look, rank = partial(pilot_at_epsilon, epsilon=last), partial(log_delta_of_moment, epsilon=last)
    if proposals:
        pilot = look(min(proposals, key=lambda each: rank(*each.moment)))
    else:
        pilot = RemoveProposal.best_pilot(profile.upper, rank, look)
    if window.by_law <= _HARDLY * pilot.delta:
        raise NotEvaluable("the law is as good")
    needed = pilot.draws_for(window.precision, math.log(2 * len(epsilons) / failure))
    draws = int(min(max(needed, 4096), profile.most_draws()))
    remove = certify_deltas(pilot.proposal, epsilons, np.zeros(0), draws, failure)[
        0
    ] + RemoveProposal.infinite_loss_mass(profile.upper)

    return np.maximum(remove, [profile.add_by_laws("delta", epsilon, 0.0) for epsilon in epsilons.tolist()])


def _lower_hull(epsilons: Array, upper: Array) -> Lines:
    """Return the lower convex hull of points (e^epsilon, delta), each at or above a convex falling function."""
    x, kept = np.exp(epsilons), list[int]()
    upper = np.minimum.accumulate(upper)
    for i in range(len(x)):
        while kept and x[i] <= x[kept[-1]]:  # the same point twice: the lower one counts
            kept.pop()
        while len(kept) > 1:
            a, b = kept[-2:]
            if (upper[b] - upper[a]) * (x[i] - x[a]) < (upper[i] - upper[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    x, y = x[kept], upper[kept]
    # Beyond the last point delta only falls, and nowhere faster than 1. Any slope is right if the line is above both
    # ends of its piece: rounding is in the intercepts alone.
    slope = np.minimum(np.r_[-np.diff(y) / np.diff(x), 0.0], 1.0)
    ends = np.r_[y[1:] + slope[:-1] * x[1:], 0.0]
    c = np.maximum(y + slope * x, ends) * (1 + 8 * UNIT)
    return Lines(slope, c, epsilons[kept])
