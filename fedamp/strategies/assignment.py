"""Who trains what in a round, in which batches and from which seeds: all of it follows from the plan alone."""

import math
from dataclasses import dataclass

import numpy as np

from fedamp import rng
from fedamp.federation.check_in import UnitIds
from fedamp.federation.plan import Plan


@dataclass(frozen=True)
class Batch:
    """Units for which one node is asked: their sorted ids, and the submodel that they train (-1: the whole model)."""

    units: UnitIds
    submodel: int


@dataclass(frozen=True)
class Assignment:
    """A round's cohort in batches, and what each unit's own randomness (data order, dropout mask) starts from."""

    round: int
    batches: list[Batch]
    seed_of: dict[int, bytes]

    @classmethod
    def of(cls, plan: Plan, round_: int, units_per_batch: int) -> "Assignment":
        """A round's cohort in batches of about ``units_per_batch``. How it is cut changes no result.

        Their number follows from the *expected* cohort, and is even, so that two workers get the same work every round.
        """
        cohort = plan.attendance.cohort(round_)
        submodels = plan.submodels.draw(cohort, plan.seed, round_)
        trained = np.unique(submodels)
        wanted = plan.expected_cohort / units_per_batch
        pieces = 1 if wanted <= 1 else 2 * math.ceil(wanted / 2)
        pieces = math.ceil(pieces / max(1, len(trained)))
        batches = [
            Batch(units, int(submodel))
            for submodel in trained
            for units in np.array_split(cohort[submodels == submodel], pieces)
            if len(units)
        ]
        seeds = rng.client_seeds(plan.seed, "units", round_, cohort)
        return cls(round_, batches, dict(zip(cohort.tolist(), seeds.tolist(), strict=True)))
