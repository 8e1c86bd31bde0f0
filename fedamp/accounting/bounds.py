"""Privacy questions, and what answers them: brackets, and trade-off functions, which are whole curves of brackets; how
Rényi divergences answer.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, cast

import numpy as np
from numpy.typing import ArrayLike

from fedamp.accounting import checks
from fedamp.accounting.arithmetic import UNIT, Array, gaussian_delta


class Method(StrEnum):
    """What made the upper end of a bracket, in words, with places for the facts of one answer."""

    UNSAID = ""
    ADD_BY_LAW = "the add direction by the law; remove: {}"
    CLOSED_FORM = "hidden choices revealed, closed form"
    CONTRADICTED = "none: {} contradicts the lower end"
    CURVE = "the curve over rounds: the smallest upper end of this round and all later ones"
    DELTA_AT_0 = "delta at epsilon 0"
    ERROR_RATES = "error rates from {:g}"
    GROUP_PROPERTY = "group property of {}"
    GROUP_PROPERTY_ALONE = "group property"
    JOINT_RELEASE = "joint release, {}"
    LAW = "numerical law, {} points"
    LOSSES = "the sum of the largest losses"
    NO_NOISE = "no noise"
    NONE = "none ({})"
    NOTHING = "nothing is released"
    OUTCOMES = "{:,} outcomes, exactly"
    RARE_BATCH = "smaller than the chance of being in the batch"
    RARE_OUTPUT = "an output that unlikely cannot occur"
    RARELY = "smaller than the chance of taking part"
    RENYI = "Rényi, order {:g}{}{}"
    SAMPLED = "sampled, {:,} draws of {}, failure probability {:.0e} (charged to delta)"
    SELECTION = "random selection by {}"
    UNAMPLIFIED = "unamplified: {}"

    def of(self, *facts: object) -> "Origin":
        """The method of one answer."""
        return Origin(self, facts)


class Origin(NamedTuple):
    """A method, and the facts of an answer. ``unmixed``: ModelMix was charged without mixing."""

    method: Method
    facts: tuple[object, ...] = ()
    unmixed: bool = False

    def within(self, method: Method) -> "Origin":
        """Of an answer that another ``method`` makes of this one."""
        return Origin(method, (self._replace(unmixed=False),), self.unmixed)

    def __str__(self) -> str:
        return self.method.format(*self.facts) + ", without mixing" * self.unmixed


UNSAID = Method.UNSAID.of()


@dataclass(frozen=True)
class Bounds:
    """A certified bracket: the true value lies in ``[lower, upper]``. A budget spends ``upper``, which may be infinite;
    ``origin`` says what made it.

    There is no ``float(bounds)`` and no ``f"{bounds:.2f}"``: the ends differ, and a format code rounds to nearest, so
    that a budget could look kept when it is not.
    """

    lower: float
    upper: float
    origin: Origin = UNSAID

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise ValueError(f"lower must not exceed upper, got [{self.lower}, {self.upper}]")

    @property
    def method(self) -> str:
        """The origin in words (``"numerical law, 4096 points"``, ``"Rényi, order 17"``)."""
        return str(self.origin)

    @property
    def width(self) -> float:
        """``upper - lower``."""
        return self.upper - self.lower

    def to_json(self) -> dict[str, float | None]:
        """``{"lower": ..., "upper": ...}``; an infinite end is null, because JSON has no infinity."""
        return {"lower": finite(self.lower), "upper": finite(self.upper)}

    def __str__(self) -> str:
        """The upper end rounded up and the lower end rounded down, to four digits."""
        return f"{_rounded(self.upper, up=True)} (at least {_rounded(self.lower, up=False)})"

    def __format__(self, code: str) -> str:
        if code:
            raise TypeError(f"a bracket has no format {code!r}: format .upper (what a budget spends) or .lower")
        return str(self)

    def __float__(self) -> NoReturn:
        raise TypeError("a bracket is not one number: take .upper (what a budget spends) or .lower")


class NotEvaluable(ValueError):
    """An evaluator cannot answer within its limits; another one may."""


@contextmanager
def in_floating_point() -> Iterator[None]:
    """Raises ``NotEvaluable`` where numbers inside leave the range of floating point, or need too much memory."""
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            yield
    except (ArithmeticError, MemoryError) as error:
        raise NotEvaluable(f"out of the range of floating point or of memory: {error or 'too large'}") from None


def finite(value: float) -> float | None:
    """The value, or None where it is infinite: JSON has no infinity."""
    return float(value) if math.isfinite(value) else None


def _rounded(value: float, up: bool) -> str:
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    if unit == 0:  # a thousandth of it underflows
        return f"{value:g}"
    return f"{(math.ceil if up else math.floor)(value / unit) * unit:.4g}"


class ByOrder(NamedTuple):
    """The best value over all Rényi orders, and the order that gave it."""

    value: float
    order: float


@dataclass(frozen=True)
class EpsilonAt:
    """The question for the smallest epsilon at ``delta``. ``points``: of numerical laws; default: 1200, and up to 4800
    where the bracket is wider than one part in 1000. ``with_lower``: whether the lower end is asked for.
    """

    delta: float
    points: int | None = None
    with_lower: bool = True
    unknown: ClassVar[float] = math.inf
    fine: ClassVar[tuple[float, float]] = 0.01, 20.0  # the answers that are worth a finer grid

    @property
    def reach(self) -> float:
        """How many standard deviations of normal tails matter."""
        return min(math.sqrt(-2 * math.log(self.delta)) + 2, 36.0) if self.delta < 1e-18 else 9.5

    def of_losses(self, largest: float, chance: float = 0.0) -> float:
        """The answer where no loss is above ``largest``, but for a ``chance`` in [0, 1) (Kairouz, Oh, Viswanath 2015,
        Theorem 3.4; Murtagh, Vadhan 2016).
        """
        if self.delta < chance:
            return math.inf
        spared = (self.delta - chance) / (1 - chance) * (1 + math.exp(-largest)) * (1 - 8 * UNIT)
        return min(largest, max(0.0, largest + math.log1p(-spared) + 8 * UNIT * (1 + largest))) if spared < 1 else 0.0

    def ask(self, profile: Any, **options: Any) -> Bounds:
        """The answer of a mechanism, a law or an evaluator."""
        return cast(Bounds, profile.epsilon(self.delta, **options))

    def convert(self, orders: Array, divergences: Array) -> ByOrder:
        """The answer of Rényi divergences at some orders, both of shape (n,)."""
        pairs = zip(orders.tolist(), divergences.tolist(), strict=True)
        values = [max(epsilon_of_moment(order, (order - 1) * each, self.delta), 0.0) for order, each in pairs]
        best = int(np.argmin(values))
        return ByOrder(values[best], float(orders[best]))


@dataclass(frozen=True)
class DeltaAt:
    """The question for the smallest delta at ``epsilon``; otherwise as ``EpsilonAt``."""

    epsilon: float
    points: int | None = None
    with_lower: bool = True
    unknown: ClassVar[float] = 1.0
    fine: ClassVar[tuple[float, float]] = 1e-10, 1.0  # the answers that are worth a finer grid
    reach: ClassVar[float] = 9.5

    def of_losses(self, largest: float, chance: float = 0.0) -> float:
        """The answer where no loss is above ``largest``, but for a ``chance`` in [0, 1)."""
        if largest == math.inf:
            return 1.0
        if self.epsilon >= largest:
            return chance
        other = -math.expm1(self.epsilon - largest) / (1 + math.exp(-largest))
        return min(1.0, (chance + (1 - chance) * other) * (1 + 8 * UNIT))

    def ask(self, profile: Any, **options: Any) -> Bounds:
        """The answer of a profile."""
        return cast(Bounds, profile.delta(self.epsilon, **options))

    def convert(self, orders: Array, divergences: Array) -> ByOrder:
        """The answer of Rényi divergences at some orders, both of shape (n,)."""
        logs = log_deltas(orders, divergences, self.epsilon)
        best = int(np.argmin(logs))
        return ByOrder(math.exp(min(logs[best], 0.0)), float(orders[best]))


Question = EpsilonAt | DeltaAt


def log_delta_of_moment(order: float, log_moment: float, epsilon: float) -> float:
    """log of the delta at ``epsilon`` that log E[X^a] proves, at an order a > 1: (X - e^epsilon)+ <=
    X^a e^(epsilon (1 - a)) (a - 1)^(a - 1) / a^a (Canonne, Kamath and Steinke 2020, Proposition 12; Balle et al. 2020,
    Theorem 21). The log moment is a - 1 times the Rényi divergence of order a.
    """
    return log_moment + (epsilon * (1 - order) + (order - 1) * math.log(order - 1) - order * math.log(order))


def epsilon_of_moment(order: float, log_moment: float, delta: float) -> float:
    """The epsilon at which ``log_delta_of_moment`` is log ``delta``; may be negative."""
    return (log_delta_of_moment(order, log_moment, 0.0) - math.log(delta)) / (order - 1)


def log_deltas(orders: Array, divergences: Array, epsilon: float) -> Array:
    """log of the delta at ``epsilon`` that each Rényi divergence proves, shape (n,) as both arguments."""
    pairs = zip(orders.tolist(), divergences.tolist(), strict=True)
    return np.array([log_delta_of_moment(order, (order - 1) * each, epsilon) for order, each in pairs])


def epsilon_from_rdp(
    orders: Sequence[float] | Array,
    divergences: Sequence[float] | Array,
    delta: float,
    conversion: Literal["tight", "loose"] = "tight",
) -> float:
    """epsilon at ``delta`` of Rényi divergences at some orders, both of shape (n,). The "tight" conversion is that of
    Canonne, Kamath and Steinke 2020, Proposition 12 (also Balle et al. 2020, Theorem 21), the "loose" one that of
    Mironov 2017, Proposition 3, which the tables of Dong, Chen and Özgür 2025 use.
    """
    checked, values = checked_orders(orders), np.asarray(divergences, dtype=np.float64)
    if values.shape != checked.shape or not np.all(values >= 0):
        raise ValueError(f"divergences must be >= 0 and one for each order, got {divergences!r}")
    if conversion not in ("tight", "loose"):
        raise ValueError(f'conversion must be "tight" or "loose", got {conversion!r}')
    question = EpsilonAt(checks.delta(delta))
    if conversion == "tight":
        return question.convert(checked, values).value
    return float(np.min(values - math.log(question.delta) / (checked - 1)))


def checked_orders(orders: Sequence[float] | Array | float) -> Array:
    """Orders as an array of shape (n,), each > 1 and finite, or ValueError."""
    array = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if array.ndim != 1 or not array.size or not np.all((array > 1) & (array < np.inf)):
        raise ValueError(f"orders must be > 1 and finite, got {orders!r}")
    return array


def search_orders(highest: int) -> Array:
    """The orders that conversions search: dense below 10, whole ones above; shape (n,)."""
    dense = np.concatenate([1 + np.geomspace(0.01, 1, 20)[:-1], np.linspace(2, 10, 81)])
    return np.concatenate([dense[dense < min(10, highest)], np.arange(min(10, highest), highest + 1)])


# The trade-off function f gives the smallest false negative rate of any test at each false positive rate (Dong, Roth,
# Su 2022). It says the same as the whole curve delta(epsilon). As delta is the larger of both directions, f is the
# largest *symmetric* trade-off function that every test satisfies, for either null hypothesis. docs/risk.md has more.

_OFF = 2.0**-48  # allowance for the few operations between delta and an error rate, each on numbers of at most 1


class GaussianFit(NamedTuple):
    """The best guarantee of Gaussian form; see :meth:`TradeOff.gaussian`."""

    mu: Bounds
    regret: Bounds


@dataclass(frozen=True, eq=False)
class TradeOff:
    """The symmetric trade-off function f that belongs to a bracketed privacy profile.

    With c(s) = min over tests of (false negative rate + s * false positive rate), which is 1 - delta(log s) for s >= 1
    and s c(1/s) below, f(alpha) = sup over s of c(s) - s alpha (Dong, Roth, Su 2022, Proposition 2.12). Every single
    s therefore gives a lower bound of f. The upper bound needs c between the points of the grid: c is concave, so that
    it lies below the lines that continue it from either side.

    ``epsilons``: shape (n,), increasing from 0, finite. ``lower``, ``upper``: shape (n,), ends of delta, in [0, 1];
    raised to the largest at any later epsilon, or lowered to the smallest at any earlier one.
    """

    epsilons: Array
    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        grid, ends = self.epsilons, np.stack([self.lower, self.upper])
        if grid.ndim != 1 or grid[:1].tolist() != [0.0] or not np.all(np.diff(grid, append=np.inf) > 0):
            raise ValueError(f"epsilons must be increasing from 0 and finite, got {grid!r}")
        if ends.shape != (2, *grid.shape) or not np.all((ends >= 0) & (ends <= 1)):
            raise ValueError(f"lower and upper must be in [0, 1], one for each epsilon, got {ends!r}")
        lower, upper = np.maximum.accumulate(ends[0, ::-1])[::-1], np.minimum.accumulate(ends[1])
        if np.any(lower > upper + _OFF):
            raise ValueError(f"lower must not exceed upper, delta does not rise with epsilon, got {ends!r}")
        object.__setattr__(self, "lower", np.minimum(lower, upper))
        object.__setattr__(self, "upper", upper)

    def false_negative_rate(self, false_positive_rate: ArrayLike) -> tuple[Array, Array]:
        """f: lower and upper ends of the smallest false negative rate of any test with at most these false positive
        rates, each in [0, 1]; of the same shape, which is any. No attack gets below the lower end.
        """
        alpha = _rates("false_positive_rate", false_positive_rate)
        lower = np.maximum(self._certain.at(alpha) - _OFF, 0.0)
        upper = np.minimum(np.maximum(self._possible.at(alpha), 0.0) + _OFF, 1.0 - alpha)
        return lower, np.maximum(lower, upper)

    def true_positive_rate(self, false_positive_rate: ArrayLike) -> tuple[Array, Array]:
        """1 - f: the largest share of participants that any test recognises, at these false positive rates. It also
        bounds *reconstruction*: if an attacker comes close enough to a person's data with probability at most kappa
        without the release, it does so with probability at most 1 - f(kappa) with it (Hayes, Mahloujifar, Balle 2023,
        Theorem 2), if the data is drawn from the attacker's prior and all else is fixed.
        """
        missed, alpha = self.false_negative_rate(false_positive_rate), np.asarray(false_positive_rate, np.float64)
        # The same without the difference from 1, for tiny rates: delta(epsilon) + e^epsilon alpha at each epsilon.
        upper = np.min(self.upper + np.exp(self.epsilons) * alpha[..., None], axis=-1) * (1 + _OFF)
        return np.maximum(1.0 - missed[1], alpha), np.minimum(1.0 - missed[0], upper)

    def identification(self, candidates: ArrayLike) -> tuple[Array, Array]:
        """Probability of naming the right one of m equally likely ``candidates`` for a person's data, whole numbers >=
        1 of any shape: 1 - f(1 / m); proof in docs/risk.md. A given mechanism may allow less.
        """
        number = np.asarray(candidates)
        if not (np.issubdtype(number.dtype, np.integer) and np.all(number >= 1)):
            raise ValueError(f"candidates must be whole numbers >= 1, got {candidates!r}")
        return self.true_positive_rate(1.0 / number)

    def posterior(self, prior: ArrayLike, false_positive_rate: ArrayLike) -> tuple[Array, Array]:
        """Probability that an accused person took part (the positive predictive value), at most.

        A test with these false positive rates in (0, 1], *or larger ones*, accuses rightly in at most this share of its
        accusations, if a share ``prior`` in [0, 1] of those tested took part; both are broadcast. There is no such
        bound for single outputs: a rare one may convince.
        """
        belief, alpha = _rates("prior", prior), _rates("false_positive_rate", false_positive_rate)
        if not np.all(alpha > 0):
            raise ValueError(f"false_positive_rate must be > 0 for a posterior, got {false_positive_rate!r}")
        lower, upper = (
            belief * rate / (belief * rate + (1.0 - belief) * alpha) for rate in self.true_positive_rate(alpha)
        )
        return lower, upper

    @property
    def advantage(self) -> Bounds:
        """Largest true positive rate minus false positive rate of any test: delta at epsilon 0."""
        return Bounds(float(self.lower[0]), float(self.upper[0]), Method.DELTA_AT_0.of())

    def gaussian(self, smallest_rate: float = 1e-6) -> GaussianFit:
        """The least mu of a Gaussian trade-off G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu) that stays below f, and what
        is lost by reporting mu alone (Gomez, Kulynych, Kaissis et al. 2025, arXiv 2503.10945). Only tests both of whose
        error rates are at least ``smallest_rate`` in (0, 0.5) count: without that limit the far tail would decide.

        ``mu`` is [0, inf] where no test has such error rates. ``regret`` of ``mu.upper``, in [0, 1], is the least kappa
        with f(alpha + kappa) - kappa <= G_mu(alpha) everywhere, that is the largest amount, over all priors, by which
        an attacker's probability of error exceeds the one that mu alone promises.
        """
        rate = checks.probability("smallest_rate", smallest_rate)
        if not 0 < rate < 0.5:
            raise ValueError(f"smallest_rate must be in (0, 0.5), got {smallest_rate!r}")
        mu = self._gaussian_mu(rate)
        if mu.upper == math.inf:
            return GaussianFit(mu, Bounds(0.0, 1.0))
        # The difference of Bayes errors: a line between two points less a concave function is largest at a point.
        upper, lower = (float(np.max(_regrets(lines, mu.upper))) for lines in (self._possible, self._certain))
        upper = min(max(upper, 0.0) + _OFF, 1.0)
        return GaussianFit(mu, Bounds(min(max(lower - _OFF, 0.0), upper), upper))

    def _gaussian_mu(self, rate: float) -> Bounds:
        """By symmetry, false positive rates up to the fixed point of f suffice, which is (1 - delta(0)) / 2."""
        from scipy.special import ndtri  # a slow import

        smallest, largest = (1.0 - self.upper[0]) / 2, (1.0 - self.lower[0]) / 2
        origin = Method.ERROR_RATES.of(rate)
        if smallest < rate:
            return Bounds(0.0, math.inf, origin)
        corners = self._certain.corners
        # G_mu is convex and the certified f is straight between corners: below at the corners is below everywhere.
        alpha = np.r_[rate, corners[(corners > rate) & (corners < largest)], largest]
        certified = self.false_negative_rate(alpha)[0]
        upper = max(float(np.max(-ndtri(alpha) - ndtri(certified))), 0.0) * (1 + 1e-12)
        alpha = np.minimum(alpha, smallest)
        possible = self.false_negative_rate(alpha)[1]
        lower = float(np.max(-ndtri(alpha) - ndtri(possible))) * (1 - 1e-12)
        return Bounds(min(max(lower, 0.0), upper), upper, origin)

    def plot(self, axes: Any = None, label: str = "") -> Any:
        """Plot the true positive rate over the false positive rate, at most and at least, on matplotlib's ``axes`` or
        new ones, with a ``label`` of the curve.
        """
        import matplotlib.pyplot as plt

        axes = plt.subplots(layout="constrained")[1] if axes is None else axes
        rates = np.geomspace(1e-4, 1.0, 200)
        lower, upper = self.true_positive_rate(rates)
        axes.fill_between(rates, lower, upper, alpha=0.3)
        axes.plot(rates, upper, label=label)
        axes.plot(rates, rates, color="grey", linestyle=":", label="guessing")
        axes.set(xscale="log", yscale="log", xlabel="false positive rate", ylabel="true positive rate, at most")
        axes.legend()
        return axes

    def coarsest(self, count: int) -> Array:
        """Middles of at most ``count`` intervals of the grid: those where f is known worst."""
        s, low, high = self._points
        slope = np.diff(high) / np.diff(s)
        x, y = _concave_bound(s, low, high)
        excess = y[1] - high[:-1] - slope * (x[1] - s[:-1])
        missed = high[:-1] - slope * s[:-1]  # false negatives where f has this slope
        gain = excess / np.clip(np.minimum(missed, 1.0 - missed), 1e-4, 1.0)
        gain = gain[len(self.epsilons) :]  # where s is at least 1
        worst = np.argsort(gain)[::-1][:count]
        worst = worst[gain[worst] > 1e-6]
        return np.asarray(self.epsilons[worst] + self.epsilons[worst + 1]) / 2

    @property
    def _points(self) -> tuple[Array, Array, Array]:
        """s, from 0, and both ends of c(s)."""
        small = np.exp(-self.epsilons[:0:-1])
        ends = [np.r_[0.0, small * (1.0 - delta[:0:-1]), 1.0 - delta] for delta in (self.upper, self.lower)]
        slopes = np.r_[0.0, small, np.exp(self.epsilons)]
        other = np.diff(slopes, prepend=-1.0) > 0  # two epsilons may have the same exponential
        return slopes[other], *(end[other] for end in ends)

    @cached_property
    def _certain(self) -> "_Lines":
        """The lower bound of f."""
        return _upper_envelope(*self._points[:2])

    @cached_property
    def _possible(self) -> "_Lines":
        """The upper bound of f: the conjugate of the least concave bound of c."""
        s, low, high = self._points
        x, y = _concave_bound(s, low, high)
        slope = max((high[-1] - low[-2]) / (s[-1] - s[-2]), 0.0)  # on which c continues beyond the grid, until it is 1
        step = (1.0 - high[-1]) / slope if slope > 0 else 0.0
        x, y = np.r_[x.T.ravel(), s[-1] + step], np.r_[y.T.ravel(), high[-1] + slope * step]
        order = np.lexsort((y, x))
        return _upper_envelope(x[order], y[order])


def _concave_bound(s: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """An upper bound of a concave function between whose points it is straight. ``s``, ``low``, ``high``: shape (n,),
    where the function is known and between what; its slopes are in [0, 1], the first 1. Returns points and values,
    shape (3, n - 1): at both ends of each interval, and where the lines meet that continue the function from the left
    and from the right.
    """
    gap = np.diff(s)
    from_left = np.r_[1.0, np.clip((high[1:-1] - low[:-2]) / gap[:-1], 0.0, 1.0)]
    from_right = np.r_[np.clip((low[2:] - high[1:-1]) / gap[1:], 0.0, 1.0), 0.0]
    bend = from_left - from_right
    meet = np.divide(high[1:] - high[:-1] - from_right * gap, bend, out=np.zeros_like(gap), where=bend != 0)
    step = np.stack([np.zeros_like(gap), np.clip(meet, 0.0, gap), gap])
    return s[:-1] + step, np.minimum(high[:-1] + from_left * step, high[1:] - from_right * (gap - step))


class _Lines(NamedTuple):
    """max over j of intercepts[j] - slopes[j] * alpha; line j is the largest between corners[j] and corners[j - 1]."""

    slopes: Array
    intercepts: Array
    corners: Array

    def at(self, alpha: Array) -> Array:
        line = np.searchsorted(-self.corners, -alpha)
        return np.asarray(self.intercepts[line] - self.slopes[line] * alpha)


def _upper_envelope(slopes: Array, intercepts: Array) -> _Lines:
    """The lines that are the largest somewhere in [0, 1]; ``slopes`` rising (equal ones: intercepts rising)."""
    kept: list[tuple[float, float]] = []
    corners: list[float] = []
    for s, c in zip(slopes.tolist(), intercepts.tolist(), strict=True):
        while kept and (s <= kept[-1][0] or (corners and c - kept[-1][1] >= corners[-1] * (s - kept[-1][0]))):
            kept.pop()
            corners = corners[: max(len(kept) - 1, 0)]
        if kept and c <= kept[-1][1]:
            continue
        if kept:
            corners.append((c - kept[-1][1]) / (s - kept[-1][0]))
        kept.append((s, c))
    s_kept, c_kept = np.array(kept).T
    return _Lines(s_kept, c_kept, np.array(corners))


def _regrets(lines: _Lines, mu: float) -> Array:
    """Bayes error of an attack with minimal s-weighted error c(s), less that of the Gaussian, at each s > 0."""
    s, c = lines.slopes[1:], lines.intercepts[1:]  # the first is s = 0
    above = np.maximum(s, 1.0 / s)  # by symmetry
    delta = gaussian_delta(np.full(len(s), max(mu, 1e-12) ** 2), np.log(above), 0)
    return np.asarray(c / (1.0 + s) - (1.0 - delta) / (1.0 + above))


def _rates(name: str, values: ArrayLike) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array >= 0) & (array <= 1)):
        raise ValueError(f"{name} must be in [0, 1], got {values!r}")
    return array
