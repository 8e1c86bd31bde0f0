"""Tuning with charge: one budget for the trials and the run, no public record is used, one number for all of it."""

import json
from hashlib import sha256
from itertools import count, pairwise

import numpy as np
import pytest
from scipy.optimize import brentq

import fedamp
from fedamp import rng
from fedamp.errors import FedampError, InputError, Interrupted, ScenarioError
from fedamp.extensions.population.store import Population, PopulationError
from fedamp.extensions.tune import tune as module
from fedamp.extensions.tune.sweep import random_points
from fedamp.extensions.tune.tune import CHOSEN, FILE, TuneRecord
from fedamp.runs.folder import RunFolder, begun_runs, read_summary
from fedamp.runs.total import total
from tests.accounting.oracles import gaussian_delta

GRID = {"server.learning_rate": [0.01, 1.0]}
BASE = {
    "name": "tuned",
    "data": {"name": "synthetic", "clients": 300, "records_per_client": 5},
    "model": {"name": "logistic"},
    "rounds": 4,
    "check_in": {"scheme": "all"},
    "client": {"steps": 2, "learning_rate": 0.5},
    "evaluation": {"on": "clients", "noise_multiplier": 8.0},
    "privacy": {"clip": 0.5, "epsilon": 6.0, "delta": 1e-5, "precision": 0.05},
    "engine": {"kind": "serial"},
}


def scenario(**changes):
    return fedamp.load(BASE, **changes)


@pytest.fixture
def known_noise(monkeypatch):
    """Runs with a known seed are not tuned, and the noise decides which rate is chosen."""
    _know(monkeypatch)


def _know(patch):
    seeds = (int.from_bytes(sha256(str(number).encode()).digest()) for number in count())
    patch.setattr(rng, "seed_from_system", lambda: next(seeds))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuning")
    with pytest.MonkeyPatch.context() as patch:
        _know(patch)
        return fedamp.tune(scenario(), GRID, folder / "tuned", jobs=1)


def test_the_trials_and_the_run_cost_the_budget_together(tuned):
    """Oracle: everybody is in every round, so all is one Gaussian use, whose cost is known in closed form."""
    record = TuneRecord.read(tuned.folder / FILE)
    squares = 2 * 4 / record.trial_noise**2 + 4 / record.noise**2 + 3 / 8.0**2
    mu = brentq(lambda mu: gaussian_delta(6, 1 / mu) - 1e-5, 0.1, 5)
    assert squares == pytest.approx(mu**2, rel=2e-3)
    assert squares <= mu**2
    assert 2 * 4 / record.trial_noise**2 == pytest.approx(0.2 * (squares - 3 / 8.0**2), rel=1e-6), "the share of trials"
    run = fedamp.run(tuned.scenario, out=tuned.folder.parent / "run", anyway=True)
    whole = total([*begun_runs([tuned.folder]), run.folder])
    assert whole["fixed"]["upper"] == pytest.approx(record.epsilon.upper, rel=1e-3)
    assert whole["fixed"]["upper"] <= 6.0
    assert run.summary.evaluated is not None


def test_the_best_charged_evaluation_decides_and_no_public_record_is_looked_at(tuned):
    record, folders = tuned.record, begun_runs([tuned.folder])
    summaries = [read_summary(folder) for folder in folders]
    released = [summary.evaluated.of("score").value for summary in summaries]
    assert released == [trial.score for trial in record.trials]
    assert record.chosen == record.trials[int(np.argmax(released))].settings == {"server.learning_rate": 1.0}
    assert [summary.final.score for summary in summaries] == [None, None]
    ledgers = [json.loads(RunFolder(folder).ledger.read_text()) for folder in folders]
    assert all("8" in str(ledger["mechanism"]) for ledger in ledgers)
    chosen = fedamp.load(tuned.folder / CHOSEN)
    assert (chosen.server.learning_rate, chosen.privacy.noise_multiplier) == (1.0, record.noise)
    assert chosen.privacy.epsilon is None


def test_the_noise_in_the_model_of_a_trial_is_that_of_the_run(tuned):
    """``clip: 0.5`` here; with ``auto`` the rule of the clip does it."""
    rates = [fedamp.load(folder / "scenario.yaml").server.learning_rate for folder in begun_runs([tuned.folder])]
    factor = tuned.record.trial_noise / tuned.record.noise
    assert [rate * factor for rate in rates] == pytest.approx([0.01, 1.0])


