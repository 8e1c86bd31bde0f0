"""A run whose seed nobody knows: its noise is drawn once, its seed belongs to its ledger, its folder to its owner."""

import json
import logging
import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

import fedamp
from fedamp.engines.engines import CLIENT_APP
from fedamp.engines.simulation import SerialGrid
from fedamp.errors import Interrupted
from fedamp.federation import reader
from fedamp.federation.scenario import Scenario
from fedamp.runs.verification import verify_ledger
from fedamp.server.launch import launch
from fedamp.server.loop import ask
from fedamp.server.setup import prepare
from tests.federations import Silent, small, write_small
from tests.server.forks import Forks
from tests.server.plays import Crash, Killed, killed_at, ledger_of, model_of, rounds_of

CHEAP = ("known_seed=false", "check_in={scheme: all}")  # to account for
CLIENTS, FEATURES, CLIP, NOISE = 20, 50, 0.5, 4.0


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("secret")


@pytest.fixture(scope="module")
def scenario(place) -> Path:
    return write_small(place, "rounds=2", *CHEAP)


@pytest.fixture(scope="module")
def forks(place, scenario):
    forks = Forks(place / "output.txt", "run", scenario, "--out", "first", folder=place)
    assert forks.answer() == 0, (place / "output.txt").read_text()
    yield forks
    forks.stop()


def test_the_scenario_alone_does_not_tell_the_noise(forks, place, scenario):
    again, known, same = ("run", scenario, "--out"), ("--known-seed",), place / "first" / "scenario.yaml"
    commands = (*again, "again"), (*again, "known", *known), ("run", same, "--out", "same", *known)
    assert forks.run(*commands) == [0, 0, 0]
    models = [model_of(place / name) for name in ("first", "again", "known", "same")]
    assert len(set(models)) == 3
    assert models[2] == models[3]
    assert ledger_of(place / "first")["noise_seed"] == "from the operating system"
    assert ledger_of(place / "known")["noise_seed"].startswith("known: ")


# --- no noise twice ---------------------------------------------------------------------------------------------------


def federation(folder: Path, withdrawn: int | None = None) -> Scenario:
    """Two rounds over records in a folder, of which one client's may be gone."""
    generator = np.random.default_rng(0)
    owners = np.arange(CLIENTS * 5) // 5
    x, y = generator.normal(size=(len(owners), FEATURES)).astype(np.float32), np.arange(len(owners)) % 4
    x[owners == withdrawn] = 0
    folder.mkdir(exist_ok=True)
    for part in ("train", "test"):
        np.savez(folder / f"{part}.npz", x=x, y=y, client=owners)
    raw = yaml.safe_load(small("rounds=2", *CHEAP, f"privacy={{clip: {CLIP}, noise_multiplier: 4}}").to_yaml())
    raw |= {
        "data": {"name": "npz", "path": str(folder), "classes": 4, "partition": {"scheme": "natural"}},
        "server": {"learning_rate": 1.0},
    }
    return reader.validate_scenario(raw, "withdrawal")


@pytest.fixture
def interrupted(tmp_path) -> Path:
    """A run that was stopped after round 1."""
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        launch(federation(tmp_path / "data"), Crash(1, KeyboardInterrupt), run)
    return run


def test_a_resumed_backup_does_not_tell_which_client_has_left_meanwhile(forks, interrupted, tmp_path):
    backup = shutil.copytree(interrupted, tmp_path / "backup")
    resume = ("run", interrupted / "scenario.yaml", "--resume", "--out")
    assert forks.run((*resume, interrupted)) == [0]
    federation(tmp_path / "data", withdrawn=7)
    assert forks.run((*resume, backup)) == [0]
    assert ledger_of(backup)["releases"][0] == ledger_of(interrupted)["releases"][0]
    ours, theirs = load_file(interrupted / "model.safetensors"), load_file(backup / "model.safetensors")
    sums = np.concatenate([((ours[name] - theirs[name]) * CLIENTS).ravel() for name in ours])
    # Two independent noises on every coordinate, whose sample deviation is within 5 of its own deviations. The client
    # alone would be CLIP long, 0.03 for each of the 204 coordinates.
    expected = np.sqrt(2) * NOISE * CLIP
    assert np.std(sums) == pytest.approx(expected, rel=5 / np.sqrt(2 * len(sums)))


OTHERS = {
    "mixture": (
        ("server={learning_rate: 0.5}", "mixing={width: 0.5}"),
        lambda state: state.parameters["output.weight"],
    ),
    # Near the median of the norms, so that the noisy fraction is within 0 and 1.
    "noisy count": (("privacy.clip={initial: 0.75}",), lambda state: np.array([state.clip_scale])),
}


@pytest.mark.parametrize("what", OTHERS)
def test_all_noise_of_a_round_is_drawn_anew(what):
    overrides, read = OTHERS[what]
    for seed, again in ((5, False), (None, True)):  # None: the scenario's
        prepared = prepare(small(*CHEAP, *overrides, "privacy.noise_multiplier=1.0e-3"), seed)
        strategy = prepared.strategy(prepared.state)
        with SerialGrid(CLIENT_APP, "cpu") as grid:
            one, other = (
                read(strategy.pipeline.release(strategy.state, 1, ask(strategy, grid, 1))[0]) for _ in range(2)
            )
        assert np.allclose(one, other, rtol=0, atol=1e-6) == again  # far above what this noise does


