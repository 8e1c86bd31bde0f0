"""Two ids of one person: found by their spelling, and joined by a command that charges both."""

import json
import math
import warnings

import numpy as np
import pytest

import fedamp
from fedamp.accounting import Gaussian
from fedamp.accounting.search import Budget
from fedamp.extensions.population.history import history_of
from fedamp.extensions.population.spelling import alike_names, folded
from fedamp.extensions.population.store import DataUse, Population, PopulationError, UsePrice, counted
from tests.extensions.population.test_account import ALL, SCENARIO
from tests.extensions.population.test_rights import gaussian_epsilon

DELTA, NOISE = 1e-5, 5.0
ALIKE = {
    "case": ("Anna", "aNNA"),
    "sharp s": ("Strauß", "STRAUSS"),
    "width": ("anna7", "\uff21nna\uff17"),
    "invisible": ("anna", "an\u200bn\u00ada\ufeff"),
    "blank letters": ("anna", "anna\u3164"),
    "direction": ("anna", "\u202eanna"),
    "accents": ("Zoé", "Zoe"),
    "spaces": ("anna b", "anna\u00a0 b "),
    "zeros": ("patient-007", "patient-7"),
    "dotted": ("\u0130nci", "inci"),
}
OTHERS = [("anna", "anne"), ("70", "7"), ("p-100", "p-10"), ("0", "00000001"), ("a1b10", "a1b1"), ("李", "王")]


@pytest.mark.parametrize("kind", ALIKE)
def test_spellings_of_one_person_are_told(kind):
    one, other = ALIKE[kind]
    assert alike_names([(one, 0), ("somebody", 1), (other, 2)]) == [[one, other]]


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_other_people_are_not_told(one, other):
    assert folded(one) != folded(other)
    assert alike_names([(one, 0), (other, 1)]) == []


def list_of(path, names):
    path.write_text("".join(f'"{unit}","{person}"\n' for unit, person in names), "utf-8")
    return path


def test_alike_ids_are_told_when_they_are_added_and_in_a_report(fedamp, tmp_path):
    file, first = tmp_path / "p.db", list_of(tmp_path / "1.csv", [("1", "Anna"), ("2", "bob"), ("3", "BOB")])
    made = fedamp("population", "new", file, "--people", first, "--epsilon", 4, "--delta", DELTA)
    assert made.status == 0
    assert "'bob' and 'BOB'" in made.err
    more = list_of(tmp_path / "2.csv", [("4", "an\u200bna"), ("5", "Anna"), ("6", "carl")])
    added = fedamp("population", "add", file, "--people", more, "--epsilon", 4)
    assert added.status == 0
    assert added.err.count("\n") == 1
    assert "carl" not in added.err
    assert "anna" in added.err.lower()
    later = list_of(tmp_path / "3.csv", [("7", "CARL")])  # of whose other spelling only a hash is here
    assert "'CARL' and 'an id on the list'" in fedamp("population", "add", file, "--people", later, "--epsilon", 4).err
    told = json.loads(fedamp("population", "alike", file, "--people", first, "--json").out)["alike"]
    assert ["bob", "BOB"] in told
    assert ["Anna", "an id on the list"] in told
    assert fedamp("population", "join", file, "bob", "BOB").status == 0
    told = json.loads(fedamp("population", "alike", file, "--people", first, "--json").out)["alike"]
    assert told == [["Anna", "an id on the list"]]


def test_alike_units_are_told_before_a_run(tmp_path):
    generator = np.random.default_rng(0)
    names = np.repeat(["Anna", "anna", "bob", "carl"], 8)
    (tmp_path / "d").mkdir()
    records = {"x": generator.normal(size=(32, 3)).astype(np.float32), "y": generator.integers(0, 2, 32)}
    np.savez(tmp_path / "d" / "train.npz", **records, name=names)
    data = {"name": "npz", "path": str(tmp_path / "d"), "classes": 2}
    data |= {"partition": {"scheme": "natural", "column": "name"}}
    asked = fedamp.load(SCENARIO, **(ALL | {"data": data, "privacy.noise_multiplier": 12.0}))
    Population.new(tmp_path / "p.db", [(name, name) for name in asked.data.unit_names(tmp_path)], 4.0, DELTA)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fedamp.run(asked, tmp_path / "run", anyway=True, **{"privacy.population": str(tmp_path / "p.db")})
    assert sum("'Anna' and 'anna'" in str(each.message) for each in told) == 1


def population_of(path, people, epsilons=(4.0, 4.0)):
    Population.new(path, people[:-1], epsilons[0], DELTA)
    Population(path).add(people[-1:], epsilons[1])
    return Population(path)


