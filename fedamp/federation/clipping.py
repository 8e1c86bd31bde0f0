"""Clipping rules: how long an update may be, and whether the norm follows the updates (released with noise)."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedamp.accounting import Gaussian, Mechanism
from fedamp.base.section import NoiseMultiplier, Positive, Section, Share
from fedamp.federation.optimizers import Server
from fedamp.noise.gaussian import Address, add_gaussian

# An adaptive norm stays within these factors of the initial one, whatever the noise: far enough for any model, and
# near enough for float32.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-30, 2.0**30

# How far a run moves the model where nobody says so (:class:`Normalised`): what lost least on digits, on synthetic data
# and on Fashion-MNIST; and the most by which a round may, because beyond it training diverges.
_TRAVEL, _LONGEST_STEP = 5.0, 4.0


@dataclass(frozen=True)
class NormCounts:
    """What a rule may learn about a round, with noise of its own: units whose update was within the norm in every part
    (one that is not finite is not), units that reported, and the expected number of units, which is public.
    """

    below: int
    reported: int
    expected: float


class ClippingRule(ABC):
    """How the clipping norms of all parts move together.

    Attributes:
        is_fixed: whether the norm stays what it was.
        normalises: whether shorter updates are scaled up to the norm.
    """

    normalises: ClassVar[bool] = False

    @abstractmethod
    def norm(self, noise_multiplier: float) -> float:
        """Clipping norm of a unit's update in the first round (of its split part, where the model is split)."""

    @property
    @abstractmethod
    def is_fixed(self) -> bool: ...

    @abstractmethod
    def charges(self) -> tuple[Mechanism, ...]:
        """What a round costs a unit beside the model's release."""

    @abstractmethod
    def next_scale(self, scale: float, counts: NormCounts, seed: int, round_: int, private: bool) -> float:
        """The norms after a round over the first ones, given the same of this round.

        Of ``counts``, which are private, nothing may get out but with the noise that :meth:`charges` names; ``private``
        False adds none.
        """


@dataclass(frozen=True)
class _Unchanging(ClippingRule):
    """The same norm in every round."""

    is_fixed = True

    def charges(self) -> tuple[Mechanism, ...]:
        return ()

    def next_scale(self, scale: float, counts: NormCounts, seed: int, round_: int, private: bool) -> float:
        return scale


@dataclass(frozen=True)
class FixedNorm(_Unchanging):
    """The norm that the scenario names."""

    chosen: float

    def norm(self, noise_multiplier: float) -> float:
        return self.chosen


@dataclass(frozen=True)
class Normalised(_Unchanging):
    """Every update is scaled to the norm, the short ones too (AUTO-S: Bu et al. 2023); nothing beside it is released.

    Then the norm says nothing about updates. It is how far a round moves the model if all updates agree, where
    ``server.learning_rate`` is 1; a run of R rounds with momentum m moves it by R / (1 - m) as much.

    What is not learnt falls with that way D, as 1 / D say; noise grows as D q, where q is that of a coordinate of the
    mean update of all rounds, over the norm. The sum is least at D proportional to q^(-1/2). Where a unit trains a
    share of the model, the ways of the submodels add up as squares.

    Attributes:
        rounds, momentum: of the run.
        cohort: expected number of units a round.
        share: chance that a unit trains a given parameter.
    """

    rounds: int
    momentum: float
    cohort: float
    share: float = 1.0
    normalises = True

    def norm(self, noise_multiplier: float) -> float:
        noise = noise_multiplier / (self.cohort * self.share * math.sqrt(self.rounds))
        longest = _LONGEST_STEP * self.rounds
        way = min(_TRAVEL / math.sqrt(noise), longest) if noise else longest
        return way * math.sqrt(self.share) * (1 - self.momentum) / self.rounds


class AdaptiveClip(Section, ClippingRule):
    """The norm follows a quantile of the update norms (Andrew et al. 2021, section 2.1, geometric update).

    What is released is the sum over the units that reported of (1/2 if the update is within the norm, else -1/2), with
    Gaussian noise of standard deviation ``noise_multiplier``; it is divided by the expected number of units.
    """

    initial: Positive = 0.1
    quantile: Share = 0.5
    learning_rate: Positive = 0.2
    noise_multiplier: NoiseMultiplier = Field(10.0, description="noise on the count below the norm, in counts")

    @property
    def is_fixed(self) -> bool:
        return False

    def norm(self, noise_multiplier: float) -> float:
        return self.initial

    def charges(self) -> tuple[Mechanism, ...]:
        # A unit moves the centred count by at most one half (Andrew et al. 2021, section 2.2).
        return (Gaussian(2 * self.noise_multiplier),)

    def next_scale(self, scale: float, counts: NormCounts, seed: int, round_: int, private: bool) -> float:
        count = np.array([counts.below - counts.reported / 2])
        if private:
            add_gaussian(count, self.noise_multiplier, Address(seed, "clip", (round_,)))
        fraction = min(max(float(count[0]) / counts.expected + 0.5, 0.0), 1.0)
        scale *= math.exp(-self.learning_rate * (fraction - self.quantile))
        return min(max(scale, SMALLEST_SCALE), LARGEST_SCALE)


def clipping_of(
    section: float | str | AdaptiveClip, server: Server, rounds: int, cohort: float, share: float = 1.0
) -> ClippingRule:
    """The rule that a scenario's ``privacy.clip`` names: a number, ``auto``, or a section.

    Args:
        section, server, rounds: of the scenario.
        cohort, share: expected number of units a round; probability that one trains a given parameter.
    """
    if isinstance(section, AdaptiveClip):
        return section
    if isinstance(section, str):
        return Normalised(rounds, server.velocity, cohort, share)
    return FixedNorm(section)
