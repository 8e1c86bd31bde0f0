"""The Rényi evaluator: moments of the likelihood ratio X of every kind of mechanism, one dispatch.

``moments_of(event)`` answers with four things, each exact or an upper bound: the central moments, the raw and the
negative ones, and the Laplace transform, from which the negative ones follow (``transform``). Kinds that have no
entry are charged as what ``reductions.charged_as`` makes of them.
"""

import functools
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from fedamp.accounting import moments, transform
from fedamp.accounting.amplification import Allocation, AllocationPrefix, Poisson, Submodels
from fedamp.accounting.composition import Compose, RandomSelection, Repeat
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.moments import Array
from fedamp.accounting.occupancy import allocation_log_moments
from fedamp.accounting.points import NotEvaluable
from fedamp.accounting.reductions import charged_as, concentrated, factors
from fedamp.accounting.releases import (
    Gaussian,
    GaussianMixture,
    Laplace,
    MixedCoordinate,
    ModelMix,
    NotPrivate,
    RandomisedResponse,
)
from fedamp.accounting.renyi import HIGHEST_ORDER
from fedamp.accounting.transform import Transform

_EXACT_ORDER = 5
"""Up to which order the moments of several hidden rounds are exact; there are too many overlaps beyond."""


class Moments:
    """What the Rényi evaluator knows of one mechanism; every answer is computed once.

    Attributes:
        symmetric: whether the two laws are mirror images (an involution swaps them), or ``raw`` bounds both
            directions: then E[X^-b] is at most what is charged for E[X^(b+1)].
    """

    symmetric = False

    def __init__(self, event: Any = None) -> None:
        self._known: dict[tuple[str, int], Array] = {}

    def central(self, highest: int) -> Array:
        """log E[(X - 1)^j], j = 0..highest."""
        return self._once(self._central, highest)

    def raw(self, highest: int) -> Array:
        """log E[X^a], a = 0..highest."""
        return self._once(self._raw, highest)

    def negative(self, highest: int) -> Array:
        """log E[X^-b], b = 0..highest-1."""
        return self._once(self._negative, highest)

    def transform(self, u: Array) -> Transform:
        """Upper bounds of the Laplace transform of X."""
        return transform.from_moments(self.raw(HIGHEST_ORDER), self.negative(HIGHEST_ORDER), u)

    def _once(self, compute: Callable[[int], Array], highest: int) -> Array:
        key = compute.__name__, highest
        if key not in self._known:
            self._known[key] = compute(highest)
        return self._known[key]

    def _central(self, highest: int) -> Array:
        raise NotImplementedError  # of groups and batches, which nothing hidden contains

    def _raw(self, highest: int) -> Array:
        return moments.raw(self.central(highest))

    def _negative(self, highest: int) -> Array:
        return self.raw(highest)[1:] if self.symmetric else transform.negative_moments(self.transform, highest)


def log_moments(event: Mechanism, highest: int) -> Array:
    """The larger of log E[X^a] and log E[X^(1-a)] at a = 0..highest (see ``renyi``)."""
    found = moments_of(event)
    both = found.raw(highest).copy()
    both[1:] = np.maximum(both[1:], found.negative(highest))
    return both


_KINDS: dict[type[Mechanism], Callable[[Any], Moments]] = {}


@lru_cache(maxsize=1024)
def moments_of(event: Mechanism) -> Moments:
    """The moments of a mechanism of any kind."""
    kind = _KINDS.get(type(event))
    return kind(event) if kind else moments_of(charged_as(event))


def answers_for(*kinds: type[Mechanism]) -> Callable[[type[Moments]], type[Moments]]:
    """Register how the moments of some kinds are computed."""

    def register(cls: type[Moments]) -> type[Moments]:
        _KINDS.update(dict.fromkeys(kinds, cls))
        return cls

    return register


# Releases.


