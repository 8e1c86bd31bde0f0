"""Side sums: define what rounds add up and release beside the sum of the model's updates, for a section of a scenario.

The core asks for the sum, adds the noise and charges it; the section of an extension says what each unit contributes,
and what follows from the released sum. The evaluation on clients is one (``fedamp/extensions/evaluation``). Orders and
answers carry a side sum as one more array (:mod:`fedamp.engines.wire`). Ledgers name it by the keys of
:class:`fedamp.accounting.verify.SideSumKeys`.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from fedamp.base.arrays import Floats
from fedamp.base.record import Record
from fedamp.base.start import Later
from fedamp.errors import ScenarioError
from fedamp.federation.facts import AnyScenario
from fedamp.federation.optional import AnyPlan, OptionalSection, RoundKind

if TYPE_CHECKING:
    from fedamp import accounting
    from fedamp.accounting import Mechanism, arithmetic
else:
    accounting, arithmetic = Later("fedamp.accounting"), Later("fedamp.accounting.arithmetic")  # as in check_in


class SideRelease(Record):
    """A released side sum. A section adds fields that follow from the sum.

    All of it is public: the sum has its noise, and the fields are post-processing.

    Attributes:
        round: number of the round after which the units had the model; 0: the first model.
        units: public: expected number of units in the sum, above 0.
        deviation: standard deviation of the noise in each number of the sum: that which is charged, or more (secure
            aggregation).
        sums: the noisy sum of the units' contributions.
    """

    round: Annotated[int, Field(ge=0)]
    units: Annotated[float, Field(gt=0)]
    deviation: Annotated[float, Field(ge=0)]
    sums: tuple[float, ...]

    @property
    @abstractmethod
    def in_short(self) -> str:
        """Release in a few words, for a line about a round."""

    @property
    @abstractmethod
    def in_words(self) -> dict[str, str]:
        """Release as rows of a table, by their headings."""

    @abstractmethod
    def agrees(self, other: Self, tolerance: float) -> bool:
        """Say whether the fields that follow from the sum are those of another release of it.

        Args:
            other: computed again from the same sum.
            tolerance: of each number; another machine adds in another order.
        """


class SideSum(OptionalSection):
    """Base of sections that add a vector of each unit to the sum of a round. A scenario has at most one.

    A vector has a norm of at most 1: nodes clip it. So its release costs a Gaussian mechanism with the section's noise
    multiplier, once for all units or in some rounds for the cohort. The section declares these fields: ``share``,
    ``every``, ``noise_multiplier`` and ``epsilon``.

    Attributes:
        key: of the section in a scenario, of the task, and of the ledger.
        node: class of what a node adds up, a :class:`fedamp.client.worker.NodeSum`, as ``package.module:Class``.
        assumption: the sentence of the ledger about it.
        share: of each unit's records that it is computed from; they never train.
        every: ``end``: all units contribute once, after the last round; or rounds between contributions of a cohort.
        noise_multiplier: standard deviation of the noise over the largest contribution; None: it follows from epsilon.
        epsilon: of the side sum alone.
    """

    key: ClassVar[str]
    node: ClassVar[str]
    assumption: ClassVar[str]
    if TYPE_CHECKING:
        share: float
        every: Literal["end"] | int
        noise_multiplier: float | None
        epsilon: float | None

    @property
    @abstractmethod
    def number_of_cells(self) -> int:
        """Length of a unit's vector, at least 1."""

    @abstractmethod
    def released(self, round_: int, sums: Floats, deviation: float, units: float) -> SideRelease:
        """Make the release of a noisy sum.

        Args:
            round_, sums, deviation, units: as the attributes of :class:`SideRelease`; ``sums`` has the shape [cells].
        """

    @abstractmethod
    def foreseen(self, plan: AnyPlan) -> tuple[str, str | None]:
        """Tell what the release will be worth, before the run.

        Args:
            plan: of the run.

        Returns:
            Words, and a caution where the noise hides what they tell (None: it does not).
        """

    def answers(self, plan: AnyPlan) -> dict[str, float]:
        """Return numbers about the release that follow from the plan, for ``fedamp privacy``, by name."""
        return {}

    def task_keys(self) -> Mapping[str, Any]:
        return {self.key: self}

    @property
    def at_end(self) -> bool:
        """Say whether all units contribute once, after the last round."""
        return self.every == "end"

    def is_in(self, round_: int) -> bool:
        """Say whether the cohort of a round contributes, before it trains.

        Args:
            round_: from 1.
        """
        return self.every != "end" and round_ % self.every == 0

    # --- the charge ---------------------------------------------------------------------------------------------------

    def check_within(self, scenario: AnyScenario) -> None:
        if self.every != "end" and self.every > scenario.rounds:
            raise ValueError(f"{self.key}.every must be at most rounds ({scenario.rounds}) or end, got {self.every}")

    def fitted_to(self, plan: AnyPlan) -> Self:
        if self.epsilon is None:
            return self
        try:
            left = arithmetic.delta_left(plan.scenario.privacy.delta)
            noise = plan.answers.noise_multiplier(partial(self.cost, plan), self.epsilon, left)
        except ValueError as error:
            raise ScenarioError(f"{self.key}.epsilon finds no noise: {error}") from None
        return self.with_noise(noise)

    def with_noise(self, noise_multiplier: float) -> Self:
        """Copy the section with a noise multiplier in place of an epsilon."""
        return self.model_copy(update={"noise_multiplier": noise_multiplier, "epsilon": None})

    def cost(self, plan: AnyPlan, noise_multiplier: float | None = None) -> "Mechanism":
        """Make the cost of the side sum alone, for all units or all rounds, as its section asks.

        Args:
            plan: of the run; its check-in hides the units of some rounds.
            noise_multiplier: another one than the section's, as calibration tries it.
        """
        check_in, release = plan.check_in, accounting.Gaussian(noise_multiplier or self.noise)
        rounds, size = plan.scenario.rounds, plan.scenario.privacy.group_size
        return accounting.group(check_in.known_cost(release) if self.at_end else check_in.charge(release, rounds), size)

    def releases_beside(self, plan: AnyPlan) -> "tuple[Mechanism, ...]":
        return (plan.check_in.known_cost(accounting.Gaussian(self.noise)),) if self.at_end else ()

    def round_kinds(self, plan: AnyPlan) -> tuple[tuple[RoundKind, int], ...]:
        rounds = plan.scenario.rounds
        if self.every != "end" and plan.check_in.rounds_are_independent:
            some = rounds // self.every  # in which order they come changes no cost; those that cost more lead
            if some < rounds > 2:
                return ((True, some), (False, rounds - some))
        return ((True, rounds),)

    def dearest_kind(self, plan: AnyPlan) -> RoundKind:
        return True

    def beside_model(self, plan: AnyPlan, kind: RoundKind) -> "tuple[Mechanism, ...]":
        return (accounting.Gaussian(self.noise),) if kind and not self.at_end else ()

    def costs_without(self, scenario: AnyScenario) -> Mapping[str, Mapping[str, Any]]:
        asked = getattr(scenario, self.key)
        name = "epsilon" if asked.noise_multiplier is None else "noise_multiplier"
        return {f"{self.key}.{name}": {self.key: None}}

    @property
    def noise(self) -> float:
        """Noise multiplier of a plan's section, which has one."""
        assert self.noise_multiplier is not None, "a plan's section has its noise"
        return self.noise_multiplier


def side_sum_of(sections: Iterable[Any]) -> SideSum | None:
    """Find the section with a side sum; None: no section has one.

    Raises:
        ValueError: several sections have one, in one line.
    """
    found = [each for each in sections if isinstance(each, SideSum)]
    if len(found) > 1:
        raise ValueError(f"{found[0].key} and {found[1].key}: both have a side sum; expected: one of them")
    return found[0] if found else None
