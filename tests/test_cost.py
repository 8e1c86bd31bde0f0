"""What a scenario costs before it runs; what Poisson sampling would cost, beside check-in to k of T rounds."""

import json

import pytest

from fedamp.gaussian import delta_left
from fedamp.plan import CURVE, make_plan
from tests.federations import small

NOISE = ("--set", "rounds=30", "--set", "privacy.noise_multiplier=3", "--set", "privacy.epsilon=null", "--json")


@pytest.mark.parametrize("check_in", ["{scheme: balanced, k: 3}", "{scheme: stratified, k: 3}"])
def test_poisson_sampling_of_the_same_cohort_costs_more(fedamp, check_in):
    ours = json.loads(fedamp("privacy", "balanced", "--set", f"check_in={check_in}", *NOISE).out)
    poisson = json.loads(fedamp("privacy", "balanced", "--set", "check_in={scheme: poisson, rate: 0.1}", *NOISE).out)
    assert ours["poisson_epsilon"] == poisson["epsilon"]
    assert ours["expected_cohort"] == poisson["expected_cohort"]
    assert ours["epsilon"]["upper"] < poisson["epsilon"]["lower"]
    assert poisson["poisson_epsilon"] is None


def test_it_is_shown_where_there_is_a_choice(fedamp):
    assert "by Poisson sampling" in fedamp("privacy", "balanced", *NOISE[:-1]).out
    assert "by Poisson sampling" not in fedamp("privacy", "baseline", *NOISE[:-1]).out


def test_the_risk_is_told_in_words(fedamp):
    """Phi(Phi^-1(0.01) + 1) = 0.0924 for one round with everybody and noise 1; a record or a group is named as such."""
    once = ("--set", "rounds=1", "--set", "check_in={scheme: all}", "--set", "privacy.noise_multiplier=1")
    answer = json.loads(fedamp("privacy", "balanced", *once, "--set", "privacy.epsilon=null", "--json").out)
    risk = answer["risk"]
    assert risk["false_positive_rate"] == 0.01
    assert risk["true_positive_rate"]["lower"] <= 0.09236 <= risk["true_positive_rate"]["upper"] < 0.0926
    assert risk["in_words"] == (
        "Somebody who suspects that you took part, and accepts a false alarm in 1 of 100 cases in which you did not, "
        "is right in at most 9.3 of 100 cases in which you did."
    )
    groups = fedamp("privacy", "balanced", *once, "--set", "privacy.group_size=3", "--set", "privacy.epsilon=null")
    assert "a group of 3 clients took part" in " ".join(groups.out.replace("│", " ").split())


def test_without_noise_neither_is_private(fedamp):
    bare = ("--set", "privacy.noise_multiplier=0", "--set", "privacy.epsilon=null", "--json")
    answer = json.loads(fedamp("privacy", "balanced", *bare).out)
    assert answer["epsilon"]["upper"] is answer["poisson_epsilon"]["upper"] is None


def test_what_is_said_of_an_epsilon_is_said_of_that_number():
    """The curve over rounds keeps one upper end for rounds that a fresh question answers more sharply, or less."""
    plan = make_plan(small(), 60)
    said = []
    for rounds in (2, 7, 8):
        spent, fresh = plan.spent(rounds), plan.mechanism.after(rounds).epsilon(delta_left(plan.scenario.privacy.delta))
        assert spent.upper == plan.epsilon_by_round[rounds - 1]
        assert spent.lower <= spent.upper
        assert spent.method == (fresh.method if spent.upper == fresh.upper else CURVE)
        said.append(spent.method)
    assert CURVE in said
    assert said[-1] != CURVE


def test_costs_that_another_process_has_computed_are_the_plans_own():
    here, there, others = make_plan(small(), 60), make_plan(small(), 60), make_plan(small(), 61)
    computed = there.costs()
    here.take(computed)
    others.take(computed)  # of a plan for one unit more
    assert "planned_epsilon" in vars(here)
    assert "planned_epsilon" not in vars(others)
    fresh = make_plan(small(), 60)
    assert (here.noise_multiplier, here.planned_epsilon, here.spent(8)) == (
        fresh.noise_multiplier,
        fresh.planned_epsilon,
        fresh.spent(8),
    )
    assert here.epsilon_by_round.tolist() == fresh.epsilon_by_round.tolist()
