"""What no contract has tested is charged openly, or is refused: schemes and sections of other packages."""

import importlib
import sys
from typing import Literal

import pytest

import fedamp
from fedamp.accounting import Gaussian, Repeat
from fedamp.errors import ModelError
from fedamp.federation import facts
from fedamp.federation.check_in import BalancedCheckIn
from fedamp.federation.contracts import (
    assumptions_of,
    forget_pass,
    has_passed,
    note_pass,
    refuse_unproved,
    unchecked_words,
    without_tests,
)
from fedamp.federation.optional import OptionalSection
from fedamp.federation.plan import make_plan
from fedamp.federation.submodels import NoSubmodels
from fedamp.models.pieces import Piece
from fedamp.server.setup import prepare
from tests.federations import small


class OwnCheckIn(BalancedCheckIn):
    scheme: Literal["own"] = "own"
    keeps = BalancedCheckIn.keeps | {facts.ROUNDS_APART}  # a claim; the rounds of a unit may be neighbours

    def fitted_to(self, coefficients, units):
        return OwnCheckIn(k=self.k)  # of the class itself, not of that of ``self``


class RefittedCheckIn(OwnCheckIn):
    scheme: Literal["refitted"] = "refitted"


class Quiet(OptionalSection):
    keeps = facts.FACTS

    def charge_part(self, plan, part, release, kind):
        return Gaussian(10 * release.noise_multiplier)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path / "cache"))


def with_check_in(kind, *overrides):
    return small("rounds=4", "check_in={scheme: all}", *overrides).model_copy(update={"check_in": kind(k=2)})


@pytest.mark.parametrize("passed", [[], [OwnCheckIn], [RefittedCheckIn], [OwnCheckIn, RefittedCheckIn]])
def test_a_scheme_that_is_fitted_to_another_class_is_open_until_both_have_passed(passed):
    for kind in passed:
        note_pass(kind)
    found = make_plan(with_check_in(RefittedCheckIn), units=60).charge.mechanism
    openly, hidden = Repeat(Gaussian(1.0), 4), OwnCheckIn(k=2).charge(Gaussian(1.0), 4)
    assert found == (hidden if len(passed) == 2 else openly)


def test_correlated_noise_is_refused_with_a_scheme_that_was_tested_without_it():
    banded = small("rounds=4", "check_in={scheme: classes, k: 2, classes: 2}", "privacy.noise={scheme: banded}").privacy
    asked = with_check_in(OwnCheckIn).model_copy(update={"privacy": banded})
    note_pass(OwnCheckIn)
    with pytest.raises(ValueError, match=r"noise.scheme banded: no contract tests the charge of check_in .*OwnCheckIn"):
        refuse_unproved(asked)
    unchecked = banded.model_copy(update={"unchecked": True})
    refuse_unproved(asked.model_copy(update={"privacy": unchecked}))


def test_a_section_of_another_package_is_refused_unless_it_is_unchecked(monkeypatch):
    asked = small()
    monkeypatch.setattr(type(asked), "sections", property(lambda scenario: {"quiet": Quiet()}))
    with pytest.raises(
        ValueError, match=r"^quiet: .*:Quiet .*no contract of fedamp covers it; expected: it is left out"
    ):
        refuse_unproved(asked)
    unchecked = asked.model_copy(update={"privacy": asked.privacy.model_copy(update={"unchecked": True})})
    refuse_unproved(unchecked)
    assert "quiet" in unchecked_words(unchecked)
    assert any("quiet" in said and "unchecked" in said for said in assumptions_of(unchecked))


def test_a_pass_is_of_the_code_of_the_whole_package(monkeypatch, tmp_path):
    """A charge may be computed by a helper in another module than the class."""
    package = tmp_path / "somebodys"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "blocks.py").write_text("class Blocks:\n    pass\n")
    (helper := package / "helper.py").write_text("ROUNDS = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = importlib.import_module("somebodys.blocks").Blocks
    try:
        assert not has_passed(kind)
        note_pass(kind)
        assert has_passed(kind)
        helper.write_text("ROUNDS = 2\n")
        assert not has_passed(kind)
    finally:
        sys.modules.pop("somebodys.blocks")
        sys.modules.pop("somebodys")


def test_a_ledger_tells_with_which_keys_a_scheme_was_tested():
    asked = with_check_in(OwnCheckIn)
    note_pass(OwnCheckIn, "k 1, rounds 6")
    note_pass(OwnCheckIn, "k 3, rounds 9")
    (said,) = assumptions_of(asked)
    assert said.endswith("OwnCheckIn, which has met its contract (k 1, rounds 6) and (k 3, rounds 9)")
    (told,) = without_tests([said])  # who verifies may have tested other keys
    assert told.endswith("OwnCheckIn, which has met its contract")
    forget_pass(OwnCheckIn)
    (said,) = assumptions_of(asked)
    assert said.endswith("which is charged without amplification")


@pytest.mark.parametrize("damaged", ["", "null", "[]", "{}", '{"tested": []}', '{"tested": 3}', "\xff"])
def test_a_damaged_note_counts_as_none_until_the_contract_is_met_again(damaged, tmp_path):
    asked = with_check_in(OwnCheckIn)
    note_pass(OwnCheckIn, "k 2, rounds 4")
    (note,) = (tmp_path / "cache" / "contracts").iterdir()
    note.write_text(damaged, encoding="latin-1")
    assert not has_passed(OwnCheckIn)
    (said,) = assumptions_of(asked)
    assert said.endswith("which is charged without amplification")
    note_pass(OwnCheckIn, "k 2, rounds 4")
    assert has_passed(OwnCheckIn)


def test_the_warning_about_an_open_charge_names_the_line_that_asked():
    with pytest.warns(UserWarning, match="check_in is charged without amplification") as told:
        fedamp.privacy(with_check_in(OwnCheckIn))
    assert {each.filename for each in told} == {__file__}


@pytest.mark.parametrize("factor", [1, 2])
def test_a_piece_of_another_package_that_adds_its_part_twice_is_refused(monkeypatch, factor):
    """Clipping comes before: twice a part is longer than what is charged, also where nothing counts as hidden."""

    def embed_add(piece, total, part):
        for name, array in part.items():
            total[name][...] += factor * array

    monkeypatch.setattr(Piece, "embed_add", embed_add)
    prepare(small())  # a piece of fedamp has tests of its own
    monkeypatch.setattr(NoSubmodels, "__module__", "mylab.submodels")
    if factor == 1:
        prepare(small())
        return
    with pytest.raises(ModelError, match="embed_add of Piece adds a number twice, or another one than is in the part"):
        prepare(small())
