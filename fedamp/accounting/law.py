"""The certified numerical law of the likelihood ratio ``X = dP/dQ`` of each kind of mechanism, from both sides.

A :class:`Law` holds two finite laws, one larger and one smaller than X in convex order (the pessimistic and the
optimistic discretisation). Each operation keeps that order, so every answer is a bracket. Kinds that have no entry in
``law_by_kind`` are charged as what ``theorems.charged_as`` makes of them.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, singledispatch
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedamp.accounting import checks, events
from fedamp.accounting.arithmetic import (
    UNIT,
    Array,
    log_sum,
    normal_mass,
    repeated,
    rounding_of_cells,
    rounding_of_masses,
    rounding_of_sums,
)
from fedamp.accounting.bounds import Bounds, Method, NotEvaluable
from fedamp.accounting.convolve import (
    DEFAULT_POINTS,
    Cells,
    Pairing,
    PointProfile,
    Points,
    choose_edges,
    choose_lattice,
    contract,
    convolve,
    pair,
    reduced,
    scaled,
    spread,
    thinned,
    union,
)
from fedamp.accounting.theorems import changed_batch, charged_as, factors

_FEW = 4  # products of fewer factors are paired; from here on they are convolved on a lattice


@dataclass(frozen=True, eq=False)
class Law:
    """The law of ``X = dP/dQ`` under Q, bracketed in convex order. ``upper``: a mean-preserving spread of the true law.
    ``lower``: a contraction of it. ``rounding``: bound r on the relative error of all masses from floating point.
    Masses off by at most a factor ``1 + r`` move the profile by at most ``2 r`` in epsilon and ``1 + r`` in delta;
    answers are widened by it. ``points``: number of points the operations keep.
    """

    upper: Points
    lower: Points
    rounding: float
    points: int

    def __post_init__(self) -> None:
        for law in (self.upper, self.lower):
            totals = law.mass_in.sum() + law.infinite, law.mass_out.sum() + law.zero
            if not np.isfinite(totals).all():
                raise NotEvaluable("the likelihood ratio leaves the range of floating point; use a Rényi bound")
            if max(abs(total - 1) for total in totals) > 1e-6 + 2 * self.rounding:  # what comes of it is no bound
                raise NotEvaluable(f"the masses of a law come to {totals[0]:g} and {totals[1]:g}, not 1")

    @classmethod
    @lru_cache(maxsize=256)
    def gaussian(cls, noise_multiplier: float, *, points: int = DEFAULT_POINTS, reach: float = 9.5) -> "Law":
        """The Gaussian mechanism: ``X = exp(z/s - 1/(2 s^2))``, z standard normal. ``noise_multiplier``: s > 0,
        standard deviation of the noise over the sensitivity. ``reach``: see ``Detail``.
        """
        shift = 1.0 / checks.positive("noise_multiplier", noise_multiplier)

        def mass_in(low: Array, high: Array) -> Array:
            return normal_mass(low - shift, high - shift)

        return cls.from_function(lambda z: z * shift - shift**2 / 2, mass_in, shift, points=points, reach=reach)

    @classmethod
    def from_function(
        cls,
        log_ratio: Callable[[Array], Array],
        mass_in: Callable[[Array, Array], Array],
        largest_shift: float,
        *,
        mass_out: Callable[[Array, Array], Array] = normal_mass,
        least_shift: float = 0.0,
        points: int = DEFAULT_POINTS,
        reach: float = 9.5,
    ) -> "Law":
        """X is an increasing function of z, which is near shifted normals. ``log_ratio``: log X at each z. ``mass_in``,
        ``mass_out``: P- and Q-mass of the intervals between two arrays of ends (maybe infinite); by default z is
        standard normal under Q. Both have nearly all of their mass between ``least_shift`` - ``reach`` and
        ``largest_shift`` + ``reach`` (all but 1e-20 by default).
        """
        z = np.linspace(least_shift - reach, largest_shift + reach, 4 * points)
        low, high = np.r_[-np.inf, z], np.r_[z, np.inf]
        cells = Cells(log_ratio(z), mass_in(low, high), mass_out(low, high))
        return cls(spread(cells), contract(cells), rounding_of_masses(cells.edges), points)

    @classmethod
    @lru_cache(maxsize=64)
    def laplace(cls, scale: float, *, points: int = DEFAULT_POINTS) -> "Law":
        """The Laplace mechanism of sensitivity 1. ``scale``: b > 0 of the noise density ``exp(-|z|/b) / (2 b)``."""
        z = np.linspace(0.0, 1.0, 4 * points)
        log_ratio = (2.0 * z - 1.0) / checks.positive("scale", scale)
        between_out = 0.5 * np.exp(-z[:-1] / scale) * -np.expm1(-np.diff(z) / scale)
        mass_out = np.r_[0.5, between_out, 0.5 * np.exp(-1.0 / scale)]
        mass_in = np.r_[0.5 * np.exp(-1.0 / scale), between_out[::-1], 0.5]
        # Outside [0, 1] the ratio is constant, so the outermost masses sit on the outermost edges.
        cells = Cells(log_ratio, np.r_[0.0, mass_in[1:-1], 0.0], np.r_[0.0, mass_out[1:-1], 0.0])
        ends = Points(log_ratio[[0, -1]], mass_in[[0, -1]], mass_out[[0, -1]])
        return cls(union([spread(cells), ends]), union([contract(cells), ends]), rounding_of_masses(log_ratio), points)

    @classmethod
    def from_points(
        cls, ratio: ArrayLike, mass_out: ArrayLike, *, infinite: float = 0.0, points: int = DEFAULT_POINTS
    ) -> "Law":
        """A finite law, exact. ``ratio``: values of X, >= 0, in any order. ``mass_out``: their Q-masses, summing to 1.
        ``infinite``: P-mass where X is infinite; ``sum(ratio * mass_out) + infinite`` must be 1.
        """
        ratio, mass_out = np.asarray(ratio, float), np.asarray(mass_out, float)
        if ratio.shape != mass_out.shape or ratio.ndim != 1 or not (ratio >= 0).all() or not (mass_out >= 0).all():
            raise ValueError("ratio and mass_out must be non-negative and of one length")
        if abs(mass_out.sum() - 1.0) > 1e-9 or abs(ratio @ mass_out + infinite - 1.0) > 1e-9 or infinite < 0:
            raise ValueError("mass_out must sum to 1, and ratio * mass_out and infinite together to 1")
        if not ratio.any():  # operations expect a finite ratio, if only of mass 0
            ratio, mass_out = np.append(ratio, 1.0), np.append(mass_out, 0.0)
        positive = ratio > 0
        order = np.argsort(ratio[positive], kind="stable")
        ratio, zero, mass_out = ratio[positive][order], mass_out[~positive].sum(), mass_out[positive][order]
        exact = Points(np.log(ratio), ratio * mass_out, mass_out, float(zero), infinite)
        return cls(exact, exact, rounding_of_masses(exact.log_ratio), points)

    def upper_only(self) -> "Law":
        """The same law with the trivial lower end (X = 1, epsilon 0): operations take half the time, for searches."""
        return Law(self.upper, _CONSTANT, self.rounding, self.points)

    def thin(self, rate: float) -> "Law":
        """Poisson sampling: ``(1 - rate) + rate X`` (Zhu, Dong, Wang 2022, Theorem 11). ``rate``: in [0, 1]."""
        if checks.probability("rate", rate) in (0.0, 1.0):
            return self if rate else _ONE
        lower = self.lower if self.lower is _CONSTANT else thinned(self.lower, rate)
        return Law(thinned(self.upper, rate), lower, self.rounding + 4 * UNIT, self.points)

    def mean(self, copies: int) -> "Law":
        """The mean of so many independent copies: one hidden choice of them (Dong, Chen, Özgür 2025, Theorem 3.4)."""
        return repeated((self._limited(), 1), checks.count("copies", copies), _mean_of_both)[0]

    @staticmethod
    def product(factors: Sequence[tuple["Law", int]]) -> "Law":
        """The product of independent X's, each to its multiplicity: composition (Zhu, Dong, Wang 2022, Theorem 10)."""
        factors = [(law, times) for law, times in factors if checks.count("times", times, 0) and law is not _ONE]
        points = max((law.points for law, _ in factors), default=1)
        if sum(times for _, times in factors) < _FEW or not all(law.upper.mass_in.any() for law, _ in factors):
            powers = [repeated(law, times, _multiply) for law, times in factors]
            return functools.reduce(_multiply, powers, _ONE)
        lattice = choose_lattice([(law.upper, times) for law, times in factors], points)
        if not lattice.fine and max(times for _, times in factors) > 1:
            return Law.product(_shortened(factors))
        rounding = sum(times * law.rounding for law, times in factors)
        upper, from_upper = convolve([(law.upper, times) for law, times in factors], lattice, above=True)
        lowers = [(law.lower, times) for law, times in factors if law.lower is not _CONSTANT]
        lower, from_lower = convolve(lowers, lattice, above=False) if lowers else (_CONSTANT, 0.0)
        return Law(upper, lower, rounding + max(from_upper, from_lower), points)

    @staticmethod
    def mixture(laws: Sequence["Law"], weights: Sequence[float]) -> "Law":
        """``laws[i]`` with probability ``weights[i]``: a public choice (Yin, Zaheer, Li 2026, Theorems 5.1 and 5.2)."""
        points = max(law.points for law in laws)
        used = [(law, w) for law, w in zip(laws, checks.weights("weights", weights, len(laws)), strict=True) if w > 0]
        upper, lower = (union([scaled(getattr(law, end), w) for law, w in used]) for end in ("upper", "lower"))
        rounding = max(law.rounding for law in laws) + rounding_of_sums(upper, lower)
        return Law(reduced(upper, points, spread), reduced(lower, points, contract), rounding, points)

    def in_either_order(self) -> "Law":
        """The law of a pair whose profile, in either order and from epsilon 0 up, is H(P, Q): X where it is above 1, as
        likely as 1/X under P, and 1 else. NotEvaluable: X is above 1 too often under both, so there is no such pair.
        """
        upper, excess = _mirrored(self.upper)
        lower, below = (_CONSTANT, 0.0) if self.lower is _CONSTANT else _mirrored(self.lower)
        rounding = self.rounding + 2 * rounding_of_sums(upper, lower) + max(excess, below)
        return Law(upper, lower, rounding, self.points)

    @cached_property
    def remove(self) -> "OneDirection":
        """The profile of H(P, Q): delta is ``E[(X - e^epsilon)+]``."""
        return OneDirection(PointProfile.of(self.lower), PointProfile.of(self.upper), self._slack, self.points)

    @cached_property
    def add(self) -> "OneDirection":
        """The profile of H(Q, P): delta is ``E[(1 - e^epsilon X)+]``."""
        lower, upper = PointProfile.of(self.lower.swapped), PointProfile.of(self.upper.swapped)
        return OneDirection(lower, upper, self._slack, self.points)

    def epsilon(self, delta: float) -> Bounds:
        """The smallest epsilon >= 0 with ``delta(epsilon) <= delta`` (in (0, 1)), both directions; may be infinite."""
        return _larger(self.remove.epsilon(delta), self.add.epsilon(delta))

    def delta(self, epsilon: float) -> Bounds:
        """The larger of both directions' delta at ``epsilon`` (>= 0)."""
        return _larger(self.remove.delta(epsilon), self.add.delta(epsilon))

    @property
    def _slack(self) -> float:
        """How far rounding moves answers."""
        return 2 * (self.rounding + rounding_of_sums(self.upper, self.lower))

    def _limited(self) -> "Law":
        """The law with few enough points to pair, and without ratios that a mean cannot hold."""
        upper, lower = reduced(self.upper, self.points, spread), reduced(self.lower, self.points, contract)
        return Law(upper, lower, self.rounding + rounding_of_sums(self.upper, self.lower), self.points)


