"""The attacker of the contracts, by simulation: hockey-stick divergences of mixtures of Gaussians, and of flipped bits.

A unit takes part in a hidden set of rounds (or trains a hidden set of coordinates). The attacker sees one noisy number
for each. Its mean is 1 where the unit is and 0 elsewhere, or -1 if its contribution is replaced by the opposite one.
The attacker knows how often each set occurs, and computes the exact likelihood ratio of the mixture.

The module imports nothing from the accountant: it is the other side of the comparison.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.base.arrays import Floats

SAMPLES, AT_ONCE, GROUPS = 60_000, 1 << 20, 10
ERRORS = 5
"""Standard errors up to which a simulation may differ from the truth: a right scheme is beyond with chance 1e-6."""


@dataclass(frozen=True)
class DeltaEstimate:
    """An estimate of a delta, with its standard error.

    Attributes:
        value: the estimate.
        error: its standard error.

    Example:
        >>> estimate = DeltaEstimate(0.1, 0.001)
        >>> round(estimate.at_least, 4), round(estimate.at_most, 4)
        (0.094, 0.106)
    """

    value: float
    error: float

    @property
    def at_least(self) -> float:
        """Lower end for the truth. One per cent of the value covers the bias of drawn chances."""
        return 0.99 * self.value - ERRORS * self.error

    @property
    def at_most(self) -> float:
        """Upper end for the truth; 1e-6 where nothing was seen in all the samples."""
        return 1.01 * self.value + ERRORS * self.error + 1e-6


@dataclass(frozen=True)
class HiddenSets:
    """The sets in which units take part, with their frequencies in a simulation.

    Attributes:
        sets: distinct sets, as zeros and ones [sets, places].
        chances: the frequency of each set in each of ten groups of units, [groups, sets]; their spread is the error.
        opposite: whether the neighbour has the opposite contribution (substitution); else it has none (zero-out).

    Example:
        >>> always = HiddenSets.of(np.ones((100, 1), dtype=bool))
        >>> (estimate,) = always.gaussian(1.0, np.array([1.0]))  # truth: 0.12694 (Balle, Wang 2018, Theorem 8)
        >>> bool(estimate.at_least < 0.12694 < estimate.at_most)
        True
    """

    sets: Floats
    chances: Floats
    opposite: bool = False

    @classmethod
    def of(cls, taken: NDArray[np.bool_], opposite: bool = False) -> "HiddenSets":
        """Count the sets of units that are drawn alike.

        Args:
            taken: in which places each unit takes part, [units, places].
            opposite: whether the neighbour has the opposite contribution.
        """
        sets, which = np.unique(taken, axis=0, return_inverse=True)
        groups = np.array_split(which.reshape(-1), GROUPS)
        chances = [np.bincount(group, minlength=len(sets)) / len(group) for group in groups]
        return cls(sets.astype(float), np.array(chances), opposite)

    def first(self, places: int) -> "HiddenSets":
        """Return the sets of the first places alone: the beginning of a run."""
        return HiddenSets(self.sets[:, :places], self.chances, self.opposite)

    def gaussian(self, noise_multiplier: float, epsilons: Floats) -> list[DeltaEstimate]:
        """Estimate delta at each epsilon where each place shows a number with Gaussian noise.

        delta is the mean of (1 - exp(epsilon - L))+ over outputs with the unit, L the log-likelihood ratio; and the
        same without the unit, for the other direction.

        Args:
            noise_multiplier: standard deviation of the noise, in units of the contribution.
            epsilons: shape [n].

        Returns:
            The larger one of both directions, n estimates.
        """
        found: tuple[list[Floats], list[Floats]] = ([], [])
        for with_unit, without in self._gaussian(noise_multiplier):
            for direction, ratios in enumerate((with_unit, -without)):
                found[direction].append(np.maximum(-np.expm1(epsilons[:, None] - ratios), 0))
        estimates = []
        for values in np.concatenate(found[0], axis=1), np.concatenate(found[1], axis=1):
            error = values.std(axis=1) / np.sqrt(values.shape[1])
            estimates.append(list(map(DeltaEstimate, values.mean(axis=1), error)))
        return [max(pair, key=lambda each: each.value) for pair in zip(*estimates, strict=True)]

    def _gaussian(self, deviation: float) -> Iterator[tuple[Floats, Floats]]:
        """Draw log-likelihood ratios of outputs with the unit, and of outputs without it, some at a time."""
        chances, places = self.chances.mean(axis=0), self.sets.shape[1]
        stream = rng.public_stream(0, "contract")
        away = -self.sets if self.opposite else np.zeros_like(self.sets)
        some = max(1, AT_ONCE // (len(chances) * places))
        for start in range(0, SAMPLES, some):
            count = min(some, SAMPLES - start)
            which = stream.choice(len(chances), count, p=chances / chances.sum())
            noise = deviation * stream.standard_normal((count, places))
            ratios = []
            for mean in (self.sets[which], away[which]):
                ratios.append(_log_mixture(mean + noise, self.sets, chances, deviation))
                ratios[-1] -= _log_mixture(mean + noise, away, chances, deviation)
            yield ratios[0], ratios[1]

    def bits(self, probability: float, epsilons: Floats) -> list[DeltaEstimate]:
        """Compute delta at each epsilon where each place shows a flipped bit, over all 2^places outputs.

        The bit is 1 where the unit takes part, and 0 elsewhere. The error is that of the drawn chances.

        Args:
            probability: with which a bit is shown as it is, in [1/2, 1).
            epsilons: shape [n].

        Returns:
            The larger one of both directions, n estimates.
        """
        places = self.sets.shape[1]
        outputs = (np.arange(2**places)[:, None] >> np.arange(places)) & 1
        right = np.where(outputs[:, None] == self.sets, probability, 1 - probability).prod(axis=2)
        absent = np.where(outputs == 0, probability, 1 - probability).prod(axis=1)
        estimates = []
        for epsilon in epsilons:
            deltas = []
            for chances in (*self.chances, self.chances.mean(axis=0)):
                present = right @ chances
                pairs = ((present, absent), (absent, present))
                deltas.append(max(np.maximum(one - np.exp(epsilon) * other, 0).sum() for one, other in pairs))
            estimates.append(DeltaEstimate(deltas[-1], float(np.std(deltas[:-1])) / np.sqrt(GROUPS)))
        return estimates


def _log_mixture(outputs: Floats, means: Floats, chances: Floats, deviation: float) -> Floats:
    """Return the log density of a mixture of Gaussians, up to a constant.

    Args:
        outputs: [samples, places].
        means: of the parts of the mixture, [sets, places].
        chances: of the parts, [sets].
        deviation: standard deviation in each place.

    Returns:
        Shape [samples].
    """
    squares = (means**2).sum(axis=1) / 2
    with np.errstate(divide="ignore"):
        terms = (outputs @ means.T - squares) / deviation**2 + np.log(chances)
    most = terms.max(axis=1)
    return np.asarray(most + np.log(np.exp(terms - most[:, None]).sum(axis=1)))
