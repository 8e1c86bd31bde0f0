"""The base of all sections of a scenario, and the numbers that stand in them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FieldSerializationInfo,
    PlainSerializer,
    ValidationInfo,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema

M = TypeVar("M", bound=BaseModel)


class Section(BaseModel):
    """Base of all sections: frozen, and strict about keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Before:
    """The place of a key that an extension adds to a section: in front of another ``key``."""

    key: str


@dataclass(frozen=True)
class OwnersFile:
    """The mark of a key that names a file of the owner, which changes no result: its path is made absolute when it is
    read, it is not published, and no fingerprint hashes it.
    """


@dataclass(frozen=True)
class NeedsHooks:
    """The mark of a key that is nothing without what its extension does around a run; ``words``: why not in an app."""

    words: str


@dataclass(frozen=True)
class NotInDigest:
    """The mark of a key of what clients are told that decides no unit's update: nodes need not have agreed on it."""


def with_keys(model: type[M], added: Mapping[str, Any]) -> type[M]:
    """Add keys to a section, or to another model of pydantic; returns the same class.

    Args:
        model: the class.
        added: an annotated type with its field, by key; with its place (:class:`Before`), else it is the last one.
    """
    fields, annotations = model.__pydantic_fields__, model.__annotations__  # subclasses read the annotations
    for name, kind in added.items():
        found = FieldInfo.from_annotation(kind)
        place = next((each.key for each in found.metadata if isinstance(each, Before)), None)
        for table, value in ((fields, found), (annotations, kind)):
            table[name] = value
            for later in list(table)[list(table).index(place) : -1] if place else ():
                table[later] = table.pop(later)
    model.model_rebuild(force=True)
    return model


def no_truth(value: Any) -> Any:
    """Refuse ``on`` and ``yes``: YAML reads them as truth values, which Python takes for numbers."""
    if isinstance(value, bool):
        raise ValueError(f"got {value}, as YAML reads on, off, yes and no; expected: a number")
    return value


def removed(default: Any, expected: str) -> Any:
    """What annotates a key of older versions: no schema names it, and only its default is accepted.

    Their run folders hold it, and their scenarios' fingerprints count it, so it stays where it stood.
    """

    def check(value: Any, key: ValidationInfo) -> Any:
        if (tuple(value) if isinstance(value, list) else value) != default:
            raise ValueError(f"{key.field_name} was removed; expected: {expected}")
        return default

    return SkipJsonSchema(), BeforeValidator(check)  # type: ignore[type-arg]


def renamed(key: str, before: str, **values: str) -> Any:
    """What annotates a key that older versions call ``before``, with other values: each new one with its old one.

    The old words are read, too; and a dump ``by_alias`` has them, which a scenario's fingerprint hashes.
    """
    new = {old: value for value, old in values.items()}

    def hashed(value: str, info: FieldSerializationInfo) -> str:
        return values.get(value, value) if info.by_alias else value

    return (
        Field(validation_alias=AliasChoices(key, before), serialization_alias=before),
        BeforeValidator(lambda value: new.get(value, value) if isinstance(value, str) else value),
        PlainSerializer(hashed),
    )


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(no_truth)]
Count = Annotated[int, Field(ge=1, strict=True)]
MOST_COUNTED = 10**15  # of what anything can have: arrays of more would overflow
MOST_UNITS = 10**8  # a round has some arrays with a number for each unit
MOST_NUMBERS = 1 << 29  # of an array that keys alone decide: 2 GB
UnitCount = Annotated[Count, Field(le=MOST_UNITS)]
Outputs = Annotated[Count, Field(le=1 << 24)]  # classes, tokens: the rows of a last layer
Width = Annotated[Count, Field(le=1 << 28)]  # of a layer: the bytes between two are below 2^63
NoiseMultiplier = Annotated[float, Field(ge=1e-6, le=1e12), BeforeValidator(no_truth)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
LessThanOne = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
T = TypeVar("T")
Steps = tuple[tuple[Count, Positive], ...]
"""A number that changes over the rounds: [first round, number], in order; the first one is for round 1."""


def at(steps: tuple[tuple[int, T], ...], round_: int) -> T:
    """The number of a round, from 1."""
    return next(value for first, value in reversed(steps) if first <= round_)


def lengths(steps: tuple[tuple[int, T], ...], rounds: int) -> list[int]:
    """For how many rounds each number holds."""
    ends = [first for first, _ in steps[1:]] + [rounds + 1]
    return [end - first for (first, _), end in zip(steps, ends, strict=True)]


def check_steps(key: str, steps: Steps) -> None:
    """Refuse steps that do not begin at round 1, or are not in order (ValueError)."""
    firsts = [first for first, _ in steps]
    if firsts[0] != 1 or firsts != sorted(set(firsts)):
        raise ValueError(f"{key} must start at round 1 and name later rounds in order, got rounds {firsts}")
