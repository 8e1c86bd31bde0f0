"""The file of a population under attack: nothing is spent twice, and nothing is forgotten."""

import json
import math
import os
import resource
import shutil
import signal
import sqlite3
import time
from contextlib import suppress

import numpy as np
import pytest

import fedamp.extensions.population.store as store
from fedamp.accounting import Gaussian
from fedamp.accounting.search import Budget
from fedamp.accounting.verify import chained_digest
from fedamp.errors import RunFolderError, UnwritableError
from fedamp.extensions.population.store import DataUse, Population, PopulationError, UsePrice
from tests.tools import killed_before_line

EPSILON, DELTA = 4.0, 1e-5
NOISE = 1.7
SHARE = Budget(EPSILON, DELTA).share_of_use(Gaussian(NOISE))  # about .4: two fit, three do not
UNITS = [f"u{number}" for number in range(5)]


def use(name, population, units=UNITS, share=SHARE):
    counts = store.counted(population.owners(units))
    charges = tuple(UsePrice(int(k), EPSILON, share, Gaussian(NOISE)) for k in sorted(set(counts.tolist()) - {0}))
    return DataUse(name, "run", "plan", charges, counts, token="t")


def reserve(population, name, **given):
    return population.reserve(use(name, population, **given), given.get("units", UNITS))


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "people.db"
    Population.new(file, [(unit, unit) for unit in UNITS], EPSILON, DELTA)
    return file


