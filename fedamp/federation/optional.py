"""Optional sections of a scenario: what each adds to the charge of a plan, and to its rounds.

Plan, charge and rounds ask every section that a scenario has, and know none by name. A section that releases something,
or that changes what hides a release, and charges nothing for it, is refused (:func:`check_charged`). Such
sections are first releases, the evaluation on clients, and ModelMix.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fedamp.base.arrays import Arrays
from fedamp.federation import facts
from fedamp.federation.facts import AnyScenario, Declared, Stance
from fedamp.federation.submodels import Part
from fedamp.noise import Uniform

if TYPE_CHECKING:
    from fedamp.accounting import Mechanism

AnyPlan = Any
"""Plan as in :mod:`fedamp.federation.plan`, which imports this module."""

RoundKind = Any
"""Kind of rounds, as a section tells them apart; rounds of a kind cost the same."""


class OptionalSection(Declared):
    """Base of sections that a scenario may have.

    Every method has a default, for a section that does nothing there. The methods stand in three groups: charge, round,
    audit. A section overrides the ones that it needs, and states its facts (:class:`fedamp.federation.facts.Stance`).

    Attributes:
        keeps_last_model: whether a round needs the model before the last one.
    """

    keeps_last_model: ClassVar[bool] = False

    def fitted_to(self, plan: AnyPlan) -> Self:
        """Return the section of a plan, with all numbers that follow from the plan.

        Raises:
            ScenarioError: no such numbers exist, for instance no noise keeps the section's budget.
        """
        return self

    def check_units(self, units: int) -> None:
        """Refuse keys that do not fit the number of units.

        Raises:
            ValueError: one line with the path of the key.
        """

    def task_keys(self) -> Mapping[str, Any]:
        """Return what clients are told of the section: values of the extension's keys of a task."""
        return {}

    # --- the charge ---------------------------------------------------------------------------------------------------

    def releases_beside(self, plan: AnyPlan) -> tuple["Mechanism", ...]:
        """Make the costs of releases of all units that are made once, beside the rounds.

        Args:
            plan: of the run.

        Returns:
            One expression a release, for a unit; empty: the section releases nothing beside the rounds.
        """
        return ()

    def round_kinds(self, plan: AnyPlan) -> tuple[tuple[RoundKind, int], ...]:
        """List the kinds of the plan's rounds, where rounds cost differently.

        At most one section of a scenario may have several kinds.

        Args:
            plan: of the run.

        Returns:
            Pairs (kind, number of rounds), in the order in which they are charged; the numbers add up to the rounds.
        """
        return ((self.dearest_kind(plan), plan.scenario.rounds),)

    def dearest_kind(self, plan: AnyPlan) -> RoundKind:
        """Return the kind of rounds that costs the most; the cost without amplification charges it for every round."""
        return None

    def charge_part(self, plan: AnyPlan, part: Part, release: "Mechanism", kind: RoundKind) -> "Mechanism":
        """Make the cost of a part's release in a round of a kind.

        Args:
            plan: of the run.
            part: the released part.
            release: the cost of its noise alone.
            kind: one of :meth:`round_kinds`.
        """
        return release

    def beside_model(self, plan: AnyPlan, kind: RoundKind) -> tuple["Mechanism", ...]:
        """Make the costs of releases of the cohort in a round of a kind, beside the sum of the model's updates.

        Args:
            plan: of the run.
            kind: one of :meth:`round_kinds`.

        Returns:
            One expression a release, for a unit of the cohort; check-in amplifies them together with the model's.
        """
        return ()

    def costs_without(self, scenario: AnyScenario) -> Mapping[str, Mapping[str, Any]]:
        """List keys whose cost does not depend on the noise multiplier, and the changes of a scenario without them.

        A refused budget names them: more noise on the model would not help.

        Args:
            scenario: that has the section.

        Returns:
            By the key's path: sections of the scenario with another value.
        """
        return {}

    # --- a round ------------------------------------------------------------------------------------------------------

    @property
    def truncated_coordinates(self) -> int:
        """Number p, where a unit's coordinates are truncated at clip / sqrt(p); 0: they are not."""
        return 0

    def start_of_step(
        self, plan: AnyPlan, part_of: Mapping[str, int], current: Arrays, previous: Arrays | None, round_: int
    ) -> tuple[Arrays, dict[str, Uniform]]:
        """Choose the model from which a round's step is taken, and uniform numbers that hide arrays of the sum.

        Args:
            plan: of the run.
            part_of: index of the part of each array.
            current: the last model.
            previous: the model before it; None in the first round, or if it is not kept.
            round_: number of the round, from 1.

        Returns:
            The model, and the uniform noise by the array's name.
        """
        return current, {}

    # --- an audit -----------------------------------------------------------------------------------------------------

    def for_fewer_rounds(self, rounds: int) -> Self:
        """Return the section for the first rounds alone, as an audit plays them."""
        return self

    def with_steps(self, before: float, after: float) -> Self:
        """Scale the section to an audit's server, so that it hides a step as well as before.

        Args:
            before, after: lengths of a unit's step in the model, over its clipping norm.
        """
        return self

    def hidden_variance(self, round_: int) -> float:
        """Return the least variance by which the section hides a coordinate of the model in a round."""
        return 0.0


def check_charged(key: str, section: Declared | Stance) -> None:
    """Refuse a key that may release something, or change what hides a release, and charges nothing for it.

    Args:
        key: the path of the key.
        section: its value, or its stance.

    Raises:
        ValueError: one line with the key.
    """

    def overrides_charge(*names: str) -> bool:
        kind = type(section)
        return isinstance(section, OptionalSection) and any(
            getattr(kind, name) is not getattr(OptionalSection, name) for name in names
        )

    releases = {facts.MODEL_ALONE, facts.ROUNDS_ALONE} - section.keeps and not overrides_charge(
        "releases_beside", "beside_model"
    )
    if releases or (facts.NOISE_ALONE not in section.keeps and not overrides_charge("charge_part")):
        raise ValueError(
            f"{key} may release something, or change what hides a release, and charges nothing; expected: a section "
            "that says what it costs, or that keeps these facts (fedamp.federation.facts)"
        )
