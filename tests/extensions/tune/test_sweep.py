"""A sweep: what it leaves, that it goes on where it stopped, and what it says of its runs."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

import fedamp
from fedamp.errors import InputError, Interrupted, RunFolderError, ScenarioError
from fedamp.extensions.tune.sweep import read_sweep
from fedamp.server.setup import prepare
from tests.federations import SMALL, small, write_small

TINY = yaml.safe_load(SMALL) | {"rounds": 3, "check_in": {"scheme": "all"}, "federation": {"validation_share": 0.4}}
GRID = {"client.learning_rate": [0.01, 1.0], "seed": [1, 2]}


@pytest.fixture(name="command")
def command_fixture(request):
    return request.getfixturevalue("fedamp")


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    return fedamp.sweep(TINY, GRID, out=tmp_path_factory.mktemp("sweep") / "out", jobs=1)


def files(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file() and file.name != ".lock"}


def summaries(folder: Path, rate: float) -> list[dict]:
    return [
        json.loads((folder / "runs" / f"client.learning_rate={rate},seed={seed}" / "summary.json").read_text())["final"]
        for seed in (1, 2)
    ]


def test_every_combination_is_a_run_and_seeds_are_repetitions(swept):
    assert [(outcome.settings, len(outcome.runs)) for outcome in swept.outcomes] == [
        ({"client.learning_rate": 0.01}, 2),
        ({"client.learning_rate": 1.0}, 2),
    ]
    for outcome, rate in zip(swept.outcomes, (0.01, 1.0), strict=True):
        for key, there in (("score", "accuracy"), ("validation_score", "validation_score")):
            values = [final[there] for final in summaries(swept.folder, rate)]
            spread = getattr(outcome, key)
            assert (spread.mean, spread.deviation) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    frame = swept.frame()
    assert list(frame["seed"]) == [1, 2, 1, 2]
    assert frame["epsilon_upper"].notna().all()
    assert list(frame) == [
        *("client.learning_rate", "seed", "loss", "accuracy", "validation_score"),
        *("epsilon_upper", "delta", "rounds_completed", "folder"),
    ]
    assert {run.scenario.client.learning_rate for run in swept.finished} == {0.01, 1.0}


def test_the_best_settings_are_those_of_the_records_kept_apart(swept):
    means = {
        rate: np.mean([final["validation_score"] for final in summaries(swept.folder, rate)]) for rate in (0.01, 1.0)
    }
    (best,) = swept.best
    assert best.settings == {"client.learning_rate": max(means, key=means.get)}


def test_what_is_asked_for_is_not_chosen_among_and_the_test_set_is_not_chosen_by(tmp_path):
    grid = {"privacy.noise_multiplier": [1, 50], "client.learning_rate": [0.01, 1.0]}
    noises = [
        outcome.settings["privacy.noise_multiplier"] for outcome in fedamp.sweep(TINY, grid, tmp_path / "a", 1).best
    ]
    assert noises == [1, 50]
    without = fedamp.sweep(TINY | {"federation": {}}, GRID, tmp_path / "b", jobs=1)
    assert without.best == []


def test_records_to_choose_by_are_the_same_for_every_seed_and_none_is_tested_on():
    whole = prepare(small()).test
    for seed in (1, 2):
        kept = [prepare(small(f"seed={seed}", "data.test_fraction=0.2", "federation.validation_share=0.25"))]
        test, validation = kept[0].test, kept[0].validation
        assert len(validation[1]) == round(0.25 * len(whole[1]))
        together = np.concatenate([test[0], validation[0]])
        public = prepare(small(f"seed={seed}")).test[0]
        assert sorted(map(bytes, together)) == sorted(map(bytes, public))
    with pytest.raises(ScenarioError, match="expected: a share that leaves records"):
        prepare(small("federation.validation_share=0.0001"))


def test_what_is_finished_is_not_run_again_and_a_larger_grid_runs_what_is_new(tmp_path):
    out = tmp_path / "out"
    fedamp.sweep(TINY, {"seed": [1, 2]}, out=out, jobs=1)
    before = files(out / "runs")
    grown = fedamp.sweep(TINY, {"seed": [1, 2, 3]}, out=out, jobs=1)
    assert before.items() <= files(out / "runs").items()
    assert len(grown.finished) == 3


def test_half_a_run_is_gone_on_with(swept, tmp_path):
    out = tmp_path / "out"

    class Stop:
        def begun(self, jobs): ...

        def run_done(self, job, error): ...

        def round_done(self, job, round_):
            if (job.name, round_) == ("client.learning_rate=0.01,seed=2", 2):
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"out: make the same call to resume"):
        fedamp.sweep(TINY, GRID, out=out, jobs=1, watcher=Stop())
    half = out / "runs" / "client.learning_rate=0.01,seed=2"
    assert len((half / "rounds.jsonl").read_text().splitlines()) == 2
    first = files(out / "runs" / "client.learning_rate=0.01,seed=1")
    assert len(read_sweep(out).finished) == 1
    again = fedamp.sweep(TINY, GRID, out=out, jobs=1)
    assert first == files(out / "runs" / "client.learning_rate=0.01,seed=1")
    assert (half / "model.safetensors").read_bytes() == (
        swept.folder / "runs" / half.name / "model.safetensors"
    ).read_bytes()
    assert again.unfinished == ()


def test_a_mistake_is_one_line_and_nothing_is_run(command, tmp_path):
    scenario, out = write_small(tmp_path), tmp_path / "out"
    for texts, words in (
        (["privacy.epsilom=1,2"], "did you mean epsilon?"),
        (["seed=1,2", "rounds=8,-1"], "rounds=-1: "),
        (["seed=1,1"], "given twice"),
    ):
        answer = command("sweep", scenario, *(part for text in texts for part in ("--set", text)), "--out", out)
        assert (answer.status, len(answer.err.splitlines())) == (2, 1)
        assert words in answer.err
    assert not out.exists()
    with pytest.raises(InputError, match="jobs: got 0"):
        fedamp.sweep(TINY, GRID, out=out, jobs=0)


def test_folders_of_others_are_refused(swept, tmp_path):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(RunFolderError, match="not the folder of a sweep, and not empty"):
        fedamp.sweep(TINY, GRID, out=tmp_path, jobs=1)
    before = files(swept.folder)
    with pytest.raises(RunFolderError, match="a run of another scenario"):
        fedamp.sweep(TINY | {"rounds": 5}, GRID, out=swept.folder, jobs=1)
    assert files(swept.folder) == before
    elsewhere = json.loads((swept.folder / "sweep.json").read_text())
    elsewhere["runs"][0]["folder"] = "../../elsewhere"
    (tmp_path / "sweep.json").write_text(json.dumps(elsewhere))
    with pytest.raises(RunFolderError, match=r"damaged sweep: runs\.0\.folder"):
        read_sweep(tmp_path)


def test_a_run_that_cannot_be_run_does_not_stop_the_others(command, tmp_path):
    scenario = write_small(tmp_path, "rounds=1", "check_in.k=1")
    shapes = "data.shape=[8, 8],[7, 7]"
    answer = command("sweep", scenario, "--set", shapes, "--out", tmp_path / "out", "--jobs", "1")
    assert answer.status == 2
    assert answer.err.splitlines()[-1] == "error: 1 of 2 runs are unfinished"
    assert "caution: 1 of 2 runs are unfinished: data.shape=7,7-" in " ".join(answer.out.split())


def test_compare_shows_a_sweep_by_its_settings_and_its_runs_beside_others(command, swept, tmp_path):
    sweeping = command("sweep", write_tiny(tmp_path), *sets(GRID), "--out", swept.folder, "--json")
    alone = json.loads(command("compare", swept.folder, "--out", tmp_path / "a", "--json").out)
    assert alone | {"plots": []} == json.loads(sweeping.out) | {"plots": []} == swept.to_json() | {"plots": []}
    assert Path(alone["plots"][0]).is_file()
    table = command("compare", swept.folder, "--out", tmp_path / "a").out
    assert f"{swept.outcomes[1].score.mean:.1%} ± " in table
    run = fedamp.run(TINY, out=tmp_path / "run")
    beside = json.loads(command("compare", swept.folder, run.folder, "--out", tmp_path / "b", "--json").out)
    assert [Path(each["folder"]).name for each in beside["runs"]] == [*(s.folder.name for s in swept.runs), "run"]


def write_tiny(folder: Path) -> Path:
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY))
    return file


def sets(grid: dict) -> list[str]:
    return [part for key, values in grid.items() for part in ("--set", f"{key}={','.join(map(str, values))}")]


# --- several at once -------------------------------------------------------------------------------------------------

COMMAND = [sys.executable, "-m", "fedamp", "sweep"]
FATAL = """
import os

