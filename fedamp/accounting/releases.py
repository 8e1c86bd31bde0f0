"""What one participation releases, and releases after one another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedamp.accounting import checks
from fedamp.accounting.mechanism import Mechanism, OfOne, Relation, Release, mechanism_of, mechanisms_of


@dataclass(frozen=True, repr=False)
class Gaussian(Release):
    """A sum with Gaussian noise: standard deviation ``noise_multiplier`` times the norm a person's contribution is
    clipped to.

    Args:
        noise_multiplier: > 0.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "noise_multiplier", checks.scale("noise_multiplier", self.noise_multiplier))

    @property
    def words(self) -> str:
        return f"Gaussian noise of multiplier {self.noise_multiplier:g}"


@dataclass(frozen=True, repr=False)
class Laplace(Release):
    """A number with Laplace noise of the given scale, in units of the largest absolute contribution.

    Args:
        scale: > 0; epsilon is at most 1 / scale (2 / scale under substitution).
    """

    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "scale", checks.scale("scale", self.scale))

    @property
    def words(self) -> str:
        return f"Laplace noise of scale {self.scale:g}"


@dataclass(frozen=True, repr=False)
class RandomisedResponse(Release):
    """A bit about everybody's data, told truthfully with the given probability and flipped otherwise.

    It is one bit however many people's data change. (Where everybody tells a bit of their own, a group of K people goes
    through K of these: ``Repeat``.)

    Args:
        probability: of the true answer, in [1/2, 1).
    """

    probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "probability", checks.probability("probability", self.probability))
        if not 0.5 <= self.probability < 1:
            raise ValueError(f"probability must be in [0.5, 1), got {self.probability!r}")

    @property
    def words(self) -> str:
        return f"randomised response, true with probability {self.probability:g}"


@dataclass(frozen=True)
class NotPrivate(Mechanism):
    """A release without noise (noise multiplier 0): epsilon is infinite, for any neighbours."""

    @property
    def words(self) -> str:
        return "no noise, no privacy"

    @property
    def is_private(self) -> bool:
        return False


@dataclass(frozen=True, repr=False)
class ModelMix(Release):
    """One round of ModelMix: the server adds Gaussian noise to the sum, and mixes the last two models afterwards, which
    adds uniform noise of the given width in every coordinate. (Xiao, Wan, Devadas 2022, Theorem 4.1, Corollary 4.1.)

    Clients train on the model before it is mixed; a round that started from the mixture would cost more than is charged
    here.

    Args:
        noise_multiplier: s > 0, in units of the clipping norm of the (summed) update.
        width: tau / eta in the same units, >= 0: the largest distance of the mixed models over the learning rate.
            0: no mixing.
        linf_coordinates: p >= 1: every coordinate is clipped to norm / sqrt(p).
    """

    noise_multiplier: float
    width: float
    linf_coordinates: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_contribution(self)
        object.__setattr__(self, "noise_multiplier", checks.scale("noise_multiplier", self.noise_multiplier))
        if self.width != 0 and checks.number("width", self.width) < 0:
            raise ValueError(f"width must be >= 0 and finite, got {self.width!r}")
        object.__setattr__(self, "width", checks.scale("width", self.width) if self.width else 0.0)
        object.__setattr__(self, "linf_coordinates", checks.count("linf_coordinates", self.linf_coordinates))

    @property
    def words(self) -> str:
        return (
            f"ModelMix of width {self.width:g}, {self.linf_coordinates} coordinates, "
            f"Gaussian noise of multiplier {self.noise_multiplier:g}"
        )

    def unamplified(self) -> Mechanism:
        return Gaussian(self.noise_multiplier, relation=self.relation)


@dataclass(frozen=True, repr=False)
class MixedCoordinate(Release):
    """One coordinate of ``ModelMix``: Gaussian plus uniform noise, shifted or not. What an adversary who looks at that
    coordinate sees.

    Args:
        noise_multiplier: s > 0, in units of the clipping norm.
        width: of the uniform noise, > 0, in the same units.
        shift: > 0, in the same units.
    """

    noise_multiplier: float
    width: float
    shift: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_contribution(self)
        for name in ("noise_multiplier", "width", "shift"):
            object.__setattr__(self, name, checks.scale(name, getattr(self, name)))

    @property
    def words(self) -> str:
        return f"a shift of {self.shift:g} under Gaussian {self.noise_multiplier:g} and uniform {self.width:g} noise"


