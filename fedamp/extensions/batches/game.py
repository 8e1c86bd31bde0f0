"""The game of batches: a run of batches of a fixed size, in which each batch is chosen after the earlier releases.

One batch has one of two profiles, whichever an adversary chooses. The law of
:class:`fedamp.accounting.WithoutReplacement` has both. The value of the game is what a run costs.
docs/research/accounting.md has the proof.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from fedamp.accounting.arithmetic import TRANSFORM, UNIT, Array, convex_hull, gaussian_delta, lattice_below
from fedamp.accounting.bounds import Bounds, Method, Origin
from fedamp.accounting.law import Law

MOST_BATCHES = 1000  # of a run whose game is played: some ten seconds
LARGEST_GAME = 100.0  # epsilon beyond which the grid is too coarse
_FINER, _PARTS, _TOGETHER = 4, 4, 8  # grid of attained games; cells of a group; groups whose transforms fit a cache
_EDGES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.95, 1.1, 1.25, 1.4, math.pi / 2)  # of the angle b of the cells


@dataclass(frozen=True, eq=False)
class BatchGame:
    """The most that batches cost together if each is chosen by the losses so far.

    A batch is a triple of points in the unit ball: the person, the substitute, and who is drawn in place of both.
    Their distances are at most (2 sin A, 2 sin B, 2 sin C), where A, B and C are the angles of a triangle that is not
    obtuse. A cell of such triples is charged by its largest distances, and a group of cells by the largest charge at
    each ratio. docs/research/accounting.md has the proof.

    Attributes:
        law: that of one batch in one order, which is attained.
        signal: 1 / noise multiplier.
        rate: the chance of the person to be in a batch, below 1.
        rounds: the number of batches.
        highest: the largest epsilon in question.
        half: grid points of a batch's losses on each side of 0; the game has twice as many in all.
    """

    law: Law
    signal: float
    rate: float
    rounds: int
    highest: float
    half: int = 1024

    @property
    def step(self) -> float:
        """The distance of losses on the grid; most batches without the person have a loss on the grid, if possible."""
        deviation = self.rate * math.sqrt(math.expm1(min(4 * self.signal**2, 700.0)))
        largest = min(self.highest + 8, max(4 * self.highest, 128 * deviation)) / self.half
        common = -math.log1p(-self.rate)
        return common / math.ceil(common / largest) if common > largest / 2 else largest

    def one_order(self, other: float, change: float) -> Array:
        """Return H(P, Q) of a batch at ratios e^(j step), j = 0..half, from above.

        Args:
            other: distance of the person to who is drawn in place of both.
            change: distance of the person to the substitute.
        """
        ratio = np.exp(self.step * np.arange(self.half + 1))
        beside = (1 - self.rate) * (ratio - 1) / self.rate
        most, best = 1 / np.maximum(beside, 1.0), np.full(self.half + 1, np.inf)
        for power in (0.0, 0.5, 1.0, None):
            rest = 0.0 if power is None else beside * most**power * (beside + ratio) ** (power - 1)
            share = np.clip(1 - rest, 0.0, 1.0)
            bound = np.zeros(self.half + 1)
            for weight, level, distance in ((share, ratio, change), (1 - share, beside, other)):
                with np.errstate(divide="ignore", invalid="ignore"):
                    level = np.where(weight > 0, level / weight, 1.0)
                    log = np.clip(np.log(level), 0.0, 700.0)
                below = gaussian_delta(np.array((distance * self.signal) ** 2), log, 1)
                bound += weight * (below + np.maximum(1 - level, 0.0))  # a hockey-stick falls by at most 1 a unit
            best = np.minimum(best, bound)
        return np.asarray(self.rate * best * (1 + 64 * UNIT))

    def kernel(self, above: Array, below: Array) -> Array:
        """Return chances under P of the losses j step, j = 1 - half..half, and of an infinite one behind them.

        Args:
            above, below: bounds of H(P, Q) and of H(Q, P) like those of ``one_order``.
        """
        ratio = np.exp(self.step * np.arange(-self.half, self.half + 1))
        profile = np.concatenate([1 - ratio[: self.half] + ratio[: self.half] * below[:0:-1], above]) + 8 * UNIT
        slopes = np.append(np.diff(profile) / np.diff(ratio), 0.0)
        if (np.diff(slopes) * ratio[1:]).min() < -1e-9:  # the profile itself is convex, so it is below the bound's hull
            slopes[:-1] = np.diff(convex_hull(ratio, profile)) / np.diff(ratio)
        # By rounding some chances are below 0; 0 is above them. The chances of smaller losses count at the smallest.
        chances = np.append(np.maximum(np.diff(slopes), 0.0) * ratio[1:], above[-1])
        chances[0] += max(1 - chances.sum(), 0.0)
        return np.asarray(chances)

    @cached_property
    def cells(self) -> Array:
        """Kernels of groups of cells and their mirror images; the two with the largest distances come first."""
        found = []
        for low, high in pairwise(_EDGES):
            top = min(1.0, math.pi / 2 / low - 1) if low else 1.0  # beyond is the mirror image
            edges = np.linspace(0.0, top, 2 + int(8 * low * top)) * low
            for first, last in pairwise(edges):
                parts = pairwise(np.linspace(first, last, _PARTS + 1 if low else 2))
                above = np.max([self.one_order(2 * math.cos(a), 2 * math.cos(low - b)) for a, b in parts], axis=0)
                below = self.one_order(2 * math.sin(high), 2 * math.cos(low - last))
                found += [self.kernel(above, below), self.kernel(below, above)]
        return np.array(found)

    @cached_property
    def attained(self) -> Array:
        """Kernels like those of ``cells``, from below, of one order and of the other."""
        kernels = []
        for law in (self.law.lower, self.law.lower.swapped_law):
            near = np.abs(law.log_ratio) < (self.half - 2) * self.step
            masses = [values[near] for values in (law.log_ratio, law.mass_in, law.mass_out)]
            # The shift, to the safe side, keeps points that are hardly above the grid.
            kept, _ = lattice_below(*masses, 2e-3 * self.step, self.step, -self.half, 2 * self.half + 1)
            kernels.append(np.append(kept[1:] * (1 - 2 * self.law.rounding), 0.0))
        return np.array(kernels)

    def delta(self, epsilon: float, kernels: Array, side: int) -> float:
        """Return the value of the game at ``epsilon``, from above (``side`` 1) or below (-1)."""
        size = 2 * self.half
        transforms, infinite = np.fft.rfft(kernels[:, -2::-1], 2 * size), kernels[:, -1:]
        value = np.maximum(-np.expm1(epsilon - self.step * (np.arange(size) - size // 4)), 0.0)
        rounding = side * 8 * TRANSFORM * math.log2(2 * size) * UNIT * math.sqrt(2 * size)
        for _ in range(self.rounds):
            first, last = (value[0], 1.0) if side > 0 else (0.0, value[-1])
            wide = np.concatenate([np.full(self.half, first), value, np.full(self.half, last)])
            spectrum, most = np.fft.rfft(wide), np.zeros(size)
            for some in np.array_split(np.arange(len(kernels)), -(-len(kernels) // _TOGETHER)):
                reached = np.fft.irfft(spectrum * transforms[some])[:, size:] + infinite[some]
                most = np.maximum(most, np.max(reached, axis=0))
            value = np.clip(most + rounding, 0.0, 1.0)
        return float(value[size // 4])


def narrowed_by_game(game: BatchGame, found: Bounds, delta: float) -> Bounds:
    """Return a smaller bracket of epsilon: the dearest cells find it, all certify it, and a finer game attains less."""

    def log_excess(epsilon: float, kernels: Array, game: BatchGame = game, side: int = 1) -> float:
        return math.log(max(game.delta(epsilon, kernels, side), 1e-300) / delta)

    low, high, lower = found.lower, found.upper, found.lower
    above, below = (log_excess(each, game.cells[:2]) for each in (low, high))
    if not below < 0 < above:
        return found
    slope = (above - below) / (high - low)
    middle = low + above / slope  # logs are nearly straight
    low = high = middle + log_excess(middle, game.cells[:2]) / slope
    finer = replace(game, half=_FINER * game.half)
    for _ in range(3):
        if lower >= low or (reached := log_excess(low, finer.attained, finer, -1)) > 0:
            lower = max(lower, low)
            break
        low += (1.03 * reached - 1e-3) / slope
    while high < found.upper:
        if (reached := log_excess(high, game.cells)) <= 0:
            return Bounds(lower, high, Origin(Method.GAME))
        high = (high + 1.05 * reached / slope) * (1 + 1e-4)
    return Bounds(lower, found.upper, found.origin)
