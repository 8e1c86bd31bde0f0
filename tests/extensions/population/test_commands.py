"""``fedamp population`` and ``fedamp total``, as a person types them."""

import json
from pathlib import Path

import pytest
import yaml

from fedamp.extensions.population.store import Population
from tests.extensions.population.test_account import SCENARIO, Opened


@pytest.fixture
def made(fedamp, tmp_path):
    scenario = tmp_path / "people.yaml"
    scenario.write_text(yaml.safe_dump(SCENARIO))
    file = tmp_path / "people.db"
    answer = fedamp("population", "new", file, "--data", scenario, "--epsilon", 4, "--delta", 1e-5)
    assert (answer.status, answer.err) == (0, "")
    return file


def test_what_is_spent_is_shown_and_told_to_whom(fedamp, made, tmp_path):
    for name in ("a", "b"):
        Opened(made, tmp_path / name).play()
    shown = json.loads(fedamp("population", "show", made, "--json").out)
    assert shown["people"] == 30
    assert shown["uses"]["settled"] == 2
    assert 0 < shown["fixed_epsilon_upper"] < shown["adaptive_epsilon_upper"] < 4
    history = json.loads(fedamp("population", "history", made, "7", "--json").out)
    assert [use["run"] for use in history["uses"]] == ["people"] * 2
    for command in (("show", made), ("history", made, "7"), ("verify", made)):
        answer = fedamp("population", *command)
        assert (answer.status, answer.err) == (0, "")
        assert answer.out
    text = fedamp("population", "history", made, "7").out
    assert "settled" in text
    assert "% left" in text


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "as a spreadsheet writes it"])
def test_people_are_added_from_a_list(fedamp, made, tmp_path, mark):
    people = tmp_path / "more.csv"
    people.write_bytes(f'{mark}x1,xenia\r\nx2, xenia\r\n\r\n"y\n1","yves"\r\n'.encode())
    answer = fedamp("population", "add", made, "--people", people, "--epsilon", 2)
    assert answer.status == 0
    assert answer.out.startswith("32 people")
    assert Population(made).owners(["x1", "x2", "y\n1"]).tolist() == [30, 30, 31]
    assert fedamp("population", "history", made, "xenia").status == 0
    again = fedamp("population", "add", made, "--people", people, "--epsilon", 2)
    assert again.status == 2
    assert again.err.count("\n") == 1


def test_a_person_who_is_spelled_in_two_ways_is_one_person(fedamp, tmp_path):
    """Two units of one person cost more than one unit each of two people."""
    people, file = tmp_path / "people.csv", tmp_path / "some.db"
    people.write_bytes('\ufeff1,anna\n2, anna \n3,Zo\u00e9\n4,Zoe\u0301\n"5\u2028",li\n'.encode())
    answer = fedamp("population", "new", file, "--people", people, "--epsilon", 4, "--delta", 1e-5)
    assert (answer.status, answer.out[:8]) == (0, "3 people")
    people.write_text("6,anna\n7,  anna\n8,Anna\n", "utf-8")
    assert fedamp("population", "add", file, "--people", people, "--epsilon", 4).out.startswith("4 people")
    owners = Population(file).owners(["1", "2", "6", "7", "3", "4", "5\u2028", "8"])
    assert owners.tolist() == [0, 0, 0, 0, 1, 1, 2, 3]
    assert Population(file).person("Zoe\u0301 ") == 1


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("new", "again.db", "--epsilon", 4, "--delta", 1e-5), "--data SCENARIO, or --people FILE"),
        (("new", "again.db", "--people", "nowhere.csv", "--epsilon", 4, "--delta", 1e-5), "cannot be read"),
        (("new", "people.db", "--data", "digits", "--epsilon", 4, "--delta", 1e-5), "exists already"),
        (("new", "again.db", "--data", "digits", "--epsilon", "nan", "--delta", 1e-5), "epsilon"),
        (("show", "again.db"), "no such population"),
        (("history", "people.db", "stranger"), "no person has the id"),
        (("verify", "people.db", "nowhere"), "no ledger"),
        (("verify", "people.db", "people.db"), "people.db: is neither a folder nor a zip; expected: runs"),
    ],
)
def test_a_mistake_is_one_line(fedamp, made, monkeypatch, command, words):
    monkeypatch.chdir(made.parent)
    answer = fedamp("population", *command)
    assert answer.status == 2
    assert answer.err.count("\n") == 1
    assert words in answer.err
    assert not (made.parent / "again.db").exists()


def test_what_fedamp_puts_beside_runs_is_no_run(fedamp, made, monkeypatch):
    """``runs/*`` names pages, plots and the file of asked questions, too; but nothing else is left out."""
    monkeypatch.chdir(made.parent)
    beside = Path("beside")
    (beside / "plots").mkdir(parents=True)
    for name in ("one.html", "asked.json"):
        (beside / name).write_text("")
    run = ("run", "people.yaml", "--set", f"privacy.population={made}", "--engine", "serial", "--quiet", "--anyway")
    assert fedamp(*run, "--out", beside / "run").status == 0
    for command in (("total",), ("population", "verify", "people.db")):
        answer = fedamp(*command, *beside.iterdir())
        assert answer.status == 0, answer.err
        (beside / "other").mkdir()
        answer = fedamp(*command, *beside.iterdir())
        assert (answer.status, answer.err.count("\n")) == (2, 1)
        assert "beside/other: no ledger" in answer.err
        (beside / "other").rmdir()


def test_a_total_of_no_run_is_one_line(fedamp, tmp_path):
    answer = fedamp("total", tmp_path / "nowhere")
    assert answer.status == 2
    assert answer.err.count("\n") == 1
