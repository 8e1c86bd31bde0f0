"""A lost disk: a backup is brought up to date, or the file is made again, and nobody gets a budget back."""

import json
import shutil

import pytest

import fedamp
from fedamp.extensions.population import recovery, store
from fedamp.extensions.population.account import known_to
from fedamp.extensions.population.history import history_of
from fedamp.extensions.population.recovery import Recovery
from fedamp.extensions.population.store import Population, PopulationError
from fedamp.runs.total import ledger_of
from tests.extensions.population.test_account import ALL, SCENARIO, Opened
from tests.tools import killed_before_line

PEOPLE = [(str(number), str(number)) for number in range(30)]
QUICK = ALL | {"privacy.noise_multiplier": 12.0, "privacy.precision": 0.05}


@pytest.fixture
def year(tmp_path, monkeypatch):
    """A population, a backup after its first run, and two runs more, on a machine with an id."""
    (tmp_path / "this-machine").write_text("this\n")
    monkeypatch.setattr(store, "MACHINE_ID", tmp_path / "this-machine")
    file = tmp_path / "people.db"
    Population.new(file, PEOPLE, 4.0, 1e-5)
    asked = fedamp.load(SCENARIO, **(QUICK | {"privacy.population": str(file)}))
    runs = []
    for name in ("a", "b", "c"):
        runs.append(fedamp.run(asked, tmp_path / name, anyway=True).folder)
        if name == "a":
            shutil.copy(file, tmp_path / "backup.db")
    return file, tmp_path / "backup.db", runs


def ledgers(runs):
    return [(run, ledger_of(run)) for run in runs]


def restore(file, backup):
    for each in file.parent.glob(f"{file.name}*"):
        each.unlink()
    shutil.copy(backup, file)


def test_from_a_backup_and_ledgers_all_runs_are_charged_again(fedamp, year):
    file, backup, runs = year
    before = Population(file).read()
    restore(file, backup)
    with pytest.raises(PopulationError, match="an earlier or another state"):
        Population(file)
    answer = fedamp("population", "recover", file, *runs, "--no-other-use")
    assert answer.status == 0, answer.err
    assert "fedamp population leave again" in answer.err
    contents = Population(file).read()
    assert contents.spent() == pytest.approx(before.spent(), rel=1e-6)
    assert {use.state for use in contents.uses.values()} == {"settled"}
    verdicts = [known_to(Population(file), run, ledger["population"]).verdict for run, ledger in ledgers(runs)]
    assert verdicts == ["pass", "caution", "caution"]
    assert json.loads(fedamp("population", "show", file, "--json").out)["recovered"]
    # The next run is charged on top of all that.
    Opened(file, file.parent / "next", **QUICK).play()
    assert Population(file).read().spent()[0] > 1.2 * before.spent()[0]


def test_without_the_operators_word_everything_may_have_been_spent(fedamp, year):
    file, backup, runs = year
    restore(file, backup)
    assert fedamp("population", "recover", file, *runs).status == 0
    contents = Population(file).read()
    assert contents.spent() == pytest.approx([1.0] * 30)
    told = history_of(contents, 3)
    assert told["left"] == "0 %"
    assert told["lost"]
    assert told["fixed_epsilon"] is None
    assert told["adaptive_epsilon"] == pytest.approx(4.0)
    with pytest.raises(PopulationError, match="0 % of the budget"):
        Opened(file, file.parent / "next", **QUICK).play()
    Population(file).add([("new", "new")], 4.0)  # who came later has a budget
    assert Population(file).read().spent()[30] == 0


def test_a_missing_ledger_is_noticed(year):
    file, backup, runs = year
    restore(file, backup)
    content = file.read_bytes()
    with pytest.raises(PopulationError, match="counts 3 uses, and 2 are known"):
        Recovery(ledgers([runs[0], runs[2]]), no_other_use=True).recover(file)
    assert file.read_bytes() == content
    Recovery(ledgers(runs), no_other_use=True).recover(file)


