"""Check in batches of a fixed size, drawn anew in each round.

The scheme is :class:`BatchesCheckIn`; :mod:`fedamp.federation.check_in` has its base and what each method promises.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from pydantic import Field

from fedamp import rng
from fedamp.base.arrays import Floats
from fedamp.base.section import Count
from fedamp.base.start import Later
from fedamp.federation import facts
from fedamp.federation.check_in import USUAL_FACTS, IndependentRounds, PoissonCheckIn, UnitIds

if TYPE_CHECKING:
    from fedamp import accounting
    from fedamp.accounting import Mechanism
else:
    accounting = Later("fedamp.accounting")  # as in fedamp.federation.check_in


class BatchesCheckIn(IndependentRounds):
    """In every round a cohort of exactly ``size`` units, drawn uniformly without replacement, anew.

    Formal guarantees: every set of ``size`` units is equally likely in every round, independently over rounds. The
    cohort holds one more of the others where a unit is not in it, so neighbours differ by **substitution** of a unit's
    contribution by another one, up to twice the clipping norm away; zeroing it is a case.
    """

    scheme: Literal["batches"]
    size: Count = Field(examples=[3], description="number of units in every round, drawn without replacement")
    keeps = USUAL_FACTS - {facts.UNITS_INDEPENDENT}
    relation = "substitution"
    before = "capped-poisson"
    _units: int = 0

    def check_units(self, units: int) -> None:
        """Refuse a batch that is larger than the number of units.

        Raises:
            ValueError: it is.
        """
        if self.size > units:
            raise ValueError(f"check_in.size must be at most the number of units ({units}), got {self.size}")

    def fitted_to(self, coefficients: tuple[float, ...], units: int) -> Self:
        """Return the scheme for a number of units, which its charge needs."""
        fitted = self.model_copy()
        fitted._units = units
        return fitted

    def cohorts(self, rounds: int, units: int, seed: int) -> Iterator[UnitIds]:
        """Yield the sorted ids of each round's batch, int64 [size], from the secret seed."""
        for round_ in range(1, rounds + 1):
            stream = rng.stream(seed, "check-in", round_)
            keys = stream.words(units)
            while len(np.unique(keys)) < units:  # distinct keys are in a uniform order
                keys = stream.words(units)
            yield np.sort(np.argsort(keys)[: self.size])

    def charge(self, one_round: "Mechanism", rounds: int) -> "Mechanism":
        """Charge each round alike, as sampling without replacement under substitution."""
        return accounting.Repeat(accounting.WithoutReplacement(one_round, self.size, self._units), rounds)

    def known_cost(self, one_round: "Mechanism") -> "Mechanism":
        """Charge a round whose batch everybody knows: no amplification."""
        return accounting.WithoutReplacement(one_round, self.size, self._units).unamplified()

    def expected_cohort(self, rounds: int, units: int) -> float:
        """Return the size of a batch."""
        return float(self.size)

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        """Return the ratio of a unit among others that contribute nothing.

        The unit is there with the chance that it is in the batch.
        """
        return PoissonCheckIn(scheme="poisson", rate=self.size / self._units).log_likelihood_ratio(ratios)
