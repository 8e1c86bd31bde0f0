"""The schemes that a scenario can name, by key: those of the core, and those that extensions offer.

A family's module has its base class and the core's own schemes. Each union is built here when it is first imported, and
not before: a scheme of an extension may hold a union of another family.
"""

from collections.abc import Iterator
from functools import cache
from types import new_class
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args

from pydantic import (
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    WrapSerializer,
    WrapValidator,
)

from fedamp.base.section import NeedsHooks, Section, with_keys
from fedamp.errors import ScenarioError
from fedamp.extension import OWN, is_installed, keys, named, offered
from fedamp.federation.aggregation import AGGREGATIONS, AggregationScheme
from fedamp.federation.check_in import CHECK_INS, CheckIn
from fedamp.federation.facts import Declared
from fedamp.federation.noise import NOISES, NoiseScheme
from fedamp.federation.submodels import SUBMODELS, SubmodelScheme

S = TypeVar("S", bound=Section)
Mark = TypeVar("Mark")

FAMILIES: dict[str, tuple[type[Declared], ...]] = {
    "check_in": CHECK_INS,
    "submodels": SUBMODELS,
    "privacy.noise": NOISES,
    "aggregation": AGGREGATIONS,
}
"""The core's schemes, by the key of a scenario that names one of them."""
BASES: dict[str, type[Declared]] = {
    "check_in": CheckIn,
    "submodels": SubmodelScheme,
    "privacy.noise": NoiseScheme,
    "aggregation": AggregationScheme,
}

if TYPE_CHECKING:
    AnyAggregation = AggregationScheme
    AnyCheckIn = CheckIn
    AnyNoise = NoiseScheme
    AnySubmodels = SubmodelScheme
else:
    _KEYS = {
        "AnyAggregation": "aggregation",
        "AnyCheckIn": "check_in",
        "AnyNoise": "privacy.noise",
        "AnySubmodels": "submodels",
    }

    def __getattr__(name: str) -> Any:
        if name not in _KEYS:
            raise AttributeError(f"module {__name__} has no attribute {name}")
        globals()[name] = one_of(_KEYS[name])
        return globals()[name]


def members(key: str) -> tuple[type[Declared], ...]:
    """The schemes of a key: the core's own ones, then those of extensions."""
    return (*FAMILIES[key], *offered("choices", key))


def scheme_of(member: type[Declared]) -> str:
    """The word by which a scenario names a scheme."""
    (word,) = get_args(member.model_fields["scheme"].annotation)
    return str(word)


def one_of(key: str) -> Any:
    """The union of the schemes of a key, told apart by ``scheme``."""
    schemes = members(key)
    union = Annotated[Union[schemes], Field(discriminator="scheme")] if len(schemes) > 1 else schemes[0]  # noqa: UP007

    def by_path(raw: Any, usual: ValidatorFunctionWrapHandler) -> Any:
        path = raw.get("scheme") if isinstance(raw, dict) else None
        if isinstance(raw, Section) and type(raw) not in schemes and isinstance(raw, BASES[key]):
            return raw
        return _at(path, key).model_validate(raw) if isinstance(path, str) and ":" in path else usual(raw)

    def dumped(value: Any, usual: SerializerFunctionWrapHandler, info: SerializationInfo) -> Any:
        known = type(value) in schemes
        return usual(value) if known else value.model_dump(mode=info.mode, by_alias=bool(info.by_alias))

    return Annotated[union, WrapValidator(by_path), WrapSerializer(dumped)]


@cache
def _at(path: str, key: str) -> type[Declared]:
    """The scheme ``package.module:Class`` of an installed extension, which a scenario names by this path."""
    if not is_installed(path):
        raise ValueError(
            f"scheme {path} is of no installed package with an entry point of {OWN}; expected: one of these"
        )
    try:
        kind = named(path)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"scheme {path} cannot be imported ({error})") from None
    if not (isinstance(kind, type) and issubclass(kind, BASES[key])):
        raise ValueError(f"scheme {path} is no {BASES[key].__name__}; expected: a subclass")
    members = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "scheme": path}
    return new_class(kind.__name__, (kind,), {}, lambda space: space.update(members | _annotated(path)))


def _annotated(path: str) -> dict[str, Any]:
    return {"__annotations__": {"scheme": Literal[path]}}


def marked(mark: type[Mark]) -> Iterator[tuple[str, str, Mark]]:
    """The keys of extensions that have a mark: the section, the key in it, and the mark."""
    for path in keys("sections"):
        section, _, key = path.rpartition(".")
        for each in get_args(next(offered("sections", path))):
            if isinstance(each, mark):
                yield section, key, each


def refuse_hooks(scenario: Section) -> None:
    """Refuse (ScenarioError) what needs hooks around a run, for a custom app: it calls none."""
    for section, key, needs in marked(NeedsHooks):
        if getattr(getattr(scenario, section), key):
            raise ScenarioError(f"{section}.{key}: {needs.words}; expected: a run of fedamp")


def extend(section: type[S], path: str = "") -> type[S]:
    """Add the keys that extensions offer to a section, which is at this path of a scenario; returns the section.

    An extension offers a class of sections, which may be left out, or an annotated type with its field and its place
    (:class:`fedamp.base.section.Before`).
    """
    added = {}
    for key in keys("sections"):
        above, _, name = key.rpartition(".")
        if above == path:
            added[name] = kind = next(offered("sections", key))
            if isinstance(kind, type):
                added[name] = Annotated[kind | None, Field(None, exclude_if=lambda found: found is None)]
    return with_keys(section, added)