@answers_for(Gaussian)
class _Gaussian(Moments):
    symmetric = True

    def __init__(self, event: Gaussian) -> None:
        super().__init__()
        self.noise = event.noise_multiplier / event.change

    def _central(self, highest: int) -> Array:
        s, result = self.noise, np.logaddexp(0.0, self.raw(highest))  # |X - 1|^a <= X^a + 1
        order = min(highest, max(2, int(4000 * s)))  # above, at such noise, that is as good as the integral
        z = np.arange(-10.0, order / s + 10.0, 0.25)  # E[X^a] is largest around z = a / s
        log_weights = -z * z / 2 + np.log(0.25 / np.sqrt(2 * np.pi))
        result[: order + 1] = moments.from_nodes(log_weights, z / s - 0.5 / s**2, order)
        return result

    def _raw(self, highest: int) -> Array:
        a = np.arange(highest + 1.0)
        return a * (a - 1) / (2 * self.noise**2)

    def transform(self, u: Array) -> Transform:
        return transform.gaussian(self.noise, u)


@answers_for(Laplace)
class _Laplace(Moments):
    symmetric = True

    def __init__(self, event: Laplace) -> None:
        super().__init__()
        self.scale = event.scale / event.change

    def _nodes(self, panels: int) -> tuple[Array, Array]:
        """Output y of Laplace(0): log X = (|y| - |y - 1|) / scale is constant below 0 and above 1; Gauss-Legendre
        panels between.
        """
        x, w = np.polynomial.legendre.leggauss(32)
        y = ((x + 1) / 2 + np.arange(panels)[:, None]).ravel() / panels
        gain = 1 / self.scale
        between = np.log(np.tile(w, panels) * gain / (4 * panels)) - y * gain
        log_weights = np.concatenate([[np.log(0.5)], between, [np.log(0.5) - gain]])
        return log_weights, gain * np.concatenate([[-1.0], 2 * y - 1, [1.0]])

    def _central(self, highest: int) -> Array:
        return moments.from_nodes(*self._nodes(1 + int(highest / self.scale / 32)), highest)

    def transform(self, u: Array) -> Transform:
        return transform.from_nodes(*self._nodes(4 + int(1 / self.scale)), u)


@answers_for(RandomisedResponse)
class _RandomisedResponse(Moments):
    symmetric = True

    def __init__(self, event: RandomisedResponse) -> None:
        super().__init__()
        true, false = np.log(event.probability), np.log1p(-event.probability)
        self.nodes = np.array([true, false]), np.array([false - true, true - false])

    def _central(self, highest: int) -> Array:
        return moments.from_nodes(*self.nodes, highest)

    def transform(self, u: Array) -> Transform:
        return transform.from_nodes(*self.nodes, u)


@answers_for(NotPrivate)
class _NotPrivate(Moments):
    symmetric = True

    def __init__(self, event: NotPrivate) -> None:
        super().__init__()

    def _central(self, highest: int) -> Array:
        return np.concatenate([[0.0, -np.inf], np.full(highest - 1, np.inf)])

    def _raw(self, highest: int) -> Array:
        return np.concatenate([[0.0, 0.0], np.full(highest - 1, np.inf)])

    def transform(self, u: Array) -> Transform:
        return Transform.from_log(u, np.zeros_like(u))


@answers_for(MixedCoordinate)
class _MixedCoordinate(Moments):
    symmetric = True

    def __init__(self, event: MixedCoordinate) -> None:
        super().__init__()
        self.event = event

    def _central(self, highest: int) -> Array:
        s, width, shift = self.event.noise_multiplier, self.event.width, self.event.shift
        a = np.arange(highest + 1.0)
        result = np.logaddexp(0.0, a * (a - 1) * (shift / s) ** 2 / 2)  # |X - 1|^a <= X^a + 1, less with mixing
        order = min(highest, max(2, int(4000 * s / shift)))  # above, at such noise, that is as good as the integral
        step, reach = s / 16, width / 2 + 10 * s
        result[:2] = 0.0, -np.inf
        if order * shift > 1e5 * step:  # no better than without mixing
            return result
        flat = width / 2 - 20 * s - shift  # up to here the ratio is 1 to more digits than there are
        if flat < 1e5 * step:
            y = np.arange(-reach, reach + order * shift, step)
        else:
            y = np.r_[np.arange(-reach, -flat, step), np.arange(flat, reach + order * shift, step)]
        density = log_density(y, s, width)
        ratios = log_density(y - shift, s, width) - density
        result[: order + 1] = moments.from_nodes(density + math.log(step), ratios, order)
        return result

    def transform(self, u: Array) -> Transform:
        plain = transform.gaussian(self.event.noise_multiplier / self.event.shift, u)
        return transform.smallest(super().transform(u), plain)


