"""A run and the population that pays for it: reserved before anybody is asked, never twice, settled at the end."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fedamp
from fedamp.accounting.sampling import PRECISION
from fedamp.engines.simulation import SerialGrid
from fedamp.errors import InputError, RunFolderError, ScenarioError
from fedamp.extensions.population.account import CLAIM, charged, known_to
from fedamp.extensions.population.store import Population, PopulationError
from fedamp.federation import reader
from fedamp.federation.plan import make_plan
from fedamp.runs.folder import RunFolder
from fedamp.runs.total import total
from fedamp.runs.verification import verify_ledger
from fedamp.server.observers import RunStart
from fedamp.server.setup import prepare
from tests.chains import change_ledger
from tests.federations import small

SCENARIO = {
    "name": "people",
    "data": {"name": "synthetic", "clients": 30},
    "model": {"name": "logistic"},
    "rounds": 3,
    "check_in": {"scheme": "balanced", "k": 2},
    "privacy": {"clip": 0.5, "noise_multiplier": 5.0, "epsilon": None, "precision": 0.05},
    "engine": {"kind": "serial"},
}
SEEDS = itertools.count(1000)
ALL = {"check_in": {"scheme": "all"}}  # whose cost is known soonest


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "people.db"
    Population.new(file, [(str(n), str(n)) for n in range(30)], 1.6, 1e-5)
    return file


def scenario(file, **changes):
    return fedamp.load(SCENARIO, **({"privacy.population": str(file)} | changes))


def spent(file):
    return Population(file).read().spent()


def states(file):
    return [use.state for use in Population(file).read().uses.values()]


class Opened:
    """The account of a run without the run: a folder, and what happened in it."""

    def __init__(self, file, folder, digest="digest", **changes):
        folder.mkdir(exist_ok=True)
        asked = reader.load(scenario(file, **changes).model_dump(mode="json"))
        self.plan, self.folder, self.digest = make_plan(asked, 30, seed=next(SEEDS)), folder, digest

    def play(self, until="end", begun=False, ended=False):
        with charged(RunStart(self.plan, self.digest, RunFolder(self.folder), begun, ended)) as account:
            if until in ("asked", "end") and not ended:
                account.before_question()
            if until == "end":
                account.has_ended()
        return account


QUIET = ALL | {"privacy.noise_multiplier": 12.0}


def play_run(file, folder):
    fedamp.run(scenario(file, **QUIET), folder)
    for name in ("summary.json", "rounds.jsonl", "salt.secret"):  # a ledger that was handed out
        (folder / name).unlink()


# The steps of a run.


def test_a_run_is_settled_at_its_end_and_its_ledger_says_what_people_paid(file, tmp_path):
    asked = scenario(file, **{"privacy.precision": PRECISION})  # else the bracket is wider than what the filter costs
    run = fedamp.run(asked, tmp_path / "run")
    told, contents = run.ledger.population, Population(file).read()
    assert states(file) == ["settled"]
    assert told.share == pytest.approx(float(contents.spent()[0]))
    assert (told.id, told.uses, told.budget_epsilon) == (contents.id, 1, 1.6)
    # The filter costs more than the exact cost of one run: hidden rounds are not quite Gaussian, and tails are paid.
    assert run.ledger.whole_run_epsilon.upper <= told.fixed_epsilon * (1 + 1e-9)
    assert told.fixed_epsilon < told.adaptive_epsilon < 1.1 * told.fixed_epsilon
    checks = {check.name: check for check in verify_ledger(run.folder)}
    assert checks["population"].verdict == "pass"
    # A run that has ended may be opened again: nothing is asked, and nothing is charged.
    fedamp.run(asked, run.folder, resume=True)
    assert states(file) == ["settled"]
    # A second run goes on, and a file that forgot the first one is found.
    before = {each.name: each.read_bytes() for each in tmp_path.glob("people.db*")}
    again = fedamp.run(scenario(file), tmp_path / "again")
    assert again.ledger.population.uses == 2
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PopulationError, match="an earlier or another state"):
        verify_ledger(again.folder)
    answer = total([run.folder, again.folder])
    assert answer["fixed"]["upper"] == pytest.approx(again.ledger.population.fixed_epsilon, rel=1e-3)
    assert answer["adaptive_epsilon"] == pytest.approx(again.ledger.population.adaptive_epsilon, rel=1e-2)
    with pytest.raises(RunFolderError, match="have a ledger in common"):
        total([run.folder, run.folder])


def test_without_a_population_the_ledger_is_as_before(tmp_path):
    run = fedamp.run(SCENARIO, tmp_path / "run")
    assert run.ledger.population is None
    assert "population" not in json.loads((run.folder / "ledger.json").read_text())
    assert not (run.folder / CLAIM).exists()


def test_a_stopped_run_keeps_its_reservation_and_is_charged_once(file, tmp_path):
    def stop(record):
        return False

    fedamp.run(scenario(file), tmp_path / "run", callbacks=stop)
    assert states(file) == ["running"]
    once = spent(file)[0]
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    fedamp.run(scenario(file), tmp_path / "run", resume=True)
    assert states(file) == ["settled"]
    assert spent(file)[0] == once
    with pytest.raises(PopulationError, match="settled"):
        fedamp.run(scenario(file), tmp_path / "copy", resume=True)
    assert states(file) == ["settled"]


@pytest.mark.parametrize("changes", [{"privacy.population": None}, {"privacy.population": "other"}])
def test_a_run_is_resumed_with_its_own_population_only(file, tmp_path, changes):
    fedamp.run(scenario(file), tmp_path / "run", callbacks=lambda record: False)
    if changes["privacy.population"]:
        other = tmp_path / "other.db"
        Population.new(other, [(str(n), str(n)) for n in range(30)], 1.6, 1e-5)
        changes = {"privacy.population": str(other)}
    with pytest.raises(RunFolderError if changes["privacy.population"] is None else PopulationError):
        fedamp.run(scenario(file, **changes), tmp_path / "run", resume=True)
    assert states(file) == ["running"]


def test_what_does_not_fit_is_refused_before_a_folder_is_made_and_what_fits_is_named(file, tmp_path):
    costly = scenario(file, **ALL, **{"privacy.noise_multiplier": 0.8})
    with pytest.raises(PopulationError) as caught:
        fedamp.run(costly, tmp_path / "run")
    message = str(caught.value)
    assert "\n" not in message
    assert not (tmp_path / "run").exists()
    assert states(file) == []
    named = float(message.rpartition("noise_multiplier at least ")[2].partition(",")[0])
    with pytest.raises(PopulationError):
        Opened(file, tmp_path / "less", **ALL, **{"privacy.noise_multiplier": 0.95 * named}).play()
    Opened(file, tmp_path / "enough", **ALL, **{"privacy.noise_multiplier": named}).play()
    assert states(file) == ["settled"]


def test_for_noise_that_is_calibrated_an_epsilon_is_named(file, tmp_path):
    asked = ALL | {"privacy.noise_multiplier": "auto", "privacy.epsilon": 3.0}
    with pytest.raises(PopulationError) as caught:
        Opened(file, tmp_path / "run", **asked).play()
    named = float(str(caught.value).rpartition("privacy.epsilon at most ")[2])
    assert 1.3 < named <= 1.6
    Opened(file, tmp_path / "run", **asked | {"privacy.epsilon": named}).play()


# Attacks.


def test_before_the_first_message_all_is_given_back_and_comes_again(file, tmp_path):
    run = Opened(file, tmp_path / "run")
    run.play(until="reserved")
    assert states(file) == ["void"]
    run.play()
    assert states(file) == ["settled"]


def test_killed_before_or_after_the_first_message_it_goes_on_with_its_one_use(file, tmp_path):
    run = Opened(file, tmp_path / "run")
    for asked in (False, True):
        if not (child := os.fork()):
            with charged(RunStart(run.plan, run.digest, RunFolder(run.folder), asked, False)) as account:
                if asked:
                    account.before_question()
                os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    once = spent(file)[0]
    run.play(begun=True)
    assert states(file) == ["settled"]
    assert spent(file)[0] == once


def copied(run, to):
    shutil.copytree(run.folder, to)
    other = object.__new__(Opened)
    other.plan, other.folder, other.digest = run.plan, to, run.digest
    return other


def test_of_two_copies_of_a_stopped_run_one_goes_on(file, tmp_path):
    run = Opened(file, tmp_path / "run")
    run.play(until="asked")
    copy = copied(run, tmp_path / "copy")
    copy.play(until="asked", begun=True)
    with pytest.raises(PopulationError, match="a different copy of this run has continued"):
        run.play(begun=True)
    copy.play(begun=True)
    assert states(file) == ["settled"]


@pytest.mark.slow
def test_a_copy_of_a_run_that_another_process_plays_is_refused(file, tmp_path):
    """Else both would ask people, and the one that lost the use would learn that at its end."""
    (tmp_path / "asked.yaml").write_text(scenario(file, **ALL).to_yaml())
    program = """if True:
        import sys, fedamp
        def paused(record):
            if record.round == 1:
                print("paused", flush=True)
                sys.stdin.read(1)
        fedamp.run("asked.yaml", out="run", callbacks=paused)
    """
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": tmp_path}
    with subprocess.Popen([sys.executable, "-c", program], **piped) as player:
        while "paused" not in player.stdout.readline():
            assert player.poll() is None
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        with pytest.raises(PopulationError, match="copy: another process plays this run"):
            fedamp.run(scenario(file, **ALL), tmp_path / "copy", resume=True)
        player.communicate("go")
    assert player.returncode == 0
    assert states(file) == ["settled"]


def test_a_second_run_with_a_known_seed_is_refused(file, tmp_path):
    """It has the hidden choices and the noise of the first, so it costs people more than its share."""
    known = ALL | {"known_seed": True, "privacy.noise_multiplier": 20.0}
    fedamp.run(scenario(file, **known), tmp_path / "run", anyway=True)
    once = spent(file)[0]
    noisier = scenario(file, **known | {"privacy.noise_multiplier": 30.0})
    with pytest.raises(PopulationError, match="this use has the seed of use"):
        fedamp.run(noisier, tmp_path / "again", anyway=True)
    assert spent(file)[0] == once
    fedamp.run(scenario(file, **known, seed=5), tmp_path / "other", anyway=True)
    assert spent(file)[0] == pytest.approx(2 * once)


@pytest.mark.parametrize("attack", ["claim gone", "claim of another run", "claim damaged", "forgotten", "settled"])
def test_a_run_does_not_go_on_with_a_claim_that_is_not_its_own(file, tmp_path, home, attack):
    run, other = Opened(file, tmp_path / "run"), Opened(file, tmp_path / "other", digest="another")
    run.play(until="end" if attack == "settled" else "asked")
    match attack:
        case "claim gone":
            (run.folder / CLAIM).unlink()
        case "claim of another run":
            other.play(until="asked")
            shutil.copy(other.folder / CLAIM, run.folder / CLAIM)
        case "claim damaged":
            (run.folder / CLAIM).write_text("{}")
        case "forgotten":  # the file, its note and the list are made anew
            shutil.rmtree(home / "populations")
            claim = json.loads((run.folder / CLAIM).read_text())
            file.unlink()
            Population.new(file, [(str(n), str(n)) for n in range(30)], 1.6, 1e-5)
            (run.folder / CLAIM).write_text(json.dumps(claim | {"population": Population(file).read().id}))
    before = spent(file).tolist()
    with pytest.raises(InputError) as caught:
        run.play(begun=True)
    assert "\n" not in str(caught.value)
    assert spent(file).tolist() == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data.clients": 31}, "unit '30' is not on its list"),
        ({"privacy.unit": "sample"}, "privacy.unit: client"),
        ({"privacy.noise_multiplier": 0}, "costs more than any budget"),
    ],
)
def test_a_run_that_people_cannot_be_charged_for_is_refused(file, tmp_path, changes, words):
    asked = scenario(file, **changes)
    with pytest.raises((PopulationError, ScenarioError), match=words):
        fedamp.run(asked, tmp_path / "run")
    assert states(file) == []
    assert not (tmp_path / "run").exists()


def test_fewer_clients_than_people_charge_those_who_are_asked(file, tmp_path):
    asked = reader.load(scenario(file, **{"data.clients": 20}).model_dump(mode="json"))
    with charged(RunStart(make_plan(asked, 20), "digest", RunFolder(tmp_path), False, False)) as account:
        account.before_question()
    assert (spent(file)[:20] > 0).all()
    assert (spent(file)[20:] == 0).all()


def test_two_units_of_one_person_cost_that_person_as_a_group(tmp_path):
    file = tmp_path / "p.db"
    Population.new(file, [(str(n), "ann" if n < 2 else str(n)) for n in range(30)], 8.0, 1e-5)
    Opened(file, tmp_path / "run", **ALL).play()
    population = Population(file)
    costs = population.read().spent()
    ann = population.person("ann")
    # A group of two is at least two changes: twice mu, so four times the share of a Gaussian, but for the tails' part.
    others = [cost for number, cost in enumerate(costs) if number != ann]
    assert len(others) == 28
    assert costs[ann] > 3.5 * max(others)


@pytest.mark.parametrize("told", ["none", "another population", "a head of no state", "a use that was given back"])
def test_a_ledger_that_the_file_does_not_know_is_named(file, tmp_path, told):
    account = Opened(file, tmp_path / "run").play(until="reserved" if told == "a use that was given back" else "end")
    record = account.record.content()
    record |= {"another population": {"id": "0" * 32}, "a head of no state": {"head": "0" * 64}}.get(told, {})
    check = known_to(Population(file), tmp_path, None if told == "none" else record)
    assert check.verdict == ("caution" if told == "none" else "fail")


FORGED = {
    "share": lambda told: told["share"] * 0.9,
    "adaptive_epsilon": lambda told: told["adaptive_epsilon"] * 0.9,
    "fixed_epsilon": lambda told: told["fixed_epsilon"] * 0.9,
    "budget_epsilon": lambda told: 0.1,
    "delta": lambda told: told["delta"] / 2,
    "uses": lambda told: 1,
}


def test_what_a_ledger_says_of_its_population_is_computed_again(file, tmp_path, fedamp):
    """By ``verify`` of the run, and by ``population verify`` of a foreign ledger; also after further uses."""
    Opened(file, tmp_path / "before", digest="another", **QUIET).play()
    run = tmp_path / "run"
    play_run(file, run)
    Opened(file, tmp_path / "after", digest="a third", **QUIET).play()
    assert not [check for check in verify_ledger(run) if check.verdict == "fail"]
    told = json.loads((run / "ledger.json").read_text())["population"]
    assert told["uses"] == 2
    changes = [*({key: of(told)} for key, of in FORGED.items()), {"uses": "many"}, {"head": 3}]
    for change in changes:
        change_ledger(run, lambda ledger, change=change: ledger.update(population=told | change))
        answer = fedamp("population", "verify", file, run)
        assert answer.status == 1, change
        assert next(iter(change)) in answer.err
        assert answer.err.count("\n") == 1
        if not isinstance(change.get("uses"), str) and "head" not in change:
            assert [check.name for check in verify_ledger(run) if check.verdict == "fail"] == ["population"]
    change_ledger(run, lambda ledger: ledger.pop("population"))
    assert "population" in next(check for check in verify_ledger(run) if check.name == "scenario").found


def test_without_the_file_what_a_ledger_says_of_its_population_must_go_together(file, tmp_path):
    run = tmp_path / "run"
    play_run(file, run)
    file.rename(tmp_path / "elsewhere.db")
    [check] = [check for check in verify_ledger(run) if check.name == "population"]
    assert (check.verdict, "whose file is not here" in check.found) == ("caution", True)
    change_ledger(run, lambda ledger: ledger["population"].update(adaptive_epsilon=0.1))
    [check] = [check for check in verify_ledger(run) if check.name == "population"]
    assert check.verdict == "fail"


def test_a_private_data_set_names_its_clients_by_its_column(tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    who = np.array(["zoe", "bob", "ann"])[np.arange(30) % 3]
    x, y = rng.random((30, 4), dtype=np.float32), rng.integers(0, 2, 30)
    asked = fedamp.load(SCENARIO | {"data": {"name": "synthetic"}}, data=(x, y, who), **{"data.classes": 2})
    assert asked.data.unit_names(Path()) == ["ann", "bob", "zoe"]


OTHERS = {
    "unit sample": ("privacy.unit=sample", "client={}"),
    "group_size 2": ("privacy.group_size=2",),
    "adjacency substitution": ("check_in={scheme: batches, size: 20}",),
    "a rehearsal: not private": ("privacy={clip: 0.5, noise_multiplier: 2.0, noise_cohort: 900}",),
}


@pytest.mark.parametrize("found", OTHERS)
def test_a_total_of_runs_that_protect_somebody_else_is_refused(tmp_path, found):
    """Somebody with many records is in a run by record many times; a rehearsal protects nobody."""
    runs = [tmp_path / "clients", tmp_path / "others"]
    for run, changes in zip(runs, ((), OTHERS[found]), strict=True):
        fedamp.run(small("rounds=1", "check_in={scheme: all}", *changes), out=run)
    with pytest.raises(RunFolderError, match=f"others: {found}"):
        total(runs)


def test_people_pay_for_runs_of_two_neighbouring_relations(file, tmp_path):
    """Who is replaced by anybody is also left out; what both cost together, fixed in advance, is not known."""
    noise = {"privacy.noise_multiplier": 20.0}
    fedamp.run(scenario(file, **ALL, **noise), out=tmp_path / "all", anyway=True)
    batches = scenario(file, check_in={"scheme": "batches", "size": 3}, **noise)
    run = fedamp.run(batches, out=tmp_path / "batches", anyway=True)
    assert run.ledger.population.uses == 2
    assert run.ledger.population.fixed_epsilon is None
    assert 0 < run.ledger.population.adaptive_epsilon < 1.6


def test_a_loop_of_ones_own_charges_nobody_and_is_refused(file):
    strategy = (prepared := prepare(scenario(file))).strategy(prepared.state)
    with SerialGrid("fedamp.client.app:app") as grid, pytest.raises(ScenarioError, match="a custom app charges no"):
        strategy.start(grid, strategy.arrays())
    assert not spent(file).any()
