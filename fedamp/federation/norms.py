"""Clipping rules: define the norm of an update, fixed or adapted to the updates (and then released with noise).

The client clips to the norm that its order names (:mod:`fedamp.client.clipping`). A rule decides that norm on the
server: before the run from public numbers, or after each round from a noisy count. What a rule releases, it charges.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedamp.base.section import NoiseMultiplier, Positive, Section
from fedamp.base.start import Later
from fedamp.federation.optimizers import ServerUpdate
from fedamp.noise import Address, add_gaussian

if TYPE_CHECKING:
    from fedamp import accounting
    from fedamp.accounting import Mechanism
else:
    accounting = Later("fedamp.accounting")  # as in fedamp.federation.check_in

# An adaptive norm stays within these factors of the initial one. They suit any model, and float32 can hold the result.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-30, 2.0**30

# How far a run moves the model by default (:class:`Normalised`): the best value on digits, synthetic data and
# Fashion-MNIST. And the longest update of clients that move by 1 themselves: training diverges beyond it. And how many
# times 1 / (1 - momentum) rounds it takes until momentum is at work.
_TRAVEL, _LONGEST, _SETTLED = 5.0, 1.6, 5.0


@dataclass(frozen=True)
class NormCounts:
    """Private counts of a round, from which a rule may learn if it adds noise.

    Attributes:
        below: units whose update is finite and within the norm in every part.
        reported: units that reported.
        expected: expected number of units; public.
        noisy: the centred count with its noise, where the nodes have added it (secure aggregation).
        surplus: deviation of the noise over the one that is charged.
    """

    below: int
    reported: int
    expected: float
    noisy: float | None = None
    surplus: float = 1.0


class ClippingRule(ABC):
    """Base of the rules by which the clipping norms of all parts change together. By default they stay the same.

    Attributes:
        is_fixed: whether the norm stays the same.
        normalises: whether shorter updates are scaled up to the norm.
        by_layer: whether each layer is clipped to its share of the norm first.
    """

    is_fixed: ClassVar[bool] = True
    normalises: ClassVar[bool] = False
    by_layer: ClassVar[bool] = False

    @abstractmethod
    def first_norm(self, noise_multiplier: float) -> float:
        """Compute the clipping norm of a unit's update in the first round (of the split part of a split model).

        Args:
            noise_multiplier: of the same part; ``clip: auto`` depends on it.
        """

    @property
    def count_noise(self) -> float:
        """Deviation of the noise on the centred count of short updates; 0: it is not used."""
        return 0.0

    def additional_releases(self) -> "tuple[Mechanism, ...]":
        """Make the costs of a round for a unit in addition to the model's release."""
        return ()

    def next_scale(self, scale: float, counts: NormCounts, seed: int, round_: int, private: bool) -> float:
        """Compute the norm after a round divided by the first one, given the same quotient of this round.

        The result may depend on ``counts`` only through the noise that :meth:`additional_releases` names.

        Args:
            scale: the quotient of this round; 1 in the first one.
            counts: of the round; private.
            seed: of the server; the noise has an address of its own under it.
            round_: from 1.
            private: False adds no noise.
        """
        return scale


@dataclass(frozen=True)
class FixedNorm(ClippingRule):
    """The norm that the scenario names.

    Attributes:
        chosen: the norm, above 0.
    """

    chosen: float

    def first_norm(self, noise_multiplier: float) -> float:
        return self.chosen


