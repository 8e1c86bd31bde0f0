"""What happened, as frozen expressions that nest freely and hold no arithmetic.

Each kind states its release as a formula: f is what all others contribute, v the person's contribution, of norm at most
1 (the clipping norm), M_1, M_2, .. fresh copies of the mechanism inside. With the person out v is 0, or another under
substitution. X is the likelihood ratio of both. ``theorems`` says what a kind is charged as, ``law`` what
X is; ``fedamp.accounting`` appoints the evaluators.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Annotated, Any, ClassVar, get_type_hints

from fedamp.accounting import checks
from fedamp.accounting.arithmetic import Array
from fedamp.accounting.bounds import Bounds, TradeOff


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
    unamplified: Callable[["Mechanism"], "Mechanism"]


@lru_cache(maxsize=256)
def _checks_of(kind: type["Mechanism"]) -> list[tuple[str, Any]]:
    """Fields and their checks; fields that others limit come last."""
    hints = get_type_hints(kind, include_extras=True)
    found = [(each.name, check) for each in fields(kind) for check in getattr(hints[each.name], "__metadata__", ())]
    return sorted(found, key=lambda pair: isinstance(pair[1], checks.Limited))


@dataclass(frozen=True)
class Mechanism:
    """Base of all mechanisms. Not for direct use. The annotation of a field names its check, as ``checks.Scale`` or
    ``Annotated[float, check]``. Fields hold what ``check(name, value)`` returns.
    """

    accountant: ClassVar[Accountant]
    text: ClassVar[str]  # the description, with the mechanism as {0}
    kinds: ClassVar[dict[str, type["Mechanism"]]] = {}

    def __init_subclass__(cls, *, is_kind: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if is_kind:
            Mechanism.kinds[cls.__name__] = cls

    def __post_init__(self) -> None:
        for name, check in _checks_of(type(self)):  # type: ignore[arg-type]
            beside = (getattr(self, check.field),) if isinstance(check, checks.Limited) else ()
            self._set(**{name: check(name, getattr(self, name), *beside)})
        for kind in reversed(type(self).__mro__):
            if "check" in vars(kind):
                vars(kind)["check"](self)

    def check(self) -> None:
        """What the annotations do not say, after they are checked; a kind's own, after those of its bases."""

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
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
        """Upper bounds of the Rényi divergence at ``orders`` in (1, 4096], the larger of both directions; shape (n,).
        Infinite where no bound is known; between whole orders, order - 1 times the divergence is interpolated linearly.
        With ``ModelMix`` inside, the worst case of its rounds is checked, not proved.
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
        return self.accountant.unamplified(self)

    @property
    def is_empty(self) -> bool:
        """True if nobody ever takes part: rate 0, no rounds."""
        return any(getattr(self, name, None) == 0 for name in ("rate", "times", "k", "released"))

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
    def words(self) -> str:
        """A description on one line; ``str`` adds the neighbouring relation."""
        return self.text.format(self)

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

    def _prefix(self, rounds: int) -> Mechanism:
        return replace(self, mechanism=self.mechanism.after(rounds))


@dataclass(frozen=True)
class Release(Mechanism, is_kind=False):
    """What one participation releases, and for which neighbours; not made of other mechanisms. A contribution is at
    most 1 in size (the clipping norm). Its replacement is 0, or up to 2 away under substitution.
    """

    relation: Annotated[Relation, relation_of] = field(default=Relation.ZERO_OUT, kw_only=True)
    takes_substitution: ClassVar[bool] = True  # if not, the charge is for a contribution against none

    def check(self) -> None:
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


@dataclass(frozen=True, repr=False)
class Gaussian(Release):
    """A sum with Gaussian noise. Its standard deviation is ``noise_multiplier`` clipping norms of a contribution.
    Release: f + v + z, z ~ N(0, s^2 I).
    """

    noise_multiplier: checks.Scale
    text = "Gaussian noise of multiplier {0.noise_multiplier:g}"


@dataclass(frozen=True, repr=False)
class Laplace(Release):
    """A number with Laplace noise of the given scale, in units of the largest absolute contribution. Epsilon is at most
    1 / scale (2 / scale under substitution). Release: f + v + z, z of density exp(-|z| / b) / (2 b).
    """

    scale: checks.Scale
    text = "Laplace noise of scale {0.scale:g}"


@dataclass(frozen=True, repr=False)
class RandomisedResponse(Release):
    """One bit about all the data, true with a ``probability`` in [1/2, 1) and flipped otherwise. It is one bit however
    many people's data change. If every person gives a bit, a group of K people goes through K of these: ``Repeat``.
    Release: a bit b with chance p, else 1 - b.
    """

    probability: checks.Probability
    text = "randomised response, true with probability {0.probability:g}"

    def check(self) -> None:
        if not 0.5 <= self.probability < 1:
            raise ValueError(f"probability must be in [0.5, 1), got {self.probability!r}")


@dataclass(frozen=True, repr=False)
class FiniteOutcomes(Release):
    """A release with finitely many outcomes: the probability of each with the person's contribution, ``present``, and
    with its replacement, ``absent``, for the worst neighbours. Both are of one length and sum to 1. Release: i with
    chance present_i, or absent_i.
    """

    present: Annotated[Sequence[float], checks.OnePer("present")]
    absent: Annotated[Sequence[float], checks.OnePer("present")]

    @property
    def words(self) -> str:
        return f"one of {len(self.present)} outcomes"


@dataclass(frozen=True, repr=False)
class Approximate(Release):
    """A black box that is (``known_epsilon``, ``known_delta``)-private, as somebody else has proved; ``known_epsilon``
    is >= 0, ``known_delta`` in [0, 1). Nothing more is known of it. Release: any, with P(A) <= exp(epsilon) Q(A) +
    delta.
    """

    known_epsilon: Annotated[float, checks.scale_or_zero]
    known_delta: checks.Probability = 0.0
    text = "a black box of epsilon {0.known_epsilon:g} and delta {0.known_delta:g}"

    @property
    def releases_nothing(self) -> bool:
        return self.known_epsilon == self.known_delta == 0


@dataclass(frozen=True)
class NotPrivate(Mechanism):
    """A release without noise (noise multiplier 0): epsilon is infinite, for any neighbours. Release: f + v."""

    text = "no noise, no privacy"
    is_private = False


@dataclass(frozen=True, repr=False)
class ModelMix(Release):
    """One round of ModelMix: the server adds Gaussian noise to the sum, then mixes the last two models. Mixing adds
    uniform noise of the given width in every coordinate (Xiao, Wan, Devadas 2022, Theorem 4.1, Corollary 4.1). Release:
    f + v + z + u, z ~ N(0, s^2 I), u uniform, of width w in every coordinate.

    ``noise_multiplier``: s > 0, in units of the clipping norm of the (summed) update. ``width``: tau / eta >= 0 in the
    same units, the largest distance of the mixed models over the learning rate; 0: no mixing. ``linf_coordinates``: p
    >= 1: every coordinate is clipped to norm / sqrt(p). Clients train on the model before it is mixed. A round that
    starts from the mixture costs more than this charge.
    """

    noise_multiplier: checks.Scale
    width: Annotated[float, checks.scale_or_zero]
    linf_coordinates: checks.Count = 1
    takes_substitution: ClassVar[bool] = False
    text = (
        "ModelMix of width {0.width:g}, {0.linf_coordinates} coordinates, "
        "Gaussian noise of multiplier {0.noise_multiplier:g}"
    )


@dataclass(frozen=True, repr=False)
class MixedCoordinate(Release):
    """What an attacker sees in one coordinate of ``ModelMix``: Gaussian noise plus uniform noise of a ``width``,
    shifted or not. All fields are > 0, in units of the clipping norm. Release: c + z + u, or z + u, z ~ N(0, s^2), u
    uniform of width w.
    """

    noise_multiplier: checks.Scale
    width: checks.Scale
    shift: checks.Scale
    takes_substitution: ClassVar[bool] = False
    text = "a shift of {0.shift:g} under Gaussian {0.noise_multiplier:g} and uniform {0.width:g} noise"


@dataclass(frozen=True, repr=False)
class GaussianMixture(Release):
    """Unit Gaussian noise around a random shift when the person (or group) is in, around 0 when not. X = sum_i w_i
    exp(m_i z - m_i^2 / 2), z standard normal, increases in z. Many dimensions reduce to it if all shifts point the same
    way. That is the worst case for Rényi and hockey-stick divergences (supermodularity, as in the proof of Theorem 6.4
    of Yin, Zaheer, Li 2026). The shifts m_i >= 0 are in standard deviations of the noise; the weights w_i sum to 1.
    Release: m_i + z with chance w_i, or z, z ~ N(0, 1).
    """

    shifts: Sequence[float]
    weights: Sequence[float]
    takes_substitution: ClassVar[bool] = False

    def check(self) -> None:
        shifts = tuple(checks.number("shifts", shift) for shift in checks.sequence("shifts", self.shifts))
        if not all(0 <= shift < math.inf for shift in shifts):
            raise ValueError(f"shifts must be >= 0 and finite, got {shifts!r}")
        merged: dict[float, float] = {}
        for shift, weight in sorted(zip(shifts, checks.weights("weights", self.weights, len(shifts)), strict=True)):
            if weight > 0:
                merged[shift] = merged.get(shift, 0.0) + weight
        self._set(shifts=tuple(merged), weights=tuple(merged.values()))

    @property
    def words(self) -> str:
        return f"Gaussian noise around one of {len(self.shifts)} shifts up to {self.shifts[-1]:g}"


@dataclass(frozen=True, repr=False)
class GroupPoissonGaussian(Release):
    """``size`` people (1 to 500) together under Poisson sampling and Gaussian noise, each sampled independently. The
    noise multiplier is in units of one person's clipping norm. Release: f + b_1 v_1 + .. + b_K v_K + z, b_i coins of
    rate q, z ~ N(0, s^2 I).
    """

    noise_multiplier: checks.Scale
    rate: checks.Probability
    size: Annotated[int, partial(checks.count, largest=500)]
    takes_substitution: ClassVar[bool] = False
    text = (
        "a group of {0.size} under Poisson sampling at rate {0.rate:g} and "
        "Gaussian noise of multiplier {0.noise_multiplier:g}"
    )


@dataclass(frozen=True)
class SubstitutedPoissonGaussian(Mechanism):
    """A Gaussian sum of a Poisson sample, for neighbours that differ by substitution: with probability ``rate`` the
    person's contribution is in it, or the other person's in its place. Release: f + b v + z, or f + b v' + z, b a coin
    of rate q, z ~ N(0, s^2 I).
    """

    noise_multiplier: checks.Scale
    rate: checks.Probability
    text = "Poisson sampling at rate {0.rate:g} of Gaussian noise of multiplier {0.noise_multiplier:g}"

    relation = Relation.SUBSTITUTION


@dataclass(frozen=True)
class Compose(Mechanism):
    """Releases after one another. Each may depend on those before. If every part is a single release, they make one
    round together (for instance the shared and the split part of a model). If some part spans several rounds, the
    rounds of the parts follow one another. All parts are of one neighbouring relation. Release: (M_1, M_2, ..), each
    may depend on those before.
    """

    mechanisms: Annotated[Sequence[Mechanism], mechanisms_of]

    @property
    def words(self) -> str:
        return "[" + "; then ".join(part.words for part in self.mechanisms) + "]"

    @property
    def span(self) -> int:
        spans = [part.span for part in self.mechanisms]
        return 1 if all(span == 1 for span in spans) else sum(spans)

    def _prefix(self, rounds: int) -> Mechanism:
        released: list[Mechanism] = []
        for part in self.mechanisms:
            if taken := min(rounds, part.span):
                released.append(part.after(taken))
            rounds -= taken
        return Compose(tuple(released)) if released else NOTHING


@dataclass(frozen=True)
class Repeat(OfOne):
    """The same mechanism ``times`` >= 0 times, one after another, with fresh randomness each time. Release: (M_1, ..,
    M_t).
    """

    times: checks.CountOrZero

    @property
    def words(self) -> str:
        return f"{self.times} times ({self.mechanism.words})" if self.times else "nothing"

    @property
    def span(self) -> int:
        return self.times * self.mechanism.span

    def _prefix(self, rounds: int) -> Mechanism:
        whole, rest = divmod(rounds, self.mechanism.span)
        released = Repeat(self.mechanism, whole)
        return Compose((released, self.mechanism.after(rest))) if rest else released


def composed(parts: Iterable[tuple[Mechanism, int]]) -> Mechanism:
    """Mechanisms one after another, each so many times; of none ``NOTHING``."""
    return Compose([Repeat(each, times) for each, times in parts] or [NOTHING])


NOTHING = Repeat(NotPrivate(), 0)  # the release that says nothing, for any neighbouring relation


@dataclass(frozen=True)
class Hidden(OfOne, is_kind=False):
    """A mechanism that a hidden choice decides about."""

    def check(self) -> None:
        kind, mechanism = type(self).__name__, self.mechanism
        if mechanism.relation is Relation.SUBSTITUTION:
            expected = f"{kind} hides whether a person takes part: expected zero-out or add/remove"
            raise ValueError(f"{expected}, got a mechanism for substitution ({mechanism.words})")
        if mechanism.is_of_whole_run:
            expected = f"{kind} takes one person's release; a group or a batch applies to the whole run"
            raise ValueError(f"{expected}, got {mechanism.words}")


@dataclass(frozen=True)
class Poisson(Hidden):
    """A person takes part with probability ``rate`` in [0, 1], independently and in secret. ``mechanism`` is the
    release of a participant. Parts that share the coin (the shared and the split part of one round) must be composed
    first and sampled together. Release: M with chance q, else M without the person.
    """

    rate: checks.Probability
    text = "Poisson sampling at rate {0.rate:g} of ({0.mechanism.words})"


@dataclass(frozen=True)
class Submodels(Hidden):
    """A person trains one of ``count`` >= 1 disjoint submodels, drawn at random and hidden (Dong, Chen, Özgür 2025,
    Theorem 3.4). ``mechanism`` is one submodel's release. Release: (M_1, .., M_d), the person in M_j alone, j uniform.

    Submodels drawn afresh each round are ``Repeat(Submodels(m, d), T)``; drawn once for the run,
    ``Submodels(Repeat(m, T), d)``. Parts outside all submodels (the output layer, normalisation) are shared. Compose
    them inside the round, with their own clipping norm.
    """

    count: checks.Count
    text = "one hidden submodel of {0.count} ({0.mechanism.words})"


@dataclass(frozen=True)
class Dropout(Hidden):
    """A person keeps each unit of the whole model with probability ``keep`` in (0, 1]: one hidden mask per person and
    round. Masks must be drawn with at most this probability; one n-th to floating point counts as one n-th. Release: M,
    of the units of a mask alone, each kept with chance p.
    """

    keep: checks.Probability
    text = "hidden dropout, keep {0.keep:g}, of ({0.mechanism.words})"

    def check(self) -> None:
        if self.keep == 0:
            raise ValueError("keep must be in (0, 1], got 0.0")


@dataclass(frozen=True)
class Allocation(Hidden):
    """The whole run of ``rounds`` >= 1 rounds, of which a person takes part in exactly ``k`` (0 to ``rounds``), drawn
    at random and hidden. ``mechanism`` is one round; it may itself be amplified (``Submodels``) or composed. Release:
    (M_1, .., M_T), the person in those of a uniform set of k.
    """

    k: Annotated[int, checks.UpTo("rounds")]
    rounds: checks.Count

    @property
    def words(self) -> str:
        chosen = "one hidden round" if self.k == 1 else f"{self.k} hidden rounds"
        return f"{chosen} of {self.rounds} ({self.mechanism.words})"

    @property
    def span(self) -> int:
        return self.rounds

    def _prefix(self, rounds: int) -> Mechanism:
        return AllocationPrefix(self.mechanism, self.k, self.rounds, rounds)


@dataclass(frozen=True)
class AllocationPrefix(Hidden):
    """The first ``released`` rounds (0 to ``rounds``) of an ``Allocation`` with the other fields. The other rounds are
    not out, and may never be. Release: the first r of (M_1, .., M_T), the person in those of a uniform set of k.
    """

    k: Annotated[int, checks.UpTo("rounds")]
    rounds: checks.Count
    released: Annotated[int, checks.UpTo("rounds")]

    @property
    def words(self) -> str:
        return f"the first {self.released} rounds of ({self.whole().words})"

    @property
    def span(self) -> int:
        return self.released

    def whole(self) -> Allocation:
        """The run that it is the beginning of."""
        return Allocation(self.mechanism, self.k, self.rounds)

    def _prefix(self, rounds: int) -> Mechanism:
        return replace(self, released=rounds)


class _Begun(Hidden, is_kind=False):
    """Hidden rounds of which the first ``released`` are out, 0 to ``rounds``; None: all."""

    rounds: checks.Count
    released: int | None

    def check(self) -> None:
        if self.released is not None:
            released = checks.count("released", self.released, 0, self.rounds, "rounds")
            self._set(released=None if released == self.rounds else released)

    @property
    def span(self) -> int:
        return self.rounds if self.released is None else self.released

    def _prefix(self, rounds: int) -> Mechanism:
        return replace(self, released=rounds)  # type: ignore[call-arg]


@dataclass(frozen=True)
class CappedPoisson(_Begun):
    """Poisson sampling over ``rounds`` >= 1 rounds, with a cap. Where a person's coins choose more than ``at_most``
    rounds, the person takes part in that many of them, drawn uniformly (Feldman, Shenfeld 2025, proof of Corollary
    4.7). Release: (M_1, .., M_T), the person in at most c of those that coins of rate q choose.

    ``mechanism``: one round. ``rate``: of the coins, in [0, 1]. ``at_most``: 1 to ``rounds``. ``released``: how many
    rounds are out, 0 to ``rounds``; default: all.
    """

    rate: checks.Probability
    at_most: Annotated[int, checks.UpTo("rounds", smallest=1)]
    rounds: checks.Count
    released: int | None = None

    @property
    def words(self) -> str:
        beginning = "" if self.released is None else f"the first {self.released} of "
        sampled = f"{self.rounds} rounds of Poisson sampling at rate {self.rate:g}"
        return f"{beginning}{sampled}, at most {self.at_most} a person ({self.mechanism.words})"


@dataclass(frozen=True)
class Cyclic(Hidden):
    """A run of ``rounds`` >= 1 rounds; round t is of the public class t modulo ``classes`` (1 to ``rounds``). A person
    is of one class, and takes part in exactly ``k`` (0 to rounds // classes) of its rounds, drawn at random and hidden.
    ``mechanism`` is one participation. Release: (M_1, .., M_T), the person in k of those of one class.

    The classes are for banded noise (docs/correlated-noise.md): with at most as many bands as classes, the rows of
    different participations do not meet, and one participation over all its rows is one release of ``mechanism``. The
    cost is that of a class with the fewest rounds, rounds // classes: more of them hide the same choice better.
    """

    k: Annotated[int, checks.UpTo("rounds")]
    rounds: checks.Count
    classes: Annotated[int, checks.UpTo("rounds", smallest=1)]
    text = "{0.of_a_class.words}, in one of {0.classes} public classes of {0.rounds} rounds"

    def check(self) -> None:
        checks.count("k", self.k, 0, self.rounds // self.classes, "rounds // classes")

    @property
    def of_a_class(self) -> Mechanism:
        """The run over the rounds of a class with the fewest: what is charged."""
        return Allocation(self.mechanism, self.k, self.rounds // self.classes)

    @property
    def span(self) -> int:
        return self.rounds

    def begun(self, rounds: int) -> int:
        """The most rounds of a class among the first ``rounds`` of all, 0 to rounds // classes."""
        return min(-(-rounds // self.classes), self.rounds // self.classes)

    def _prefix(self, rounds: int) -> Mechanism:
        """A participation of which some rows are out costs at most what all of them cost."""
        return self.of_a_class.after(self.begun(rounds))


class _Correlated(_Begun, is_kind=False):
    """Noise C^-1 z, C the lower triangular Toeplitz matrix of the coefficients 1, c_1, c_2, ..; see its kinds."""

    gap: int
    coefficients: tuple[float, ...]

    def check(self) -> None:
        given = checks.sequence("coefficients", self.coefficients)
        coefficients = tuple(checks.scale_or_zero("coefficients", each) for each in given)
        self._set(coefficients=coefficients)
        rise = any(later > sooner for sooner, later in pairwise((1.0, *coefficients)))
        if not self.is_banded and (rise or len(coefficients) >= self.rounds):
            enough = f"the bands ({len(coefficients) + 1}), or the rounds with coefficients that never rise from 1"
            raise ValueError(f"gap must be at least {enough}; got {self.gap} and {self.rounds}")

    @property
    def chosen(self) -> str:
        """The hidden rounds of a person, in words."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        beginning = "" if self.released is None else f"the first {self.released} rounds of "
        noise = f"with noise over {len(self.coefficients) + 1} rounds"
        return f"{beginning}{self.chosen}, {noise} ({self.mechanism.words})"

    @property
    def is_banded(self) -> bool:
        """Whether the rows of different participations do not meet."""
        return len(self.coefficients) < self.gap

    @property
    def times(self) -> int:
        """The most rounds of a person among those released."""
        raise NotImplementedError

    @property
    def known_signal(self) -> float:
        """Squared length of what a person with known rounds adds, at most, over that of one participation: rounds as
        early, and as close, as can be (docs/correlated-noise.md).
        """
        column, starts = (1.0, *self.coefficients), [i * self.gap for i in range(self.times)]
        rows = [math.fsum(column[t - s] for s in starts if 0 <= t - s < len(column)) for t in range(self.span)]
        return math.fsum(row * row for row in rows) / math.fsum(each * each for each in column)


@dataclass(frozen=True)
class Spaced(_Correlated):
    """A run of ``rounds`` >= 1 rounds with correlated noise, of which a person takes part in exactly ``k`` (0 to
    rounds), any two at least ``gap`` apart: a uniform and hidden choice among all such sets. ``mechanism`` is one
    participation. The hidden choice amplifies Gaussian releases (docs/correlated-noise.md); with others it counts as
    known. Release: (f_t + v_t) + C^-1 z, v_t = 0 but in a uniform set of k rounds, any two at least a gap apart.

    ``coefficients``: c_1, c_2, .. of the noise, each >= 0. Up to gap - 1 are bands: rows of different participations do
    not meet. With more, up to rounds - 1, the sequence 1, c_1, c_2, .. never rises, and releases are Gaussian.
    ``released``: how many rounds are out, 0 to ``rounds``; default: all.
    """

    k: Annotated[int, checks.UpTo("rounds")]
    rounds: checks.Count
    gap: Annotated[int, checks.UpTo("rounds", smallest=1)]
    coefficients: tuple[float, ...]
    released: int | None = None

    def check(self) -> None:
        if not self.sets:
            raise ValueError(f"{self.k} rounds {self.gap} apart do not fit into {self.rounds} rounds")

    @property
    def chosen(self) -> str:
        return f"{self.k} hidden rounds of {self.rounds}, at least {self.gap} apart"

    @property
    def sets(self) -> int:
        """The number of sets of rounds that a person may have."""
        return spaced_sets(self.rounds, self.k, self.gap)

    @property
    def times(self) -> int:
        return min(self.k, -(-self.span // self.gap))


@dataclass(frozen=True)
class BallsInBins(_Correlated):
    """As ``Spaced``, but a person's rounds follow from the first one: s, s + gap, s + 2 gap, .., s one of the first
    ``gap`` rounds, uniform and hidden (Chua et al. 2025). Release: (f_t + v_t) + C^-1 z, v_t = 0 but in the rounds
    of one residue modulo the gap.
    """

    rounds: checks.Count
    gap: Annotated[int, checks.UpTo("rounds", smallest=1)]
    coefficients: tuple[float, ...]
    released: int | None = None

    @property
    def chosen(self) -> str:
        return f"every {self.gap}th of {self.rounds} rounds from a hidden one on"

    @property
    def times(self) -> int:
        return -(-self.span // self.gap)


def spaced_sets(rounds: int, k: int, gap: int) -> int:
    """The number of sets of ``k`` of ``rounds`` rounds that are at least ``gap`` apart."""
    return math.comb(max(rounds - (k - 1) * (gap - 1), 0), k) if k else 1


JOINT_RELEASE = "joint release"
FIXED_GRADIENTS = "gradients do not depend on the models"


@dataclass(frozen=True)
class RandomSelection(Mechanism):
    """One of several mechanisms, drawn with the given weights. Its release is public, and the draw may be (Yin, Zaheer,
    Li 2026, Theorems 5.1 and 5.2). A mechanism without privacy costs its whole weight in delta at every epsilon, and no
    Rényi divergence is finite. The weights, >= 0 and of sum 1, do not depend on the data. Release: (j, M_j), j with
    chance w_j.
    """

    mechanisms: Annotated[Sequence[Mechanism], mechanisms_of]
    weights: Annotated[Sequence[float], checks.OnePer("mechanisms")]

    @property
    def words(self) -> str:
        pairs = zip(self.weights, self.mechanisms, strict=True)
        return "one of (" + ", ".join(f"{weight:g}: {part.words}" for weight, part in pairs) + ")"

    @property
    def is_private(self) -> bool:
        return all(part.is_private for part in self.used[0])

    @property
    def releases_nothing(self) -> bool:
        return all(part.releases_nothing for part in self.used[0])

    @property
    def used(self) -> tuple[tuple[Mechanism, ...], tuple[float, ...]]:
        """The mechanisms that may be drawn, and their weights."""
        used = [pair for pair in zip(self.mechanisms, self.weights, strict=True) if pair[1]]
        return tuple(part for part, _ in used), tuple(weight for _, weight in used)


@dataclass(frozen=True)
class LinearCombination(Mechanism):
    """The released sum of weighted models, each trained privately on the same data with its own fresh randomness.
    Release: w_1 M_1 + .. + w_n M_n.

    The default charge is for the release of all models with non-zero weight (Yin, Zaheer, Li 2026, Theorem 6.1). The
    paper's cheaper charge per step (Theorems 6.2 and 6.4, Corollary 6.5) is conditional on the trajectories of all
    models, which are not released. It holds if gradients do not depend on the models (a single step, or mean
    estimation). It must be asked for by that assumption, which stays recorded in the mechanism.

    ``mechanisms``: one training run per model. ``weights``: one per model, >= 0, sum 1; independent of the data.
    ``assumption``: ``"joint release"``, or ``"gradients do not depend on the models"``, which needs every run to be
    ``Repeat(Poisson(Gaussian(s), q), T)`` or ``Repeat(Gaussian(s), T)`` with one T. ``scales``: learning rate times
    clipping norm of each model's steps, > 0; only for the second assumption.
    """

    mechanisms: Annotated[Sequence[Mechanism], mechanisms_of]
    weights: Annotated[Sequence[float], checks.OnePer("mechanisms")]
    assumption: str = JOINT_RELEASE
    scales: Sequence[float] = ()

    def check(self) -> None:
        self._set(scales=tuple(checks.positive("scales", each) for each in checks.sequence("scales", self.scales)))
        if self.assumption not in (JOINT_RELEASE, FIXED_GRADIENTS):
            expected = f'"{JOINT_RELEASE}" or "{FIXED_GRADIENTS}"'
            raise ValueError(f"assumption must be {expected}, got {self.assumption!r}")
        if self.assumption == FIXED_GRADIENTS:
            if len(self.scales) != len(self.mechanisms):
                raise ValueError(f"scales must have {len(self.mechanisms)} entries, got {len(self.scales)}")
            if len(self.mechanisms) > 12:
                raise ValueError(f"mechanisms must be at most 12 under this assumption, got {len(self.mechanisms)}")
            self.steps()

    @property
    def words(self) -> str:
        pairs = zip(self.weights, self.mechanisms, strict=True)
        combined = " + ".join(f"{weight:g} x ({part.words})" for weight, part in pairs)
        return f"merged model {combined}, charged under: {self.assumption}"

    @property
    def is_private(self) -> bool:
        return all(part.is_private for part, weight in zip(self.mechanisms, self.weights, strict=True) if weight > 0)

    def steps(self) -> tuple[int, list[tuple[float, float]]]:
        """The number of steps, and each model's noise multiplier and sampling rate, under the second assumption."""
        found = []
        for run in self.mechanisms:
            times, step = (run.times, run.mechanism) if isinstance(run, Repeat) else (1, run)
            rate, base = (step.rate, step.mechanism) if isinstance(step, Poisson) else (1.0, step)
            if not isinstance(base, Gaussian) or base.change != 1:
                expected = "repeated (Poisson sampled) Gaussians under this assumption"
                raise ValueError(f"mechanisms must be {expected}, got {run}")
            found.append((times, (base.noise_multiplier, rate)))
        if len({times for times, _ in found}) != 1:
            raise ValueError("mechanisms must all have the same number of steps under this assumption")
        return found[0][0], [step for _, step in found]


@dataclass(frozen=True)
class Group(OfOne):
    """A mechanism as ``size`` people (1 to 1000) together see it, who choose and are sampled independently of one
    another; ``group`` uses it where it knows nothing exact. Release: M, with K people in or out together.
    """

    size: Annotated[int, partial(checks.count, largest=1000)]
    text = "a group of {0.size}: {0.mechanism.words}"

    def check(self) -> None:
        if self.size > 1 and self.mechanism.contains((BallsInBins, Cyclic, Spaced)):
            raise ValueError("a group of people whose rows meet in correlated noise is not charged; expected: size 1")

    is_of_whole_run = True


@dataclass(frozen=True)
class WithoutReplacement(Mechanism):
    """A batch of ``batch`` out of ``population`` people, drawn uniformly without replacement; both are public. Release:
    M of a uniform batch of n of N people.

    Its neighbours differ by substitution: ``size`` people are replaced by others (or their contributions zeroed). The
    batch's release is written for zero-out; a substitution is charged as a change of two contributions.

    ``batch`` and ``size``, the number of people changed together, are from 1 to ``population``.
    """

    mechanism: Annotated[Mechanism, mechanism_of]
    batch: Annotated[int, checks.UpTo("population", smallest=1)]
    population: checks.Count
    size: Annotated[int, checks.UpTo("population", smallest=1)] = 1

    def check(self) -> None:
        if self.mechanism.relation is Relation.SUBSTITUTION:
            expected = "WithoutReplacement takes a release for zero-out, and charges substitution itself"
            raise ValueError(f"{expected}; got one for substitution ({self.mechanism.words})")

    @property
    def words(self) -> str:
        together = "" if self.size == 1 else f", as {self.size} of them together see it"
        return f"{self.batch} of {self.population} people without replacement ({self.mechanism.words}){together}"

    is_of_whole_run = True

    relation = Relation.SUBSTITUTION
