"""Risks: trade-off functions, which are whole curves of brackets, and error rates of attacks; docs/research/risk.md.

The module knows a mechanism by its answers alone (:class:`Profile`). It turns delta(epsilon) into error rates of
attacks: advantage, true positive rate at a false positive rate, identification, posterior, and a Gaussian summary.
:func:`in_words` writes one of them as a sentence for the people concerned.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from fedamp.accounting.arithmetic import Array, gaussian_delta
from fedamp.accounting.bounds import Bounds, Method, Origin, Relation, check_count, check_probability

# The trade-off function f gives the smallest false negative rate of any test at each false positive rate (Dong, Roth,
# Su 2022). It says the same as the whole curve delta(epsilon). As delta is the larger of both directions, f is the
# largest *symmetric* trade-off function that every test satisfies, for either null hypothesis. docs/research/risk.md
# has more.

_OFF = 2.0**-48  # allowance for the few operations between delta and an error rate, each on numbers of at most 1


class GaussianFit(NamedTuple):
    """The best guarantee of Gaussian form; see :meth:`TradeOff.gaussian`.

    Attributes:
        mu: the least parameter, as a bracket.
        regret: the loss by reporting ``mu.upper`` alone, as a bracket.
    """

    mu: Bounds
    regret: Bounds


@dataclass(frozen=True, eq=False)
class TradeOff:
    """The symmetric trade-off function f that belongs to a bracketed privacy profile.

    f(alpha) is the smallest false negative rate of any test of participation with a false positive rate of alpha (Dong,
    Roth, Su 2022, Definition 2.1). Let c(s) be the least (false negative rate + s * false positive rate) of any test,
    which is 1 - delta(log s) for s >= 1 and s c(1/s) below. Then (Proposition 2.12 there)

        f(alpha) = sup over s of c(s) - s alpha.

    Every single s therefore gives a lower bound of f. The upper bound needs c between the points of the grid: c is
    concave, so that it lies below the lines that continue it from either side.

    Attributes:
        epsilons: shape (n,), increasing from 0, finite.
        lower, upper: shape (n,), ends of delta, in [0, 1]; raised to the largest at any later epsilon, or lowered to
            the smallest at any earlier one.

    Raises:
        ValueError: epsilons do not increase from 0, or no falling delta lies between the ends.

    Example:
        >>> from fedamp.accounting import Gaussian, privacy_profile
        >>> epsilons = np.linspace(0.0, 6.0, 61)
        >>> curve = TradeOff(epsilons, *privacy_profile(Gaussian(1.0), epsilons))
        >>> lower, upper = curve.false_negative_rate([0.01, 0.1])  # truth: Phi(Phi^-1(1 - alpha) - 1)
        >>> lower.round(2).tolist(), upper.round(2).tolist()
        ([0.91, 0.61], [0.91, 0.61])
    """

    epsilons: Array
    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        """Check the grid and both ends, and make both fall with epsilon (ValueError)."""
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
        """Return f: the smallest false negative rate of any test, at these false positive rates.

        Args:
            false_positive_rate: at most so large, each in [0, 1]; any shape.

        Returns:
            Lower and upper ends, of the same shape. No attack gets below the lower end.

        Raises:
            ValueError: a rate is outside [0, 1].
        """
        alpha = _checked_rates("false_positive_rate", false_positive_rate)
        lower = np.maximum(self._lower_lines.highest_at(alpha) - _OFF, 0.0)
        upper = np.minimum(np.maximum(self._upper_lines.highest_at(alpha), 0.0) + _OFF, 1.0 - alpha)
        return lower, np.maximum(lower, upper)

    def true_positive_rate(self, false_positive_rate: ArrayLike) -> tuple[Array, Array]:
        """Return 1 - f: the largest share of participants that any test recognises, at these false positive rates.

        It also bounds *reconstruction* (Hayes, Mahloujifar, Balle 2023, Theorem 2). Suppose that an attacker without
        the release comes close enough to a person's data with probability at most kappa. With the release the
        probability is at most 1 - f(kappa), if the data is drawn from the attacker's prior and all else is fixed.

        Args:
            false_positive_rate: each in [0, 1]; any shape.

        Returns:
            Lower and upper ends, of the same shape. No attack gets above the upper end.

        Example:
            >>> from fedamp.accounting import Gaussian
            >>> Gaussian(2.0).trade_off().true_positive_rate(0.01)[1].round(3).tolist()
            0.034
        """
        missed, alpha = self.false_negative_rate(false_positive_rate), np.asarray(false_positive_rate, np.float64)
        # The same without the difference from 1, for tiny rates: delta(epsilon) + e^epsilon alpha at each epsilon.
        upper = np.min(self.upper + np.exp(self.epsilons) * alpha[..., None], axis=-1) * (1 + _OFF)
        return np.maximum(1.0 - missed[1], alpha), np.minimum(1.0 - missed[0], upper)

    def identification(self, candidates: ArrayLike) -> tuple[Array, Array]:
        """Return the largest probability of naming the right one of m equally likely candidates.

        For candidates for a person's data it is 1 - f(1 / m); docs/research/risk.md has the proof. A given mechanism
        may allow less.

        Args:
            candidates: m, whole numbers >= 1 of any shape.

        Returns:
            Lower and upper ends, of the same shape.

        Raises:
            ValueError: a number is not whole, or below 1.

        Example:
            >>> from fedamp.accounting import Gaussian
            >>> Gaussian(2.0).trade_off().identification(10)[1].round(2).tolist()
            0.22
        """
        number = np.asarray(candidates)
        if not (np.issubdtype(number.dtype, np.integer) and np.all(number >= 1)):
            raise ValueError(f"candidates must be whole numbers >= 1, got {candidates!r}")
        return self.true_positive_rate(1.0 / number)

    def posterior(self, prior: ArrayLike, false_positive_rate: ArrayLike) -> tuple[Array, Array]:
        """Return the largest probability that an accused person took part (the positive predictive value).

        With prior pi and true positive rate t at the false positive rate alpha it is pi t / (pi t + (1 - pi) alpha). It
        holds for tests with these false positive rates *or larger ones*. There is no such bound for single outputs: a
        rare one may convince.

        Args:
            prior: share of those tested who took part, in [0, 1].
            false_positive_rate: in (0, 1]; both are broadcast.

        Returns:
            Lower and upper ends.

        Raises:
            ValueError: a number is out of its range.

        Example:
            >>> from fedamp.accounting import Gaussian
            >>> Gaussian(2.0).trade_off().posterior(prior=0.5, false_positive_rate=0.01)[1].round(2).tolist()
            0.77
        """
        belief, alpha = _checked_rates("prior", prior), _checked_rates("false_positive_rate", false_positive_rate)
        if not np.all(alpha > 0):
            raise ValueError(f"false_positive_rate must be > 0 for a posterior, got {false_positive_rate!r}")
        lower, upper = (
            belief * rate / (belief * rate + (1.0 - belief) * alpha) for rate in self.true_positive_rate(alpha)
        )
        return lower, upper

    @property
    def advantage(self) -> Bounds:
        """Largest true positive rate minus false positive rate of any test: delta at epsilon 0."""
        return Bounds(float(self.lower[0]), float(self.upper[0]), Origin(Method.DELTA_AT_0))

    def gaussian(self, smallest_rate: float = 1e-6) -> GaussianFit:
        """Return the least mu of a Gaussian trade-off that stays below f, and the loss by reporting mu alone.

        G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu) is the trade-off function of Gaussian noise with multiplier 1 / mu
        (Gomez, Kulynych, Kaissis et al. 2025, arXiv 2503.10945). Only tests both of whose error rates are at least
        ``smallest_rate`` count: without that limit the far tail would decide.

        The regret is the least kappa with f(alpha + kappa) - kappa <= G_mu(alpha) everywhere. It is the largest amount,
        over all priors, by which an attacker's probability of error exceeds the one that mu alone promises.

        Args:
            smallest_rate: in (0, 0.5).

        Returns:
            ``mu``, which is [0, inf] where no test has such error rates; and ``regret`` of ``mu.upper``, in [0, 1].

        Raises:
            ValueError: the rate is out of its range.

        Example:
            >>> from fedamp.accounting import Gaussian
            >>> round(Gaussian(2.0).trade_off().gaussian().mu.upper, 2)
            0.5
        """
        rate = check_probability("smallest_rate", smallest_rate)
        if not 0 < rate < 0.5:
            raise ValueError(f"smallest_rate must be in (0, 0.5), got {smallest_rate!r}")
        mu = self._gaussian_mu(rate)
        if mu.upper == math.inf:
            return GaussianFit(mu, Bounds(0.0, 1.0))
        # The difference of Bayes errors: a line between two points less a concave function is largest at a point.
        upper, lower = (
            float(np.max(_bayes_regrets(lines, mu.upper))) for lines in (self._upper_lines, self._lower_lines)
        )
        upper = min(max(upper, 0.0) + _OFF, 1.0)
        return GaussianFit(mu, Bounds(min(max(lower - _OFF, 0.0), upper), upper))

    def _gaussian_mu(self, rate: float) -> Bounds:
        """Return the least mu as a bracket.

        By symmetry, false positive rates up to the fixed point of f suffice, which is (1 - delta(0)) / 2.
        """
        from scipy.special import ndtri  # a slow import

        smallest, largest = (1.0 - self.upper[0]) / 2, (1.0 - self.lower[0]) / 2
        origin = Origin(Method.ERROR_RATES, (rate,))
        if smallest < rate:
            return Bounds(0.0, math.inf, origin)
        corners = self._lower_lines.corners
        # G_mu is convex and the certified f is straight between corners: below at the corners is below everywhere.
        alpha = np.r_[rate, corners[(corners > rate) & (corners < largest)], largest]
        certified = self.false_negative_rate(alpha)[0]
        upper = max(float(np.max(-ndtri(alpha) - ndtri(certified))), 0.0) * (1 + 1e-12)
        alpha = np.minimum(alpha, smallest)
        possible = self.false_negative_rate(alpha)[1]
        lower = float(np.max(-ndtri(alpha) - ndtri(possible))) * (1 - 1e-12)
        return Bounds(min(max(lower, 0.0), upper), upper, origin)

    def plot(self, axes: Any = None, label: str = "") -> Any:
        """Plot the true positive rate over the false positive rate, at most and at least.

        Args:
            axes: matplotlib's axes; default: new ones.
            label: of the curve.

        Returns:
            The axes.
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

    def coarsest_middles(self, count: int) -> Array:
        """Return middles of at most ``count`` intervals of the grid: those where f is known worst."""
        s, low, high = self._error_points
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
    def _error_points(self) -> tuple[Array, Array, Array]:
        """The points s, from 0, and both ends of c(s) there."""
        small = np.exp(-self.epsilons[:0:-1])
        ends = [np.r_[0.0, small * (1.0 - delta[:0:-1]), 1.0 - delta] for delta in (self.upper, self.lower)]
        slopes = np.r_[0.0, small, np.exp(self.epsilons)]
        other = np.diff(slopes, prepend=-1.0) > 0  # two epsilons may have the same exponential
        return slopes[other], *(end[other] for end in ends)

    @cached_property
    def _lower_lines(self) -> "_Lines":
        """The lower bound of f, as lines."""
        return _upper_envelope(*self._error_points[:2])

    @cached_property
    def _upper_lines(self) -> "_Lines":
        """The upper bound of f: the conjugate of the least concave bound of c."""
        s, low, high = self._error_points
        x, y = _concave_bound(s, low, high)
        slope = max((high[-1] - low[-2]) / (s[-1] - s[-2]), 0.0)  # on which c continues beyond the grid, until it is 1
        step = (1.0 - high[-1]) / slope if slope > 0 else 0.0
        x, y = np.r_[x.T.ravel(), s[-1] + step], np.r_[y.T.ravel(), high[-1] + slope * step]
        order = np.lexsort((y, x))
        return _upper_envelope(x[order], y[order])


