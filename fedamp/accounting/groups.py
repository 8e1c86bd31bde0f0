"""Several people protected together, and batches of a fixed size: what happened, and the rules that are exact."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from fedamp.accounting import checks
from fedamp.accounting.amplification import Allocation, AllocationPrefix, CappedPoisson, Dropout, Poisson, Submodels
from fedamp.accounting.mechanism import Mechanism, OfOne, Relation, mechanism_of
from fedamp.accounting.merging import LinearCombination, RandomSelection
from fedamp.accounting.releases import (
    Compose,
    Gaussian,
    GroupPoissonGaussian,
    Laplace,
    NotPrivate,
    RandomisedResponse,
    Repeat,
)

Rule = Callable[[Mechanism, int], Mechanism | None]


@dataclass(frozen=True)
class Group(Mechanism):
    """Any mechanism as ``size`` people together see it; ``group`` uses it where it knows nothing exact.

    Args:
        mechanism: what one person goes through; the people choose and are sampled independently of one another.
        size: K, 1 to 1000.
    """

    mechanism: Annotated[Mechanism, mechanism_of]
    size: Annotated[int, partial(checks.count, largest=1000)]

    @property
    def words(self) -> str:
        return f"a group of {self.size}: {self.mechanism.words}"

    @property
    def is_of_whole_run(self) -> bool:
        return True

    @property
    def span(self) -> int:
        return self.mechanism.span

    def unamplified(self) -> Mechanism:
        return group(with_own_bits(self.mechanism, self.size).unamplified(), self.size)

    def _prefix(self, rounds: int) -> Mechanism:
        return Group(self.mechanism.after(rounds), self.size)


@dataclass(frozen=True)
class WithoutReplacement(Mechanism):
    """A batch of ``batch`` out of ``population`` people, drawn uniformly without replacement; both are public.

    Its neighbours differ by substitution: ``size`` people are replaced by others (or their contributions zeroed). The
    batch's release is written for zero-out; a substitution is charged as a change of two contributions.

    Args:
        mechanism: one batch's release, for zero-out or add/remove.
        batch: 1 to ``population``.
        population: >= 1.
        size: people changed together, 1 to ``population``.
    """

    mechanism: Annotated[Mechanism, mechanism_of]
    batch: Annotated[int, checks.UpTo("population", smallest=1)]
    population: checks.Count
    size: Annotated[int, checks.UpTo("population", smallest=1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mechanism.relation is Relation.SUBSTITUTION:
            raise ValueError(
                "WithoutReplacement takes a release for zero-out, and charges substitution itself; "
                f"got one for substitution ({self.mechanism.words})"
            )

    @property
    def words(self) -> str:
        together = "" if self.size == 1 else f", as {self.size} of them together see it"
        return f"{self.batch} of {self.population} people without replacement ({self.mechanism.words}){together}"

    @property
    def is_of_whole_run(self) -> bool:
        return True

    @property
    def relation(self) -> Relation | None:
        return Relation.SUBSTITUTION

    def unamplified(self) -> Mechanism:
        people = min(self.size, self.batch)
        opened = with_own_bits(self.mechanism, people).unamplified()
        known = substituted(opened)
        return group(known, people) if known else WithoutReplacement(opened, self.batch, self.batch, people)


def substituted(mechanism: Mechanism) -> Mechanism | None:
    """The same release for neighbours that differ by substitution; None where that is not known."""
    if isinstance(mechanism, (Gaussian, Laplace, RandomisedResponse)):
        return replace(mechanism, relation=Relation.SUBSTITUTION)
    if isinstance(mechanism, RandomSelection):
        parts = [substituted(part) for part in mechanism.mechanisms]
        known = tuple(part for part in parts if part is not None)
        return RandomSelection(known, mechanism.weights) if len(known) == len(parts) else None
    if isinstance(mechanism, NotPrivate):
        return mechanism
    return _composed(mechanism, 1, lambda part, _: substituted(part))


def group(mechanism: Mechanism, size: int) -> Mechanism:
    """The mechanism as a group of ``size`` people sees it, by the tightest known rule: exact for (Poisson sampled)
    Gaussians and their compositions, else the smallest of several bounds of the whole (``Group``).

    Args:
        mechanism: what one person goes through.
        size: >= 1; the people choose and are sampled independently of one another.
    """
    mechanism_of("mechanism", mechanism)
    if checks.count("size", size) == 1:
        return mechanism
    return exact_group(mechanism, size) or Group(mechanism, size)


def exact_group(mechanism: Mechanism, size: int) -> Mechanism | None:
    """The rules that lose nothing; None where there is none."""
    if isinstance(mechanism, (NotPrivate, RandomisedResponse)):
        return mechanism
    if isinstance(mechanism, Gaussian):
        return replace(mechanism, noise_multiplier=mechanism.noise_multiplier / size)
    if isinstance(mechanism, Laplace):
        return replace(mechanism, scale=mechanism.scale / size)
    if isinstance(mechanism, Poisson) and (round_ := _as_gaussian(mechanism.mechanism)) is not None:
        return GroupPoissonGaussian(round_.noise_multiplier, mechanism.rate, size, relation=round_.relation)
    if isinstance(mechanism, Poisson) and isinstance(mechanism.mechanism, RandomisedResponse):
        # Schuchardt et al. 2024, Theorem G.1: the worst is a bit that anybody of the group turns.
        return Poisson(mechanism.mechanism, 1 - (1 - mechanism.rate) ** size)
    return _composed(mechanism, size, exact_group)


def group_by_rounds(mechanism: Mechanism, size: int) -> Mechanism | None:
    """Who takes part stays hidden; what is hidden inside a round (submodels, masks) is revealed."""
    if isinstance(mechanism, Poisson):
        return exact_group(Poisson(mechanism.mechanism.unamplified(), mechanism.rate), size)
    if isinstance(mechanism, WithoutReplacement):  # which charges groups itself
        people = min(mechanism.size * size, mechanism.population)
        opened = mechanism.mechanism.unamplified()
        if exact_group(opened, 2) is None:
            return None
        return WithoutReplacement(opened, mechanism.batch, mechanism.population, people)
    if isinstance(mechanism, (Repeat, Compose)):
        return _composed(mechanism, size, group_by_rounds)
    return exact_group(mechanism.unamplified(), size)


def chooses_bits(mechanism: Mechanism) -> bool:
    """Whether a person's hidden choice decides which of several randomised bits is theirs."""
    return with_own_bits(mechanism, 2) != mechanism


