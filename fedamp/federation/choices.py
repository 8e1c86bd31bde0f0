"""The schemes that a scenario can name, by key: those of the core, and those that extensions offer.

A family's module has its base class and the core's own schemes. Each union is built here when it is first imported, and
not before: a scheme of an extension may hold a union of another family.
"""

from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args

from pydantic import Field
from pydantic.fields import FieldInfo

from fedamp.base.section import Before, Section
from fedamp.extension import keys, offered
from fedamp.federation.aggregation import AGGREGATIONS, AggregationScheme
from fedamp.federation.check_in import CHECK_INS, CheckIn
from fedamp.federation.facts import Declared
from fedamp.federation.noise import NOISES, NoiseScheme
from fedamp.federation.submodels import SUBMODELS, SubmodelScheme

S = TypeVar("S", bound=Section)

FAMILIES: dict[str, tuple[type[Declared], ...]] = {
    "check_in": CHECK_INS,
    "submodels": SUBMODELS,
    "privacy.noise": NOISES,
    "aggregation": AGGREGATIONS,
}
"""The core's schemes, by the key of a scenario that names one of them."""

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
    return Annotated[Union[schemes], Field(discriminator="scheme")] if len(schemes) > 1 else schemes[0]  # noqa: UP007


def extend(section: type[S], path: str = "") -> type[S]:
    """Add the keys that extensions offer to a section, which is at this path of a scenario; returns the section.

    An extension offers a class of sections, which may be left out, or an annotated type with its field and its place
    (:class:`fedamp.base.section.Before`).
    """
    fields, annotations = section.__pydantic_fields__, section.__annotations__  # subclasses read the annotations
    for key in keys("sections"):
        above, _, name = key.rpartition(".")
        if above != path:
            continue
        (kind,) = offered("sections", key)
        if isinstance(kind, type):
            kind = Annotated[kind | None, Field(None, exclude_if=lambda found: found is None)]
        found = FieldInfo.from_annotation(kind)
        place = next((each.key for each in found.metadata if isinstance(each, Before)), None)
        for table, value in ((fields, found), (annotations, kind)):
            table[name] = value
            for later in list(table)[list(table).index(place) : -1] if place else ():
                table[later] = table.pop(later)
    section.model_rebuild(force=True)
    return section