def test_without_a_backup_the_file_is_made_again(fedamp, year, tmp_path):
    file, _, runs = year
    before, id_ = Population(file).read(), Population(file).id
    for each in file.parent.glob("people.db*"):
        each.unlink()
    people = tmp_path / "people.csv"
    people.write_text("".join(f"{unit}\n" for unit, _ in PEOPLE))
    assert fedamp("population", "new", file, "--people", people, "--epsilon", 9, "--delta", 1e-5).status == 2
    nothing = fedamp("population", "recover", file, "--people", people)
    assert (nothing.status, nothing.err.count("\n")) == (2, 1)
    assert fedamp("population", "recover", file, *runs, "--people", people, "--no-other-use").status == 0
    contents = Population(file).read()
    assert contents.id == id_
    assert contents.spent() == pytest.approx(before.spent(), rel=1e-6)
    assert set(contents.uses) == set(before.uses)
    assert fedamp("population", "recover", file, *runs, "--people", people).status == 2  # it is there


def test_a_backup_with_its_note_is_not_accepted_silently_on_another_machine(year, tmp_path, monkeypatch):
    file, _, runs = year
    other = tmp_path / "machine-id"
    other.write_text("another\n")
    monkeypatch.setattr(store, "MACHINE_ID", other)
    population = Population(file)  # which may be read
    spent = population.read().spent()
    with pytest.raises(PopulationError, match=r"from another machine.* expected: fedamp population recover"):
        population.leave("3")
    with pytest.raises(PopulationError, match="from another machine"):
        Opened(file, tmp_path / "next", **QUICK).play()
    Recovery(ledgers(runs), no_other_use=True).recover(file)
    population.leave("3")
    assert population.read().spent() == pytest.approx(spent)


def test_a_run_that_was_going_on_is_not_resumed_after_a_recovery(tmp_path):
    """It may have gone on elsewhere, and its folder may be a copy."""
    file = tmp_path / "people.db"
    Population.new(file, PEOPLE, 4.0, 1e-5)
    asked = fedamp.load(SCENARIO, **(QUICK | {"privacy.population": str(file)}))
    fedamp.run(asked, tmp_path / "run", anyway=True, callbacks=lambda record: False)
    Recovery(ledgers([tmp_path / "run"]), no_other_use=True).recover(file)
    with pytest.raises(PopulationError, match="settled"):
        fedamp.run(asked, tmp_path / "run", resume=True, anyway=True)


def test_ledgers_of_others_are_refused(year, tmp_path):
    _, _, runs = year
    other = tmp_path / "other.db"
    Population.new(other, PEOPLE, 4.0, 1e-5)
    alone = fedamp.run(SCENARIO, tmp_path / "alone", anyway=True, **QUICK).folder
    with pytest.raises(PopulationError, match="no population"):
        Recovery(ledgers([*runs, alone]))
    with pytest.raises(PopulationError, match="another population"):
        Recovery(ledgers(runs)).recover(other)
    assert Population(other).read().spent().tolist() == [0] * 30


@pytest.mark.slow
@pytest.mark.parametrize("with_backup", [True, False])
def test_killed_between_any_two_steps_no_budget_comes_back(year, with_backup):
    file, backup, runs = year
    before, told = Population(file).read().spent(), Recovery(ledgers(runs), no_other_use=True)
    people, killed, step = None if with_backup else PEOPLE, True, 1
    home = store._notes_folder() / f"{Population(file).id}.json"
    note = home.read_bytes()

    def ours(code):
        return code.co_filename == recovery.__file__ or code.co_name in ("rewrite", "new", "_write_note")

    while killed:
        home.write_bytes(note)
        restore(file, backup)
        if not with_backup:
            file.unlink()
        killed = killed_before_line(step, lambda: told.recover(file, people), ours)
        try:
            found = Population(file).read().spent()
        except PopulationError:  # refused as before
            told.recover(file, people if not file.exists() else None)
            found = Population(file).read().spent()
        assert found == pytest.approx(before, rel=1e-6)
        step += 5
