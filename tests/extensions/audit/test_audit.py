"""What is audited is what is charged; and what the adversary reads is what theory says."""

import json
import math

import numpy as np
import pytest
from scipy.stats import kstest

from fedamp.errors import DataError, FederationError, InputError
from fedamp.extensions.audit import attack
from fedamp.extensions.audit.attack import CanaryFederation, audit, subject_of
from fedamp.federation.plan import Plan
from tests.federations import small

MLP = "model={name: mlp, hidden: [12]}"
SCENARIOS = {
    "all": ["check_in={scheme: all}", "rounds=2"],
    "poisson": ["check_in={scheme: poisson, rate: 0.3}", "rounds=3"],
    "batches": ["check_in={scheme: batches, size: 20}", "rounds=3"],
    "stratified, adaptive": ["check_in={scheme: stratified, k: 2}", "rounds=5", "privacy.clip={initial: 0.2}"],
    "auto": ["rounds=30", "check_in.k=9", "privacy={clip: 0.5, noise_multiplier: auto, epsilon: 3}"],
    "disjoint": ["rounds=2", "check_in.k=1", MLP, "submodels={scheme: disjoint, count: 3, partition: fresh}"],
    "dropout": ["rounds=2", "check_in.k=1", MLP, "submodels={scheme: dropout, shared_noise_multiplier: balanced}"],
    "frozen": ["rounds=2", "check_in.k=1", MLP, "submodels={scheme: dropout, unowned: frozen}"],
    "mixing": ["rounds=3", "check_in.k=1", "server={learning_rate: 0.7}", "mixing={width: [[1, 0.2], [3, 0.1]]}"],
    "banded": ["rounds=4", "check_in={scheme: classes, k: 1, classes: 3}", "privacy.noise={scheme: banded}"],
    "group": ["rounds=3", "check_in.k=1", "privacy.group_size=3"],
    "sample, unamplified": ["rounds=3", "check_in.k=1", "privacy={unit: sample, clip: 0.5, noise_multiplier: 1.0, "
                            "amplification: false}", "client.steps=1"],
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_played_costs_what_is_claimed(name):
    scenario = small(*SCENARIOS[name])
    audited = subject_of(scenario, 5)
    played = Plan(audited.played, audited.units, 0)
    # The width of mixing is carried over by two multiplications and a division.
    assert played.charge.planned_epsilon.upper == pytest.approx(audited.claim.charge.planned_epsilon.upper, rel=1e-9)
    if scenario.rounds <= 5:
        whole = Plan(scenario, audited.claim.units, scenario.seed)
        assert audited.claim.charge.mechanism == whole.charge.mechanism


def test_a_long_scenario_is_shortened_with_the_noise_of_the_whole():
    whole = small(*SCENARIOS["auto"])
    claim = subject_of(whole, 5).claim
    assert (claim.scenario.rounds, claim.scenario.check_in.k) == (5, 2)
    assert claim.noise_multiplier == Plan(whole, 60, 3).noise_multiplier
    assert claim.charge.planned_epsilon.upper < 3


def test_with_nothing_hidden_the_adversary_reads_gaussians():
    """Log-likelihood ratios of n rounds with noise multiplier s: N(+-n / 2 s^2, n / s^2), present and absent."""
    scenario = small("check_in={scheme: all}", "rounds=3", "privacy.noise_multiplier=2", "privacy.clip=0.01")
    present, absent = CanaryFederation(subject_of(scenario, 3)).evidence(60, seed=8)
    for ratios, sign in ((present, 1), (absent, -1)):
        assert ratios.shape == (60, 3, 1)
        # One rejection in a thousand; the seed is fixed.
        assert kstest(ratios.sum(1).ravel(), "norm", (sign * 3 / 8, math.sqrt(3) / 2)).pvalue > 1e-3


@pytest.mark.few(0, 4, 8)
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "all"])
def test_the_right_code_is_not_refuted(name):
    found = audit(small(*SCENARIOS[name]), repetitions=30, rounds=3)
    assert not found.refuted
    assert found.told["canary_strength"] > 0.99
    if name == "disjoint":  # the bounds of the others are seconds of accounting
        answer = found.to_json()
        assert answer["verdict"] == "consistent"
        assert 0 <= answer["epsilon"]["lower"] <= answer["epsilon"]["upper"]


STRONG = {
    "independent": ["check_in={scheme: all}", "rounds=1"],
    # What one round leaves in three rows, by an adversary who puts them together.
    "banded": ["check_in={scheme: classes, k: 1, classes: 3}", "rounds=3", "privacy.noise={scheme: banded}"],
}


@pytest.mark.few(0)
@pytest.mark.parametrize("noise", STRONG)
def test_a_strong_leak_is_seen_though_it_is_charged(noise):
    scenario = small(*STRONG[noise], "privacy.noise_multiplier=0.25")
    found = audit(scenario, repetitions=150)
    assert not found.refuted
    # The truth is 24. Of 150 guesses all may be right, which noise of up to 0.36 gives one time in twenty: epsilon 15.
    assert 10 < found.lower(found.guesses[0]) < found.charged.upper
    json.dumps(found.to_json(), allow_nan=False)  # infinite ends are null


NOT_AUDITED = [
    (["privacy.noise_multiplier=0"], {}, "nothing is claimed"),
    ([], {"repetitions": 19}, "--repetitions 19: expected: at least 20"),
    ([], {"rounds": 0}, "--rounds 0: expected: at least 1"),
]


@pytest.mark.parametrize(("overrides", "arguments", "words"), NOT_AUDITED)
def test_what_cannot_be_audited_is_refused_in_one_line(overrides, arguments, words):
    with pytest.raises(InputError, match=words) as caught:
        audit(small(*overrides), **arguments)
    assert "\n" not in str(caught.value)


def test_a_canary_that_cannot_be_trained_is_no_good_news(monkeypatch):
    federation = CanaryFederation(subject_of(small(*SCENARIOS["all"]), 2))

    def broken(*_: object) -> None:
        raise RuntimeError("no gradient today")

    monkeypatch.setattr("fedamp.client.worker.clip_and_sum", broken)
    with pytest.raises(FederationError, match=r"could not be trained: client .*: RuntimeError: no gradient today"):
        federation.evidence(1, 0)


def test_a_canary_that_hardly_moves_the_model_is_refused(monkeypatch):
    monkeypatch.setattr(attack, "_STRETCH", 1e-3)
    with pytest.raises(DataError, match=r"the canary, is .* of the clipping norm"):
        audit(small(*SCENARIOS["all"]))


def test_faults_happen_as_in_a_run_and_hide_nothing(capfd):
    scenario = small("check_in={scheme: all}", "rounds=3", "faults={failing: 0.5, seed: 1}")
    assert not audit(scenario, repetitions=20).refuted
    assert capfd.readouterr().err == ""


def test_the_seed_decides_the_repetitions():
    federation = CanaryFederation(subject_of(small(*SCENARIOS["all"]), 2))
    first, again, other = (federation.evidence(2, seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[0], first[1])
