"""From a scenario to a frozen plan, and to its charge: the only place where a number is derived from two others.

A :class:`Plan` is what happens, a :class:`Charge` what that costs. What is refused: :mod:`fedamp.federation.refusals`.
From the noise multiplier to the charge: :meth:`Plan.parts_at` (clip, noise and denominator of each part), then
:meth:`Charge.of_a_round` (the cost of taking part in a round), then :meth:`Charge.at` (the cost of all rounds).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.accounting import (
    Bounds,
    Compose,
    Gaussian,
    Mechanism,
    NotPrivate,
    Repeat,
    calibrate,
    group,
)
from fedamp.accounting.arithmetic import delta_left
from fedamp.accounting.bounds import Method
from fedamp.accounting.verify import ahead_of_rounds, before_rounds
from fedamp.base import ids
from fedamp.base.numbers import at_most
from fedamp.base.section import MOST_UNITS
from fedamp.errors import ScenarioError
from fedamp.extension import keys
from fedamp.federation.check_in import Attendance, CheckIn
from fedamp.federation.contracts import charged_as, unchecked_words
from fedamp.federation.kept_answers import ANEW, Answers
from fedamp.federation.norms import ClippingRule, clipping_of
from fedamp.federation.optimizers import ServerOptimizer
from fedamp.federation.optional import Kind
from fedamp.federation.private_means import PrivateMeans
from fedamp.federation.scenario import Scenario
from fedamp.federation.submodels import Part, SubmodelScheme
from fedamp.noise import Noise, mean_noise

DEFAULT_QUORUM = 0.5  # in a deployment, and with faults; in a simulation fedamp.server.launch requires all clients
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
            return replace(self, scenario=compared.with_bands(bands)).error_of_noise

        return asked.privacy.noise.coefficients_for(asked.check_in, asked.rounds, self.optimizer, error)

    @property
    def bands(self) -> int:
        """Rounds over which the noise is correlated, 1 where it is independent."""
        return len(self.coefficients) + 1

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

    @property
    def path_noise(self) -> float:
        """Root mean square, over rounds, of the noise in a coordinate of the server's model, in its first part."""
        return self.noise_per_clip * self.parts[0].clip

    @property
    def noise_per_clip(self) -> float:
        """The same over the clipping norm: ``clip: auto`` shortens updates where noise grows, and then less noise in
        the model is no gain.
        """
        return self._noise_per_clip(self.optimizer.response(self.scenario.rounds))

    @property
    def error_of_noise(self) -> float:
        """What numbers of bands are compared by: the noise in the models, with ``clip: auto`` times the root of the
        noise multiplier.

        The noise is the geometric mean over the model that clients start from and the released one: an average hides
        noise that clients train on. Training pulls the model back before the noise of later rounds cancels that of
        one, so that much noise a round is worse. ``clip: auto`` shortens updates by the same root, up to where they are
        as long as may be; docs/correlated-noise.md has the measurements.
        """
        noise = self._noise_per_clip(*self.optimizer.responses(self.scenario.rounds)) * self.parts[0].clip
        return noise * (math.sqrt(self.noise_multiplier) if self.clipping.normalises else 1.0)

    def _noise_per_clip(self, *responses: NDArray[np.float64]) -> float:
        part = self.full_size.parts[0]
        assert self.noise, "within what is exact"
        return part.noise_multiplier / part.denominator * mean_noise(self.coefficients, *responses)

    @cached_property
    def attendance(self) -> Attendance:
        """The cohorts of this run."""
        return Attendance(self.check_in, self.scenario.rounds, self.units, self.seed, self.coins)

    @cached_property
    def coins(self) -> NDArray[np.bool_]:
        """Which canaries are in (``privacy.canaries``): secret until the run has ended."""
        return rng.happens(rng.stream(self.seed, "canary coins").words(self.scenario.privacy.canaries), 0.5)

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

    @property
    def quorum(self) -> float:
        """Share of a round's cohort that must report for it to be released."""
        asked = self.scenario.federation.quorum
        return DEFAULT_QUORUM if asked is None else asked

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
    def charge(self) -> "Charge":
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


Kinds = Mapping[str, Kind]
"""A kind of rounds, by the key of the section that tells it apart."""