def test_random_search_tries_and_pays_for_some_combinations_of_the_grid(tmp_path):
    grid = {"server.learning_rate": [0.01, 0.1, 1.0, 2.0], "client.steps": [1, 2]}
    base = scenario(rounds=1)
    found = fedamp.tune(base, grid, tmp_path / "tuned", jobs=1, trials=2).record
    alone = [module.split(module.make_plan(base, 300), [trials], 0.2).stages[0] for trials in (2, 8)]
    assert found.trial_noise == alone[0] < alone[1], "two trials have less noise than eight"
    tried = [trial.settings for trial in found.trials]
    assert tried == random_points(grid, 2, base.seed)
    assert found.chosen in tried
    assert len(begun_runs([tmp_path / "tuned"])) == 2
    with pytest.raises(FedampError, match="a trial of another grid"):  # whose cost would not be counted
        fedamp.tune(base, grid, tmp_path / "tuned", jobs=1, trials=1)
    for wrong in (0, 9):
        with pytest.raises(ScenarioError, match=f"trials: got {wrong}; expected: from 1 to the 8 combinations"):
            fedamp.tune(base, grid, tmp_path / "none", jobs=1, trials=wrong)
    assert not (tmp_path / "none").exists()
    drawn = [tuple(map(str, random_points(grid, 2, seed))) for seed in range(200)]
    assert len(set(drawn)) == 28  # each of 28 pairs is missed by 200 draws with a chance of 7e-4; seeds are fixed


def test_halving_plays_the_best_again_with_less_noise_for_the_same_budget(tmp_path, known_noise, monkeypatch):
    """Oracle: everybody is in the one round of each run, so all is one Gaussian use, whose cost has a closed form."""
    grid = {"server.learning_rate": [0.01, 0.1, 0.5, 1.0, 2.0]}
    base, folder, real = scenario(rounds=1), tmp_path / "tuned", module.sweep

    def killed_before_stage_2(load, lists, *rest, chosen):
        if any(each["stage"] == 2 for each in chosen):
            raise Interrupted("killed")
        return real(load, lists, *rest, chosen=chosen)

    with monkeypatch.context() as patch:
        patch.setattr(module, "sweep", killed_before_stage_2)
        with pytest.raises(Interrupted):
            fedamp.tune(base, grid, folder, jobs=1, halving=2)
    first = {run: (run / "ledger.json").read_bytes() for run in begun_runs([folder])}
    assert len(first) == len(total(list(first))["runs"]) == 5, "what has begun counts without tune.json"
    tuned = fedamp.tune(base, grid, folder, jobs=1, halving=2)
    assert {run: (run / "ledger.json").read_bytes() for run in first} == first, "no trial is played twice"
    record = TuneRecord.read(folder / FILE)
    assert [trial.stage for trial in record.trials] == [1] * 5 + [2] * 3 + [3] * 2
    ranks = [{str(each.settings): each.score for each in record.trials if each.stage == stage} for stage in (1, 2, 3)]
    for before, after in pairwise(ranks):
        assert set(after) == set(sorted(before, key=before.get, reverse=True)[: len(after)])
    assert str(record.chosen) == max(ranks[2], key=ranks[2].get)
    stages = [trials / noise**2 for trials, noise in zip((5, 3, 2), record.stage_noise, strict=True)]
    assert stages == pytest.approx([sum(stages) / 3] * 3), "stages have equal parts"
    assert sum(stages) / (sum(stages) + 1 / record.noise**2) == pytest.approx(0.2)
    mu = brentq(lambda mu: gaussian_delta(6, 1 / mu) - 1e-5, 0.1, 5)
    assert sum(stages) + 1 / record.noise**2 + 11 / 8.0**2 == pytest.approx(mu**2, rel=2e-3)
    run = fedamp.run(tuned.scenario, out=tmp_path / "run", anyway=True)
    whole = total([*begun_runs([folder]), run.folder])
    assert len(whole["runs"]) == 11
    assert whole["fixed"]["upper"] == pytest.approx(record.epsilon.upper, rel=1e-3)
    for halving in (None, 3):
        with pytest.raises(FedampError, match="of another"):  # whose cost would not be counted
            fedamp.tune(base, grid, folder, jobs=1, halving=halving)
    for halving in (1, 5):
        with pytest.raises(ScenarioError, match=f"halving: got {halving} with 5 trials; expected: at least 2"):
            fedamp.tune(base, grid, tmp_path / "none", jobs=1, halving=halving)
    assert not (tmp_path / "none").exists()


