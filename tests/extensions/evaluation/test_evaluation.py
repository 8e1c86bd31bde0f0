"""What an evaluation costs, and whether its intervals cover the truth as often as they say."""

import json
import math

import numpy as np
import pytest
import yaml

from fedamp.accounting import Allocation, Compose, Gaussian, Poisson, Repeat
from fedamp.errors import ScenarioError
from fedamp.extensions.evaluation.section import ClientEvaluation, share_of
from fedamp.federation import reader
from fedamp.federation.plan import make_plan
from tests.federations import small

# The precision is that of a scenario: with the suite's usual one the bracket is wider than the bar.
LARGE = [
    "data={name: synthetic, clients: 6000}",
    "rounds=60",
    "privacy={clip: 0.5, noise_multiplier: 1.622, precision: 0.005}",
]


def asked(**keys) -> ClientEvaluation:
    return ClientEvaluation.model_validate({"on": "clients", "noise_multiplier": 20} | keys)


def plan(*overrides, **keys):
    evaluation = json.dumps({"on": "clients", "noise_multiplier": 20} | keys)
    scenario = small(*overrides, f"evaluation={evaluation}")
    return make_plan(scenario, scenario.data.clients)


@pytest.mark.slow
def test_at_6000_clients_and_epsilon_1_a_third_of_a_point_costs_a_fiftieth():
    """The bar: standard deviation .33 points for .02 of epsilon."""
    without = make_plan(small(*LARGE), 6000).charge.planned_epsilon.upper
    with_ = plan(*LARGE).charge.planned_epsilon.upper
    assert 0.99 < without < 1.0 < with_ < without + 0.021
    for right in (0.5, 0.819, 1.0):  # the deviation is largest at the ends
        found = asked().released(60, np.array([right, 1 - right]) * 6000, 20.0, 6000).of("score")
        assert (found.upper - found.lower) / 2 <= 1.96 * 0.0034


def test_noise_alone_is_covered_as_often_as_it_says():
    """Fieller's interval is exact: 95 % of 2,000 draws within four deviations of a binomial, also of tiny groups."""
    generator, draws = np.random.default_rng(5), 2000
    for part, rest, deviation in ((410.0, 90.0, 20.0), (4.0, 1.0, 8.0), (30.0, 0.0, 3.0)):
        truth, hits = part / (part + rest), 0
        for _ in range(draws):
            _, lower, upper = share_of(
                part + generator.normal(0, deviation), rest + generator.normal(0, deviation), deviation
            )
            hits += lower <= truth <= upper
        assert hits / draws >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / draws)
        assert (
            hits / draws <= 0.95 + 4 * math.sqrt(0.95 * 0.05 / draws) or part + rest < 6 or rest == 0
        )  # cut to [0, 1]


def test_people_drawn_from_a_population_are_covered_at_least_as_often_as_it_says():
    generator, draws, people, chance = np.random.default_rng(6), 1000, 300, 0.8
    hits = narrow = 0
    for _ in range(draws):
        right = float(generator.binomial(1, chance, people).sum())
        sums = np.array([right, people - right]) + generator.normal(0, 3, 2)
        found = asked().released(1, sums, 3.0, people).of("score")
        hits += found.people_lower <= chance <= found.people_upper
        narrow += found.lower <= chance <= found.upper
    assert hits / draws >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / draws)
    assert narrow / draws < 0.9, "noise alone does not cover who was drawn"


def test_nothing_is_known_where_noise_is_all_there_is():
    for part, rest in ((0.0, 0.0), (-3.0, 1.0), (2.0, -2.0), (-9.0, -9.0)):
        value, lower, upper = share_of(part, rest, 20.0)
        assert (lower, upper) == (0.0, 1.0)
        assert 0 <= value <= 1


def test_at_the_end_it_is_one_more_release_which_every_round_reserves():
    """Oracle: the expressions as the accountant's own words have them."""
    charge = plan("rounds=8").charge
    assert charge.mechanism == Compose((Gaussian(20.0), Allocation(Gaussian(1.0), 3, 8)))
    for rounds in (1, 5, 8):
        cost = Compose((Gaussian(20.0), Allocation(Gaussian(1.0), 3, 8).after(rounds))).epsilon(1e-5)
        assert charge.epsilon_by_round[rounds - 1] >= cost.lower
    assert charge.epsilon_by_round[-1] == charge.planned_epsilon.upper
    assert charge.unamplified_epsilon.upper >= Repeat(Gaussian(1.0), 3).epsilon(1e-5).lower


def test_in_rounds_it_is_amplified_with_them():
    inside = Compose((Gaussian(1.0), Gaussian(20.0)))
    assert plan(every=1).charge.mechanism == Allocation(inside, 3, 8)
    # A hidden choice over rounds of two kinds is charged as if each evaluated.
    assert plan(every=4).charge.mechanism == Allocation(inside, 3, 8)
    poisson = plan("check_in={scheme: poisson, rate: 0.2}", every=4).charge.mechanism
    apart = (Repeat(Poisson(inside, 0.2), 2), Repeat(Poisson(Gaussian(1.0), 0.2), 6))
    assert poisson == Compose(apart)