@dataclass(frozen=True, repr=False)
class GaussianMixture(Release):
    """Unit Gaussian noise around a random shift when the person (or group) is in, around 0 when not.

    X = sum_i w_i exp(m_i z - m_i^2 / 2), z standard normal, increases in z; it is what remains of many dimensions when
    all shifts point the same way, which is the worst case for Rényi and hockey-stick divergences alike
    (supermodularity, as in the proof of Theorem 6.4 of Yin, Zaheer, Li 2026).

    Args:
        shifts: m_i >= 0, in standard deviations of the noise.
        weights: one per shift, >= 0, sum 1.
    """

    shifts: Sequence[float]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_contribution(self)
        shifts = tuple(checks.number("shifts", shift) for shift in checks.sequence("shifts", self.shifts))
        if not all(0 <= shift < math.inf for shift in shifts):
            raise ValueError(f"shifts must be >= 0 and finite, got {shifts!r}")
        weights = checks.weights("weights", self.weights, len(shifts))
        merged: dict[float, float] = {}
        for shift, weight in sorted(zip(shifts, weights, strict=True)):
            if weight > 0:
                merged[shift] = merged.get(shift, 0.0) + weight
        object.__setattr__(self, "shifts", tuple(merged))
        object.__setattr__(self, "weights", tuple(merged.values()))

    @property
    def words(self) -> str:
        return f"Gaussian noise around one of {len(self.shifts)} shifts up to {self.shifts[-1]:g}"


@dataclass(frozen=True, repr=False)
class GroupPoissonGaussian(Release):
    """``size`` people together under Poisson sampling and Gaussian noise, each sampled by an own coin.

    Args:
        noise_multiplier: > 0, in units of one person's clipping norm.
        rate: in [0, 1].
        size: 1 to 500.
    """

    noise_multiplier: float
    rate: float
    size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_contribution(self)
        object.__setattr__(self, "noise_multiplier", checks.scale("noise_multiplier", self.noise_multiplier))
        object.__setattr__(self, "rate", checks.probability("rate", self.rate))
        object.__setattr__(self, "size", checks.count("size", self.size, 1, 500))

    @property
    def words(self) -> str:
        return (
            f"a group of {self.size} under Poisson sampling at rate {self.rate:g} and "
            f"Gaussian noise of multiplier {self.noise_multiplier:g}"
        )

    @property
    def releases_nothing(self) -> bool:
        return self.rate == 0

    def unamplified(self) -> Mechanism:
        return Gaussian(self.noise_multiplier / self.size, relation=self.relation)


def _one_contribution(release: Release) -> None:
    """Refuse substitution where what is charged is a contribution against none."""
    if release.relation is Relation.SUBSTITUTION:
        kind = type(release).__name__
        raise ValueError(f"{kind} has the relation zero-out or add/remove; substitution is not charged, got it")


@dataclass(frozen=True)
class Compose(Mechanism):
    """Releases after one another, each may depend on those before.

    If every part is a single release they make one round together (for instance the shared and the split part of a
    model); if some part spans several rounds, the parts' rounds follow one another.

    Args:
        mechanisms: one or more, of one neighbouring relation.
    """

    mechanisms: Sequence[Mechanism]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mechanisms", mechanisms_of("mechanisms", self.mechanisms))

    @property
    def words(self) -> str:
        return "[" + "; then ".join(part.words for part in self.mechanisms) + "]"

    @property
    def span(self) -> int:
        spans = [part.span for part in self.mechanisms]
        return 1 if all(span == 1 for span in spans) else sum(spans)

    def unamplified(self) -> Mechanism:
        return Compose(tuple(part.unamplified() for part in self.mechanisms))

    def _prefix(self, rounds: int) -> Mechanism:
        released: list[Mechanism] = []
        for part in self.mechanisms:
            taken = min(rounds, part.span)
            if taken:
                released.append(part.after(taken))
            rounds -= taken
        return Compose(tuple(released)) if released else NOTHING


@dataclass(frozen=True)
class Repeat(OfOne):
    """The same mechanism several times, one after another, with fresh randomness each time.

    Args:
        mechanism: what is repeated.
        times: >= 0; 0 releases nothing.
    """

    times: int

    def __post_init__(self) -> None:
        mechanism_of(self.mechanism)
        object.__setattr__(self, "times", checks.count("times", self.times, 0))

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


NOTHING = Repeat(NotPrivate(), 0)
"""The release that tells nothing, whatever the neighbouring relation."""
