"""Collect the schemes that a scenario can name, by key: those of the core, and those that extensions offer.

A family's module has its base class and the core's own schemes. Each union is built here when it is first imported, and
not before: a scheme of an extension may hold a union of another family. :mod:`fedamp.federation.scenario` uses the
unions as types of its keys. How an extension offers a scheme is in :mod:`fedamp.extension`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args

from pydantic import Field

from fedamp.base.section import NeedsHooks, Section
from fedamp.errors import ScenarioError
from fedamp.extension import extensions, keys, offered, path_of
from fedamp.federation.added_keys import EXTENDED
from fedamp.federation.aggregation import AGGREGATIONS, AggregationScheme
from fedamp.federation.check_in import CHECK_INS, CheckIn
from fedamp.federation.facts import Declared
from fedamp.federation.noise import NOISES, NoiseScheme
from fedamp.federation.submodels import SUBMODELS, SubmodelScheme

Mark = TypeVar("Mark")

FAMILIES: dict[str, tuple[type[Declared], ...]] = {
    "check_in": CHECK_INS,
    "submodels": SUBMODELS,
    "privacy.noise": NOISES,
    "aggregation": AGGREGATIONS,
}
"""Schemes of the core, by the key of a scenario that names one of them."""

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


def schemes_of(key: str) -> tuple[type[Declared], ...]:
    """List the schemes of a key: the core's own ones in order, with those of extensions at their places.

    Args:
        key: one of :data:`FAMILIES`.

    Raises:
        ScenarioError: a scheme of an extension lacks a method or its name, or has the name of another one.
    """
    found = list(FAMILIES[key])
    for each in offered("choices", key):
        lacking = sorted(getattr(each, "__abstractmethods__", ()))
        lacking += ["scheme"] * (len(get_args(each.model_fields["scheme"].annotation)) != 1)
        if lacking:
            expected = 'all abstract methods of its base, and scheme: Literal["name"]'
            raise ScenarioError(f"{key}: the scheme {path_of(each)} lacks {', '.join(lacking)}; expected: {expected}")
        for other in found:
            if scheme_of(other) == scheme_of(each):
                clash = f"the schemes {path_of(other)} and {path_of(each)} have the name {scheme_of(each)}"
                raise ScenarioError(f"{key}: {clash}; expected: another name for {path_of(each)}")
        places = [place for place, other in enumerate(found) if scheme_of(other) == each.before]
        found.insert(places[0] if places else len(found), each)
    return tuple(found)


def refuse_unknown_keys() -> None:
    """Refuse keys of extensions that no scenario has, because nobody would miss them; all sections must be extended.

    Raises:
        ScenarioError: one line with the extension, the seam, the key, and the accepted ones.
    """
    schemes = (*FAMILIES, "server.optimizer", "data.transform")
    for extension in extensions():
        for key in extension.choices:
            if key not in schemes:
                raise ScenarioError(f"extension {extension.name}: choices: {key}: expected: {' or '.join(schemes)}")
        for key in extension.sections:
            if key.rpartition(".")[0] not in EXTENDED:
                sections = " or ".join(f"{each}.KEY" for each in sorted(EXTENDED) if each)
                raise ScenarioError(f"extension {extension.name}: sections: {key}: expected: KEY or {sections}")


def scheme_of(member: type[Declared]) -> str:
    """Return the word by which a scenario names a scheme."""
    (word,) = get_args(member.model_fields["scheme"].annotation)
    return str(word)


def one_of(key: str) -> Any:
    """Build the union of the schemes of a key, told apart by ``scheme``, as a type for pydantic."""
    schemes = schemes_of(key)
    return Annotated[Union[schemes], Field(discriminator="scheme")] if len(schemes) > 1 else schemes[0]  # noqa: UP007


def by_name(raw: Any) -> Any:
    """Replace paths ``package.module:Class`` of schemes in a scenario by the names that their extensions give them.

    A path names a scheme that an installed extension offers. No other code is imported: reading a scenario runs nothing
    that it names.

    Args:
        raw: parsed YAML; it is not changed.

    Returns:
        A copy with names, or ``raw`` itself where it has no such path.

    Raises:
        ValueError: no extension offers a scheme by this path.
    """
    if not isinstance(raw, dict):
        return raw
    for key in FAMILIES:
        *above, last = key.split(".")
        section = raw.get(above[0]) if above else raw
        scheme = section.get(last) if isinstance(section, dict) else None
        path = scheme.get("scheme") if isinstance(scheme, dict) else None
        if isinstance(path, str) and ":" in path:
            named = {path_of(member): scheme_of(member) for member in schemes_of(key)}
            if path not in named:
                theirs = ", ".join(each for each in named if not each.startswith("fedamp.")) or "none is installed"
                expected = f"expected: a name, or the path of one: {theirs}"
                raise ValueError(f"{key}.scheme: no extension offers {path}; {expected}")
            raw = with_value(raw, [*above, last, "scheme"], named[path])
    return raw


def with_value(raw: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """Copy nested mappings with another value at a path."""
    first, *below = path
    return raw | {first: with_value(raw[first], below, value) if below else value}


def marked_keys(mark: type[Mark]) -> Iterator[tuple[str, str, Mark]]:
    """Yield the keys of extensions that have a mark.

    Args:
        mark: class of the mark, such as :class:`fedamp.base.section.OwnersFile`.

    Yields:
        The path of the section, the key in it, and the mark.
    """
    for path in keys("sections"):
        section, _, key = path.rpartition(".")
        for each in get_args(next(offered("sections", path))):
            if isinstance(each, mark):
                yield section, key, each


def refuse_hooks(scenario: Section) -> None:
    """Refuse what needs hooks around a run, for a custom Flower app: it calls none.

    Raises:
        ScenarioError: one line with the key, and why it needs them.
    """
    for section, key, needs in marked_keys(NeedsHooks):
        if getattr(getattr(scenario, section) if section else scenario, key):
            path = f"{section}.{key}".lstrip(".")
            raise ScenarioError(f"{path}: {needs.words}; expected: a run of fedamp")