@pytest.mark.parametrize(("rounds", "every"), [(1, "end"), (2, "end"), (3, "end"), (2, 2), (3, 2), (1, 1)])
def test_short_runs_cost_what_they_release(rounds, every):
    """Oracle: Gaussians add up as squares. In two rounds both are charged as if they evaluated."""
    for check_in in ("check_in={scheme: all}", "check_in={scheme: batches, size: 20}"):
        charge = plan(f"rounds={rounds}", check_in, every=every).charge
        assert len(charge.epsilon_by_round) == len(charge.unamplified_epsilon_by_round) == rounds
        assert charge.epsilon_by_round[-1] == pytest.approx(charge.planned_epsilon.upper)
    evaluations = 1 if every == "end" else 2 if rounds == 2 else rounds // every
    alone = plan(f"rounds={rounds}", "check_in={scheme: all}", every=every).charge.planned_epsilon
    exact = Gaussian((rounds + evaluations / 20.0**2) ** -0.5).epsilon(1e-5)
    assert alone.upper == pytest.approx(exact.upper, rel=1e-9)


def test_batches_pay_for_a_substitution():
    """Another person's contribution is up to two away: half the noise multiplier."""
    plans = plan("check_in={scheme: batches, size: 30}", noise_multiplier=2.0)
    found = plans.sections["evaluation"].cost(plans)
    assert found.epsilon(1e-5).upper == pytest.approx(Gaussian(1.0).epsilon(1e-5).upper, rel=1e-9)


def test_auto_noise_leaves_room_for_the_evaluation():
    auto = "privacy={clip: 0.5, noise_multiplier: auto, epsilon: 4}"
    poisson = "check_in={scheme: poisson, rate: 0.4}"  # quick to account for
    with_, without = plan(auto, poisson, noise_multiplier=8.0), make_plan(small(auto, poisson), 60)
    assert with_.noise_multiplier > without.noise_multiplier
    assert with_.charge.planned_epsilon.upper <= 4
    assert with_.charge.affordable_rounds == 8


def test_a_budget_of_its_own_gives_its_noise():
    found = plan(noise_multiplier=None, epsilon=0.5)
    assert Gaussian(found.sections["evaluation"].noise_multiplier).epsilon(1e-5).upper == pytest.approx(0.5, rel=1e-3)


def test_groups_and_metrics_share_the_norm_and_not_the_cost():
    section = asked(metrics=["score", "loss", "calibration"], by={"a": "0-9", "b": "10-19"}, bins=5)
    assert section.number_of_cells == 3 * (2 + 2 + 10)
    assert section.slot_of(np.array([0, 9, 10, 19, 20])).tolist() == [0, 0, 1, 1, 2]
    sums = np.zeros((3, 14))
    sums[0, :4] = np.array([80, 20, 30, 70]) * section.block_weight
    sums[1, :2] = np.array([10, 40]) * section.block_weight
    found = section.released(1, sums.ravel(), 1e-9, 200)
    assert found.of("score", "a").value == pytest.approx(0.8)
    assert found.of("score", "b").value == pytest.approx(0.2)
    assert found.of("score").value == pytest.approx(0.6)
    assert found.of("loss", "a").value == pytest.approx(0.3 * section.loss_at_most)
    assert found.of("units", "a").value == pytest.approx(100)
    assert plan(by={"a": "0-29"}).charge.mechanism == plan().charge.mechanism


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"noise_multiplier": None}, "evaluation: give noise_multiplier or epsilon, one of both"),
        ({"epsilon": 1.0}, "evaluation: give noise_multiplier or epsilon, one of both"),
        ({"by": "region"}, "evaluation: groups: the values of the column that by names, and only with such a column"),
        ({"by": {"others": "0"}}, "'others' is empty, reserved or duplicated"),
        ({"by": {"all people": "0"}}, "'all people' is empty, reserved or duplicated"),
        ({"by": {"a": "x"}}, "evaluation: by.a must be ids and ranges such as 0-9,12, got 'x'"),
        ({"by": {"a": "0-99"}}, "evaluation.by.a: there is no client 99; expected: 0-59"),
        ({"metrics": []}, "evaluation.metrics"),
        ({"metrics": ["score", "score"]}, "duplicate metric"),
        ({"share": 1.0}, "evaluation.share"),
    ],
)
def test_what_makes_no_sense_is_one_line(keys, line):
    with pytest.raises(ScenarioError) as caught:
        plan(**keys)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yaml_may_read_its_first_key_as_a_truth_value():
    raw = yaml.safe_load(small().to_yaml()) | yaml.safe_load("evaluation: {on: clients, noise_multiplier: 20}")
    assert True in raw["evaluation"]
    assert reader.validate_scenario(raw, "a mapping").evaluation == asked()
    assert small().evaluation is None
    assert "evaluation" not in small().to_yaml()
