"""The likelihood ratio x of one round, a law under Q, and draws of it tilted by one of its powers.

Both kinds have a ``fingerprint`` that tells laws apart, so that each has random numbers of its own, and know:

    zero, infinite: Q-mass where x = 0, and P-mass where x is infinite.
    law_rounding: bound on the relative error of all masses; ratios are off by at most twice that.
    table_rounding: bound on the total variation between a draw and its law, and on the error of ``log_moment``.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting import checks
from fedamp.accounting.compiled import compiled
from fedamp.accounting.moments import UNIT
from fedamp.accounting.points import Array, NotEvaluable, Points

EXPONENT = 750.0
"""exp of anything beyond is 0 or infinite."""

_PARTS = 2**14
"""A power of two, so that the part a uniform number falls in is found without rounding."""


@dataclass(frozen=True)
class GaussianRound:
    """x = exp(z / s - 1 / (2 s^2)), z standard normal, exactly.

    Args:
        noise_multiplier: s > 0.
    """

    noise_multiplier: float
    zero = infinite = law_rounding = 0.0
    table_rounding = 4 * UNIT

    def __post_init__(self) -> None:
        checks.positive("noise_multiplier", self.noise_multiplier)

    def log_moment(self, exponent: float) -> float:
        """log of the mean of x^exponent over finite x > 0 under Q; at exponent 0 zero counts, too."""
        return exponent * (exponent - 1) / self.noise_multiplier**2 / 2

    def fingerprint(self) -> bytes:
        return np.float64(self.noise_multiplier).tobytes()

    def draw(self, rng: np.random.Generator, exponents: Array, counts: NDArray[np.int32]) -> tuple[Array, Array]:
        """Ratios x, shape (draws, rounds), and the logs of their products, shape (draws,): on row d the first
        ``counts[d, 0]`` are drawn from the law tilted by x to the power ``exponents[0]``, the next ``counts[d, 1]`` by
        ``exponents[1]``, and so on. Tilting by x^c moves z by c / s.
        """
        ratios = rng.standard_normal((len(counts), int(counts[0].sum())))
        precision = 1 / self.noise_multiplier
        log_products = _scale_and_shift(ratios, precision, (exponents - 0.5) * precision**2, counts)
        with np.errstate(over="ignore"):  # refused where X is computed
            return np.exp(ratios, out=ratios), log_products


@dataclass(frozen=True, eq=False)
class FiniteRound:
    """A finite law of x, such as either end of a ``Law``: its upper law gives upper bounds, its lower law lower ones.

    Args:
        points: log ratios with P-masses and Q-masses.
        law_rounding: bound on the relative error of the masses.
    """

    points: Points
    law_rounding: float = 0.0

    @property
    def zero(self) -> float:
        return self.points.zero

    @property
    def infinite(self) -> float:
        return self.points.infinite

    @property
    def table_rounding(self) -> float:
        return (4 * len(self.points) + 128 * EXPONENT) * UNIT

    def log_moment(self, exponent: float) -> float:
        logs = self._log_masses + exponent * self._log_ratios
        largest = float(logs.max(initial=-math.inf))
        if largest == -math.inf:
            raise NotEvaluable("the ratio of a round is 0 or infinite")
        total = float(np.exp(logs - largest).sum())
        if exponent == 0:
            total += self.zero * math.exp(-largest)
        return largest + math.log(total)

    def fingerprint(self) -> bytes:
        return self._log_ratios.tobytes() + self._log_masses.tobytes()

    def draw(self, rng: np.random.Generator, exponents: Array, counts: NDArray[np.int32]) -> tuple[Array, Array]:
        """By inversion, so that equal uniforms give neighbouring ratios under neighbouring laws."""
        ratios = rng.random((len(counts), int(counts[0].sum())))
        tables = [self._table(float(exponent)) for exponent in exponents]
        values = np.append(self._log_ratios[::-1], -math.inf)
        below, starts = (np.stack(table) for table in zip(*tables, strict=True))
        with np.errstate(over="ignore"):  # refused where X is computed
            return ratios, _invert(ratios, values, np.exp(values), below, starts, counts)

    @cached_property
    def _used(self) -> NDArray[np.bool_]:
        return self.points.log_mass_out > -math.inf

    @cached_property
    def _log_ratios(self) -> Array:
        return self.points.log_ratio[self._used]

    @cached_property
    def _log_masses(self) -> Array:
        """Of the Q-masses."""
        return self.points.log_mass_out[self._used]

    def _table(self, exponent: float) -> tuple[Array, NDArray[np.int32]]:
        """Distribution function from the largest ratio down to zero, and where in it each of ``_PARTS`` equal parts of
        [0, 1) starts.
        """
        masses = np.exp(self._log_masses + exponent * self._log_ratios - self.log_moment(exponent))[::-1]
        below = np.cumsum(np.append(masses, self.zero if exponent == 0 else 0.0))
        below /= below[-1]
        below[below >= below[-1]] = math.inf  # the search ends here
        return below, np.searchsorted(below, np.arange(_PARTS) / _PARTS, side="right").astype(np.int32)


Round = GaussianRound | FiniteRound


@compiled(nogil=True)
def _scale_and_shift(values, scale, shifts, counts):  # type: ignore[no-untyped-def]
    """Each row's numbers times ``scale`` plus the shift of their class, in place; returns the sums of rows."""
    sums = np.zeros(len(values))
    for d in range(len(values)):
        first = 0
        for c in range(counts.shape[1]):
            for i in range(first, first + counts[d, c]):
                values[d, i] = values[d, i] * scale + shifts[c]
            first += counts[d, c]
        total = 0.0
        for i in range(first):
            total += values[d, i]
        sums[d] = total
    return sums


@compiled(nogil=True)
def _invert(uniforms, log_values, values, below, starts, counts):  # type: ignore[no-untyped-def]
    """Each uniform number replaced by the value whose part of [0, 1) it falls in; returns the sums of log values."""
    parts, sums = starts.shape[1], np.zeros(len(uniforms))
    for d in range(len(uniforms)):
        first = 0
        for c in range(counts.shape[1]):
            for i in range(first, first + counts[d, c]):
                u = uniforms[d, i]
                j = starts[c, int(u * parts)]
                j += below[c, j] <= u  # nearly always enough, and no branch to mispredict
                while below[c, j] <= u:
                    j += 1
                uniforms[d, i] = values[j]
                sums[d] += log_values[j]
            first += counts[d, c]
    return sums