@dataclass(frozen=True)
class Normalised(ClippingRule):
    """Every update is scaled to the norm, short ones too (AUTO-S: Bu et al. 2023); nothing else is released.

    Then the norm says nothing about updates. With ``server.learning_rate`` 1 it is how far a round moves the model if
    all updates agree. A run of R rounds with momentum m moves the model by a distance D, R / (1 - m) times as far.

    The error of too little training falls with D, for instance as 1 / D. Noise grows as D q, where q is the noise of a
    coordinate of the mean update of all rounds, divided by the norm. The sum is smallest for D proportional to
    q^(-1/2). If a unit trains a share of the model, the distances of the submodels add in quadrature.

    Where noise allows a longer update than clients make themselves, the model cannot follow it: the norm is at most
    proportional to the root of their own drift, over a server's rate above 1. In a short run momentum never comes up
    to its speed: it counts as 1 - 5 / R at most (docs/research/schemes.md has the measurements). All of it is public.

    Attributes:
        rounds, momentum, rate: of the run and its server.
        cohort: expected number of units a round.
        share: probability that a unit trains a given parameter.
        drift: how far gradients of norm 1 move a client in a round (``LocalTraining.largest_drift``).
    """

    rounds: int
    momentum: float
    cohort: float
    share: float = 1.0
    drift: float = 1.0
    rate: float = 1.0
    normalises = True

    def first_norm(self, noise_multiplier: float) -> float:
        noise = noise_multiplier / (self.cohort * self.share * math.sqrt(self.rounds))
        distance = _TRAVEL / math.sqrt(noise) if noise else math.inf
        longest = _LONGEST * math.sqrt(self.drift * self.share) / max(self.rate, 1.0)
        slowed = max(1 - self.momentum, min(_SETTLED / self.rounds, 1.0))
        return min(distance * math.sqrt(self.share) * slowed / self.rounds, longest)


class LayerClip(Section, ClippingRule):
    """Each of m layers is clipped to norm / sqrt(m), so that no layer takes the norm of all (McMahan et al. 2018).

    The norm of the whole update is as with a number, so noise and charge are the same.
    """

    per_layer: Positive = Field(description="norm of the whole update; each of m layers gets norm / sqrt(m)")

    by_layer: ClassVar[bool] = True

    def first_norm(self, noise_multiplier: float) -> float:
        return self.per_layer


class AdaptiveClip(Section, ClippingRule):
    """The norm follows a quantile of the update norms (Andrew et al. 2021, section 2.1, geometric update).

    A round releases the sum, over the units that reported, of 1/2 for an update within the norm and -1/2 for another
    one, with Gaussian noise of standard deviation ``noise_multiplier``, divided by the expected number of units.
    """

    initial: Positive = Field(0.1, description="norm of the first round")
    quantile: Annotated[float, Field(gt=0, lt=1)] = Field(0.5, description="share of updates that are to be within it")
    learning_rate: Positive = Field(0.2, description="step of the logarithm of the norm in a round")
    noise_multiplier: NoiseMultiplier = Field(10.0, description="noise on the count below the norm, in counts")

    is_fixed: ClassVar[bool] = False

    @property
    def count_noise(self) -> float:
        return self.noise_multiplier

    def first_norm(self, noise_multiplier: float) -> float:
        return self.initial

    def additional_releases(self) -> "tuple[Mechanism, ...]":
        # A unit moves the centred count by at most one half (Andrew et al. 2021, section 2.2).
        return (accounting.Gaussian(2 * self.noise_multiplier),)

    def next_scale(self, scale: float, counts: NormCounts, seed: int, round_: int, private: bool) -> float:
        count = np.array([counts.below - counts.reported / 2 if counts.noisy is None else counts.noisy])
        if private and counts.noisy is None:
            add_gaussian(count, self.noise_multiplier * counts.surplus, Address(seed, "clip", (round_,)))
        fraction = min(max(float(count[0]) / counts.expected + 0.5, 0.0), 1.0)
        scale *= math.exp(-self.learning_rate * (fraction - self.quantile))
        return min(max(scale, SMALLEST_SCALE), LARGEST_SCALE)


def clipping_of(
    section: float | str | LayerClip | AdaptiveClip,
    server: ServerUpdate,
    rounds: int,
    cohort: float,
    share: float = 1.0,
    drift: float = 1.0,
) -> ClippingRule:
    """Make the rule that a scenario's ``privacy.clip`` names: a number, ``auto``, or a section.

    Args:
        section: a norm, ``auto``, or a rule with keys of its own.
        server: the scenario's section; rate and momentum matter to ``auto``.
        rounds: of the scenario.
        cohort, share, drift: as of :class:`Normalised`.
    """
    if isinstance(section, ClippingRule):
        return section
    if isinstance(section, str):
        rate = server.learning_rate if server.is_linear else 1.0  # adam divides the norm away
        return Normalised(rounds, server.effective_momentum, cohort, share, drift, rate)
    return FixedNorm(section)
