"""What happened, as a frozen expression: the base of all mechanisms, their neighbouring relation, text and JSON.

Mechanisms nest freely and hold no arithmetic. Evaluators dispatch on their kind; ``fedamp.accounting`` appoints them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Annotated, Any, ClassVar, get_type_hints

from fedamp.accounting import checks
from fedamp.accounting.bounds import Array, Bounds
from fedamp.accounting.tradeoff import TradeOff


class Relation(StrEnum):
    """Which two data sets are neighbours: what "a person is out" means."""

    ZERO_OUT = "zero-out"  # the person's contribution is replaced by zero; the number of people stays public
    ADD_REMOVE = "add/remove"  # the person is in the data or not
    SUBSTITUTION = "substitution"  # other data replaces the person's; a sum moves by up to twice the clipping norm


@dataclass(frozen=True)
class Accountant:
    """The functions that answer the questions to a mechanism; see its methods of the same names."""

    epsilon: Callable[["Mechanism", float, int | None, float | None], Bounds]
    delta: Callable[["Mechanism", float, int | None, float | None], Bounds]
    rdp: Callable[["Mechanism", Sequence[float] | Array | float], Array]
    trade_off: Callable[["Mechanism", int], TradeOff]


@lru_cache(maxsize=256)
def _checks_of(kind: type["Mechanism"]) -> list[tuple[str, Any]]:
    """Fields and their checks; fields that others limit come last."""
    hints = get_type_hints(kind, include_extras=True)
    found = [(each.name, check) for each in fields(kind) for check in getattr(hints[each.name], "__metadata__", ())]
    return sorted(found, key=lambda pair: isinstance(pair[1], checks.UpTo))


@dataclass(frozen=True)
class Mechanism(ABC):
    """Base of all mechanisms. Not for direct use.

    The annotation of a field names its check, as ``checks.Scale`` or ``Annotated[float, check]``. Fields hold what
    ``check(name, value)`` returns.
    """

    accountant: ClassVar[Accountant]
    kinds: ClassVar[dict[str, type["Mechanism"]]] = {}

    def __init_subclass__(cls, *, is_kind: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if is_kind:
            Mechanism.kinds[cls.__name__] = cls

    def __post_init__(self) -> None:
        for name, check in _checks_of(type(self)):
            value = getattr(self, name)
            if isinstance(check, checks.UpTo):
                value = checks.count(name, value, check.smallest, getattr(self, check.field), check.field)
            else:
                value = check(name, value)
            object.__setattr__(self, name, value)

    # Questions.

    def epsilon(self, delta: float, *, points: int | None = None, precision: float | None = None) -> Bounds:
        """Smallest epsilon at which the mechanism is (epsilon, delta)-private, in both directions, as a bracket.

        Args:
            delta: in (0, 1).
            points: of the numerical law, 50 to 20,000; the time rises with their square. Default: 1200, and up to 4800
                where the bracket is wider than one part in 1000.
            precision: relative width, 1e-4 to 0.1, that sampling of several hidden rounds (``Allocation``) aims at; the
                time rises with its inverse square. Default: 5e-3, about a second; no sampling with ``points`` alone.

        Returns:
            ``upper`` is certified, and ``method`` names its evaluator. A sampled one has a failure probability, charged
            to delta. ``lower`` is what an attacker achieves in some worst case; 0 where none is known.
        """
        return self.accountant.epsilon(self, delta, points, precision)

    def delta(self, epsilon: float, *, points: int | None = None, precision: float | None = None) -> Bounds:
        """Smallest delta at which the mechanism is (epsilon, delta)-private, in both directions, as a bracket; see
        ``epsilon``. Hidden rounds are sampled only if a ``precision`` (relative, of delta) is given.
        """
        return self.accountant.delta(self, epsilon, points, precision)

    def rdp(self, orders: Sequence[float] | Array | float) -> Array:
        """Upper bounds of the Rényi divergence, the larger of both directions.

        Args:
            orders: each > 1, shape (n,); between whole orders, order - 1 times the divergence is interpolated linearly.

        Returns:
            shape (n,); infinite where no bound is known. With ``ModelMix`` inside, the worst case of its rounds is
            checked, not proved.
        """
        return self.accountant.rdp(self, orders)

    def trade_off(self, values: int = 100) -> TradeOff:
        """Error rates of the best test of participation; see ``fedamp.accounting.trade_off``."""
        return self.accountant.trade_off(self, values)

    def plot(self, axes: Any = None) -> Any:
        """Plot error rates on matplotlib's axes, and return them; see ``TradeOff.plot``."""
        return self.trade_off().plot(axes, label=str(self))

    # Structure.

    def after(self, rounds: int) -> "Mechanism":
        """What the first ``rounds`` rounds release, if no other ever does; ValueError for a single release."""
        if checks.count("rounds", rounds, 0, self.span) == self.span:
            return self
        return self._prefix(int(rounds))

    def _prefix(self, rounds: int) -> "Mechanism":
        raise ValueError(f"{type(self).__name__} has no prefix of {rounds} rounds")

    @property
    def span(self) -> int:
        """The number of rounds; 1 for a single release."""
        return 1

    def unamplified(self) -> "Mechanism":
        """The same run without amplification: no sampling, no allocation, no submodels, no mixing."""
        return self

    @property
    def is_empty(self) -> bool:
        """True if nobody ever takes part: rate 0, no rounds."""
        return False

    @property
    def is_private(self) -> bool:
        """False if some part is released without noise."""
        return self.is_empty or all(part.is_private for part in self.parts)

    @property
    def releases_nothing(self) -> bool:
        """True if the release does not depend on the person."""
        return self.is_empty or (bool(self.parts) and all(part.releases_nothing for part in self.parts))

    @property
    def is_of_whole_run(self) -> bool:
        """True if some part applies to a whole run only, so that no hidden choice may contain it."""
        return any(part.is_of_whole_run for part in self.parts)

    @cached_property
    def parts(self) -> tuple["Mechanism", ...]:
        """The mechanisms this one is made of."""
        values = (getattr(self, each.name) for each in fields(self))
        nested = (value if isinstance(value, tuple) else (value,) for value in values)
        return tuple(item for items in nested for item in items if isinstance(item, Mechanism))

    def with_parts(self, rule: Callable[["Mechanism"], "Mechanism"]) -> "Mechanism":
        """The same mechanism, of what a rule makes of its parts; the same object if it changes none."""
        changed: dict[str, Any] = {}
        for name, value in ((each.name, getattr(self, each.name)) for each in fields(self)):
            if isinstance(value, Mechanism) and (new := rule(value)) is not value:
                changed[name] = new
            elif isinstance(value, tuple) and value and isinstance(value[0], Mechanism):
                parts = tuple(rule(part) for part in value)
                if any(part is not old for part, old in zip(parts, value, strict=True)):
                    changed[name] = parts
        return replace(self, **changed) if changed else self

    @cached_property
    def relation(self) -> Relation | None:
        """The neighbouring relation it is charged for, the same in all parts; None if any relation holds."""
        return common_relation(self.parts)

    def contains(self, kind: type["Mechanism"] | tuple[type["Mechanism"], ...]) -> bool:
        """Whether it is, or is made of, a mechanism of this kind."""
        return isinstance(self, kind) or any(part.contains(kind) for part in self.parts)

    # Text and JSON.

    @property
    @abstractmethod
    def words(self) -> str:
        """A description on one line; ``str`` adds the neighbouring relation."""

    def __str__(self) -> str:
        return self.words if self.relation is None else f"{self.words}, {self.relation}"

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; ``from_json`` reads them back."""
        return {"kind": type(self).__name__} | {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


def common_relation(parts: Sequence[Mechanism]) -> Relation | None:
    """The neighbouring relation of all parts, or ValueError if they differ."""
    relations = list(dict.fromkeys(part.relation for part in parts if part.relation is not None))
    if len(relations) > 1:
        raise ValueError(f"parts must share one neighbouring relation, got {' and '.join(relations)}")
    return relations[0] if relations else None


def mechanisms_of(name: str, values: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """A non-empty tuple of mechanisms of one neighbouring relation, or ValueError."""
    items = tuple(values) if isinstance(values, (list, tuple)) else (values,)
    if not items or not all(isinstance(item, Mechanism) for item in items):
        raise ValueError(f"{name} must be one or more mechanisms, got {values!r}")
    common_relation(items)
    return items


def mechanism_of(name: str, value: Mechanism) -> Mechanism:
    """A mechanism, or ValueError."""
    if not isinstance(value, Mechanism):
        raise ValueError(f"{name} must be a mechanism such as Gaussian(1.0), got {value!r}")
    return value


def relation_of(name: str, value: str) -> Relation:
    """A neighbouring relation, or ValueError."""
    if value not in tuple(Relation):
        raise ValueError(f"{name} must be one of {', '.join(repr(str(each)) for each in Relation)}, got {value!r}")
    return Relation(value)


@dataclass(frozen=True)
class OfOne(Mechanism, is_kind=False):
    """A mechanism made of one other, and with the same rounds."""

    mechanism: Annotated[Mechanism, mechanism_of]

    @property
    def span(self) -> int:
        return self.mechanism.span

    def unamplified(self) -> Mechanism:
        return self.mechanism.unamplified()

    def _prefix(self, rounds: int) -> Mechanism:
        return replace(self, mechanism=self.mechanism.after(rounds))


@dataclass(frozen=True)
class Release(Mechanism, is_kind=False):
    """What one participation releases, and for which neighbours; not made of other mechanisms.

    A contribution is at most 1 in size (the clipping norm). Its replacement is 0, or up to 2 away under substitution.
    """

    relation: Annotated[Relation, relation_of] = field(default=Relation.ZERO_OUT, kw_only=True)
    takes_substitution: ClassVar[bool] = True  # if not, the charge is for a contribution against none

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relation is Relation.SUBSTITUTION and not self.takes_substitution:
            kind = type(self).__name__
            raise ValueError(f"{kind} has the relation zero-out or add/remove; substitution is not charged, got it")

    def __repr__(self) -> str:
        shown = [f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.name != "relation"]
        if self.relation is not Relation.ZERO_OUT:
            shown.append(f"relation={str(self.relation)!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def change(self) -> int:
        """The largest distance of a contribution from its replacement."""
        return 2 if self.relation is Relation.SUBSTITUTION else 1


def _plain(value: Any) -> Any:
    if isinstance(value, Mechanism):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Relation) else value


def from_json(value: Mapping[str, Any]) -> Mechanism:
    """The mechanism that ``to_json`` wrote, or ValueError. A missing relation means zero-out, as in early files."""
    if not isinstance(value, Mapping) or "kind" not in value:
        raise ValueError(f'a mechanism must be an object with a "kind", got {value!r}')
    kind = Mechanism.kinds.get(value["kind"]) if isinstance(value["kind"], str) else None
    if kind is None:
        raise ValueError(f"kind must be one of {', '.join(sorted(Mechanism.kinds))}, got {value['kind']!r}")
    expected = {each.name for each in fields(kind)}
    given = set(value) - {"kind"}
    if given | {"relation"} != expected | {"relation"} or given - expected:
        raise ValueError(f"{kind.__name__} must have exactly the keys {sorted(expected)}, got {sorted(given)}")
    return kind(**{name: _nested(value[name]) for name in given})


def _nested(value: Any) -> Any:
    if isinstance(value, Mapping):
        return from_json(value)
    if isinstance(value, list):
        return tuple(_nested(item) for item in value)
    return value
