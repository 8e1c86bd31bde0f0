"""Mixing rules: the server takes its step from the last model, or (ModelMix) from a random mixture of the last two.

A uniform point between two models is their midpoint, which is public, plus a uniform number about zero. That number is
added together with the noise, so that the release is their exact sum, rounded once (:mod:`fedamp.noise.gaussian`).
"""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from fedamp.accounting import Gaussian, Mechanism, ModelMix
from fedamp.base.arrays import Arrays, Sums
from fedamp.base.section import Count, Positive, Section, Steps, check_steps
from fedamp.federation.check_in import CheckIn


@dataclass(frozen=True)
class Start:
    """The model from which the server takes a round's step; clients train the last model. All of it is public.

    Attributes:
        parameters: the model to which the round's step is added.
        width: the charged width. The uniform number that hides the round beside its noise has a width in the model
            that is a whole multiple of it. 0 without mixing.
        multiples: the whole multiples, by name, in the model's shapes; empty without mixing.
        remembered: the next round's ``previous``.
    """

    parameters: Arrays
    width: float = 0.0
    multiples: Sums = field(default_factory=dict)
    remembered: Arrays | None = None


@dataclass(frozen=True)
class MixedRounds:
    """Consecutive rounds with the same mixing.

    Attributes:
        first, rounds: number of the first one, and their count.
        least: enforced distance of the two mixed models, in every coordinate; 0 without mixing.
        charged: the charged width; the distances are whole multiples of it. None without mixing.
    """

    first: int
    rounds: int
    least: float
    charged: float | None


@dataclass(frozen=True)
class MixingRule:
    """ModelMix: a uniform point between the last two models, coordinate by coordinate (Xiao, Wan, Devadas 2022).

    The models are first moved about their midpoint, apart or together, to a distance that is a whole multiple of the
    charged width: the largest multiple within their distance, and at least the enforced one. The paper's Algorithm 1
    only moves them apart if they are too close. It assumes that a wider uniform law hides a step at least as well, and
    does not prove it for any real width. For whole multiples it is clear: the wider law is a mixture of shifted copies
    of the charged one. The weights are hidden: they never leave the server.

    Attributes:
        linf_coordinates: p; a unit's coordinates are truncated at clip / sqrt(p). 0: they are not.
        stretches: all rounds in order, with the enforced and charged widths.
    """

    linf_coordinates: int
    stretches: tuple[MixedRounds, ...]

    @property
    def smallest_width(self) -> float | None:
        """The smallest charged width of all rounds; None without mixing."""
        return min((each.charged for each in self.stretches if each.charged is not None), default=None)

    @property
    def charged_rounds(self) -> tuple[tuple[int, float | None], ...]:
        """All rounds in order: how many consecutive ones are charged at which width (as :meth:`hide` takes it)."""
        if len({each.charged for each in self.stretches}) == 1:
            return ((sum(each.rounds for each in self.stretches), self.smallest_width),)
        return tuple((each.rounds, each.charged) for each in self.stretches)

    def hide(self, noise_multiplier: float, step: float, width: float | None) -> Mechanism:
        """The cost of a round's release of a part for a unit.

        Args:
            noise_multiplier: of the part.
            step: the largest distance by which one unit moves the model.
            width: the charged width of the round; None without mixing.
        """
        if width is None:
            return Gaussian(noise_multiplier)
        # Only the ratio to a unit's largest step matters (Xiao, Wan, Devadas 2022, Corollary 4.1).
        return ModelMix(noise_multiplier, relative_width(width, step), self.linf_coordinates)

    def start(self, current: Arrays, previous: Arrays | None, round_: int) -> Start:
        """The start of a round's step; ``previous`` is the model before ``current``, None in round 1."""
        rounds, before = self._at(round_), previous or current
        if rounds.charged is None:
            return Start(current)
        middle, multiples = {}, {}
        for name, now in current.items():
            one, other = now.astype(np.float64), before[name].astype(np.float64)
            middle[name] = ((one + other) / 2).astype(np.float32)
            widths = np.floor(np.abs(one - other) / rounds.charged)
            multiples[name] = np.maximum(widths, np.ceil(rounds.least / rounds.charged))
        return Start(middle, rounds.charged, multiples, remembered=current)

    def variance(self, round_: int) -> float:
        """The smallest variance of a round's offset in any coordinate, in squared units of the model."""
        return self._at(round_).least ** 2 / 12

    def _at(self, round_: int) -> MixedRounds:
        return next(rounds for rounds in reversed(self.stretches) if rounds.first <= round_)


def relative_width(width: float, step: float) -> float:
    """A width of the model in clipping norms of the sum; ``step``: the most by which one unit moves the model."""
    return width / step


class Mixing(Section):
    """ModelMix: the server takes its step from a random mixture of the last two models; clients train the last one."""

    width: Positive | Annotated[Steps, Field(min_length=1)] = Field(
        description="enforced distance tau of the two models in every coordinate; or a list of [first round, tau], "
        "the first of them for round 1"
    )
    linf_coordinates: Count = Field(1, description="p: every coordinate of an update is truncated at clip / sqrt(p)")

    @model_validator(mode="after")
    def _from_round_one_on(self) -> "Mixing":
        check_steps("width", self.steps)
        return self

    @property
    def steps(self) -> Steps:
        """The first round and the enforced distance of every step of the schedule."""
        return self.width if isinstance(self.width, tuple) else ((1, self.width),)

    def rule(self, check_in: CheckIn, rounds: int) -> MixingRule:
        """The rule for a run.

        If a unit's rounds depend on each other, all rounds must cost the same, so all are charged at the smallest
        width; so are two rounds or more that have a width each.
        """
        ends = [first for first, _ in self.steps[1:]] + [rounds + 1]
        lengths = [end - first for (first, _), end in zip(self.steps, ends, strict=True)]
        same = not check_in.rounds_are_independent or max(lengths) == 1
        smallest = min(width for _, width in self.steps)
        return MixingRule(
            self.linf_coordinates,
            tuple(
                MixedRounds(first, length, width, smallest if same else width)
                for (first, width), length in zip(self.steps, lengths, strict=True)
            ),
        )


def mixing_of(section: Mixing | None, check_in: CheckIn, rounds: int) -> MixingRule:
    """The rule of a scenario's ``mixing`` section; None: no mixing."""
    return section.rule(check_in, rounds) if section else MixingRule(0, (MixedRounds(1, rounds, 0.0, None),))
