"""From a scenario to a frozen plan and its cost: the only place where a number is derived from two others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedamp import data
from fedamp.accounting import Bounds, Compose, Mechanism, NotPrivate, Repeat, calibrate, epsilon_over_rounds, group
from fedamp.base.numbers import at_most
from fedamp.errors import ScenarioError
from fedamp.federation.check_in import Attendance, Schedule, schedule_of
from fedamp.federation.clipping import ClippingRule, clipping_of
from fedamp.federation.mixing import MixingRule, mixing_of
from fedamp.federation.optimizers import ServerOptimizer, optimizer_of
from fedamp.federation.scenario import Scenario
from fedamp.federation.submodels import Part, SubmodelScheme, submodels_of
from fedamp.noise.gaussian import delta_left

DEFAULT_QUORUM = 0.5  # in a deployment, and with faults; fedamp.server.launch asks for everybody in a simulation
CURVE = "the curve over rounds: the least that is certified of this round or a later one"
ADJACENCY = "zero-out: one unit's contribution is present or replaced by zero"

Costs = Callable[[], Mapping[str, Any]]
"""Waits for what :meth:`Plan.costs` of another process's plan gives."""

T = TypeVar("T")


def _costly(compute: Callable[[Any], T]) -> cached_property[T]:
    """A cached property that takes long to compute, so a plan first asks ``computed_elsewhere`` for it."""

    @wraps(compute)
    def value(plan: Any) -> T:
        costs = plan.computed_elsewhere() if plan.computed_elsewhere else {}
        # The data may have changed since the other process counted the units.
        return costs[compute.__name__] if costs.get("units") == plan.units else compute(plan)

    return cached_property(value)


