"""Lower bounds against theory; statistics of the attacks against brute force."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

from fedamp.accounting import Mechanism
from fedamp.extensions.audit.attack import attacks
from fedamp.extensions.audit.bound import CONFIDENCE, AttackGuesses, AuditResult, exceeds
from fedamp.federation.check_in import BalancedCheckIn
from fedamp.federation.kept_answers import KEPT
from fedamp.federation.plan import Plan
from tests.federations import small

NOISE = 0.8


def audit_of(right: int, of: int = 500, attacks: int = 1) -> AuditResult:
    """An audit of one release of Gaussian noise, whose first attack has so many right guesses; others are as good."""
    plan = Plan(small("check_in={scheme: all}", "rounds=1", f"privacy.noise_multiplier={NOISE}"), 60, 0)
    coins = np.arange(2 * of) >= of
    coins[: of // 2][: (of - right) // 2] = True  # wrong at both ends, where it is guessed
    coins[len(coins) - (of - right - (of - right) // 2) :] = False
    guesses = AttackGuesses("some", np.arange(2.0 * of), coins)
    assert guesses.surest(0.5) == (of, right)
    return AuditResult((plan,), (guesses,) * attacks, dependent=False)


def accuracy(noise: float) -> float:
    """Of the surest half of the guesses between N(0, 1) and N(1 / noise, 1), by Phi of their distance to the middle."""
    middle = 1 / noise / 2
    least = brentq(lambda t: norm.cdf(middle - t) + norm.cdf(-middle - t) - 0.5, 0, 10)
    return float(norm.cdf(middle - least) / 0.5)


def test_the_bound_is_the_cost_of_the_noise_at_which_the_guesses_become_likely():
    right, of = 350, 500
    audit = audit_of(right, of)
    noise = brentq(lambda each: binom.sf(right - 1, of, accuracy(each)) - (1 - CONFIDENCE), 0.3, 20)
    expected = Plan(small("check_in={scheme: all}", "rounds=1", f"privacy.noise_multiplier={noise}"), 60, 0)
    # Noise is looked for in steps of 1.7 %, and the trade-off function is bracketed.
    assert audit.lower(audit.guesses[0]) == pytest.approx(expected.charge.planned_epsilon.upper, rel=0.04)
    assert audit.lower(audit.guesses[0]) < audit.charged.upper


def test_what_is_charged_is_computed_once(monkeypatch):
    def kept() -> AuditResult:
        found = audit_of(350)
        return replace(found, plans=tuple(replace(plan, answers=KEPT) for plan in found.plans))

    first = kept().charged
    monkeypatch.setattr(Mechanism, "epsilon", lambda *_, **__: pytest.fail("the accountant was asked"))
    assert kept().charged == first


def test_right_code_is_refuted_no_more_often_than_stated():
    """The chance that so many guesses are right that the verdict, or a bound, is false; by exact probabilities."""
    of, truth = 500, accuracy(NOISE)
    likely = int(binom.isf(0.1, of, truth))
    refuting = next(right for right in range(likely, of + 1) if audit_of(right, of).refuted)
    above = next(right for right in range(likely, of + 1) if _exceeds_charge(audit_of(right, of)))
    assert 0.001 < binom.sf(refuting - 1, of, truth) <= 0.01
    assert 0.01 < binom.sf(above - 1, of, truth) <= 1 - CONFIDENCE


def _exceeds_charge(audit: AuditResult) -> bool:
    return audit.lower(audit.guesses[0]) > audit.charged.upper


def test_more_attacks_cost_confidence_and_more_right_guesses_give_a_higher_bound():
    few, many, better = audit_of(350), audit_of(350, attacks=9), audit_of(370)
    assert many.lower(many.guesses[0]) < few.lower(few.guesses[0]) < better.lower(better.guesses[0])
    assert audit_of(250).lower(audit_of(250).guesses[0]) == 0
    assert not audit_of(250).refuted


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_for_pure_privacy_the_tail_of_right_guesses_is_binomial(epsilon):
    """Steinke, Nasr, Jagielski (2023), Theorem 5.2, with delta 0."""
    made, tail, factor = 50, 0.05, math.exp(epsilon)
    inverse = lambda rate: max(rate / factor, 1 - factor * (1 - rate))  # noqa: E731
    least = int(binom.isf(tail, made, factor / (1 + factor))) + 1  # so many right guesses are that unlikely
    assert exceeds(inverse, made, made, least + 1, tail)
    assert not exceeds(inverse, made, made, least - 1, tail)


def test_guesses_may_all_be_right_as_often_as_everything_is_revealed():
    inverse = lambda rate: max(rate - 0.04, 0.0)  # noqa: E731  (all coins are told with probability 0.04)
    assert not exceeds(inverse, 200, 200, 200, 0.04)
    assert exceeds(inverse, 200, 200, 200, 0.06)


# --- statistics -------------------------------------------------------------------------------------------------------

SCHEMES = {
    "all": ("{scheme: all}", lambda rounds: [(tuple(range(rounds)), 1.0)]),
    "balanced": (
        "{scheme: balanced, k: 2}",
        lambda rounds: [(s, 1.0) for s in itertools.combinations(range(rounds), 2)],
    ),
    "stratified": (
        "{scheme: stratified, k: 2}",
        lambda rounds: [((i, j), 1.0) for i in range(3) for j in range(3, rounds)],
    ),
    "poisson": (
        "{scheme: poisson, rate: 0.3}",
        lambda rounds: [
            (s, 0.3 ** len(s) * 0.7 ** (rounds - len(s)))
            for size in range(rounds + 1)
            for s in itertools.combinations(range(rounds), size)
        ],
    ),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_likelihood_ratio_is_the_mean_over_all_hidden_rounds(scheme):
    text, sets = SCHEMES[scheme]
    plan = Plan(small("rounds=5", f"check_in={text}"), 4, 0)
    ratios = np.random.default_rng(1).normal(size=(7, 5))
    weighted = [(weight, ratios[:, list(rounds)].sum(1)) for rounds, weight in sets(5)]
    expected = sum(weight * np.exp(logs) for weight, logs in weighted) / sum(weight for weight, _ in weighted)
    assert plan.check_in.log_likelihood_ratio(ratios) == pytest.approx(np.log(expected), rel=1e-12)


def test_attacks_that_say_the_same_are_left_out():
    ratios = np.random.default_rng(1).normal(size=(7, 2, 1))
    assert set(attacks(ratios, Plan(small("rounds=2", "check_in={scheme: all}"), 4, 0))) == {"likelihood ratio"}
    hidden = Plan(small("rounds=2", "check_in={scheme: balanced, k: 1}"), 4, 0)
    assert isinstance(hidden.scenario.check_in, BalancedCheckIn)
    assert "takes part in round 2" in attacks(ratios, hidden)
