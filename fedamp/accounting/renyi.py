"""The Rényi evaluator: moments of the likelihood ratio X, and the divergences they give; it knows no mechanism.

Kept are logarithms of the central moments E[(X - 1)^j], at index j of an array of shape (A + 1,): 0, -inf, .. Where the
two laws are mirror images (Gaussian, Laplace, randomised response, ModelMix) every one is >= 0: given |log X|, X is x
with probability 1/(1+x) and 1/x otherwise, and (x-1)^j (1 + (-1)^j x^(1-j)) / (1+x) >= 0. Means, products, thinnings
and mixtures keep that sign and are sums of terms >= 0: nothing cancels, whatever the number of copies.

:class:`Moments` knows four things, each exact or an upper bound: the central moments, the raw and the negative ones,
and the Laplace transform, from which the negative ones follow.

A table of *log moments* has shape (A + 1,). At index a it holds the larger of log E[X^a] (remove direction) and log
E[X^(1-a)] (add direction). The Rényi divergence of order a is that over a - 1. log E[X^a] is convex in a and 0 at a =
1, so straight lines between whole orders are upper bounds.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedamp.accounting.arithmetic import RENYI_ROUNDING, Array, combined_copies, log_binomials, log_factorials, log_sum
from fedamp.accounting.bounds import NotEvaluable
from fedamp.accounting.law import Law


def central_from_nodes(log_weights: Array, log_ratios: Array, highest: int) -> Array:
    """Return central moments by quadrature.

    Args:
        log_weights: logs of Q-masses at nodes, shape (n,).
        log_ratios: log X at the nodes, shape (n,).
        highest: order A >= 2.

    Returns:
        log E[(X - 1)^j], j = 0..A; -inf where the sum is not positive.
    """
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
    """Return central moments of the product of two independent ratios, both of shape (A + 1,).

    XY - 1 = (X - 1) + X (Y - 1), and E[(X-1)^m X^j] = E[(X-1)^m X^(j-1)] + E[(X-1)^(m+1) X^(j-1)].
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
    """Multiply two power series given by the logs of their coefficients, cut at the same degree."""
    size = len(first)
    windows = sliding_window_view(np.concatenate([np.full(size - 1, -np.inf), second]), size)
    return log_sum(windows + first[::-1])


# Negative moments, through the Laplace transform.

_STEP = 0.04
_GRID = np.exp(np.arange(-16.0, 64.0, _STEP))  # of u; enough for every order that is worth using


class MomentTransform(NamedTuple):
    """Upper bounds, at an array of u > 0, of the Laplace transform of X.

    Attributes:
        log: of ``log E exp(-u X)``.
        excess: of the same plus u, which is accurate where it is tiny.
    """

    log: Array
    excess: Array


