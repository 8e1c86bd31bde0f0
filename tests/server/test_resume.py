"""A run that is stopped anywhere resumes to the model of an undisturbed run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedamp.runs.verification import verify_ledger
from tests.federations import small, write_small
from tests.server.forks import Forks
from tests.server.plays import Killed, killed_at, ledger_of, model_of, play_in, rounds_of

STATEFUL = {
    "momentum": [],
    "adam": ["server={optimizer: adam, learning_rate: 0.05}"],
    "averaging": ["server={averaging: 0.7}"],
    "mixing": ["server={learning_rate: 0.5}", "mixing={width: 0.01}"],
    "banded": ["check_in={scheme: classes, k: 2, classes: 2}", "privacy.noise={scheme: banded}"],
    "buffered": ["check_in={scheme: spaced, k: 2, gap: 2}", "privacy.noise={scheme: buffered}"],
    "adaptive": ["privacy.clip={initial: 0.3}"],
    "disjoint": ["model={name: mlp, hidden: [12]}", "submodels={scheme: disjoint, count: 3, partition: fresh}"],
}


def assert_never_released_more_than_the_ledger_holds(folder: Path, whole: Path) -> int:
    """Whatever moment the run was killed at. Returns how many rounds are released."""
    expected = ledger_of(whole)["releases"]
    released = ledger_of(folder)["releases"] if (folder / "ledger.json").exists() else []
    if (folder / "ledger.json").exists():
        (chain,) = [check for check in verify_ledger(folder) if check.name == "chain"]
        assert chain.passed or chain.found.startswith(
            "summary.json: gone"
        )  # killed between the ledger's end and that file
    assert released == expected[: len(released)]
    if (folder / "rounds.jsonl").exists():
        lines = (folder / "rounds.jsonl").read_text().split("\n")[:-1]
        assert [json.loads(line)["round"] for line in lines] == list(range(1, len(lines) + 1))
        assert len(lines) <= len(released)
    checkpoints = sorted((folder / "checkpoint").glob("round-*.safetensors"))
    if checkpoints:
        assert int(checkpoints[-1].stem.removeprefix("round-")) <= len(released) + 1
    return len(released)


def assert_same_run(folder: Path, whole: Path) -> None:
    assert model_of(folder) == model_of(whole)
    assert ledger_of(folder) == ledger_of(whole)
    varying = {"seconds"}
    assert not [check for check in verify_ledger(folder) if check.verdict == "fail"]
    rounds = [[{k: v for k, v in line.items() if k not in varying} for line in rounds_of(f)] for f in (folder, whole)]
    assert rounds[0] == rounds[1]


# All steps for one kind, two of three slow; a sample for the others, whose steps are the same.
SAMPLES = [(kind, 1, 9) for kind in STATEFUL if kind != "momentum"]


@pytest.mark.few(0, 9)
@pytest.mark.parametrize(
    ("kind", "first", "every"),
    [("momentum", 0, 3), *(pytest.param("momentum", i, 3, marks=pytest.mark.slow) for i in (1, 2)), *SAMPLES],
)
def test_a_run_killed_before_any_step_on_the_disk_resumes_to_the_same_model(tmp_path, monkeypatch, kind, first, every):
    scenario = small("check_in.k=2", "rounds=4", "federation.checkpoint_every=2", *STATEFUL[kind])
    with killed_at(monkeypatch, step=-1) as steps:
        play_in(tmp_path / "whole", scenario)
    assert {"flush", "rename", "line"} <= set(steps)
    for step in range(first, len(steps), every):
        folder = tmp_path / f"killed-{step}"
        with killed_at(monkeypatch, step), pytest.raises(Killed):
            play_in(folder, scenario)
        released = assert_never_released_more_than_the_ledger_holds(folder, tmp_path / "whole")
        summary = play_in(folder, scenario)
        assert summary.rounds_completed == 4 >= released
        assert_same_run(folder, tmp_path / "whole")


ROUNDS, KILLS = 30, 3


@dataclass
class Arena:
    """A scenario, its undisturbed run, and processes that run the command line."""

    folder: Path
    scenario: Path
    whole: Path
    forks: Forks

    def start(self, folder: Path) -> int:
        """Start the run in a folder, or go on in it."""
        resume = ["--resume"] if (folder / "scenario.yaml").exists() else []
        return self.forks.start("run", str(self.scenario), "--out", str(folder), *resume)

    def exit_code(self) -> int:
        code = self.forks.answer()
        assert code in (0, 130, 143, -signal.SIGKILL), (self.folder / "output.txt").read_text()
        return code


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arena")
    quick = "check_in={scheme: poisson, rate: 0.4}"  # to account for, by each of the processes
    scenario = write_small(folder, f"rounds={ROUNDS}", "federation={checkpoint_every: 7}", quick)
    whole = folder / "whole"
    arena = Arena(folder, scenario, whole, Forks(folder / "output.txt", "run", str(scenario), "--out", str(whole)))
    assert arena.exit_code() == 0
    yield arena
    arena.forks.stop()


@pytest.mark.slow
def test_kill_9_of_the_command_at_random_moments_many_times(arena):
    generator, kills, runs = random.Random(2), 0, 0
    while kills < KILLS:
        folder, released, code = arena.folder / f"killed-{runs}", 0, None
        runs += 1
        while code != 0:
            child = arena.start(folder)
            goal = released + generator.randrange(12)
            if goal <= ROUNDS:  # beyond that it may finish
                _wait_for_round(folder, goal)
                time.sleep(generator.uniform(0, 0.05))
                os.kill(child, signal.SIGKILL)
            code = arena.exit_code()
            kills += code != 0
            now = assert_never_released_more_than_the_ledger_holds(folder, arena.whole)
            assert now >= released
            released = now
        assert_same_run(folder, arena.whole)


@pytest.mark.few(0)
@pytest.mark.parametrize("interrupt", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_finishes_the_round_and_leaves_a_checkpoint_of_it(arena, interrupt):
    folder = arena.folder / f"a run ended by {interrupt.name}"
    said = (arena.folder / "output.txt").read_text()
    child = arena.start(folder)
    _wait_for_round(folder, 3)
    os.kill(child, interrupt)
    assert arena.exit_code() == 128 + interrupt
    released = assert_never_released_more_than_the_ledger_holds(folder, arena.whole)
    assert released < ROUNDS
    assert [line["round"] for line in rounds_of(folder)] == list(range(1, released + 1))
    assert (folder / "checkpoint" / f"round-{released:08d}.safetensors").exists()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["stopped_because"], summary["rounds_completed"]) == ("interrupted", released)
    ledger = ledger_of(folder)
    assert ledger["stopped_because"] == "interrupted"
    assert summary["epsilon"]["upper"] == ledger["guaranteed_epsilon"] == ledger["whole_run_epsilon"]["upper"]
    assert summary["released_rounds_epsilon"]["upper"] == ledger["releases"][-1]["epsilon_upper"]
    cautions = {check.name: check.found for check in verify_ledger(folder) if check.verdict == "caution"}
    assert f"interrupted after round {released}, perhaps because of its releases" in cautions["guarantee"]
    said = (arena.folder / "output.txt").read_text().removeprefix(said)
    assert said.count("finishing this round") == 1
    assert f"interrupted: resume with: fedamp run '{folder}/scenario.yaml' --resume --out '{folder}'\n" in said
    arena.start(folder)
    assert arena.exit_code() == 0
    assert_same_run(folder, arena.whole)


@pytest.mark.parametrize("interrupt", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_first_round_has_the_status_of_one_in_a_round(tmp_path, interrupt):
    """The command waits for the accountant, or for data: here it reads a module that tells when it is imported."""
    (tmp_path / "slow_model.py").write_text("print('imported', flush=True)\nwhile True: pass\n")
    scenario = write_small(tmp_path, "model={name: 'slow_model:make'}")
    command = [sys.executable, "-m", "fedamp", "run", scenario, "--out", tmp_path / "run"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(list(map(str, command)), **pipes) as process:
        assert process.stdout.readline() == "imported\n"
        process.send_signal(interrupt)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 128 + interrupt
    assert said.splitlines()[-1].startswith("interrupted")
    assert "Traceback" not in said


def test_a_run_killed_before_it_wrote_its_scenario_can_be_started_again(arena):
    folder = arena.folder / "stillborn"
    folder.mkdir()
    for name in ("log.txt", ".scenario.yaml.writing"):
        (folder / name).write_text("half")
    arena.start(folder)
    assert arena.exit_code() == 0
    assert_same_run(folder, arena.whole)


def _wait_for_round(folder: Path, round_: int) -> None:
    deadline, ledger = time.monotonic() + 300, folder / "ledger.json"
    while (ledger.read_text().count('"round"') if ledger.exists() else 0) < round_:
        assert time.monotonic() < deadline, f"round {round_} was not released within 300 s"
        time.sleep(0.001)
