"""Mixing rules: the server takes its step from the last model, or (ModelMix) from a random mixture of the last two.

A uniform point between two models is their midpoint, which is public, and a uniform number about zero. That number is
added where the noise is, so that what leaves is their exact sum, rounded once (:mod:`fedamp.noise.gaussian`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting import Compose, Gaussian, Mechanism, ModelMix
from fedamp.base.arrays import Arrays, Sums
from fedamp.federation.check_in import Schedule
from fedamp.federation.privacy import Mixing


@dataclass(frozen=True)
class Start:
    """From what the server takes a round's step; clients train the last model. All of it is public.

    Attributes:
        parameters: the model to which the round's step is added.
        width: what the round is charged at: what hides it beside its noise is uniform about zero, and its width in the
            model a whole multiple of this one. 0 where nothing is mixed.
        multiples: the whole multiples, by name, in the model's shapes; empty where nothing is mixed.
        remembered: what the next round is given as ``previous``.
    """

    parameters: Arrays
    width: float = 0.0
    multiples: Sums = field(default_factory=dict)
    remembered: Arrays | None = None


class MixingRule(ABC):
    """From what the server takes its steps, and what that hides.

    Attributes:
        linf_coordinates: p, where a unit's coordinates are truncated at clip / sqrt(p); 0: they are not.
        smallest_width: what the rounds are charged at where all cost the same; None without mixing.
    """

    linf_coordinates: int

    @property
    @abstractmethod
    def smallest_width(self) -> float | None: ...

    @abstractmethod
    def hide(self, noise_multiplier: float, step: float, width: float | None) -> Mechanism:
        """What a round's release of a part costs a unit.

        Args:
            noise_multiplier: of the part.
            step: the most by which one unit moves the model.
            width: what the round is charged at, as :attr:`smallest_width` or :attr:`Start.width`.
        """

    @abstractmethod
    def charge(self, schedule: Schedule, round_mechanism: Callable[[float | None], Mechanism]) -> Mechanism:
        """What all rounds cost a unit, if taking part in one of a width costs ``round_mechanism(width)``."""

    @abstractmethod
    def start(self, current: Arrays, previous: Arrays | None, round_: int) -> Start:
        """From what the server takes its step; ``previous`` is the model before ``current``, None in round 1."""

    @abstractmethod
    def variance(self, round_: int) -> float:
        """The least variance of a round's offset in any coordinate, in units of the model, squared."""


@dataclass(frozen=True)
class NoMixing(MixingRule):
    """The server takes its step from the last model."""

    linf_coordinates = 0
    smallest_width = None

    def hide(self, noise_multiplier: float, step: float, width: float | None) -> Mechanism:
        return Gaussian(noise_multiplier)

    def charge(self, schedule: Schedule, round_mechanism: Callable[[float | None], Mechanism]) -> Mechanism:
        return schedule.charge(round_mechanism(None))

    def start(self, current: Arrays, previous: Arrays | None, round_: int) -> Start:
        return Start(current)

    def variance(self, round_: int) -> float:
        return 0.0


@dataclass(frozen=True)
class MixedRounds:
    """Consecutive rounds with the same mixing.

    Attributes:
        first, rounds: number of the first of them, and how many they are.
        least: enforced distance of the two mixed models, in every coordinate.
        charged: the width that is paid for; the distances are whole multiples of it.
    """

    first: int
    rounds: int
    least: float
    charged: float


@dataclass(frozen=True)
class MixedModels(MixingRule):
    """ModelMix: a uniform point between the last two models, coordinate by coordinate (Xiao, Wan, Devadas 2022).

    The models are first moved about their midpoint, apart or together, to a distance that is a whole multiple of the
    charged width: the largest that they have, and at least the enforced one. The paper's Algorithm 1 only moves them
    apart where they are too close, and takes it that a wider uniform law hides a step at least as well. That is not
    proved there for any real width, but it is plain for whole multiples: the wider law is a mixture of shifted copies
    of the charged one. The weights are hidden: they never leave the server.

    Attributes:
        stretches: the rounds, by what is enforced and charged in them.
    """

    linf_coordinates: int
    stretches: tuple[MixedRounds, ...]

    @property
    def smallest_width(self) -> float:
        return min(rounds.charged for rounds in self.stretches)

    def hide(self, noise_multiplier: float, step: float, width: float | None) -> Mechanism:
        assert width is not None, "every stretch of rounds has one"
        # Only the ratio to a unit's largest step matters (Xiao, Wan, Devadas 2022, Corollary 4.1).
        return ModelMix(noise_multiplier, relative_width(width, step), self.linf_coordinates)

    def charge(self, schedule: Schedule, round_mechanism: Callable[[float | None], Mechanism]) -> Mechanism:
        if len({rounds.charged for rounds in self.stretches}) == 1:
            return schedule.charge(round_mechanism(self.smallest_width))
        return Compose(
            tuple(
                schedule.stretch(each.first, each.rounds).charge(round_mechanism(each.charged))
                for each in self.stretches
            )
        )

    def start(self, current: Arrays, previous: Arrays | None, round_: int) -> Start:
        rounds, before = self._at(round_), previous or current
        middle, multiples = {}, {}
        for name, now in current.items():
            one, other = now.astype(np.float64), before[name].astype(np.float64)
            middle[name] = ((one + other) / 2).astype(np.float32)
            multiples[name] = _multiples(one, other, rounds)
        return Start(middle, rounds.charged, multiples, remembered=current)

    def variance(self, round_: int) -> float:
        return self._at(round_).least ** 2 / 12

    def _at(self, round_: int) -> MixedRounds:
        return next(rounds for rounds in reversed(self.stretches) if rounds.first <= round_)


def _multiples(now: NDArray[np.float64], before: NDArray[np.float64], rounds: MixedRounds) -> NDArray[np.float64]:
    widths = np.floor(np.abs(now - before) / rounds.charged)
    return np.asarray(np.maximum(widths, np.ceil(rounds.least / rounds.charged)))


def relative_width(width: float, step: float) -> float:
    """A width of the model in clipping norms of the sum, given the most by which one unit moves the model."""
    return width / step


def mixing_of(section: Mixing | None, schedule: Schedule) -> MixingRule:
    """The rule that a scenario's ``mixing`` section describes; None: no mixing.

    Where a unit's rounds are drawn together all rounds must cost the same, so all are charged at the smallest width;
    so are two rounds or more that have a width each.
    """
    if section is None:
        return NoMixing()
    steps = section.steps
    ends = [first for first, _ in steps[1:]] + [schedule.rounds + 1]
    lengths = [end - first for (first, _), end in zip(steps, ends, strict=True)]
    same = schedule.drawn_together or max(lengths) == 1
    smallest = min(width for _, width in steps)
    stretches = tuple(
        MixedRounds(first, rounds, width, smallest if same else width)
        for (first, width), rounds in zip(steps, lengths, strict=True)
    )
    return MixedModels(section.linf_coordinates, stretches)
