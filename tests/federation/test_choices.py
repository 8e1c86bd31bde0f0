"""The keys and schemes of a scenario are those of the core and those that extensions offer."""

import re
from importlib.metadata import EntryPoint
from typing import Annotated, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from fedamp import extension
from fedamp.base.section import Before, Section
from fedamp.data.transforms import Transform
from fedamp.errors import ScenarioError
from fedamp.extension import Extension, ExtensionError, offered
from fedamp.federation import choices
from fedamp.federation.added_keys import extend
from fedamp.federation.check_in import AllCheckIn, CheckIn
from fedamp.federation.choices import one_of
from fedamp.federation.contracts import refuse_unproved
from tests.federations import small

HERE = "tests.federation.test_choices"


class NightCheckIn(AllCheckIn):
    scheme: Literal["night"]


class AllAgainCheckIn(AllCheckIn):
    scheme: Literal["all"] = "all"


class NoonCheckIn(CheckIn):
    """It has neither the methods of its base nor a name."""


class Weather(Section):
    rain: float


PLACED = Annotated[Weather | None, Field(None, description="how it rains"), Before("last")]


@pytest.fixture(autouse=True)
def offers(monkeypatch):
    offered = Extension(
        "weather",
        sections={"sky.weather": f"{HERE}:PLACED", "sky.moon": f"{HERE}:Weather", "other.key": "no.such:module"},
        choices={"check_in": (f"{HERE}:NightCheckIn",), "submodels": ("no.such:module",)},
    )
    monkeypatch.setattr(extension, "extensions", lambda: (offered,))


def test_a_scheme_of_an_extension_stands_after_those_of_the_core():
    union = TypeAdapter(one_of("check_in"))
    assert isinstance(union.validate_python({"scheme": "night"}), NightCheckIn)
    with pytest.raises(ValidationError, match="'stratified', 'night'"):
        union.validate_python({"scheme": "noon"})


def test_a_key_of_an_extension_has_its_place_and_its_default():
    class Sky(Section):
        first: int = 1
        last: int = 2

    class Named(extend(Sky, "sky")):
        """Classes below it have the keys, too."""

    assert list(Named.model_fields) == ["first", "weather", "last", "moon"]
    assert Named.model_validate({"weather": {"rain": 1}}).weather == Weather(rain=1)
    sky = Sky
    assert list(sky.model_fields) == ["first", "weather", "last", "moon"]
    assert sky().model_dump() == {"first": 1, "weather": None, "last": 2}
    rainy = sky.model_validate({"weather": {"rain": 1}, "moon": {"rain": 2}})
    assert sky.model_validate(rainy.model_dump(mode="json")) == rainy
    with pytest.raises(ValidationError):
        sky.model_validate({"wind": {}})


@pytest.mark.parametrize("offers", [["sky.last"], ["sky.moon", "sky.moon"]], ids=["of the section", "of another one"])
def test_a_key_that_is_there_already_is_refused(monkeypatch, offers):
    class Sky(Section):
        last: int = 2

    extensions = tuple(Extension(f"sky{place}", sections={key: f"{HERE}:Weather"}) for place, key in enumerate(offers))
    monkeypatch.setattr(extension, "extensions", lambda: extensions)
    with pytest.raises(ScenarioError, match=f"{offers[0]} is there already; expected: another name"):
        extend(Sky, "sky")


def test_two_extensions_with_one_key_of_a_ledger_are_refused_with_both(monkeypatch):
    """Else the second one would decide how the ledgers of the first one are verified."""
    several = tuple(Extension(name, ledger_keys={"sky": f"{HERE}:Weather"}) for name in ("moon", "sun"))
    monkeypatch.setattr(extension, "extensions", lambda: several)
    with pytest.raises(ExtensionError, match="extensions moon and sun: each offers sky of ledger_keys; expected: "):
        extension.by_key("ledger_keys")


def installed(monkeypatch, path: str) -> None:
    """Have one extension with one scheme for check-in."""
    monkeypatch.setattr(extension, "extensions", lambda: (Extension("sun", choices={"check_in": (path,)}),))


def test_a_scheme_without_its_methods_and_name_is_refused_with_what_it_lacks(monkeypatch):
    installed(monkeypatch, f"{HERE}:NoonCheckIn")
    lacks = f"check_in: the scheme {HERE}:NoonCheckIn lacks charge, cohorts, expected_cohort, log_likelihood_ratio, "
    with pytest.raises(ScenarioError, match=f"{lacks}most_check_ins, scheme; expected: "):
        one_of("check_in")


def test_a_scheme_with_the_name_of_another_one_is_refused_with_both(monkeypatch):
    installed(monkeypatch, f"{HERE}:AllAgainCheckIn")
    both = f"the schemes fedamp.federation.check_in:AllCheckIn and {HERE}:AllAgainCheckIn have the name all; expected: "
    with pytest.raises(ScenarioError, match=re.escape(both)):
        one_of("check_in")


class Mean(Transform):
    """It mixes records, or not: no contract says it."""

    name: Literal["mean"] = "mean"


def test_a_transform_of_another_package_is_refused_unless_it_is_unchecked():
    asked = small()
    data = asked.data.model_copy(update={"transform": (Mean(),)})
    with pytest.raises(ValueError, match=r"data\.transform\.0: .*:Mean .*is of another package, and no contract"):
        refuse_unproved(asked.model_copy(update={"data": data}))
    unchecked = asked.privacy.model_copy(update={"unchecked": True})
    refuse_unproved(asked.model_copy(update={"data": data, "privacy": unchecked}))


@pytest.mark.parametrize(
    ("offer", "words"),
    [
        (
            Extension("sun", choices={"check-in": ("no.such:Sun",)}),
            "choices: check-in: expected: check_in or submodels ",
        ),
        (
            Extension("sun", sections={"privcy.sun": "no.such:Sun"}),
            "sections: privcy.sun: expected: KEY or ",
        ),
    ],
    ids=["choices", "sections"],
)
def test_a_key_that_no_scenario_has_is_refused_with_the_accepted_ones(monkeypatch, offer, words):
    monkeypatch.setattr(choices, "extensions", lambda: (offer,))
    with pytest.raises(ScenarioError, match=f"^extension sun: {re.escape(words)}"):
        choices.refuse_unknown_keys()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (f"{HERE}:SunCheckIn", f"AttributeError: module '{HERE}' has no attribute 'SunCheckIn'"),
        ("no.such:Sun", "ModuleNotFoundError: No module named 'no'"),
    ],
)
def test_an_extension_that_cannot_be_imported_is_named(monkeypatch, path, why):
    installed(monkeypatch, path)
    with pytest.raises(ExtensionError) as raised:
        list(offered("choices", "check_in"))
    assert f"extension sun: {path}, for the key check_in of choices, cannot be imported ({why})" in str(raised.value)


def test_an_entry_point_that_gives_no_extension_is_named(monkeypatch):
    entry = EntryPoint("sun", "math:pi", "fedamp.extensions")
    monkeypatch.undo()  # the real list
    monkeypatch.setattr(extension, "entry_points", lambda group: [entry])
    with pytest.raises(ExtensionError, match=r"entry point sun of the group fedamp.extensions: math:pi is 3\.14"):
        extension.extensions.__wrapped__()
