"""What the numbers of somebody's code amount to, and which of them contradict each other."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedamp.accounting import checks
from fedamp.accounting.amplification import Allocation, Poisson
from fedamp.accounting.ledgers import Check
from fedamp.accounting.mechanism import Mechanism, Relation, relation_of
from fedamp.accounting.releases import Gaussian, Repeat, SubstitutedPoissonGaussian

_SAME = 1e-3  # relative: people write so many digits


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Numbers of a training with Gaussian noise on clipped contributions, as somebody's code has them.

    Attributes:
        rounds: how many rounds are released.
        clip: largest 2-norm of a person's contribution to a round's sum; None: it is not clipped.
        noise: standard deviation of what is added to each coordinate, after the sum is divided.
        noise_multiplier: what the code calls so: ``noise`` over ``sensitivity``.
        sensitivity: by how much the code expects a person to move what the noise is added to.
        divided_by: a public number by which the sum is divided before the noise is added; 1: it is a sum.
        rate: each person is in a round with this chance, drawn anew and hidden.
        k: each person is in exactly k hidden rounds. With neither, everybody is in every round.
        cohort: expected number of people in a round.
        people: number of people in all.
        relation: zero-out, add/remove or substitution.
        delta: in (0, 1).
        epsilon: what is claimed.
    """

    rounds: int
    clip: float | None = None
    noise: float | None = None
    noise_multiplier: float | None = None
    sensitivity: float | None = None
    divided_by: float = 1.0
    rate: float | None = None
    k: int | None = None
    cohort: float | None = None
    people: int | None = None
    relation: str = str(Relation.ZERO_OUT)
    delta: float = 1e-5
    epsilon: float | None = None

    def checks(self) -> list[Check]:
        """The epsilon, or that there is none, and all contradictions, as failures. ValueError: a number makes no sense
        on its own, or the noise is not given.
        """
        return list(self._checks())

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """What is released, at a noise multiplier in units of a contribution."""
        one = Gaussian(noise_multiplier, relation=relation_of("relation", self.relation))
        if self.rate is not None and self.k is not None:
            raise ValueError("rate and k must not both be given: they are two ways to choose")
        if self.k is not None:
            return Allocation(one, self.k, self.rounds)
        if self.rate is None:
            return Repeat(one, self.rounds)
        sampled = (
            SubstitutedPoissonGaussian(noise_multiplier, self.rate) if one.change == 2 else Poisson(one, self.rate)
        )
        return Repeat(sampled, self.rounds)

    def _checks(self) -> Iterator[Check]:
        self.mechanism(1.0)  # refuses what makes no sense
        checks.delta(self.delta)
        if self.people is not None:
            share = 1 / checks.count("people", self.people)
            large = f"delta {self.delta:g} is not below 1 / people, {share:.2g}" if self.delta >= share else None
            yield Check.of("delta", f"{self.delta:g}", caution=large)
            chance = self.rate if self.k is None else self.k / self.rounds
            if self.cohort is not None and chance is not None:
                means = f"{chance:g} of {self.people} people is {chance * self.people:g}"
                wrong = f"cohort {self.cohort:g} contradicts the chance to take part: {means}"
                yield Check.of("cohort", means, fail=wrong if _differ(self.cohort, chance * self.people) else None)
        if self.clip is None or self.clip == math.inf:
            yield Check("epsilon", "fail", "none: without clipping one person moves a round by any amount")
            return
        clip, divided_by = checks.positive("clip", self.clip), checks.positive("divided_by", self.divided_by)
        moved = clip / divided_by * (2 if self.relation == Relation.SUBSTITUTION else 1)
        by = f"a person moves the release by up to {moved:g} (clip {clip:g} over {divided_by:g}, {self.relation})"
        expected = moved if self.sensitivity is None else checks.positive("sensitivity", self.sensitivity)
        wrong = f"sensitivity {expected:g} contradicts the clip: {by}"
        yield Check.of("sensitivity", by, fail=wrong if _differ(expected, moved) else None)
        noise = self.noise
        if self.noise_multiplier is not None:
            said = checks.scale_or_zero("noise_multiplier", self.noise_multiplier) * expected
            noise = said if noise is None else noise
            means = f"noise_multiplier {self.noise_multiplier:g} at sensitivity {expected:g} is a deviation of {said:g}"
            wrong = f"noise {noise:g} contradicts it: {means}"
            yield Check.of("noise", means, fail=wrong if _differ(noise, said) else None)
        if noise is None:
            raise ValueError("noise or noise_multiplier must be given")
        if not checks.scale_or_zero("noise", noise):
            yield Check("epsilon", "fail", "none: no noise is added")
            return
        plan = self.mechanism(noise * divided_by / clip)
        cost = plan.epsilon(self.delta)
        found = f"{cost} at delta {self.delta:g}: {plan}"
        too_low = self.epsilon is not None and cost.upper > self.epsilon
        yield Check.of("epsilon", found, fail=f"{self.epsilon} is claimed, it is {found}" if too_low else None)


def _differ(a: float, b: float) -> bool:
    return not math.isclose(a, b, rel_tol=_SAME)