def charge(population, name, units, noise=NOISE):
    """A use of these units: one release with Gaussian noise, for a person with one of them."""
    contents = population.read()
    counts = counted(population.owners(units))
    prices = [
        UsePrice(1, epsilon, Budget(epsilon, DELTA).share_of_use(Gaussian(noise)), Gaussian(noise))
        for epsilon in set(contents.epsilons[: len(counts)][counts > 0])
    ]
    population.reserve(DataUse(name, "run", "plan", tuple(prices), counts, token="t"), units)


def test_who_is_joined_is_charged_as_one_person_who_took_part_in_both(tmp_path):
    """In the first use with both units: the distance of two Gaussians doubles. In the others with one."""
    population = population_of(tmp_path / "p.db", [("1", "anna"), ("2", "bob"), ("3", "ANNA")])
    charge(population, "both", ["1", "2", "3"])
    charge(population, "one", ["1", "2"])
    charge(population, "other", ["2", "3"])
    bob = population.read().spent()[1]
    population.join("anna", "ANNA")
    contents = population.read()
    assert population.person("ANNA") == population.person("anna") == 0
    assert population.owners(["1", "2", "3"]).tolist() == [0, 1, 0]
    assert contents.people == 2
    told = history_of(contents, 0)
    assert [use["units"] for use in told["uses"]] == [2, 1, 1]
    exact = gaussian_epsilon(NOISE / math.sqrt(2**2 + 1 + 1))
    assert told["fixed_epsilon"] == pytest.approx(exact, rel=0.01)
    assert exact <= told["adaptive_epsilon"] < 1.05 * exact
    assert contents.spent()[1] == bob
    with pytest.raises(PopulationError, match="one person already"):
        population.join("anna", "ANNA")
    charge_of_two = UsePrice(2, 4.0, 0.01, Gaussian(50.0))
    use = DataUse("new", "run", "plan", (charge_of_two,), counted(population.owners(["1", "3"])), token="t")
    population.reserve(use, ["1", "3"])
    assert history_of(population.read(), 0)["uses"][-1]["units"] == 2


def test_the_smaller_budget_counts_and_may_be_overspent(fedamp, tmp_path):
    population = population_of(tmp_path / "p.db", [("1", "anna"), ("2", "bob"), ("3", "ANNA")], (4.0, 0.9))
    charge(population, "a", ["1", "2", "3"])
    charge(population, "b", ["1", "2"], noise=1.5)
    answer = fedamp("population", "join", tmp_path / "p.db", "anna", "ANNA")
    assert answer.status == 0
    assert "with 0 % left" in answer.out
    contents = population.read()
    assert contents.epsilons[0] == 0.9
    assert contents.spent()[0] > 1
    told = history_of(contents, 0)
    assert told["risk"] is None
    assert told["adaptive_epsilon"] is None or told["adaptive_epsilon"] > 0.9
    with pytest.raises(PopulationError):
        charge(population, "c", ["1"], noise=1000.0)
    charge(population, "d", ["2"], noise=1000.0)
    for command in (("show",), ("history", "anna"), ("history", "ANNA"), ("verify",)):
        assert fedamp("population", command[0], tmp_path / "p.db", *command[1:]).status == 0


def test_who_left_under_one_name_has_left_under_both(tmp_path):
    population = population_of(tmp_path / "p.db", [("1", "anna"), ("2", "bob"), ("3", "ANNA")])
    population.leave("ANNA")
    population.join("anna", "ANNA")
    contents = population.read()
    assert list(contents.left) == [0]
    assert contents.counted(population.owners(["1", "2", "3"])).tolist() == [0, 1]
    population.join("bob", "anna")  # of three names
    assert population.owners(["1", "2", "3"]).tolist() == [1, 1, 1]
    assert list(population.read().left) == [1]
    with pytest.raises(PopulationError, match="everybody"):
        population.read().counted(population.owners(["1", "2"]))


def test_people_who_come_in_the_middle_of_a_year_pay_from_then_on(tmp_path):
    population = population_of(tmp_path / "p.db", [("1", "anna"), ("2", "bob"), ("3", "carl")])
    charge(population, "spring", ["1", "2", "3"])
    population.add([("4", "dora"), ("5", "anna")], 2.0)
    spent = population.read().spent()
    assert spent[3] == 0
    assert spent[0] == spent[1] > 0
    contents = population.read()
    assert contents.epsilons.tolist() == [4.0, 4.0, 4.0, 2.0]
    counts = contents.counted(population.owners(["1", "2", "3", "4", "5"]))
    assert counts.tolist() == [2, 1, 1, 1]
    with pytest.raises(
        PopulationError, match="left, and this use costs more than all"
    ):  # nobody has priced two units, or a budget of 2
        charge(population, "autumn", ["1", "4", "5"])
