"""Releases with few outcomes, exactly: bits, finite releases, black boxes, and hidden rounds of them.

Everything is kept in logarithms, so that no loss is too large. Hidden rounds of a release with m outcomes depend on how
often each outcome occurs alone: T rounds have C(T + m - 1, m - 1) outcomes, not m^T. Up to 20,000 outcomes are listed.

The module knows no mechanism. Kinds build :class:`Outcomes` in their method ``all_outcomes``.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from fedamp.accounting.arithmetic import UNIT, Array, chance_of_any, level_crossing, log_choose, log_factorials, log_sum
from fedamp.accounting.bounds import Bounds, Method, NotEvaluable, Origin

_MOST, _MOST_TERMS = 20_000, 4_000_000  # outcomes, and terms of the polynomials of hidden rounds
LARGEST_LOG = 750.0  # minus the log of a number that floating point holds
_UNDERFLOW = 1e-290  # more than all masses that are too small for floating point


class Outcomes(NamedTuple):
    """The law of X = dP/dQ under Q, one row for each outcome.

    Attributes:
        log_out, log_ratio: shape (n,): logs of the Q-mass of each outcome, and of X there, -inf where X is 0.
        infinite: P-mass where X is infinite.
        off: bound on the error of each log.
    """

    log_out: Array
    log_ratio: Array
    infinite: float
    off: float

    def epsilon(self, delta: float) -> Bounds:
        """Return the smallest epsilon >= 0 at ``delta``, in both directions, as a bracket."""
        upper = level_crossing(partial(self._delta_end, side=1), delta, 1e300, 1e-13)[1]
        lower = level_crossing(partial(self._delta_end, side=-1), delta, 1e300, 1e-13)[0]
        return Bounds(min(lower, upper), upper, Origin(Method.OUTCOMES, (len(self.log_out),)))

    def delta(self, epsilon: float) -> Bounds:
        """Return the smallest delta at ``epsilon`` >= 0, in both directions, as a bracket."""
        upper, lower = (self._delta_end(epsilon, side) for side in (1, -1))
        return Bounds(min(lower, upper), upper, Origin(Method.OUTCOMES, (len(self.log_out),)))

    def _delta_end(self, epsilon: float, side: int) -> float:
        """Compute delta from above (``side`` 1) or below.

        Masses and ratios err by a factor of at most exp(off) each.
        """
        finite = self.log_ratio > -np.inf
        log_out, log_ratio, found = self.log_out[finite], self.log_ratio[finite], []
        sure = self.infinite, float(np.exp(self.log_out[~finite]).sum()) * math.exp(side * self.off)
        factor = math.exp(side * (3 * self.off + (len(finite) + 8) * UNIT))
        for log_mass, loss, alone in zip((log_out + log_ratio, log_out), (log_ratio, -log_ratio), sure, strict=True):
            some = loss > epsilon - side * self.off
            lost = float(np.exp(log_mass[some]) @ -np.expm1(epsilon - side * self.off - loss[some])) * factor
            found.append(alone * (1 + side * 8 * UNIT) + (lost + side * _UNDERFLOW if some.any() else 0.0))
        return min(max(*found, 0.0), 1.0)

    def poisson_sampled(self, rate: float) -> "Outcomes":
        """Return the outcomes under Poisson sampling, (1 - rate) + rate X, at a rate in (0, 1)."""
        log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + self.log_ratio)
        return Outcomes(self.log_out, log_ratio, rate * self.infinite, self.off + rounding_of_logs(LARGEST_LOG))

    @staticmethod
    def mixture(parts: "Sequence[Outcomes]", weights: Sequence[float]) -> "Outcomes":
        """Return the outcomes of one of several releases, the draw public."""
        log_out = np.concatenate([part.log_out + math.log(w) for part, w in zip(parts, weights, strict=True)])
        log_ratio = np.concatenate([part.log_ratio for part in parts])
        infinite = math.fsum(part.infinite * weight for part, weight in zip(parts, weights, strict=True))
        return Outcomes(log_out, log_ratio, infinite, max(part.off for part in parts) + rounding_of_logs(LARGEST_LOG))

    @staticmethod
    def product(factors: "Iterable[tuple[Outcomes, int]]") -> "Outcomes":
        """Return the outcomes of independent releases, each so many times.

        Raises:
            NotEvaluable: there are more than 20,000.
        """
        whole = NO_OUTCOME
        for one, times in factors:
            counts, log_out = _outcome_counts(one, times)
            if len(whole.log_out) * len(log_out) > _MOST:
                raise NotEvaluable(f"there are more than {_MOST:,} outcomes")
            with np.errstate(invalid="ignore"):
                log_ratio = np.where(counts > 0, counts * one.log_ratio, 0.0).sum(axis=1)
            infinite = chance_of_any([(whole.infinite, 1), (one.infinite, times)])
            off = whole.off + times * one.off + _sum_off(one, times) + _sum_off(whole, 1)
            log_out, log_ratio = np.add.outer(whole.log_out, log_out), np.add.outer(whole.log_ratio, log_ratio)
            whole = Outcomes(log_out.ravel(), log_ratio.ravel(), infinite, off)
        return whole


NO_OUTCOME = Outcomes(np.zeros(1), np.zeros(1), 0.0, 0.0)  # X = 1: nothing is released


def rounding_of_logs(size: float) -> float:
    """Bound what a few operations on logs of this size add to their errors."""
    return 16 * (abs(size) + 2) * UNIT


def _sum_off(one: Outcomes, rounds: int) -> float:
    """Bound what sums of the logs of so many rounds, and log factorials, add to their errors."""
    logs = np.abs([one.log_out, np.where(one.log_ratio > -np.inf, one.log_ratio, 0.0)])
    each = rounding_of_logs(rounds * float(logs.max()) + 8 * math.lgamma(rounds + 2))
    return (len(one.log_out) if rounds > 1 else 1) * each


def _outcome_counts(one: Outcomes, rounds: int) -> tuple[Array, Array]:
    """Return how often each outcome occurs in so many rounds, and the log of its Q-mass.

    Returns:
        Counts, shape (n, m), and logs, shape (n,).

    Raises:
        NotEvaluable: n is above 20,000.
    """
    kinds = len(one.log_out)
    if rounds > _MOST or math.comb(rounds + kinds - 1, kinds - 1) > _MOST:
        raise NotEvaluable(f"{rounds} rounds have more than {_MOST:,} outcomes")
    bars = np.array(list(combinations_with_replacement(range(rounds + 1), kinds - 1)), int).reshape(-1, kinds - 1)
    counts = np.diff(np.pad(bars, ((0, 0), (1, 1)), constant_values=((0, 0), (0, rounds))), axis=1)
    logs = log_factorials(rounds)
    return counts, np.asarray(logs[rounds] - logs[counts].sum(axis=1) + counts @ one.log_out)


def hidden_outcomes(one: Outcomes, chances: tuple[float, ...], rounds: int, rounding: float) -> Outcomes:
    """Return the outcomes of hidden rounds: X = sum_h w_h e_h(x_1, .., x_T) / C(T, h).

    The e_h are coefficients of the product of all (1 + x t)^n, n the number of rounds with the outcome x.

    Args:
        one: the outcomes of one round.
        chances: w_h, of taking part in h = 0, 1, .. rounds.
        rounds: T.
        rounding: bound on the relative error of the chances.

    Raises:
        NotEvaluable: there are too many.
    """
    counts, log_out = _outcome_counts(one, rounds)
    most, held = len(chances) - 1, np.arange(len(chances))
    if len(counts) * (most + 1) ** 2 > _MOST_TERMS:
        raise NotEvaluable("hidden rounds have too many outcomes")
    total = np.where(held == 0, 0.0, -np.inf) + np.zeros((len(counts), 1))
    for count, log_ratio in zip(counts.T, one.log_ratio, strict=True):
        power = np.where(held > 0, held * log_ratio if log_ratio > -np.inf else -np.inf, 0.0)
        there = held <= count[:, None]
        more = np.where(there, log_choose(count[:, None], np.where(there, held, 0)) + power, -np.inf)
        total = np.stack([log_sum(total[:, : h + 1] + more[:, h::-1]) for h in held], axis=1)
    with np.errstate(divide="ignore"):
        log_ratio = log_sum(total + np.log(chances) - log_choose(rounds, held))
    off = (rounds + most) * one.off + rounding + _sum_off(one, rounds) + len(one.log_out) * rounding_of_logs(most)
    infinite = math.fsum(w * chance_of_any([(one.infinite, h)]) for h, w in enumerate(chances))
    return Outcomes(log_out, log_ratio, infinite, off + rounding_of_logs(8 * math.lgamma(rounds + 2)))