def refused(call, *words):
    """One line that holds these words."""
    with pytest.raises(PopulationError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_what_was_reserved_is_spent_until_it_is_given_back(file):
    population = Population(file)
    reserve(population, "a")
    assert population.read().spent() == pytest.approx([SHARE] * 5)
    population.move("a", "void", ["t"], "t")
    assert population.read().spent() == pytest.approx([0] * 5)
    reserve(population, "a")
    population.move("a", "running", ["t"], "t")
    refused(lambda: population.move("a", "void", ["t"], "t"), "is running, and cannot be void")
    population.move("a", "settled", ["t"], "t")
    assert Population(file).read().spent() == pytest.approx([SHARE] * 5)


def test_who_has_too_little_left_is_named_with_what_is_left(file):
    population = Population(file)
    reserve(population, "a", units=["u3"])
    reserve(population, "b", units=["u3"])
    left = f"{math.floor((1 - 2 * SHARE) * 1e4) / 100:.4g} %"
    refused(lambda: reserve(population, "c"), "the person of unit u3", left, "epsilon 4 at delta 1e-05", "expected")
    assert population.read().spent() == pytest.approx([0, 0, 0, 2 * SHARE, 0])


def test_the_units_of_one_person_are_charged_to_that_person(tmp_path):
    people = [("u0", "ann"), ("u1", "ann"), ("u2", "bob")]
    population = Population.new(tmp_path / "p.db", people, EPSILON, DELTA)
    reserve(population, "a", units=["u0"])
    reserve(population, "b", units=["u1"])
    refused(lambda: reserve(population, "c", units=["u0"]), "has")
    reserve(population, "c", units=["u2"])
    assert [found.id for found, _ in population.read().series(population.person("ann"))] == ["a", "b"]


def test_a_person_with_a_number_of_units_that_was_not_charged_is_refused(file):
    population = Population(file)
    asked = DataUse("a", "run", "plan", (UsePrice(2, EPSILON, SHARE, Gaussian(NOISE)),), store.counted(np.arange(5)))
    refused(lambda: population.reserve(asked, UNITS), "costs more than all")


def test_people_keep_the_budget_with_which_they_came(file):
    population = Population(file)
    population.add([("u5", "u5"), ("u6", "u0")], 1.0)  # u6 is another unit of u0, who has 4
    contents = population.read()
    assert contents.epsilons.tolist() == [EPSILON] * 5 + [1.0]
    assert population.owners(["u6", "u5"]).tolist() == [0, 5]


def test_the_exact_cost_of_a_series_is_below_the_filters(file):
    population = Population(file)
    reserve(population, "a")
    reserve(population, "b")
    contents = population.read()
    exact = contents.exact(0).epsilon(DELTA).upper
    assert exact == pytest.approx(Gaussian(NOISE / math.sqrt(2)).epsilon(DELTA).upper, rel=1e-3)
    assert exact < contents.budget(0).spent_epsilon(float(contents.spent()[0])) < 1.03 * exact


# Attacks.


def test_of_runs_that_start_at_once_only_those_that_fit_are_charged(file):
    starts, go = os.pipe()
    children = []
    for number in range(4):
        if not (child := os.fork()):
            status = 2
            try:
                os.read(starts, 1)
                reserve(Population(file), str(number))
                status = 0
            except store.Overspent:
                status = 1
            finally:
                os._exit(status)
        children.append(child)
    os.write(go, b"4 go")  # all wait
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(starts)
    os.close(go)
    assert sorted(codes) == [0, 0, 1, 1]
    assert Population(file).read().spent() == pytest.approx([2 * SHARE] * 5)


def at_once(*calls):
    """How many of the calls were done, each by a process of its own; all begin at the same moment."""
    starts, go = os.pipe()
    children = []
    for call in calls:
        if not (child := os.fork()):
            status = 2
            try:
                os.read(starts, 1)
                call()
                status = 0
            except PopulationError:
                status = 1
            finally:
                os._exit(status)
        children.append(child)
    os.write(go, b"g" * len(calls))
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(starts)
    os.close(go)
    assert set(codes) <= {0, 1}
    return codes.count(0)


@pytest.mark.parametrize("kind", ["hard link", "copy"])
def test_two_names_of_one_population_that_are_used_at_once_pay_from_one_budget(file, tmp_path, kind, monkeypatch):
    read = store._replay_events

    def slowly(*given):  # so that without the lock all have read before one has written
        contents = read(*given)
        time.sleep(0.3)
        return contents

    other = tmp_path / "other.db"
    os.link(file, other) if kind == "hard link" else copied(file, other)
    both = [Population(file), Population(other)]
    names = [(name, both[number % 2]) for number, name in enumerate("abcdef")]
    with monkeypatch.context() as patch:
        patch.setattr(store, "_replay_events", slowly)
        done = at_once(*(lambda name=name, each=each: reserve(each, name) for name, each in names))
    uses = []
    for each in (file, other):
        with suppress(PopulationError):  # of a copy that is behind the other
            uses.append(len(Population(each).read().uses))
    assert done in ((2,) if kind == "hard link" else (1, 2))  # two fit into the budget
    assert uses == [done] * (2 if kind == "hard link" else 1)


@pytest.mark.parametrize("used", [False, True])
def test_a_copy_under_another_home_cannot_be_spent_from(file, tmp_path, home, monkeypatch, used):
    """Its note is elsewhere, so nothing there says how far the first one has come."""
    if used:
        reserve(Population(file), "a")
    copied(file, tmp_path / "copy.db")
    other = tmp_path / "other home"
    monkeypatch.setenv("FEDAMP_HOME", str(other))
    copy = Population(tmp_path / "copy.db")
    assert len(copy.read().uses) == used  # an auditor may read it
    refused(lambda: reserve(copy, "b"), f"{other}/populations/{copy.id}.json is missing", "moved with its note")
    refused(lambda: Population(file).add([("new", "new")], EPSILON), "is missing")
    shutil.copytree(home / "populations", other / "populations", dirs_exist_ok=True)  # moved with its note
    reserve(copy, "b")


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"id": "x"}', "null", "pipe"])
def test_a_damaged_note_concerns_its_own_population_alone(file, tmp_path, home, damage):
    other = tmp_path / "other.db"
    id_ = Population.new(other, [(unit, unit) for unit in UNITS], EPSILON, DELTA).id
    note = home / "populations" / f"{id_}.json"
    note.unlink()
    os.mkfifo(note) if damage == "pipe" else note.write_text(damage)
    reserve(Population(file), "a")
    Population.new(tmp_path / "third.db", [("u", "u")], EPSILON, DELTA)
    with pytest.raises(RunFolderError, match=f"{id_}.json: damaged note of a population: ") as caught:
        Population(other)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("last", ["its note", "its name", "the note that it is there"])
def test_killed_while_it_is_made_there_is_a_population_or_none(tmp_path, last):
    file, people = tmp_path / "p.db", [(unit, unit) for unit in UNITS]
    link, note = os.link, store._write_note

    def linked(*given):
        if last == "its name":
            link(*given)
        os.kill(os.getpid(), signal.SIGKILL)

    def noted(*given):
        note(*given)
        if len(given) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    if not (child := os.fork()):
        store.os.link, store._write_note = (link, noted) if last == "the note that it is there" else (linked, note)
        Population.new(file, people, EPSILON, DELTA)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert file.exists() == (last != "its note")
    population = Population(file) if file.exists() else Population.new(file, people, EPSILON, DELTA)
    reserve(population, "a")
    assert population.read().spent() == pytest.approx([SHARE] * 5)


