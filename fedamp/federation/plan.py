"""From a scenario to a frozen plan: the only place where a number is derived from two others.

A :class:`Plan` says what happens, a :class:`fedamp.federation.charge.Charge` what that costs.
:mod:`fedamp.federation.refusals` says what is refused.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.accounting.arithmetic import delta_left
from fedamp.base import ids
from fedamp.base.section import MOST_UNITS
from fedamp.errors import ScenarioError
from fedamp.extension import keys
from fedamp.federation import model_noise
from fedamp.federation.charge import Charge
from fedamp.federation.check_in import Attendance, CheckIn
from fedamp.federation.contracts import charged_as, unchecked_words
from fedamp.federation.kept_answers import ANEW, Answers
from fedamp.federation.norms import ClippingRule, clipping_of
from fedamp.federation.optimizers import ServerOptimizer
from fedamp.federation.private_means import PrivateMeans
from fedamp.federation.scenario import Scenario
from fedamp.federation.submodels import Part, SubmodelScheme
from fedamp.noise import Noise

DUMMY_WORK = 10.0  # all units over the expected cohort, up to which dummies train by default
ADJACENCY = {
    "zero-out": "zero-out: one unit's contribution is present or replaced by zero",
    "substitution": "substitution: one unit's contribution is replaced by any other, zero among them",
}
"""The neighbouring relation of a guarantee, in words."""

Protection = Literal["dummies", "answer_after", "drawn_by_nodes", "none"]
PROTECTIONS: Mapping[str, str] = {
    "dummies": "every node trains all its units in every round",
    "answer_after": "every node answers in every round, after a fixed time",
    "drawn_by_nodes": "every node draws its check-ins, and trains all its units in every round",
    "none": "every node sees who checks in",
}
"""What hides the check-ins of others from a registered node, in words."""

_WITHOUT_SEED = ("coefficients", "noise_multiplier", "sections", "charge")


@dataclass(frozen=True)
class Plan:
    """What a run will do.

    Attributes:
        scenario: as read.
        units: number of privacy units (clients, or records).
        seed: of all draws of the server.
        known_seed: whether ``seed`` is the scenario's, so that anybody who knows it can subtract the noise. A secret
            seed decides who takes part when, and with which submodel; noise is drawn anew for every attempt at a round.
        answers: what the accountant is asked through; one that keeps answers serves no verification.
    """

    scenario: Scenario
    units: int
    seed: int
    known_seed: bool = True
    answers: Answers = ANEW

    @cached_property
    def full_size(self) -> "Plan":
        """The plan whose noise and charge this one rehearses (``privacy.noise_cohort``); itself if it is no rehearsal.
        ScenarioError: no number of units has the cohort that it names.
        """
        asked, rehearsed = self.scenario, self.scenario.privacy.noise_cohort
        if rehearsed is None:
            return self
        check_in = rehearsed.check_in or asked.check_in
        privacy = asked.privacy.model_copy(update={"noise_cohort": None})
        scenario = asked.model_copy(update={"privacy": privacy, "check_in": check_in})
        units = math.ceil(rehearsed.size * self.units / check_in.expected_cohort(asked.rounds, self.units))
        full = replace(self, scenario=scenario, units=units)
        if not max(self.expected_cohort, rehearsed.size * (1 - 1e-9)) <= full.expected_cohort < rehearsed.size + 1:
            raise ScenarioError(
                f"privacy.noise_cohort: {units:,} {asked.privacy.unit}s have cohorts of {full.expected_cohort:g} "
                f"by check_in; expected: {rehearsed.size}, and at least the {self.expected_cohort:g} of the rehearsal"
            )
        return full

    @property
    def rehearsal(self) -> str:
        """What must be said of a rehearsal wherever its epsilon is shown; empty for any other plan."""
        full, unit = self.full_size, self.scenario.privacy.unit
        if full is self:
            return ""
        return f"a rehearsal: not private with {self.units:,} {unit}s; epsilon is for {full.units:,} {unit}s"

    @property
    def unchecked(self) -> str:
        """What must be said, wherever an epsilon is shown, of schemes whose charge nobody has checked; empty: none."""
        return unchecked_words(self.scenario)

    @property
    def noise_deviations(self) -> tuple[float, ...]:
        """Standard deviation of the noise that is added to every coordinate of a sum, by part."""
        smaller = self.expected_cohort / self.full_size.expected_cohort
        return tuple(part.noise_deviation * smaller for part in self.parts)

    @cached_property
    def check_in(self) -> CheckIn:
        """Who checks in when."""
        asked = charged_as(self.scenario.check_in, "check_in", self.scenario.privacy.unchecked)
        return asked.fitted(self.coefficients, self.units)

    @property
    def adjacency(self) -> str:
        """The neighbouring relation of the guarantee, in words."""
        return ADJACENCY[self.check_in.relation]

    @cached_property
    def coefficients(self) -> tuple[float, ...]:
        """c_1, c_2, .. of correlated noise; empty where noise is independent. Choosing them looks at no data."""
        asked = self.scenario
        compared = asked.model_copy(update={"check_in": asked.check_in.stand_in})

        def error(bands: int) -> float:
            return model_noise.error(replace(self, scenario=compared.with_bands(bands)))

        return asked.privacy.noise.coefficients_for(asked.check_in, asked.rounds, self.optimizer, error)

    @cached_property
    def noise(self) -> Noise:
        """What draws the noise."""
        multipliers = [part.noise_multiplier for part in self.parts]
        return self.scenario.privacy.noise.drawn(self.coefficients, multipliers)

    @cached_property
    def agreed(self) -> Any:
        """What the nodes agree on before the run, where the aggregation asks for it, else None.

        Raises:
            ScenarioError: they cannot agree on that.
        """
        try:
            return self.scenario.aggregation.agreed(self)
        except ValueError as error:
            raise ScenarioError(str(error)) from None

    @property
    def nodes_draw(self) -> bool:
        """Whether the nodes draw the check-ins of their units, hidden from the server, which sees no node's sum."""
        return self.scenario.aggregation.hides_sums and self.check_in.drawn_by == "node"

    @cached_property
    def attendance(self) -> Attendance:
        """The cohorts of this run."""
        return Attendance(self.check_in, self.scenario.rounds, self.units, self.seed, self.coins)

    @cached_property
    def coins(self) -> NDArray[np.bool_]:
        """Which canaries are in, where an extension plants some: secret until the run has ended."""
        planted = getattr(self.scenario.privacy, "canaries", 0)
        return rng.happens(rng.stream(self.seed, "canary coins").words(planted), 0.5)

    @cached_property
    def expected_cohort(self) -> float:
        """Expected number of units a round; public."""
        return self.check_in.expected_cohort(self.scenario.rounds, self.units)

    @cached_property
    def submodels(self) -> SubmodelScheme:
        """Which part of the model a unit trains."""
        return charged_as(self.scenario.submodels, "submodels", self.scenario.privacy.unchecked)

    @cached_property
    def clipping(self) -> ClippingRule:
        """How updates are clipped."""
        if self.full_size is not self:
            return self.full_size.clipping
        asked = self.scenario
        share = self.submodels.share(self.units)
        given = (asked.server, asked.rounds, self.expected_cohort, share, asked.client.drift)
        return clipping_of(asked.privacy.clip, *given)

    @cached_property
    def sections(self) -> dict[str, Any]:
        """The optional sections of the scenario by key, each with the numbers that follow from this plan."""
        means = PrivateMeans.of(self.scenario)
        asked = {**({} if means is None else {"data.transform": means}), **self.scenario.sections}
        return {key: section.fitted(self) for key, section in asked.items()}

    @property
    def linf_coordinates(self) -> int:
        """p, where a unit's coordinates are truncated at clip / sqrt(p); 0: they are not."""
        return max((section.truncated_coordinates for section in self.sections.values()), default=0)

    @cached_property
    def optimizer(self) -> ServerOptimizer:
        """How the server applies the noisy mean update."""
        return self.scenario.server.rule()

    @property
    def is_private(self) -> bool:
        """Whether noise is added at all."""
        return self.scenario.privacy.noise_multiplier != 0

    @cached_property
    def noise_multiplier(self) -> float:
        """The scenario's noise multiplier; for ``auto`` the smallest that keeps the budget (ScenarioError: none)."""
        if self.full_size is not self:
            return self.full_size.noise_multiplier
        privacy = self.scenario.privacy
        if privacy.noise_multiplier != "auto":
            return float(privacy.noise_multiplier)
        assert privacy.epsilon is not None, "validated with the scenario"
        try:
            build = partial(self.charge.at, group_size=privacy.group_size)
            return self.answers.noise_multiplier(build, privacy.epsilon, delta_left(privacy.delta), privacy.precision)
        except ValueError as error:
            why = self.charge.beyond(privacy.epsilon, self.scenario.rounds) or error
            raise ScenarioError(f"privacy.noise_multiplier: auto finds none: {why}") from None

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the model with their clipping, noise and denominators."""
        return self.parts_at(self.noise_multiplier)

    def parts_at(self, noise_multiplier: float) -> tuple[Part, ...]:
        """The parts for a noise multiplier of the whole update (or of its split part)."""
        clip = self.clipping.norm(noise_multiplier)
        return self.submodels.parts(clip, noise_multiplier, self.expected_cohort, self.units)

    @cached_property
    def dummies(self) -> bool:
        """Whether a deployment asks every node in every round (``federation.dummies``)."""
        federation = self.scenario.federation
        if federation.dummies != "auto" or not self.check_in.units_are_independent:
            return federation.dummies is True
        alone, work = set(federation.hosted.values()) == {1}, self.units / self.expected_cohort
        return federation.names_units and (alone or federation.answer_after is not None or work <= DUMMY_WORK)

    @cached_property
    def protection(self) -> Protection | None:
        """What makes all that Flower tells a registered node the same for any check-ins of other nodes' units.

        ``none``: nothing does; so it is if a node may claim units of others, because it is told their check-ins, and if
        its own units' check-ins tell of others'. Nodes that draw the check-ins themselves all train all units in every
        round. None: ``federation.hosts`` is missing.
        """
        federation = self.scenario.federation
        if federation.hosts is None:
            return None
        if self.nodes_draw:
            return "drawn_by_nodes"
        if not (self.dummies and federation.names_units and self.check_in.units_are_independent):
            return "none"
        return "dummies" if federation.answer_after is None else "answer_after"

    @cached_property
    def charge(self) -> Charge:
        """What it costs; a rehearsal has the charge of what it rehearses."""
        return Charge(self.full_size)

    def with_seed(self, seed: int) -> "Plan":
        """The same plan with a secret seed; what took long, and depends on no seed, is not computed again."""
        other = replace(self, seed=seed, known_seed=False)
        vars(other).update({name: value for name, value in vars(self).items() if name in _WITHOUT_SEED})
        return other

    @property
    def run(self) -> str:
        """Digest of the seed: runs with one of them share hidden choices. It tells nothing about a secret seed."""
        return rng.keyed_digest(self.seed, "run", ())[:32]

    @property
    def last_round(self) -> int:
        """The last round of the run: the scenario's, or the last one that the budget pays for."""
        return min(self.scenario.rounds, self.charge.affordable_rounds)