@dataclass(frozen=True, eq=False)
class OneDirection:
    """The privacy profile of a law in one direction, from both sides."""

    lower: PointProfile
    upper: PointProfile
    slack: float
    points: int

    def epsilon(self, delta: float) -> Bounds:
        """The smallest epsilon >= 0 with ``delta(epsilon) <= delta`` (in (0, 1))."""
        upper = max(self.upper.epsilon_at(checks.delta(delta) / (1 + self.slack)) + self.slack, 0.0)
        lower = self.lower.epsilon_at(min(delta * (1 + self.slack), 1.0)) - self.slack
        return self._bounds(max(lower, 0.0), upper)

    def delta(self, epsilon: float) -> Bounds:
        """The smallest delta at ``epsilon`` (>= 0)."""
        upper = min(float(self.upper.delta_at(checks.epsilon(epsilon) - self.slack)) * (1 + self.slack), 1.0)
        return self._bounds(float(self.lower.delta_at(epsilon + self.slack)) / (1 + self.slack), upper)

    def _bounds(self, lower: float, upper: float) -> Bounds:
        return Bounds(min(lower, upper), upper, Method.LAW.of(self.points))


def _larger(remove: Bounds, add: Bounds) -> Bounds:
    return Bounds(max(remove.lower, add.lower), max(remove.upper, add.upper), remove.origin)