def killed_at(step, call):
    """Run a call in a child that is killed with signal 9 before so many lines of the store; whether it was."""
    return killed_before_line(step, call, lambda code: code.co_filename == store.__file__)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("ready", "call", "before", "after"),
    [
        ((), lambda p: reserve(p, "a"), None, "reserved"),
        (("reserved",), lambda p: p.move("a", "running", ["t"], "t2"), "reserved", "running"),
        *(
            pytest.param(*more, marks=pytest.mark.slow)
            for more in (
                (("reserved", "running"), lambda p: p.move("a", "settled", ["t"], "t2"), "running", "settled"),
                (("reserved",), lambda p: p.move("a", "void", ["t"], "t2"), "reserved", "void"),
            )
        ),
    ],
)
def test_killed_between_any_two_steps_it_is_as_before_or_after(tmp_path, home, ready, call, before, after):
    begun, tried, killed, step = tmp_path / "begun", tmp_path / "tried", True, 1
    begun.mkdir()
    population = Population.new(begun / "p.db", [(unit, unit) for unit in UNITS], EPSILON, DELTA)
    for state in ready:
        reserve(population, "a") if state == "reserved" else population.move("a", state, ["t"], "t")
    noted = {note: note.read_bytes() for note in (home / "populations").glob("*.json")}
    seen = set()
    while killed:
        shutil.rmtree(tried, ignore_errors=True)
        shutil.copytree(begun, tried)
        for note, content in noted.items():
            note.write_bytes(content.replace(b"/begun/", b"/tried/"))
        population = Population(tried / "p.db")
        killed = killed_at(step, lambda: call(Population(tried / "p.db")))
        found = Population(tried / "p.db").read().uses.get("a")
        state = found and found.state
        assert state in (before, after)
        seen.add(state)
        if state == before:  # the same call again does it, once
            call(Population(tried / "p.db"))
        contents = Population(tried / "p.db").read()
        assert contents.spent() == pytest.approx([0 if after == "void" else SHARE] * 5)
        step += max(1, step // 6)  # each of the first steps, and then some: the lines of a loop repeat
    assert seen == {before, after}


def test_on_a_full_disk_nothing_is_charged_and_one_line_says_so(file):
    if not (child := os.fork()):
        status = 1
        try:
            population = Population(file)
            asked = use("a", population)
            resource.setrlimit(resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            try:
                population.reserve(asked, UNITS)
            except UnwritableError as error:
                status = 0 if "nothing was charged" in str(error) and "\n" not in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert Population(file).read().uses == {}
    reserve(Population(file), "a")


def copied(file, to):
    for beside in file.parent.glob(f"{file.name}*"):
        shutil.copy(beside, to.with_name(beside.name.replace(file.name, to.name)))


def test_a_file_that_was_put_back_is_refused(file, tmp_path):
    copied(file, tmp_path / "old.db")
    reserve(Population(file), "a")
    copied(tmp_path / "old.db", file)
    refused(lambda: reserve(Population(file), "b"), "an earlier or another state")


def test_of_two_copies_of_a_file_only_one_can_be_spent_from(file, tmp_path):
    copied(file, tmp_path / "second.db")
    reserve(Population(file), "a")
    refused(lambda: reserve(Population(tmp_path / "second.db"), "b"), "an earlier or another state")


def test_a_file_in_the_place_of_another_population_is_refused(file, tmp_path):
    other = tmp_path / "other.db"
    Population.new(other, [(unit, unit) for unit in UNITS], EPSILON, DELTA)
    os.replace(other, file)
    refused(lambda: Population(file), "another population")


def test_a_deleted_file_is_missed_and_not_made_anew(file):
    file.unlink()
    refused(lambda: Population(file), "no such population")
    refused(lambda: Population.new(file, [("u0", "u0")], EPSILON, DELTA), "must not be forgotten")


def test_a_moved_file_goes_on(file, tmp_path):
    reserve(Population(file), "a")
    (tmp_path / "there").mkdir()
    os.replace(file, tmp_path / "there" / "p.db")
    assert Population(tmp_path / "there" / "p.db").read().spent() == pytest.approx([SHARE] * 5)


EDITS = {
    "a smaller share": "UPDATE events SET content = replace(content, ': 0.', ': 0.0') WHERE number = 3",
    "an event less": "DELETE FROM events WHERE number = 3",
    "an event between less": "DELETE FROM events WHERE number = 2",
    "an event twice": "UPDATE events SET content = (SELECT content FROM events WHERE number = 4) WHERE number = 3",
    "no events": "DELETE FROM events",
    "no table": "DROP TABLE events",
    "another link": f"UPDATE events SET link = '{'0' * 64}' WHERE number = 3",
    "no JSON": "UPDATE events SET content = '{' WHERE number = 3",
    "a unit of another person": "UPDATE units SET person = (person + 1) % 5",
    "a unit more": "INSERT INTO units SELECT x'00', 0, owner, 2 FROM units LIMIT 1",
    "a unit more of no event": "INSERT INTO units SELECT x'00', 0, owner, 99 FROM units LIMIT 1",
    "a unit less": "DELETE FROM units WHERE person = 4",
    "no units": "DELETE FROM units",
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_file_is_refused(file, edit):
    population = Population(file)
    reserve(population, "a")
    population.move("a", "running", ["t"], "t")
    with sqlite3.connect(file) as database:
        database.execute(EDITS[edit])
    database.close()
    refused(lambda: reserve(Population(file), "b"), str(file))


def test_a_chain_made_anew_is_found_by_the_note_outside(file):
    population = Population(file)
    reserve(population, "a")
    with sqlite3.connect(file) as database:
        link = database.execute("SELECT link FROM events WHERE number = 2").fetchone()[0]
        event = json.dumps({"kind": "people", "people": 0, "epsilon": 1.0, "rows": store.hashlib.sha256().hexdigest()})
        database.execute(
            "UPDATE events SET content = ?, link = ? WHERE number = 3", (event, chained_digest(link, json.loads(event)))
        )
    database.close()
    refused(lambda: Population(file), "an earlier or another state")


@pytest.mark.parametrize("share", [-0.5, math.nan, 1.5, math.inf])
def test_an_impossible_share_in_a_valid_chain_is_refused(file, share):
    population = Population(file)
    with pytest.raises((PopulationError, ValueError)):
        reserve(population, "a", share=share)
    assert population.read().spent() == pytest.approx([0] * 5)


@pytest.mark.parametrize("what", ["garbage", "empty", "folder", "link", "open to others"])
def test_what_is_no_population_of_its_owner_is_refused(file, tmp_path, what):
    other = tmp_path / "other.db"
    match what:
        case "garbage":
            other.write_bytes(b"SQLite?" * 1000)
            other.chmod(0o600)
        case "empty":
            other.touch(0o600)
        case "folder":
            other.mkdir()
        case "link":
            other.symlink_to(file)
        case _:
            other = file
            file.chmod(0o644)
    with pytest.raises((PopulationError, UnwritableError)) as caught:
        Population(other)
    assert str(other) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("people", "epsilon", "delta"),
    [
        ([("u", "u")], -1.0, DELTA),
        ([("u", "u")], math.nan, DELTA),
        ([("u", "u")], math.inf, DELTA),
        ([("u", "u")], EPSILON, 0.0),
        ([("u", "u")], EPSILON, 2.0),
        ([("u", "u"), ("u", "v")], EPSILON, DELTA),
        ([("", "u")], EPSILON, DELTA),
        ([("u", "")], EPSILON, DELTA),
        ([], EPSILON, DELTA),
    ],
)
def test_impossible_people_and_budgets_leave_no_file(tmp_path, people, epsilon, delta):
    refused(lambda: Population.new(tmp_path / "p.db", people, epsilon, delta))
    assert list(tmp_path.iterdir()) == []


def test_a_unit_that_is_on_no_list_is_named(file):
    refused(lambda: Population(file).owners([*UNITS, "stranger", "other"]), "'stranger' (and 1 more)", "population add")


def test_a_unit_is_not_added_twice_and_a_refused_list_adds_nobody(file):
    refused(lambda: Population(file).add([("u7", "u7"), ("u0", "eve")], 1.0), "'u0' is on the list already")
    assert len(Population(file).read().epsilons) == 5


def test_who_took_over_a_use_is_the_only_one_to_go_on(file):
    population = Population(file)
    reserve(population, "a")
    population.move("a", "running", ["t"], "t2")
    refused(lambda: population.move("a", "settled", ["t"], "t"), "a different copy of this run has continued")
    refused(lambda: population.move("b", "running", ["t"], "t"), "no use b")


def test_ids_are_in_no_file(file):
    reserve(Population(file), "a")
    content = b"".join(each.read_bytes() for each in file.parent.glob("people.db*"))
    assert not any(unit.encode() in content for unit in UNITS)
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_files_beside_a_population_are_for_its_owner_alone(file):
    population, before = Population(file), os.umask(0)
    try:
        with population._open() as (database, _):
            database.execute("CREATE TABLE beside (number)")
            found = {each.name.removeprefix("people.db"): each.stat().st_mode & 0o777 for each in beside(file)}
    finally:
        os.umask(before)
    assert found == {"": 0o600, "-wal": 0o600, "-shm": 0o600}


def beside(file):
    return file.parent.glob("people.db*")