def transform_from_nodes(u: Array, log_weights: Array, log_ratios: Array, infinite: float = 0.0) -> MomentTransform:
    """Return the transform of a finite law, or of one that is smaller in convex order.

    Args:
        u: shape (m,).
        log_weights: logs of Q-masses, shape (n,).
        log_ratios: log X, shape (n,).
        infinite: P-mass where X is infinite.
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
    return MomentTransform(np.where(small, excess - u, log), np.where(small, excess, log + u))


def transform_from_moments(log_raw: Array, log_negative: Array, u: Array) -> MomentTransform:
    """Bound the transform from moments alone.

    Near 0, exp(-ux) <= 1 - ux + (ux)^2/2; beyond, exp(-ux) <= (c/(e u x))^c for every c > 0 (Chernoff).

    Args:
        log_raw: log E[X^a], a = 0..A (only a = 2 is used).
        log_negative: log E[X^-b], b = 0..A-1.
        u: shape (m,).
    """
    second = np.exp(min(log_raw[2], 700.0))
    turn = np.minimum(u, 1 / second)  # the parabola's lowest point; the transform decreases in u
    excess = _log_remainder(turn * turn * second / 2 - turn) + turn * turn * second / 2
    log = excess - turn
    c = np.arange(1, len(log_negative))
    chernoff = np.min(c * (np.log(c) - 1 - np.log(u)[:, None]) + log_negative[1:], axis=1)
    log = np.minimum(log, chernoff)
    return MomentTransform(log, np.where(u <= 1 / second, np.minimum(excess, log + u), log + u))


def _log_remainder(x: Array) -> Array:
    """Return log(1 + x) - x for x > -1, accurate near 0."""
    series = -x * x * (0.5 - x * (1 / 3 - x * (1 / 4 - x * (1 / 5 - x * (1 / 6 - x / 7)))))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.abs(x) < 0.005, series, np.log1p(np.maximum(x, -1.0)) - x)


def negative_moments(transform: Callable[[Array], MomentTransform], count: int) -> Array:
    """Return log E[X^-b] for b = 0..count-1, +inf where the grid does not hold the integral.

        E[X^-b] = 1 / Gamma(b) * integral over u > 0 of u^(b-1) E[exp(-u X)] du,

    computed as 1 + integral of u^(b-1) (E[exp(-uX)] - exp(-u)) / Gamma(b), so that costs near 0 keep their relative
    accuracy, by a trapezoid sum over log u. The integrand is log-concave there, which bounds the tail. (The published
    shortcut for means, Dong, Chen and Özgür 2025, Lemma 3.18, is not an upper bound.)
    """
    values = transform(_GRID)
    v = np.log(_GRID)
    powers = _negative_powers(count)
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
    """Return what to add to the log of a trapezoid sum over log u of u^b exp(-u x), at every x.

    The sum errs by a share of 2 |Gamma(b + iw) / Gamma(b)|, w = 2 pi / step, bounded by Euler's product and the
    integral below its logarithm.
    """
    b, w = powers.astype(np.float64), 2 * np.pi / _STEP
    share = 2 * np.exp(-(np.pi * w - b * np.log1p((w / b) ** 2) - 2 * w * np.arctan(b / w)) / 2)
    # 1 + ...: what it does to differences between values of x.
    return np.asarray(-np.log1p(-(1 + (w / b) ** 2) * share))


@lru_cache(maxsize=8)
def _negative_powers(count: int) -> NDArray[np.int64]:
    """Return the powers b at which negative moments are computed: all up to 32, then steps of 4 %, and the last."""
    spread = 32 * 1.04 ** np.arange(0, 1 + np.log(max(count, 33) / 32) / np.log(1.04))
    powers = np.unique(np.concatenate([np.arange(1, 33), spread.astype(np.int64), [count - 1]]))
    return np.asarray(powers[(powers >= 1) & (powers < count)])


HIGHEST_ORDER = 256
"""The highest Rényi order of most tables."""


class Moments:
    """Moments of one likelihood ratio X: each exact or an upper bound, each computed once.

    It is what :meth:`fedamp.accounting.mechanism.Mechanism.moments` returns. From a numerical law without mass at
    infinity all moments follow; a subclass that knows more overrides ``_central``, ``_raw`` or ``_negative``. Every
    override must return upper bounds, and infinity where it knows none.

    Args:
        law: makes the numerical law of X.
        symmetric: whether the two laws are mirror images (an involution swaps them), or ``raw_moments`` bounds both
            directions: then E[X^-b] is at most the charge for E[X^(b+1)].

    Example:
        >>> from fedamp.accounting import Detail, RandomisedResponse
        >>> bit = Moments(lambda: RandomisedResponse(0.75).law(Detail(100)), symmetric=True)
        >>> np.exp(bit.raw_moments(3)).round(4).tolist()  # 3/4 3^(a - 1) + 1/4 3^(1 - a), from a = 0
        [1.0, 1.0, 2.3333, 6.7778]
    """

    def __init__(self, law: Callable[[], Law], symmetric: bool = False) -> None:
        self._law, self.symmetric = law, symmetric
        self._known: dict[tuple[str, int], Array] = {}

    def central_moments(self, highest: int) -> Array:
        """Return log E[(X - 1)^j], j = 0..highest."""
        return self._computed_once(self._central_moments, highest)

    def raw_moments(self, highest: int) -> Array:
        """Return log E[X^a], a = 0..highest."""
        return self._computed_once(self._raw_moments, highest)

    def negative_moments(self, highest: int) -> Array:
        """Return log E[X^-b], b = 0..highest-1."""
        return self._computed_once(self._negative_moments, highest)

    def larger_moments(self, highest: int) -> Array:
        """Return the table of log moments: the larger of log E[X^a] and log E[X^(1-a)] at a = 0..highest."""
        both = self.raw_moments(highest).copy()
        both[1:] = np.maximum(both[1:], self.negative_moments(highest))
        return both

    def laplace_transform(self, u: Array) -> MomentTransform:
        """Bound the Laplace transform of X, of a finite law that is larger in convex order."""
        known = transform_from_moments(self.raw_moments(HIGHEST_ORDER), self.negative_moments(HIGHEST_ORDER), u)
        try:
            finite = transform_from_nodes(u, *self.finite_law())
        except (NotEvaluable, ArithmeticError, MemoryError):
            return known
        return MomentTransform(np.minimum(known.log, finite.log), np.minimum(known.excess, finite.excess))

    def finite_law(self) -> tuple[Array, Array, float]:
        """Return log masses under Q, log ratios, and the P-mass at infinity.

        They are those of X's law, or of one larger in convex order.
        """
        law = self._law().upper
        log_zero = math.log(law.zero) if law.zero else -np.inf
        return np.append(law.log_weights(0.0), log_zero), np.append(law.log_ratio, -np.inf), law.infinite

    def _computed_once(self, compute: Callable[[int], Array], highest: int) -> Array:
        """Return what was computed before for this order, or compute it."""
        key = compute.__name__, highest
        if key not in self._known:
            self._known[key] = compute(highest)
        return self._known[key]

    def _central_moments(self, highest: int) -> Array:
        """Compute the central moments from the finite law; NotEvaluable: it has mass at infinity."""
        log_masses, log_ratios, infinite = self.finite_law()
        if infinite:
            raise NotEvaluable("moments do not follow from a numerical law with mass at infinity")
        return central_from_nodes(log_masses, log_ratios, highest)

    def _raw_moments(self, highest: int) -> Array:
        """Compute the binomial sum of the central moments: E[X^a] = sum_j C(a, j) E[(X - 1)^j]."""
        with np.errstate(over="ignore"):
            excess = log_sum((log_binomials(highest) + self.central_moments(highest))[:, 2:])
            return np.where(excess < 30, np.log1p(np.exp(np.minimum(excess, 30))), np.logaddexp(0.0, excess))

    def _negative_moments(self, highest: int) -> Array:
        """Compute the negative moments from symmetry, or from the Laplace transform."""
        return self.raw_moments(highest)[1:] if self.symmetric else negative_moments(self.laplace_transform, highest)


class ProductMoments(Moments):
    """Moments of a product of independent ratios, each so many times: they multiply.

    See Zhu, Dong, Wang 2022, Theorem 10.
    """

    def __init__(self, law: Callable[[], Law], factors: Sequence[tuple[Moments, int]]) -> None:
        super().__init__(law, all(part.symmetric for part, _ in factors))
        self.factors = factors

    def _central_moments(self, highest: int) -> Array:
        powers = [
            combined_copies(part.central_moments(highest), times, product_moments) for part, times in self.factors
        ]
        nothing = np.append(0.0, np.full(highest, -np.inf))  # X = 1
        return reduce(product_moments, powers) if powers else nothing

    def _raw_moments(self, highest: int) -> Array:
        """Log moments add up."""
        return sum((times * part.raw_moments(highest) for part, times in self.factors), np.zeros(highest + 1))

    def _negative_moments(self, highest: int) -> Array:
        return sum((times * part.negative_moments(highest) for part, times in self.factors), np.zeros(highest))


class MixtureMoments(Moments):
    """Moments of one of several ratios: the law is drawn, not the variable.

    See Yin, Zaheer, Li 2026, Theorems 5.1 and 5.2.
    """

    def __init__(self, law: Callable[[], Law], parts: Sequence[Moments], weights: Sequence[float]) -> None:
        super().__init__(law, all(part.symmetric for part in parts))
        self.parts, self.weights = parts, weights

    def _mean_moments(self, moments: Callable[[Moments], Array]) -> Array:
        """Return the log of the weighted mean of the parts' moments."""
        weights = np.log(np.array(self.weights))
        return log_sum(np.stack([moments(part) for part in self.parts]) + weights[:, None], axis=0)

    def _central_moments(self, highest: int) -> Array:
        return self._mean_moments(lambda part: part.central_moments(highest))

    def _raw_moments(self, highest: int) -> Array:
        return self._mean_moments(lambda part: part.raw_moments(highest))

    def _negative_moments(self, highest: int) -> Array:
        return self._mean_moments(lambda part: part.negative_moments(highest))


