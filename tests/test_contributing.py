"""CONTRIBUTING.md: each of its additions is made on a copy of the package, and used there as a person would use it."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.documentation import ROOT, run_elsewhere, write_files

PAGE = "CONTRIBUTING.md"
SCENARIOS = ("enrolled", "low-rank", "tumours", "absolute")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contributing")
    for part in ("fedamp", "scenarios"):
        shutil.copytree(ROOT / part, folder / part)  # with what is compiled already
    write_files(PAGE, folder)
    return folder


@pytest.fixture(scope="module")
def printed(copy):
    """What the page's programs print, after its scenarios have run and each ledger was verified."""
    pairs = [(f"run {each}.yaml --engine serial --known-seed", f"verify runs/{each}") for each in SCENARIOS]
    lines = [f"fedamp {words}" for pair in pairs for words in pair]
    return run_elsewhere([*lines, "python integer_sums.py", "python many_answers.py"], copy, package=copy)


@pytest.fixture(scope="module")
def runs(copy, printed):
    """The run folders of the page's scenarios."""
    return copy / "runs"


@pytest.mark.parametrize("name", ["enrolled", "low-rank", "tumours"])
def test_the_schedule_the_model_and_the_data_set_run(runs, name):
    summary = json.loads((runs / name / "summary.json").read_text())
    assert summary["stopped_because"] == "finished"
    assert summary["final"]["accuracy"] > 0.7  # 0.74 to 0.88; guessing gets 0.1 of the digits, 0.63 of the tumours
    assert 0 < summary["epsilon"]["upper"] <= summary["unamplified_epsilon"]["upper"]


def test_the_loss_is_minimised(runs):
    first, *_, last = map(json.loads, (runs / "absolute" / "rounds.jsonl").read_text().splitlines())
    assert last["loss"] < first["loss"]
    assert last["metrics"]["r2"] > 0.2  # 0.35; guessing the mean gets 0


def test_an_addition_is_charged_and_split_as_it_says(runs):
    enrolled = json.loads((runs / "enrolled" / "ledger.json").read_text())["mechanism"]
    assert (enrolled["kind"], enrolled["rate"], enrolled["mechanism"]["kind"]) == ("Poisson", 0.5, "Repeat")
    assert json.loads((runs / "low-rank" / "summary.json").read_text())["cost"]["parameters_share"] < 0.5


def test_the_aggregator_gives_the_same_model(printed):
    assert "\nTrue\n" in printed


def test_the_mechanism_is_charged(printed):
    assert "\n100 times (Poisson sampling at rate 0.1 of (one of 5 answers" in printed


def test_the_mechanism_meets_the_contract_of_all_mechanisms(copy):
    contract = ROOT / "tests" / "accounting" / "test_contract.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "many_answers_contract", str(contract), "-k", "ManyAnswers"]
    path = os.pathsep.join(map(str, (copy, ROOT)))
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert "6 passed" in done.stdout, done.stdout + done.stderr
