"""A run that is stopped anywhere resumes to the model of an undisturbed run."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedamp.runs.verification import verify_ledger
from fedamp.server.launch import how_to_resume
from tests.federations import small, write_small
from tests.server.forks import Forks
from tests.server.plays import Killed, killed_at, ledger_of, model_of, play_in, rounds_of
from tests.tools import but_patience, wait

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
            "summary.json: missing"
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


# All steps for one kind, three of four slow; a sample for the others, whose steps are the same.
SAMPLES = [(kind, 1, 9) for kind in STATEFUL if kind != "momentum"]


@pytest.mark.few(0, 10)
@pytest.mark.parametrize(
    ("kind", "first", "every"),
    [("momentum", 0, 4), *(pytest.param("momentum", i, 4, marks=pytest.mark.slow) for i in (1, 2, 3)), *SAMPLES],
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

    def listen(self) -> Callable[[], str]:
        """A function that tells what commands have said since now."""
        file = self.folder / "output.txt"
        before = len(file.read_text())
        return lambda: but_patience(file.read_text()[before:])

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
    said = arena.listen()
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
    assert said().count("finishing this round") == 1
    assert f"interrupted: resume with: fedamp run '{folder}/scenario.yaml' --resume --out '{folder}'\n" in said()
    arena.start(folder)
    assert arena.exit_code() == 0
    assert_same_run(folder, arena.whole)


@pytest.mark.parametrize("interrupt", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_first_round_has_the_status_of_one_in_a_round(arena, tmp_path, interrupt):
    """The command waits for the accountant, or for data: here it reads a module that tells when it is imported."""
    (tmp_path / "slow_model.py").write_text("print('imported', flush=True)\nwhile True: pass\n")
    scenario, said = write_small(tmp_path, "model={name: 'slow_model:make'}"), arena.listen()
    child = arena.forks.start("run", scenario, "--out", tmp_path / "run")
    wait(lambda: said().startswith("imported\n"))
    os.kill(child, interrupt)
    assert arena.exit_code() == 128 + interrupt
    assert said().splitlines()[-1].startswith("interrupted")
    assert "Traceback" not in said()


LONG_OPERATION = """
import ctypes, signal
from fedamp.strategies.private import PrivateStrategy

def sum_replies(self, *_):
    print("begins", flush=True)
    while ctypes.CDLL(None).sleep(100_000):  # as inside of torch: a signal wakes it, and no handler of Python is called
        pass

PrivateStrategy.sum_replies = sum_replies
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.siginterrupt(signal.SIGINT, False)
"""


def test_ctrl_c_is_answered_inside_of_a_long_operation(arena, tmp_path):
    """Twice; the operation takes a day."""
    said, folder = arena.listen(), tmp_path / "run"
    child = arena.forks.start("-c", LONG_OPERATION, "run", arena.scenario, "--out", folder, "--quiet")
    wait(lambda: said() == "begins\n")
    time.sleep(0.5)  # mostly into the operation
    os.kill(child, signal.SIGINT)
    finishing = "begins\nfinishing this round, then stopping; Ctrl-C again to stop at once\n"
    wait(lambda: said() == finishing)
    os.kill(child, signal.SIGINT)
    assert arena.exit_code() == 130
    assert said() == finishing + f"interrupted: {how_to_resume(folder)}\n"


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