import torch


def model(shape, classes, fatal=False):
    if fatal:
        os.kill(os.getpid(), 9)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))
"""


@pytest.mark.slow
def test_processes_give_the_same_bits_and_one_that_dies_takes_its_own_run_only(swept, tmp_path):
    apart = fedamp.sweep(TINY, GRID, out=tmp_path / "apart", jobs=2)
    for ours, theirs in zip(apart.finished, swept.finished, strict=True):
        assert ours.files.model.read_bytes() == theirs.files.model.read_bytes()
    (tmp_path / "fatal.py").write_text(FATAL)
    model = {"name": "fatal:model", "folder": str(tmp_path)}
    grid = {"model.options": [{"fatal": True}, {"fatal": False}], "seed": [1, 2]}
    mixed = fedamp.sweep(TINY | {"model": model}, grid, out=tmp_path / "mixed", jobs=2)
    assert [each.run is not None for each in mixed.runs] == [False, False, True, True]
    assert "its process ended (exit code -9)" in mixed.runs[0].error


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_killed_leaves_no_process_and_goes_on(tmp_path, number):
    scenario, out = write_small(tmp_path, "rounds=400", "check_in.k=100", "known_seed=false"), tmp_path / "out"
    command = [*COMMAND, str(scenario), "--set", "seed=1..3", "--jobs", "2", "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as sweeping:
        while not list(out.glob("runs/*/rounds.jsonl")):
            assert sweeping.poll() is None
            time.sleep(0.1)
        children = psutil.Process(sweeping.pid).children()
        assert len(children) >= 2  # two runs, and the tracker of multiprocessing
        sweeping.send_signal(number)
        status = sweeping.wait()
    assert status == (-9 if number == signal.SIGKILL else 130)
    assert psutil.wait_procs(children, timeout=1800)[1] == []
    released = {file: file.read_text().splitlines() for file in out.glob("runs/*/rounds.jsonl")}
    assert subprocess.run([*command, "--json"], capture_output=True, check=False).returncode == 0
    for file, lines in released.items():
        assert (
            file.read_text().splitlines()[: max(len(lines) - 1, 0)] == lines[:-1]
        )  # the last line may have been half written
    assert len(read_sweep(out).finished) == 3
