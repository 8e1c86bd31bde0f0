"""Define the base of all sections of a scenario, and the types of the numbers in them.

A scenario's sections (``check_in``, ``privacy``, ``server`` ..) are classes in the rooms that use them;
:mod:`fedamp.federation.scenario` puts them together. Here is what they share: strictness, marks of special keys, keys
that extensions add, keys of older versions, and numbers that change over the rounds.
"""

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

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


@dataclass(frozen=True)
class Before:
    """The place of a key that an extension adds to a section.

    Attributes:
        key: the existing key that it stands in front of.
    """

    key: str


@dataclass(frozen=True)
class OwnersFile:
    """The mark of a key that names a file of the owner, which changes no result.

    Its path is made absolute when the scenario is read. It is not published, and no fingerprint hashes it.
    """


@dataclass(frozen=True)
class NeedsHooks:
    """The mark of a key that means nothing without what its extension does around a run.

    Attributes:
        words: why a custom Flower app, which has no such hooks, refuses the key.
    """

    words: str


@dataclass(frozen=True)
class NotInDigest:
    """The mark of a key of the client's task that decides no unit's update: nodes need not have agreed on it."""


def with_keys(model: type[M], added: Mapping[str, Any]) -> type[M]:
    """Add keys to a section, or to another model of pydantic.

    Args:
        model: the class; it is changed in place, so its validation and its schema have the keys from now on.
        added: an annotated type with its field, by key. A :class:`Before` among the annotations gives the key's place;
            without one it is the last.

    Returns:
        The same class.
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
    """Refuse truth values where a number is expected, because Python takes True for 1.

    Raises:
        ValueError: the value is True or False.
    """
    if isinstance(value, bool):
        raise ValueError(f"got {value}, as YAML reads on, off, yes and no; expected: a number")
    return value


def removed(default: Any, expected: str) -> Any:
    """Annotate a key that only older versions had: no schema names it, and only its default is accepted.

    Old run folders hold such a key, and their scenarios' fingerprints count it. So it stays at its place.

    Args:
        default: the only accepted value; lists are compared as tuples.
        expected: what the error tells to write instead.
    """

    def check(value: Any, key: ValidationInfo) -> Any:
        if (tuple(value) if isinstance(value, list) else value) != default:
            raise ValueError(f"{key.field_name} was removed; expected: {expected}")
        return default

    return SkipJsonSchema(), BeforeValidator(check)  # type: ignore[type-arg]


def renamed(key: str, before: str, **values: str) -> Any:
    """Annotate a key that older versions call by another name, with other values.

    The old words are read, too. A dump ``by_alias`` writes them, because a scenario's fingerprint hashes that dump.

    Args:
        key: the key's name now.
        before: its name in older versions.
        values: the old value of each new one whose name has changed.
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
"""Number that changes over the rounds: pairs (first round, number), rounds ascending; the first pair is for round 1."""


def at(steps: tuple[tuple[int, T], ...], round_: int) -> T:
    """Return the number that holds in a round.

    >>> at(((1, 0.5), (10, 0.1)), 9)
    0.5

    Args:
        steps: pairs (first round, number), checked by :func:`check_steps`.
        round_: from 1.
    """
    return next(value for first, value in reversed(steps) if first <= round_)


def lengths(steps: tuple[tuple[int, T], ...], rounds: int) -> list[int]:
    """Count for how many rounds each number holds.

    >>> lengths(((1, 0.5), (10, 0.1)), rounds=12)
    [9, 3]

    Args:
        steps: pairs (first round, number), checked by :func:`check_steps`.
        rounds: of the run; at least the first round of the last pair less 1.
    """
    ends = [first for first, _ in steps[1:]] + [rounds + 1]
    return [end - first for (first, _), end in zip(steps, ends, strict=True)]


def check_steps(key: str, steps: Steps) -> None:
    """Refuse steps that do not begin at round 1, or whose rounds do not ascend.

    Args:
        key: the path of the key, for the error.
        steps: at least one pair.

    Raises:
        ValueError: one line with the key and the rounds.
    """
    firsts = [first for first, _ in steps]
    if firsts[0] != 1 or firsts != sorted(set(firsts)):
        raise ValueError(f"{key} must start at round 1 and name later rounds in order, got rounds {firsts}")
