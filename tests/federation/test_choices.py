"""The keys and schemes of a scenario are those of the core and those that extensions offer."""

from typing import Annotated, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from fedamp import extension
from fedamp.base.section import Before, Section
from fedamp.extension import Extension
from fedamp.federation.added_keys import extend
from fedamp.federation.check_in import AllCheckIn
from fedamp.federation.choices import one_of

HERE = "tests.federation.test_choices"


class NightCheckIn(AllCheckIn):
    scheme: Literal["night"]


class Weather(Section):
    rain: float


PLACED = Annotated[Weather | None, Field(None, description="how it rains"), Before("last")]


@pytest.fixture(autouse=True)
def offers(monkeypatch):
    offered = Extension(
        "weather",
        sections={"sky.weather": f"{HERE}:PLACED", "sky.moon": f"{HERE}:Weather", "other.key": "no.such:module"},
        choices={"check_in": (f"{HERE}:NightCheckIn",), "other": ("no.such:module",)},
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