@dataclass(frozen=True)
class Plan:
    """What a run will do, and what that costs.

    Attributes:
        scenario: what the person asked for.
        units: number of privacy units (clients, or records).
        seed: of everything that the server draws.
        known_seed: whether ``seed`` is the scenario's, so that anybody who knows it can subtract the noise. A secret
            one decides who takes part when, and with what; noise is drawn anew for every attempt at a round.
        computed_elsewhere: the costs of another plan of the same scenario, which may still be computed.
    """

    scenario: Scenario
    units: int
    seed: int
    known_seed: bool = True
    computed_elsewhere: Costs | None = None

    @cached_property
    def schedule(self) -> Schedule:
        """Who checks in when."""
        return schedule_of(self.scenario.check_in, self.scenario.rounds)

    @cached_property
    def attendance(self) -> Attendance:
        """The cohorts of this run."""
        return Attendance(self.schedule, self.units, self.seed)

    @cached_property
    def expected_cohort(self) -> float:
        """Expected number of units a round; public."""
        return self.schedule.expected_cohort(self.units)

    @cached_property
    def submodels(self) -> SubmodelScheme:
        """Which part of the model a unit trains."""
        return submodels_of(self.scenario.submodels)

    @cached_property
    def clipping(self) -> ClippingRule:
        """How updates are clipped."""
        asked = self.scenario
        return clipping_of(asked.privacy.clip, asked.server, asked.rounds, self.expected_cohort, self.submodels.share)

    @cached_property
    def mixing(self) -> MixingRule:
        """Where a round starts from."""
        return mixing_of(self.scenario.mixing, self.schedule)

    @cached_property
    def optimizer(self) -> ServerOptimizer:
        """What the server does with the noisy mean update."""
        return optimizer_of(self.scenario.server)

    @property
    def is_private(self) -> bool:
        """Whether noise is added at all."""
        return self.scenario.privacy.noise_multiplier != 0

    @property
    def quorum(self) -> float:
        """Share of a round's cohort that must report for it to be released."""
        asked = self.scenario.federation.quorum
        return DEFAULT_QUORUM if asked is None else asked

    @_costly
    def noise_multiplier(self) -> float:
        """The scenario's noise multiplier; where it says ``auto``, the smallest that keeps the budget.

        Raises:
            ScenarioError: none does.
        """
        privacy = self.scenario.privacy
        if privacy.noise_multiplier != "auto":
            return float(privacy.noise_multiplier)
        assert privacy.epsilon is not None, "validated with the scenario"
        try:
            return calibrate(lambda noise: self.mechanism_at(noise, privacy.group_size), privacy.epsilon, self._delta)
        except ValueError as error:
            raise ScenarioError(f"privacy.noise_multiplier: auto finds none: {error}") from None

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the model with their clipping, noise and denominators."""
        return self.parts_at(self.noise_multiplier)

    def parts_at(self, noise_multiplier: float) -> tuple[Part, ...]:
        """The parts, had the whole update (or its split part) this noise multiplier."""
        return self.submodels.parts(self.clipping.norm(noise_multiplier), noise_multiplier, self.expected_cohort)

    def largest_step(self, part: Part) -> float:
        """The most by which one unit moves the model in a round, in a part of it."""
        return self.optimizer.learning_rate * part.clip / part.denominator

    # --- what it costs a unit, or a group of them, as the scenario asks to charge it ----------------------------------

    @cached_property
    def mechanism(self) -> Mechanism:
        """The accounting expression of the whole run, which the ledger charges."""
        return self.mechanism_of_group(self.scenario.privacy.group_size)

    def mechanism_of_group(self, size: int) -> Mechanism:
        """The same for ``size`` units together, whatever group size the scenario protects."""
        return self.mechanism_at(self.noise_multiplier, size) if self.is_private else NotPrivate()

    def mechanism_at(self, noise_multiplier: float, group_size: int) -> Mechanism:
        """What a noise multiplier would make it."""
        charged = self.mixing.charge(self.schedule, lambda width: self._round(noise_multiplier, width))
        amplified = group(charged, group_size)
        return amplified if self.scenario.privacy.amplification else amplified.unamplified()

    def _round(self, noise_multiplier: float, width: float | None) -> Mechanism:
        """What taking part in a round costs; ``width`` as in :class:`fedamp.federation.mixing.MixingRule`."""
        released = []
        for part in self.parts_at(noise_multiplier):
            hidden = self.mixing.hide(part.noise_multiplier, self.largest_step(part), width)
            released.append(self.submodels.charge(part, hidden))
        released += self.clipping.charges()
        return released[0] if len(released) == 1 else Compose(tuple(released))

    def _unamplified(self, rounds: int, noise_multiplier: float) -> Mechanism:
        """The first rounds, had nothing been hidden: a unit pays for every round it can have taken part in."""
        once = self._round(noise_multiplier, self.mixing.smallest_width).unamplified()
        return group(Repeat(once, self.schedule.most_check_ins(rounds)), self.scenario.privacy.group_size)

    def _first(self, rounds: int, noise_multiplier: float) -> Mechanism:
        """The first rounds, as they are charged."""
        if not self.scenario.privacy.amplification:
            return self._unamplified(rounds, noise_multiplier)
        return self.mechanism_at(noise_multiplier, self.scenario.privacy.group_size).after(rounds)

    # --- in numbers ---------------------------------------------------------------------------------------------------

    @_costly
    def planned_epsilon(self) -> Bounds:
        """Of all rounds that the scenario asks for; what a run guarantees is :attr:`guaranteed_epsilon`."""
        return self.mechanism.epsilon(self._delta)

    @_costly
    def unamplified_epsilon(self) -> Bounds:
        """Of the whole run, if none of its randomness were hidden."""
        return self.mechanism.unamplified().epsilon(self._delta)

    @_costly
    def epsilon_by_round(self) -> NDArray[np.float64]:
        """Upper end of what is spent after each round; entry r - 1 is after round r."""
        if not self.is_private or not self.scenario.privacy.amplification:
            return self.unamplified_epsilon_by_round
        return epsilon_over_rounds(self.mechanism, self._delta)

    @cached_property
    def unamplified_epsilon_by_round(self) -> NDArray[np.float64]:
        """As ``epsilon_by_round``, had nothing been hidden."""
        rounds = self.scenario.rounds
        if not self.is_private:
            return np.full(rounds, np.inf)
        spent = epsilon_over_rounds(self._unamplified(rounds, self.noise_multiplier), self._delta)
        check_ins = [self.schedule.most_check_ins(round_) for round_ in range(1, rounds + 1)]
        return np.asarray(spent[np.array(check_ins) - 1])

    @cached_property
    def affordable_rounds(self) -> int:
        """How many rounds the budget pays for; all of them where there is no budget."""
        budget = self.scenario.privacy.epsilon
        return self.scenario.rounds if budget is None else int(np.searchsorted(self.epsilon_by_round, budget, "right"))

    def check_budget(self) -> None:
        """Refuse a budget that pays for no round.

        What the first round costs decides where it can, because the curve over the rounds takes longer.

        Raises:
            ScenarioError: one line with the least noise multiplier that would do.
        """
        privacy = self.scenario.privacy
        budget, noise = privacy.epsilon, privacy.noise_multiplier
        if budget is None or noise == "auto":
            return

        def once(tried: float) -> Bounds:
            return self._first(1, tried).epsilon(self._delta, points=300)

        quick = "epsilon_by_round" not in vars(self) and self.computed_elsewhere is None
        cost = once(noise)
        if (quick and cost.upper <= budget) or (cost.lower <= budget and self.affordable_rounds):
            return
        least = calibrate(lambda tried: self._first(1, tried), budget, self._delta, tolerance=1e-3)
        while once(least).upper > budget:  # calibrated with more points
            least *= 1.001
        raise ScenarioError(
            f"privacy.epsilon: {budget:g} pays for no round with noise_multiplier {noise:g}, of which one costs "
            f"{at_most(cost.upper)}; expected: noise_multiplier at least {at_most(least, 4)} for one round, or auto "
            f"for all {self.scenario.rounds}"
        )

    def costs(self) -> dict[str, Any]:
        """What takes long to compute, by name, for ``computed_elsewhere`` of another plan of the same scenario."""
        names = ("noise_multiplier", "planned_epsilon", "unamplified_epsilon", "epsilon_by_round", "guaranteed_epsilon")
        return {"units": self.units} | {name: getattr(self, name) for name in names}

    @property
    def last_round(self) -> int:
        """The last round that is played: the scenario's, or the last one that the budget pays for."""
        return min(self.scenario.rounds, self.affordable_rounds)

    @_costly
    def guaranteed_epsilon(self) -> Bounds:
        """What all rounds up to the last one cost. It covers a run that is stopped earlier for what it has released.

        A run whose stop depends on its releases alone is a post-processing of the run that goes on to its last round
        (Dwork, Roth 2014, Proposition 2.1). What its rounds cost by themselves (:meth:`spent`) covers a stop that
        depends on nothing that was seen.
        """
        return self._spent(self.last_round)

    def spent(self, rounds: int) -> Bounds:
        """What a number of released rounds cost, had that number been fixed before; the upper end is the ledger's."""
        return self.guaranteed_epsilon if rounds == self.last_round else self._spent(rounds)

    def _spent(self, rounds: int) -> Bounds:
        if rounds == 0:
            return Bounds(0.0, 0.0, "nothing released")
        if not self.is_private:
            return self.planned_epsilon
        released = self._first(rounds, self.noise_multiplier)
        bounds, upper = released.epsilon(self._delta), float(self.epsilon_by_round[rounds - 1])
        method = bounds.method if upper == bounds.upper else CURVE
        return Bounds(min(bounds.lower, upper), upper, method)

    @property
    def _delta(self) -> float:
        """What the scenario's delta leaves for the mechanism: the sampler of the noise is paid first."""
        return delta_left(self.scenario.privacy.delta)


