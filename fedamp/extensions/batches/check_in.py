"""Check in batches of a fixed size, or of a largest size, drawn anew in each round.

The schemes are :class:`BatchesCheckIn` and :class:`TruncatedPoissonCheckIn`. :mod:`fedamp.federation.check_in` has
their base, and what each method promises.
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
from fedamp.federation.check_in import USUAL_FACTS, CheckInRate, IndependentRounds, PoissonCheckIn, UnitIds

if TYPE_CHECKING:
    from fedamp import accounting
    from fedamp.accounting import Mechanism
    from fedamp.extensions.batches import mechanisms
else:  # as in fedamp.federation.check_in
    accounting, mechanisms = Later("fedamp.accounting"), Later("fedamp.extensions.batches.mechanisms")


class _SizedCheckIn(IndependentRounds):
    """Base of schemes whose cohort has a size, so that their charge needs the number of units."""

    size: Count
    _units: int = 0

    def check_units(self, units: int) -> None:
        """Refuse a size above the number of units.

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


class BatchesCheckIn(_SizedCheckIn):
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

    def cohorts(self, rounds: int, units: int, seed: int) -> Iterator[UnitIds]:
        """Yield the sorted ids of each round's batch, int64 [size], from the secret seed."""
        for round_ in range(1, rounds + 1):
            yield np.sort(_in_random_order(rng.stream(seed, "check-in", round_), units)[: self.size])

    def charge(self, one_round: "Mechanism", rounds: int) -> "Mechanism":
        """Charge each round alike, as sampling without replacement under substitution."""
        return accounting.Repeat(mechanisms.WithoutReplacement(one_round, self.size, self._units), rounds)

    def known_cost(self, one_round: "Mechanism") -> "Mechanism":
        """Charge a round whose batch everybody knows: no amplification."""
        return mechanisms.WithoutReplacement(one_round, self.size, self._units).unamplified()

    def expected_cohort(self, rounds: int, units: int) -> float:
        """Return the size of a batch."""
        return float(self.size)

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        """Return the ratio of a unit among others that contribute nothing.

        The unit is there with the chance that it is in the batch.
        """
        return PoissonCheckIn(scheme="poisson", rate=self.size / self._units).log_likelihood_ratio(ratios)


class TruncatedPoissonCheckIn(_SizedCheckIn):
    """Poisson sampling with a largest cohort: where more than ``size`` units are drawn, a random choice of them stays.

    Formal guarantees: in every round each unit is drawn with probability ``rate``, independently; of more than ``size``
    drawn units, every set of ``size`` is equally likely to stay. Neighbours are for zero-out, so the draw is the same
    for both. :class:`fedamp.accounting.TruncatedPoisson` charges what the cut reveals.
    """

    scheme: Literal["truncated-poisson"]
    rate: CheckInRate
    size: Count = Field(examples=[3], description="most units in a round; of more, a random choice stays")
    keeps = frozenset({facts.UNITS_ALIKE})
    before = "capped-poisson"

    def cohorts(self, rounds: int, units: int, seed: int) -> Iterator[UnitIds]:
        """Yield the sorted ids of each round's cohort, int64 [at most size], from the secret seed."""
        drawn = PoissonCheckIn(scheme="poisson", rate=self.rate).cohorts(rounds, units, seed)
        for round_, cohort in enumerate(drawn, 1):
            kept = _in_random_order(rng.stream(seed, "check-in truncation", round_), len(cohort))[: self.size]
            yield np.sort(cohort[kept])

    def charge(self, one_round: "Mechanism", rounds: int) -> "Mechanism":
        """Charge each round alike, as Poisson sampling that is cut."""
        return accounting.Repeat(mechanisms.TruncatedPoisson(one_round, self.rate, self.size, self._units), rounds)

    def expected_cohort(self, rounds: int, units: int) -> float:
        """Return the mean of the smaller of ``size`` and a binomial number."""
        return units * mechanisms.cut_chances(self.rate, self.size, units)[2]

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        """Return the ratio of a unit among others that contribute nothing: it is there with the chance to stay."""
        share = self.expected_cohort(1, self._units) / self._units
        return PoissonCheckIn(scheme="poisson", rate=share).log_likelihood_ratio(ratios)


def _in_random_order(stream: rng.Stream, number: int) -> UnitIds:
    """Return 0 .. number - 1 in a uniform order: that of distinct random keys."""
    keys = stream.words(number)
    while len(np.unique(keys)) < number:
        keys = stream.words(number)
    return np.argsort(keys)
