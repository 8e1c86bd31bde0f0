"""ModelMix: rounds whose models are mixed, with uniform noise on top of Gaussian noise (Xiao, Wan, Devadas 2022).

Rényi moments credit the uniform noise; its worst case is checked for the parameters in use, not proved. The law does
not credit it. :mod:`fedamp.extensions.modelmix.section` adds the key ``mixing`` of a scenario.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np

from fedamp.accounting.arithmetic import Array, log_sum
from fedamp.accounting.bounds import CountField, NotEvaluable, ScaleField, check_scale_or_zero
from fedamp.accounting.law import Cells, Detail, Law, contract_cells, spread_cells
from fedamp.accounting.mechanism import Fact, Mechanism, MomentsOf, Release, moments_of, numerical_law
from fedamp.accounting.releases import Gaussian, Repeat
from fedamp.accounting.renyi import HIGHEST_ORDER, Moments, integrated_moments, integrated_order


@dataclass(frozen=True, repr=False)
class ModelMix(Release):
    """Release one round of ModelMix: the server adds Gaussian noise to the sum, then mixes the last two models.

    Release: f + v + z + u, z ~ N(0, s^2 I), u uniform, of width w in every coordinate.

    Mixing adds uniform noise of the given width in every coordinate (Xiao, Wan, Devadas 2022, Theorem 4.1, Corollary
    4.1). The corollary misprints 1 - a for a - 1 and leaves out T; fedamp integrates the moments themselves. Clients
    train on the model before it is mixed. A round that starts from the mixture costs more than this charge.

    Args:
        noise_multiplier: s, in units of the clipping norm of the (summed) update, 1e-50 to 1e50.
        width: w = tau / eta >= 0 in the same units, the largest distance of the mixed models over the learning rate; 0:
            no mixing.
        linf_coordinates: p >= 1: every coordinate is clipped to norm / sqrt(p).
        relation: zero-out (default) or add/remove.

    Example:
        >>> print(ModelMix(2.0, 1.0).epsilon(1e-5))
        1.994 (at least 1.972)
    """

    noise_multiplier: ScaleField
    width: Annotated[float, check_scale_or_zero]
    linf_coordinates: CountField = 1
    takes_substitution = False
    is_symmetric = True
    own_facts = (Fact.WORST_CASE_CHECKED,)
    text = (
        "ModelMix of width {0.width:g}, {0.linf_coordinates} coordinates, "
        "Gaussian noise of multiplier {0.noise_multiplier:g}"
    )

    def simplified(self) -> Mechanism:
        """A width of 0 is plain Gaussian noise."""
        return self if self.width else self.unamplified()

    def unamplified(self) -> Mechanism:
        return Gaussian(self.noise_multiplier, relation=self.relation)

    def attained_mechanism(self) -> Mechanism:
        """Return coordinates with equal shares of the norm, ``linf_coordinates`` of them.

        They are the worst case at orders from 2 up, which is checked.
        """
        if self.width == 0:
            return self.unamplified()
        shift = 1 / math.sqrt(self.linf_coordinates)
        one = MixedCoordinate(self.noise_multiplier, self.width, shift, relation=self.relation)
        return Repeat(one, self.linf_coordinates)

    def law(self, detail: Detail) -> Law:
        """Charge the round without mixing: the worst contribution for the hockey-stick is not known."""
        return numerical_law(Gaussian(self.noise_multiplier), detail)

    def moments(self) -> Moments:
        """Return the moments of the worst contribution (Xiao, Wan, Devadas 2022, Theorem 4.1, Corollary 4.1)."""
        return ModelMixMoments(self)


class ModelMixMoments(MomentsOf[ModelMix]):
    """Moments at whole orders from 2 up, of a contribution with its whole norm in as few coordinates as it may.

    That is the worst case (Xiao, Wan, Devadas 2022, Theorem 4.1, Corollary 4.1) under a condition that is checked for
    the parameters in use, not proved (``method`` says so). Orders at which the check fails are charged as plain
    Gaussian noise.
    """

    def __init__(self, event: ModelMix) -> None:
        super().__init__(event)
        self.worst = moments_of(event.attained_mechanism())
        self.plain = moments_of(Gaussian(event.noise_multiplier))

    def _central_moments(self, highest: int) -> Array:
        return (self.worst if worst_is_concentrated(self.event, highest).all() else self.plain).central_moments(highest)

    def _raw_moments(self, highest: int) -> Array:
        """Take the mixed moments where the check holds, and at most the plain ones."""
        plain = self.plain.raw_moments(highest)
        holds = worst_is_concentrated(self.event, highest)
        return np.where(holds, np.minimum(self.worst.raw_moments(highest), plain), plain)


@lru_cache(maxsize=64)
def worst_is_concentrated(event: ModelMix, highest: int = HIGHEST_ORDER) -> Array:
    """Return whether each order has its worst case in the fewest coordinates, checked on a grid of shifts.

    The condition: log E[X^a] at shift v is at most (v / c)^2 times that at the largest shift c; convexity in v^2
    implies it. The paper calls the convexity "some simple calculation".

    Args:
        event: the round.
        highest: the highest order.

    Returns:
        Truth values for the orders 0..highest.
    """
    if event.width == 0:
        return np.ones(highest + 1, dtype=bool)
    largest = 1 / math.sqrt(event.linf_coordinates)
    end = moments_of(MixedCoordinate(event.noise_multiplier, event.width, largest)).raw_moments(highest)
    holds = np.isfinite(end)
    for part in (0.1, 0.25, 0.5, 0.75, 0.9):
        inner = moments_of(MixedCoordinate(event.noise_multiplier, event.width, part * largest)).raw_moments(highest)
        holds &= inner <= part**2 * end * (1 + 1e-7) + 1e-12
    return holds


@dataclass(frozen=True, repr=False)
class MixedCoordinate(Release):
    """One coordinate of ``ModelMix`` as an attacker sees it: Gaussian plus uniform noise, shifted or not.

    Release: c + z + u, or z + u, z ~ N(0, s^2), u uniform of width w.

    Args:
        noise_multiplier: s, 1e-50 to 1e50, in units of the clipping norm.
        width: w, 1e-50 to 1e50.
        shift: c, 1e-50 to 1e50.
        relation: zero-out (default) or add/remove.

    Example:
        >>> print(MixedCoordinate(2.0, 1.0, 0.5).epsilon(1e-5))
        0.9167 (at least 0.9166)
    """

    noise_multiplier: ScaleField
    width: ScaleField
    shift: ScaleField
    takes_substitution = False
    is_exact = is_symmetric = True
    text = "a shift of {0.shift:g} under Gaussian {0.noise_multiplier:g} and uniform {0.width:g} noise"

    def law(self, detail: Detail) -> Law:
        """Integrate the density (Phi((y + w/2) / s) - Phi((y - w/2) / s)) / w between places; log X increases in y.

        Raises:
            NotEvaluable: the noise is too narrow for so few points.
        """
        s, width, shift = self.noise_multiplier, self.width, self.shift
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
            density = np.exp(_log_density(inside - moved, s, width))
            return np.asarray((density.reshape(half.shape[0], -1) * w * half).sum(axis=1))

        log_ratio = np.maximum.accumulate(_log_density(edges - shift, s, width) - _log_density(edges, s, width))
        # Under a wide uniform X is 1 almost everywhere: cells between equal ratios are joined.
        kept = np.flatnonzero(np.diff(log_ratio, prepend=-np.inf) > 1e-12)

        def cells(outside: float) -> Cells:
            (mass_in, mass_out) = (np.r_[0.0, masses(moved), 0.0] for moved in (shift, 0.0))
            mass_in[-1], mass_out[0] = outside, outside
            starts = np.concatenate([[0], kept + 1])
            return Cells(log_ratio[kept], np.add.reduceat(mass_in, starts), np.add.reduceat(mass_out, starts))

        # Both normal tails beyond 9.5 count as the worst, and for lower ends not at all. The density, a difference of
        # normal masses that are at most 50 units off, keeps 12 digits where the width is a hundredth of the noise.
        return Law(spread_cells(cells(2.2e-21)), contract_cells(cells(0.0)), 1e-12, detail.points)

    def moments(self) -> Moments:
        return MixedCoordinateMoments(self)


class MixedCoordinateMoments(MomentsOf[MixedCoordinate]):
    """Moments of one coordinate under Gaussian and uniform noise, by quadrature."""

    def _central_moments(self, highest: int) -> Array:
        s, shift = self.event.noise_multiplier, self.event.shift
        too_far = integrated_order(shift / s, highest, 4000.0) * shift > 1e5 * s / 16  # no better than without mixing
        return integrated_moments(shift / s, highest, 0.0 if too_far else 4000.0, self._quadrature_nodes)

    def _quadrature_nodes(self, order: int) -> tuple[Array, Array]:
        """Return log masses and log ratios of a grid that holds E[X^order]; none where the ratio is 1 to all digits."""
        s, width, shift = self.event.noise_multiplier, self.event.width, self.event.shift
        step, reach = s / 16, width / 2 + 10 * s
        flat = width / 2 - 20 * s - shift  # up to here the ratio is 1 to more digits than there are
        ends = (
            [(-reach, -flat), (flat, reach + order * shift)]
            if flat >= 1e5 * step
            else [(-reach, reach + order * shift)]
        )
        y = np.concatenate([np.arange(*each, step) for each in ends])
        density = _log_density(y, s, width)
        return density + math.log(step), _log_density(y - shift, s, width) - density


def _log_density(y: Array, noise_multiplier: float, width: float) -> Array:
    """Return the log density of Gaussian plus uniform noise, even in y.

    It is log of (Phi((y + w/2)/s) - Phi((y - w/2)/s)) / w.
    """
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
