"""Amplification by what stays hidden: sampling, submodels, dropout, and check-in to k of T rounds.

The hidden choice is fresh and independent across people. No one who sees the releases knows it. A person who takes no
part contributes zero, so that the neighbours are zero-out or add/remove.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated

from fedamp.accounting import checks
from fedamp.accounting.mechanism import Mechanism, OfOne, Relation
from fedamp.accounting.releases import Repeat


@dataclass(frozen=True)
class Hidden(OfOne, is_kind=False):
    """A mechanism that a hidden choice decides about."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kind, mechanism = type(self).__name__, self.mechanism
        if mechanism.relation is Relation.SUBSTITUTION:
            raise ValueError(
                f"{kind} hides whether a person takes part: expected zero-out or add/remove, got a mechanism for "
                f"substitution ({mechanism.words})"
            )
        if mechanism.is_of_whole_run:
            raise ValueError(
                f"{kind} takes one person's release; a group or a batch applies to the whole run, got {mechanism.words}"
            )


@dataclass(frozen=True)
class Poisson(Hidden):
    """A person takes part with probability ``rate`` in [0, 1], independently and in secret. ``mechanism`` is the
    release of a participant. Parts that share the coin (the shared and the split part of one round) must be composed
    first and sampled together.
    """

    rate: checks.Probability
    text = "Poisson sampling at rate {0.rate:g} of ({0.mechanism.words})"

    @property
    def is_empty(self) -> bool:
        return self.rate == 0


@dataclass(frozen=True)
class Submodels(Hidden):
    """A person trains one of ``count`` >= 1 disjoint submodels, drawn at random and hidden (Dong, Chen, Özgür 2025,
    Theorem 3.4). ``mechanism`` is one submodel's release.

    Submodels drawn afresh each round are ``Repeat(Submodels(m, d), T)``; drawn once for the run,
    ``Submodels(Repeat(m, T), d)``. Parts outside all submodels (the output layer, normalisation) are shared. Compose
    them inside the round, with their own clipping norm.
    """

    count: checks.Count
    text = "one hidden submodel of {0.count} ({0.mechanism.words})"


@dataclass(frozen=True)
class Dropout(Hidden):
    """A person keeps each unit of the whole model with probability ``keep`` in (0, 1]: one hidden mask per person and
    round. Masks must be drawn with at most this probability; one n-th to floating point counts as one n-th.
    """

    keep: checks.Probability
    text = "hidden dropout, keep {0.keep:g}, of ({0.mechanism.words})"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep == 0:
            raise ValueError("keep must be in (0, 1], got 0.0")


@dataclass(frozen=True)
class Allocation(Hidden):
    """The whole run of ``rounds`` >= 1 rounds, of which a person takes part in exactly ``k`` (0 to ``rounds``), drawn
    at random and hidden. ``mechanism`` is one round; it may itself be amplified (``Submodels``) or composed.
    """

    k: Annotated[int, checks.UpTo("rounds")]
    rounds: checks.Count

    @property
    def words(self) -> str:
        chosen = "one hidden round" if self.k == 1 else f"{self.k} hidden rounds"
        return f"{chosen} of {self.rounds} ({self.mechanism.words})"

    @property
    def is_empty(self) -> bool:
        return self.k == 0

    @property
    def span(self) -> int:
        return self.rounds

    def unamplified(self) -> Mechanism:
        return Repeat(self.mechanism.unamplified(), self.k)

    def _prefix(self, rounds: int) -> Mechanism:
        return AllocationPrefix(self.mechanism, self.k, self.rounds, rounds)


@dataclass(frozen=True)
class AllocationPrefix(Hidden):
    """The first ``released`` rounds (0 to ``rounds``) of an ``Allocation`` with the other fields. The other rounds are
    not out, and may never be.
    """

    k: Annotated[int, checks.UpTo("rounds")]
    rounds: checks.Count
    released: Annotated[int, checks.UpTo("rounds")]

    @property
    def words(self) -> str:
        return f"the first {self.released} rounds of ({self.whole().words})"

    @property
    def is_empty(self) -> bool:
        return self.k == 0 or self.released == 0

    @property
    def span(self) -> int:
        return self.released

    def whole(self) -> Allocation:
        """The run that it is the beginning of."""
        return Allocation(self.mechanism, self.k, self.rounds)

    def unamplified(self) -> Mechanism:
        return Repeat(self.mechanism.unamplified(), min(self.k, self.released))

    def _prefix(self, rounds: int) -> Mechanism:
        return replace(self, released=rounds)


class _Begun(Hidden, is_kind=False):
    """Hidden rounds of which the first ``released`` are out, 0 to ``rounds``; None: all."""

    rounds: checks.Count
    released: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.released is not None:
            released = checks.count("released", self.released, 0, self.rounds, "rounds")
            object.__setattr__(self, "released", None if released == self.rounds else released)

    @property
    def span(self) -> int:
        return self.rounds if self.released is None else self.released


