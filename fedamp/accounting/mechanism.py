"""The base of all mechanisms: their questions, their structure, and what a kind tells the evaluators.

A mechanism is a frozen expression: what happened. It states its release as a formula: f is what all others contribute,
v the person's contribution, of norm at most 1 (the clipping norm), M_1, M_2, .. fresh copies of the mechanism inside.
With the person out v is 0, or another under substitution. P is the law of the release with the person in, Q that with
the person out, and X = dP/dQ their likelihood ratio.

A kind lives in one file, here or in another package: a frozen dataclass that inherits :class:`Mechanism`,
:class:`Release`, :class:`OfOne` or :class:`Hidden`, and overrides the evaluators that it knows. Defining the class is
all that registers it: ``from_json`` reads it, and every question is answered. An extension names its kinds in the seam
``accounting``, so that ``from_json`` imports them when a ledger has one. A method that it does not override
refuses, or asks the mechanism that it is ``charged_as``. A kind that says too little costs more, never less.

======================  =============================================================================================
``charged_as``          a mechanism that costs at least as much, for evaluators that the kind does not know
``attained_mechanism``  a mechanism that some federation with this one leaks as much as, for lower ends
``law``                 the numerical law of X
``moments``             Rényi moments of X
``all_outcomes``        all outcomes, where they are few
``closed_form``         the Gaussian release given each hidden choice, as if the choice were revealed
``participation``       in how many hidden rounds a person takes part, for sampling
``unamplified``         the same run with all hidden choices known
``simplified``          the same release, simpler
======================  =============================================================================================

The others (``exact_group``, ``under_substitution``, ``largest_loss``, ..) say what several people, other neighbours, or
bounded losses cost. :func:`smallest_bracket` combines the evaluators to the smallest bracket.

A question takes this way: :meth:`Mechanism.epsilon` asks :func:`smallest_bracket` about the normal form
(:func:`normal_form`: without what changes nothing; it has no relation to Gaussian noise). The numerical law answers,
and other bounds where they may be smaller. :meth:`Mechanism.narrowed_bracket` then samples several hidden rounds, as in
``Allocation(Gaussian(1.0), 10, 100)``, and keeps the intersection of both brackets. Where it is far below a coarse law
no finer one is asked. In evaluators the mechanism that is asked is called ``event``.

The module knows all evaluators (``law``, ``renyi``, ``outcomes``, ``sampling``) and no kind. A reader goes on with
``releases``, where each kind is a few lines, or with :class:`fedamp.testing.MechanismContract`, which tests a new kind.
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

from fedamp.accounting.arithmetic import Array
from fedamp.accounting.blocks import lower_epsilon
from fedamp.accounting.bounds import (
    Bounds,
    ByOrder,
    DeltaAt,
    EpsilonAt,
    Limited,
    Method,
    NotEvaluable,
    Origin,
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
from fedamp.accounting.law import DEFAULT_DETAIL, DEFAULT_POINTS, NOTHING_RELEASED, ClosedForm, Detail, Law
from fedamp.accounting.outcomes import NO_OUTCOME, Outcomes
from fedamp.accounting.renyi import HIGHEST_ORDER, Moments, ProductMoments, divergences_of, unbounded_moments
from fedamp.accounting.risk import TradeOff, trade_off
from fedamp.accounting.sampling import (
    PRECISION,
    Factor,
    FiniteRound,
    GaussianRound,
    HiddenRounds,
    Round,
    SampledProfile,
    SampledRun,
)
from fedamp.extension import all_offered, offered


class Fact(Enum):
    """Facts that evaluators must know of a kind; a mechanism has the facts of all its parts."""

    HIDES_ROUNDS = "a person takes part in hidden rounds, which sampling tells better than a law where they are several"
    MASKS_UNITS = "a mask of single units is hidden, and two networks are near the worst case"
    HIDES_PARTS = "the release may tell less than what is charged, so that the charge is no lower end"
    WORST_CASE_CHECKED = "the worst case of its Rényi moments is checked, not proved; its law is that without mixing"
    LESS_BY_MOMENTS = "Rényi divergences may be the smallest bound even where the law is narrow"
    SEVERAL_BOUNDS = "none of several bounds is exact, so a quick upper end asks all of them"
    LESS_REPEATED = "copies may cost less than the product of their laws, so a search by laws ends with whole answers"
    ROWS_MEET = "rows of correlated noise meet those of other people, so groups are not charged"
    LAW_IS_FAR = "its law is far above the cost"
    OF_WHOLE_RUN = "it applies to a whole run only, so no hidden choice may contain it"
    REPRESENTED = "answers are for its representative, a run over other rounds"


@lru_cache(maxsize=256)
def _checks_of(kind: type["Mechanism"]) -> list[tuple[str, Any]]:
    """Return pairs of a field and its check; fields that others limit come last."""
    hints = get_type_hints(kind, include_extras=True)
    found = [(each.name, check) for each in fields(kind) for check in getattr(hints[each.name], "__metadata__", ())]
    return sorted(found, key=lambda pair: isinstance(pair[1], Limited))


@dataclass(frozen=True)
class Mechanism:
    """Base of all mechanisms: frozen expressions that answer what they cost.

    A kind inherits it (or :class:`Release`, :class:`OfOne`, :class:`Hidden`) as a frozen dataclass. The annotation of a
    field names its check, as ``ScaleField`` or ``Annotated[float, check]``; fields hold what ``check(name, value)``
    returns. Equal fields make equal mechanisms with one hash, so each answer is computed once.

    A kind is right if no real mechanism that it describes costs more than the upper end of an answer. The worst one
    must cost at least the lower end. So ``charged_as``, ``law``, ``moments``, ``all_outcomes``, ``unamplified`` and
    ``exact_group`` must be bounds from above, or raise ``NotEvaluable``; ``attained_mechanism`` must be a release that
    really occurs. Methods that a kind does not override are safe: they refuse, or cost more.

    Class attributes that a kind may set:
        text: the description, with the mechanism as {0}; or it overrides :attr:`in_words`.
        own_facts: what evaluators must know of the kind.
        is_exact: True if its law is that of a real release, as is that of what it is charged as: it attains itself.
        is_symmetric: True if an involution of the outputs swaps P and Q, so that both directions cost the same.
        is_mean: True if X is a mean of ratios of its parts, or that of one Gaussian release.
        is_group: True if it is its only part, as several people see it.
        hides_bits: True if a hidden choice decides which bit of randomised response is a person's.
        tells_everything: True if epsilon is infinite.

    Example:
        >>> from fedamp.accounting import Law, ProbabilityField, Release
        >>> @dataclass(frozen=True, repr=False)
        ... class Survey(Release, is_kind=False):  # is_kind: an example stays out of the registry
        ...     probability: ProbabilityField
        ...     text = "an answer that is true with probability {0.probability:g}"
        ...     is_exact = is_symmetric = True
        ...
        ...     def law(self, detail):
        ...         true, false = self.probability, 1 - self.probability
        ...         return Law.from_points([true / false, false / true], [false, true], points=detail.points)
        >>> print(Survey(0.75), Survey(0.75).epsilon(1e-5), sep="; epsilon ")
        an answer that is true with probability 0.75, zero-out; epsilon 1.099 (at least 1.098)
    """

    text: ClassVar[str]
    own_facts: ClassVar[tuple[Fact, ...]] = ()
    is_exact: ClassVar[bool] = False
    is_symmetric: ClassVar[bool] = False
    is_mean: ClassVar[bool] = False
    is_group: ClassVar[bool] = False
    hides_bits: ClassVar[bool] = False
    tells_everything: ClassVar[bool] = False
    kinds: ClassVar[dict[str, type["Mechanism"]]] = {}

    def __init_subclass__(cls, *, is_kind: bool = True, **kwargs: Any) -> None:
        """Register a kind by its class name, which JSON holds; bases of kinds say ``is_kind=False``.

        Raises:
            ValueError: another module has a kind of this name, which ledgers may hold.
        """
        super().__init_subclass__(**kwargs)
        if is_kind:
            known = Mechanism.kinds.setdefault(cls.__name__, cls)
            if known.__module__ != cls.__module__:
                raise ValueError(f"kind {cls.__name__} is that of {known.__module__}; expected: another name for {cls}")
            Mechanism.kinds[cls.__name__] = cls

    def __post_init__(self) -> None:
        """Check all fields, and replace each by what its check returns; then the checks of the class and its bases."""
        for name, check in _checks_of(type(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            limits = (getattr(self, check.field),) if isinstance(check, Limited) else ()
            object.__setattr__(self, name, check(name, value, *limits))
        for kind in reversed(type(self).__mro__):
            if kind is not Mechanism and "check" in vars(kind):
                vars(kind)["check"](self)

    def check(self) -> None:
        """Check what annotations cannot express, after they are checked; a kind's own, after those of its bases.

        Raises:
            ValueError: one line that names the field, its value, and the accepted ones.
        """

    def _set_fields(self, **values: Any) -> None:
        """Replace fields while the mechanism is made, although it is frozen."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    # Questions.

    def epsilon(self, delta: float, *, points: int | None = None, precision: float | None = None) -> Bounds:
        """Return the smallest epsilon at which the mechanism is (epsilon, delta)-private, in both directions.

        It is the least epsilon >= 0 with H(P, Q) <= delta and H(Q, P) <= delta for the worst pair of neighbours, H the
        hockey-stick divergence

            H(P, Q) = sup over events A of P(A) - e^epsilon Q(A) = E_Q[(X - e^epsilon)+].

        Args:
            delta: in (0, 1).
            points: of the numerical law, 50 to 20,000; the time rises with their square. Default: 1200, and up to 4800
                where the bracket is wider than one part in 1000; 300 where sampling is far below the law.
            precision: relative width, 1e-4 to 0.1, that sampling of several hidden rounds (``Allocation``) aims at; the
                time rises with its inverse square. Default: 5e-3, about a second; no sampling with ``points`` alone.

        Returns:
            A bracket. ``upper`` is certified, and ``method`` names its evaluator. A sampled one has a failure
            probability, charged to delta. ``lower`` is what an attacker achieves in some worst case; 0 where none is
            known.

        Raises:
            ValueError: an argument is out of its range.

        Example:
            >>> from fedamp.accounting import Gaussian, Poisson, Repeat
            >>> print(Repeat(Poisson(Gaussian(1.0), 0.01), 1000).epsilon(1e-5))
            1.829 (at least 1.828)
        """
        check_delta(delta)
        if precision is not None:
            check_precision(precision)
        start, event = (time.perf_counter(), time.process_time()), normal_form(self)
        found = None
        if points is None and Fact.HIDES_ROUNDS in event.facts:
            found = _epsilon_far_below_law(event, delta, precision or PRECISION)
        if found is None:
            found = smallest_bracket(event, EpsilonAt(delta, points))
            if points is None or precision is not None:
                found = event.narrowed_bracket(found, delta, precision or PRECISION)
        _warn_if_slow("epsilon", start, found)
        return found

    def delta(self, epsilon: float, *, points: int | None = None, precision: float | None = None) -> Bounds:
        """Return the smallest delta at which the mechanism is (epsilon, delta)-private, in both directions.

        It is the larger of both hockey-stick divergences; see :meth:`epsilon`. Hidden rounds are sampled only if a
        ``precision`` (relative, of delta) is given.

        Args:
            epsilon: >= 0; may be infinite.
            points, precision: those of :meth:`epsilon`.

        Returns:
            A bracket in [0, 1].

        Raises:
            ValueError: an argument is out of its range.

        Example:
            >>> from fedamp.accounting import Gaussian
            >>> print(Gaussian(1.0).delta(1.0))
            0.127 (at least 0.1269)
        """
        check_epsilon(epsilon)
        start, event = (time.perf_counter(), time.process_time()), normal_form(self)
        found = smallest_bracket(event, DeltaAt(epsilon, points))
        if precision is not None and (event.is_sampled or event.is_pair):
            with suppress(NotEvaluable):
                found = event.bracket_intersection(found, sampled_bracket(event, DeltaAt(epsilon), precision))
        _warn_if_slow("delta", start, found)
        return found

    def rdp(self, orders: Sequence[float] | Array | float) -> Array:
        """Return upper bounds of the Rényi divergence at ``orders``, the larger of both directions.

        At order a it is log E_Q[X^a] / (a - 1), or log E_Q[X^(1 - a)] / (a - 1) (Mironov 2017, Definition 3). It is
        infinite where no bound is known. Between whole orders, order - 1 times the divergence is interpolated linearly,
        which is above a convex function. With ``ModelMix`` inside, the worst case of its rounds is checked, not proved.

        Args:
            orders: one or several, each in (1, 4096].

        Returns:
            Shape (n,), one for each order.

        Raises:
            ValueError: an order is out of its range.

        Example:
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
            logs = log_moments(normal_form(self), highest)
        return divergences_of(logs, array)

    def trade_off(self, values: int = 100) -> TradeOff:
        """Return error rates of the best test of participation; see :func:`fedamp.accounting.trade_off`."""
        return trade_off(self, values)

    def plot(self, axes: Any = None) -> Any:
        """Plot error rates on matplotlib's axes (default: new ones), and return the axes; see ``TradeOff.plot``."""
        return self.trade_off().plot(axes, label=str(self))

    # Structure.

    def after(self, rounds: int) -> "Mechanism":
        """Return what the first ``rounds`` rounds release, if no other ever does.

        Args:
            rounds: 0 to :attr:`span`.

        Raises:
            ValueError: the number is out of its range, or a single release has no such beginning.

        Example:
            >>> from fedamp.accounting import Allocation, Gaussian
            >>> Allocation(Gaussian(1.0), 2, 10).after(4).span
            4
        """
        if check_count("rounds", rounds, 0, self.span) == self.span:
            return self
        return self._run_prefix(int(rounds))

    def _run_prefix(self, rounds: int) -> "Mechanism":
        """Return the mechanism of a beginning; ``rounds`` is checked, and below :attr:`span`.

        A kind that spans rounds must override it. It may return what costs more than the beginning, never less.
        """
        raise ValueError(f"{type(self).__name__} has no prefix of {rounds} rounds")

    @property
    def span(self) -> int:
        """The number of rounds; 1 for a single release."""
        return 1

    @cached_property
    def is_private(self) -> bool:
        """Whether no part is released without noise. A kind without noise must override it."""
        return self.releases_nothing or all(map(attrgetter("is_private"), self.parts))

    @cached_property
    def releases_nothing(self) -> bool:
        """Whether the release does not depend on the person. It must be False wherever that is not certain."""
        there = vars(self).get
        if 0 in (there("rate"), there("times"), there("k"), there("released")):  # no person ever takes part
            return True
        return bool(self.parts) and all(map(attrgetter("releases_nothing"), self.parts))

    @cached_property
    def parts(self) -> tuple["Mechanism", ...]:
        """The mechanisms that this one is made of: all fields that are mechanisms, or tuples of them, in order."""
        found: list[Mechanism] = []
        for each in fields(self):
            value = getattr(self, each.name)
            for item in value if isinstance(value, tuple) else (value,):
                found += [item] * isinstance(item, Mechanism)
        return tuple(found)

    def with_parts(self, rule: Callable[["Mechanism"], "Mechanism"]) -> "Mechanism":
        """Return the same mechanism with changed parts; the same object if the rule changes none.

        Args:
            rule: from a part to what takes its place.

        Raises:
            ValueError: the new parts do not fit together, for example because their relations differ.

        Example:
            >>> from fedamp.accounting import Compose, Gaussian, Repeat
            >>> both = Compose([Gaussian(1.0), Gaussian(2.0)])
            >>> both.with_parts(lambda part: Repeat(part, 3)).span
            6
        """
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
        """The neighbouring relation that is charged, the same in all parts; None if any relation holds."""
        return common_relation(self.parts)

    @cached_property
    def facts(self) -> frozenset[Fact]:
        """Its facts, and those of its parts."""
        return frozenset(self.own_facts).union(*map(attrgetter("facts"), self.parts))

    @property
    def is_of_whole_run(self) -> bool:
        """Whether some part applies to a whole run only, so that no hidden choice may contain it."""
        return Fact.OF_WHOLE_RUN in self.facts

    def contains(self, kind: type["Mechanism"] | tuple[type["Mechanism"], ...]) -> bool:
        """Return whether it is, or is made of, a mechanism of this kind.

        Example:
            >>> from fedamp.accounting import Gaussian, Laplace, Repeat
            >>> Repeat(Gaussian(1.0), 3).contains(Gaussian), Repeat(Gaussian(1.0), 3).contains(Laplace)
            (True, False)
        """
        return isinstance(self, kind) or any(part.contains(kind) for part in self.parts)

    # Text and JSON.

    @property
    def in_words(self) -> str:
        """A description on one line; ``str`` adds the neighbouring relation."""
        return self.text.format(self)

    def __str__(self) -> str:
        """Describe the mechanism on one line, with its neighbouring relation."""
        return self.in_words if self.relation is None else f"{self.in_words}, {self.relation}"

    def to_json(self) -> dict[str, Any]:
        """Return plain dictionaries, lists and numbers; :func:`from_json` reads them back.

        Example:
            >>> from fedamp.accounting import Gaussian, Repeat
            >>> Repeat(Gaussian(2.0), 3).to_json()["mechanism"]
            {'kind': 'Gaussian', 'relation': 'zero-out', 'noise_multiplier': 2.0}
        """
        return {"kind": type(self).__name__} | {
            each.name: _plain_value(getattr(self, each.name)) for each in fields(self)
        }

    # What a kind tells the evaluators: theorems, from a mechanism to simpler ones.

    def simplified(self) -> "Mechanism":
        """Return the same release without what changes nothing: one of one is the thing itself.

        The simpler mechanism must have exactly the same law. Evaluators see only the simplest form.

        Raises:
            ValueError: the noise of the simpler one is out of range; the mechanism then stays as it is.
        """
        return self

    def representative(self) -> "Mechanism":
        """Return the run that answers are for, maybe over other rounds; :meth:`rounds_begun` counts them.

        A kind that overrides it has the fact ``REPRESENTED``. The representative must cost at least as much.
        """
        return self

    def rounds_begun(self, rounds: int) -> int:
        """Return the most rounds of the ``representative`` among the first ``rounds`` of all."""
        return rounds

    def unamplified(self) -> "Mechanism":
        """Return the same run without amplification: no sampling, no allocation, no submodels, no mixing.

        It must cost at least as much, given all hidden choices. Hockey-stick divergences are jointly convex: a mixture
        over choices that do not depend on the data costs at most the worst of them.

        Example:
            >>> from fedamp.accounting import Gaussian, Poisson
            >>> Poisson(Gaussian(1.0), 0.1).unamplified()
            Gaussian(noise_multiplier=1.0)
        """
        return self

    def charged_as(self) -> "Mechanism":
        """Return a simpler mechanism that costs at least as much, for evaluators that do not know the kind.

        It must cost at least as much at every epsilon, in both directions, and after composition with anything: X must
        be at most its likelihood ratio in convex order. A theorem has to say so; the docstring of the override names
        it.

        Raises:
            TypeError: there is none; evaluators then ask the kind's own ``law``.
            NotEvaluable: there is none for these values.

        Example:
            >>> from fedamp.accounting import Allocation, Gaussian
            >>> Allocation(Gaussian(1.0), 2, 10).charged_as().in_words
            '[2 times (one hidden submodel of 5 (Gaussian noise of multiplier 1))]'
        """
        raise TypeError(f"no evaluator knows mechanisms of kind {type(self).__name__}")

    def costlier_mechanisms(self) -> list["Mechanism"]:
        """List mechanisms with a law that each cost at least as much; of them the last one is asked first.

        By default the mechanism itself, whose own law is the best. The sampler bounds the add direction by these laws.
        """
        return [self]

    def attained_mechanism(self) -> "Mechanism | None":
        """Return a mechanism as revealing as this one in some federation, for lower ends; None: none is known.

        Some data set and contribution must give a release that is at least as revealing. A lower end is then a true
        statement about what an attacker can achieve. The bound need not be the worst case.

        Example:
            >>> from fedamp.accounting import Dropout, Laplace
            >>> Dropout(Laplace(0.5), 0.5).attained_mechanism()  # a network of one unit
            Poisson(mechanism=Laplace(scale=0.5), rate=0.5)
        """
        return self if self.is_exact else None

    def attained_in_draws(self) -> "Mechanism | None":
        """Return what :meth:`attained_mechanism` does, for sampling, which needs no law of several hidden rounds."""
        return self.attained_mechanism()

    def evenly_spread(self) -> "Mechanism":
        """Return the mechanism with contributions under masks spread evenly over what is kept, for other lower ends.

        The same object where nothing is masked.
        """
        return self.with_parts(lambda part: part.evenly_spread())

    def signal_to_noise(self) -> float | None:
        """Return the squared signal-to-noise ratio of a statistic that is Gaussian in both worlds; None: none.

        The statistic is a fixed linear one. For submodels and hidden rounds it is the sum over all of them: the signal
        is in some, the noise in all.
        """
        return None

    def product_factors(self, times: int = 1) -> tuple[float, dict["Mechanism", int]]:
        """Return the independent factors of X: one Gaussian, and how often it has each other mechanism.

        Args:
            times: how often the mechanism itself is repeated.

        Returns:
            The squared signal-to-noise ratio of all Gaussian factors together, the sum of 1 / noise multiplier² (0:
            none); and the other factors with their numbers.

        Example:
            >>> from fedamp.accounting import Compose, Gaussian, Laplace, Repeat
            >>> Compose([Repeat(Gaussian(2.0), 8), Laplace(1.0)]).product_factors()
            (2.0, {Laplace(scale=1.0): 1})
        """
        return 0.0, {self: times}

    @property
    def is_mean_of_gaussians(self) -> bool:
        """Whether X is a mean of ratios of Gaussian releases.

        The add direction is then never the larger one (ours: docs/research/correlated-noise.md).
        """
        return self.is_mean and all(map(attrgetter("is_mean_of_gaussians"), self.parts))

    def chance_to_take_part(self) -> Fraction:
        """Return at least the chance that a person's data enters the release at all.

        With the person in, the release is a mixture over hidden choices. At least the rest of the weight is on releases
        without the person. So delta is at most this chance at every epsilon.

        Example:
            >>> from fedamp.accounting import Gaussian, Poisson, Repeat
            >>> Repeat(Poisson(Gaussian(1.0), 0.25), 3).chance_to_take_part()
            Fraction(3, 4)
        """
        return Fraction(0) if self.releases_nothing else Fraction(1)

    def certain_loss(self) -> Fraction:
        """Return a bound on |log X| that always holds; a hidden choice adds none.

        Raises:
            NotEvaluable: none is known, as for Gaussian noise.
        """
        raise NotEvaluable("losses without a bound")

    def largest_loss(self) -> tuple[Fraction, Fraction]:
        """Return a bound on |log X| that holds but for a chance, and that chance.

        Both numbers add up under composition (Kairouz, Oh, Viswanath 2015, Theorem 3.4, with a sum in place of one
        minus a product). They are fractions: a guarantee proved elsewhere is the decimal that was written. A tenth and
        nine tenths are one, which the sum of the floats next to them exceeds.

        Raises:
            NotEvaluable: none is known.

        Example:
            >>> from fedamp.accounting import Approximate, Repeat
            >>> Repeat(Approximate(0.1, 1e-6), 3).largest_loss()
            (Fraction(3, 10), Fraction(3, 1000000))
        """
        return self.certain_loss(), Fraction(0)

    def under_substitution(self) -> "Mechanism":
        """Return the same release for neighbours that differ by substitution.

        Raises:
            NotEvaluable: its cost under substitution is not known.
        """
        raise NotEvaluable(f"{type(self).__name__} under substitution is not known")

    def exact_group(self, size: int) -> "Mechanism":
        """Return the mechanism as ``size`` people see it, by a rule that loses nothing.

        For parts alone the generic group property costs more than for the whole, so a rule that loses must not be used
        here.

        Raises:
            NotEvaluable: no exact rule is known.

        Example:
            >>> from fedamp.accounting import Gaussian, Laplace
            >>> Gaussian(4.0).exact_group(2), Laplace(4.0).exact_group(2)
            (Gaussian(noise_multiplier=2.0), Laplace(scale=2.0))
        """
        raise NotEvaluable(f"{type(self).__name__} has no exact rule for groups")

    def group_by_rounds(self, size: int) -> "Mechanism":
        """Return the exact rule with choices inside rounds (submodels, masks) revealed, but not participation.

        Raises:
            NotEvaluable: no exact rule is known.
        """
        return self.unamplified().exact_group(size)

    def with_own_bits(self, size: int, chosen: bool = False) -> "Mechanism":
        """Return the same mechanism for the worst of all choices of bits.

        Each of ``size`` people has chosen another bit of randomised response, if a hidden choice inside or above
        (``chosen``) decides which bit is a person's. They then turn several bits, where a group that shares one bit
        turns one.
        """
        chosen = chosen or self.hides_bits
        return self.with_parts(lambda part: part.with_own_bits(size, chosen))

    # What a kind tells the evaluators: laws.

    def law(self, detail: Detail) -> Law:
        """Return the numerical law of X, by default that of what the kind is charged as.

        Its upper end must be at least X in convex order, and its lower end at most X (:mod:`fedamp.accounting.law`).

        Args:
            detail: how finely, and how far into the tails.

        Raises:
            NotEvaluable: there is none.
        """
        return numerical_law(self.charged_as(), detail)

    def by_law(self, question: Question) -> Bounds:
        """Answer a question by the numerical law of the release.

        Grids are made finer while the bracket is wider than one part in 1000, and that helps.

        Raises:
            NotEvaluable: there is no law, or none that floating point holds.
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
        """Return Rényi moments of X, by default those of what the kind is charged as, or what follows from its own law.

        Each must be exact or an upper bound (:class:`fedamp.accounting.Moments`).
        """
        try:
            return moments_of(self.charged_as())
        except TypeError:
            return Moments(partial(numerical_law, self), self.is_symmetric)

    def all_outcomes(self) -> Outcomes:
        """Return all outcomes, with errors bounded (:mod:`fedamp.accounting.outcomes`).

        Raises:
            NotEvaluable: there are too many, or not finitely many.
        """
        raise NotEvaluable(f"{type(self).__name__} has too many outcomes")

    def closed_form(self) -> ClosedForm:
        """Return each hidden choice with the Gaussian that is released given it: delta is then a sum of known deltas.

        By default from above what the kind is charged as, or costs without amplification, and from below what it
        attains.

        Raises:
            NotEvaluable: releases are not Gaussian.
        """
        known, below = self.attained_mechanism(), NOTHING_RELEASED
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
        """Return the hidden choice of rounds; by default the mechanism is its only round."""
        return Participation(self, (0.0, 1.0), 1)

    @property
    def is_hidden_factor(self) -> bool:
        """Whether it is one factor of X in which a person takes part in several hidden rounds."""
        return len(self.participation().chances) > 2 and not self.releases_nothing

    def sampled_factors(self, times: int) -> tuple[Factor, Factor]:
        """Return so many factors of X that are sampled, for upper and for lower ends; one object if they are exact.

        Raises:
            NotEvaluable: a round has no numerical law.
        """
        found = self.participation()
        return found.as_factors(*found.mechanism.product_factors(), times)

    def begun_factors(self, whole: Factor, rounds: Sequence[int]) -> Mapping[int, Factor]:
        """Return the sampled factor after each of some rounds; none if draws cannot be shared.

        Args:
            whole: the only factor of the whole run.
            rounds: numbers of rounds, each below the span.
        """
        assert isinstance(whole, HiddenRounds)
        after = {number: self.after(number).participation() for number in rounds}
        one = self.participation().mechanism
        after = {number: each for number, each in after.items() if each.mechanism == one}
        off = max((each.rounding for each in after.values()), default=0.0)
        return {number: HiddenRounds(whole.round, each.chances, number, 1, off) for number, each in after.items()}

    def like_with_law(self) -> "Mechanism":
        """Return a run that costs about as much, and has a law; for searches, which certify their answer elsewhere."""
        return self.with_parts(lambda part: part.like_with_law())

    @property
    def is_sampled(self) -> bool:
        """Whether a person takes part in several hidden rounds. Law and moments are only bounds there."""
        return self.is_private and any(map(attrgetter("is_hidden_factor"), self.product_factors()[1]))

    @property
    def is_pair(self) -> bool:
        """Whether two people in hidden rounds are sampled together."""
        return False

    def sampled_profile(self, detail: Detail = DEFAULT_DETAIL) -> SampledProfile:
        """Return the sampler of a mechanism that ``is_sampled``: hidden rounds one by one, the rest as one law.

        Args:
            detail: of the law that bounds the add direction.

        Raises:
            NotEvaluable: a round, or the rest, has no numerical law.
        """
        signal, others = self.product_factors()
        dependent, hidden, rest = list[tuple[Factor, Factor]](), list[tuple[Factor, Factor]](), dict[Mechanism, int]()
        for other, times in others.items():
            if other.is_hidden_factor:
                both = other.sampled_factors(times)
                (hidden if isinstance(both[0], HiddenRounds) else dependent).append(both)
            else:
                rest[other] = times
        if rest or signal:
            noise = 1 / min(signal**-0.5, 1e50) ** 2 if signal else 0.0
            hidden.append(Participation(self, (0.0, 1.0), 1).as_factors(noise, rest))
        uppers, lowers = zip(*dependent, *hidden, strict=True)
        upper = SampledRun(uppers)
        lower: SampledRun | None = upper
        if not all(map(operator.is_, uppers, lowers)):
            lower = SampledRun(lowers) if self.attained_in_draws() is self else None
        if self.is_mean_of_gaussians:
            return SampledProfile(upper, lower, is_one_sided=True)
        laws = [partial(numerical_law, each, detail) for each in reversed(self.costlier_mechanisms())]
        return SampledProfile(upper, lower, tuple(laws))

    def narrowed_bracket(self, found: Bounds, delta: float, precision: float) -> Bounds:
        """Narrow the answer for epsilon by sampling, where a person takes part in several hidden rounds.

        Args:
            found: the bracket of the other evaluators.
            delta: in (0, 1).
            precision: relative width to aim at.
        """
        if found.lower >= (1 - precision) * found.upper or found.upper > LARGEST_SAMPLED or not self.is_sampled:
            return found
        with suppress(NotEvaluable):
            found = self.bracket_intersection(found, epsilon_by_blocks(self, delta, precision, found.upper))
            if found.lower >= (1 - _NEARLY * precision) * found.upper:
                return found
        with suppress(NotEvaluable):
            return self.bracket_intersection(found, sampled_bracket(self, EpsilonAt(delta), precision))
        return found

    def narrowed_repeats(self, times: int, found: Bounds, delta: float) -> Bounds:
        """Narrow the answer for epsilon of ``times`` independent releases; by default it is as it was found."""
        return found

    def bracket_intersection(self, found: Bounds, sampled: Bounds) -> Bounds:
        """Return the intersection of two brackets of one number; the smaller upper end keeps its origin."""
        upper, origin = found.upper, found.origin
        if sampled.upper < upper:
            upper = sampled.upper
            origin = sampled.origin._replace(unmixed=Fact.WORST_CASE_CHECKED in self.facts)
        return Bounds(min(max(found.lower, sampled.lower), upper), upper, origin)


Kind = TypeVar("Kind", bound=Mechanism)


def common_relation(parts: Sequence[Mechanism]) -> Relation | None:
    """Return the neighbouring relation of all parts, None if none has one; ValueError: they differ."""
    relations = list(dict.fromkeys(filter(None, map(attrgetter("relation"), parts))))
    if len(relations) > 1:
        raise ValueError(f"parts must share one neighbouring relation, got {' and '.join(relations)}")
    return relations[0] if relations else None


def check_mechanisms(name: str, values: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """Return a non-empty tuple of mechanisms of one neighbouring relation, or raise ValueError."""
    items = tuple(values) if isinstance(values, (list, tuple)) else (values,)
    if not items or not all(isinstance(item, Mechanism) for item in items):
        raise ValueError(f"{name} must be one or more mechanisms, got {values!r}")
    common_relation(items)
    return items


def check_mechanism(name: str, value: Mechanism) -> Mechanism:
    """Return a mechanism, or raise ValueError."""
    if not isinstance(value, Mechanism):
        raise ValueError(f"{name} must be a mechanism such as Gaussian(1.0), got {value!r}")
    return value


def check_relation(name: str, value: str) -> Relation:
    """Return a neighbouring relation by its name, or raise ValueError."""
    if value not in tuple(Relation):
        raise ValueError(f"{name} must be one of {', '.join(repr(str(each)) for each in Relation)}, got {value!r}")
    return Relation(value)


@dataclass(frozen=True)
class OfOne(Mechanism, is_kind=False):
    """Base of a mechanism that is made of one other, and has the same rounds.

    A kind that inherits it says what it is charged as, and without amplification. ``after`` takes the beginning of the
    mechanism inside, which is right only if nothing else changes with the rounds.

    Attributes:
        mechanism: the one inside.

    Example:
        >>> from fedamp.accounting import CountField, Gaussian, Repeat
        >>> @dataclass(frozen=True)
        ... class Again(OfOne, is_kind=False):
        ...     times: CountField
        ...     text = "{0.times} releases of ({0.mechanism.in_words})"
        ...     is_exact = True
        ...
        ...     def charged_as(self):
        ...         return Repeat(self.mechanism, self.times)
        >>> print(Again(Gaussian(4.0), 4).epsilon(1e-5))
        1.994 (at least 1.993)
    """

    mechanism: Annotated[Mechanism, check_mechanism]

    @property
    def span(self) -> int:
        return self.mechanism.span

    def _run_prefix(self, rounds: int) -> Mechanism:
        return replace(self, mechanism=self.mechanism.after(rounds))


@dataclass(frozen=True)
class Release(Mechanism, is_kind=False):
    """Base of what one participation releases, and for which neighbours.

    A contribution is at most 1 in size (the clipping norm). Its replacement is 0, or up to 2 away under substitution. A
    kind that inherits it gives the ``law`` of that change (:attr:`largest_change`), or what it is ``charged_as``.

    Attributes:
        relation: which data sets are neighbours; default: zero-out.
        takes_substitution: class attribute; if False, the charge is for a contribution against none.

    Raises:
        ValueError: substitution is asked for and not charged.

    Example:
        >>> from fedamp.accounting import Law, ScaleField
        >>> @dataclass(frozen=True, repr=False)
        ... class NoisyCount(Release, is_kind=False):
        ...     scale: ScaleField
        ...     text = "a count with Laplace noise of scale {0.scale:g}"
        ...     is_exact = is_symmetric = True
        ...
        ...     def law(self, detail):
        ...         return Law.laplace(self.scale / self.largest_change, points=detail.points)
        >>> print(NoisyCount(2.0, relation="substitution").epsilon(1e-5))
        1 (at least 0.9999)
    """

    relation: Annotated[Relation, check_relation] = field(default=Relation.ZERO_OUT, kw_only=True)
    takes_substitution: ClassVar[bool] = True

    def check(self) -> None:
        """Refuse substitution where the kind does not charge it (ValueError)."""
        if self.relation is Relation.SUBSTITUTION and not self.takes_substitution:
            kind = type(self).__name__
            raise ValueError(f"{kind} has the relation zero-out or add/remove; substitution is not charged, got it")

    def __repr__(self) -> str:
        """Write the call that makes the release; the relation is left out where it is zero-out."""
        shown = [f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.name != "relation"]
        if self.relation is not Relation.ZERO_OUT:
            shown.append(f"relation={str(self.relation)!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def largest_change(self) -> int:
        """The largest distance of a contribution from its replacement: 1, or 2 under substitution."""
        return 2 if self.relation is Relation.SUBSTITUTION else 1


@dataclass(frozen=True)
class Hidden(OfOne, is_kind=False):
    r"""Base of a mechanism that a hidden choice decides about.

    The choice must not depend on the data, and must stay secret. The mechanism inside is one person's release. So
    substitution, groups and whole batches are refused: their neighbours differ in more than participation.

    Without amplification the choice is known, and the mechanism inside is all that is charged.

    Attributes:
        mechanism: the release of a participant, for zero-out or add/remove.

    Raises:
        ValueError: the mechanism inside is for substitution, or applies to a whole run.

    Example:
        >>> from fedamp.accounting import Gaussian, Poisson
        >>> @dataclass(frozen=True)
        ... class CoinFlip(Hidden, is_kind=False):
        ...     text = "by the toss of a coin ({0.mechanism.in_words})"
        ...     is_exact = True
        ...
        ...     def charged_as(self):
        ...         return Poisson(self.mechanism, 0.5)
        >>> print(CoinFlip(Gaussian(2.0)).epsilon(1e-5), CoinFlip(Gaussian(2.0)).unamplified().epsilon(1e-5), sep="\n")
        1.354 (at least 1.353)
        1.994 (at least 1.993)
    """

    def check(self) -> None:
        """Refuse a mechanism inside that is for substitution, or applies to a whole run (ValueError)."""
        kind, mechanism = type(self).__name__, self.mechanism
        if mechanism.relation is Relation.SUBSTITUTION:
            expected = f"{kind} hides whether a person takes part: expected zero-out or add/remove"
            raise ValueError(f"{expected}, got a mechanism for substitution ({mechanism.in_words})")
        if Fact.OF_WHOLE_RUN in mechanism.facts:
            expected = f"{kind} takes one person's release; a group or a batch applies to the whole run"
            raise ValueError(f"{expected}, got {mechanism.in_words}")

    def unamplified(self) -> Mechanism:
        return self.mechanism.unamplified()

    def certain_loss(self) -> Fraction:
        if (plain := self.unamplified()) != self:
            return plain.certain_loss()
        return super().certain_loss()


@dataclass(frozen=True)
class Participation:
    """A hidden choice of rounds: H is drawn, then the person takes part in a uniform set of H released rounds.

    Attributes:
        mechanism: one round.
        chances: the chance of H = 0, 1, ..; the last one is positive.
        rounds: the number of released rounds.
        rounding: bound on the relative error of ``chances``.
    """

    mechanism: Mechanism
    chances: tuple[float, ...]
    rounds: int
    rounding: float = 0.0

    def as_factors(
        self, signal: float, others: Mapping[Mechanism, int], times: int = 1
    ) -> tuple[HiddenRounds, HiddenRounds]:
        """Return the factor of X that these rounds make, for upper and for lower ends; one object if it is exact.

        Args:
            signal: squared signal-to-noise ratio of the Gaussian in a round, 1 / noise multiplier²; 0: none.
            others: the other factors of a round, with their numbers.
            times: how often X has it.

        Raises:
            NotEvaluable: a round has no numerical law.
        """
        upper: Round
        lower: Round
        if signal and not others:
            upper = lower = GaussianRound(signal**-0.5)
        else:
            law = law_of_product(signal, tuple(others.items()), DEFAULT_DETAIL)
            upper = FiniteRound(law.upper, law.rounding)
            lower = upper if law.lower is law.upper else FiniteRound(law.lower, law.rounding)
        above = HiddenRounds(upper, self.chances, self.rounds, times, self.rounding)
        return above, above if lower is upper else replace(above, round=lower)


def _plain_value(value: Any) -> Any:
    """Return a field as plain dictionaries, lists and numbers."""
    if isinstance(value, Mechanism):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain_value(item) for item in value]
    return str(value) if isinstance(value, Relation) else value


def from_json(value: Mapping[str, Any]) -> Mechanism:
    """Read the mechanism that ``to_json`` wrote. A missing relation means zero-out, because early files have none.

    Args:
        value: a mapping with the key ``kind``, the name of a class, and the kind's fields.

    Raises:
        ValueError: the kind is not known here, a key is missing or unknown, or a value is refused.

    Example:
        >>> from_json({"kind": "Gaussian", "noise_multiplier": 2.0})
        Gaussian(noise_multiplier=2.0)
        >>> from_json({"kind": "Gaussian", "s": 2.0})
        Traceback (most recent call last):
            ...
        ValueError: Gaussian must have exactly the keys ['noise_multiplier', 'relation'], got ['s']
    """
    if not isinstance(value, Mapping) or "kind" not in value:
        raise ValueError(f'a mechanism must be an object with a "kind", got {value!r}')
    name = value["kind"] if isinstance(value["kind"], str) else ""
    kind: Any = Mechanism.kinds.get(name) or next(offered("accounting", name), None)
    if not (isinstance(kind, type) and issubclass(kind, Mechanism)):
        dict(all_offered("accounting"))  # imports all other kinds, too
        raise ValueError(f"kind must be one of {', '.join(sorted(Mechanism.kinds))}, got {value['kind']!r}")
    expected = {each.name for each in fields(kind)}
    given = set(value) - {"kind"}
    if given | {"relation"} != expected | {"relation"} or given - expected:
        raise ValueError(f"{kind.__name__} must have exactly the keys {sorted(expected)}, got {sorted(given)}")
    return kind(**{name: _nested_value(value[name]) for name in given})


def _nested_value(value: Any) -> Any:
    """Read the mechanisms inside a value of JSON."""
    if isinstance(value, Mapping):
        return from_json(value)
    if isinstance(value, list):
        return tuple(_nested_value(item) for item in value)
    return value


# Evaluators of any mechanism: each answer is computed once.


@lru_cache(maxsize=512)
def normal_form(event: Mechanism, same_rounds: bool = False) -> Mechanism:
    """Return the same release without what changes nothing, inside and out: the form that all evaluators see.

    Args:
        event: any mechanism.
        same_rounds: keep a run over its own rounds, in place of its ``representative``.
    """
    event = event.with_parts(partial(normal_form, same_rounds=same_rounds))
    if not same_rounds and Fact.REPRESENTED in event.own_facts:
        return normal_form(event.representative(), same_rounds)
    try:
        simpler = event.simplified()
    except ValueError:  # no rule, or the noise of the simpler one is out of range
        return event
    return event if simpler is event else normal_form(simpler, same_rounds)


@lru_cache(maxsize=64)
def numerical_law(event: Mechanism, detail: Detail = DEFAULT_DETAIL) -> Law:
    """Return the certified law of a mechanism, computed once for each detail.

    Raises:
        NotEvaluable: it has none, or none that floating point holds.
    """
    if event.releases_nothing:
        return Law.product([])
    law = event.law(detail)
    return law if detail.with_lower else law.upper_only()


@lru_cache(maxsize=1024)
def moments_of(event: Mechanism) -> Moments:
    """Return the moments of a mechanism of any kind, one object for each mechanism."""
    return ProductMoments(partial(numerical_law, event), []) if event.releases_nothing else event.moments()


class MomentsOf(Moments, Generic[Kind]):
    """Base of the moments of one kind, which know its fields.

    Attributes:
        event: the mechanism.
    """

    def __init__(self, event: Kind) -> None:
        super().__init__(partial(numerical_law, event), event.is_symmetric)
        self.event = event


@lru_cache(maxsize=256)
def outcomes_of(event: Mechanism) -> Outcomes:
    """Return the outcomes of a mechanism in normal form; NotEvaluable: too many, or not finitely many."""
    return NO_OUTCOME if event.releases_nothing else event.all_outcomes()


@lru_cache(maxsize=256)
def closed_form_of(event: Mechanism) -> ClosedForm:
    """Return the closed form of a mechanism, computed once; NotEvaluable: its releases are not Gaussian."""
    return NOTHING_RELEASED if event.releases_nothing else event.closed_form()


def log_moments(event: Mechanism, highest: int) -> Array:
    """Return the larger of log E[X^a] and log E[X^(1-a)] at a = 0..highest; infinite without noise."""
    return moments_of(event).larger_moments(highest) if event.is_private else unbounded_moments(highest)


@lru_cache(maxsize=64)
def law_of_product(signal: float, others: tuple[tuple[Mechanism, int], ...], detail: Detail) -> Law:
    """Return the law of independent factors, with all Gaussian ones put together.

    The likelihood ratio of a composition is the product of the ratios (Zhu, Dong, Wang 2022, Theorem 10), and 1 / s² of
    Gaussian factors adds up.

    Args:
        signal: sum of 1 / noise multiplier² of the Gaussian factors; 0: none.
        others: the other factors, with their numbers.
        detail: of each law.
    """
    laws: list[tuple[Law, int]] = []
    if signal:
        together = Law.gaussian(signal**-0.5, points=detail.points, reach=detail.reach)
        laws.append((together if detail.with_lower else together.upper_only(), 1))
    for other, times in others:
        if not other.releases_nothing:
            laws.append((numerical_law(other, detail), times))
    return Law.product(laws)


def largest_loss_of(event: Mechanism) -> tuple[float, float]:
    """Return ``largest_loss`` as floats, rounded up as decimals; infinity and 0 where none is known."""
    with suppress(NotEvaluable):
        most, chance = map(_float_above, event.largest_loss())
        return most, min(chance, 1.0)
    return math.inf, 0.0


def _float_above(exact: Fraction) -> float:
    """Return the float next to a fraction whose decimal is not below it."""
    nearest = float(exact)
    return nearest if Fraction(str(nearest)) >= exact else math.nextafter(nearest, math.inf)


def in_closed_form(event: Mechanism, hidden: bool = True) -> ClosedForm | None:
    """Return the closed form of a mechanism, if its releases are Gaussian and in range; else None.

    Args:
        event: in normal form.
        hidden: whether choices are hidden; False: the mechanism without amplification.
    """
    try:
        with in_floating_point():
            return closed_form_of(event if hidden else event.unamplified())
    except ValueError:
        return None


# Answers: the smallest upper end of all evaluators, and the largest attained lower end.

# Beside every number that rests on Theorem 4.1 of Xiao, Wan, Devadas 2022.
CHECKED = "; the worst case of ModelMix is checked, not proved"

# Points of a law that may hardly matter. Ends with more of them are 0.1 to 0.6 per cent nearer. So sampling decides if
# this law leaves more than a tenth open, and its ends are more than one per cent away.
_COARSE, _DOUBTFUL, _FAR = 300, 0.9, 0.99
_BLOCKS = 192  # the fewest blocks of hidden rounds
_NEARLY = 3.0  # times the precision: a bracket by blocks that is no wider is enough, as it takes far less work
LARGEST_SAMPLED = 450.0  # epsilon beyond which likelihood ratios leave the range of floating point

_PATIENCE = 5.0  # seconds, of the clock and of the processor, after which an answer warns and names its bound


@lru_cache(maxsize=512)
def smallest_bracket(event: Mechanism, question: Question) -> Bounds:
    """Answer a question by the evaluators that can: the smallest upper end, and the largest attained lower end.

    Few outcomes are enumerated exactly. Else the numerical law answers, and the closed form with hidden choices
    revealed or the cost without amplification. The sum of the largest losses follows, and, where they may be smaller,
    Rényi divergences. Releases with Gaussian noise have neither few outcomes nor a largest loss. If a lower end exceeds
    the upper end, one of them is wrong: the upper end becomes the trivial one.

    Args:
        event: in normal form.
        question: for epsilon or delta.
    """
    if event.releases_nothing:
        return Bounds(0.0, 0.0, Origin(Method.NOTHING))
    if event.tells_everything:
        return Bounds(question.unknown, question.unknown, Origin(Method.NO_NOISE))
    chance = event.chance_to_take_part()
    if isinstance(question, EpsilonAt) and chance <= question.delta:
        return Bounds(0.0, 0.0, Origin(Method.RARELY))
    known = in_closed_form(event)
    noisy = known is not None and known.has_noise
    by_losses = question.unknown if noisy else question.of_losses(*largest_loss_of(event))
    if question.points is None and not noisy:
        with suppress(NotEvaluable):
            exact = question.ask(outcomes_of(event))
            lower = _lower_end(event, question, exact) if Fact.HIDES_PARTS in event.facts else exact.lower
            upper, origin = exact.upper, exact.origin
            if by_losses < upper:
                upper, origin = by_losses, Origin(Method.LOSSES)
            return Bounds(min(lower, upper), upper, origin)
    reason = ""
    try:
        with in_floating_point():
            by_law = event.by_law(question)
    except NotEvaluable as error:
        by_law, reason = Bounds(0.0, question.unknown, Origin(Method.NONE, (str(error),))), f" ({error})"
    narrow = by_law.lower >= 0.99 * by_law.upper < question.unknown
    shown = _by_closed_form(event, question, known, narrow)
    upper, origin = by_law.upper, by_law.origin
    if shown.upper < upper:
        upper, origin = shown.upper, shown.origin
    if by_losses < upper:
        upper, origin = by_losses, Origin(Method.LOSSES)
    if isinstance(question, DeltaAt) and chance < upper:
        upper, origin = math.nextafter(float(chance), 1.0), Origin(Method.RARELY)
    if mixes := Fact.WORST_CASE_CHECKED in event.facts:
        origin = origin._replace(unmixed=True)
    wide = shown.lower < 0.99 * upper and (by_law.upper == question.unknown or 0 < by_law.lower < 0.99 * upper)
    # Elsewhere they are not smaller.
    if (mixes or wide or Fact.LESS_BY_MOMENTS in event.facts) and event.is_private:
        by_order = _by_renyi(event, question, more=not mixes)
        if by_order.value < upper:
            upper, origin = by_order.value, Origin(Method.RENYI, (by_order.order, reason, CHECKED if mixes else ""))
    lower = max(_lower_end(event, question, by_law), shown.lower)
    if lower > (1 + 1e-6) * upper + 1e-9:  # one end is wrong, and it is not known which one
        return Bounds(lower, question.unknown, Origin(Method.CONTRADICTED, (origin,)))
    return Bounds(min(lower, upper), upper, origin)


def _epsilon_far_below_law(event: Mechanism, delta: float, precision: float) -> Bounds | None:
    """Return epsilon of hidden rounds by sampling, if it is so far below a coarse law that no finer one matters.

    Otherwise it is None, as without Gaussian noise, where few outcomes may be exact, and of many rounds, where blocks
    begin with the law's answer.

    Args:
        event: in normal form.
        delta, precision: as of :meth:`Mechanism.epsilon`.
    """
    if not event.is_sampled or event.participation().rounds >= 3 * _BLOCKS:
        return None
    if (known := in_closed_form(event)) is None or not known.has_noise:
        return None
    coarse = smallest_bracket(event, EpsilonAt(delta, _COARSE))
    if coarse.lower >= _DOUBTFUL * coarse.upper:
        return None
    found = event.narrowed_bracket(coarse, delta, precision)
    return found if found.upper < _FAR * coarse.upper and coarse.lower < _FAR * found.lower else None


def _lower_end(event: Mechanism, question: Question, by_law: Bounds) -> float:
    """Return the lower end by law of an attained mechanism. A group costs at least what one of it costs."""
    found, tried = 0.0, [event, *event.parts] if event.is_group else [event]
    if Fact.MASKS_UNITS in event.facts:
        tried += [part.evenly_spread() for part in tried]
    for part in tried:
        with suppress(NotEvaluable), in_floating_point():
            if (known := part.attained_mechanism()) is not None:
                found = max(found, by_law.lower if known is event else known.by_law(question).lower)
    return found


def _by_closed_form(event: Mechanism, question: Question, known: ClosedForm | None, narrow: bool) -> Bounds:
    """Return both ends of the closed form, if it is ``known``, or the upper end without amplification.

    A ``narrow`` bracket needs only the closed form, and none where nothing is hidden.
    """
    unknown = Bounds(0.0, question.unknown)
    if known is not None:
        if narrow and known.is_plain:
            return unknown
        with in_floating_point():
            return question.ask(known)
    try:
        if narrow or (plain := event.unamplified()) == event:
            return unknown
        found = question.ask(plain, points=question.points)
    except ValueError:  # without amplification the noise may be too little
        return unknown
    return Bounds(0.0, found.upper, found.origin.used_by(Method.UNAMPLIFIED))


def _by_renyi(event: Mechanism, question: Question, more: bool) -> ByOrder:
    """Return the best value over the usual orders.

    With ``more``, orders up to four times as high are tried where the largest is the best: tiny epsilons at tiny
    deltas.
    """
    for highest in (HIGHEST_ORDER, 4 * HIGHEST_ORDER) if more else (HIGHEST_ORDER,):
        orders = search_orders(highest)
        best = question.from_divergences(orders, event.rdp(orders))
        if best.order < highest:
            break
    return best


@lru_cache(maxsize=256)
def sampled_bracket(event: Mechanism, question: Question, precision: float) -> Bounds:
    """Answer by sampling, with the lower end of the attained mechanism.

    Args:
        event: a mechanism that ``is_sampled``.
        question: for epsilon or delta.
        precision: relative width to aim at.

    Raises:
        NotEvaluable: it is not worth the work.
    """
    with in_floating_point():
        found, lower = question.ask(event.sampled_profile(), precision=precision), 0.0
        masked = Fact.MASKS_UNITS in event.facts
        if (below := _costlier_in_draws(event, question) if masked else event.attained_in_draws()) is event:
            return found
        if below is not None and below.is_sampled:
            with suppress(NotEvaluable):
                lower = question.ask(below.sampled_profile(), precision=precision).lower
        return Bounds(min(lower, found.upper), found.upper, found.origin)


@lru_cache(maxsize=256)
def epsilon_by_blocks(event: Mechanism, delta: float, precision: float, known: float) -> Bounds:
    """Return epsilon of few of many hidden rounds, by blocks of rounds; docs/research/k-of-t.md, Propositions 8 and 9.

    Args:
        event: in normal form.
        delta, precision: as of :meth:`Mechanism.epsilon`.
        known: an upper end from elsewhere.

    Raises:
        NotEvaluable: rounds are not many, or a person's are not few, or blocks know no lower end.
    """
    found, masked = event.participation(), Fact.MASKS_UNITS in event.facts
    least = max(_BLOCKS, 8 * (len(found.chances) - 1))
    if found.rounds < 3 * least:
        raise NotEvaluable("there are too few hidden rounds for blocks")
    below = _costlier_in_draws(event, EpsilonAt(delta)) if masked else event.attained_in_draws()
    size, lower = found.rounds // least, 0.0
    with in_floating_point():
        if below is not None and (one := below.participation().mechanism.attained_mechanism()) is not None:
            choice = below.participation()
            inside = choice.chances, choice.rounds, choice.rounding
            lower = lower_epsilon(numerical_law(one), *inside, size, delta, 1.2 * precision)
        if lower >= (1 - 2 * precision) * known:
            return Bounds(lower, math.inf)
        mean = numerical_law(found.mechanism).mean(size)
        round_, blocks = FiniteRound(mean.upper, mean.rounding), found.rounds // size
        run = SampledRun((HiddenRounds(round_, found.chances, blocks, 1, found.rounding),))
        profile = replace(event.sampled_profile(), upper=run, lower=None)
        with suppress(NotEvaluable):
            return replace(profile.epsilon(delta, precision=1.6 * precision, known=known), lower=lower)
    return Bounds(lower, math.inf)


def _costlier_in_draws(event: Mechanism, question: Question) -> Mechanism | None:
    """Return what is attained in draws: of two networks under masks the one that costs more by law, if it is known."""
    one, other = event.attained_in_draws(), event.evenly_spread().attained_in_draws()
    if one is None or other is None or one == other:
        return one
    with suppress(NotEvaluable), in_floating_point():
        return max(one, other, key=lambda each: each.by_law(replace(question, points=400)).lower)
    return one


def upper_epsilon(event: Mechanism, delta: float, points: int = DEFAULT_POINTS) -> float:
    """Return the upper end of epsilon or hardly more, in half the time if a law is enough; for searches."""
    several = {Fact.SEVERAL_BOUNDS, Fact.WORST_CASE_CHECKED, Fact.LESS_BY_MOMENTS} & event.facts
    upper = math.inf if several else law_upper(event, delta, points)
    return upper if upper < math.inf else event.epsilon(delta, points=points).upper


def law_upper(event: Mechanism, delta: float, points: int) -> float:
    """Return the upper end of epsilon by the numerical law alone, or with hidden choices revealed.

    It takes half the time of both ends; infinite where neither has an answer.
    """
    upper = math.inf
    with suppress(NotEvaluable), in_floating_point():
        upper = event.by_law(EpsilonAt(delta, points, with_lower=False)).upper
    shown = in_closed_form(event)
    if shown is None or (upper < math.inf and (shown.is_plain or shown.delta(upper).upper > delta)):
        return upper
    return min(upper, shown.epsilon(delta).upper)


def _warn_if_slow(name: str, start: tuple[float, float], found: Bounds) -> None:
    """Warn if a question took long, and name the bound that answered."""
    seconds = min(time.perf_counter() - start[0], time.process_time() - start[1])
    if seconds > _PATIENCE:
        advice = "precision 0.05, a scenario's privacy.precision, answers sooner, with a wider bracket"
        warnings.warn(f"{name} took {seconds:.0f} s, answered by: {found.method} ({advice})", stacklevel=3)
