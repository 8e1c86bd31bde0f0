"""The base of all mechanisms: their questions, their structure, and what a kind tells the evaluators.

A mechanism is a frozen expression: what happened. It states its release as a formula: f is what all others contribute,
v the person's contribution, of norm at most 1 (the clipping norm), M_1, M_2, .. fresh copies of the mechanism inside.
With the person out v is 0, or another under substitution. X is the likelihood ratio of both.

A kind lives in one file, here or in another package: a frozen dataclass that inherits :class:`Mechanism`,
:class:`Release`, :class:`OfOne` or :class:`Hidden`, and overrides the evaluators that it knows. Defining the class is
all that registers it: ``from_json`` reads it, and every question is answered. What it does not override is refused,
answered by what it is ``charged_as``, or has no lower end: a kind that says too little costs more, never less.

======================  =============================================================================================
``charged_as``          a mechanism that costs at least as much, for evaluators that the kind does not know
``attained``            a mechanism that some federation with this one leaks as much as, for lower ends
``law``                 the numerical law of X
``moments``             Rényi moments of X
``outcomes``            all outcomes, where they are few
``closed_form``         Gaussian releases, hidden choices revealed
``participation``       in how many hidden rounds a person takes part, for sampling
``unamplified``         the same run with all hidden choices known
``simplified``          the same release, simpler
======================  =============================================================================================

The others (``exact_group``, ``substituted``, ``largest_loss``, ..) say what several people, other neighbours, or
bounded losses cost. :func:`answered` combines the evaluators to the smallest bracket.
"""

import math
import operator
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_type_hints

import numpy as np

from fedamp.accounting.arithmetic import UNIT, Array
from fedamp.accounting.bounds import (
    Bounds,
    ByOrder,
    DeltaAt,
    EpsilonAt,
    Limited,
    Method,
    NotEvaluable,
    Question,
    Relation,
    check_count,
    check_delta,
    check_epsilon,
    check_precision,
    checked_orders,
    in_floating_point,
    search_orders,
)
from fedamp.accounting.law import DEFAULT_DETAIL, DEFAULT_POINTS, NOTHING_REVEALED, Detail, Law, Revealed
from fedamp.accounting.outcomes import NO_OUTCOME, Outcomes
from fedamp.accounting.renyi import HIGHEST_ORDER, Moments, ProductMoments, divergences_of, unbounded_moments
from fedamp.accounting.risk import TradeOff, trade_off
from fedamp.accounting.sampling import (
    PRECISION,
    AddProposal,
    Factor,
    FiniteRound,
    GaussianRound,
    HiddenRounds,
    Round,
    SampledProfile,
    SampledRun,
)


class Fact(Enum):
    """What evaluators must know of a kind; a mechanism has the facts of all its parts."""

    HIDES_PARTS = "the release may tell less than what is charged, so that the charge is no lower end"
    WORST_CASE_CHECKED = "the worst case of its Rényi moments is checked, not proved; its law is that without mixing"
    LESS_BY_MOMENTS = "Rényi divergences may be the smallest bound even where the law is narrow"
    SEVERAL_BOUNDS = "none of several bounds is exact, so a quick upper end asks all of them"
    ROWS_MEET = "rows of correlated noise meet those of other people, so groups are not charged"
    LAW_IS_FAR = "its law is far above the cost"
    OF_WHOLE_RUN = "it applies to a whole run only, so no hidden choice may contain it"
    REPRESENTED = "answers are for its representative, a run over other rounds"


@lru_cache(maxsize=256)
def _checks_of(kind: type["Mechanism"]) -> list[tuple[str, Any]]:
    """Fields and their checks; fields that others limit come last."""
    hints = get_type_hints(kind, include_extras=True)
    found = [(each.name, check) for each in fields(kind) for check in getattr(hints[each.name], "__metadata__", ())]
    return sorted(found, key=lambda pair: isinstance(pair[1], Limited))


