"""Define the key ``mixing``: ModelMix, a step from a random mixture of the last two models (Xiao, Wan, Devadas 2022).

A uniform point between two models is their midpoint, which is public, plus a uniform number about zero. That number is
added together with the noise, so that the release is their exact sum, rounded once (:mod:`fedamp.noise`).
:class:`fedamp.federation.optional.OptionalSection` says what each method promises.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field, model_validator

from fedamp.base.arrays import Arrays, Sums
from fedamp.base.section import Before, Count, Positive, Steps, at, check_steps, lengths
from fedamp.base.start import Later
from fedamp.federation import facts
from fedamp.federation.check_in import CheckIn
from fedamp.federation.facts import AnyScenario
from fedamp.federation.optional import AnyPlan, OptionalSection, RoundKind
from fedamp.federation.submodels import Part
from fedamp.noise import Uniform

if TYPE_CHECKING:
    from fedamp.accounting import Mechanism
    from fedamp.extensions.modelmix import mechanism
else:
    mechanism = Later("fedamp.extensions.modelmix.mechanism")  # as in fedamp.federation.check_in


class Mixing(OptionalSection):
    """ModelMix: the server takes its step from a random mixture of the last two models; clients train the last one.

    The mixture is a uniform point between the two, coordinate by coordinate; its hidden weights never leave the server.
    The models are first moved about their midpoint, apart or together, to a distance that is a whole multiple of the
    charged width: the largest multiple within their distance, and at least the enforced one. The paper's Algorithm 1
    only moves them apart if they are too close. It assumes that a wider uniform law hides a step at least as well, and
    does not prove it for any real width. For whole multiples it is clear: the wider law is a mixture of shifted copies
    of the charged one.
    """

    width: Positive | Annotated[Steps, Field(min_length=1)] = Field(
        description="enforced distance tau of the two models in every coordinate; or a list of [first round, tau], "
        "the first of them for round 1"
    )
    needs = facts.needs_facts(
        facts.NOISE_INDEPENDENT, facts.SERVER_ADDS_NOISE, facts.SHOWN_ONCE, facts.CLIP_FIXED, facts.MODEL_ALONE
    )
    keeps = facts.FACTS - {facts.NOISE_ALONE}
    keeps_last_model = True
    linf_coordinates: Count = Field(1, description="p: every coordinate of an update is truncated at clip / sqrt(p)")

    @model_validator(mode="after")
    def _from_round_one_on(self) -> "Mixing":
        """Refuse a schedule that does not begin with round 1, or is not in order."""
        check_steps("width", self.steps)
        return self

    def check_within(self, scenario: AnyScenario) -> None:
        """Refuse a schedule that begins a step after the last round.

        Raises:
            ValueError: it names both keys.
        """
        if (last := self.steps[-1][0]) > scenario.rounds:
            raise ValueError(f"mixing.width names round {last}, but rounds is {scenario.rounds}")

    @property
    def steps(self) -> Steps:
        """First round and enforced distance of every step of the schedule."""
        return self.width if isinstance(self.width, tuple) else ((1, self.width),)

    def charged(self, check_in: CheckIn, rounds: int) -> Steps:
        """Return the charged width of every round, as steps.

        If a unit's rounds depend on each other, all rounds must cost the same. Then all are charged at the smallest
        width; so are rounds that have a width each.

        Args:
            check_in: of the scenario.
            rounds: of the run.
        """
        widths = [width for _, width in self.steps]
        if not check_in.rounds_are_independent or max(lengths(self.steps, rounds)) == 1 or len(set(widths)) == 1:
            return ((1, min(widths)),)
        return self.steps

    def round_kinds(self, plan: AnyPlan) -> tuple[tuple[RoundKind, int], ...]:
        """Return the charged widths, each with its number of rounds."""
        rounds = plan.scenario.rounds
        charged = self.charged(plan.check_in, rounds)
        return tuple((width, number) for (_, width), number in zip(charged, lengths(charged, rounds), strict=True))

    def dearest_kind(self, plan: AnyPlan) -> RoundKind:
        """Return the smallest width, whose rounds cost the most."""
        return min(width for width, _ in self.round_kinds(plan))

    def charge_part(self, plan: AnyPlan, part: Part, release: "Mechanism", kind: RoundKind) -> "Mechanism":
        """Charge a part's release at the width ``kind``.

        Only its ratio to the largest step of a unit matters (Xiao, Wan, Devadas 2022, Corollary 4.1).
        """
        return mechanism.ModelMix(part.noise_multiplier, kind / _largest_step(plan, part), self.linf_coordinates)

    @property
    def truncated_coordinates(self) -> int:
        """Number p by which coordinates are truncated at clip / sqrt(p)."""
        return self.linf_coordinates

    def start_of_step(
        self, plan: AnyPlan, part_of: Mapping[str, int], current: Arrays, previous: Arrays | None, round_: int
    ) -> tuple[Arrays, dict[str, Uniform]]:
        """Return the midpoint from which a round's step is taken, and the uniform number to add to each array's sum."""
        width = at(self.charged(plan.check_in, plan.scenario.rounds), round_)
        middle, multiples = self.midpoint(current, previous, round_, width)
        # Exactly the charged width, in the units of the sum: the expression holds the same quotient.
        widths = [Fraction(width / _largest_step(plan, part)) * Fraction(part.clip) for part in plan.parts]
        return middle, {name: Uniform(widths[part], multiples[name]) for name, part in part_of.items()}

    def midpoint(self, current: Arrays, previous: Arrays | None, round_: int, charged: float) -> tuple[Arrays, Sums]:
        """Compute the midpoint from which a round's step is taken, and the uniform numbers' widths, in charged widths.

        Args:
            current: the last model.
            previous: the model before ``current``, None in round 1.
            round_: number of the round, from 1.
            charged: the charged width of the round.

        Returns:
            float32 arrays by name; and whole multiples of the charged width, float64, in the same shapes.
        """
        middle, multiples, least = {}, {}, np.ceil(at(self.steps, round_) / charged)
        for name, now in current.items():
            one, other = now.astype(np.float64), (previous or current)[name].astype(np.float64)
            middle[name] = ((one + other) / 2).astype(np.float32)
            multiples[name] = np.maximum(np.floor(np.abs(one - other) / charged), least)
        return middle, multiples

    def for_fewer_rounds(self, rounds: int) -> "Mixing":
        """Return the section for fewer rounds, for an audit."""
        return self.model_copy(update={"width": tuple(step for step in self.steps if step[0] <= rounds)})

    def with_steps(self, before: float, after: float) -> "Mixing":
        """Return the section with widths in proportion to the largest step of a unit, which an audit changes."""
        return self.model_copy(update={"width": tuple((first, width * after / before) for first, width in self.steps)})

    def hidden_variance(self, round_: int) -> float:
        """Return the least variance that mixing adds to a coordinate of a round's model."""
        return at(self.steps, round_) ** 2 / 12


def _largest_step(plan: AnyPlan, part: Part) -> float:
    """The largest distance by which one unit moves a part of the model in a round."""
    return float(plan.optimizer.learning_rate * part.clip / part.denominator)


MIXING = Annotated[Mixing | None, Field(None), Before("privacy")]
"""The key ``mixing`` of a scenario."""
