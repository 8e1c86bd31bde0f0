"""The Rényi evaluator: moments of the likelihood ratio X of every kind of mechanism, and the divergences they give.

Kept are logarithms of the central moments E[(X - 1)^j], at index j of an array of shape (A + 1,): 0, -inf, .. Where the
two laws are mirror images (Gaussian, Laplace, randomised response, ModelMix) every one is >= 0: given \\|log X\\|, X is
x with probability 1/(1+x) and 1/x otherwise, and (x-1)^j (1 + (-1)^j x^(1-j)) / (1+x) >= 0. Means, products, thinnings
and mixtures keep that sign and are sums of terms >= 0: nothing cancels, whatever the number of copies.

``moments_of(event)`` knows four things, each exact or an upper bound: the central moments, the raw and the negative
ones, and the Laplace transform, from which the negative ones follow. Other kinds are charged as
``theorems.charged_as`` says.

A table of *log moments* has shape (A + 1,). At index a it holds the larger of log E[X^a] (remove direction) and log
E[X^(1-a)] (add direction). The Rényi divergence of order a is that over a - 1. log E[X^a] is convex in a and 0 at a =
1, so straight lines between whole orders are upper bounds.
"""

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedamp.accounting import events
from fedamp.accounting.arithmetic import RENYI_ROUNDING, Array, log_binomials, log_factorials, log_sum, repeated
from fedamp.accounting.bounds import NotEvaluable, checked_orders, in_floating_point
from fedamp.accounting.hidden_rounds import hidden_log_moments
from fedamp.accounting.law import log_density, log_mean, log_ratio_of_mixture, numerical_law
from fedamp.accounting.theorems import (
    changed_batch,
    charged_as,
    concentrated,
    group,
    hidden_rounds_bounds,
    normal,
    other_bounds,
    participation,
    people_in_batch,
)


def central_from_nodes(log_weights: Array, log_ratios: Array, highest: int) -> Array:
    """Central moments up to ``highest`` >= 2 by quadrature: logs of Q-masses, and log X, at nodes; both shape (n,)."""
    below = log_ratios < 0
    with np.errstate(divide="ignore"):  # log |X - 1|, without overflow
        gaps = np.maximum(log_ratios, 0.0) + np.log(-np.expm1(-np.abs(log_ratios)))
    central = np.full(highest + 1, -np.inf)
    central[0] = 0.0
    powers = np.arange(2, highest + 1)[:, None]
    positive = log_sum(log_weights[~below] + powers * gaps[~below])
    negative = log_sum(log_weights[below] + powers * gaps[below])
    odd = powers[:, 0] % 2 == 1
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = positive + np.log1p(-np.exp(np.minimum(negative - positive, 0.0)))
    central[2:] = np.where(odd, np.where(np.isnan(difference), -np.inf, difference), np.logaddexp(positive, negative))
    return central


def product_moments(first: Array, second: Array) -> Array:
    """Central moments of the product of two independent ratios. XY - 1 = (X - 1) + X (Y - 1), and E[(X-1)^m X^j] =
    E[(X-1)^m X^(j-1)] + E[(X-1)^(m+1) X^(j-1)].
    """
    highest = len(first) - 1
    joint = np.full((highest + 1, highest + 1), -np.inf)  # [j, m]: log E[(X-1)^m X^j], for m + j <= A
    joint[0] = first
    for j in range(1, highest + 1):
        joint[j, : highest + 1 - j] = np.logaddexp(joint[j - 1, : highest + 1 - j], joint[j - 1, 1 : highest + 2 - j])
    power = np.arange(highest + 1)
    remaining = power[:, None] - power[None, :]  # [l, j]: l - j
    terms = np.where(remaining >= 0, joint[power[None, :], np.maximum(remaining, 0)], -np.inf)
    return log_sum(log_binomials(highest) + terms + second)


