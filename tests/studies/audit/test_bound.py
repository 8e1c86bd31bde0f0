"""Lower bounds hold as often as they say, by exact enumeration of all counts; statistics against brute force."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from fedamp.federation.check_in import BalancedCheckIn
from fedamp.federation.plan import Plan
from fedamp.studies.audit.attack import attacks
from fedamp.studies.audit.bound import Claim, Worlds, examine, lower_bound, p_value
from tests.federations import small

FEW = 14  # repetitions, so few that all pairs of counts can be gone through


@pytest.fixture(scope="module", params=[(0.0, 0.05), (0.1, 0.05), (0.01, 0.2)], ids=str)
def bounds(request):
    """Every lower bound that counts of a few repetitions can give."""
    delta, error = request.param
    pairs = itertools.product(range(FEW + 1), repeat=2)
    table = np.array([lower_bound(likely, unlikely, FEW, delta, error) for likely, unlikely in pairs])
    return delta, error, table.reshape(FEW + 1, FEW + 1)


def test_a_lower_bound_is_too_high_no_more_often_than_stated(bounds):
    delta, error, table = bounds
    worst = 0.0
    for p, q in itertools.product(np.linspace(0, 1, 41), repeat=2):
        epsilon = max(0.0, math.log((p - delta) / q)) if p > delta and q > 0 else 0.0 if p <= delta else math.inf
        chances = np.outer(*(binom.pmf(np.arange(FEW + 1), FEW, chance) for chance in (p, q)))
        worst = max(worst, chances[table > epsilon + 1e-9].sum())
    assert worst <= error
    assert worst >= error / 10  # it is not so careful that it says nothing


def test_more_evidence_gives_a_higher_bound(bounds):
    table = bounds[2]
    steps = 1e-3  # the bound is found to this
    assert (np.diff(table, axis=0) >= -steps).all()
    assert (np.diff(table, axis=1) <= steps).all()


def test_many_repetitions_reach_the_truth():
    # Gaussian mechanism of noise multiplier 1, at the threshold that is best for delta = 0.1.
    epsilon = 1.2
    p, q = norm.sf(epsilon - 0.5), norm.sf(epsilon + 0.5)
    delta = p - math.exp(epsilon) * q
    found = lower_bound(round(p * 4_000), round(q * 4_000), 4_000, delta, 0.01)
    # A standard error of log((p - delta) / q) is 0.086 here, and 99 % is 2.3 of them.
    assert epsilon - 0.26 < found < epsilon - 0.14


def test_counts_that_a_claim_expects_do_not_speak_against_it():
    assert p_value(10, 10, 20, Claim(0.0, 0.0)) > 0.4
    assert p_value(20, 0, 20, Claim(0.0, 0.0)) < 2e-4
    assert p_value(20, 0, 20, Claim(50.0, 0.0)) > 0.99
    assert p_value(20, 0, 20, Claim(0.0, 1.0)) == 1.0


def test_the_choice_of_the_event_costs_no_confidence():
    """With nothing to be found, many attacks find something in one audit of a hundred at most."""
    generator = np.random.default_rng(5)

    def worlds() -> Worlds:
        return Worlds(*({f"attack {i}": generator.normal(size=60) for i in range(10)} for _ in range(2)))

    claims = [Claim(0.0, 0.001), Claim(0.2, 0.0005)]
    alarms = sum(any(found.refutes for found in examine(worlds(), worlds(), claims, 0.1)) for _ in range(60))
    assert alarms <= 13  # 60 audits at 90 %: 14 or more have a chance of 0.3 %


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