def weakness(delta: float, units: int) -> str | None:
    """What is weak about a delta, in one line; None where nothing is.

    To publish all that one unit in a thousand sent is (0, 0.001)-private. So delta must be well below 1 / units (Dwork,
    Roth 2014, section 2.3).
    """
    if delta <= 1 / units:
        return None
    return (
        f"delta {delta:g} is above 1/units, {1 / units:.3g}: a release that shows all of some unit's data would be as "
        "private; expected without caution: well below it"
    )


def privacy_units(scenario: Scenario) -> int:
    """How many units the scenario's data holds, without loading more than it takes to count them."""
    count = data.count_records if scenario.privacy.unit == "sample" else data.count_clients
    return count(scenario.data, Path())


def make_plan(scenario: Scenario, units: int, seed: int | None = None, computed_elsewhere: Costs | None = None) -> Plan:
    """The plan of a scenario for a number of privacy units, of the scenario's seed or a secret one.

    Raises:
        ScenarioError: no cohort can be expected to hold a unit, or delta is next to nothing.
    """
    try:
        delta_left(scenario.privacy.delta)
    except ValueError as error:
        raise ScenarioError(f"privacy.{error}") from None
    plan = Plan(scenario, units, scenario.seed if seed is None else seed, seed is None, computed_elsewhere)
    if plan.expected_cohort < 1:
        raise ScenarioError(
            f"check_in: the expected cohort is {plan.expected_cohort:.3g} of {units} {scenario.privacy.unit}s, "
            "so rounds would be empty; expected: at least 1 (raise the rate or k, or use fewer rounds)"
        )
    return plan
