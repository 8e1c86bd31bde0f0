"""``Claims`` and ``fedamp-accounting check``: the numbers of somebody's code, right and wrong."""

import math
import re
import sys

import pytest

from fedamp.accounting import Allocation, Claims, Gaussian, Poisson, Repeat, SubstitutedPoissonGaussian
from fedamp.accounting.__main__ import main
from fedamp.accounting.verify import compare_claim

MEAN = {"clip": 0.5, "divided_by": 20, "noise": 0.05, "rounds": 40}  # noise multiplier 2, in contributions


def verdicts(**numbers):
    return {check.name: (check.verdict, check.found) for check in Claims(**numbers).checks()}


@pytest.mark.parametrize(
    ("chosen", "mechanism"),
    [
        ({}, Repeat(Gaussian(2.0), 40)),
        ({"rate": 0.1}, Repeat(Poisson(Gaussian(2.0), 0.1), 40)),
        ({"k": 4}, Allocation(Gaussian(2.0), 4, 40)),
        ({"relation": "substitution"}, Repeat(Gaussian(2.0, relation="substitution"), 40)),
        ({"relation": "substitution", "rate": 0.1}, Repeat(SubstitutedPoissonGaussian(2.0, 0.1), 40)),
    ],
)
def test_consistent_numbers_have_the_epsilon_of_the_mechanism(chosen, mechanism):
    moved = 0.05 if "relation" in chosen else 0.025
    found = verdicts(**MEAN, **chosen, sensitivity=moved, noise_multiplier=0.05 / moved, cohort=8, people=80)
    assert found["epsilon"] == ("pass", f"{mechanism.epsilon(1e-5)} at delta 1e-05: {mechanism}")
    assert {verdict for name, (verdict, _) in found.items() if name != "cohort"} == {"pass"}
    assert found.get("cohort", ("pass",))[0] == "pass"


@pytest.mark.parametrize(
    ("numbers", "name", "words"),
    [
        (
            {**MEAN, "sensitivity": 0.5},
            "sensitivity",
            "0.5 contradicts the clip: a person moves .* up to 0.025",
        ),
        (
            {**MEAN, "noise_multiplier": 1.0},
            "noise",
            "noise 0.05 contradicts it: .* deviation of 0.025",
        ),
        (
            {**MEAN, "rate": 0.1, "cohort": 30, "people": 100},
            "cohort",
            "cohort 30 contradicts .* 100 people is 10",
        ),
        ({**MEAN, "k": 4, "cohort": 30, "people": 100}, "cohort", "0.1 of 100 people is 10"),
        ({**MEAN, "epsilon": 3.0}, "epsilon", "3.0 is claimed, it is 17.86"),
        ({**MEAN, "clip": None}, "epsilon", "none: without clipping"),
        ({**MEAN, "clip": math.inf}, "epsilon", "none: without clipping"),
        ({**MEAN, "noise": 0.0}, "epsilon", "none: no noise"),
    ],
)
def test_contradictions_are_named(numbers, name, words):
    found = [check for check in Claims(**numbers).checks() if check.verdict == "fail"]
    assert [check.name for check in found] == [name]
    assert re.search(words, found[0].found)


def test_a_sensitivity_that_is_too_small_is_charged_as_what_it_is():
    """The code believes in noise multiplier 2, and adds a twentieth of it."""
    found = verdicts(clip=0.5, rounds=40, sensitivity=0.025, noise_multiplier=2.0)
    assert found["sensitivity"][0] == "fail"
    assert found["epsilon"][1].startswith(str(Repeat(Gaussian(0.1), 40).epsilon(1e-5)))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rate": 0.1, "k": 4}, "rate and k"),
        ({"rate": 1.5}, "rate must"),
        ({"k": 41}, "k must"),
        ({"relation": "any"}, "relation must"),
        ({"delta": 0.0}, "delta must"),
        ({"people": 0}, "people must"),
        ({"clip": -1.0}, "clip must"),
        ({"sensitivity": 0.0}, "sensitivity must"),
        ({"noise": None}, "noise or noise_multiplier must"),
        ({"noise": -1.0}, "noise must"),
        ({"rounds": 0, "k": 0}, "rounds must"),
    ],
)
def test_numbers_that_make_no_sense_alone_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        Claims(**{**MEAN, **wrong}).checks()


def test_the_command_prints_a_line_each_and_its_status_says_the_worst(capsys):
    numbers = {"clip": 0.5, "divided-by": 20, "noise": 0.05, "rounds": 40, "k": 4, "people": 100_000}
    arguments = ["check", *(f"--{name}={value}" for name, value in numbers.items())]
    for more, status in (([], 0), (["--epsilon", "1"], 1), (["--sensitivity", "0.5"], 1), (["--k", "50"], 2)):
        with pytest.raises(SystemExit) as caught:
            main([*arguments, *more])
        assert caught.value.code == status
    printed = capsys.readouterr()
    assert printed.out.startswith("caution delta: delta 1e-05 is not below 1 / people, 1e-05\npass    sensitivity: ")
    assert printed.err == "error: k must be >= 0 and <= rounds, got 50\n"


def test_the_help_explains_every_number(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedamp-accounting", "check", "--help"])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().out
    for name in Claims.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in printed
        assert re.search(rf"--{name.replace('_', '-')} (NUMBER|TEXT)\s+\S", printed), name
    for group in ("noise:", "participation:", "claim:"):
        assert f"\n{group}\n" in printed


def test_the_help_of_the_command_is_in_groups_and_names_its_exit_status(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert "\nverify a release:\n" in printed
    assert "\ncheck numbers:\n" in printed
    assert re.search(r"BUNDLE +\S.*\n.*--key KEY +\S", printed)
    assert "Exit status: 0" in printed


@pytest.mark.parametrize(
    "name", ["epsilon", "cohort", "noise", "noise_multiplier", "sensitivity", "clip", "rate", "delta"]
)
def test_what_is_no_number_is_not_claimed(name):
    numbers = {**MEAN, "rate": 0.1, "people": 100, name: math.nan}
    with pytest.raises(ValueError, match=name):
        Claims(**numbers).checks()


def test_a_claimed_epsilon_that_is_no_number_fails():
    assert compare_claim("run", "epsilon_upper", math.nan, 1.0).verdict == "fail"
    assert compare_claim("run", "epsilon_upper", math.inf, math.inf).verdict == "pass"