def weakness(delta: float, units: int) -> str | None:
    """One line if a delta is too large for the number of units, else None.

    Publishing all data of one unit in a thousand is (0, 0.001)-private. So delta must be well below 1 / units (Dwork,
    Roth 2014, section 2.3).
    """
    if delta <= 1 / units:
        return None
    return (
        f"delta {delta:g} is above 1/units, {1 / units:.3g}: a release that shows all of some unit's data would be as "
        "private; expected: privacy.delta well below it"
    )


def privacy_units(scenario: Scenario) -> int:
    """Number of units in the scenario's data, with as little loading as counting needs."""
    by_record = scenario.privacy.unit == "sample"
    return scenario.data.count_records(Path()) if by_record else scenario.data.count_clients(Path())


def make_plan(scenario: Scenario, units: int, seed: int | None = None, answers: Answers = ANEW) -> Plan:
    """The plan of a scenario for a number of privacy units, with the scenario's seed or a secret one.

    Args:
        answers: what the accountant is asked through; ``KEPT`` where an answer of an earlier process may serve.

    Raises:
        ScenarioError: the expected cohort is below one unit, delta is too small, or units are named that are not there.
    """
    try:
        delta_left(scenario.privacy.delta)
    except ValueError as error:
        raise ScenarioError(f"privacy.{error}") from None
    if scenario.model.local and not keys("local_parameters"):
        raise ScenarioError("model.local: no extension keeps parameters with their client; expected: it is left out")
    if units > MOST_UNITS:
        raise ScenarioError(f"data: {units:,} {scenario.privacy.unit}s; expected: at most {MOST_UNITS:,}")
    plan = Plan(scenario, units, scenario.seed if seed is None else seed, seed is None, answers)
    try:
        scenario.check_in.check_units(units)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    if plan.expected_cohort < 1:
        raise ScenarioError(
            f"check_in: the expected cohort is {plan.expected_cohort:.3g} of {units} {scenario.privacy.unit}s, "
            "so rounds would be empty; expected: at least 1 (raise the rate or k, or use fewer rounds)"
        )
    try:
        if isinstance(scenario.federation.hosts, dict):
            ids.check_known("federation.hosts", scenario.federation.hosts, units)
        for section in plan.sections.values():
            section.check_units(units)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    return plan