def _concave_bound(s: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return an upper bound of a concave function between whose points it is straight.

    Args:
        s, low, high: shape (n,), where the function is known and between what; its slopes are in [0, 1], the first 1.

    Returns:
        Points and values, shape (3, n - 1): at both ends of each interval, and where the lines meet that continue the
        function from the left and from the right.
    """
    gap = np.diff(s)
    from_left = np.r_[1.0, np.clip((high[1:-1] - low[:-2]) / gap[:-1], 0.0, 1.0)]
    from_right = np.r_[np.clip((low[2:] - high[1:-1]) / gap[1:], 0.0, 1.0), 0.0]
    bend = from_left - from_right
    meet = np.divide(high[1:] - high[:-1] - from_right * gap, bend, out=np.zeros_like(gap), where=bend != 0)
    step = np.stack([np.zeros_like(gap), np.clip(meet, 0.0, gap), gap])
    return s[:-1] + step, np.minimum(high[:-1] + from_left * step, high[1:] - from_right * (gap - step))


class _Lines(NamedTuple):
    """The function max over j of intercepts[j] - slopes[j] * alpha.

    Attributes:
        slopes, intercepts: shape (n,).
        corners: shape (n - 1,); line j is the largest between corners[j] and corners[j - 1].
    """

    slopes: Array
    intercepts: Array
    corners: Array

    def highest_at(self, alpha: Array) -> Array:
        """Return the function at each alpha."""
        line = np.searchsorted(-self.corners, -alpha)
        return np.asarray(self.intercepts[line] - self.slopes[line] * alpha)


def _upper_envelope(slopes: Array, intercepts: Array) -> _Lines:
    """Return the lines that are the largest somewhere in [0, 1].

    Args:
        slopes: rising.
        intercepts: rising where slopes are equal.
    """
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


def _bayes_regrets(lines: _Lines, mu: float) -> Array:
    """Return the Bayes error of an attack, less that of the Gaussian, at each s > 0.

    The attack has the minimal s-weighted error c(s).
    """
    s, c = lines.slopes[1:], lines.intercepts[1:]  # the first is s = 0
    above = np.maximum(s, 1.0 / s)  # by symmetry
    delta = gaussian_delta(np.full(len(s), max(mu, 1e-12) ** 2), np.log(above), 0)
    return np.asarray(c / (1.0 + s) - (1.0 - delta) / (1.0 + above))


def _checked_rates(name: str, values: ArrayLike) -> Array:
    """Return rates as an array, each in [0, 1]; or raise ValueError."""
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array >= 0) & (array <= 1)):
        raise ValueError(f"{name} must be in [0, 1], got {values!r}")
    return array


# Risks: error rates of attacks, which decide from all that is released whether a person took part. None exceeds the
# upper end of a risk. A promise below the lower end would be false. docs/research/risk.md has more.

_POINTS = 1200  # of numerical laws
_LARGEST_EPSILON = 50.0  # grids end here: tests of larger likelihood ratios have false positive rates below e^-50


class Profile(Protocol):
    """Interface: a mechanism, or anything else that answers both questions."""

    @property
    def relation(self) -> Relation | None:
        """Neighbouring relation, which decides what a test tells apart; None: any."""

    def __hash__(self) -> int: ...

    def epsilon(self, delta: float, *, points: int | None = None) -> Bounds:
        """Return the smallest epsilon at ``delta``, as a bracket."""

    def delta(self, epsilon: float, *, points: int | None = None) -> Bounds:
        """Return the smallest delta at ``epsilon``, as a bracket."""


def privacy_profile(mechanism: Profile, epsilons: ArrayLike) -> tuple[Array, Array]:
    """Return lower and upper ends of delta at each epsilon: the privacy profile of a mechanism.

    Args:
        mechanism: a whole run.
        epsilons: each >= 0; any shape.

    Returns:
        Both ends, in [0, 1], of the same shape.

    Raises:
        ValueError: an epsilon is negative.

    Example:
        >>> from fedamp.accounting import Gaussian
        >>> privacy_profile(Gaussian(1.0), [0.0, 1.0])[1].round(4).tolist()
        [0.3829, 0.1269]
    """
    return _delta_brackets(mechanism, np.asarray(epsilons, dtype=np.float64), None)


def _delta_brackets(mechanism: Profile, grid: Array, points: int | None) -> tuple[Array, Array]:
    """Return both ends of delta at each number of a grid."""
    answers = [mechanism.delta(epsilon, points=points) for epsilon in grid.ravel().tolist()]
    lower, upper = ([getattr(answer, end) for answer in answers] for end in ("lower", "upper"))
    return np.clip(lower, 0.0, 1.0).reshape(grid.shape), np.clip(upper, 0.0, 1.0).reshape(grid.shape)


@lru_cache(maxsize=64)
def trade_off(mechanism: Profile, values: int = 100) -> TradeOff:
    """Return the trade-off function of a mechanism: the error rates of the best test of participation.

    Values of the privacy profile are taken evenly from 0 to where delta is 1e-2, on to 1e-9 and 1e-15 (not beyond
    epsilon = 50), and where they help most. Between them the bracket covers all that a profile can do. Its width falls
    with the square of their number, down to that of delta (as the default grid gives it, hidden rounds not sampled).

    Args:
        mechanism: a whole run.
        values: about how many are taken, at least 20.

    Returns:
        The function, as a curve of brackets.

    Raises:
        ValueError: there are too few values.

    Example:
        >>> from fedamp.accounting import Gaussian
        >>> print(trade_off(Gaussian(1.0)).advantage)
        0.383 (at least 0.3829)
    """
    check_count("values", values, 20)
    body, tail, end = (
        min(mechanism.epsilon(delta, points=_POINTS).upper, _LARGEST_EPSILON) for delta in (1e-2, 1e-9, 1e-15)
    )
    start = np.linspace(0.0, body, 7 * values // 20), np.linspace(body, tail, values // 4)
    epsilons = np.unique(np.concatenate(start))
    curve = TradeOff(epsilons, *_delta_brackets(mechanism, epsilons, _POINTS))
    for step in range(5):
        more = curve.coarsest_middles(values // 10) if step < 4 else np.linspace(tail, end, values // 4 + 1)
        more = np.setdiff1d(more, curve.epsilons)  # both ends may be the same
        known, new = (curve.epsilons, curve.lower, curve.upper), (more, *_delta_brackets(mechanism, more, _POINTS))
        order = np.argsort(np.r_[curve.epsilons, more])
        curve = TradeOff(*(np.r_[old, fresh][order] for old, fresh in zip(known, new, strict=True)))
    return curve


def in_words(mechanism: Profile, false_positive_rate: float = 0.01, whom: str = "you") -> str:
    """Return the true positive rate of a whole run, rounded up, as a sentence for the people concerned.

    It holds for every test by an attacker who knows all but the noise, the hidden choices, and whether the person took
    part (under substitution: which data was used).

    Args:
        mechanism: the whole run.
        false_positive_rate: of the test, in (0, 1); taken at three digits.
        whom: the guarantee is about: "you", or what "it" can stand for.

    Raises:
        ValueError: the rate is out of its range.

    Example:
        >>> from fedamp.accounting import Gaussian
        >>> in_words(Gaussian(4.0))[-52:]
        ' right in at most 1.9 of 100 cases in which you did.'
    """
    rate = float(f"{check_probability('false_positive_rate', false_positive_rate):.3g}")
    if not 0 < rate < 1:
        raise ValueError(f"false_positive_rate must be in (0, 1), got {false_positive_rate!r}")
    again = "you" if whom == "you" else "it"
    claim, denied, true = f"{whom} took part", f"{again} did not", f"{again} did"
    if mechanism.relation is Relation.SUBSTITUTION:
        claim, denied, true = "certain data was used and not certain other data", "the other was", "it was"
    curve = trade_off(mechanism)
    if curve.advantage.upper == 0:
        return f"Nothing that is released depends on whether {claim}: a suspicion stays a guess."
    people = 10 ** max(2, math.ceil(-math.log10(rate)))
    right = math.ceil(float(curve.true_positive_rate(rate)[1]) * people * 10) / 10
    number = f"{right:.1f}".removesuffix(".0")
    share = f"at most {number} of {people} cases" if right < people else "possibly every case"
    return (
        f"Somebody who suspects that {claim}, and accepts a false alarm in {rate * people:.4g} of {people} cases "
        f"in which {denied}, is right in {share} in which {true}."
    )
