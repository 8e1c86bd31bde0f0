"""Turn guesses of coins into a lower bound on epsilon that holds with a stated confidence.

An attack guesses who was in, by scores: of the canaries of one run, or of many repetitions. The number of right guesses
is compared with the number that the trade-off function of the plan allows, and of the same plan with other noise. The
attacks are in :mod:`fedamp.extensions.audit.attack` and :mod:`fedamp.extensions.audit.canaries`.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom

from fedamp.accounting import Bounds, Compose, Mechanism
from fedamp.accounting.arithmetic import Array, delta_left
from fedamp.accounting.bounds import finite_or_none
from fedamp.federation.plan import Plan

CONFIDENCE = 0.95  # that none of the lower bounds of an audit is too high
ALARM = 0.01  # the p-value of the charge below which it is refuted
# Shares of the canaries that are guessed, the surest: half of them count best (as for two Gaussians that lie close),
# and few where guesses may depend on each other, because then rare events may reveal many coins at once.
SHARE, SUREST = 0.5, 0.05
_FACTORS = np.exp2(np.linspace(4, -4, 321)).tolist()  # of the plan's noise, that are looked for
_RATES = np.concatenate([[0.0], np.logspace(-9, 0, 2000)])


@dataclass(frozen=True)
class AttackGuesses:
    """The result of an attack.

    Attributes:
        attack: its name.
        scores: of the canaries, float64 [canaries], larger for those that seem to be in.
        coins: bool [canaries], which of them were in.
    """

    attack: str
    scores: Array
    coins: NDArray[np.bool_]

    def surest(self, share: float) -> tuple[int, int]:
        """Count the guesses that are made, a number fixed in advance, and those that are right.

        Both ends of the order are guessed: the half with the larger scores to be in.

        Args:
            share: of the canaries that are guessed, in (0, 1].
        """
        made, order = math.ceil(share * len(self.coins)), np.argsort(self.scores, kind="stable")
        out, are_in = order[: made // 2], order[len(order) - (made - made // 2) :]
        return made, int(self.coins[are_in].sum() + (~self.coins[out]).sum())


@dataclass(frozen=True, eq=False)
class AuditResult:
    """The findings of attacks, and the claim that they test.

    Attributes:
        plans: whose charge is tested; several: of a series of runs, with units that are in all of them.
        guesses: of each attack, the strongest against correct code first.
        size: units that are in or out together.
        told: further keys of the answer.
        dependent: whether guesses may depend on each other, because one run made them.
        adaptive: epsilon of a series whose runs were chosen after seeing others; None: one run, or above 70.
    """

    plans: tuple[Plan, ...]
    guesses: tuple[AttackGuesses, ...]
    size: int = 1
    told: Mapping[str, Any] = field(default_factory=dict)
    dependent: bool = True
    adaptive: float | None = None

    @property
    def charged(self) -> Bounds:
        """Charge of the units, for a series that was fixed beforehand."""
        return self._epsilon(1.0)

    @property
    def delta(self) -> float:
        """Delta of the guarantee; of several runs the largest."""
        return max(plan.scenario.privacy.delta for plan in self.plans)

    @property
    def p_value(self) -> float:
        """Probability that correct code gives an attack so many right guesses, or more.

        It is multiplied by the number of attacks, because the best of them is taken.
        """
        accuracy = _highest_accuracy(self._curve(1.0))
        made, right = zip(*(each.surest(SHARE) for each in self.guesses), strict=True)
        return min(1.0, len(made) * float(binom.sf(np.array(right) - 1, made, accuracy).min()))

    @property
    def refuted(self) -> bool:
        """True if more leaks than is charged: the p-value is below 0.01."""
        return self.p_value < ALARM

    def lower(self, guesses: AttackGuesses) -> float:
        """Bound epsilon at the scenario's delta from below, if the scores of two canaries are independent.

        A test that guesses wrongly with probability y, and rightly with x, has x <= B(y), B the largest true positive
        rate. So a guess is right with a probability that follows from the plan. The plan with the least noise under
        which so many right guesses are too unlikely is refuted, and all with more noise: the run leaks what it costs.

        Returns:
            The lower end of that plan's epsilon; 0 where no plan is refuted. With 95 % confidence, no bound of the
            audit is too high.
        """
        made, right = guesses.surest(SHARE)
        least = float(beta.ppf(self._error, right, made - right + 1))
        return self._cost(lambda curve: _highest_accuracy(curve) < least)

    def lower_if_dependent(self, guesses: AttackGuesses) -> float:
        """Bound the same, however the guesses depend on each other (Mahloujifar, Melis, Chaudhuri 2024)."""
        asked = len(guesses.coins), *guesses.surest(SUREST), self._error
        return self._cost(lambda curve: exceeds(lambda rate: float(np.interp(rate, curve, _RATES)), *asked))

    @property
    def _error(self) -> float:
        """Probability that the bound of one attack may be too high."""
        return (1 - CONFIDENCE) / len(self.guesses)

    def to_json(self) -> dict[str, Any]:
        """Return the answer of ``fedamp audit --json``: the first attack, and the two others that guessed best."""
        first, others = self.plans[0], sorted(self.guesses[1:], key=lambda each: -each.surest(SHARE)[1])
        findings = [
            {
                "attack": each.attack,
                "guesses": dict(zip(("of", "right"), each.surest(SHARE), strict=True)),
                "epsilon": {"lower": finite_or_none(self.lower(each)), "upper": finite_or_none(self.charged.upper)},
                "epsilon_if_dependent": finite_or_none(self.lower_if_dependent(each)) if self.dependent else None,
            }
            for each in (self.guesses[0], *others[:2])
        ]
        return {
            "scenario": " and ".join(plan.scenario.name for plan in self.plans),
            "verdict": "refuted" if self.refuted else "consistent",
            "epsilon": findings[0]["epsilon"],
            "delta": self.delta,
            "adaptive_epsilon": self.adaptive,
            "confidence": CONFIDENCE,
            "p_value": self.p_value,
            "findings": findings,
            "unit": first.scenario.privacy.unit,
            "group_size": self.size,
            "adjacency": first.adjacency,
            "noise_multiplier": first.noise_multiplier,
            "mechanism": str(self._mechanism(1.0)),
            "rounds": sum(plan.scenario.rounds for plan in self.plans),
            **self.told,
        }

    def refutation(self) -> str:
        """Write one line that names the false claim."""
        worst = max(self.guesses, key=lambda each: each.surest(SHARE)[1])
        made, right = worst.surest(SHARE)
        return (
            f"audit: epsilon {self.charged.upper:.3g} at delta {self.delta:.3g} is charged, "
            f"but {right} of {made} guesses were right (p-value {self.p_value:.1g}; attack: {worst.attack})"
        )

    def _mechanism(self, factor: float) -> Mechanism:
        """Return what is charged under the plans with so many times their noise."""
        each = tuple(plan.charge.with_noise(plan.noise_multiplier * factor, self.size) for plan in self.plans)
        return each[0] if len(each) == 1 else Compose(each)

    @cache  # noqa: B019  (an audit lives as long as its command)
    def _curve(self, factor: float) -> Array:
        """Compute the largest true positive rates at the false positive rates :data:`_RATES`."""
        return np.asarray(1.0 - self._mechanism(factor).trade_off().false_negative_rate(_RATES)[0])

    @cache  # noqa: B019
    def _epsilon(self, factor: float) -> Bounds:
        """Compute epsilon of the plans with so many times their noise."""
        first, delta = self.plans[0], delta_left(self.delta, len(self.plans))
        return first.answers.epsilon(
            self._mechanism(factor), delta, first.scenario.privacy.precision if factor == 1 else 0.05
        )

    def _cost(self, refuted: Callable[[Array], bool]) -> float:
        """Return epsilon of the plan with the least noise whose curve is refuted; more noise is refuted, too."""
        place = bisect_left(_FACTORS, True, key=lambda factor: not refuted(self._curve(factor)))
        return self._epsilon(_FACTORS[place - 1]).lower if place else 0.0


def exceeds(most_right: Callable[[float], float], canaries: int, made: int, right: int, error: float) -> bool:
    """Say whether so many right guesses, or more, have probability below ``error`` under a trade-off function.

    Flipping the coin of a canary turns "guessed rightly, and j right in all" into "guessed wrongly, and j - 1 right".
    With B the largest true positive rate at a false positive rate, p_j = P(j right), and any c, summing over canaries
    gives sum_{j >= c} j p_j / m <= B(sum_{j >= c} (made - j + 1) p_{j-1} / m), because B is concave. Going down from
    the tail, each p_{j-1} must be so large; if they then exceed all probability, the tail is impossible (Mahloujifar,
    Melis, Chaudhuri 2024, Theorem 3.2; the coins are fair).

    Args:
        most_right: the inverse of B: the smallest false positive rate at which a true positive rate can be.
        canaries: their number m.
        made: number of guesses, fixed beforehand.
        right: number of right guesses.
        error: a probability.
    """
    rightly, wrongly = error * right / canaries, error * (made - right) / canaries
    for count in range(right - 1, -1, -1):
        needed = max(wrongly, most_right(rightly))
        if needed == wrongly:
            break
        rightly, wrongly = rightly + count / (made - count) * (needed - wrongly), needed
        if rightly + wrongly > made / canaries:
            return True
    return rightly + wrongly > made / canaries


def _highest_accuracy(curve: Array) -> float:
    """Bound the share of right guesses from above, if a share of ``SHARE`` is guessed."""
    return 1 - float(np.interp(SHARE, curve + _RATES, _RATES)) / SHARE
