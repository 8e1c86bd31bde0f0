"""Amplification by what stays hidden: sampling, submodels, dropout, and check-in to k of T rounds.

The hidden choice is independent across people, fresh, and unknown to whoever sees the releases. Somebody who takes no
part contributes zero, so that the neighbours are zero-out or add/remove.
"""

from dataclasses import dataclass, replace

from fedamp.accounting import checks
from fedamp.accounting.mechanism import Mechanism, OfOne, Relation, mechanism_of
from fedamp.accounting.releases import Repeat


def hidden(mechanism: Mechanism, kind: str) -> Mechanism:
    """A mechanism of which a hidden choice may be part, or ValueError."""
    if mechanism_of(mechanism).relation is Relation.SUBSTITUTION:
        raise ValueError(
            f"{kind} hides whether a person takes part: accepted are zero-out and add/remove, got a "
            f"mechanism for substitution ({mechanism.words})"
        )
    if mechanism.is_of_whole_run:
        raise ValueError(
            f"{kind} takes one person's release; a group or a batch applies to the whole run, got {mechanism.words}"
        )
    return mechanism


@dataclass(frozen=True)
class Poisson(OfOne):
    """A person takes part with probability ``rate``, by a private coin.

    Parts that share the coin (the shared and the split part of one round) must be composed first and sampled together.

    Args:
        mechanism: what a participant's data goes through.
        rate: in [0, 1].
    """

    rate: float

    def __post_init__(self) -> None:
        hidden(self.mechanism, "Poisson")
        object.__setattr__(self, "rate", checks.probability("rate", self.rate))

    @property
    def words(self) -> str:
        return f"Poisson sampling at rate {self.rate:g} of ({self.mechanism.words})"

    @property
    def is_empty(self) -> bool:
        return self.rate == 0


@dataclass(frozen=True)
class Submodels(OfOne):
    """A person trains one of ``count`` disjoint submodels, drawn at random and hidden (Dong, Chen, Özgür 2025,
    Theorem 3.4).

    Submodels drawn afresh each round are ``Repeat(Submodels(m, d), T)``; drawn once for the run,
    ``Submodels(Repeat(m, T), d)``. Whatever is not silenced outside a submodel (the output layer, normalisation) is
    shared: compose it inside the round, with its own clipping norm.

    Args:
        mechanism: one submodel's release.
        count: >= 1.
    """

    count: int

    def __post_init__(self) -> None:
        hidden(self.mechanism, "Submodels")
        object.__setattr__(self, "count", checks.count("count", self.count))

    @property
    def words(self) -> str:
        return f"one hidden submodel of {self.count} ({self.mechanism.words})"


@dataclass(frozen=True)
class Dropout(OfOne):
    """A person keeps each unit with probability ``keep``, one mask a person and round, hidden from whoever sees the
    release.

    Args:
        mechanism: the release of the whole model.
        keep: in (0, 1]. What is one n-th to floating point counts as one n-th: whoever draws the masks rounds down.
    """

    keep: float

    def __post_init__(self) -> None:
        hidden(self.mechanism, "Dropout")
        object.__setattr__(self, "keep", checks.probability("keep", self.keep))
        if self.keep == 0:
            raise ValueError("keep must be in (0, 1], got 0.0")

    @property
    def words(self) -> str:
        return f"hidden dropout, keep {self.keep:g}, of ({self.mechanism.words})"


@dataclass(frozen=True)
class Allocation(OfOne):
    """The whole run of ``rounds`` rounds, of which a person takes part in exactly ``k``, drawn at random and hidden.

    Args:
        mechanism: one round; it may itself be amplified (``Submodels``) or composed.
        k: 0 to ``rounds``.
        rounds: T >= 1.
    """

    k: int
    rounds: int

    def __post_init__(self) -> None:
        hidden(self.mechanism, "Allocation")
        object.__setattr__(self, "rounds", checks.count("rounds", self.rounds))
        object.__setattr__(self, "k", checks.count("k", self.k, 0, self.rounds, "rounds"))

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
class AllocationPrefix(OfOne):
    """The first ``released`` rounds of an ``Allocation``; the others are not out, and may never be.

    Args:
        mechanism: one round.
        k: 0 to ``rounds``.
        rounds: T >= 1, of the whole run.
        released: 0 to ``rounds``.
    """

    k: int
    rounds: int
    released: int

    def __post_init__(self) -> None:
        self.whole()
        object.__setattr__(self, "released", checks.count("released", self.released, 0, self.rounds, "rounds"))

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
class CappedPoisson(OfOne):
    """Poisson sampling over ``rounds`` rounds, with a cap on a person's rounds: of as many as their coins come to, but
    at most ``at_most``, hidden and drawn uniformly (the scheme in the proof of Feldman, Shenfeld 2025, Corollary 4.7).

    Args:
        mechanism: one round.
        rate: of the coins, in [0, 1].
        at_most: 1 to ``rounds``.
        rounds: T >= 1, of the whole run.
        released: how many of them are out, 0 to ``rounds``; all if left out.
    """

    rate: float
    at_most: int
    rounds: int
    released: int | None = None

    def __post_init__(self) -> None:
        hidden(self.mechanism, "CappedPoisson")
        object.__setattr__(self, "rate", checks.probability("rate", self.rate))
        object.__setattr__(self, "rounds", checks.count("rounds", self.rounds))
        object.__setattr__(self, "at_most", checks.count("at_most", self.at_most, 1, self.rounds, "rounds"))
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
