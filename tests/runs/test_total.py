"""Costs add up for independent runs alone: copies of a run, and runs with one known seed, are no such runs."""

import json
import shutil
from pathlib import Path

import pytest

import fedamp
from fedamp.accounting import Compose, from_json
from fedamp.accounting.arithmetic import delta_left
from fedamp.errors import FedampError, Interrupted, RunFolderError
from fedamp.extensions.merging.candidates import MergeError
from fedamp.extensions.merging.merge import merge_runs
from fedamp.extensions.merging.weights import MergeRequest
from fedamp.extensions.pages.release import release
from fedamp.extensions.tune.sweep import read_sweep
from fedamp.runs.total import check_independent, total
from tests.federations import small

ASKED = ("rounds=4", "check_in.k=1", "federation.checkpoint_every=1", "known_seed=false")


def played(out: Path, *changes: str, stop: int = 0, resume: bool = False) -> Path:
    """A run, stopped after a round."""
    return fedamp.run(
        small(*ASKED, *changes), out=out, callbacks=lambda record: record.round != stop and None, resume=resume
    ).folder


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """Two copies of a run that was stopped after its second round, both played to the end; and another run."""
    folder = tmp_path_factory.mktemp("copies")
    played(folder / "a", stop=2)
    shutil.copytree(folder / "a", folder / "b")
    return [played(folder / name, resume=True) for name in "ab"] + [played(folder / "c")]


def refused(call, *folders: Path) -> str:
    """The one line of a refusal, which names these folders."""
    with pytest.raises(FedampError) as caught:
        call()
    message = str(caught.value)
    assert isinstance(caught.value, RunFolderError | MergeError)
    assert "\n" not in message
    assert all(str(folder) in message for folder in folders)
    return message


def test_two_copies_that_were_both_resumed_are_not_added_up(copies, fedamp, tmp_path):
    a, b, _ = copies
    ledgers = [json.loads((run / "ledger.json").read_text()) for run in (a, b)]
    digests = [{entry["digest"] for entry in ledger["releases"]} for ledger in ledgers]
    assert len(digests[0] & digests[1]) == 2, "they share what was released before the copy, and nothing later"
    refused(lambda: total([a, b]), a, b)
    refused(
        lambda: merge_runs(MergeRequest((str(a), str(b)), "linear-combination", 9.0, 1e-5), tmp_path / "merged"), a, b
    )
    assert not (tmp_path / "merged").exists()
    merge_runs(MergeRequest((str(a), str(b)), "random-selection", 9.0, 1e-5), tmp_path / "one of them")  # Theorem 5.1
    answer = fedamp("total", a, b)
    assert (answer.status, answer.err.count("\n")) == (2, 1)
    answer = fedamp("audit", a, b)
    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert "in common" in answer.err


def test_different_runs_of_one_scenario_are_added_up(copies):
    a, _, c = copies
    mechanisms = [from_json(json.loads((run / "ledger.json").read_text())["mechanism"]) for run in (a, c)]
    assert total([a, c])["fixed"] == Compose(tuple(mechanisms)).epsilon(delta_left(1e-5, 2)).to_json()


def test_a_copy_that_was_made_before_the_first_release_is_found(tmp_path, monkeypatch):
    """It has no digest in common with the first, but the seed: both have the same hidden choices."""

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedamp.server.preflight.check_training", killed)
        with pytest.raises(Interrupted):
            played(tmp_path / "a")
    for name in "bc":
        shutil.copytree(tmp_path / "a", tmp_path / name)
    (tmp_path / "c" / "seed.secret").unlink()  # as if it was killed one step earlier
    a, b, c = (played(tmp_path / name, resume=True) for name in "abc")
    assert len(total([a, c])["runs"]) == 2
    ledgers = [json.loads((run / "ledger.json").read_text()) for run in (a, b)]
    digests = [{entry["digest"] for entry in ledger["releases"]} for ledger in ledgers]
    assert not digests[0] & digests[1]
    assert "have a seed in common" in refused(lambda: total([a, b]), a, b)


def test_a_run_does_not_go_on_with_the_seed_of_another(tmp_path):
    runs = [played(tmp_path / name, stop=1) for name in "ab"]
    shutil.copy(runs[0] / "seed.secret", runs[1] / "seed.secret")
    message = refused(lambda: played(runs[1], resume=True), runs[1] / "seed.secret")
    assert "not the seed of this run" in message