def test_it_is_resumed_and_plays_no_trial_twice(tuned, monkeypatch):
    before = {folder: (folder / "ledger.json").read_bytes() for folder in begun_runs([tuned.folder])}
    record = (tuned.folder / FILE).read_bytes()
    (tuned.folder / FILE).unlink()
    again = fedamp.tune(scenario(), GRID, tuned.folder, jobs=1)
    assert {folder: (folder / "ledger.json").read_bytes() for folder in before} == before
    assert (again.folder / FILE).read_bytes() == record
    with pytest.raises(InputError, match="a run of another scenario"):  # more trials have other noise
        fedamp.tune(scenario(), {"server.learning_rate": [0.01, 1.0, 2.0]}, tuned.folder, jobs=1)
    with pytest.raises(InputError, match="a trial of another grid, server"):
        fedamp.tune(scenario(), {"server.learning_rate": [0.01, 2.0]}, tuned.folder, jobs=1)
    assert begun_runs([tuned.folder]) == [*before]


def test_a_population_pays_for_all_of_it_or_nothing_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_HOME", str(tmp_path / "home"))
    file = tmp_path / "people.db"
    Population.new(file, [(str(unit), str(unit)) for unit in range(300)], 7.0, 1e-5)
    asked = scenario(**{"privacy.population": str(file)})
    folder = tmp_path / "tuned"
    grid = {"server.learning_rate": [0.01, 0.1, 1.0]}
    tuned = fedamp.tune(asked, grid, folder, jobs=1, halving=2)
    fedamp.run(tuned.scenario, out=tmp_path / "run", anyway=True)
    contents = Population(file).read()
    uses = [(use.name, use.state) for use in contents.uses.values()]
    assert uses == [("tuned-trial", "settled")] * (3 + 2) + [("tuned", "settled")]
    assert 0.5 < contents.spent().max() <= 1
    with pytest.raises(
        PopulationError, match=r"of the budget left, and all of them cost .*; expected: a smaller"
    ) as error:
        fedamp.tune(asked, grid, tmp_path / "again", jobs=1, halving=2)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "again").exists()
    assert len(Population(file).read().uses) == 6


def test_a_trial_that_did_not_end_is_no_reason_to_choose_among_the_others(tmp_path, monkeypatch):
    grid = {"client.learning_rate": [0.5, 0.1]}
    real = module.sweep

    def one_is_interrupted(load, lists, *rest, chosen):
        swept = real(load, lists, *rest, chosen=chosen)
        (swept.folder / "runs" / "client.learning_rate=0.1" / "summary.json").unlink()
        return module.Sweep(swept.folder, swept.scenario, swept.grid, swept.runs)

    monkeypatch.setattr(module, "sweep", one_is_interrupted)
    with pytest.raises(FedampError, match="1 of 2 trials are unfinished"):
        fedamp.tune(scenario(), grid, tmp_path / "tuned", jobs=1)
    assert not (tmp_path / "tuned" / CHOSEN).exists()


@pytest.mark.parametrize(
    ("changes", "grid", "message"),
    [
        ({"evaluation": None}, GRID, "nothing judges a trial"),
        ({"evaluation": {"on": "clients", "noise_multiplier": 8, "every": 2}}, GRID, "nothing judges a trial"),
        ({"privacy.noise_multiplier": 3.0}, GRID, "noise_multiplier auto"),
        ({"known_seed": True}, GRID, "all runs have the same noise"),
        ({}, {"rounds": [4, 5]}, "settings cost differently"),
        ({}, {"seed": [1, 2]}, "seed cannot be tuned"),
        ({}, {"privacy.epsilon": [1, 2]}, "privacy.epsilon cannot be tuned"),
        ({"evaluation.noise_multiplier": 0.3}, GRID, "no noise keeps privacy.epsilon 6"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_made(tmp_path, changes, grid, message):
    with pytest.raises(ScenarioError, match=message) as error:
        fedamp.tune(scenario(**changes), grid, tmp_path / "tuned", jobs=1)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "tuned").exists()


def test_the_command_prints_one_number_for_all_of_it(fedamp, tmp_path, known_noise):
    file = tmp_path / "tuned.yaml"
    file.write_text(scenario().to_yaml())
    folder = tmp_path / "tuned"
    answer = fedamp("tune", file, "--grid", "server.learning_rate=0.01,1", "--out", folder, "--jobs", 1, "--json")
    assert answer.status == 0
    told = json.loads(answer.out)
    assert told["chosen"] == {"server.learning_rate": 1}
    whole = json.loads(fedamp("total", folder, "--json").out)
    assert len(whole["runs"]) == 2
    assert whole["fixed"]["upper"] < told["epsilon"]["upper"] <= 6
