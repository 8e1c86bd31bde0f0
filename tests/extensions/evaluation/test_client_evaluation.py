"""Runs that are evaluated on their clients' own held-out records, and nothing else: simulated, plain and secure."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest

from fedamp.engines.engines import CLIENT_APP, with_faults
from fedamp.engines.simulation import SerialGrid
from fedamp.errors import FederationError
from fedamp.extensions.pages.release import release
from fedamp.runs.records import LedgerRecord
from fedamp.runs.run import read_run
from fedamp.runs.verification import verify_ledger, verify_release
from fedamp.server.loop import ask, play_side_sum
from fedamp.server.setup import prepare
from fedamp.strategies.private import PrivateStrategy
from tests.chains import change_ledger
from tests.extensions.secure.consortium import Consortium
from tests.federations import small
from tests.server.plays import Crash, Killed, ledger_of, play_in

ALONE = ("data={name: digits, clients: 60, test_is_public: false}", "data.partition={scheme: dirichlet, alpha: 1}")
SECURE = "aggregation={scheme: secure, nodes: 6, dropped: 0.0, colluding: 0.0}"


def federation(*overrides, **keys):
    evaluation = json.dumps({"on": "clients", "noise_multiplier": 5} | keys)
    return small(*ALONE, f"evaluation={evaluation}", *overrides)


def truth(prepared, parameters, units) -> float:
    """Oracle: the mean over clients of the share right among the records that the data set holds out."""
    dataset = prepared.task.data.load(prepared.task.data_seed, None)
    _, held_out = dataset.held_out(prepared.task.evaluation.share, prepared.task.data_seed)
    shares = []
    for unit in units:
        cohort = held_out.gather(np.array([unit]))
        if cohort.sizes[0]:
            inputs = cohort.inputs[0].reshape(len(cohort.inputs[0]), -1)
            logits = inputs @ parameters["output.weight"].T + parameters["output.bias"]
            shares.append((logits.argmax(1) == cohort.labels[0]).mean())
    return float(np.mean(shares))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    play_in(folder, federation(metrics=["score", "loss"], by={"first": "0-19"}))
    return folder


def test_a_run_without_a_test_set_ends_with_a_noisy_score_and_its_brackets(run):
    ledger, found = LedgerRecord.read(run / "ledger.json"), read_run(run)
    assert found.score is None
    assert not ledger.is_evaluated
    assert [check for check in verify_ledger(run) if check.verdict == "fail"] == []
    score = ledger.final_evaluation.of("score")
    assert 0 <= score.people_lower <= score.lower <= score.value <= score.upper <= score.people_upper <= 1
    assert ledger.final_evaluation.of("score", "first") is not None
    assert found.summary.evaluated == ledger.final_evaluation
    assert any("held-out records of the clients" in sentence for sentence in ledger.assumptions)


def test_its_bundle_holds_the_score_and_is_verified(run, tmp_path):
    bundle = release(run, tmp_path / "bundle", tmp_path / "key")
    assert [check for check in verify_release(bundle.folder) if check.verdict == "fail"] == []
    page = (bundle.folder / "certificate.html").read_text()
    assert "score of all people" in page
    assert "by noise alone" in page
    assert "not measured" not in page


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("do not follow from its noisy sums", lambda told: told["estimates"][1].update(value=0.99)),
        ("do not follow from its noisy sums", lambda told: told["sums"].__setitem__(0, 60.0)),
        ("less noise, than is charged", lambda told: told.update(deviation=1.0)),
        ("another round", lambda told: told.update(round=3)),
    ],
)
def test_a_changed_evaluation_fails_verification(run, tmp_path, what, change):
    forged = shutil.copytree(run, tmp_path / "forged")
    change_ledger(forged, lambda ledger: change(ledger["final_evaluation"]))
    wrong = [check.found for check in verify_ledger(forged / "ledger.json") if check.verdict == "fail"]
    assert any(what in found for found in wrong)


def test_an_evaluation_that_is_not_in_the_mechanism_fails_verification(run, tmp_path):
    forged = shutil.copytree(run, tmp_path / "forged")
    change_ledger(forged, lambda ledger: ledger["evaluation"].update(noise_multiplier=4.0))
    wrong = [check.found for check in verify_ledger(forged / "ledger.json") if check.verdict == "fail"]
    assert any("of the evaluation is not in it" in found for found in wrong)


def test_in_rounds_each_cohort_is_evaluated_before_it_trains(tmp_path):
    play_in(tmp_path / "run", federation(every=3))
    ledger = LedgerRecord.read(tmp_path / "run" / "ledger.json")
    assert {entry.round: entry.evaluated.round for entry in ledger.releases if entry.evaluated} == {3: 2, 6: 5}
    assert [check for check in verify_ledger(tmp_path / "run") if check.verdict == "fail"] == []
    assert ledger.final_evaluation is None


def test_a_round_without_a_cohort_releases_its_evaluation_too(tmp_path):
    """Otherwise a missing one would tell that nobody has checked in."""
    play_in(tmp_path / "run", federation("check_in={scheme: poisson, rate: 0.02}", "rounds=12", every=1))
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert 0 in [json.loads(line)["scheduled"] for line in lines]
    assert all("evaluated" in json.loads(line) for line in lines)


def test_a_run_killed_before_its_evaluation_is_evaluated_once(tmp_path):
    scenario, folder = federation(), tmp_path / "run"
    with pytest.raises(Killed):
        play_in(folder, scenario, Crash(scenario.rounds))
    assert "final_evaluation" not in json.loads((folder / "ledger.json").read_text())
    play_in(folder, scenario)
    once = ledger_of(folder)
    assert once["final_evaluation"]["round"] == scenario.rounds
    play_in(folder, scenario)
    assert ledger_of(folder) == once
    play_in(tmp_path / "whole", scenario)
    assert ledger_of(tmp_path / "whole")["final_evaluation"] == once["final_evaluation"], "a known seed"


@pytest.mark.slow
def test_the_interval_covers_the_truth_as_often_as_it_says_in_a_hundred_seeds():
    """Through the whole path: at least 95 % less four deviations of a binomial, and not wider."""
    prepared, hits, widths = prepare(federation(noise_multiplier=3)), 0, []
    right = truth(prepared, prepared.state.parameters, range(60))
    with SerialGrid(CLIENT_APP, "cpu") as grid:
        for seed in range(100):
            pipeline = replace(prepared.pipeline, plan=replace(prepared.plan, seed=seed))
            strategy = PrivateStrategy(pipeline, prepared.task, prepared.state)
            found = play_side_sum(strategy, grid).of("score")
            hits += found.lower <= right <= found.upper
            widths.append(found.upper - found.lower)
    assert hits >= 95 - 4 * math.sqrt(100 * 0.95 * 0.05)
    assert np.median(widths) <= 2 * 1.96 * 3 / 55, "clients without a held-out record are few"


@pytest.mark.parametrize("every", [1, "end"])
@pytest.mark.parametrize("way", ["plain", "secure", "nodes with an agreement"])
def test_with_little_noise_it_is_the_mean_share_right(way, every, tmp_path):
    """All clients at the end, and the cohort in a round; no noise to speak of, so the truth is met."""
    little = {"noise_multiplier": 1e-3, "every": every}
    if way.startswith("nodes"):
        grid = Consortium(tmp_path, f"evaluation={json.dumps({'on': 'clients'} | little)}")
        prepared, strategy = grid.prepared, grid.strategy
    else:
        prepared = prepare(federation(*([SECURE] if way == "secure" else []), **little))
        grid, strategy = SerialGrid(CLIENT_APP, "cpu"), prepared.strategy(prepared.state)
    if every == "end":
        found, units = play_side_sum(strategy, grid), np.arange(prepared.plan.units)
    else:
        found = strategy.release(1, ask(strategy, grid, 1)).side_release
        units = prepared.plan.attendance.cohort_of(1)
    right = truth(prepared, prepared.state.parameters, units)
    # 4 deviations of the noise, in sums of at least five clients, and quanta of the clipping
    assert found.of("score").value == pytest.approx(right, abs=4 * 1e-3 * 1.5 / 5 + 1e-5)


def test_people_pay_for_it_in_their_population():
    prepared = prepare(federation())
    assert prepared.plan.charge.for_person(1) == prepared.plan.charge.mechanism
    assert 5.0 in [part.noise_multiplier for part in prepared.plan.charge.mechanism.mechanisms[:1]]


def test_units_of_the_callers_choice_can_be_evaluated(tmp_path):
    """As tuning does: a public part of the clients, each charged for it."""
    prepared = prepare(federation(noise_multiplier=1e-3))
    some = np.arange(0, 60, 3)
    with SerialGrid(CLIENT_APP, "cpu") as grid:
        found = play_side_sum(prepared.strategy(prepared.state), grid, some)
    assert found.units == 20
    assert found.of("score").value == pytest.approx(truth(prepared, prepared.state.parameters, some), abs=1e-3)
    cost = prepared.plan.sections["evaluation"].cost(prepared.plan, 1e-3)
    assert str(cost) == "Gaussian noise of multiplier 0.001, zero-out"


def test_a_cohort_that_does_not_answer_is_not_released():
    prepared = prepare(federation("faults={failing: 1.0}"))
    with SerialGrid(CLIENT_APP, "cpu") as grid, pytest.raises(FederationError, match="evaluation: none of 60 clients"):
        play_side_sum(prepared.strategy(prepared.state), with_faults(grid, prepared.plan.scenario.faults))