@pytest.mark.parametrize("lost", [("ledger.json",), ("ledger.json", "checkpoint", "rounds.jsonl")])
def test_a_seed_without_its_ledger_is_refused(fedamp, interrupted, lost):
    for name in lost:
        path = interrupted / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    answer = fedamp("run", interrupted / "scenario.yaml", "--resume", "--out", interrupted)
    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert "seed.secret: a secret seed without its ledger; expected: a new run" in answer.err
    answer = fedamp("run", interrupted / "scenario.yaml", "--out", interrupted)
    assert answer.status == 2
    assert "not an empty folder" in answer.err
    assert (interrupted / "seed.secret").exists()


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (1, 2, 3))])
def test_a_run_killed_before_any_step_releases_every_round_once(tmp_path, monkeypatch, first):
    scenario = small("rounds=2", *CHEAP)
    with killed_at(monkeypatch, step=-1) as steps:
        launch(scenario, Silent(), tmp_path / "whole")
    for step in range(first, len(steps), 4):
        folder = tmp_path / f"killed-{step}"
        with killed_at(monkeypatch, step), pytest.raises(Killed):
            launch(scenario, Silent(), folder)
        began = (folder / "scenario.yaml").exists()
        released = ledger_of(folder)["releases"] if (folder / "ledger.json").exists() else []
        launch(scenario, Silent(), folder, resume=began)
        ledger = ledger_of(folder)["releases"]
        assert ledger[: len(released)] == released
        assert [entry["round"] for entry in ledger] == [line["round"] for line in rounds_of(folder)] == [1, 2]


# --- one folder, one run ----------------------------------------------------------------------------------------------


def test_of_several_starts_in_one_folder_one_runs_and_the_others_touch_nothing(forks, place, scenario):
    for attempt in range(2):
        out = place / f"wanted-{attempt}"
        if attempt % 2:
            out.mkdir()
        codes = forks.run(*[("run", scenario, "--out", out)] * 2)
        assert sorted(codes) == [0, 2], (place / "output.txt").read_text()
        assert not [check for check in verify_ledger(out) if check.verdict == "fail"]
        assert len(ledger_of(out)["releases"]) == 2


def test_starts_without_a_folder_get_one_each(forks, place, scenario):
    assert forks.run(*[("run", scenario)] * 2) == [0, 0]
    assert sorted(path.name for path in (place / "runs").iterdir()) == ["small", "small-2"]


def test_a_start_that_fails_removes_what_it_has_written_and_nothing_else(fedamp, tmp_path):
    broken = write_small(tmp_path, "rounds=1", *CHEAP, "model={name: mlp, hidden: [8], initial: missing.safetensors}")
    new, empty = tmp_path / "new", tmp_path / "empty"
    empty.mkdir()
    for out in (new, empty):
        assert fedamp("run", broken, "--out", out).status == 2
    assert not new.exists()
    assert list(empty.iterdir()) == []


# --- for its owner alone ----------------------------------------------------------------------------------------------


def test_runs_that_end_in_another_order_than_they_began_leave_the_process_as_it_was(tmp_path, monkeypatch):
    """The umask and the handlers of a logger are one for all of a process."""
    monkeypatch.setattr(logging.getLogger("fedamp"), "handlers", ours := [logging.NullHandler()])
    before, asked = os.umask(0o022), small(*CHEAP, "rounds=2")
    try:
        first, second = (fedamp.play(asked, out=tmp_path / name) for name in ("first", "second"))
        next(first), next(second)
        (tmp_path / "theirs").touch()
        assert stat.S_IMODE((tmp_path / "theirs").stat().st_mode) == 0o644
        first.close()
        logging.getLogger("fedamp").info("a line")
        assert "a line" in (tmp_path / "second" / "log.txt").read_text()
        second.close()
        assert os.umask(0o022) == 0o022
        assert logging.getLogger("fedamp").handlers == ours
        assert open_to_others(tmp_path / "first") == open_to_others(tmp_path / "second") == {}
    finally:
        os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    """What somebody else than the owner may touch, with its mode."""
    modes = {str(path): stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    return {path: oct(mode) for path, mode in modes.items() if mode & 0o077}


@pytest.fixture(params=[pytest.param(0o022, marks=pytest.mark.slow), 0o000], ids=["umask 022", "umask 0"])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_a_run_folder_is_for_its_owner_alone(fedamp, umask, interrupted):
    assert open_to_others(interrupted) == {}
    for path in (interrupted, *interrupted.rglob("*")):  # as a copy may be
        path.chmod(0o777 if path.is_dir() else 0o666)
    resume = ("--resume", "--out", interrupted)
    assert fedamp("run", interrupted / "scenario.yaml", *resume).status == 0
    assert (interrupted / "plots").is_dir()
    assert open_to_others(interrupted) == {}
    assert json.loads((interrupted / "summary.json").read_text())["rounds_completed"] == 2