def test_of_two_runs_with_one_known_seed_nothing_is_added_up(tmp_path):
    known = ("known_seed=true", "check_in={scheme: all}", "rounds=1")
    one = played(tmp_path / "one", *known)
    noisier = played(tmp_path / "noisier", *known, "privacy.noise_multiplier=2")
    other = played(tmp_path / "other", *known, "seed=4")
    assert "have a seed in common" in refused(lambda: total([one, noisier]), one, noisier)
    assert total([one, other])["fixed"]["upper"] > 0


def test_a_released_bundle_and_its_run_are_one_run_also_if_the_run_went_on(copies, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_HOME", str(tmp_path / "home"))
    run = played(tmp_path / "run", stop=2)
    early = release(run).archive
    played(run, resume=True)
    late = release(run, tmp_path / "late").archive
    for bundle in (early, late):
        refused(lambda bundle=bundle: total([bundle, run]), bundle, run)
    refused(lambda: total([early, late]), early, late)
    assert len(total([late, copies[2]])["runs"]) == 2


def test_the_runs_of_a_sweep_are_added_up_if_none_is_a_copy_of_another(tmp_path):
    swept = fedamp.sweep(small(*ASKED, "rounds=1"), {"seed": [1, 2]}, out=tmp_path / "swept", jobs=1)
    assert swept.to_json()["choosing"]["all_runs_epsilon"] is not None
    one, two = (run.folder for run in swept.runs)
    shutil.rmtree(two)
    shutil.copytree(one, two)
    refused(read_sweep(swept.folder).to_json, one, two)


def test_a_population_is_verified_with_each_run_once(copies, fedamp, tmp_path, monkeypatch):
    from fedamp.extensions.population.store import Population

    monkeypatch.setenv("FEDAMP_HOME", str(tmp_path / "home"))
    Population.new(tmp_path / "people.db", [("a", "a")], 1.0, 1e-5)
    a, b, c = copies
    assert fedamp("population", "verify", tmp_path / "people.db", a, c).status == 0
    answer = fedamp("population", "verify", tmp_path / "people.db", a, b)
    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert f"{b} and {a} have" in answer.err


SHARED = {
    "a ledger": {"head": "h"},
    "a seed": {"run": "r"},
    "a use of a population": {"population": {"use": "u"}},
    "a released model": {"releases": [{"digest": "d"}]},
    "private means": {"statistics": {"mean": [1.5], "deviation": [2.5]}},
    "an evaluation": {"final_evaluation": {"sums": [1.25, 3.5]}},
    "an evaluation of a cohort": {"releases": [{"digest": "number", "evaluated": {"sums": [1.25]}}]},
}


def ledgers(*changes: dict) -> list[tuple[Path, dict]]:
    """Two ledgers that have nothing in common, but for these changes of each."""
    made = []
    for number, change in enumerate(changes):
        own = {"head": f"head {number}", "run": f"run {number}", "scenario_sha256": "s", "noise_seed": "from ..."}
        changed = json.loads(json.dumps(change).replace("number", str(number)))
        made.append((Path(f"runs/{number}"), own | {"releases": []} | changed))
    return made


@pytest.mark.parametrize("what", SHARED)
def test_each_thing_that_two_runs_may_have_in_common_is_enough(what):
    message = refused(lambda: check_independent(ledgers(SHARED[what], SHARED[what])), Path("runs/0"), Path("runs/1"))
    assert f"have {what.removesuffix(' of a cohort')} in common" in message
    check_independent(ledgers(SHARED[what], {}))


def test_ledgers_of_an_earlier_version_are_added_up_where_they_cannot_be_copies():
    old, known = {"run": None}, {"run": None, "noise_seed": "known: ..."}
    for both in ((old, old), (old, {}), ({}, old), (known, known | {"scenario_sha256": "another"})):
        message = refused(lambda both=both: check_independent(ledgers(*both)), Path("runs/0"), Path("runs/1"))
        assert "may have a seed in common" in message
    check_independent(ledgers(old, old | {"scenario_sha256": "another"}))
    check_independent(ledgers(old, known))
