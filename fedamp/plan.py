"""From a scenario to a frozen plan: the only place where a number is derived from two others.

The plan says who checks in when, which part of the model each one trains, how updates are clipped and how much noise
is added, and, from the same facts, the accounting expression of exactly that.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedamp import data, rng, scenario
from fedamp.accounting import (
    Bounds,
    Compose,
    Mechanism,
    NotPrivate,
    Repeat,
    calibrate,
    epsilon_over_rounds,
    group,
)
from fedamp.check_in import Attendance, Cohort, Schedule, schedule_of
from fedamp.errors import ScenarioError
from fedamp.release import MixingRounds, Part, cost_of_round, mixing_rounds, parts_of
from fedamp.scenario import Scenario

ADJACENCY = "add/remove: one unit's contribution is present or replaced by zero"


@dataclass(frozen=True)
class Batch:
    """Units that train stacked together.

    Attributes:
        units: their ids, sorted.
        submodel: which submodel they train; -1 for the whole model.
    """

    units: Cohort
    submodel: int


@dataclass(frozen=True)
class Plan:
    """What a run will do, and what that costs.

    Attributes:
        scenario: what the person asked for.
        units: number of privacy units (clients, or records).
        seed: of everything that the server draws. The scenario's in a simulation, the operating system's in a
            deployment.
        rehearsed: whether ``seed`` is the scenario's, so that anybody who knows it can subtract the noise.
    """

    scenario: Scenario
    units: int
    seed: int
    rehearsed: bool = True

    # --- who, and with what -------------------------------------------------------------------------------------------

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

    def submodels_of(self, round_: int, cohort: Cohort) -> NDArray[np.int64]:
        """The hidden, independent, uniform submodel of every unit of the cohort; -1 for the whole model."""
        submodels = self.scenario.submodels
        if not isinstance(submodels, scenario.DisjointSubmodels):
            return np.full(len(cohort), -1)
        return rng.stream(self.seed, "submodels", round_).integers(0, submodels.count, size=len(cohort))

    def batches(self, round_: int, units_per_batch: int) -> list[Batch]:
        """The round's cohort in the batches in which it trains, about ``units_per_batch`` each.

        They follow from the plan alone, not from who is free, so that results do not depend on the workers. Their
        number follows from the *expected* cohort, and is even, so that two workers get the same work every round.
        """
        cohort = self.attendance.cohort(round_)
        submodels = self.submodels_of(round_, cohort)
        trained = np.unique(submodels)
        wanted = self.expected_cohort / units_per_batch
        pieces = 1 if wanted <= 1 else 2 * math.ceil(wanted / 2)
        pieces = math.ceil(pieces / max(1, len(trained)))
        return [
            Batch(units, int(submodel))
            for submodel in trained
            for units in np.array_split(cohort[submodels == submodel], pieces)
            if len(units)
        ]

    def unit_seeds(self, round_: int, units: Cohort) -> NDArray[np.uint64]:
        """What each unit's own randomness (data order, dropout mask) starts from."""
        return rng.client_seeds(self.seed, "units", round_, units)

    # --- how it is protected ------------------------------------------------------------------------------------------

    @property
    def is_private(self) -> bool:
        """Whether noise is added at all."""
        return self.scenario.privacy.noise_multiplier != 0

    @cached_property
    def noise_multiplier(self) -> float:
        """The scenario's noise multiplier, calibrated to the budget if it says ``auto``."""
        privacy = self.scenario.privacy
        if privacy.noise_multiplier != "auto":
            return float(privacy.noise_multiplier)
        assert privacy.epsilon is not None, "validated with the scenario"
        return self.calibrated(privacy.epsilon, privacy.delta)

    def calibrated(self, epsilon: float, delta: float) -> float:
        """The smallest noise multiplier that keeps the whole run within (epsilon, delta), from the safe side."""
        try:
            return calibrate(self.mechanism_at, epsilon, delta)
        except ValueError as error:
            raise ScenarioError(f"privacy.noise_multiplier: auto finds none: {error}") from None

    @cached_property
    def clip(self) -> float:
        """Clipping norm of a unit's update (of its split part, where the model is split)."""
        clip = self.scenario.privacy.clip
        return clip.initial if isinstance(clip, scenario.AdaptiveClip) else clip

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the model with their clipping, noise and denominators."""
        return self._parts(self.noise_multiplier)

    def _parts(self, noise_multiplier: float) -> tuple[Part, ...]:
        return parts_of(self.scenario, self.clip, noise_multiplier, self.expected_cohort)

    def mixing_at(self, round_: int) -> MixingRounds:
        """How a round of ModelMix mixes."""
        return next(rounds for rounds in reversed(self._mixing) if rounds.first <= round_)

    @cached_property
    def _mixing(self) -> list[MixingRounds]:
        return mixing_rounds(self.scenario)

    # --- what it costs ------------------------------------------------------------------------------------------------

    def mechanism_at(self, noise_multiplier: float) -> Mechanism:
        """The accounting expression of the whole run at a noise multiplier, as the scenario asks to charge it."""
        return self._mechanism_at(noise_multiplier, self.scenario.privacy.group_size)

    def _mechanism_at(self, noise_multiplier: float, group_size: int) -> Mechanism:
        amplified = group(self._charge(noise_multiplier), group_size)
        return amplified if self.scenario.privacy.amplification else amplified.unamplified()

    @cached_property
    def mechanism(self) -> Mechanism:
        """The accounting expression that the ledger charges."""
        return self.mechanism_at(self.noise_multiplier) if self.is_private else NotPrivate()

    @cached_property
    def epsilon(self) -> Bounds:
        """What the whole run costs."""
        return self.mechanism.epsilon(self.scenario.privacy.delta)

    def mechanism_of_group(self, size: int) -> Mechanism:
        """What the whole run costs ``size`` units together, whatever group size the scenario protects."""
        if not self.is_private:
            return NotPrivate()
        return self._mechanism_at(self.noise_multiplier, size)

    @cached_property
    def unamplified_epsilon(self) -> Bounds:
        """What the whole run would cost if none of its randomness were hidden."""
        return self.mechanism.unamplified().epsilon(self.scenario.privacy.delta)

    @cached_property
    def epsilon_by_round(self) -> NDArray[np.float64]:
        """Upper end of what is spent after each round; entry r - 1 is after round r."""
        if not self.is_private:
            return np.full(self.scenario.rounds, np.inf)
        if not self.scenario.privacy.amplification:
            return self.unamplified_epsilon_by_round
        return epsilon_over_rounds(self.mechanism, self.scenario.privacy.delta)

    @cached_property
    def unamplified_epsilon_by_round(self) -> NDArray[np.float64]:
        """As ``epsilon_by_round``, had nothing been hidden: a unit pays for every round it can have taken part in."""
        if not self.is_private:
            return np.full(self.scenario.rounds, np.inf)
        spent = epsilon_over_rounds(self._unamplified_after(self.scenario.rounds), self.scenario.privacy.delta)
        check_ins = [self.schedule.most_check_ins(round_) for round_ in range(1, self.scenario.rounds + 1)]
        return spent[np.array(check_ins) - 1]

    @cached_property
    def affordable_rounds(self) -> int:
        """How many rounds the budget pays for; all of them where there is no budget."""
        budget = self.scenario.privacy.epsilon
        if budget is None:
            return self.scenario.rounds
        return int(np.searchsorted(self.epsilon_by_round, budget, side="right"))

    def spent(self, rounds: int) -> Bounds:
        """What is spent after a number of released rounds."""
        if rounds == 0 or not self.is_private:
            return Bounds(0.0, 0.0, "nothing released") if rounds == 0 else self.epsilon
        amplified = self.scenario.privacy.amplification
        released = self.mechanism.after(rounds) if amplified else self._unamplified_after(rounds)
        bounds, upper = released.epsilon(self.scenario.privacy.delta), float(self.epsilon_by_round[rounds - 1])
        return Bounds(min(bounds.lower, upper), upper, bounds.method)

    def _unamplified_after(self, rounds: int) -> Mechanism:
        round_mechanism = self._round_mechanism(self.noise_multiplier).unamplified()
        once = Repeat(round_mechanism, self.schedule.most_check_ins(rounds))
        return group(once, self.scenario.privacy.group_size)

    def _charge(self, noise_multiplier: float) -> Mechanism:
        """What all rounds cost a unit; rounds of different widths (ModelMix) in their order."""
        widths = list(dict.fromkeys(rounds.charged for rounds in self._mixing))
        if len(widths) < 2:
            return self.schedule.charge(self._round_mechanism(noise_multiplier))
        return Compose(
            tuple(
                schedule_of(self.scenario.check_in, rounds.rounds).charge(
                    self._round_mechanism(noise_multiplier, rounds.charged)
                )
                for rounds in self._mixing
            )
        )

    def _round_mechanism(self, noise_multiplier: float, width: float | None = None) -> Mechanism:
        if width is None and self._mixing:
            width = min(rounds.charged for rounds in self._mixing)
        return cost_of_round(self.scenario, self._parts(noise_multiplier), width)


def privacy_units(scenario_: Scenario) -> int:
    """How many units the scenario's data holds, without loading more than it takes to count them."""
    if scenario_.privacy.unit == "sample":
        return data.count_records(scenario_.data, Path())
    return data.count_clients(scenario_.data, Path())


def make_plan(scenario_: Scenario, units: int, seed: int | None = None) -> Plan:
    """The plan of a scenario for a known number of privacy units.

    Args:
        scenario_: the validated scenario.
        units: number of clients (or of training records, where the unit is a sample).
        seed: of everything that the server draws; left out: the scenario's.

    Raises:
        ScenarioError: where no cohort can be expected to hold a unit, or parts cannot go together.
    """
    plan = Plan(scenario_, units, scenario_.seed if seed is None else seed, rehearsed=seed is None)
    if plan.expected_cohort < 1:
        raise ScenarioError(
            f"check_in: the expected cohort is {plan.expected_cohort:.3g} of {units} {scenario_.privacy.unit}s, "
            "so rounds would be empty; accepted: at least 1 (raise the rate or k, or use fewer rounds)"
        )
    return plan
