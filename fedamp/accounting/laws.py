"""The evaluator by numerical law: the certified law of every kind of mechanism, one dispatch.

Kinds that have no entry are charged as what ``reductions.charged_as`` makes of them.
"""

import math
from collections.abc import Callable
from functools import lru_cache, singledispatch
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from fedamp.accounting import checks
from fedamp.accounting.amplification import AllocationPrefix, CappedPoisson, Poisson, Submodels
from fedamp.accounting.bounds import Array, Bounds, NotEvaluable
from fedamp.accounting.conversion import Question
from fedamp.accounting.law import Law
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.merging import RandomSelection
from fedamp.accounting.numeric import log_sum, normal_mass
from fedamp.accounting.points import DEFAULT_POINTS, Cells, contract, spread
from fedamp.accounting.reductions import charged_as, factors, hidden_rounds_bounds
from fedamp.accounting.releases import (
    Compose,
    FiniteOutcomes,
    Gaussian,
    GaussianMixture,
    Laplace,
    MixedCoordinate,
    ModelMix,
    NotPrivate,
    RandomisedResponse,
    Repeat,
    SubstitutedPoissonGaussian,
)


class Detail(NamedTuple):
    """How finely a numerical law is computed, and whether its lower end is."""

    points: int
    with_lower: bool = True


DEFAULT_DETAIL = Detail(DEFAULT_POINTS)


@lru_cache(maxsize=64)
def numerical_law(event: Mechanism, detail: Detail = DEFAULT_DETAIL) -> Law:
    """The certified law of a mechanism. Raises ``NotEvaluable``: it has none, or none that floating point holds."""
    if event.releases_nothing:
        return Law.product([])
    law = law_by_kind(event, detail)
    return law if detail.with_lower else law.upper_only()


@singledispatch
def law_by_kind(event: Mechanism, detail: Detail) -> Law:
    """The law of one kind; ask ``numerical_law``, which keeps it."""
    match event:
        case Gaussian(noise):
            return Law.gaussian(noise / event.change, points=detail.points)
        case Laplace(scale):
            return Law.laplace(scale / event.change, points=detail.points)
        case RandomisedResponse(probability):
            true, false = np.log(probability), np.log1p(-probability)
            log_weights, log_ratios = np.array([true, false]), np.array([false - true, true - false])
            return Law.from_points(np.exp(log_ratios), np.exp(log_weights), points=detail.points)
        case FiniteOutcomes():
            present, absent = np.array(event.present), np.array(event.absent)
            both = absent > 0
            infinite = float(present[~both].sum())
            return Law.from_points(present[both] / absent[both], absent[both], infinite=infinite, points=detail.points)
        case NotPrivate():  # no output with the person in can occur without
            return Law.from_points([0.0], [1.0], infinite=1.0, points=detail.points)
        case ModelMix():  # the worst contribution for the hockey-stick is not known: valid but loose, without mixing
            return numerical_law(Gaussian(event.noise_multiplier), detail)
        case Poisson(inner, rate):
            return numerical_law(inner, detail).thin(rate)
        case Submodels(inner, count):
            return numerical_law(inner, detail).mean(count)
        case RandomSelection():
            used, weights = event.used
            return Law.mixture([numerical_law(part, detail) for part in used], list(weights))
    return numerical_law(charged_as(event), detail)


@law_by_kind.register
def _(event: MixedCoordinate, detail: Detail) -> Law:
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
def _(event: GaussianMixture, detail: Detail) -> Law:
    def mass_in(low: Array, high: Array) -> Array:
        parts = zip(event.shifts, event.weights, strict=True)
        return np.asarray(np.sum([weight * normal_mass(low - shift, high - shift) for shift, weight in parts], axis=0))

    return Law.from_function(lambda z: log_ratio_of_mixture(event, z), mass_in, event.shifts[-1], points=detail.points)


@law_by_kind.register
def _(event: SubstitutedPoissonGaussian, detail: Detail) -> Law:
    """The contributions x, y of the worst pair are opposite and of norm 1. In u = <x, z>, v = <y, z> the hockey-stick
    is E (1 - alpha + rate (e^u' - 1) - alpha rate (e^v' - 1))+ at u' = u - |x|^2/2, v' = v - |y|^2/2. Its mixed second
    derivative is <= 0, so that it falls with <x, y> (Slepian) and, as <x, y> < 0, grows with either norm (Stein).
    """
    rate, shift = event.rate, 1 / event.noise_multiplier

    def masses(moved: float) -> Callable[[Array, Array], Array]:
        def mass(low: Array, high: Array) -> Array:
            return (1 - rate) * normal_mass(low, high) + rate * normal_mass(low - moved, high - moved)

        return mass

    def log_ratio(z: Array) -> Array:
        return log_mean(rate, shift * z - shift**2 / 2) - log_mean(rate, -shift * z - shift**2 / 2)

    return Law.from_function(
        log_ratio, masses(shift), shift, mass_out=masses(-shift), least_shift=-shift, points=detail.points
    )


@law_by_kind.register(Compose)
@law_by_kind.register(Repeat)
def _(event: Compose | Repeat, detail: Detail) -> Law:
    precision, others = factors(event)
    together = Law.gaussian(precision**-0.5, points=detail.points) if precision else Law.product([])
    gaussian = [(together if detail.with_lower else together.upper_only(), 1)] if precision else []
    rest = [(numerical_law(other, detail), times) for other, times in others.items() if not other.releases_nothing]
    return Law.product(gaussian + rest)


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


def log_ratio_of_mixture(event: GaussianMixture, z: Array) -> Array:
    """log X at z, shape (n,)."""
    shifts, log_weights = np.array(event.shifts), np.log(event.weights)
    chunks = np.array_split(z, max(1, len(z) * len(shifts) // 1_000_000))
    return np.concatenate([log_sum(log_weights + shifts * (c[:, None] - shifts / 2)) for c in chunks])


# Answers.


@singledispatch
def answer_by_law(event: Mechanism, question: Question, points: int | None = None, with_lower: bool = True) -> Bounds:
    """The answer by numerical law. ``event``: what is released. ``question``: epsilon at a delta, or delta at an
    epsilon. ``points``: of the law; default: 1200, and up to 4800 where the bracket is wider than one part in 1000.
    ``with_lower``: whether the lower end is computed. Raises ``NotEvaluable``: there is no law, or none that floating
    point holds.
    """
    first = DEFAULT_POINTS if points is None else checks.count("points", points, 50, 20_000)
    best = question.ask(numerical_law(event, Detail(first, with_lower)))
    low, high = question.fine
    for more in (2400, 4800) if points is None else ():
        if not low <= best.upper <= high or best.width <= 1e-3 * best.upper:
            break
        finer = question.ask(numerical_law(event, Detail(more, with_lower)))
        helps = finer.width < 0.7 * best.width
        method = finer.method if finer.upper < best.upper else best.method
        best = Bounds(max(best.lower, finer.lower), min(best.upper, finer.upper), method)
        if not helps:
            break
    return best


@answer_by_law.register(AllocationPrefix)
@answer_by_law.register(CappedPoisson)
def _(
    event: AllocationPrefix | CappedPoisson, question: Question, points: int | None = None, with_lower: bool = True
) -> Bounds:
    """The smallest of several bounds. None is exact, so a grid finer than the default is not worth its time."""
    bounds = hidden_rounds_bounds(event)
    points = DEFAULT_POINTS if points is None and len(bounds) > 1 else points
    return min((answer_by_law(part, question, points, with_lower) for part in bounds), key=attrgetter("upper"))