class ThinnedMoments(Moments):
    """Moments of (1 - rate) + rate X (Zhu, Dong, Wang 2022, Theorem 11).

    X - 1 is multiplied by the rate, and so is the j-th central moment by its j-th power.
    """

    def __init__(self, law: Callable[[], Law], part: Moments, rate: float) -> None:
        super().__init__(law)
        self.part, self.rate = part, rate

    def _central_moments(self, highest: int) -> Array:
        """log E[(q (X - 1))^j] = j log q + log E[(X - 1)^j]."""
        return np.asarray(self.part.central_moments(highest) + np.arange(highest + 1) * np.log(self.rate))

    def _negative_moments(self, highest: int) -> Array:
        """Use the raw moments where the remove direction is the larger one (Mironov, Talwar, Zhang 2019, Theorem 5).

        Else compute them from the transform.
        """
        if self.part.symmetric:  # the remove direction is the larger: Mironov, Talwar, Zhang 2019, Theorem 5
            return self.raw_moments(highest)[1:]
        return negative_moments(self.laplace_transform, highest)

    def laplace_transform(self, u: Array) -> MomentTransform:
        """E exp(-u (1 - q + q X)) = e^(-(1 - q) u) E exp(-q u X)."""
        part = self.part.laplace_transform(self.rate * u)
        return MomentTransform(part.log - (1 - self.rate) * u, part.excess)