def log_density(y: Array, noise_multiplier: float, width: float) -> Array:
    """log of (Phi((y + w/2)/s) - Phi((y - w/2)/s)) / w, the density of Gaussian plus uniform noise, even in y."""
    from scipy.special import log_ndtr

    s, half = noise_multiplier, width / 2
    near = (half - np.abs(y)) / s
    far = (-half - np.abs(y)) / s
    if width < 0.01 * s:  # the difference would cancel; the density is that of the Gaussian, to second order
        x, w = np.polynomial.legendre.leggauss(4)
        points = (y[:, None] - half * x) / s
        return moments.log_sum(-points * points / 2 + np.log(w / 2)) - math.log(s * math.sqrt(2 * math.pi))
    upper = log_ndtr(near)
    return np.asarray(upper + np.log(-np.expm1(log_ndtr(far) - upper)) - math.log(width))


@answers_for(ModelMix)
class _ModelMix(Moments):
    """At whole orders from 2 up the worst contribution has its whole norm in as few coordinates as it may (Xiao, Wan,
    Devadas 2022, Theorem 4.1, Corollary 4.1; both directions, since the laws are mirror images). The paper calls the
    convexity behind it a simple calculation; what is needed of it is checked for the parameters in use, not proved
    (``method`` says so), and orders at which the check fails are charged as plain Gaussian noise.
    """

    symmetric = True

    def __init__(self, event: ModelMix) -> None:
        super().__init__()
        self.event = event
        self.plain, self.worst = moments_of(Gaussian(event.noise_multiplier)), moments_of(concentrated(event))

    def _central(self, highest: int) -> Array:
        holds = bool(worst_is_concentrated(self.event, highest).all())
        return (self.worst if holds else self.plain).central(highest)

    def _raw(self, highest: int) -> Array:
        plain = self.plain.raw(highest)
        holds = worst_is_concentrated(self.event, highest)
        return np.where(holds, np.minimum(self.worst.raw(highest), plain), plain)

    def transform(self, u: Array) -> Transform:
        return transform.smallest(super().transform(u), self.plain.transform(u))


@lru_cache(maxsize=64)
def worst_is_concentrated(event: ModelMix, highest: int = HIGHEST_ORDER) -> Array:
    """Whether each order 0..highest has its worst case in the fewest coordinates, checked on a grid of shifts.

    What is needed: log E[X^a] at shift v is at most (v / c)^2 times that at the largest shift c; convexity in v^2
    implies it.
    """
    if event.width == 0:
        return np.ones(highest + 1, dtype=bool)
    largest = 1 / math.sqrt(event.linf_coordinates)
    end = moments_of(MixedCoordinate(event.noise_multiplier, event.width, largest)).raw(highest)
    holds = np.isfinite(end)
    for part in (0.1, 0.25, 0.5, 0.75, 0.9):
        inner = moments_of(MixedCoordinate(event.noise_multiplier, event.width, part * largest)).raw(highest)
        holds &= inner <= part**2 * end * (1 + 1e-7) + 1e-12
    return holds