def series_product(first: Array, second: Array) -> Array:
    """Product of two power series given by the logs of their coefficients, cut at the same degree."""
    size = len(first)
    windows = sliding_window_view(np.concatenate([np.full(size - 1, -np.inf), second]), size)
    return log_sum(windows + first[::-1])


# Negative moments, through the Laplace transform.

_STEP = 0.04
_GRID = np.exp(np.arange(-16.0, 64.0, _STEP))  # of u; enough for every order that is worth using


class Transform(NamedTuple):
    """Upper bounds at an array of u > 0: of ``log E exp(-u X)``, and of the same plus u (accurate where it is tiny)."""

    log: Array
    excess: Array


def transform_from_nodes(u: Array, log_weights: Array, log_ratios: Array, infinite: float = 0.0) -> Transform:
    """Of a law with ``log_weights`` at ``log_ratios``, shape (n,), and P-mass ``infinite`` where X is infinite, or of
    one that is smaller in convex order.
    """
    ratios, weights, small = np.exp(np.minimum(log_ratios, 600.0)), np.exp(log_weights), u < 0.5
    log, excess = np.empty_like(u), np.empty_like(u)
    for rows in np.array_split(np.arange(len(u)), max(1, len(u) * len(ratios) // 1_000_000)):
        near, far = rows[small[rows]], rows[~small[rows]]
        x = u[near, None] * ratios
        y = np.minimum(x, 0.02)
        series = y * y * (0.5 - y * (1 / 6 - y * (1 / 24 - y * (1 / 120 - y / 720))))
        gap = np.where(x < 0.02, series, np.expm1(-x) + x) @ weights + infinite * u[near]  # E[exp(-uX)] - 1 + u
        excess[near] = _log_remainder(gap - u[near]) + gap
        log[far] = log_sum(log_weights - u[far, None] * ratios)
    if np.max(log_ratios) > 600:  # the mean of X is not held by the nodes; exp(-uX) is at most 1
        excess = u
    return Transform(np.where(small, excess - u, log), np.where(small, excess, log + u))


def transform_from_moments(log_raw: Array, log_negative: Array, u: Array) -> Transform:
    """From moments alone: exp(-ux) <= 1 - ux + (ux)^2/2 near 0; beyond, exp(-ux) <= (c/(e u x))^c for every c > 0
    (Chernoff). ``log_raw``: log E[X^a], a = 0..A (only a = 2 is used). ``log_negative``: log E[X^-b], b = 0..A-1.
    """
    second = np.exp(min(log_raw[2], 700.0))
    turn = np.minimum(u, 1 / second)  # the parabola's lowest point; the transform decreases in u
    excess = _log_remainder(turn * turn * second / 2 - turn) + turn * turn * second / 2
    log = excess - turn
    c = np.arange(1, len(log_negative))
    chernoff = np.min(c * (np.log(c) - 1 - np.log(u)[:, None]) + log_negative[1:], axis=1)
    log = np.minimum(log, chernoff)
    return Transform(log, np.where(u <= 1 / second, np.minimum(excess, log + u), log + u))


def _log_remainder(x: Array) -> Array:
    """log(1 + x) - x for x > -1, accurate near 0."""
    series = -x * x * (0.5 - x * (1 / 3 - x * (1 / 4 - x * (1 / 5 - x * (1 / 6 - x / 7)))))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.abs(x) < 0.005, series, np.log1p(np.maximum(x, -1.0)) - x)


def negative_moments(transform: Callable[[Array], Transform], count: int) -> Array:
    """log E[X^-b] for b = 0..count-1, +inf where the grid does not hold the integral.

        E[X^-b] = 1 / Gamma(b) * integral over u > 0 of u^(b-1) E[exp(-u X)] du,

    computed as 1 + integral of u^(b-1) (E[exp(-uX)] - exp(-u)) / Gamma(b), so that costs near 0 keep their relative
    accuracy, by a trapezoid sum over log u. The integrand is log-concave there, which bounds the tail. (The published
    shortcut for means, Dong, Chen and Özgür 2025, Lemma 3.18, is not an upper bound.)
    """
    values = transform(_GRID)
    v = np.log(_GRID)
    powers = _powers(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = values.log + np.log(-np.expm1(-np.maximum(values.excess, 0.0)))
        integrand = powers[:, None] * v + gap
        total = log_sum(integrand) + np.log(_STEP) + _trapezoid_error(powers)
        last, slope = integrand[:, -1], (integrand[:, -2] - integrand[:, -1]) / _STEP
        tail = np.where(slope > 0, last - np.log(np.maximum(slope, 1e-300)), np.inf)
        tail = np.where(np.isneginf(last), -np.inf, tail)
        moment = np.logaddexp(total, tail) - log_factorials(count)[powers - 1]
        result = np.where(moment < -1, np.log1p(np.exp(np.minimum(moment, 0.0))), np.logaddexp(0.0, moment))
        result = np.where(tail > total - 7, np.inf, result)
        # log E[X^-b] is convex in b: straight lines between the powers that were computed are upper bounds.
        between = np.interp(np.arange(count), np.append(0, powers), np.append(0.0, result))
    return np.where(np.isnan(between), np.inf, between)


def _trapezoid_error(powers: NDArray[np.int64]) -> Array:
    """What to add to the log of a trapezoid sum over log u of u^b exp(-u x), at every x: it errs by a share of
    2 |Gamma(b + iw) / Gamma(b)|, w = 2 pi / step, bounded by Euler's product and the integral below its logarithm.
    """
    b, w = powers.astype(np.float64), 2 * np.pi / _STEP
    share = 2 * np.exp(-(np.pi * w - b * np.log1p((w / b) ** 2) - 2 * w * np.arctan(b / w)) / 2)
    # 1 + ...: what it does to differences between values of x.
    return np.asarray(-np.log1p(-(1 + (w / b) ** 2) * share))


@lru_cache(maxsize=8)
def _powers(count: int) -> NDArray[np.int64]:
    """The powers b at which negative moments are computed: all up to 32, then steps of 4 %, and the last."""
    spread = 32 * 1.04 ** np.arange(0, 1 + np.log(max(count, 33) / 32) / np.log(1.04))
    powers = np.unique(np.concatenate([np.arange(1, 33), spread.astype(np.int64), [count - 1]]))
    return np.asarray(powers[(powers >= 1) & (powers < count)])


HIGHEST_ORDER = 256

_EXACT_ORDER = 5  # up to which order the moments of several hidden rounds are exact; there are too many overlaps beyond


class Moments:
    """What the Rényi evaluator knows of one mechanism, each answer computed once. A kind whose numerical law has no
    mass at infinity needs no more than to be registered. ``symmetric``: whether the two laws are mirror images (an
    involution swaps them), or ``raw`` bounds both directions: then E[X^-b] is at most the charge for E[X^(b+1)].
    """

    symmetric = False

    def __init__(self, event: Any) -> None:
        self.event = event
        self._known: dict[tuple[str, int], Array] = {}

    @property
    def part(self) -> "Moments":
        """Of the mechanism that it is made of."""
        return moments_of(self.event.mechanism)

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
        """Upper bounds of the Laplace transform of X, of a finite law that is larger in convex order."""
        known = transform_from_moments(self.raw(HIGHEST_ORDER), self.negative(HIGHEST_ORDER), u)
        try:
            finite = transform_from_nodes(u, *self.finite_law())
        except (NotEvaluable, ArithmeticError, MemoryError):
            return known
        return Transform(np.minimum(known.log, finite.log), np.minimum(known.excess, finite.excess))

    def finite_law(self) -> tuple[Array, Array, float]:
        """Log masses under Q, log ratios, and the P-mass at infinity of X's law or one larger in convex order."""
        law = numerical_law(self.event).upper
        log_zero = math.log(law.zero) if law.zero else -np.inf
        return np.append(law.log_mass_out, log_zero), np.append(law.log_ratio, -np.inf), law.infinite

    def _once(self, compute: Callable[[int], Array], highest: int) -> Array:
        key = compute.__name__, highest
        if key not in self._known:
            self._known[key] = compute(highest)
        return self._known[key]

    def _central(self, highest: int) -> Array:
        log_masses, log_ratios, infinite = self.finite_law()
        if infinite:
            raise NotEvaluable(f"the moments of {type(self.event).__name__} do not follow from its numerical law")
        return central_from_nodes(log_masses, log_ratios, highest)

    def _raw(self, highest: int) -> Array:
        """The binomial sum of the central moments."""
        with np.errstate(over="ignore"):
            excess = log_sum((log_binomials(highest) + self.central(highest))[:, 2:])
            return np.where(excess < 30, np.log1p(np.exp(np.minimum(excess, 30))), np.logaddexp(0.0, excess))

    def _negative(self, highest: int) -> Array:
        return self.raw(highest)[1:] if self.symmetric else negative_moments(self.transform, highest)


_KINDS: dict[type[events.Mechanism], Callable[[Any], Moments]] = {}


@lru_cache(maxsize=1024)
def moments_of(event: events.Mechanism) -> Moments:
    """The moments of a mechanism of any kind."""
    if event.releases_nothing:
        return _Product(events.NOTHING)
    match event:
        case events.Poisson(inner, 1) | events.Submodels(inner, 1):
            return moments_of(inner)
    kind = _KINDS.get(type(event))
    return kind(event) if kind else moments_of(charged_as(event))


def answers_for(*kinds: type[events.Mechanism]) -> Callable[[type[Moments]], type[Moments]]:
    """Register how the moments of some kinds are computed."""

    def register(cls: type[Moments]) -> type[Moments]:
        _KINDS.update(dict.fromkeys(kinds, cls))
        return cls

    return register


def _unbounded(highest: int) -> Array:
    return np.append([0.0, 0.0], np.full(highest - 1, np.inf))


def log_moments(event: events.Mechanism, highest: int) -> Array:
    """The larger of log E[X^a] and log E[X^(1-a)] at a = 0..highest."""
    if not event.is_private:
        return _unbounded(highest)
    found = moments_of(event)
    both = found.raw(highest).copy()
    both[1:] = np.maximum(both[1:], found.negative(highest))
    return both


def rdp(event: events.Mechanism, orders: Sequence[float] | Array | float) -> Array:
    """See ``Mechanism.rdp``: linear interpolation of ``(a - 1) * divergence`` between whole orders."""
    array = checked_orders(orders)
    highest = max(HIGHEST_ORDER, 2 ** math.ceil(math.log2(np.max(array))))
    if highest > 4096:
        raise ValueError(f"orders must be <= 4096, got {float(np.max(array))!r}")
    logs = _unbounded(highest)
    with suppress(NotEvaluable), in_floating_point():
        logs = log_moments(normal(event), highest)
    low = np.clip(np.floor(array).astype(int), 1, highest - 1)
    part = array - low
    with np.errstate(invalid="ignore"):
        between = np.where(part > 0, logs[low] + part * (logs[low + 1] - logs[low]), logs[low])
    return np.asarray(
        np.where(np.isnan(between), np.inf, np.maximum(between, 0.0)) * (1 + RENYI_ROUNDING) / (array - 1)
    )


# Mechanisms made of others.


@answers_for(events.Compose, events.Repeat)
class _Product(Moments):
    """Zhu, Dong, Wang 2022, Theorem 10: moments multiply."""

    def __init__(self, event: events.Compose | events.Repeat) -> None:
        super().__init__(event)
        times = event.times if isinstance(event, events.Repeat) else 1
        self.factors = [(moments_of(part), times) for part in event.parts if times]
        self.symmetric = all(part.symmetric for part, _ in self.factors)

    def _central(self, highest: int) -> Array:
        powers = [repeated(part.central(highest), times, product_moments) for part, times in self.factors]
        nothing = np.append(0.0, np.full(highest, -np.inf))  # X = 1
        return functools.reduce(product_moments, powers) if powers else nothing

    def _raw(self, highest: int) -> Array:
        return sum((times * part.raw(highest) for part, times in self.factors), np.zeros(highest + 1))

    def _negative(self, highest: int) -> Array:
        return sum((times * part.negative(highest) for part, times in self.factors), np.zeros(highest))


@answers_for(events.RandomSelection)
class _Mixture(Moments):
    """The law is drawn, not the variable (Yin, Zaheer, Li 2026, Theorems 5.1 and 5.2)."""

    def __init__(self, event: events.RandomSelection) -> None:
        super().__init__(event)
        self.parts = [moments_of(part) for part in event.used[0]]
        self.symmetric = all(part.symmetric for part in self.parts)

    def _mean(self, moments: Callable[[Moments], Array]) -> Array:
        weights = np.log(np.array(self.event.used[1]))
        return log_sum(np.stack([moments(part) for part in self.parts]) + weights[:, None], axis=0)

    def _central(self, highest: int) -> Array:
        return self._mean(lambda part: part.central(highest))

    def _raw(self, highest: int) -> Array:
        return self._mean(lambda part: part.raw(highest))

    def _negative(self, highest: int) -> Array:
        return self._mean(lambda part: part.negative(highest))


@answers_for(events.Poisson)
class _Thinned(Moments):
    """(1 - rate) + rate X (Zhu, Dong, Wang 2022, Theorem 11)."""

    def _central(self, highest: int) -> Array:
        return np.asarray(self.part.central(highest) + np.arange(highest + 1) * np.log(self.event.rate))

    def _negative(self, highest: int) -> Array:
        if self.part.symmetric:  # the remove direction is the larger: Mironov, Talwar, Zhang 2019, Theorem 5
            return self.raw(highest)[1:]
        return negative_moments(self.transform, highest)

    def transform(self, u: Array) -> Transform:
        part = self.part.transform(self.event.rate * u)
        return Transform(part.log - (1 - self.event.rate) * u, part.excess)


@answers_for(events.Submodels)
class _Mean(Moments):
    """The mean of ``count`` copies (Dong, Chen, Özgür 2025, Theorem 3.4, proof A.9; the quasi-convexity it uses holds
    for hockey-stick divergences too).
    """

    def _central(self, highest: int) -> Array:
        """With C(u) = sum_j E[(X-1)^j] u^j / j!, the sum of n copies of X - 1 has C(u)^n, by repeated squaring."""
        factorials = log_factorials(highest)
        summed = repeated(self.part.central(highest) - factorials, self.event.count, series_product) + factorials
        return np.asarray(summed - np.arange(highest + 1) * np.log(self.event.count))

    def _negative(self, highest: int) -> Array:
        # Jensen: the mean is at least the geometric mean, so E[mean^-b] <= E[copy^(-b/n)]^n. Between whole powers the
        # log moment of a copy is convex, so its linear interpolation is above it.
        exact = negative_moments(self.transform, highest)
        powers, of_a_copy, copies = np.arange(float(highest)), self.part.negative(highest), self.event.count
        return np.minimum(exact, copies * np.interp(powers / copies, powers, of_a_copy))

    def transform(self, u: Array) -> Transform:
        part = self.part.transform(u / self.event.count)
        return Transform(self.event.count * part.log, self.event.count * part.excess)


@answers_for(events.Allocation, events.AllocationPrefix, events.CappedPoisson)
class _HiddenRounds(Moments):
    """The smallest, order by order: the split's or the coins' bound, those of runs with more rounds, since moments only
    grow with the rounds, and at low orders the exact moment (docs/k-of-t.md), if there are not too many overlaps.
    """

    def __init__(self, event: events.Allocation | events.AllocationPrefix | events.CappedPoisson) -> None:
        super().__init__(event)
        self.bounds = [moments_of(bound) for bound in hidden_rounds_bounds(event)]

    def _raw(self, highest: int) -> Array:
        result = np.min([bound.raw(highest) for bound in self.bounds], axis=0)
        found = participation(self.event)
        for order in range(min(_EXACT_ORDER, highest), 1, -1) if len(found.chances) > 2 else ():
            with suppress(NotEvaluable):
                one = moments_of(found.mechanism).raw(highest)[: order + 1]
                exact = hidden_log_moments(one, found.chances, found.rounds, found.rounding)
                result[: order + 1] = np.minimum(result[: order + 1], exact)
                break
        return np.asarray(result)

    def _negative(self, highest: int) -> Array:
        return np.asarray(np.min([bound.negative(highest) for bound in self.bounds], axis=0))

    def _central(self, highest: int) -> Array:
        return self.bounds[0].central(highest)


def _below(shift: float, highest: int) -> Array:
    """log moments of a shift by so many standard deviations of Gaussian noise, the worst of releases below."""
    a = np.arange(highest + 1.0)
    return a * (a - 1) * shift**2 / 2


def _order(shift: float, highest: int, most: float) -> int:
    """Up to which order moments are integrated: above ``most`` over the shift the bound below is as good."""
    return min(highest, int(most / max(shift, 1e-9)))


def _integrated(shift: float, highest: int, most: float, nodes: Callable[[int], tuple[Array, Array]]) -> Array:
    """Central moments by quadrature at low orders, by |X - 1|^a <= X^a + 1 and the largest shift above."""
    result, order = np.logaddexp(0.0, _below(shift, highest)), _order(shift, highest, most)
    result[:2] = 0.0, -np.inf
    if order >= 2:
        result[: order + 1] = central_from_nodes(*nodes(order), order)
    return result


@answers_for(events.Gaussian)
class _Gaussian(Moments):
    symmetric = True

    @property
    def noise(self) -> float:
        return float(self.event.noise_multiplier / self.event.change)

    def _nodes(self, order: int, step: float = 0.25) -> tuple[Array, Array]:
        # E[X^a] is largest around z = a / s.
        z = np.arange(-10.0, order / self.noise + 10.0, step)
        return -z * z / 2 + np.log(step / np.sqrt(2 * np.pi)), z / self.noise - 0.5 / self.noise**2

    def _central(self, highest: int) -> Array:
        return _integrated(1 / self.noise, highest, 4000.0, self._nodes)

    def finite_law(self) -> tuple[Array, Array, float]:
        """By quadrature, more accurate than the numerical law; what lies left of the nodes counts as X = 0."""
        if self.noise < 0.04:
            return super().finite_law()
        log_masses, log_ratios = self._nodes(2, 0.25 * min(1.0, self.noise))  # exp(-u X) falls within a few s
        return np.append(log_masses, math.log(1e-22)), np.append(log_ratios, -np.inf), 0.0

    def _raw(self, highest: int) -> Array:
        return _below(1 / self.noise, highest)


@answers_for(events.Laplace, events.RandomisedResponse)
class _Finite(Moments):
    symmetric = True


@answers_for(events.FiniteOutcomes)
class _FiniteOutcomes(Moments):
    def _negative(self, highest: int) -> Array:
        law = numerical_law(self.event).upper
        if law.zero:
            return _unbounded(highest)[1:]
        return np.array([log_sum(law.log_mass_out - b * law.log_ratio) for b in range(highest)])

    def _raw(self, highest: int) -> Array:
        return _unbounded(highest) if numerical_law(self.event).upper.infinite else super()._raw(highest)


@answers_for(events.SubstitutedPoissonGaussian)
class _SubstitutedPoissonGaussian(Moments):
    symmetric = True

    def _raw(self, highest: int) -> Array:
        """Moments are jointly convex: 1 where the person is not sampled, a distance of two contributions where so."""
        rate = self.event.rate
        return np.asarray(log_mean(rate, _below(2 / self.event.noise_multiplier, highest)))


@answers_for(events.MixedCoordinate)
class _MixedCoordinate(Moments):
    symmetric = True

    def _central(self, highest: int) -> Array:
        s, shift = self.event.noise_multiplier, self.event.shift
        too_far = _order(shift / s, highest, 4000.0) * shift > 1e5 * s / 16  # no better than without mixing
        return _integrated(shift / s, highest, 0.0 if too_far else 4000.0, self._nodes)

    def _nodes(self, order: int) -> tuple[Array, Array]:
        s, width, shift = self.event.noise_multiplier, self.event.width, self.event.shift
        step, reach = s / 16, width / 2 + 10 * s
        flat = width / 2 - 20 * s - shift  # up to here the ratio is 1 to more digits than there are
        ends = (
            [(-reach, -flat), (flat, reach + order * shift)]
            if flat >= 1e5 * step
            else [(-reach, reach + order * shift)]
        )
        y = np.concatenate([np.arange(*each, step) for each in ends])
        density = log_density(y, s, width)
        return density + math.log(step), log_density(y - shift, s, width) - density


@answers_for(events.ModelMix)
class _ModelMix(Moments):
    """At whole orders from 2 up the worst contribution has its whole norm in as few coordinates as it may (Xiao, Wan,
    Devadas 2022, Theorem 4.1, Corollary 4.1). Its condition is checked for the parameters in use, not proved
    (``method`` says so); orders at which the check fails are charged as plain Gaussian noise.
    """

    symmetric = True

    def __init__(self, event: events.ModelMix) -> None:
        super().__init__(event)
        self.plain, self.worst = moments_of(events.Gaussian(event.noise_multiplier)), moments_of(concentrated(event))

    def _central(self, highest: int) -> Array:
        return (self.worst if worst_is_concentrated(self.event, highest).all() else self.plain).central(highest)

    def _raw(self, highest: int) -> Array:
        plain = self.plain.raw(highest)
        holds = worst_is_concentrated(self.event, highest)
        return np.where(holds, np.minimum(self.worst.raw(highest), plain), plain)


@lru_cache(maxsize=64)
def worst_is_concentrated(event: events.ModelMix, highest: int = HIGHEST_ORDER) -> Array:
    """Whether each order 0..highest has its worst case in the fewest coordinates, checked on a grid of shifts. The
    condition: log E[X^a] at shift v is at most (v / c)^2 times that at the largest shift c; convexity in v^2 implies
    it.
    """
    if event.width == 0:
        return np.ones(highest + 1, dtype=bool)
    largest = 1 / math.sqrt(event.linf_coordinates)
    end = moments_of(events.MixedCoordinate(event.noise_multiplier, event.width, largest)).raw(highest)
    holds = np.isfinite(end)
    for part in (0.1, 0.25, 0.5, 0.75, 0.9):
        inner = moments_of(events.MixedCoordinate(event.noise_multiplier, event.width, part * largest)).raw(highest)
        holds &= inner <= part**2 * end * (1 + 1e-7) + 1e-12
    return holds


@answers_for(events.GaussianMixture)
class _GaussianMixture(Moments):
    @property
    def largest(self) -> float:
        return float(self.event.shifts[-1])

    def _nodes(self, low: float, high: float) -> tuple[Array, Array]:
        step = min(0.25, 0.5 / max(self.largest, 1e-9))
        z = np.arange(low, high, step)
        return -z * z / 2 + np.log(step / np.sqrt(2 * np.pi)), log_ratio_of_mixture(self.event, z)

    def _central(self, highest: int) -> Array:
        return _integrated(self.largest, highest, 1000.0, lambda order: self._nodes(-10.0, order * self.largest + 10.0))

    def _negative(self, highest: int) -> Array:
        order = _order(self.largest, highest, 1000.0)
        result = _below(self.largest, highest)[1:].copy()
        if not order:
            return result
        log_weights, log_ratios = self._nodes(-order * self.largest - 10.0, 10.0 + self.largest)
        result[:order] = [max(0.0, float(log_sum(log_weights - n * log_ratios))) for n in range(order)]
        return result


@answers_for(events.Group)
class _Group(Moments):
    """Log moments of order a of i + j people are at most half the sum of those of order 2 a of i people and of order
    2 a - 1 of j (Mironov 2017, Corollary 4; Schuchardt et al. 2024, Appendix B.1, corrected). Where they are smaller,
    the other bounds'.
    """

    symmetric = True

    def _raw(self, highest: int) -> Array:
        more = max(highest, min(1024, highest * 2 ** math.ceil(math.log2(self.event.size))))
        generic = of_group(log_moments(self.event.mechanism, more), self.event.size)[: highest + 1]
        result = np.append(generic, np.full(highest + 1 - len(generic), np.inf))
        others = [log_moments(other, highest) for other in other_bounds(self.event)]
        return np.asarray(np.min([result, *others], axis=0))


def of_group(of_one: Array, size: int) -> Array:
    """The log moments of a group at the orders that those of one person suffice for."""
    if size == 1:
        return of_one
    larger, smaller = (of_group(of_one, half) for half in (size - size // 2, size // 2))
    a = np.arange(2, (len(larger) - 1) // 2 + 1)
    return np.concatenate([[0.0, 0.0], (larger[2 * a] + smaller[2 * a - 1]) / 2])


@answers_for(events.WithoutReplacement)
class _WithoutReplacement(Moments):
    """With w_i the hypergeometric chance that i people of the group are in the batch, p = 1 - w_0, and M_l(i) the
    moments of a change of 2 i: the smaller of the mean of M_a(i) over i (Schuchardt et al. 2024, Proposition E.5,
    corrected) and 1 + sum over l >= 2 of C(a, l) p^(l-1) times the sum over i >= 1 of w_i m_l(i), with m_2 = min(4 (M_2
    - 1), 2 M_2) and m_l = 2 M_l. The latter is Wang, Balle, Kasiviswanathan 2019, Theorem 9, for size 1 (Schuchardt et
    al. 2024, Theorem 3.6 and Proposition E.2). For a group, condition as they do on "none of it is in the batch"; |x -
    y|^l z^(1-l) is jointly convex, so that the number i may be revealed there. Both directions, also under composition.
    """

    symmetric = True

    def _raw(self, highest: int) -> Array:
        if isinstance(self.event.mechanism, events.RandomisedResponse):
            return log_moments(changed_batch(self.event), highest)
        hits, logs = people_in_batch(self.event)
        none = np.zeros(highest + 1)
        charged = partial(group, self.event.mechanism)
        moved = np.stack([log_moments(charged(2 * int(i)), highest) if i else none for i in hits])
        number_seen = log_sum(logs[:, None] + moved, axis=0)
        if hits[0] > 0:
            return number_seen
        twice = math.log(2) + moved[1:]
        twice[:, 2] += np.minimum(0.0, math.log(2) + np.log(np.maximum(-np.expm1(-moved[1:, 2]), 1e-300)))
        a, share = np.arange(highest + 1), float(log_sum(logs[1:]))
        terms = log_binomials(highest) + (a - 1) * share + log_sum(logs[1:, None] + twice, axis=0)
        bound = np.logaddexp(0.0, log_sum(terms[:, 2:]))
        return np.minimum(np.where(a < 2, 0.0, bound), number_seen)
