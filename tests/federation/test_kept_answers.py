"""Kept answers: the same numbers again, never from a damaged file, and never where something is to be proved."""

import importlib
import inspect
import json
import multiprocessing
import os
import sys
from pathlib import Path

import pytest

import fedamp
from fedamp.accounting import Allocation, Compose, Gaussian, Mechanism
from fedamp.accounting.sampling import PRECISION
from fedamp.extension import all_offered
from fedamp.federation import kept_answers
from fedamp.federation.cost import privacy_cost
from fedamp.federation.kept_answers import ANEW, KEPT
from fedamp.federation.plan import make_plan

PLAIN = Gaussian(2.0)
TINY = {
    "name": "tiny",
    "data": {"name": "synthetic", "clients": 20, "records_per_client": 2},
    "model": {"name": "logistic"},
    "rounds": 3,
    "check_in": {"scheme": "balanced", "k": 1},
    "privacy": {"clip": 1.0, "epsilon": 3.0, "delta": 1e-5},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path))
    return tmp_path / "answers"


def asked():
    return KEPT.epsilon(PLAIN, 1e-5, PRECISION)


def refuse(*_, **__):
    raise AssertionError("the accountant was asked")


def test_an_answer_is_computed_once_and_is_the_same_to_the_bit(folder, monkeypatch):
    of_the_whole = Compose((Gaussian(3.0), Allocation(Gaussian(1.5), 2, 5)))
    first = [asked(), KEPT.epsilon(of_the_whole, 1e-6, PRECISION), KEPT.over_rounds(PLAIN, 1e-5, range(1, 2))]
    risk = KEPT.membership_risk(PLAIN, 0.01, "you")
    noise = KEPT.noise_multiplier(Gaussian, 1.0, 1e-5, PRECISION)
    monkeypatch.setattr(Gaussian, "epsilon", refuse)
    monkeypatch.setattr(Compose, "epsilon", refuse)
    for name in ("calibrate", "epsilon_over_rounds", "in_words"):
        monkeypatch.setattr(kept_answers, name, refuse)
    again = [asked(), KEPT.epsilon(of_the_whole, 1e-6, PRECISION), KEPT.over_rounds(PLAIN, 1e-5, range(1, 2))]
    assert again == first  # a bracket has its method, too
    assert again[1].method == first[1].method
    assert KEPT.membership_risk(PLAIN, 0.01, "you") == risk
    assert KEPT.noise_multiplier(Gaussian, 1.0, 1e-5, PRECISION) == noise


def test_the_noise_of_a_side_sum_is_found_once(folder, monkeypatch):
    evaluated = TINY | {"evaluation": {"on": "clients", "epsilon": 0.5}}
    first = privacy_cost(fedamp.load(evaluated))
    for place in (fedamp.accounting, kept_answers):
        monkeypatch.setattr(place, "calibrate", refuse)
    assert privacy_cost(fedamp.load(evaluated)) == first


def test_whether_a_budget_pays_for_a_round_is_asked_once(folder, monkeypatch):
    scenario = fedamp.load(TINY | {"privacy": TINY["privacy"] | {"noise_multiplier": 2.0, "epsilon": 30.0}})
    make_plan(scenario, 20, answers=KEPT).charge.check_budget()
    monkeypatch.setattr(Mechanism, "epsilon", refuse)
    make_plan(scenario, 20, answers=KEPT).charge.check_budget()
    with pytest.raises(AssertionError, match="was asked"):
        make_plan(scenario, 20).charge.check_budget()


def test_without_being_asked_nothing_is_kept_or_read(folder):
    ANEW.epsilon(PLAIN, 1e-5, PRECISION)
    assert not folder.exists()


def test_off_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_CACHE", "off")
    monkeypatch.setenv("HOME", str(tmp_path))
    asked()
    assert not list(tmp_path.rglob("*.json"))
    assert not Path("off").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: "",
        lambda text: "[" * 100_000,
        lambda text: "[]",
        lambda text: json.dumps(json.loads(text) | {"answer": {"lower": 0.0, "upper": 0.0, "origin": None}}),
        lambda text: json.dumps(json.loads(text) | {"question": "another"}),
        lambda text: json.dumps({"question": 1}),
    ],
)
def test_a_damaged_or_altered_answer_is_computed_again(folder, damage):
    found = asked()
    (file,) = folder.iterdir()
    file.write_text(damage(file.read_text()))
    assert asked() == found
    assert asked() == found  # and was kept again
    assert json.loads(file.read_text())["answer"]["upper"] == found.upper


