"""The cost after each round of a run: by law and Rényi divergences at some rounds, by sampling at all at once."""

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial
from operator import methodcaller

import numpy as np

from fedamp.accounting import checks
from fedamp.accounting.answers import in_closed_form, is_sampled, law_upper, sampled_profile
from fedamp.accounting.arithmetic import UNIT, Array
from fedamp.accounting.bounds import EpsilonAt, NotEvaluable, in_floating_point, search_orders
from fedamp.accounting.events import Allocation, Cyclic, Mechanism, ModelMix, Spaced, WithoutReplacement
from fedamp.accounting.hidden_rounds import Beginnings, HiddenRounds, Run
from fedamp.accounting.law import Detail
from fedamp.accounting.renyi import HIGHEST_ORDER, rdp
from fedamp.accounting.sampling import (
    CHARGE,
    FOR_ZERO,
    PRECISION,
    QUESTIONS,
    STEPS,
    Pilot,
    Proposal,
    RemoveProposal,
    certify,
    half_width,
)
from fedamp.accounting.theorems import factors, normal, participation

_CHECKPOINTS, SAMPLED_CHECKPOINTS = 13, 7  # the most rounds at which a curve is computed, without and with sampling
_AHEAD, _ADD_LAWS = 64, 40  # the most rounds that share draws, and laws of the add direction
_WORK = 1.2e9  # steps of the recursion that a curve may take: some four seconds of one core
_FEWEST = 5_000  # draws that rounds may share
_LOOKING = 12_000  # draws that pilots take, about


def epsilon_over_rounds(
    mechanism: Mechanism, delta: float, rounds: Sequence[int] | None = None, precision: float = PRECISION
) -> Array:
    """Upper ends of epsilon after each round, shape (len(rounds),).

    They come from the numerical law or sampling at some rounds, and from Rényi bounds at every round without a law. A
    round costs at most what any later round costs: the curve never falls, and ends at the epsilon of the whole run.

    Args:
        mechanism: the whole run.
        delta: in (0, 1).
        rounds: ascending, each from 0 to ``mechanism.span``; default: all from 1 on.
        precision: of the whole run, as in ``Mechanism.epsilon``. A coarser one than the default also leaves out the
            draws that answer for all rounds at once, and most rounds then cost what a later one does.
    """
    checks.delta(delta)
    asked = tuple(range(1, mechanism.span + 1)) if rounds is None else tuple(rounds)
    for number in asked:
        checks.count("rounds", number, 0, mechanism.span)
    if sorted(asked) != list(asked):
        raise ValueError("rounds must be ascending")
    if (simpler := normal(mechanism, of_a_class=False)).span == mechanism.span:
        mechanism = simpler
    if isinstance(mechanism, Cyclic):
        begun = np.array([mechanism.begun(number) for number in asked])
        numbers, places = np.unique(begun, return_inverse=True)
        return epsilon_over_rounds(mechanism.of_a_class, delta, numbers.tolist(), precision)[places]
    return _over_rounds(mechanism, delta, asked, checks.precision(precision)).copy()


