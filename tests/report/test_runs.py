"""Folders of runs and of merged models are read whole or refused in one line."""

import json
import shutil

import pytest

from fedamp.errors import RunFolderError
from fedamp.extensions.merging.merged import read_merged
from fedamp.runs.run import read_models, read_run
from tests.chains import forge


def test_a_run_is_read_as_it_was_played(runs):
    run = read_run(runs["hidden"])
    assert [record.round for record in run.rounds] == list(range(1, 9))
    assert run.plan.noise_multiplier == run.ledger.parts[0].noise_multiplier
    assert list(run.plan.charge.epsilon_by_round) == [release.epsilon_upper for release in run.ledger.releases]
    assert run.is_amplified
    assert run.unamplified_epsilon == run.summary.unamplified_epsilon.upper


def test_a_calibrated_run_is_not_calibrated_again(runs, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(runs["hidden"], folder)
    scenario = folder / "scenario.yaml"
    scenario.write_text(scenario.read_text().replace("noise_multiplier: 1.0", "noise_multiplier: auto"))
    forge(folder)
    monkeypatch.setattr("fedamp.federation.kept_answers.calibrate", None)
    assert read_run(folder).plan.noise_multiplier == 1.0


def test_costs_with_and_without_privacy_and_amplification(runs):
    run = read_run(runs["open"])
    assert (run.is_private, run.epsilon, run.unamplified_epsilon, run.is_amplified) == (False, None, None, False)
    run = read_run(runs["plain"])
    assert run.epsilon == run.unamplified_epsilon
    assert not run.is_amplified
    run = read_run(runs["budget"])  # it pays for its own rounds only
    released = len(run.rounds)
    assert 0 < released < 8
    assert run.epsilon <= 3.2
    assert run.unamplified_epsilon == run.plan.charge.unamplified_epsilon_by_round[released - 1]


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


def changed(**keys):
    return lambda text: json.dumps(json.loads(text) | keys)


def drop_last(key):
    return lambda text: json.dumps(json.loads(text) | {key: json.loads(text)[key][:-1]})


# Each way to damage a file; None deletes it.
OF_A_RUN = {
    "summary.json": [None, lambda _: "{", lambda _: "{}", lambda _: "[]"],
    "ledger.json": [None, lambda _: "{", lambda _: "{}", drop_last("releases")],
    "rounds.jsonl": [None, lambda text: text[:200], lambda _: ""],
    "scenario.yaml": [None, lambda _: "name: [", lambda _: ""],
}
OF_A_MERGED_MODEL = {
    "summary.json": [lambda _: "{", changed(final={})],
    "certificate.json": [
        lambda _: "{",
        changed(epsilon={"lower": 0.0, "upper": 0.1}),
        changed(format="fedamp merge certificate 9"),
        drop_last("weights"),
    ],
}


@pytest.mark.parametrize(("kind", "damages"), [("run", OF_A_RUN), ("merged model", OF_A_MERGED_MODEL)])
def test_damaged_folders_are_refused_in_one_line(runs, merged, tmp_path, subtests, kind, damages):
    read, good = (read_run, runs["hidden"]) if kind == "run" else (read_merged, merged)
    for number, (file, damage) in enumerate((file, damage) for file, ways in damages.items() for damage in ways):
        with subtests.test(file):
            folder = tmp_path / str(number)
            shutil.copytree(good, folder)
            if damage is None:
                (folder / file).unlink()
            else:
                (folder / file).write_text(damage((folder / file).read_text()))
            with pytest.raises(RunFolderError) as refused:
                read(folder)
            assert str(folder) in str(refused.value)
            assert len(str(refused.value).splitlines()) == 1
