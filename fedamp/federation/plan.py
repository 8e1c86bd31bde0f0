"""Derive a frozen plan from a scenario: the only place where a number is derived from two others.

A :class:`Plan` says what happens, a :class:`fedamp.federation.charge.Charge` what that costs. Both come from the same
scheme objects, so they cannot disagree. :mod:`fedamp.federation.refusals` says what is refused. The server plays a plan
(:mod:`fedamp.server.loop`), and :mod:`fedamp.runs.verification` makes it again from a ledger. No records are read here,
except to count units.

>>> from fedamp.federation import reader
>>> content = {"name": "six", "data": {"name": "digits", "clients": 60}, "model": {"name": "mlp"}, "rounds": 60}
>>> content |= {"check_in": {"scheme": "balanced", "k": 6}, "privacy": {"clip": 0.5, "noise_multiplier": 2.0}}
>>> plan = make_plan(reader.load(content), units=60)
>>> plan.expected_cohort, plan.noise_deviations
(6.0, (1.0,))
>>> print(plan.charge.mechanism)
6 hidden rounds of 60 (Gaussian noise of multiplier 2), zero-out
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
from fedamp.extension import all_offered, keys
from fedamp.federation import model_noise
from fedamp.federation.charge import Charge
from fedamp.federation.check_in import Attendance, CheckIn
from fedamp.federation.contracts import charged_scheme, unchecked_words
from fedamp.federation.first_releases import asked_releases
from fedamp.federation.kept_answers import ANEW, Answers
from fedamp.federation.norms import ClippingRule, clipping_of
from fedamp.federation.optimizers import ServerOptimizer
from fedamp.federation.refusals import value_at
from fedamp.federation.scenario import Scenario
from fedamp.federation.side_sums import SideSum, side_sum_of
from fedamp.federation.submodels import Part, SubmodelScheme
from fedamp.noise import Noise

DUMMY_WORK = 10.0  # all units over the expected cohort, up to which dummies train by default
ADJACENCY = {
    "zero-out": "zero-out: one unit's contribution is present or replaced by zero",
    "substitution": "substitution: one unit's contribution is replaced by any other, zero among them",
}
"""Neighbouring relation of a guarantee, in the words of ledgers and reports."""

Protection = Literal["dummies", "answer_after", "drawn_by_nodes", "none"]
PROTECTIONS: Mapping[str, str] = {
    "dummies": "every node trains all its units in every round",
    "answer_after": "every node answers in every round, after a fixed time",
    "drawn_by_nodes": "every node draws its check-ins, and trains all its units in every round",
    "none": "every node sees who checks in",
}
"""Words for what hides the check-ins of other units from a registered node."""

_WITHOUT_SEED = ("coefficients", "noise_multiplier", "sections", "charge")


@dataclass(frozen=True)
class Plan:
    """The whole course of a run: who takes part when, with which part of the model, norm and noise.

    It is frozen, and every further number is computed from it when it is first asked for. Public numbers and secrets
    stand side by side: ``seed``, ``attendance`` and ``canary_coins`` must not leave the server.

    Attributes:
        scenario: as read.
        units: number of privacy units (clients, or records), at least 1.
        seed: the seed of all draws of the server.
        known_seed: whether ``seed`` is the scenario's, so that anybody who knows it can subtract the noise. A secret
            seed decides who takes part when, and with which submodel; noise is drawn anew for every attempt at a round.
        answers: the accountant's answers; one that keeps answers serves no verification.
    """

    scenario: Scenario
    units: int
    seed: int
    known_seed: bool = True
    answers: Answers = ANEW

    @cached_property
    def full_size(self) -> "Plan":
        """Return the plan whose noise and charge this one rehearses (``privacy.noise_cohort``), else the plan itself.

        The rehearsed federation has as many units as its cohort needs. Its cohort is at least this plan's one, so the
        rehearsal adds no more noise to the sum than its full size would.

        Raises:
            ScenarioError: no number of units has the cohort that the key names.
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
        """Return the words that must accompany every epsilon of a rehearsal; empty for any other plan."""
        full, unit = self.full_size, self.scenario.privacy.unit
        if full is self:
            return ""
        return f"a rehearsal: not private with {self.units:,} {unit}s; epsilon is for {full.units:,} {unit}s"

    @property
    def unchecked_schemes(self) -> str:
        """Return the words that must accompany every epsilon if nobody has checked a scheme's charge, else nothing."""
        return unchecked_words(self.scenario)

    @property
    def noise_deviations(self) -> tuple[float, ...]:
        """Standard deviation of the noise on every coordinate of a sum, by part (norm x multiplier).

        A rehearsal adds less, in proportion to its cohort, so its mean update has the noise of the full size.
        """
        smaller = self.expected_cohort / self.full_size.expected_cohort
        return tuple(part.noise_deviation * smaller for part in self.parts)

    @cached_property
    def check_in(self) -> CheckIn:
        """The check-in scheme of the run, fitted to its units and noise; it draws the cohorts, and it is charged.

        A scheme of another package is charged without amplification unless its contract has passed
        (:mod:`fedamp.federation.contracts`).
        """
        fitted = self.scenario.check_in.fitted_to(self.coefficients, self.units)
        return charged_scheme(fitted, "check_in", self.scenario)

    @property
    def adjacency(self) -> str:
        """Neighbouring relation of the guarantee, in words."""
        return ADJACENCY[self.check_in.relation]

    @cached_property
    def coefficients(self) -> tuple[float, ...]:
        """Coefficients c_1, c_2, .. of correlated noise; empty where noise is independent.

        Choosing them compares costs and noise, and looks at no data.
        """
        asked = self.scenario
        compared = asked.model_copy(update={"check_in": asked.check_in.stand_in})

        def error_of_bands(bands: int) -> float:
            return model_noise.noise_criterion(replace(self, scenario=compared.with_bands(bands)))

        return asked.privacy.noise.coefficients_for(asked.check_in, asked.rounds, self.optimizer, error_of_bands)

    @cached_property
    def noise(self) -> Noise:
        """Mechanism that draws the noise of each round, independent or correlated."""
        multipliers = [part.noise_multiplier for part in self.parts]
        scheme = self.scenario.privacy.noise.fitted_to(self.scenario.check_in, self.scenario.rounds)
        return scheme.noise_of(self.coefficients, multipliers)

    @cached_property
    def agreed_terms(self) -> Any:
        """Terms on which the nodes agree before the run, where the aggregation asks for it, else None.

        Raises:
            ScenarioError: the nodes cannot agree on such terms.
        """
        try:
            return self.scenario.aggregation.agreed_terms(self)
        except ValueError as error:
            raise ScenarioError(str(error)) from None

    @property
    def nodes_draw(self) -> bool:
        """Say whether the nodes draw the check-ins of their units, hidden from the server, which sees no node's sum."""
        return self.scenario.aggregation.hides_sums and self.check_in.drawn_by == "node"

    @cached_property
    def attendance(self) -> Attendance:
        """Cohorts of this run, drawn from the seed; secret until the run has ended."""
        return Attendance(self.check_in, self.scenario.rounds, self.units, self.seed, self.canary_coins)

    @cached_property
    def canary_coins(self) -> NDArray[np.bool_]:
        """Coins of the canaries, where an extension plants some; True is in. They are secret until the run ends."""
        planted = getattr(self.scenario.privacy, "canaries", 0)
        return rng.happens(rng.stream(self.seed, "canary coins").words(planted), 0.5)

    @cached_property
    def expected_cohort(self) -> float:
        """Expected number of units a round. It is public, and the denominators of the mean update follow from it."""
        return self.check_in.expected_cohort(self.scenario.rounds, self.units)

    @cached_property
    def submodels(self) -> SubmodelScheme:
        """Submodel scheme: which part of the model a unit trains, and how much hiding that saves."""
        return charged_scheme(self.scenario.submodels, "submodels", self.scenario)

    @cached_property
    def clipping(self) -> ClippingRule:
        """Clipping rule of updates; a rehearsal has that of its full size."""
        if self.full_size is not self:
            return self.full_size.clipping
        asked = self.scenario
        share = self.submodels.training_share(self.units)
        given = (asked.server, asked.rounds, self.expected_cohort, share, asked.client.largest_drift)
        return clipping_of(asked.privacy.clip, *given)

    @cached_property
    def sections(self) -> dict[str, Any]:
        """Optional sections of the scenario by key, each with the numbers that follow from this plan.

        First releases come first, under their paths. The charge asks the sections in this order.
        """
        asked = {each.path: each for each in asked_releases(self.scenario)} | self.scenario.sections
        return {key: section.fitted_to(self) for key, section in asked.items()}

    @cached_property
    def side_sum(self) -> SideSum | None:
        """Section for which rounds add up more than the model's updates; None: there is none."""
        return side_sum_of(self.sections.values())

    @property
    def linf_coordinates(self) -> int:
        """Number p, where a unit's coordinates are truncated at clip / sqrt(p); 0: they are not."""
        return max((section.truncated_coordinates for section in self.sections.values()), default=0)

    @cached_property
    def optimizer(self) -> ServerOptimizer:
        """Optimizer by which the server applies the noisy mean update."""
        rule = self.scenario.server.rule()
        for key, changed in all_offered("server_rules"):
            rule = changed(self.scenario, self.units, rule) if value_at(self.scenario, key) else rule
        return rule

    @property
    def is_private(self) -> bool:
        """Say whether noise is added at all."""
        return self.scenario.privacy.noise_multiplier != 0

    @cached_property
    def noise_multiplier(self) -> float:
        """Noise multiplier of the whole update, or of its split part; for ``auto`` the smallest that keeps the budget.

        Raises:
            ScenarioError: no multiplier keeps it; the line names the keys that cost more.
        """
        if self.full_size is not self:
            return self.full_size.noise_multiplier
        privacy = self.scenario.privacy
        if privacy.noise_multiplier != "auto":
            return float(privacy.noise_multiplier)
        assert privacy.epsilon is not None, "validated with the scenario"
        try:
            build = partial(self.charge.with_noise, group_size=privacy.group_size)
            return self.answers.noise_multiplier(build, privacy.epsilon, delta_left(privacy.delta), privacy.precision)
        except ValueError as error:
            why = self.charge.keys_beyond(privacy.epsilon, self.scenario.rounds) or error
            raise ScenarioError(f"privacy.noise_multiplier: auto finds none: {why}") from None

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Parts of the model with their clipping norms, noise and denominators; a ledger records them."""
        return self.parts_at(self.noise_multiplier)

    def parts_at(self, noise_multiplier: float) -> tuple[Part, ...]:
        """Make the parts for another noise multiplier.

        Args:
            noise_multiplier: that of the whole update, or of its split part; ``clip: auto`` follows from it.
        """
        clip = self.clipping.first_norm(noise_multiplier)
        return self.submodels.parts(clip, noise_multiplier, self.expected_cohort, self.units)

    @cached_property
    def asks_every_node(self) -> bool:
        """Say whether a deployment asks every node in every round (``federation.dummies``).

        With ``auto`` it does where units check in independently, ``hosts`` names them all, and dummies are cheap: one
        unit a node, at most ten times the work of the cohort, or a fixed time for answers.
        """
        federation = self.scenario.federation
        if federation.dummies != "auto" or not self.check_in.units_are_independent:
            return federation.dummies is True
        alone, work = set(federation.hosted_units.values()) == {1}, self.units / self.expected_cohort
        return federation.names_units and (alone or federation.answer_after is not None or work <= DUMMY_WORK)

    @cached_property
    def protection(self) -> Protection | None:
        """Reason why Flower's traffic tells a registered node nothing of other nodes' check-ins; ``none`` if it does.

        It is ``none`` if a node may claim units of others, because it is then told their check-ins. It is ``none``,
        too, if the check-ins of a node's own units tell of others'. Nodes that draw the check-ins themselves all train
        all units in every round. None: ``federation.hosts`` is missing, so there are no registered nodes.
        """
        federation = self.scenario.federation
        if federation.hosts is None:
            return None
        if self.nodes_draw:
            return "drawn_by_nodes"
        if not (self.asks_every_node and federation.names_units and self.check_in.units_are_independent):
            return "none"
        return "dummies" if federation.answer_after is None else "answer_after"

    @cached_property
    def charge(self) -> Charge:
        """Cost of the plan; a rehearsal has the charge of what it rehearses."""
        return Charge(self.full_size)

    def with_seed(self, seed: int) -> "Plan":
        """Copy the plan with a secret seed; what took long, and depends on no seed, is not computed again.

        Args:
            seed: from the operating system (:func:`fedamp.rng.seed_from_system`), or that of a run that is resumed.
        """
        other = replace(self, seed=seed, known_seed=False)
        vars(other).update({name: value for name, value in vars(self).items() if name in _WITHOUT_SEED})
        return other

    @property
    def run_digest(self) -> str:
        """Digest of the seed, 32 hexadecimal letters; runs with the same one share hidden choices.

        It is keyed by the seed itself, so it tells nothing about a secret seed.
        """
        return rng.keyed_digest(self.seed, "run", ())[:32]

    @property
    def last_round(self) -> int:
        """Last round of the run: the scenario's, or the last one that the budget pays for; 0 if it pays for none."""
        return min(self.scenario.rounds, self.charge.affordable_rounds)


def weak_delta(delta: float, units: int) -> str | None:
    """Write one line if a delta is too large for the number of units; None if it is not.

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
    """Count the units in a scenario's data, with as little loading as counting needs.

    Args:
        scenario: its ``privacy.unit`` says whether clients or records are counted.

    Raises:
        DataError: the data cannot be read.
    """
    by_record = scenario.privacy.unit == "sample"
    return scenario.data.count_records(Path()) if by_record else scenario.data.count_clients(Path())


def make_plan(scenario: Scenario, units: int, seed: int | None = None, answers: Answers = ANEW) -> Plan:
    """Make the plan of a scenario for a number of privacy units, with the scenario's seed or a secret one.

    Nothing that takes long is computed yet: noise multiplier and costs follow when they are asked for.

    Args:
        scenario: validated.
        units: number of privacy units, as :func:`privacy_units` counts them.
        seed: a secret seed; default: the scenario's, which is public, and then ``known_seed`` is set.
        answers: the accountant's answers; ``KEPT`` where an answer of an earlier process may serve.

    Raises:
        ScenarioError: the expected cohort is below one unit, delta is too small, there are too many units, or a key
            names units that are not there.
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
