"""What one participation releases, and releases after one another."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from fedamp.accounting import checks
from fedamp.accounting.mechanism import Mechanism, OfOne, Relation, Release, mechanisms_of


@dataclass(frozen=True, repr=False)
class Gaussian(Release):
    """A sum with Gaussian noise. Its standard deviation is ``noise_multiplier`` clipping norms of a contribution."""

    noise_multiplier: checks.Scale
    text = "Gaussian noise of multiplier {0.noise_multiplier:g}"


@dataclass(frozen=True, repr=False)
class Laplace(Release):
    """A number with Laplace noise of the given scale, in units of the largest absolute contribution. Epsilon is at most
    1 / scale (2 / scale under substitution).
    """

    scale: checks.Scale
    text = "Laplace noise of scale {0.scale:g}"


@dataclass(frozen=True, repr=False)
class RandomisedResponse(Release):
    """One bit about all the data, true with a ``probability`` in [1/2, 1) and flipped otherwise. It is one bit however
    many people's data change. If every person gives a bit, a group of K people goes through K of these: ``Repeat``.
    """

    probability: checks.Probability
    text = "randomised response, true with probability {0.probability:g}"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.5 <= self.probability < 1:
            raise ValueError(f"probability must be in [0.5, 1), got {self.probability!r}")


@dataclass(frozen=True, repr=False)
class FiniteOutcomes(Release):
    """A release with finitely many outcomes: the probability of each with the person's contribution, ``present``, and
    with its replacement, ``absent``, for the worst neighbours. Both are of one length and sum to 1.
    """

    present: Sequence[float]
    absent: Sequence[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        size = len(checks.sequence("present", self.present))
        for name in ("present", "absent"):
            object.__setattr__(self, name, checks.weights(name, getattr(self, name), size))

    @property
    def words(self) -> str:
        return f"one of {len(self.present)} outcomes"


@dataclass(frozen=True, repr=False)
class Approximate(Release):
    """A black box that is (``known_epsilon``, ``known_delta``)-private, as somebody else has proved; ``known_epsilon``
    is >= 0, ``known_delta`` in [0, 1). Nothing more is known of it.
    """

    known_epsilon: Annotated[float, checks.scale_or_zero]
    known_delta: checks.Probability = 0.0
    text = "a black box of epsilon {0.known_epsilon:g} and delta {0.known_delta:g}"

    @property
    def releases_nothing(self) -> bool:
        return self.known_epsilon == self.known_delta == 0


@dataclass(frozen=True)
class NotPrivate(Mechanism):
    """A release without noise (noise multiplier 0): epsilon is infinite, for any neighbours."""

    text = "no noise, no privacy"

    @property
    def is_private(self) -> bool:
        return False


@dataclass(frozen=True, repr=False)
class ModelMix(Release):
    """One round of ModelMix: the server adds Gaussian noise to the sum, then mixes the last two models. Mixing adds
    uniform noise of the given width in every coordinate (Xiao, Wan, Devadas 2022, Theorem 4.1, Corollary 4.1).

    Clients train on the model before it is mixed. A round that starts from the mixture costs more than this charge.

    Args:
        noise_multiplier: s > 0, in units of the clipping norm of the (summed) update.
        width: tau / eta in the same units, >= 0: the largest distance of the mixed models over the learning rate.
            0: no mixing.
        linf_coordinates: p >= 1: every coordinate is clipped to norm / sqrt(p).
    """

    noise_multiplier: checks.Scale
    width: Annotated[float, checks.scale_or_zero]
    linf_coordinates: checks.Count = 1
    takes_substitution: ClassVar[bool] = False
    text = (
        "ModelMix of width {0.width:g}, {0.linf_coordinates} coordinates, "
        "Gaussian noise of multiplier {0.noise_multiplier:g}"
    )

    def unamplified(self) -> Mechanism:
        return Gaussian(self.noise_multiplier, relation=self.relation)


@dataclass(frozen=True, repr=False)
class MixedCoordinate(Release):
    """What an attacker sees in one coordinate of ``ModelMix``: Gaussian noise plus uniform noise of a ``width``,
    shifted or not. All fields are > 0, in units of the clipping norm.
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
    """

    shifts: Sequence[float]
    weights: Sequence[float]
    takes_substitution: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        shifts = tuple(checks.number("shifts", shift) for shift in checks.sequence("shifts", self.shifts))
        if not all(0 <= shift < math.inf for shift in shifts):
            raise ValueError(f"shifts must be >= 0 and finite, got {shifts!r}")
        merged: dict[float, float] = {}
        for shift, weight in sorted(zip(shifts, checks.weights("weights", self.weights, len(shifts)), strict=True)):
            if weight > 0:
                merged[shift] = merged.get(shift, 0.0) + weight
        object.__setattr__(self, "shifts", tuple(merged))
        object.__setattr__(self, "weights", tuple(merged.values()))

    @property
    def words(self) -> str:
        return f"Gaussian noise around one of {len(self.shifts)} shifts up to {self.shifts[-1]:g}"


@dataclass(frozen=True, repr=False)
class GroupPoissonGaussian(Release):
    """``size`` people (1 to 500) together under Poisson sampling and Gaussian noise, each sampled independently. The
    noise multiplier is in units of one person's clipping norm.
    """

    noise_multiplier: checks.Scale
    rate: checks.Probability
    size: Annotated[int, partial(checks.count, largest=500)]
    takes_substitution: ClassVar[bool] = False
    text = (
        "a group of {0.size} under Poisson sampling at rate {0.rate:g} and "
        "Gaussian noise of multiplier {0.noise_multiplier:g}"
    )

    @property
    def releases_nothing(self) -> bool:
        return self.rate == 0

    def unamplified(self) -> Mechanism:
        return Gaussian(self.noise_multiplier / self.size, relation=self.relation)


@dataclass(frozen=True)
class SubstitutedPoissonGaussian(Mechanism):
    """A Gaussian sum of a Poisson sample, for neighbours that differ by substitution: with probability ``rate`` the
    person's contribution is in it, or the other person's in its place.
    """

    noise_multiplier: checks.Scale
    rate: checks.Probability
    text = "Poisson sampling at rate {0.rate:g} of Gaussian noise of multiplier {0.noise_multiplier:g}"

    @property
    def relation(self) -> Relation | None:
        return Relation.SUBSTITUTION

    @property
    def releases_nothing(self) -> bool:
        return self.rate == 0

    def unamplified(self) -> Mechanism:
        return Gaussian(self.noise_multiplier, relation=Relation.SUBSTITUTION)


@dataclass(frozen=True)
class Compose(Mechanism):
    """Releases after one another. Each may depend on those before. If every part is a single release, they make one
    round together (for instance the shared and the split part of a model). If some part spans several rounds, the
    rounds of the parts follow one another. All parts are of one neighbouring relation.
    """

    mechanisms: Annotated[Sequence[Mechanism], mechanisms_of]

    @property
    def words(self) -> str:
        return "[" + "; then ".join(part.words for part in self.mechanisms) + "]"

    @property
    def span(self) -> int:
        spans = [part.span for part in self.mechanisms]
        return 1 if all(span == 1 for span in spans) else sum(spans)

    def unamplified(self) -> Mechanism:
        return self.with_parts(lambda part: part.unamplified())

    def _prefix(self, rounds: int) -> Mechanism:
        released: list[Mechanism] = []
        for part in self.mechanisms:
            if taken := min(rounds, part.span):
                released.append(part.after(taken))
            rounds -= taken
        return Compose(tuple(released)) if released else NOTHING


@dataclass(frozen=True)
class Repeat(OfOne):
    """The same mechanism ``times`` >= 0 times, one after another, with fresh randomness each time."""

    times: checks.CountOrZero

    @property
    def words(self) -> str:
        return f"{self.times} times ({self.mechanism.words})" if self.times else "nothing"

    @property
    def is_empty(self) -> bool:
        return self.times == 0

    @property
    def span(self) -> int:
        return self.times * self.mechanism.span

    def unamplified(self) -> Mechanism:
        return Repeat(self.mechanism.unamplified(), self.times)

    def _prefix(self, rounds: int) -> Mechanism:
        whole, rest = divmod(rounds, self.mechanism.span)
        released = Repeat(self.mechanism, whole)
        return Compose((released, self.mechanism.after(rest))) if rest else released


def composed(parts: Iterable[tuple[Mechanism, int]]) -> Mechanism:
    """Mechanisms one after another, each so many times; of none ``NOTHING``."""
    return Compose([Repeat(each, times) for each, times in parts] or [NOTHING])


NOTHING = Repeat(NotPrivate(), 0)  # the release that says nothing, for any neighbouring relation