@dataclass(frozen=True)
class CappedPoisson(_Begun):
    """Poisson sampling over ``rounds`` >= 1 rounds, with a cap. Where a person's coins choose more than ``at_most``
    rounds, the person takes part in that many of them, drawn uniformly (Feldman, Shenfeld 2025, proof of Corollary
    4.7).

    Args:
        mechanism: one round.
        rate: of the coins, in [0, 1].
        at_most: 1 to ``rounds``.
        rounds: of the whole run.
        released: the number of released rounds, 0 to ``rounds``; default: all.
    """

    rate: checks.Probability
    at_most: Annotated[int, checks.UpTo("rounds", smallest=1)]
    rounds: checks.Count
    released: int | None = None

    @property
    def words(self) -> str:
        beginning = "" if self.released is None else f"the first {self.released} of "
        return (
            f"{beginning}{self.rounds} rounds of Poisson sampling at rate {self.rate:g}, at most {self.at_most} a "
            f"person ({self.mechanism.words})"
        )

    @property
    def is_empty(self) -> bool:
        return self.rate == 0 or self.span == 0

    def unamplified(self) -> Mechanism:
        return Repeat(self.mechanism.unamplified(), min(self.at_most, self.span))

    def _prefix(self, rounds: int) -> Mechanism:
        return replace(self, released=rounds)


@dataclass(frozen=True)
class Cyclic(Hidden):
    """A run of ``rounds`` >= 1 rounds; round t is of the public class t modulo ``classes`` (1 to ``rounds``). A person
    is of one class, and takes part in exactly ``k`` (0 to rounds // classes) of its rounds, drawn at random and hidden.
    ``mechanism`` is one participation.

    The classes are for banded noise (docs/correlated-noise.md): with at most as many bands as classes, the rows of
    different participations do not meet, and one participation over all its rows is one release of ``mechanism``. The
    cost is that of a class with the fewest rounds, rounds // classes: more of them hide the same choice better.
    """

    k: Annotated[int, checks.UpTo("rounds")]
    rounds: checks.Count
    classes: Annotated[int, checks.UpTo("rounds", smallest=1)]

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("k", self.k, 0, self.rounds // self.classes, "rounds // classes")

    @property
    def words(self) -> str:
        return f"{self.of_a_class.words}, in one of {self.classes} public classes of {self.rounds} rounds"

    @property
    def of_a_class(self) -> Mechanism:
        """The run over the rounds of a class with the fewest: what is charged."""
        return Allocation(self.mechanism, self.k, self.rounds // self.classes)

    @property
    def is_empty(self) -> bool:
        return self.k == 0

    @property
    def span(self) -> int:
        return self.rounds

    def unamplified(self) -> Mechanism:
        return self.of_a_class.unamplified()

    def begun(self, rounds: int) -> int:
        """The most rounds of a class among the first ``rounds`` of all, 0 to rounds // classes."""
        return min(-(-rounds // self.classes), self.rounds // self.classes)

    def _prefix(self, rounds: int) -> Mechanism:
        """A participation of which some rows are out costs at most what all of them cost."""
        return self.of_a_class.after(self.begun(rounds))


@dataclass(frozen=True)
class Spaced(_Begun):
    """A run of ``rounds`` >= 1 rounds with banded noise, of which a person takes part in exactly ``k`` (0 to rounds),
    any two at least ``gap`` apart: a uniform and hidden choice among all such sets. ``mechanism`` is one participation.
    The hidden choice amplifies Gaussian releases (docs/correlated-noise.md); with others it counts as known.

    Args:
        coefficients: c_1, c_2, .. of the noise, each >= 0, at most gap - 1 of them.
        released: the number of released rounds, 0 to ``rounds``; default: all.
    """

    k: Annotated[int, checks.UpTo("rounds")]
    rounds: checks.Count
    gap: Annotated[int, checks.UpTo("rounds", smallest=1)]
    coefficients: tuple[float, ...]
    released: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = checks.sequence("coefficients", self.coefficients)
        coefficients = tuple(checks.scale_or_zero("coefficients", each) for each in given)
        object.__setattr__(self, "coefficients", coefficients)
        if len(coefficients) >= self.gap:
            raise ValueError(f"gap must be at least the bands ({len(coefficients) + 1}), got {self.gap}")
        if not self.sets:
            raise ValueError(f"{self.k} rounds {self.gap} apart do not fit into {self.rounds} rounds")

    @property
    def words(self) -> str:
        beginning = "" if self.released is None else f"the first {self.released} rounds of "
        return (
            f"{beginning}{self.k} hidden rounds of {self.rounds}, at least {self.gap} apart, with noise over "
            f"{len(self.coefficients) + 1} rounds ({self.mechanism.words})"
        )

    @property
    def sets(self) -> int:
        """The number of sets of rounds that a person may have."""
        return spaced_sets(self.rounds, self.k, self.gap)

    @property
    def is_empty(self) -> bool:
        return self.k == 0 or self.released == 0

    @property
    def shown(self) -> Mechanism:
        """The run of a person whose rounds are known: the rows of different participations do not meet."""
        return Repeat(self.mechanism, min(self.k, -(-self.span // self.gap)))

    def unamplified(self) -> Mechanism:
        return self.shown.unamplified()

    def _prefix(self, rounds: int) -> Mechanism:
        return replace(self, released=rounds)


def spaced_sets(rounds: int, k: int, gap: int) -> int:
    """The number of sets of ``k`` of ``rounds`` rounds that are at least ``gap`` apart."""
    return math.comb(max(rounds - (k - 1) * (gap - 1), 0), k) if k else 1


def of_one_class(event: Mechanism) -> Mechanism:
    """The same with the run of a class in place of every ``Cyclic``, for the evaluators."""
    return event.of_a_class if isinstance(event, Cyclic) else event.with_parts(of_one_class)


def with_a_law(event: Mechanism) -> Mechanism:
    """A mechanism of about the same cost that has a law, for searches to start from."""
    return Allocation(event.mechanism, event.k, -(-event.rounds // event.gap)) if isinstance(event, Spaced) else event