def test_a_pipe_or_a_link_in_place_of_an_answer_is_ignored(folder):
    found = asked()
    (file,) = folder.iterdir()
    for put in (lambda: os.mkfifo(file), lambda: file.symlink_to("/dev/zero")):
        file.unlink()
        put()
        assert asked() == found


def test_other_code_or_libraries_get_other_answers(folder, monkeypatch):
    asked()
    monkeypatch.setattr(kept_answers, "_code_versions", lambda modules: ["another version"])
    asked()
    assert len(list(folder.iterdir())) == 2


def test_the_code_of_every_mechanism_counts_also_of_extensions():
    """An answer of a mechanism whose code has changed since is not taken."""
    every = {kind for _, kind in all_offered("accounting") if isinstance(kind, type)} | {*Mechanism.kinds.values()}
    code = {Path(inspect.getfile(kind)) for kind in every if kind.__module__.startswith("fedamp.")}
    assert {"accounting", "batches", "correlated", "modelmix"} <= {file.parent.name for file in code}
    assert code <= set(kept_answers.code_files())


def test_the_code_of_a_mechanism_counts_that_no_extension_offers(folder, monkeypatch, tmp_path):
    """The charge of another package's scheme may have it; without its code an answer of before would be kept."""
    asked()
    package = tmp_path / "somebodys_noise"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from fedamp.accounting import OfOne\n\nclass Quieter(OfOne):\n    text = 'quieter ({0.mechanism.in_words})'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(Mechanism, "kinds", dict(Mechanism.kinds))
    importlib.import_module("somebodys_noise")
    try:
        assert package / "__init__.py" in kept_answers.code_files()
        asked()
        assert len(list(folder.iterdir())) == 2
    finally:
        sys.modules.pop("somebodys_noise")


def test_a_noise_multiplier_that_does_not_keep_the_budget_is_not_taken(folder):
    noise = KEPT.noise_multiplier(Gaussian, 1.0, 1e-5, PRECISION)
    file = next(file for file in folder.iterdir() if '\\"calibrate\\"' in file.read_text())
    told = json.loads(file.read_text())
    told["answer"] = noise / 2
    told["digest"] = kept_answers._answer_digest(told["question"], told["answer"])
    file.write_text(json.dumps(told))
    assert KEPT.noise_multiplier(Gaussian, 1.0, 1e-5, PRECISION) == noise


def test_the_folder_stays_small(folder, monkeypatch):
    monkeypatch.setattr(kept_answers, "_MOST_FILES", 5)
    monkeypatch.setattr(kept_answers, "_FEWER", 3)
    for number in range(9):
        KEPT.epsilon(Gaussian(2.0 + number), 1e-5, PRECISION)
    assert len(list(folder.iterdir())) <= 5


def test_a_place_that_cannot_be_written_changes_no_answer(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path / "file"))
    assert asked() == ANEW.epsilon(PLAIN, 1e-5, PRECISION)


def ask_many(folder):
    os.environ["FEDAMP_CACHE"] = folder
    return [KEPT.epsilon(Gaussian(1.0 + number % 4), 1e-5, PRECISION) for number in range(40)]


@pytest.mark.slow
def test_many_processes_share_the_folder(folder):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, other = pool.map(ask_many, [str(folder.parent)] * 2)
    assert other == first
    assert len(list(folder.iterdir())) == 4


def test_the_price_of_a_scenario_is_the_same_anew(folder):
    scenario = fedamp.load(TINY)
    first = privacy_cost(scenario)
    assert folder.exists()
    assert privacy_cost(scenario) == first
    for file in folder.iterdir():
        file.unlink()
    assert privacy_cost(scenario) == first


def test_a_verification_believes_no_kept_answer(folder, tmp_path):
    """Whoever writes into the cache lowers what a run says of itself, and not what its verification finds."""
    run = fedamp.run(TINY, out=tmp_path / "honest", engine={"kind": "serial"})
    for file in folder.iterdir():
        told = json.loads(file.read_text())
        if isinstance(told["answer"], list) and '\\"over rounds\\"' in file.read_text():
            told["answer"] = [each / 2 for each in told["answer"]]
        elif isinstance(told["answer"], dict):
            told["answer"] |= {"lower": 0.0, "upper": told["answer"]["upper"] / 2}
        told["digest"] = kept_answers._answer_digest(told["question"], told["answer"])
        file.write_text(json.dumps(told))
    forged = fedamp.run(TINY, out=tmp_path / "forged", engine={"kind": "serial"})
    assert forged.summary.epsilon.upper < 0.6 * run.summary.epsilon.upper
    from fedamp.runs.verification import verify_ledger

    assert {check.verdict for check in verify_ledger(tmp_path / "honest")} == {"pass"}
    assert "fail" in {check.verdict for check in verify_ledger(tmp_path / "forged")}