def _combine(a: Law, b: Law, pairing: Pairing) -> Law:
    points = max(a.points, b.points)
    a, b = (a._limited(), b._limited()) if a is not b else 2 * (a._limited(),)
    edges = choose_edges(a.upper, b.upper, pairing, points)
    rounding = a.rounding + b.rounding + rounding_of_cells(points)
    upper = pair(a.upper, b.upper, pairing, edges, spread)
    trivial = a.lower is _CONSTANT and b.lower is _CONSTANT
    lower = _CONSTANT if trivial else pair(a.lower, b.lower, pairing, edges, contract)
    return Law(upper, lower, float(rounding), points)


def _mean_of_both(a: tuple[Law, int], b: tuple[Law, int]) -> tuple[Law, int]:
    """Of two means, each with its number of copies."""
    copies = a[1] + b[1]
    return _combine(a[0], b[0], Pairing((a[1] / copies, b[1] / copies))), copies


def _multiply(a: Law, b: Law) -> Law:
    return b if a is _ONE else _combine(a, b, Pairing(None))


def _mirrored(law: Points) -> tuple[Points, float]:
    """The points above 1, their mirror images, and the rest of the mass at 1; by how much there is too much of it."""
    above = law.log_ratio > 0
    half = Points(law.log_ratio[above], law.mass_in[above], law.mass_out[above], 0.0, law.infinite)
    rest = 1.0 - float(half.mass_in.sum() + half.mass_out.sum()) - law.infinite
    if rest < -1e-6:
        raise NotEvaluable("a likelihood ratio that is above 1 too often is not of a pair in either order")
    middle = Points(np.zeros(1), np.full(1, max(rest, 0.0)), np.full(1, max(rest, 0.0)))
    return union([half.swapped, middle, half]), max(-rest, 0.0)