@lru_cache(maxsize=64)
def _over_rounds(mechanism: Mechanism, delta: float, asked: tuple[int, ...], precision: float) -> Array:
    if not mechanism.is_private:
        return np.array([mechanism.after(number).epsilon(delta).upper for number in asked])
    spent = np.full(len(asked) + 1, np.inf)
    spent[-1] = mechanism.epsilon(delta, precision=precision).upper
    with suppress(NotEvaluable), in_floating_point():
        if precision <= PRECISION:
            spent[:-1] = _by_sampling(mechanism, delta, asked)
    most = SAMPLED_CHECKPOINTS if is_sampled(mechanism) else _CHECKPOINTS
    checkpoints = [i for i in _checkpoints(len(asked), most) if asked[i] < mechanism.span]  # the whole is known
    highest = 0
    if is_sampled(mechanism):
        with suppress(NotEvaluable):  # the beginnings of a run need at most twice its order
            highest = 2 * int(sampled_profile(mechanism).by_moments(delta).order)
    for i in checkpoints:
        beginning = mechanism.after(asked[i])
        quick = law_upper(beginning, delta, 300) if spent[i] < np.inf else _quick_upper(beginning, delta, highest)
        spent[i] = min(spent[i], quick)
    if mechanism.contains((ModelMix, WithoutReplacement)) or not np.isfinite(spent[checkpoints]).all():
        orders = search_orders(HIGHEST_ORDER)
        for i in checkpoints if mechanism.contains(Allocation) else range(len(asked)):  # hidden rounds take long
            by_moments = EpsilonAt(delta).convert(orders, rdp(mechanism.after(asked[i]), orders)).value
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
    """Upper ends at every round asked for, where the run is one choice of hidden rounds; infinite where none is known.

    docs/k-of-t.md, Proposition 6: a draw of the first b rounds has a bounded value for each of their beginnings.
    Blocks of rounds share draws. All certificates hold together, by a union bound over rounds and candidates, with the
    failure probability of one question.
    """
    spent = np.full(len(asked), np.inf)
    found = beginnings(mechanism, [asked[i] for i in _steps(asked) if 0 < asked[i] < mechanism.span])
    if found:
        remove = _swept(list(found.values()), delta)
        both = np.maximum(remove, _add_by_law([mechanism.after(number) for number in found], delta, remove))
        spent[np.searchsorted(asked, list(found))] = both
    return spent


def beginnings(mechanism: Mechanism, rounds: Sequence[int]) -> dict[int, HiddenRounds]:
    """The only factor of X after each of these ``rounds``; none where there are several factors, nothing is hidden, or
    draws take too long.
    """
    if isinstance(mechanism, Spaced) or factors(mechanism) != (0.0, {mechanism: 1}) or not is_sampled(mechanism):
        return {}
    run, one = sampled_profile(mechanism).upper, participation(mechanism).mechanism
    if _WORK / 4 / run.work < _FEWEST:
        return {}
    (whole,) = run.factors
    after = {number: participation(mechanism.after(number)) for number in rounds}
    after = {number: each for number, each in after.items() if each.mechanism == one}
    off = max((each.rounding for each in after.values()), default=0.0)
    return {number: HiddenRounds(whole.round, each.chances, number, 1, off) for number, each in after.items()}


