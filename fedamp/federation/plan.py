"""From a scenario to a frozen plan: what happens, and the only place where a number is derived from two others.

What it costs is in :mod:`fedamp.federation.charge`, and what is refused in :mod:`fedamp.federation.refusals`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from fedamp.accounting import calibrate
from fedamp.accounting.arithmetic import delta_left
from fedamp.base.section import Steps
from fedamp.errors import ScenarioError
from fedamp.federation.aggregation import SecureAggregation, Terms
from fedamp.federation.charge import Charge
from fedamp.federation.check_in import Attendance, CheckIn
from fedamp.federation.clipping import ClippingRule, clipping_of
from fedamp.federation.mixing import Mixing
from fedamp.federation.noise import drawn_by
from fedamp.federation.optimizers import ServerOptimizer
from fedamp.federation.scenario import Scenario
from fedamp.federation.submodels import Part, SubmodelScheme
from fedamp.noise.banded import path_noise
from fedamp.noise.independent import Noise

DEFAULT_QUORUM = 0.5  # in a deployment, and with faults; in a simulation fedamp.server.launch requires all clients
DUMMY_WORK = 10.0  # all units over the expected cohort, up to which dummies train by default
ADJACENCY = "zero-out: one unit's contribution is present or replaced by zero"

Protection = Literal["dummies", "answer_after", "drawn_by_nodes", "none"]
PROTECTIONS: Mapping[str, str] = {
    "dummies": "every node trains all its units in every round",
    "answer_after": "every node answers in every round, after a fixed time",
    "drawn_by_nodes": "every node draws its check-ins, and trains all its units in every round",
    "none": "every node sees who checks in",
}
"""What hides the check-ins of others from a registered node, in words."""

_WITHOUT_SEED = ("bands", "noise_multiplier", "charge")


@dataclass(frozen=True)
class Plan:
    """What a run will do.

    Attributes:
        scenario: as read.
        units: number of privacy units (clients, or records).
        seed: of all draws of the server.
        known_seed: whether ``seed`` is the scenario's, so that anybody who knows it can subtract the noise. A secret
            seed decides who takes part when, and with which submodel; noise is drawn anew for every attempt at a round.
    """

    scenario: Scenario
    units: int
    seed: int
    known_seed: bool = True

    @cached_property
    def check_in(self) -> CheckIn:
        """Who checks in when."""
        return self.scenario.check_in.for_noise(self.coefficients)

    @cached_property
    def bands(self) -> int:
        """Rounds over which the noise is correlated, 1 where it is independent. Choosing them looks at no data."""
        asked = self.scenario
        compared = asked.model_copy(update={"check_in": asked.check_in.stand_in})

        def noise_per_clip(bands: int) -> float:
            return replace(self, scenario=compared.with_bands(bands)).noise_per_clip

        return asked.privacy.noise.bands_for(asked.check_in, asked.rounds, noise_per_clip)

    @cached_property
    def coefficients(self) -> tuple[float, ...]:
        """c_1, c_2, .. of banded noise; empty where noise is independent."""
        return self.scenario.privacy.noise.coefficients_for(self.bands, self.optimizer, self.scenario.rounds)

    @cached_property
    def noise(self) -> Noise:
        """What draws the noise."""
        return drawn_by(self.coefficients, [part.noise_multiplier for part in self.parts])

    @cached_property
    def terms(self) -> Terms | None:
        """What the nodes agree on under secure aggregation, else None. ScenarioError: too few nodes."""
        asked = self.scenario
        if not isinstance(asked.aggregation, SecureAggregation):
            return None
        multipliers = tuple(part.noise_multiplier for part in self.parts)
        given = (self.check_in, asked.rounds, self.units, asked.federation)
        try:
            return asked.aggregation.terms(*given, multipliers, self.clipping.count_noise)
        except ValueError as error:
            raise ScenarioError(str(error)) from None

    @property
    def path_noise(self) -> float:
        """Root mean square, over rounds, of the noise in a coordinate of the server's model, in its first part."""
        return self.noise_per_clip * self.parts[0].clip

    @property
    def noise_per_clip(self) -> float:
        """The same over the clipping norm. Plans are compared by it: ``clip: auto`` shortens updates where noise grows,
        and then less noise in the model is no gain.
        """
        part, response = self.parts[0], self.optimizer.response(self.scenario.rounds)
        assert self.noise, "within what is exact"
        return part.noise_multiplier / part.denominator * path_noise(self.coefficients, response)

    @cached_property
    def attendance(self) -> Attendance:
        """The cohorts of this run."""
        return Attendance(self.check_in, self.scenario.rounds, self.units, self.seed)

    @cached_property
    def expected_cohort(self) -> float:
        """Expected number of units a round; public."""
        return self.check_in.expected_cohort(self.scenario.rounds, self.units)

    @property
    def submodels(self) -> SubmodelScheme:
        """Which part of the model a unit trains."""
        return self.scenario.submodels

    @cached_property
    def clipping(self) -> ClippingRule:
        """How updates are clipped."""
        asked = self.scenario
        share = self.submodels.share(self.units)
        given = (asked.server, asked.rounds, self.expected_cohort, share, asked.client.drift)
        return clipping_of(asked.privacy.clip, *given)

    @property
    def mixing(self) -> Mixing | None:
        """ModelMix; None: the server takes each step from the last model."""
        return self.scenario.mixing

    @cached_property
    def charged_widths(self) -> Steps:
        """The width at which ModelMix is charged, by round; empty without it."""
        return self.mixing.charged(self.check_in, self.scenario.rounds) if self.mixing else ()

    @property
    def linf_coordinates(self) -> int:
        """p, where a unit's coordinates are truncated at clip / sqrt(p) (ModelMix); 0: they are not."""
        return self.mixing.linf_coordinates if self.mixing else 0

    @cached_property
    def optimizer(self) -> ServerOptimizer:
        """How the server applies the noisy mean update."""
        return self.scenario.server.rule()

    @property
    def is_private(self) -> bool:
        """Whether noise is added at all."""
        return self.scenario.privacy.noise_multiplier != 0

    @property
    def quorum(self) -> float:
        """Share of a round's cohort that must report for it to be released."""
        asked = self.scenario.federation.quorum
        return DEFAULT_QUORUM if asked is None else asked

    @cached_property
    def noise_multiplier(self) -> float:
        """The scenario's noise multiplier; for ``auto`` the smallest that keeps the budget (ScenarioError: none)."""
        privacy = self.scenario.privacy
        if privacy.noise_multiplier != "auto":
            return float(privacy.noise_multiplier)
        assert privacy.epsilon is not None, "validated with the scenario"
        try:
            build = partial(self.charge.at, group_size=privacy.group_size)
            return calibrate(build, privacy.epsilon, delta_left(privacy.delta), precision=privacy.precision)
        except ValueError as error:
            raise ScenarioError(f"privacy.noise_multiplier: auto finds none: {error}") from None

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the model with their clipping, noise and denominators."""
        return self.parts_at(self.noise_multiplier)

    def parts_at(self, noise_multiplier: float) -> tuple[Part, ...]:
        """The parts for a noise multiplier of the whole update (or of its split part)."""
        clip = self.clipping.norm(noise_multiplier)
        return self.submodels.parts(clip, noise_multiplier, self.expected_cohort, self.units)

    def largest_step(self, part: Part) -> float:
        """The largest distance by which one unit moves a part of the model in a round."""
        return self.optimizer.learning_rate * part.clip / part.denominator

    @cached_property
    def dummies(self) -> bool:
        """Whether a deployment asks every node in every round (``federation.dummies``)."""
        federation = self.scenario.federation
        if federation.dummies != "auto":
            return federation.dummies
        alone, work = set(federation.hosted.values()) == {1}, self.units / self.expected_cohort
        return federation.names_units and (alone or federation.answer_after is not None or work <= DUMMY_WORK)

    @cached_property
    def protection(self) -> Protection | None:
        """What makes all that Flower tells a registered node the same for any check-ins of other nodes' units.

        ``none``: nothing does; so it is if a node may claim units of others, because it is told their check-ins. Nodes
        that draw the check-ins themselves all train all units in every round. None: ``federation.hosts`` is missing.
        """
        federation = self.scenario.federation
        if federation.hosts is None:
            return None
        if self.terms is not None and self.terms.check_in is not None:
            return "drawn_by_nodes"
        if not (self.dummies and federation.names_units):
            return "none"
        return "dummies" if federation.answer_after is None else "answer_after"

    @cached_property
    def charge(self) -> Charge:
        """What it costs."""
        return Charge(self)

    def with_seed(self, seed: int) -> "Plan":
        """The same plan with a secret seed; what took long, and depends on no seed, is not computed again."""
        other = replace(self, seed=seed, known_seed=False)
        vars(other).update({name: value for name, value in vars(self).items() if name in _WITHOUT_SEED})
        return other

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


def make_plan(scenario: Scenario, units: int, seed: int | None = None) -> Plan:
    """The plan of a scenario for a number of privacy units, with the scenario's seed or a secret one.

    Raises:
        ScenarioError: the expected cohort is below one unit, or delta is too small.
    """
    try:
        delta_left(scenario.privacy.delta)
    except ValueError as error:
        raise ScenarioError(f"privacy.{error}") from None
    plan = Plan(scenario, units, scenario.seed if seed is None else seed, seed is None)
    if plan.expected_cohort < 1:
        raise ScenarioError(
            f"check_in: the expected cohort is {plan.expected_cohort:.3g} of {units} {scenario.privacy.unit}s, "
            "so rounds would be empty; expected: at least 1 (raise the rate or k, or use fewer rounds)"
        )
    return plan
