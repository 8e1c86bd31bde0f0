"""Check the numbers of other people's code: whether they contradict each other, and what epsilon follows."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedamp.accounting.bounds import Relation, check_count, check_delta, check_positive, check_scale_or_zero
from fedamp.accounting.hidden import Allocation, Poisson, SubstitutedPoissonGaussian
from fedamp.accounting.mechanism import Mechanism, check_relation
from fedamp.accounting.releases import Gaussian, Repeat
from fedamp.accounting.verify import Check


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Numbers of a training with Gaussian noise on clipped contributions, as a program of other people has them.

    They are compared with each other, and epsilon is computed again from them. Common mistakes are contradictions.
    Noise is scaled to a sensitivity that the clip does not give, or added after the sum is divided without being
    divided. Or delta is too large for the number of people.

    Attributes:
        rounds: number of released rounds.
        clip: largest 2-norm of a person's contribution to a round's sum; default: no clipping.
        noise: standard deviation of the noise on each coordinate, after the sum is divided.
        noise_multiplier: noise multiplier in the code: ``noise`` over ``sensitivity``.
        sensitivity: largest change by one person of the number to which noise is added, as the code assumes it.
        divided_by: public number by which the sum is divided before the noise is added; default: 1.
        rate: probability that a person is in a round, drawn anew and hidden.
        k: number of hidden rounds of each person. Without rate and k, everybody is in every round.
        cohort: expected number of people in a round.
        people: number of all people.
        relation: neighbouring relation: zero-out, add/remove or substitution.
        delta: probability in (0, 1).
        epsilon: claimed epsilon, which is compared.

    Example:
        >>> code = Claims(rounds=100, clip=1.0, noise_multiplier=1.0, sensitivity=0.5, rate=0.01)
        >>> [(check.verdict, check.name) for check in code.checks()]
        [('fail', 'sensitivity'), ('pass', 'noise'), ('pass', 'epsilon')]
        >>> code.checks()[-1].found[:43]
        '6.477 (at least 6.476) at delta 1e-05: 100 '
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
        """Return all checks: of delta, cohort, sensitivity and noise, where they are given, and of epsilon.

        Contradictions are failures. Without clip or noise there is no epsilon, which is a failure, too.

        Raises:
            ValueError: a number makes no sense on its own, or the noise is not given.
        """
        return list(self._contradictions())

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """Return the mechanism that is released, at a noise multiplier in units of a contribution.

        Raises:
            ValueError: rate and k are both given, or a number is out of its range.
        """
        one = Gaussian(noise_multiplier, relation=check_relation("relation", self.relation))
        if self.rate is not None and self.k is not None:
            raise ValueError("rate and k must not both be given: they are two ways to choose")
        if self.k is not None:
            return Allocation(one, self.k, self.rounds)
        if self.rate is None:
            return Repeat(one, self.rounds)
        if one.largest_change == 2:
            return Repeat(SubstitutedPoissonGaussian(noise_multiplier, self.rate), self.rounds)
        return Repeat(Poisson(one, self.rate), self.rounds)

    def _contradictions(self) -> Iterator[Check]:
        """Make the checks, one after another."""
        self.mechanism(1.0)  # refuses what makes no sense
        check_delta(self.delta)
        for name, value in (("cohort", self.cohort), ("epsilon", self.epsilon)):
            if value is not None:
                check_positive(name, value)
        if self.people is not None:
            share = 1 / check_count("people", self.people)
            large = f"delta {self.delta:g} is not below 1 / people, {share:.2g}" if self.delta >= share else None
            yield Check.of_failure("delta", f"{self.delta:g}", caution=large)
            chance = self.rate if self.k is None else self.k / self.rounds
            if self.cohort is not None and chance is not None:
                means = f"{chance:g} of {self.people} people is {chance * self.people:g}"
                wrong = f"cohort {self.cohort:g} contradicts the chance to take part: {means}"
                yield Check.of_failure(
                    "cohort", means, fail=wrong if _values_differ(self.cohort, chance * self.people) else None
                )
        if self.clip is None or self.clip == math.inf:
            yield Check("epsilon", "fail", "none: without clipping one person moves a round by any amount")
            return
        clip, divided_by = check_positive("clip", self.clip), check_positive("divided_by", self.divided_by)
        moved = clip / divided_by * (2 if self.relation == Relation.SUBSTITUTION else 1)
        by = f"a person moves the release by up to {moved:g} (clip {clip:g} over {divided_by:g}, {self.relation})"
        expected = moved if self.sensitivity is None else check_positive("sensitivity", self.sensitivity)
        wrong = f"sensitivity {expected:g} contradicts the clip: {by}"
        yield Check.of_failure("sensitivity", by, fail=wrong if _values_differ(expected, moved) else None)
        noise = self.noise
        if self.noise_multiplier is not None:
            said = check_scale_or_zero("noise_multiplier", self.noise_multiplier) * expected
            noise = said if noise is None else noise
            means = f"noise_multiplier {self.noise_multiplier:g} at sensitivity {expected:g} is a deviation of {said:g}"
            wrong = f"noise {noise:g} contradicts it: {means}"
            yield Check.of_failure("noise", means, fail=wrong if _values_differ(noise, said) else None)
        if noise is None:
            raise ValueError("noise or noise_multiplier must be given")
        if not check_scale_or_zero("noise", noise):
            yield Check("epsilon", "fail", "none: no noise is added")
            return
        plan = self.mechanism(noise * divided_by / clip)
        cost = plan.epsilon(self.delta)
        found = f"{cost} at delta {self.delta:g}: {plan}"
        too_low = self.epsilon is not None and cost.upper > self.epsilon
        yield Check.of_failure("epsilon", found, fail=f"{self.epsilon} is claimed, it is {found}" if too_low else None)


def _values_differ(a: float, b: float) -> bool:
    """Return whether two numbers differ by more than one part in 1000: people write so many digits."""
    return not math.isclose(a, b, rel_tol=1e-3)