def _steps(asked: tuple[int, ...]) -> list[int]:
    """Each round up to 300, and then such steps that epsilon hardly rises between them."""
    steps: list[int] = []
    number = 0
    for i in range(len(asked) - 1, -1, -1):
        if not steps or asked[i] <= max(number - number // 300, 300):
            steps.append(i)
            number = asked[i]
    return steps[::-1]


def _add_by_law(beginnings: list[Mechanism], delta: float, enough: Array) -> Array:
    """Upper ends of the add direction by law: a later round's, and more of them where that is not ``enough``."""
    found, parts, left = np.full(len(beginnings), np.inf), [(0, len(beginnings))], _ADD_LAWS
    while parts and left:
        first, end = parts.pop(0)
        profile = sampled_profile(beginnings[end - 1], Detail(300, with_lower=False))
        last = profile.known(lambda law: law.add.epsilon(delta), float(enough[end - 1]))
        found[first:end] = np.minimum(found[first:end], last)
        left -= 1
        if np.any(found[first : end - 1] > enough[first : end - 1]):
            middle = (first + end) // 2
            parts += [(first, middle)] * (middle > first) + [(middle, end - 1)] * (end - 1 > middle)
    return found


def _swept(parts: list[HiddenRounds], delta: float) -> Array:
    """Upper ends of the remove direction after each of the beginnings ``parts``; infinite where sampling has none."""
    spent, end, left, failure = np.full(len(parts), np.inf), len(parts), _WORK, CHARGE * delta / QUESTIONS
    log_term = math.log(2 * len(parts) * len(STEPS) / failure)
    while end:
        run = Run((parts[end - 1],))
        if left / 4 / run.work < _FEWEST:
            break
        spendable = delta - CHARGE * delta - RemoveProposal.share(run)
        if spendable <= 0:
            raise NotEvaluable("a round gives a person away with more than delta")
        try:
            look = partial(Pilot.at_delta, delta=spendable, draws=1024)
            proposal = RemoveProposal.pilot(run, methodcaller("bound_at", spendable), look).proposal
            pilots = Pilot.of_columns(Block(proposal, parts[max(0, end - _AHEAD) : end]), spendable)[::-1]
            needed = np.maximum.accumulate([_draws(each, log_term) for each in pilots])
            count = int(np.argmin(needed / np.arange(1, len(pilots) + 1))) + 1  # the most rounds for a draw
            draws = int(min(needed[count - 1], left / 4 / run.work))
            pilots, some = pilots[count - 1 :: -1], slice(end - count, end)
            epsilons = np.array([[each.epsilon] for each in pilots])
            above = epsilons + np.array([[half_width(each, draws, log_term)] for each in pilots]) * STEPS
            above[:, :1] = np.where(epsilons > 0, above[:, :1], 0.0)
            share = failure * count / len(parts)
            held = certify(Block(proposal, parts[some]), above, np.zeros((count, 0)), draws, share)[0] <= spendable
        except NotEvaluable:
            if not np.isfinite(spent).any():  # it is no better earlier on
                break
            end, left = end - max(1, end // 8), left - _LOOKING * run.work
            continue
        spent[some] = np.where(held.any(axis=1), above[np.arange(count), held.argmax(axis=1)], np.inf)
        end, left = end - count, left - draws * run.work
    return spent


def _draws(pilot: Pilot, log_term: float) -> float:
    """For a bracket of one per cent, most of it on one side."""
    error = 0.0075 * max(pilot.epsilon, 0.02) * pilot.slope
    return max(pilot.draws_for(error, log_term) if pilot.epsilon > 0 else FOR_ZERO, 4096.0)


class Block(Proposal):
    """Draws for the last of some beginnings of one factor, with a column for each of them."""

    def __init__(self, whole: Proposal, parts: list[HiddenRounds]) -> None:
        assert isinstance(whole, RemoveProposal)
        self.whole, self.run, self.parts = whole, whole.run, Beginnings.of(parts)
        self.name, self.power, self.relative = f"{whole.name} from {parts[0].rounds}", whole.power, 2 * whole.relative
        self.variation = whole.variation + parts[-1].rounds ** 2 * UNIT

    def log_bound(self, epsilon: float) -> float:
        return self.whole.log_bound(epsilon) + self.whole.slack(self.parts)

    def bound_at(self, delta: float) -> float:
        return self.whole.bound_at(delta)

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        return self.whole.draw_beginnings(rng, draws, self.parts)

    def on(self, run: Run) -> Proposal:
        return self.whole.on(run)


def _quick_upper(mechanism: Mechanism, delta: float, highest: int) -> float:
    """An upper end of epsilon: by law, or by coarse sampling where that is much lower."""
    by_law = law_upper(mechanism, delta, 300)
    if not is_sampled(mechanism):
        return by_law
    try:
        with in_floating_point():
            profile = sampled_profile(mechanism, Detail(300, with_lower=False))
            precision = 0.01 if isinstance(mechanism, Spaced) else 0.03  # no law is near
            return min(by_law, profile.epsilon(delta, precision=precision, known=by_law, highest=highest).upper)
    except NotEvaluable:
        return by_law


def _checkpoints(count: int, most: int) -> list[int]:
    """At most ``most`` of the numbers 0..count-1: denser at first, where the curve is steep, and one near the end."""
    if count <= most:
        return list(range(count))
    steps = np.append((np.arange(most - 1) / (most - 1)) ** 1.5, 0.96)
    return sorted({int(step * count) for step in steps})