@answers_for(GaussianMixture)
class _GaussianMixture(Moments):
    def __init__(self, event: GaussianMixture) -> None:
        super().__init__()
        self.event, self.largest = event, event.shifts[-1]

    def _nodes(self, low: float, high: float) -> tuple[Array, Array]:
        step = min(0.25, 0.5 / max(self.largest, 1e-9))
        z = np.arange(low, high, step)
        return -z * z / 2 + np.log(step / np.sqrt(2 * np.pi)), log_ratio_of_mixture(self.event, z)

    def _quadrature_order(self, highest: int) -> int:
        """Up to which order moments are integrated; those above, useless at such shifts, are bounded by the largest
        shift.
        """
        return min(highest, max(2, int(1000 / max(self.largest, 1e-9))))

    def _central(self, highest: int) -> Array:
        order = self._quadrature_order(highest)
        a = np.arange(highest + 1.0)
        central = np.logaddexp(0.0, a * (a - 1) * self.largest**2 / 2)  # |X - 1|^a <= X^a + 1
        central[: order + 1] = moments.from_nodes(*self._nodes(-10.0, order * self.largest + 10.0), order)
        return central

    def _negative(self, highest: int) -> Array:
        order = self._quadrature_order(highest)
        b = np.arange(float(highest))
        result = b * (b + 1) * self.largest**2 / 2
        log_weights, log_ratios = self._nodes(-order * self.largest - 10.0, 10.0 + self.largest)
        result[:order] = [max(0.0, float(moments.log_sum(log_weights - n * log_ratios))) for n in range(order)]
        return result

    def transform(self, u: Array) -> Transform:
        return transform.from_nodes(*self._nodes(-40.0, 10.0 + 2 * self.largest), u)


