"""A contract is met when each case of each of its tests has passed, and no test of the same class has failed."""

from contextlib import suppress

import pytest

from fedamp.federation.contracts import has_passed
from fedamp.testing import contract
from fedamp.testing.contract import Contract


class Subject:
    """What a suite tests."""


class Suite(Contract):
    fails_at = ()

    @classmethod
    def subject(cls):
        return Subject

    @classmethod
    def keys_in_words(cls):
        return "k 2"

    @pytest.mark.parametrize("number", [1, 2])
    @pytest.mark.parametrize("letter", ["a", "b"])
    def test_cases(self, number, letter):
        assert (number, letter) not in self.fails_at

    def test_alone(self):
        assert "alone" not in self.fails_at


CASES = [(1, "a"), (2, "a"), (1, "b"), (2, "b")]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(contract, "_failed", set())


def suite(*fails_at):
    return type("Fresh", (Suite,), {"fails_at": fails_at})


def play(kind, cases=CASES, alone=True):
    """Call the tests of a suite, as pytest does; a failing one does not stop the others."""
    for number, letter in cases:
        with suppress(AssertionError):
            kind().test_cases(number=number, letter=letter)
    if alone:
        with suppress(AssertionError):
            kind().test_alone()


@pytest.mark.parametrize("case", [*CASES, "alone"])
def test_one_case_that_fails_leaves_no_note(case):
    play(suite(case))
    assert not has_passed(Subject)


@pytest.mark.parametrize("left_out", range(len(CASES)))
def test_a_selection_of_cases_leaves_no_note(left_out):
    chosen, some = suite(), [case for place, case in enumerate(CASES) if place != left_out]
    play(chosen, some)
    play(chosen, some[:1], alone=False)  # a case that is called twice counts once
    assert not has_passed(Subject)


def test_all_cases_leave_a_note():
    play(suite())
    assert has_passed(Subject)


@pytest.mark.parametrize("first", [True, False])
def test_another_suite_of_the_class_that_fails_removes_the_note(first):
    """A law shows with some keys of a scheme alone: two suites test the same class with other keys."""
    failing, passing = suite((1, "a")), suite()
    for each in (failing, passing) if first else (passing, failing):
        play(each)
    assert not has_passed(Subject)