class MeanMoments(Moments):
    """Moments of the mean of so many ``copies`` of a ratio.

    See Dong, Chen, Özgür 2025, Theorem 3.4, proof A.9; the quasi-convexity it uses holds for hockey-stick divergences
    too.
    """

    def __init__(self, law: Callable[[], Law], part: Moments, copies: int) -> None:
        super().__init__(law)
        self.part, self.copies = part, copies

    def _central_moments(self, highest: int) -> Array:
        """Raise a power series to the number of copies.

        With C(u) = sum_j E[(X-1)^j] u^j / j!, the sum of n copies of X - 1 has C(u)^n, by repeated squaring.
        """
        factorials = log_factorials(highest)
        summed = (
            combined_copies(self.part.central_moments(highest) - factorials, self.copies, series_product) + factorials
        )
        return np.asarray(summed - np.arange(highest + 1) * np.log(self.copies))

    def _negative_moments(self, highest: int) -> Array:
        """Take the smaller of the exact moments and of a bound.

        The mean is at least the geometric mean, so E[mean^-b] <= E[copy^(-b / n)]^n.
        """
        # Jensen: the mean is at least the geometric mean, so E[mean^-b] <= E[copy^(-b/n)]^n. Between whole powers the
        # log moment of a copy is convex, so its linear interpolation is above it.
        exact = negative_moments(self.laplace_transform, highest)
        powers, of_a_copy, copies = np.arange(float(highest)), self.part.negative_moments(highest), self.copies
        return np.minimum(exact, copies * np.interp(powers / copies, powers, of_a_copy))

    def laplace_transform(self, u: Array) -> MomentTransform:
        """E exp(-u mean) = (E exp(-(u / n) X))^n."""
        part = self.part.laplace_transform(u / self.copies)
        return MomentTransform(self.copies * part.log, self.copies * part.excess)


def unbounded_moments(highest: int) -> Array:
    """Return the table of log moments of which nothing is known."""
    return np.append([0.0, 0.0], np.full(highest - 1, np.inf))


def shifted_moments(shift: float, highest: int) -> Array:
    """Return log moments of a shift by so many standard deviations of Gaussian noise, a (a - 1) shift^2 / 2.

    Smaller shifts have smaller moments.

    Args:
        shift: largest shift, in standard deviations.
        highest: order A.

    Returns:
        Shape (A + 1,).
    """
    a = np.arange(highest + 1.0)
    return a * (a - 1) * shift**2 / 2


def integrated_order(shift: float, highest: int, most: float) -> int:
    """Return up to which order moments are integrated: above ``most`` over the shift a bound is as good."""
    return min(highest, int(most / max(shift, 1e-9)))


def integrated_moments(shift: float, highest: int, most: float, nodes: Callable[[int], tuple[Array, Array]]) -> Array:
    """Return central moments by quadrature at low orders, and by a bound above.

    The bound is |X - 1|^a <= X^a + 1, and the largest shift.

    Args:
        shift: largest shift, in standard deviations.
        highest: order A.
        most: limit for quadrature, see :func:`integrated_order`.
        nodes: gives log masses and log ratios that hold the moment of an order.

    Returns:
        Shape (A + 1,).
    """
    result, order = np.logaddexp(0.0, shifted_moments(shift, highest)), integrated_order(shift, highest, most)
    result[:2] = 0.0, -np.inf
    if order >= 2:
        result[: order + 1] = central_from_nodes(*nodes(order), order)
    return result


def divergences_of(logs: Array, orders: Array) -> Array:
    """Return Rényi divergences from a table of log moments.

    (order - 1) times them is interpolated between whole orders, which is above a convex function.

    Args:
        logs: shape (A + 1,).
        orders: each in (1, A], shape (n,).

    Returns:
        Shape (n,), rounding included.
    """
    low = np.clip(np.floor(orders).astype(int), 1, len(logs) - 2)
    part = orders - low
    with np.errstate(invalid="ignore"):
        between = np.where(part > 0, logs[low] + part * (logs[low + 1] - logs[low]), logs[low])
    return np.asarray(
        np.where(np.isnan(between), np.inf, np.maximum(between, 0.0)) * (1 + RENYI_ROUNDING) / (orders - 1)
    )
