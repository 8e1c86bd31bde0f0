"""Amplification by what stays hidden: sampling, submodels, dropout, and check-in to k of T rounds.

The hidden choice is fresh and independent across people. No one who sees the releases knows it. A person who takes no
part contributes zero, so that the neighbours are zero-out or add/remove.
"""

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
    """A person takes part with probability ``rate``, independently and in secret.

    Parts that share the coin (the shared and the split part of one round) must be composed first and sampled together.

    Args:
        mechanism: the release of a participant.
        rate: in [0, 1].
    """

    rate: checks.Probability

    @property
    def words(self) -> str:
        return f"Poisson sampling at rate {self.rate:g} of ({self.mechanism.words})"

    @property
    def is_empty(self) -> bool:
        return self.rate == 0


@dataclass(frozen=True)
class Submodels(Hidden):
    """A person trains one of ``count`` disjoint submodels, drawn at random and hidden (Dong, Chen, Özgür 2025,
    Theorem 3.4).

    Submodels drawn afresh each round are ``Repeat(Submodels(m, d), T)``; drawn once for the run,
    ``Submodels(Repeat(m, T), d)``. Parts outside all submodels (the output layer, normalisation) are shared. Compose
    them inside the round, with their own clipping norm.

    Args:
        mechanism: one submodel's release.
        count: >= 1.
    """

    count: checks.Count

    @property
    def words(self) -> str:
        return f"one hidden submodel of {self.count} ({self.mechanism.words})"


@dataclass(frozen=True)
class Dropout(Hidden):
    """A person keeps each unit with probability ``keep``: one hidden mask per person and round.

    Args:
        mechanism: the release of the whole model.
        keep: in (0, 1]. Masks must be drawn with at most this probability; one n-th to floating point counts as one
            n-th.
    """

    keep: checks.Probability

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep == 0:
            raise ValueError("keep must be in (0, 1], got 0.0")

    @property
    def words(self) -> str:
        return f"hidden dropout, keep {self.keep:g}, of ({self.mechanism.words})"


@dataclass(frozen=True)
class Allocation(Hidden):
    """The whole run of ``rounds`` rounds, of which a person takes part in exactly ``k``, drawn at random and hidden.

    Args:
        mechanism: one round; it may itself be amplified (``Submodels``) or composed.
        k: 0 to ``rounds``.
        rounds: T >= 1.
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
    """The first ``released`` rounds of an ``Allocation``. The other rounds are not out, and may never be.

    Args:
        mechanism: one round.
        k: 0 to ``rounds``.
        rounds: T >= 1, of the whole run.
        released: 0 to ``rounds``.
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
        return AllocationPrefix(self.mechanism, self.k, self.rounds, rounds)


@dataclass(frozen=True)
class CappedPoisson(Hidden):
    """Poisson sampling over ``rounds`` rounds, with a cap. Where a person's coins choose more than ``at_most`` rounds,
    the person takes part in that many of them, drawn uniformly (Feldman, Shenfeld 2025, proof of Corollary 4.7).

    Args:
        mechanism: one round.
        rate: of the coins, in [0, 1].
        at_most: 1 to ``rounds``.
        rounds: T >= 1, of the whole run.
        released: the number of released rounds, 0 to ``rounds``; default: all.
    """

    rate: checks.Probability
    at_most: Annotated[int, checks.UpTo("rounds", smallest=1)]
    rounds: checks.Count
    released: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.released is not None:
            released = checks.count("released", self.released, 0, self.rounds, "rounds")
            object.__setattr__(self, "released", None if released == self.rounds else released)

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

    @property
    def span(self) -> int:
        return self.rounds if self.released is None else self.released

    def unamplified(self) -> Mechanism:
        return Repeat(self.mechanism.unamplified(), min(self.at_most, self.span))

    def _prefix(self, rounds: int) -> Mechanism:
        return replace(self, released=rounds)
