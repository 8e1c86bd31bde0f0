"""A note tells that a class has met its contract, with which code and keys."""

import importlib
import sys
from typing import Literal

import pytest

from fedamp.federation.check_in import BalancedCheckIn
from fedamp.federation.contracts import (
    assumptions_of,
    forget_pass,
    has_passed,
    note_pass,
)
from tests.federations import small


class OwnCheckIn(BalancedCheckIn):
    scheme: Literal["own"] = "own"


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path / "cache"))


def with_check_in(kind, *overrides):
    return small("rounds=4", "check_in={scheme: all}", *overrides).model_copy(update={"check_in": kind(k=2)})


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
    forget_pass(OwnCheckIn)
    (said,) = assumptions_of(asked)
    assert said.endswith("which is charged without amplification")
