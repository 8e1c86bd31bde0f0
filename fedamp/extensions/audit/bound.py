"""From guesses of coins to a lower bound on epsilon that holds with a stated confidence.

An attack guesses who was in, by scores: of the canaries of one run, or of many repetitions. How many guesses are right
is compared with what the trade-off function of the plan allows, and of the same plan with other noise.
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
from fedamp.accounting.bounds import finite
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
    """An attack's result.

    Attributes:
        scores: of the canaries, larger for those that seem to be in.
        coins: which of them were in.
    """

    attack: str
    scores: Array
    coins: NDArray[np.bool_]

    def surest(self, share: float) -> tuple[int, int]:
        """How many guesses are made, a number fixed in advance, and how many are right: ends of the order are guessed.

        The half with the larger scores is guessed to be in.
        """
        made, order = math.ceil(share * len(self.coins)), np.argsort(self.scores, kind="stable")
        out, are_in = order[: made // 2], order[len(order) - (made - made // 2) :]
        return made, int(self.coins[are_in].sum() + (~self.coins[out]).sum())


@dataclass(frozen=True, eq=False)
class AuditResult:
    """What attacks found.

    Attributes:
        plans: whose charge is tested; several: of a series of runs, with units that are in all of them.
        guesses: of each attack, the strongest against correct code first.
        size: units that are in or out together.
        told: what else the answer says.
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
        """The charge of the units, for a series that was fixed beforehand."""
        return self._epsilon(1.0)

    @property
    def delta(self) -> float:
        """Of the guarantee; of several runs the largest."""
        return max(plan.scenario.privacy.delta for plan in self.plans)

    @property
    def p_value(self) -> float:
        """Of the charge: how likely correct code gives an attack so many right guesses, or more."""
        accuracy = _accuracy(self._curve(1.0))
        made, right = zip(*(each.surest(SHARE) for each in self.guesses), strict=True)
        return min(1.0, len(made) * float(binom.sf(np.array(right) - 1, made, accuracy).min()))

    @property
    def refuted(self) -> bool:
        """Whether more leaks than is charged."""
        return self.p_value < ALARM

    def lower(self, guesses: AttackGuesses) -> float:
        """Epsilon at the scenario's delta, at least, if the scores of two canaries are independent.

        A test that guesses wrongly with probability y, and rightly with x, has x <= B(y), B the largest true positive
        rate. So a guess is right with a probability that follows from the plan. The plan with the least noise under
        which so many right guesses are too unlikely is refuted, and all with more noise: the run leaks what it costs.
        """
        made, right = guesses.surest(SHARE)
        least = float(beta.ppf(self._error, right, made - right + 1))
        return self._cost(lambda curve: _accuracy(curve) < least)

    def lower_if_dependent(self, guesses: AttackGuesses) -> float:
        """The same whatever the guesses have to do with each other (Mahloujifar, Melis, Chaudhuri 2024)."""
        asked = len(guesses.coins), *guesses.surest(SUREST), self._error
        return self._cost(lambda curve: exceeds(lambda rate: float(np.interp(rate, curve, _RATES)), *asked))

    @property
    def _error(self) -> float:
        return (1 - CONFIDENCE) / len(self.guesses)

    def to_json(self) -> dict[str, Any]:
        """The answer of ``fedamp audit --json``: the first attack, and the two others that guessed best."""
        first, others = self.plans[0], sorted(self.guesses[1:], key=lambda each: -each.surest(SHARE)[1])
        findings = [
            {
                "attack": each.attack,
                "guesses": dict(zip(("of", "right"), each.surest(SHARE), strict=True)),
                "epsilon": {"lower": finite(self.lower(each)), "upper": finite(self.charged.upper)},
                "epsilon_if_dependent": finite(self.lower_if_dependent(each)) if self.dependent else None,
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
        """One line that names the false claim."""
        worst = max(self.guesses, key=lambda each: each.surest(SHARE)[1])
        made, right = worst.surest(SHARE)
        return (
            f"audit: epsilon {self.charged.upper:.3g} at delta {self.delta:.3g} is charged, "
            f"but {right} of {made} guesses were right (p-value {self.p_value:.1g}; attack: {worst.attack})"
        )

    def _mechanism(self, factor: float) -> Mechanism:
        """What is charged under the plans with so many times their noise."""
        each = tuple(plan.charge.at(plan.noise_multiplier * factor, self.size) for plan in self.plans)
        return each[0] if len(each) == 1 else Compose(each)

    @cache  # noqa: B019  (an audit lives as long as its command)
    def _curve(self, factor: float) -> Array:
        """The largest true positive rates at :data:`_RATES`."""
        return np.asarray(1.0 - self._mechanism(factor).trade_off().false_negative_rate(_RATES)[0])

    @cache  # noqa: B019
    def _epsilon(self, factor: float) -> Bounds:
        precision = self.plans[0].scenario.privacy.precision if factor == 1 else 0.05
        return self._mechanism(factor).epsilon(delta_left(self.delta, len(self.plans)), precision=precision)

    def _cost(self, refuted: Callable[[Array], bool]) -> float:
        """Epsilon of the plan with the least noise whose curve is refuted; with more noise it is refuted, too."""
        place = bisect_left(_FACTORS, True, key=lambda factor: not refuted(self._curve(factor)))
        return self._epsilon(_FACTORS[place - 1]).lower if place else 0.0


def exceeds(most_right: Callable[[float], float], canaries: int, made: int, right: int, error: float) -> bool:
    """Whether so many right guesses, or more, have probability below ``error`` under a trade-off function.

    Flipping the coin of a canary turns "guessed rightly, and j right in all" into "guessed wrongly, and j - 1 right".
    With B the largest true positive rate at a false positive rate, p_j = P(j right), and any c, summing over canaries
    gives sum_{j >= c} j p_j / m <= B(sum_{j >= c} (made - j + 1) p_{j-1} / m), because B is concave. Going down from
    the tail, each p_{j-1} must be so large; if they then exceed all probability, the tail is impossible (Mahloujifar,
    Melis, Chaudhuri 2024, Theorem 3.2; the coins are fair).

    Args:
        most_right: the inverse of B: the smallest false positive rate at which a true positive rate can be.
        canaries, made, right: their number m, that of the guesses, fixed beforehand, and of those that are right.
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


def _accuracy(curve: Array) -> float:
    """Of the guesses, at most, if a share of ``SHARE`` is guessed."""
    return 1 - float(np.interp(SHARE, curve + _RATES, _RATES)) / SHARE