@dataclass(frozen=True)
class Charge:
    """The cost of a plan for a unit, or for a group of units, as the scenario asks to charge it; no seed changes it."""

    plan: "Plan"

    @cached_property
    def mechanism(self) -> Mechanism:
        """The accounting expression of the whole run, which the ledger charges."""
        return self.of_group(self._group_size)

    def of_group(self, size: int) -> Mechanism:
        """The same for ``size`` units together, whatever group size the scenario protects."""
        return self.at(self.plan.noise_multiplier, size) if self.plan.is_private else NotPrivate()

    def at(self, noise_multiplier: float, group_size: int, capacity: str | None = None) -> Mechanism:
        """The same for another noise multiplier; for a unit of a class of devices, default: that pays the most."""
        plan = self.plan
        charged = [
            plan.check_in.charge(self.of_a_round(noise_multiplier, kinds, capacity), rounds)
            for kinds, rounds in self._rounds_by_kind
        ]
        amplified = group(_together([*self._beside, *charged]), group_size)
        assert amplified.relation == plan.check_in.relation, "the ledger names the relation that is charged"
        return amplified if plan.scenario.privacy.amplification else amplified.unamplified()

    @property
    def _rounds_by_kind(self) -> list[tuple[Kinds, int]]:
        """The kinds of rounds by section, and how many rounds each has, in the order in which they are charged."""
        sections, rounds = self.plan.sections, self._rounds
        found = {key: section.kinds(self.plan) for key, section in sections.items()}
        several = [key for key, kinds in found.items() if len(kinds) > 1]
        if len(several) > 1:
            raise ScenarioError(f"{several[0]} and {several[1]}: both tell rounds apart; expected: one of them")
        alike = {key: kinds[0][0] for key, kinds in found.items()}
        return [(alike | {key: kind}, number) for key in several for kind, number in found[key]] or [(alike, rounds)]

    @property
    def _beside(self) -> list[Mechanism]:
        """Releases of all units: each cost includes them from the first round on."""
        return [release for section in self.plan.sections.values() for release in section.beside(self.plan)]

    def of_a_round(self, noise_multiplier: float, kinds: Kinds, capacity: str | None = None) -> Mechanism:
        """The cost of taking part in a round of these kinds."""
        plan, released = self.plan, []
        for part in plan.parts_at(noise_multiplier):
            release: Mechanism = Gaussian(part.noise_multiplier)
            for key, section in plan.sections.items():
                release = section.wrap(plan, part, release, kinds[key])
            released.append(plan.submodels.charge(part, release, capacity))
        released += plan.clipping.charges()
        for key, section in plan.sections.items():
            released += section.beside_model(plan, kinds[key])
        return _together(released)

    def _unamplified(self, rounds: int, noise_multiplier: float) -> Mechanism:
        """The first rounds without amplification: a unit pays for every round that it can have taken part in."""
        dearest = {key: section.dearest(self.plan) for key, section in self.plan.sections.items()}
        check_in, round_ = self.plan.check_in, self.of_a_round(noise_multiplier, dearest)
        known: Mechanism = Repeat(check_in.shown(round_), check_in.most_check_ins(rounds, self._rounds))
        if not self.plan.scenario.privacy.noise.costs_add_up:
            known = check_in.charge(round_, self._rounds).after(rounds).unamplified()
        return group(_together([*self._beside, known]), self._group_size)

    def _first(self, rounds: int, noise_multiplier: float) -> Mechanism:
        """The first rounds, as they are charged."""
        if not self.plan.scenario.privacy.amplification:
            return self._unamplified(rounds, noise_multiplier)
        return self.beginning(self.at(noise_multiplier, self._group_size), rounds)

    def beginning(self, whole: Mechanism, rounds: int) -> Mechanism:
        """The first rounds of :meth:`at`, with the evaluation at the end; all of it where it spans no rounds."""
        ahead = ahead_of_rounds(whole, len(self._beside))
        return whole.after(rounds + ahead) if whole.span == self._rounds + ahead else whole

    def for_person(self, units: int, noise_multiplier: float | None = None) -> Mechanism:
        """The cost for a person with so many units, of all rounds that the run may come to; with another noise
        multiplier, of all rounds of the scenario.
        """
        if noise_multiplier is not None:
            return self.beginning(self.at(noise_multiplier, units), self._rounds)
        return self.beginning(self.at(self.plan.noise_multiplier, units), self.plan.last_round)

    @property
    def server_mechanism(self) -> Mechanism | None:
        """The cost for who runs the server, together with the colluding nodes; None: the server sees everything.

        The server sees the noisy sums, as everybody does, and who is asked, unless the nodes draw that themselves.
        """
        hides_sums = self.plan.scenario.aggregation.hides_sums
        return self._charged_to(self.plan.nodes_draw) if hides_sums else None

    @property
    def nodes_mechanism(self) -> Mechanism | None:
        """The cost for a registered node, of units of other nodes; None: ``federation.hosts`` names no nodes.

        Flower tells every registered node the traffic of all nodes (``GetRun``), and so who is asked, and when.
        """
        protection = self.plan.protection
        return None if protection is None else self._charged_to(protection != "none")

    def _charged_to(self, hidden: bool) -> Mechanism:
        """The cost for somebody from whom the check-ins are hidden, or who sees them."""
        if hidden or not self.plan.is_private:
            return self.mechanism
        return self._unamplified(self._rounds, self.plan.noise_multiplier)

    # --- in numbers ---------------------------------------------------------------------------------------------------

    @cached_property
    def planned_epsilon(self) -> Bounds:
        """Of all rounds of the scenario; the guarantee of a run is :attr:`guaranteed_epsilon`."""
        return self._epsilon(self.mechanism)

    @cached_property
    def epsilon_by_capacity(self) -> dict[str, Bounds]:
        """The same for a unit of each public class of devices, the most first; empty where all pay alike."""
        noise, names = self.plan.noise_multiplier, self.plan.submodels.capacities if self.plan.is_private else ()
        return {name: self._epsilon(self.at(noise, self._group_size, name)) for name in names}

    @cached_property
    def unamplified_epsilon(self) -> Bounds:
        """Of the whole run, without amplification."""
        return self._epsilon(self.mechanism.unamplified())

    @cached_property
    def server_epsilon(self) -> Bounds | None:
        """Of :attr:`server_mechanism`, for all rounds of the scenario."""
        return self._of(self.server_mechanism)

    @cached_property
    def nodes_epsilon(self) -> Bounds | None:
        """Of :attr:`nodes_mechanism`, for all rounds of the scenario."""
        return self._of(self.nodes_mechanism)

    @cached_property
    def epsilon_by_round(self) -> NDArray[np.float64]:
        """Upper end of epsilon after each round; entry r - 1 is after round r."""
        if not self.plan.is_private or not self.plan.scenario.privacy.amplification:
            return self.unamplified_epsilon_by_round
        ahead = ahead_of_rounds(self.mechanism, len(self._beside))
        if self.mechanism.span != self._rounds + ahead:  # its steps are no rounds: all of it is paid from the first on
            return np.minimum(self.planned_epsilon.upper, self.unamplified_epsilon_by_round)
        rounds, precision = range(1 + ahead, self._rounds + ahead + 1), self.plan.scenario.privacy.precision
        return self.plan.answers.over_rounds(self.mechanism, self._delta, rounds, precision)

    @cached_property
    def unamplified_epsilon_by_round(self) -> NDArray[np.float64]:
        """Like ``epsilon_by_round``, without amplification."""
        if not self.plan.is_private:
            return np.full(self._rounds, np.inf)
        noise = self.plan.noise_multiplier
        if not self.plan.scenario.privacy.noise.costs_add_up:
            known_at = (self._unamplified(round_, noise) for round_ in range(1, self._rounds + 1))
            return np.array([each.epsilon(self._delta).upper for each in known_at])
        known = self._unamplified(self._rounds, noise)
        most = [self.plan.check_in.most_check_ins(round_, self._rounds) for round_ in range(1, self._rounds + 1)]
        ahead = ahead_of_rounds(known, len(self._beside))
        rounds = range(1 + ahead, most[-1] + ahead + 1)
        spent = self.plan.answers.over_rounds(known, self._delta, rounds)
        return np.asarray(spent[np.array(most) - 1])

    @cached_property
    def affordable_rounds(self) -> int:
        """Number of rounds that the budget pays for; all of them without a budget."""
        budget = self.plan.scenario.privacy.epsilon
        return self._rounds if budget is None else int(np.searchsorted(self.epsilon_by_round, budget, "right"))

    @cached_property
    def guaranteed_epsilon(self) -> Bounds:
        """The cost of all rounds up to the last one. It covers a run whose stop depends on its releases.

        Such a run is a post-processing of the run that continues to its last round (Dwork, Roth 2014, Proposition 2.1).
        The cost of the released rounds alone (:meth:`spent`) covers a stop that is independent of the data.
        """
        return self._spent(self.plan.last_round)

    def spent(self, rounds: int) -> Bounds:
        """The cost of a number of rounds that was fixed beforehand; the ledger charges the upper end. 0: of what leaves
        the server before the first round.
        """
        return self.guaranteed_epsilon if rounds == self.plan.last_round else self._spent(rounds)

    def compute(self) -> None:
        """Compute now what takes long."""
        for name in ("planned_epsilon", "unamplified_epsilon", "guaranteed_epsilon", "server_epsilon", "nodes_epsilon"):
            getattr(self, name)

    def beyond(self, budget: float, rounds: int) -> str | None:
        """Which keys cost more than a budget in the first ``rounds``, alone and together, with any noise multiplier;
        None: they do not.
        """
        asked = self.plan.scenario

        def cost(*left_out: Mapping[str, Any]) -> float:
            scenario = asked.model_copy(update={key: value for each in left_out for key, value in each.items()})
            charge = replace(self.plan, scenario=scenario).charge
            return charge._first(rounds, 1e18).epsilon(self._delta, points=300).upper

        if (together := cost()) <= budget:
            return None
        without: dict[str, Mapping[str, Any]] = {
            key: changes
            for section in reversed(self.plan.sections.values())
            for key, changes in section.costs_without(asked).items()
        }
        without |= {
            "privacy.clip.noise_multiplier": {"privacy": asked.privacy.model_copy(update={"clip": 1.0})},
            "submodels.shared_noise_multiplier": {
                "submodels": asked.submodels.model_copy(update={"shared_noise_multiplier": "same"})
            },
        }
        alone = {key: cost(*(each for other, each in without.items() if other != key)) for key in without}
        least = cost(*without.values()) + budget / 100  # noise without bands costs something at any multiplier
        words = [f"{key} costs {at_most(each)}" for key, each in alone.items() if each > least]
        joint = f"; together they cost {at_most(together)}" if len(words) > 1 else ""
        return (
            f"{', '.join(words)}{joint}; expected: more noise there, or privacy.epsilon above that" if words else None
        )

    def check_budget(self) -> None:
        """Refuse (ScenarioError) a budget that pays for no round, with the smallest noise multiplier that suffices.

        The cost of the first round often decides, and it is quicker to compute than the curve over the rounds.
        """
        privacy = self.plan.scenario.privacy
        budget, noise = privacy.epsilon, privacy.noise_multiplier
        if budget is None or noise == "auto":
            return

        def once(tried: float) -> Bounds:
            return self._first(1, tried).epsilon(self._delta, points=300)

        quick = "epsilon_by_round" not in vars(self)
        cost = once(noise)
        if (quick and cost.upper <= budget) or (cost.lower <= budget and self.affordable_rounds):
            return
        try:
            least = calibrate(lambda tried: self._first(1, tried), budget, self._delta, tolerance=1e-3)
        except ValueError:
            why = self.beyond(budget, 1) or "other releases cost more"
            raise ScenarioError(
                f"privacy.epsilon: {budget:g} pays for no round with any noise_multiplier: {why}"
            ) from None
        while once(least).upper > budget:  # calibrated with more points
            least *= 1.001
        raise ScenarioError(
            f"privacy.epsilon: {budget:g} pays for no round with noise_multiplier {noise:g}: one round costs "
            f"{at_most(cost.upper)}; expected: noise_multiplier at least {at_most(least, 4)} for one round, or auto "
            f"for all {self._rounds}"
        )

    def _of(self, mechanism: Mechanism | None) -> Bounds | None:
        if mechanism is None:
            return None
        return self.planned_epsilon if mechanism is self.mechanism else self._epsilon(mechanism)

    def _spent(self, rounds: int) -> Bounds:
        if not self.plan.is_private:
            return self.planned_epsilon
        if rounds == 0:
            return self._epsilon(before_rounds(self.mechanism, len(self._beside)))
        bounds = self._epsilon(self._first(rounds, self.plan.noise_multiplier))
        upper = float(self.epsilon_by_round[rounds - 1])
        # Where a step of the charge is no round, no lower end of the first rounds is known.
        of_all = self.mechanism.span < self._rounds and rounds < self._rounds
        return Bounds(
            0.0 if of_all else min(bounds.lower, upper),
            upper,
            bounds.origin if upper == bounds.upper else Method.CURVE.of(),
        )

    def _epsilon(self, mechanism: Mechanism) -> Bounds:
        return self.plan.answers.epsilon(mechanism, self._delta, self.plan.scenario.privacy.precision)

    @property
    def _delta(self) -> float:
        """The part of the scenario's delta for the mechanism: the sampler of the noise takes the rest."""
        return delta_left(self.plan.scenario.privacy.delta)

    @property
    def _rounds(self) -> int:
        return self.plan.scenario.rounds

    @property
    def _group_size(self) -> int:
        return self.plan.scenario.privacy.group_size


def _together(releases: Sequence[Mechanism]) -> Mechanism:
    return releases[0] if len(releases) == 1 else Compose(tuple(releases))


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
