"""Clipping rules: how long an update may be, and whether the norm follows the updates (released with noise)."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from fedamp import scenario
from fedamp.accounting import Gaussian, Mechanism
from fedamp.gaussian import Address, add_gaussian

# An adaptive norm stays within these factors of the initial one, whatever the noise: far enough for any model, and
# near enough for float32.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-30, 2.0**30


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
        norm: clipping norm of a unit's update in the first round (of its split part, where the model is split).
        is_fixed: whether the norm stays what it was.
    """

    norm: float

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
class FixedNorm(ClippingRule):
    """The same norm in every round."""

    norm: float
    is_fixed = True

    def charges(self) -> tuple[Mechanism, ...]:
        return ()

    def next_scale(self, scale: float, counts: NormCounts, seed: int, round_: int, private: bool) -> float:
        return scale


@dataclass(frozen=True)
class AdaptiveNorm(ClippingRule):
    """The norm follows a quantile of the update norms (Andrew et al. 2021, section 2.1, geometric update).

    What is released is the sum over the units that reported of (1/2 if the update is within the norm, else -1/2), with
    Gaussian noise of standard deviation ``noise_multiplier``; it is divided by the expected number of units.
    """

    norm: float
    quantile: float
    learning_rate: float
    noise_multiplier: float
    is_fixed = False

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


def clipping_of(section: float | scenario.AdaptiveClip) -> ClippingRule:
    """The rule that a scenario's ``privacy.clip`` names: a number, or a section."""
    if isinstance(section, scenario.AdaptiveClip):
        return AdaptiveNorm(norm=section.initial, **section.model_dump(exclude={"initial"}))
    return FixedNorm(section)