def _shortened(factors: Sequence[tuple[Law, int]]) -> list[tuple[Law, int]]:
    """The same product, the law of the highest multiplicity squared: fewer factors need a less fine lattice."""
    longest = max(range(len(factors)), key=lambda i: factors[i][1])
    law, times = factors[longest]
    squared = [(_multiply(law, law), times // 2), (law, times % 2)]
    return [*factors[:longest], *(factor for factor in squared if factor[1]), *factors[longest + 1 :]]


_CONSTANT = Points(np.zeros(1), np.ones(1), np.ones(1))
_ONE = Law(_CONSTANT, _CONSTANT, 0.0, 1)  # X = 1: a release that says nothing


class Detail(NamedTuple):
    """How finely a numerical law is computed, whether its lower end is, and up to how many standard deviations normal
    tails are: what is beyond counts as the worst.
    """

    points: int
    with_lower: bool = True
    reach: float = 9.5


DEFAULT_DETAIL = Detail(DEFAULT_POINTS)


@lru_cache(maxsize=64)
def numerical_law(event: events.Mechanism, detail: Detail = DEFAULT_DETAIL) -> Law:
    """The certified law of a mechanism. Raises ``NotEvaluable``: it has none, or none that floating point holds."""
    if event.releases_nothing:
        return Law.product([])
    law = law_by_kind(event, detail)
    return law if detail.with_lower else law.upper_only()


@singledispatch
def law_by_kind(event: events.Mechanism, detail: Detail) -> Law:
    """The law of one kind; ask ``numerical_law``, which keeps it."""
    match event:
        case events.Gaussian(noise):
            return Law.gaussian(noise / event.change, points=detail.points, reach=detail.reach)
        case events.Laplace(scale):
            return Law.laplace(scale / event.change, points=detail.points)
        case events.RandomisedResponse(probability):
            true, false = np.log(probability), np.log1p(-probability)
            log_weights, log_ratios = np.array([true, false]), np.array([false - true, true - false])
            return Law.from_points(np.exp(log_ratios), np.exp(log_weights), points=detail.points)
        case events.FiniteOutcomes():
            present, absent = np.array(event.present), np.array(event.absent)
            both = absent > 0
            infinite = float(present[~both].sum())
            return Law.from_points(present[both] / absent[both], absent[both], infinite=infinite, points=detail.points)
        case events.NotPrivate():  # no output with the person in can occur without
            return Law.from_points([0.0], [1.0], infinite=1.0, points=detail.points)
        case events.ModelMix():  # the worst contribution for the hockey-stick is not known: valid but loose, unmixed
            return numerical_law(events.Gaussian(event.noise_multiplier), detail)
        case events.Poisson(inner, rate):
            return numerical_law(inner, detail).thin(rate)
        case events.Submodels(inner, count):
            return numerical_law(inner, detail).mean(count)
        case events.RandomSelection():
            used, weights = event.used
            return Law.mixture([numerical_law(part, detail) for part in used], list(weights))
        case events.Group():
            raise NotEvaluable("Group has no numerical law")
    return numerical_law(charged_as(event), detail)


@law_by_kind.register
def of_mixed_coordinate(event: events.MixedCoordinate, detail: Detail) -> Law:
    s, width, shift = event.noise_multiplier, event.width, event.shift
    reach = width / 2 + 9.5 * s
    flat = width / 2 - 20 * s - shift  # up to here the ratio is 1 to more digits than there are
    count = 4 * max(detail.points, 400)
    edges = np.linspace(-reach, reach + shift, count)
    if flat > 50 * s:  # an edge in the middle is not needed, and the two slopes are
        each = np.linspace(0.0, reach + shift - flat, count // 2)
        edges = np.r_[-reach + each - shift, flat + each]
    x, w = np.polynomial.legendre.leggauss(8)
    half = np.diff(edges)[:, None] / 2
    if np.partition(half.ravel(), -2)[-2] > 0.5 * s:  # up to which eight nodes (or one flat piece) are exact
        raise NotEvaluable("the noise is too narrow for so few points")
    inside = (edges[:-1, None] + half * (1 + x)).ravel()

    def masses(moved: float) -> Array:
        density = np.exp(log_density(inside - moved, s, width))
        return np.asarray((density.reshape(half.shape[0], -1) * w * half).sum(axis=1))

    log_ratio = np.maximum.accumulate(log_density(edges - shift, s, width) - log_density(edges, s, width))
    # Under a wide uniform X is 1 almost everywhere: cells between equal ratios are joined.
    kept = np.flatnonzero(np.diff(log_ratio, prepend=-np.inf) > 1e-12)

    def cells(outside: float) -> Cells:
        (mass_in, mass_out) = (np.r_[0.0, masses(moved), 0.0] for moved in (shift, 0.0))
        mass_in[-1], mass_out[0] = outside, outside
        starts = np.concatenate([[0], kept + 1])
        return Cells(log_ratio[kept], np.add.reduceat(mass_in, starts), np.add.reduceat(mass_out, starts))

    # Both normal tails beyond 9.5 count as the worst, and for lower ends not at all. The density, a difference of
    # normal masses that are at most 50 units off, keeps 12 digits where the width is a hundredth of the noise.
    return Law(spread(cells(2.2e-21)), contract(cells(0.0)), 1e-12, detail.points)


@law_by_kind.register
def of_mixture(event: events.GaussianMixture, detail: Detail) -> Law:
    def mass_in(low: Array, high: Array) -> Array:
        parts = zip(event.shifts, event.weights, strict=True)
        return np.asarray(np.sum([weight * normal_mass(low - shift, high - shift) for shift, weight in parts], axis=0))

    points, reach = detail.points, detail.reach
    log_ratio = functools.partial(log_ratio_of_mixture, event)
    return Law.from_function(log_ratio, mass_in, event.shifts[-1], points=points, reach=reach)


@law_by_kind.register
def of_substituted_sample(event: events.SubstitutedPoissonGaussian, detail: Detail) -> Law:
    """The contributions x, y of the worst pair are opposite and of norm 1. In u = <x, z>, v = <y, z> the hockey-stick
    is E (1 - alpha + rate (e^u' - 1) - alpha rate (e^v' - 1))+ at u' = u - |x|^2/2, v' = v - |y|^2/2. Its mixed second
    derivative is <= 0, so that it falls with <x, y> (Slepian) and, as <x, y> < 0, grows with either norm (Stein); the
    proof is new (ours).
    """
    rate, shift = event.rate, 1 / event.noise_multiplier

    def masses(moved: float) -> Callable[[Array, Array], Array]:
        def mass(low: Array, high: Array) -> Array:
            return (1 - rate) * normal_mass(low, high) + rate * normal_mass(low - moved, high - moved)

        return mass

    def log_ratio(z: Array) -> Array:
        return log_mean(rate, shift * z - shift**2 / 2) - log_mean(rate, -shift * z - shift**2 / 2)

    grid: dict[str, Any] = {"points": detail.points, "reach": detail.reach, "least_shift": -shift}
    return Law.from_function(log_ratio, masses(shift), shift, mass_out=masses(-shift), **grid)


@law_by_kind.register
def of_batch(event: events.WithoutReplacement, detail: Detail) -> Law:
    """Both orders of a changed batch have the profile of ``theorems.changed_batch`` (ours: docs/accounting.md)."""
    return numerical_law(changed_batch(event), detail).in_either_order()


@law_by_kind.register(events.Compose)
@law_by_kind.register(events.Repeat)
def of_product(event: events.Compose | events.Repeat, detail: Detail) -> Law:
    """Independent factors, Gaussians put together (Zhu, Dong, Wang 2022, Theorem 10)."""
    precision, others = factors(event)
    laws = [(numerical_law(other, detail), times) for other, times in others.items() if not other.releases_nothing]
    if precision:
        together = Law.gaussian(precision**-0.5, points=detail.points, reach=detail.reach)
        laws.insert(0, (together if detail.with_lower else together.upper_only(), 1))
    return Law.product(laws)


def log_density(y: Array, noise_multiplier: float, width: float) -> Array:
    """log of (Phi((y + w/2)/s) - Phi((y - w/2)/s)) / w, the density of Gaussian plus uniform noise, even in y."""
    from scipy.special import log_ndtr

    s, half = noise_multiplier, width / 2
    near = (half - np.abs(y)) / s
    far = (-half - np.abs(y)) / s
    if width < 0.01 * s:  # the difference would cancel; the density is that of the Gaussian, to second order
        x, w = np.polynomial.legendre.leggauss(4)
        points = (y[:, None] - half * x) / s
        return log_sum(-points * points / 2 + np.log(w / 2)) - math.log(s * math.sqrt(2 * math.pi))
    upper = log_ndtr(near)
    return np.asarray(upper + np.log(-np.expm1(log_ndtr(far) - upper)) - math.log(width))


def log_mean(rate: float, log_ratio: Array) -> Array:
    """log(1 - rate + rate X)."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(np.log1p(-rate), np.log(rate) + log_ratio))


def log_ratio_of_mixture(event: events.GaussianMixture, z: Array) -> Array:
    """log X at z, shape (n,)."""
    shifts, log_weights = np.array(event.shifts), np.log(event.weights)
    chunks = np.array_split(z, max(1, len(z) * len(shifts) // 1_000_000))
    return np.concatenate([log_sum(log_weights + shifts * (c[:, None] - shifts / 2)) for c in chunks])