def with_own_bits(mechanism: Mechanism, size: int, chosen: bool = False) -> Mechanism:
    """The same where, of ``size`` people whose hidden choices decide which bit is theirs, each has chosen another one,
    the worst of all choices. ``chosen``: whether what is above it is such a choice.
    """
    chosen = chosen or isinstance(mechanism, (Submodels, Dropout, Allocation, AllocationPrefix, CappedPoisson))
    if isinstance(mechanism, RandomisedResponse):
        return Repeat(mechanism, size) if chosen else mechanism
    if isinstance(mechanism, (Compose, RandomSelection, LinearCombination)):
        return replace(mechanism, mechanisms=[with_own_bits(part, size, chosen) for part in mechanism.mechanisms])
    if isinstance(mechanism, (OfOne, Group, WithoutReplacement)):
        return replace(mechanism, mechanism=with_own_bits(mechanism.mechanism, size, chosen))
    return mechanism


def _composed(mechanism: Mechanism, size: int, rule: Rule) -> Mechanism | None:
    """A composition by a rule for its parts. (Composed, the generic property of parts costs more than of the whole.)"""
    if isinstance(mechanism, Repeat):
        repeated = rule(mechanism.mechanism, size)
        return None if repeated is None else Repeat(repeated, mechanism.times)
    if isinstance(mechanism, Compose):
        parts = [rule(part, size) for part in mechanism.mechanisms]
        known = tuple(part for part in parts if part is not None)
        return Compose(known) if len(known) == len(parts) else None
    return None


def _as_gaussian(mechanism: Mechanism) -> Gaussian | None:
    """Releases with Gaussian noise that one coin decides together are one, of all their signal."""
    if isinstance(mechanism, Gaussian):
        return mechanism
    if isinstance(mechanism, Compose):
        parts = [_as_gaussian(part) for part in mechanism.mechanisms]
        known = [part for part in parts if part is not None]
        noise = sum(part.noise_multiplier**-2 for part in known)
        return replace(known[0], noise_multiplier=noise**-0.5) if len(known) == len(parts) else None
    return None