@dataclass(frozen=True)
class Mechanism:
    """Base of all mechanisms. Not for direct use. The annotation of a field names its check, as ``Scale`` or
    ``Annotated[float, check]``. Fields hold what ``check(name, value)`` returns.
    """

    text: ClassVar[str]  # the description, with the mechanism as {0}
    own_facts: ClassVar[tuple[Fact, ...]] = ()
    is_exact: ClassVar[bool] = (
        False  # its law is that of a real release, as is what it is charged as: it attains itself
    )
    tells_everything: ClassVar[bool] = False  # epsilon is infinite
    is_group: ClassVar[bool] = False  # it is its only part, as several people see it
    is_symmetric: ClassVar[bool] = False  # whether the two laws are mirror images: an involution swaps them
    is_mean: ClassVar[bool] = False  # whether X is a mean of ratios of its parts, or that of one Gaussian release
    hides_bits: ClassVar[bool] = False  # whether a hidden choice decides which bit of randomised response is a person's
    kinds: ClassVar[dict[str, type["Mechanism"]]] = {}

    def __init_subclass__(cls, *, is_kind: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if is_kind:
            Mechanism.kinds[cls.__name__] = cls

    def __post_init__(self) -> None:
        for name, check in _checks_of(type(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            limits = (getattr(self, check.field),) if isinstance(check, Limited) else ()
            object.__setattr__(self, name, check(name, value, *limits))
        for kind in reversed(type(self).__mro__):
            if kind is not Mechanism and "check" in vars(kind):
                vars(kind)["check"](self)

    def check(self) -> None:
        """Check what annotations cannot express, after they are checked; a kind's own, after those of its bases."""

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    # Questions.

    def epsilon(self, delta: float, *, points: int | None = None, precision: float | None = None) -> Bounds:
        """Return the smallest epsilon at which the mechanism is (epsilon, delta)-private, in both directions.

        Args:
            delta: in (0, 1).
            points: of the numerical law, 50 to 20,000; the time rises with their square. Default: 1200, and up to 4800
                where the bracket is wider than one part in 1000.
            precision: relative width, 1e-4 to 0.1, that sampling of several hidden rounds (``Allocation``) aims at; the
                time rises with its inverse square. Default: 5e-3, about a second; no sampling with ``points`` alone.

        Returns:
            A bracket. ``upper`` is certified, and ``method`` names its evaluator. A sampled one has a failure
            probability, charged to delta. ``lower`` is what an attacker achieves in some worst case; 0 where none is
            known.

        Raises:
            ValueError: an argument is out of its range.

        >>> from fedamp.accounting import Gaussian, Poisson, Repeat
        >>> print(Repeat(Poisson(Gaussian(1.0), 0.01), 1000).epsilon(1e-5))
        1.829 (at least 1.828)
        """
        check_delta(delta)
        if precision is not None:
            check_precision(precision)
        start, event = (time.perf_counter(), time.process_time()), normal(self)
        found = answered(event, EpsilonAt(delta, points))
        if points is None or precision is not None:
            found = event.narrowed(found, delta, precision or PRECISION)
        _warn_if_slow("epsilon", start, found)
        return found

    def delta(self, epsilon: float, *, points: int | None = None, precision: float | None = None) -> Bounds:
        """Return the smallest delta at which the mechanism is (epsilon, delta)-private, in both directions, as a
        bracket; see ``epsilon``. Hidden rounds are sampled only if a ``precision`` (relative, of delta) is given.

        Args:
            epsilon: >= 0; may be infinite.
            points, precision: as of ``epsilon``.

        Raises:
            ValueError: an argument is out of its range.

        >>> from fedamp.accounting import Gaussian
        >>> print(Gaussian(1.0).delta(1.0))
        0.127 (at least 0.1269)
        """
        check_epsilon(epsilon)
        start, event = (time.perf_counter(), time.process_time()), normal(self)
        found = answered(event, DeltaAt(epsilon, points))
        if precision is not None and (event.is_sampled or event.is_pair):
            with suppress(NotEvaluable), in_floating_point():
                profile = partial(SampledProfile.delta, epsilon=epsilon, precision=precision)
                found = event.intersection(found, sampled_with_lower(event, profile))
        _warn_if_slow("delta", start, found)
        return found

    def rdp(self, orders: Sequence[float] | Array | float) -> Array:
        """Return upper bounds of the Rényi divergence at ``orders``, the larger of both directions; shape (n,).

        Infinite where no bound is known; between whole orders, order - 1 times the divergence is interpolated linearly.
        With ``ModelMix`` inside, the worst case of its rounds is checked, not proved.

        Args:
            orders: one or several, each in (1, 4096].

        Raises:
            ValueError: an order is out of its range.

        >>> from fedamp.accounting import Gaussian
        >>> Gaussian(2.0).rdp([2, 8]).round(6).tolist()
        [0.25, 1.0]
        """
        array = checked_orders(orders)
        highest = max(HIGHEST_ORDER, 2 ** math.ceil(math.log2(np.max(array))))
        if highest > 4096:
            raise ValueError(f"orders must be <= 4096, got {float(np.max(array))!r}")
        logs = unbounded_moments(highest)
        with suppress(NotEvaluable), in_floating_point():
            logs = log_moments(normal(self), highest)
        return divergences_of(logs, array)

    def trade_off(self, values: int = 100) -> TradeOff:
        """Return error rates of the best test of participation; see ``fedamp.accounting.trade_off``."""
        return trade_off(self, values)

    def plot(self, axes: Any = None) -> Any:
        """Plot error rates on matplotlib's axes, and return them; see ``TradeOff.plot``."""
        return self.trade_off().plot(axes, label=str(self))

    # Structure.

    def after(self, rounds: int) -> "Mechanism":
        """Return what the first ``rounds`` rounds release, if no other ever does; ValueError for a single release.

        >>> from fedamp.accounting import Allocation, Gaussian
        >>> Allocation(Gaussian(1.0), 2, 10).after(4).span
        4
        """
        if check_count("rounds", rounds, 0, self.span) == self.span:
            return self
        return self._prefix(int(rounds))

    def _prefix(self, rounds: int) -> "Mechanism":
        raise ValueError(f"{type(self).__name__} has no prefix of {rounds} rounds")

    @property
    def span(self) -> int:
        """The number of rounds; 1 for a single release."""
        return 1

    @property
    def is_empty(self) -> bool:
        """True if nobody ever takes part: rate 0, no rounds."""
        there = vars(self).get
        return 0 in (there("rate"), there("times"), there("k"), there("released"))

    @cached_property
    def is_private(self) -> bool:
        """False if some part is released without noise."""
        return self.is_empty or all(map(attrgetter("is_private"), self.parts))

    @cached_property
    def releases_nothing(self) -> bool:
        """True if the release does not depend on the person."""
        return self.is_empty or (bool(self.parts) and all(map(attrgetter("releases_nothing"), self.parts)))

    @cached_property
    def parts(self) -> tuple["Mechanism", ...]:
        """The mechanisms this one is made of."""
        found: list[Mechanism] = []
        for each in fields(self):
            value = getattr(self, each.name)
            for item in value if isinstance(value, tuple) else (value,):
                found += [item] * isinstance(item, Mechanism)
        return tuple(found)

    def with_parts(self, rule: Callable[["Mechanism"], "Mechanism"]) -> "Mechanism":
        """The same mechanism, of what a rule makes of its parts; the same object if it changes none."""
        changed: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Mechanism) and (new := rule(value)) is not value:
                changed[each.name] = new
            elif isinstance(value, tuple) and value and isinstance(value[0], Mechanism):
                parts = tuple([rule(part) for part in value])
                if any(part is not old for part, old in zip(parts, value, strict=True)):
                    changed[each.name] = parts
        return replace(self, **changed) if changed else self

    @cached_property
    def relation(self) -> Relation | None:
        """The neighbouring relation it is charged for, the same in all parts; None if any relation holds."""
        return common_relation(self.parts)

    @cached_property
    def facts(self) -> frozenset[Fact]:
        """Its facts, and those of its parts."""
        return frozenset(self.own_facts).union(*map(attrgetter("facts"), self.parts))

    @property
    def is_of_whole_run(self) -> bool:
        """True if some part applies to a whole run only, so that no hidden choice may contain it."""
        return Fact.OF_WHOLE_RUN in self.facts

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
        """Return plain dictionaries, lists and numbers; ``from_json`` reads them back."""
        return {"kind": type(self).__name__} | {each.name: _plain(getattr(self, each.name)) for each in fields(self)}

    # What a kind tells the evaluators: theorems, from a mechanism to simpler ones.

    def simplified(self) -> "Mechanism":
        """The same release without what changes nothing: one of one is the thing itself. ValueError: the noise of the
        simpler one is out of range.
        """
        return self

    def representative(self) -> "Mechanism":
        """The run that answers are for, maybe over other rounds; ``begun`` counts them."""
        return self

    def begun(self, rounds: int) -> int:
        """The most rounds of the ``representative`` among the first ``rounds`` of all."""
        return rounds

    def unamplified(self) -> "Mechanism":
        """Return the same run without amplification: no sampling, no allocation, no submodels, no mixing. It costs at
        least as much: given all hidden choices, by joint convexity of hockey-stick divergences.

        >>> from fedamp.accounting import Gaussian, Poisson
        >>> Poisson(Gaussian(1.0), 0.1).unamplified()
        Gaussian(noise_multiplier=1.0)
        """
        return self

    def charged_as(self) -> "Mechanism":
        """The simpler mechanism that costs at least as much, for evaluators that do not know a kind; else TypeError."""
        raise TypeError(f"no evaluator knows mechanisms of kind {type(self).__name__}")

    def costlier(self) -> list["Mechanism"]:
        """Mechanisms with a law that each cost at least as much; of them the last one is asked first. Itself: its own
        law is the best.
        """
        return [self]

    def attained(self) -> "Mechanism | None":
        """A mechanism that some federation with this one leaks as much as, for lower ends; None if none is known."""
        return self if self.is_exact else None

    def attained_in_draws(self) -> "Mechanism | None":
        """As ``attained``, for sampling, which needs no law of several hidden rounds."""
        return self.attained()

    def signal_to_noise(self) -> float | None:
        """Squared signal-to-noise ratio of a fixed linear statistic that is Gaussian in both worlds; None if there is
        none. For submodels, and hidden rounds, it is the sum over all: the signal is in some, the noise in all.
        """
        return None

    def factors(self, times: int = 1) -> tuple[float, dict["Mechanism", int]]:
        """The factors of a product: one Gaussian (sum of 1 / noise multiplier^2), and how often it has each other."""
        return 0.0, {self: times}

    @property
    def is_mean_of_gaussians(self) -> bool:
        """Whether X is a mean of ratios of Gaussian releases, so that the add direction is never the larger one (ours:
        docs/research/correlated-noise.md).
        """
        return self.is_mean and all(part.is_mean_of_gaussians for part in self.parts)

    def chance_to_take_part(self) -> Fraction:
        """At least the chance that a person's data enters the release at all. With the person in, the release is a
        mixture over hidden choices, of which no less than the rest of the weight is the one without the person: delta
        is no more.
        """
        return Fraction(0) if self.releases_nothing else Fraction(1)

    def certain_loss(self) -> Fraction:
        """A bound on |log X|; a hidden choice adds none. NotEvaluable: none is known."""
        raise NotEvaluable("losses without a bound")

    def largest_loss(self) -> tuple[Fraction, Fraction]:
        """A bound on |log X| that holds but for a chance: both numbers add up under composition (Kairouz, Oh, Viswanath
        2015, Theorem 3.4, a sum in place of one minus a product). What somebody else has proved is the decimal that was
        written: a tenth and nine tenths are one, which the sum of the floats next to them exceeds. NotEvaluable: none
        is known.
        """
        return self.certain_loss(), Fraction(0)

    def substituted(self) -> "Mechanism":
        """The same release for neighbours that differ by substitution; NotEvaluable if that is not known."""
        raise NotEvaluable(f"{type(self).__name__} under substitution is not known")

    def exact_group(self, size: int) -> "Mechanism":
        """The mechanism as ``size`` people see it, by a rule that loses nothing; NotEvaluable if there is none. (For
        parts alone the generic property costs more than for the whole.)
        """
        raise NotEvaluable(f"{type(self).__name__} has no exact rule for groups")

    def group_by_rounds(self, size: int) -> "Mechanism":
        """The exact rule with choices inside rounds (submodels, masks) revealed, not participation; or NotEvaluable."""
        return self.unamplified().exact_group(size)

    def with_own_bits(self, size: int, chosen: bool = False) -> "Mechanism":
        """The same for the worst of all choices: each of ``size`` people has chosen another bit, if a hidden choice
        inside or above (``chosen``) decides which bit is a person's.
        """
        chosen = chosen or self.hides_bits
        return self.with_parts(lambda part: part.with_own_bits(size, chosen))

    # What a kind tells the evaluators: laws.

    def law(self, detail: Detail) -> Law:
        """The numerical law of X, by default of what the kind is charged as. NotEvaluable: there is none."""
        return numerical_law(self.charged_as(), detail)

    def by_law(self, question: Question) -> Bounds:
        """The answer by numerical law of what is released. NotEvaluable: there is none, or none that floating point
        holds.
        """
        first = DEFAULT_POINTS if question.points is None else check_count("points", question.points, 50, 20_000)
        best = question.ask(numerical_law(self, Detail(first, question.with_lower, question.reach)))
        low, high = question.fine
        for more in (2400, 4800) if question.points is None else ():
            if not low <= best.upper <= high or best.upper - best.lower <= 1e-3 * best.upper:
                break
            finer = question.ask(numerical_law(self, Detail(more, question.with_lower, question.reach)))
            helps = finer.upper - finer.lower < 0.7 * (best.upper - best.lower)
            origin = finer.origin if finer.upper < best.upper else best.origin
            best = Bounds(max(best.lower, finer.lower), min(best.upper, finer.upper), origin)
            if not helps:
                break
        return best

    def moments(self) -> Moments:
        """Rényi moments of X, by default of what the kind is charged as, or what follows from its own law."""
        try:
            return moments_of(self.charged_as())
        except TypeError:
            return Moments(partial(numerical_law, self), self.is_symmetric)

    def outcomes(self) -> Outcomes:
        """All outcomes. NotEvaluable: there are too many, or not finitely many."""
        raise NotEvaluable(f"{type(self).__name__} has too many outcomes")

    def closed_form(self) -> Revealed:
        """Gaussian releases with hidden choices revealed. By default from above what the kind is charged as, or costs
        without amplification, and from below what it attains. NotEvaluable: releases are not Gaussian.
        """
        known, below = self.attained(), NOTHING_REVEALED
        try:
            other = self.charged_as()
        except TypeError:
            other = self.unamplified()
        else:
            if known is self:  # and what it is charged as is the same
                return closed_form_of(other)
        if other == self:
            raise NotEvaluable(f"{type(self).__name__} is not Gaussian")
        above = closed_form_of(other)
        if known is not None and known is not self:
            with suppress(NotEvaluable):
                below = closed_form_of(known)
        return above.with_lower_ends(below)

    # What a kind tells the evaluators: hidden rounds, which are sampled.

    def participation(self) -> "Participation":
        """The hidden choice of rounds; by default the mechanism is its only round."""
        return Participation(self, (0.0, 1.0), 1)

    @property
    def is_hidden_factor(self) -> bool:
        """Whether it is one factor of X in which a person takes part in several hidden rounds."""
        return len(self.participation().chances) > 2 and not self.releases_nothing

    def sampled_factors(self, times: int) -> tuple[Factor, Factor]:
        """So many factors of X that are sampled, for upper and for lower ends (the same object if they are exact).
        NotEvaluable: a round has no numerical law.
        """
        found = self.participation()
        return found.factors(*found.mechanism.factors(), times)

    def begun_factors(self, whole: Factor, rounds: Sequence[int]) -> Mapping[int, Factor]:
        """The sampled factor after each of these ``rounds``, of a run whose only factor is ``whole``; none if draws
        cannot be shared.
        """
        assert isinstance(whole, HiddenRounds)
        after = {number: self.after(number).participation() for number in rounds}
        one = self.participation().mechanism
        after = {number: each for number, each in after.items() if each.mechanism == one}
        off = max((each.rounding for each in after.values()), default=0.0)
        return {number: HiddenRounds(whole.round, each.chances, number, 1, off) for number, each in after.items()}

    def like_with_law(self) -> "Mechanism":
        """A run that costs about as much, and has a law; for searches."""
        return self.with_parts(lambda part: part.like_with_law())

    @property
    def is_sampled(self) -> bool:
        """Whether a person takes part in several hidden rounds. Law and moments are only bounds there."""
        return self.is_private and any(map(attrgetter("is_hidden_factor"), self.factors()[1]))

    @property
    def is_pair(self) -> bool:
        """Whether it is of two people in hidden rounds."""
        return False

    def sampled_profile(self, detail: Detail = DEFAULT_DETAIL) -> SampledProfile:
        """The sampler of a mechanism that ``is_sampled``: its hidden rounds one by one, and all the rest as one law.

        Args:
            detail: of the law that bounds the add direction.

        Raises:
            NotEvaluable: a round, or the rest, has no numerical law.
        """
        precision, others = self.factors()
        dependent, hidden, rest = list[tuple[Factor, Factor]](), list[tuple[Factor, Factor]](), dict[Mechanism, int]()
        for other, times in others.items():
            if other.is_hidden_factor:
                both = other.sampled_factors(times)
                (hidden if isinstance(both[0], HiddenRounds) else dependent).append(both)
            else:
                rest[other] = times
        if rest or precision:
            noise = 1 / min(precision**-0.5, 1e50) ** 2 if precision else 0.0
            hidden.append(Participation(self, (0.0, 1.0), 1).factors(noise, rest))
        uppers, lowers = zip(*dependent, *hidden, strict=True)
        laws = list[Callable[[], Law]]()
        for each in reversed(self.costlier()):
            laws.append(partial(numerical_law, each, detail))
        # The rule for means of Gaussian ratios is for all factors together; a law of known rounds would be far above.
        add = None if dependent and self.is_mean_of_gaussians else AddProposal
        run = SampledRun(uppers)
        if all(map(operator.is_, uppers, lowers)):
            return SampledProfile(run, run, tuple(laws), add=add)
        return SampledProfile(
            run, SampledRun(lowers) if self.attained_in_draws() is self else None, tuple(laws), add=add
        )

    def narrowed(self, found: Bounds, delta: float, precision: float) -> Bounds:
        """The answer for epsilon, narrowed by sampling where a person takes part in several hidden rounds."""
        if found.lower >= (1 - precision) * found.upper or found.upper > LARGEST_SAMPLED or not self.is_sampled:
            return found
        with suppress(NotEvaluable):
            found = self.intersection(found, sampled_epsilon(self, delta, precision))
        if found.lower < _CLOSE * found.upper and self.participation().rounds > 4 * _BLOCKS:
            lower = max(found.lower, _lower_by_blocks(self, delta, precision))
            return Bounds(min(lower, found.upper), found.upper, found.origin)
        return found

    def intersection(self, found: Bounds, sampled: Bounds) -> Bounds:
        """The intersection of both brackets."""
        upper, origin = found.upper, found.origin
        if sampled.upper < upper:
            upper = sampled.upper
            origin = sampled.origin._replace(unmixed=Fact.WORST_CASE_CHECKED in self.facts)
        return Bounds(min(max(found.lower, sampled.lower), upper), upper, origin)


Kind = TypeVar("Kind", bound=Mechanism)


def common_relation(parts: Sequence[Mechanism]) -> Relation | None:
    """The neighbouring relation of all parts, or ValueError if they differ."""
    relations = list(dict.fromkeys(filter(None, map(attrgetter("relation"), parts))))
    if len(relations) > 1:
        raise ValueError(f"parts must share one neighbouring relation, got {' and '.join(relations)}")
    return relations[0] if relations else None


def check_mechanisms(name: str, values: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """A non-empty tuple of mechanisms of one neighbouring relation, or ValueError."""
    items = tuple(values) if isinstance(values, (list, tuple)) else (values,)
    if not items or not all(isinstance(item, Mechanism) for item in items):
        raise ValueError(f"{name} must be one or more mechanisms, got {values!r}")
    common_relation(items)
    return items


def check_mechanism(name: str, value: Mechanism) -> Mechanism:
    """A mechanism, or ValueError."""
    if not isinstance(value, Mechanism):
        raise ValueError(f"{name} must be a mechanism such as Gaussian(1.0), got {value!r}")
    return value


def check_relation(name: str, value: str) -> Relation:
    """A neighbouring relation, or ValueError."""
    if value not in tuple(Relation):
        raise ValueError(f"{name} must be one of {', '.join(repr(str(each)) for each in Relation)}, got {value!r}")
    return Relation(value)


@dataclass(frozen=True)
class OfOne(Mechanism, is_kind=False):
    """Base of a mechanism that is made of one other, and has the same rounds."""

    mechanism: Annotated[Mechanism, check_mechanism]

    @property
    def span(self) -> int:
        return self.mechanism.span

    def _prefix(self, rounds: int) -> Mechanism:
        return replace(self, mechanism=self.mechanism.after(rounds))


@dataclass(frozen=True)
class Release(Mechanism, is_kind=False):
    """Base of what one participation releases, and for which neighbours. A contribution is at most 1 in size (the
    clipping norm). Its replacement is 0, or up to 2 away under substitution.
    """

    relation: Annotated[Relation, check_relation] = field(default=Relation.ZERO_OUT, kw_only=True)
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


@dataclass(frozen=True)
class Hidden(OfOne, is_kind=False):
    """Base of a mechanism that a hidden choice decides about."""

    def check(self) -> None:
        kind, mechanism = type(self).__name__, self.mechanism
        if mechanism.relation is Relation.SUBSTITUTION:
            expected = f"{kind} hides whether a person takes part: expected zero-out or add/remove"
            raise ValueError(f"{expected}, got a mechanism for substitution ({mechanism.words})")
        if Fact.OF_WHOLE_RUN in mechanism.facts:
            expected = f"{kind} takes one person's release; a group or a batch applies to the whole run"
            raise ValueError(f"{expected}, got {mechanism.words}")

    def unamplified(self) -> Mechanism:
        return self.mechanism.unamplified()

    def certain_loss(self) -> Fraction:
        if (plain := self.unamplified()) != self:
            return plain.certain_loss()
        return super().certain_loss()


@dataclass(frozen=True)
class Participation:
    """A person takes part in H of ``rounds`` released rounds: H is drawn, then a uniform set of that size.

    Attributes:
        mechanism: one round.
        chances: of H = 0, 1, ..; the last one is positive.
        rounds: the number of released rounds.
        rounding: bound on the relative error of ``chances``.
    """

    mechanism: Mechanism
    chances: tuple[float, ...]
    rounds: int
    rounding: float = 0.0

    def factors(
        self, precision: float, others: Mapping[Mechanism, int], times: int = 1
    ) -> tuple[HiddenRounds, HiddenRounds]:
        """So many factors of X, of rounds that are the product of a Gaussian and ``others``, for upper and for lower
        ends; the same object if they are exact. NotEvaluable: a round has no numerical law.
        """
        upper: Round
        lower: Round
        if precision and not others:
            upper = lower = GaussianRound(precision**-0.5)
        else:
            law = law_of_product(precision, tuple(others.items()), DEFAULT_DETAIL)
            upper = FiniteRound(law.upper, law.rounding)
            lower = upper if law.lower is law.upper else FiniteRound(law.lower, law.rounding)
        above = HiddenRounds(upper, self.chances, self.rounds, times, self.rounding)
        return above, above if lower is upper else replace(above, round=lower)


def _plain(value: Any) -> Any:
    if isinstance(value, Mechanism):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Relation) else value


def from_json(value: Mapping[str, Any]) -> Mechanism:
    """Read the mechanism that ``to_json`` wrote. A missing relation means zero-out, as in early files.

    Raises:
        ValueError: the kind is not known here, a key is missing or unknown, or a value is refused.

    >>> from_json({"kind": "Gaussian", "noise_multiplier": 2.0})
    Gaussian(noise_multiplier=2.0)
    """
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


# Evaluators of any mechanism: each answer is computed once.


@lru_cache(maxsize=512)
def normal(event: Mechanism, same_rounds: bool = False) -> Mechanism:
    """The same release without what changes nothing, inside and out. All evaluators see only this form, and the
    ``representative`` of a run unless it has to be of the ``same_rounds``.
    """
    event = event.with_parts(partial(normal, same_rounds=same_rounds))
    if not same_rounds and Fact.REPRESENTED in event.own_facts:
        return normal(event.representative(), same_rounds)
    try:
        simpler = event.simplified()
    except ValueError:  # no rule, or the noise of the simpler one is out of range
        return event
    return event if simpler is event else normal(simpler, same_rounds)


@lru_cache(maxsize=64)
def numerical_law(event: Mechanism, detail: Detail = DEFAULT_DETAIL) -> Law:
    """The certified law of a mechanism. Raises ``NotEvaluable``: it has none, or none that floating point holds."""
    if event.releases_nothing:
        return Law.product([])
    law = event.law(detail)
    return law if detail.with_lower else law.upper_only()


@lru_cache(maxsize=1024)
def moments_of(event: Mechanism) -> Moments:
    """The moments of a mechanism of any kind."""
    return ProductMoments(partial(numerical_law, event), []) if event.releases_nothing else event.moments()


class MomentsOf(Moments, Generic[Kind]):
    """Base of the moments of one kind, which know its fields."""

    def __init__(self, event: Kind) -> None:
        super().__init__(partial(numerical_law, event), event.is_symmetric)
        self.event = event


@lru_cache(maxsize=256)
def outcomes_of(event: Mechanism) -> Outcomes:
    """The outcomes of a mechanism in normal form; NotEvaluable: there are too many, or not finitely many."""
    return NO_OUTCOME if event.releases_nothing else event.outcomes()


@lru_cache(maxsize=256)
def closed_form_of(event: Mechanism) -> Revealed:
    """The hidden choices of a mechanism; NotEvaluable if its releases are not Gaussian."""
    return NOTHING_REVEALED if event.releases_nothing else event.closed_form()


def log_moments(event: Mechanism, highest: int) -> Array:
    """The larger of log E[X^a] and log E[X^(1-a)] at a = 0..highest."""
    return moments_of(event).larger(highest) if event.is_private else unbounded_moments(highest)


@lru_cache(maxsize=64)
def law_of_product(precision: float, others: tuple[tuple[Mechanism, int], ...], detail: Detail) -> Law:
    """Of independent factors, Gaussians put together (Zhu, Dong, Wang 2022, Theorem 10)."""
    laws: list[tuple[Law, int]] = []
    if precision:
        together = Law.gaussian(precision**-0.5, points=detail.points, reach=detail.reach)
        laws.append((together if detail.with_lower else together.upper_only(), 1))
    for other, times in others:
        if not other.releases_nothing:
            laws.append((numerical_law(other, detail), times))
    return Law.product(laws)


def losses(event: Mechanism) -> tuple[float, float]:
    """``largest_loss`` as floats that, written as decimals, are no smaller; infinity and 0 where none is known."""
    with suppress(NotEvaluable):
        most, chance = map(_float_above, event.largest_loss())
        return most, min(chance, 1.0)
    return math.inf, 0.0


def _float_above(exact: Fraction) -> float:
    nearest = float(exact)
    return nearest if Fraction(str(nearest)) >= exact else math.nextafter(nearest, math.inf)


def in_closed_form(event: Mechanism, hidden: bool = True) -> Revealed | None:
    """The choices of a mechanism, or of it without amplification (``hidden`` False), if releases are Gaussian and in
    range.
    """
    try:
        with in_floating_point():
            return closed_form_of(event if hidden else event.unamplified())
    except ValueError:
        return None


# Answers: the smallest upper end of all evaluators, and the largest attained lower end.

# Beside every number that rests on Theorem 4.1 of Xiao, Wan, Devadas 2022.
CHECKED = "; the worst case of ModelMix is checked, not proved"

LARGEST_SAMPLED = 450.0  # epsilon beyond which likelihood ratios leave the range of floating point
_BLOCKS, _CLOSE = 300, 0.97  # of very many rounds, for their lower end, where the bracket is not that narrow

_PATIENCE = 5.0  # seconds, of the clock and of the processor, after which an answer warns and names its bound


@lru_cache(maxsize=512)
def answered(event: Mechanism, question: Question) -> Bounds:
    """The answer by the law, with hidden choices revealed and, where it may be smaller, by Rényi divergences."""
    if event.releases_nothing:
        return Bounds(0.0, 0.0, Method.NOTHING.of())
    if event.tells_everything:
        return Bounds(question.unknown, question.unknown, Method.NO_NOISE.of())
    chance = event.chance_to_take_part()
    if isinstance(question, EpsilonAt) and chance <= question.delta:
        return Bounds(0.0, 0.0, Method.RARELY.of())
    by_losses = question.of_losses(*losses(event))
    if question.points is None:
        with suppress(NotEvaluable):
            exact = question.ask(outcomes_of(event))
            lower = _lower(event, question, exact) if Fact.HIDES_PARTS in event.facts else exact.lower
            upper, origin = exact.upper, exact.origin
            if by_losses < upper:
                upper, origin = by_losses, Method.LOSSES.of()
            return Bounds(min(lower, upper), upper, origin)
    reason = ""
    try:
        with in_floating_point():
            by_law = event.by_law(question)
    except NotEvaluable as error:
        by_law, reason = Bounds(0.0, question.unknown, Method.NONE.of(str(error))), f" ({error})"
    narrow = by_law.lower >= 0.99 * by_law.upper < question.unknown
    shown = _with_choices_revealed(event, question, narrow)
    upper, origin = by_law.upper, by_law.origin
    if shown.upper < upper:
        upper, origin = shown.upper, shown.origin
    if by_losses < upper:
        upper, origin = by_losses, Method.LOSSES.of()
    if isinstance(question, DeltaAt) and chance < upper:
        upper, origin = math.nextafter(float(chance), 1.0), Method.RARELY.of()
    if mixes := Fact.WORST_CASE_CHECKED in event.facts:
        origin = origin._replace(unmixed=True)
    wide = shown.lower < 0.99 * upper and (by_law.upper == question.unknown or 0 < by_law.lower < 0.99 * upper)
    # Elsewhere they are not smaller.
    if (mixes or wide or Fact.LESS_BY_MOMENTS in event.facts) and event.is_private:
        by_order = _by_renyi(event, question, more=not mixes)
        if by_order.value < upper:
            upper, origin = by_order.value, Method.RENYI.of(by_order.order, reason, CHECKED if mixes else "")
    lower = max(_lower(event, question, by_law), shown.lower)
    if lower > (1 + 1e-6) * upper + 1e-9:  # one end is wrong, and it is not known which one
        return Bounds(lower, question.unknown, Method.CONTRADICTED.of(origin))
    return Bounds(min(lower, upper), upper, origin)


def _lower(event: Mechanism, question: Question, by_law: Bounds) -> float:
    """The lower end by law, of an attained mechanism. A group costs at least what one of it costs."""
    found = 0.0
    for part in (event, *event.parts) if event.is_group else (event,):
        with suppress(NotEvaluable), in_floating_point():
            if (known := part.attained()) is not None:
                found = max(found, by_law.lower if known is event else known.by_law(question).lower)
    return found


def _with_choices_revealed(event: Mechanism, question: Question, narrow: bool) -> Bounds:
    """Both ends in closed form, or the upper end without amplification. A ``narrow`` bracket needs only the closed
    form, and none where nothing is hidden.
    """
    shown, unknown = in_closed_form(event), Bounds(0.0, question.unknown)
    if shown is not None:
        if narrow and shown.is_plain:
            return unknown
        with in_floating_point():
            return question.ask(shown)
    try:
        if narrow or (plain := event.unamplified()) == event:
            return unknown
        found = question.ask(plain, points=question.points)
    except ValueError:  # without amplification the noise may be too little
        return unknown
    return Bounds(0.0, found.upper, found.origin.within(Method.UNAMPLIFIED))


def _by_renyi(event: Mechanism, question: Question, more: bool) -> ByOrder:
    """The best over the usual orders, and over ``more`` where the largest is the best: tiny epsilons at tiny deltas."""
    for highest in (HIGHEST_ORDER, 4 * HIGHEST_ORDER) if more else (HIGHEST_ORDER,):
        orders = search_orders(highest)
        best = question.convert(orders, event.rdp(orders))
        if best.order < highest:
            break
    return best


@lru_cache(maxsize=256)
def sampled_epsilon(event: Mechanism, delta: float, precision: float) -> Bounds:
    """The answer for epsilon by sampling. NotEvaluable: it is not worth the work."""
    with in_floating_point():
        return sampled_with_lower(event, partial(SampledProfile.epsilon, delta=delta, precision=precision))


def sampled_with_lower(event: Mechanism, ask: Callable[[SampledProfile], Bounds]) -> Bounds:
    """The answer by sampling, with the lower end of what is attained."""
    found, lower = ask(event.sampled_profile()), 0.0
    if (below := event.attained_in_draws()) is event:
        return found
    with suppress(NotEvaluable):
        lower = ask(below.sampled_profile()).lower if below is not None and below.is_sampled else 0.0
    return Bounds(min(lower, found.upper), found.upper, found.origin)


@lru_cache(maxsize=256)
def _lower_by_blocks(event: Mechanism, delta: float, precision: float) -> float:
    """docs/research/k-of-t.md, Proposition 8: of the rounds that a person has in a block of them, one."""
    if (below := event.attained_in_draws()) is None or (one := below.participation().mechanism.attained()) is None:
        return 0.0
    found = below.participation()
    size = -(-found.rounds // _BLOCKS)
    with suppress(NotEvaluable), in_floating_point():
        law = numerical_law(one).mean(size)
        chances = blocks_met(found.chances, _BLOCKS, size)
        off = found.rounding + 16 * len(chances) * UNIT
        run = SampledRun((HiddenRounds(FiniteRound(law.lower, law.rounding), chances, _BLOCKS, 1, off),))
        return SampledProfile(run, run, add=None).epsilon(delta, precision=precision).lower
    return 0.0


def blocks_met(chances: tuple[float, ...], blocks: int, size: int) -> tuple[float, ...]:
    """The chances of how many blocks of ``size`` rounds a uniform set meets, whose size is drawn by ``chances``."""
    met, found, h = np.eye(1, len(chances))[0], np.zeros(len(chances)), np.arange(len(chances))
    for taken, chance in enumerate(chances):
        found += chance * met
        left = blocks * size - taken  # the next round: in a block that was met, or in another one
        again, new = np.maximum(h * size - taken, 0) / left, np.maximum(blocks - h, 0) * size / left
        met = met * again + np.concatenate([[0.0], (met * new)[:-1]])
    return tuple(np.trim_zeros(found, "b").tolist())


def upper_epsilon(event: Mechanism, delta: float, points: int = DEFAULT_POINTS) -> float:
    """For searches: at least ``event.epsilon(delta).upper``, and hardly more, in half the time if a law is enough."""
    several = {Fact.SEVERAL_BOUNDS, Fact.WORST_CASE_CHECKED, Fact.LESS_BY_MOMENTS} & event.facts
    upper = math.inf if several else law_upper(event, delta, points)
    return upper if upper < math.inf else event.epsilon(delta, points=points).upper


def law_upper(event: Mechanism, delta: float, points: int) -> float:
    """Upper end of epsilon by the numerical law, in half the time of both ends, or with hidden choices revealed;
    infinite where neither has an answer.
    """
    upper = math.inf
    with suppress(NotEvaluable), in_floating_point():
        upper = event.by_law(EpsilonAt(delta, points, with_lower=False)).upper
    shown = in_closed_form(event)
    if shown is None or (upper < math.inf and (shown.is_plain or shown.delta(upper).upper > delta)):
        return upper
    return min(upper, shown.epsilon(delta).upper)


def _warn_if_slow(name: str, start: tuple[float, float], found: Bounds) -> None:
    """Warn if a question took long."""
    seconds = min(time.perf_counter() - start[0], time.process_time() - start[1])
    if seconds > _PATIENCE:
        advice = "precision 0.05, a scenario's privacy.precision, answers sooner, with a wider bracket"
        warnings.warn(f"{name} took {seconds:.0f} s, answered by: {found.method} ({advice})", stacklevel=3)
