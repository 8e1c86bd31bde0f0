"""Canaries of a real run: what they change, what the guesses show, and that planted mistakes are found at once."""

import json

import numpy as np
import pytest

from fedamp import noise
from fedamp.engines.engines import CLIENT_APP
from fedamp.engines.simulation import SerialGrid
from fedamp.extensions.audit.bound import AuditResult
from fedamp.extensions.audit.canaries import attack
from fedamp.federation.check_in import CANARY
from fedamp.federation.plan import Plan, make_plan
from fedamp.server.loop import ask
from fedamp.server.setup import prepare
from fedamp.strategies.aggregation import ClippedSums
from tests.extensions.audit import planted
from tests.federations import small, write_small

CANARIES = 600
MLP, HIDDEN = "model={name: mlp, hidden: [256]}", "privacy.noise_multiplier=0.7"


def audited(*overrides, seed=None):
    """All rounds of the small federation with canaries, and the attack on its models."""
    prepared = prepare(small(MLP, f"privacy.canaries={CANARIES}", *overrides), seed)
    strategy, models = prepared.strategy(prepared.state), [prepared.state.parameters]
    with SerialGrid(CLIENT_APP) as grid:
        for round_ in range(1, prepared.plan.scenario.rounds + 1):
            strategy.release(round_, ask(strategy, grid, round_))
            models.append(strategy.state.parameters)
    plan = prepared.plan
    return AuditResult((plan,), attack(plan, models, plan.canary_coins))


def too_little_noise(monkeypatch):
    right = noise.add_noise
    half = lambda sums, deviations, *rest: right(sums, {name: each / 2 for name, each in deviations.items()}, *rest)  # noqa: E731
    monkeypatch.setattr(noise, "add_noise", half)


def batches_counted_twice(monkeypatch):
    right = ClippedSums.aggregate

    def wrong(self, replies, asked):
        total = right(self, replies, asked)
        total.sums = {name: 2 * array for name, array in total.sums.items()}
        return total

    monkeypatch.setattr(ClippedSums, "aggregate", wrong)


def check_ins_by_the_public_seed(monkeypatch):
    right = Plan.attendance.func

    def wrong(self):
        attendance = right(Plan(self.scenario, self.units, self.scenario.seed))
        attendance._coins = self.canary_coins
        return attendance

    monkeypatch.setattr(Plan, "attendance", property(wrong))


PLANTED = {
    "noise of half": too_little_noise,
    "a batch counted twice": batches_counted_twice,
    "check-ins that are not hidden": check_ins_by_the_public_seed,
    "a clip that does not clip": planted.no_clipping_on_the_client,
}


@pytest.mark.slow
def test_right_code_is_not_refuted_and_the_attack_comes_near_the_charge():
    found = audited(HIDDEN)
    assert not found.refuted
    assert 0.3 * found.charged.upper < found.lower(found.guesses[0]) < found.charged.upper
    assert found.lower_if_dependent(found.guesses[0]) <= found.lower(found.guesses[0])
    answer = found.to_json()
    json.dumps(answer, allow_nan=False)
    assert answer["verdict"] == "consistent"
    assert [each["attack"] for each in answer["findings"]] == ["all models", "the last model"]


@pytest.mark.few(0, 2)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found_in_one_run(name, monkeypatch):
    """By 300 guesses: each mistake is more than five standard errors away, so noise without a seed changes nothing."""
    PLANTED[name](monkeypatch)
    found = audited("rounds=24", "privacy.noise_multiplier=1.2", "known_seed=false", seed=5)
    assert found.refuted
    assert found.lower(max(found.guesses, key=lambda each: each.surest(0.5)[1])) > found.charged.upper


def test_canaries_change_neither_the_charge_nor_the_check_ins_of_people():
    for scheme in ("{scheme: balanced, k: 3}", "{scheme: poisson, rate: 0.4}", "{scheme: spaced, k: 2, gap: 2}"):
        with_them, without = (
            make_plan(small(f"check_in={scheme}", f"privacy.canaries={number}"), 60) for number in (CANARIES, 0)
        )
        assert with_them.charge.mechanism == without.charge.mechanism
        assert with_them.parts == without.parts
        present = np.zeros(CANARIES, dtype=bool)
        for round_ in range(1, 9):
            cohort = with_them.attendance.cohort_of(round_)
            assert np.array_equal(cohort[cohort < 60], without.attendance.cohort_of(round_))
            present[cohort[cohort >= 60] - CANARY] = True
        assert not present[~with_them.canary_coins].any()
        # A Poisson canary is in no round with probability 0.6^8, below 2 %.
        assert present[with_them.canary_coins].mean() > 0.95


def test_more_rounds_than_coordinates_can_be_attacked():
    plan = make_plan(small("rounds=40", "privacy.canaries=30"), 60)
    walk = np.random.default_rng(3).normal(size=(41, 5, 6)).cumsum(0).astype(np.float32)
    found = attack(plan, [{"weight": each, "frozen": walk[0]} for each in walk], plan.canary_coins)
    assert all(np.isfinite(guesses.scores).all() for guesses in found)


@pytest.mark.slow
def test_a_run_is_audited_by_its_folder(fedamp, tmp_path):
    scenario, run = write_small(tmp_path, MLP, HIDDEN), tmp_path / "run"
    assert fedamp("run", scenario, "--set", "privacy.canaries=60", "--out", run, "--quiet").status == 0
    answer = fedamp("audit", run, "--json")
    found = json.loads(answer.out)
    assert (answer.status, found["verdict"], found["canaries"]) == (0, "consistent", 60)
    assert 0 < found["share_of_cohort"] < 0.6
    assert fedamp("verify", run).status == 0
    assert fedamp("run", scenario, "--out", tmp_path / "other", "--quiet").status == 0
    answer = fedamp("audit", tmp_path / "other")
    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert "no canaries to guess" in answer.err


@pytest.mark.slow
def test_a_series_of_runs_is_attacked_against_what_all_of_it_costs(fedamp, tmp_path, monkeypatch):
    """A person is in both runs. Half the noise in one of them is seven standard errors away, by 500 guesses."""
    scenario = write_small(
        tmp_path, MLP, "privacy.noise_multiplier=2.5", "evaluation={on: clients, noise_multiplier: 9}"
    )
    one, two = runs = [tmp_path / "one", tmp_path / "two"]
    asked = ("run", scenario, "--quiet", "--set", "privacy.canaries=1000")
    assert fedamp(*asked, "--out", one).status == 0
    assert fedamp(*asked, "--set", "seed=9", "--out", two).status == 0
    answer, cost = fedamp("audit", *runs, "--json"), json.loads(fedamp("total", *runs, "--json").out)
    found = json.loads(answer.out)
    assert (answer.status, found["verdict"]) == (0, "consistent")
    precision = 0.05  # of the scenario, and so of the audit; the total is as exact, or more
    assert found["epsilon"]["upper"] == pytest.approx(cost["fixed"]["upper"], rel=precision)
    assert found["epsilon"]["lower"] < found["epsilon"]["upper"] < found["adaptive_epsilon"]
    too_little_noise(monkeypatch)
    wrong = tmp_path / "wrong"
    assert fedamp(*asked, "--set", "seed=9", "--out", wrong).status == 0
    answer = fedamp("audit", one, wrong, "--json")
    assert (answer.status, json.loads(answer.out)["verdict"]) == (1, "refuted")
    assert answer.err.startswith("failed: audit: epsilon ")