def log_ratio_of_mixture(event: GaussianMixture, z: Array) -> Array:
    """log X at z, shape (n,)."""
    shifts, log_weights = np.array(event.shifts), np.log(event.weights)
    chunks = np.array_split(z, max(1, len(z) * len(shifts) // 1_000_000))
    return np.concatenate([moments.log_sum(log_weights + shifts * (c[:, None] - shifts / 2)) for c in chunks])


# What is made of others.


@answers_for(Compose, Repeat)
class _Product(Moments):
    """Zhu, Dong, Wang 2022, Theorem 10: moments multiply."""

    def __init__(self, event: Compose | Repeat) -> None:
        super().__init__()
        self.event = event
        factors_ = [(event.mechanism, event.times)] if isinstance(event, Repeat) else [(m, 1) for m in event.mechanisms]
        self.factors = [(moments_of(part), times) for part, times in factors_ if times]
        self.symmetric = all(part.symmetric for part, _ in self.factors)

    def _central(self, highest: int) -> Array:
        powers = [_power(part.central(highest), times) for part, times in self.factors]
        return functools.reduce(moments.multiply, powers) if powers else moments.constant(highest)

    def _raw(self, highest: int) -> Array:
        return np.sum([np.zeros(highest + 1), *(times * part.raw(highest) for part, times in self.factors)], axis=0)

    def _negative(self, highest: int) -> Array:
        return np.sum([np.zeros(highest), *(times * part.negative(highest) for part, times in self.factors)], axis=0)

    def transform(self, u: Array) -> Transform:
        """Exact for a Gaussian times at most one other factor; from second and negative moments otherwise."""
        precision, others = factors(self.event)
        if not others:
            return transform.gaussian(precision**-0.5, u) if precision else Transform(-u, np.zeros_like(u))
        if len(others) == 1 and max(others.values()) == 1:
            other = moments_of(next(iter(others)))
            return transform.times_gaussian(precision**-0.5, other.transform, u) if precision else other.transform(u)
        return super().transform(u)


def _power(central: Array, times: int) -> Array:
    """Central moments of the product of ``times`` copies, by repeated squaring."""
    result = None
    while True:
        if times & 1:
            result = central if result is None else moments.multiply(result, central)
        times >>= 1
        if not times:
            assert result is not None
            return result
        central = moments.multiply(central, central)


@answers_for(RandomSelection)
class _Mixture(Moments):
    """The law is drawn, not the variable (Yin, Zaheer, Li 2026, Theorems 5.1 and 5.2)."""

    def __init__(self, event: RandomSelection) -> None:
        super().__init__()
        used, self.weights = event.used
        self.parts = [moments_of(part) for part in used]
        self.symmetric = all(part.symmetric for part in self.parts)

    def _central(self, highest: int) -> Array:
        return moments.mixture([part.central(highest) for part in self.parts], self.weights)

    def _raw(self, highest: int) -> Array:
        return moments.mixture([part.raw(highest) for part in self.parts], self.weights)

    def _negative(self, highest: int) -> Array:
        return moments.mixture([part.negative(highest) for part in self.parts], self.weights)

    def transform(self, u: Array) -> Transform:
        return transform.mixture([part.transform(u) for part in self.parts], self.weights)


@answers_for(Poisson)
class _Thinned(Moments):
    """(1 - rate) + rate X (Zhu, Dong, Wang 2022, Theorem 11)."""

    def __init__(self, event: Poisson) -> None:
        super().__init__()
        self.part, self.rate = moments_of(event.mechanism), event.rate
        self.symmetric = self.rate == 1 and self.part.symmetric

    def _central(self, highest: int) -> Array:
        return moments.thin(self.part.central(highest), self.rate) if self.rate else moments.constant(highest)

    def _raw(self, highest: int) -> Array:
        return self.part.raw(highest) if self.rate == 1 else moments.raw(self.central(highest))

    def _negative(self, highest: int) -> Array:
        if self.rate == 1:
            return self.part.negative(highest)
        if self.part.symmetric:  # the remove direction is the larger: Mironov, Talwar, Zhang 2019, Theorem 5
            return self.raw(highest)[1:]
        return transform.negative_moments(self.transform, highest)

    def transform(self, u: Array) -> Transform:
        return transform.thin(self.part.transform, self.rate, u)


@answers_for(Submodels)
class _Mean(Moments):
    """The mean of ``count`` copies (Dong, Chen, Özgür 2025, Theorem 3.4, proof A.9; the quasi-convexity it uses holds
    for hockey-stick divergences too).
    """

    def __init__(self, event: Submodels) -> None:
        super().__init__()
        self.part, self.count = moments_of(event.mechanism), event.count
        self.symmetric = self.count == 1 and self.part.symmetric

    def _central(self, highest: int) -> Array:
        return moments.mean(self.part.central(highest), self.count)

    def _raw(self, highest: int) -> Array:
        return self.part.raw(highest) if self.count == 1 else moments.raw(self.central(highest))

    def _negative(self, highest: int) -> Array:
        if self.count == 1:
            return self.part.negative(highest)
        # Jensen: the mean is at least the geometric mean, so E[mean^-b] <= E[copy^(-b/n)]^n. Between whole powers the
        # log moment of a copy is convex, so its linear interpolation is above it.
        exact = transform.negative_moments(self.transform, highest)
        powers, of_a_copy = np.arange(float(highest)), self.part.negative(highest)
        return np.minimum(exact, self.count * np.interp(powers / self.count, powers, of_a_copy))

    def transform(self, u: Array) -> Transform:
        return transform.mean(self.part.transform, self.count, self.count, u)


@answers_for(Allocation, AllocationPrefix)
class _HiddenRounds(Moments):
    """The smallest, order by order: the split's or the coins' bound, for a prefix the whole run's, since moments only
    grow with the rounds, and at low orders the exact moment (``occupancy``), if there are not too many overlaps.
    """

    def __init__(self, event: Allocation | AllocationPrefix) -> None:
        super().__init__()
        self.event, self.split = event, moments_of(charged_as(event))
        self.bounds = [self.split] + ([moments_of(event.whole())] if isinstance(event, AllocationPrefix) else [])

    def _raw(self, highest: int) -> Array:
        result = np.min([bound.raw(highest) for bound in self.bounds], axis=0)
        one = moments_of(self.event.mechanism).raw(highest)
        released = self.event.released if isinstance(self.event, AllocationPrefix) else None
        for order in range(min(_EXACT_ORDER, highest), 1, -1) if self.event.k > 1 else ():
            try:
                exact = allocation_log_moments(one[: order + 1], self.event.k, self.event.rounds, released)
            except NotEvaluable:
                continue
            result[: order + 1] = np.minimum(result[: order + 1], exact)
            break
        return result

    def _negative(self, highest: int) -> Array:
        return np.min([bound.negative(highest) for bound in self.bounds], axis=0)

    def _central(self, highest: int) -> Array:
        return self.split.central(highest)

    def transform(self, u: Array) -> Transform:
        return self.split.transform(u)
