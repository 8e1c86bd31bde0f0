"""Run folders are read whole or refused in one line."""

import json
import shutil

import pytest

from fedamp.errors import RunFolderError
from fedamp.runs.merged import read_models
from fedamp.runs.run import read_run
from tests.chains import forge


def test_a_run_is_read_as_it_was_played(runs):
    run = read_run(runs["hidden"])
    assert [record.round for record in run.rounds] == list(range(1, 9))
    assert run.plan.noise_multiplier == run.ledger.parts[0].noise_multiplier
    assert list(run.plan.epsilon_by_round) == [release.epsilon_upper for release in run.ledger.releases]
    assert run.is_amplified
    assert run.unamplified_epsilon == run.summary.unamplified_epsilon.upper


def test_a_calibrated_run_is_not_calibrated_again(runs, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(runs["hidden"], folder)
    scenario = folder / "scenario.yaml"
    scenario.write_text(scenario.read_text().replace("noise_multiplier: 1.0", "noise_multiplier: auto"))
    forge(folder)
    monkeypatch.setattr("fedamp.federation.plan.calibrate", None)
    assert read_run(folder).plan.noise_multiplier == 1.0


def test_without_privacy_nothing_has_a_price(runs):
    run = read_run(runs["open"])
    assert (run.is_private, run.epsilon, run.unamplified_epsilon, run.is_amplified) == (False, None, None, False)


def test_a_run_charged_without_amplification_has_one_price(runs):
    run = read_run(runs["plain"])
    assert run.epsilon == run.unamplified_epsilon
    assert not run.is_amplified


def test_a_run_stopped_by_its_budget_pays_for_its_own_rounds_only(runs):
    run = read_run(runs["budget"])
    released = len(run.rounds)
    assert 0 < released < 8
    assert run.epsilon <= 3.2
    assert run.unamplified_epsilon == run.plan.unamplified_epsilon_by_round[released - 1]


def test_a_check_in_counts_parameters_down_and_up_and_public_seconds(runs):
    run = read_run(runs["hidden"])
    parameters = 64 * 10 + 10  # logistic regression on 64 pixels and 10 digits
    assert run.bytes_per_check_in == 12 * parameters
    assert run.seconds_per_check_in == pytest.approx(run.summary.wall_seconds / (60 * 3))


def test_names_tell_runs_apart(runs, tmp_path):
    other = tmp_path / "other" / "hidden"
    shutil.copytree(runs["hidden"], other)
    assert [run.name for run in read_models([runs["hidden"], runs["open"]])] == ["hidden", "open"]
    here = runs["hidden"].parent.name
    assert [run.name for run in read_models([runs["hidden"], other])] == [f"{here}/hidden", "other/hidden"]
    with pytest.raises(RunFolderError, match="given twice"):
        read_models([runs["hidden"], runs["hidden"] / ".." / "hidden"])


def drop_a_release(text: str) -> str:
    return json.dumps({**json.loads(text), "releases": json.loads(text)["releases"][:-1]})


DAMAGES = {
    "summary.json": [None, lambda _: "{", lambda _: "{}", lambda _: "[]"],
    "ledger.json": [None, lambda _: "{", lambda _: "{}", drop_a_release],
    "rounds.jsonl": [None, lambda text: text[:200], lambda _: ""],
    "scenario.yaml": [None, lambda _: "name: [", lambda _: ""],
}


def test_damaged_folders_are_refused_in_one_line(runs, tmp_path_factory, subtests):
    for file, damage in [(file, damage) for file, ways in DAMAGES.items() for damage in ways]:
        with subtests.test(file):
            folder = tmp_path_factory.mktemp("damaged") / "run"
            shutil.copytree(runs["hidden"], folder)
            if damage is None:
                (folder / file).unlink()
            else:
                (folder / file).write_text(damage((folder / file).read_text()))
            with pytest.raises(RunFolderError) as refused:
                read_run(folder)
            message = str(refused.value)
            assert str(folder) in message
            assert len(message.splitlines()) == 1


def test_what_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "nothing"):
        with pytest.raises(RunFolderError, match="no such run folder"):
            read_run(path)
