"""Several people protected together, and batches of a fixed size: what happened, and the rules that are exact."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from fedamp.accounting import checks
from fedamp.accounting.amplification import (
    Allocation,
    AllocationPrefix,
    CappedPoisson,
    Cyclic,
    Dropout,
    Poisson,
    Spaced,
    Submodels,
)
from fedamp.accounting.bounds import NotEvaluable
from fedamp.accounting.mechanism import Mechanism, Relation, mechanism_of
from fedamp.accounting.merging import RandomSelection
from fedamp.accounting.releases import (
    Compose,
    Gaussian,
    GroupPoissonGaussian,
    Laplace,
    NotPrivate,
    RandomisedResponse,
    Repeat,
)


@dataclass(frozen=True)
class Group(Mechanism):
    """A mechanism as ``size`` people (1 to 1000) together see it, who choose and are sampled independently of one
    another; ``group`` uses it where it knows nothing exact.
    """

    mechanism: Annotated[Mechanism, mechanism_of]
    size: Annotated[int, partial(checks.count, largest=1000)]
    text = "a group of {0.size}: {0.mechanism.words}"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size > 1 and self.mechanism.contains((Cyclic, Spaced)):
            raise ValueError("a group of people whose rows meet in banded noise is not charged; expected: size 1")

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

    ``batch`` and ``size``, the number of people changed together, are from 1 to ``population``.
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
        try:
            return group(substituted(opened), people)
        except NotEvaluable:
            return WithoutReplacement(opened, self.batch, self.batch, people)


def substituted(mechanism: Mechanism) -> Mechanism:
    """The same release for neighbours that differ by substitution; NotEvaluable if that is not known."""
    match mechanism:
        case Gaussian() | Laplace() | RandomisedResponse():
            return replace(mechanism, relation=Relation.SUBSTITUTION)
        case NotPrivate():
            return mechanism
        case RandomSelection() | Repeat() | Compose():
            return mechanism.with_parts(substituted)
    raise NotEvaluable(f"{type(mechanism).__name__} under substitution is not known")


def group(mechanism: Mechanism, size: int) -> Mechanism:
    """The mechanism as a group of ``size`` people sees it, by the tightest known rule: exact for (Poisson sampled)
    Gaussians and their compositions, else the smallest of several bounds of the whole (``Group``). The people choose
    and are sampled independently of one another.
    """
    mechanism_of("mechanism", mechanism)
    if checks.count("size", size) == 1:
        return mechanism
    try:
        return exact_group(mechanism, size)
    except NotEvaluable:
        return Group(mechanism, size)


def exact_group(mechanism: Mechanism, size: int) -> Mechanism:
    """The rules that lose nothing; NotEvaluable if there is none. (For parts alone the generic property costs more than
    for the whole.)
    """
    match mechanism:
        case NotPrivate() | RandomisedResponse():
            return mechanism
        case Gaussian(noise):
            return replace(mechanism, noise_multiplier=noise / size)
        case Laplace(scale):
            return replace(mechanism, scale=scale / size)
        case Poisson(RandomisedResponse() as bit, rate):
            # Schuchardt et al. 2024, Theorem G.1: the worst is a bit that anybody of the group turns.
            return Poisson(bit, 1 - (1 - rate) ** size)
        case Poisson(inner, rate):
            one = _as_gaussian(inner)
            return GroupPoissonGaussian(one.noise_multiplier, rate, size, relation=one.relation)
        case Repeat() | Compose():
            return mechanism.with_parts(lambda part: exact_group(part, size))
    raise NotEvaluable(f"{type(mechanism).__name__} has no exact rule for groups")


def group_by_rounds(mechanism: Mechanism, size: int) -> Mechanism:
    """The exact rule with choices inside rounds (submodels, masks) revealed, not participation; or NotEvaluable."""
    match mechanism:
        case Poisson(inner, rate):
            return exact_group(Poisson(inner.unamplified(), rate), size)
        case WithoutReplacement(inner, batch, population, people):  # it charges groups itself
            opened = inner.unamplified()
            exact_group(opened, 2)
            return WithoutReplacement(opened, batch, population, min(people * size, population))
        case Repeat() | Compose():
            return mechanism.with_parts(lambda part: group_by_rounds(part, size))
    return exact_group(mechanism.unamplified(), size)


def chooses_bits(mechanism: Mechanism) -> bool:
    """Whether a person's hidden choice decides which of several randomised bits is theirs."""
    return with_own_bits(mechanism, 2) != mechanism


def with_own_bits(mechanism: Mechanism, size: int, chosen: bool = False) -> Mechanism:
    """The same for the worst of all choices: each of ``size`` people has chosen another bit, if a hidden choice inside
    or above (``chosen``) decides which bit is a person's.
    """
    chosen = chosen or isinstance(mechanism, (Submodels, Dropout, Allocation, AllocationPrefix, CappedPoisson))
    if isinstance(mechanism, RandomisedResponse):
        return Repeat(mechanism, size) if chosen else mechanism
    return mechanism.with_parts(lambda part: with_own_bits(part, size, chosen))


def _as_gaussian(mechanism: Mechanism) -> Gaussian:
    """Gaussian releases that one coin decides together as one release; NotEvaluable if they are not Gaussian."""
    match mechanism:
        case Gaussian():
            return mechanism
        case Compose(parts):
            known = [_as_gaussian(part) for part in parts]
            return replace(known[0], noise_multiplier=sum(part.noise_multiplier**-2 for part in known) ** -0.5)
    raise NotEvaluable(f"{type(mechanism).__name__} is not Gaussian")
