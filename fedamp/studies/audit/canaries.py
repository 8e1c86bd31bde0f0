"""The audit of a real run, once: which canaries were in (``privacy.canaries``), guessed from its released models.

Each canary is in or out by a secret coin. One that is in adds a vector of public random signs, as long as the clip, in
the hidden rounds of its check-in. The attacker knows the vectors, the scenario and all released models. The number of
right guesses bounds the leak from below, after one run (Steinke, Nasr, Jagielski 2023).
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load
from scipy.optimize import brentq
from scipy.stats import beta, binom

from fedamp import rng
from fedamp.accounting import Mechanism
from fedamp.accounting.arithmetic import delta_left
from fedamp.accounting.bounds import finite
from fedamp.base.files import read_regular
from fedamp.errors import RunFolderError
from fedamp.federation.check_in import CANARY, Attendance
from fedamp.federation.plan import Plan, make_plan, privacy_units
from fedamp.federation.reader import load as load_scenario
from fedamp.runs.folder import RunFolder

Floats = NDArray[np.float64]

CONFIDENCE = 0.95  # that a lower bound is not too high
ALARM = 1e-3  # the p-value of the charge below which a run is refuted
SURE = 0.05  # share of the canaries that are guessed where guesses may depend on each other: the surest
_MOST = 64.0  # times the noise of the plan, or a part of it, that are looked for
_AT_ONCE = 1 << 25  # signs in memory
_RATES = np.concatenate([[0.0], np.logspace(-9, 0, 2000)])


@dataclass(frozen=True)
class Guesses:
    """An attack's result: ``right`` of ``made`` guesses; and of ``sure_made`` guesses, the surest, fixed in advance."""

    attack: str
    made: int
    right: int
    sure_made: int
    sure_right: int

    @classmethod
    def by(cls, attack: str, scores: Floats, coins: NDArray[np.bool_]) -> "Guesses":
        """Guess that the half with the larger scores is in."""
        sure = math.ceil(SURE * len(coins))
        order = np.argsort(scores, kind="stable")
        right = np.arange(len(coins)) >= len(coins) // 2
        right = right == coins[order]
        ends = np.concatenate([right[: sure // 2], right[len(right) - (sure - sure // 2) :]])
        return cls(attack, len(coins), int(right.sum()), sure, int(ends.sum()))


@dataclass(frozen=True)
class RunAudit:
    """What attacks on the canaries of a run found.

    Attributes:
        guesses: of the attacker with all models, of who else knows the check-ins that the scenario's public seed would
            draw, and of who has only the last model.
        coins: which canaries were in.
        expected_share: canaries in the sum of an average round over all units in it.
    """

    plan: Plan
    guesses: tuple[Guesses, ...]
    coins: NDArray[np.bool_]

    @property
    def share(self) -> float:
        """Canaries over all units of the cohorts, on average."""
        return float(self.coins.sum() / (self.coins.sum() + self.plan.units))

    @cached_property
    def epsilon(self) -> dict[str, float]:
        """The charge of one unit."""
        bounds = self._at(self.plan.noise_multiplier).epsilon(delta_left(self.plan.scenario.privacy.delta))
        return {"lower": bounds.lower, "upper": bounds.upper}

    @cached_property
    def p_value(self) -> float:
        """Of the charge: how likely correct code gives an attack so many right guesses, or more."""
        accuracy = (1 + self._at(self.plan.noise_multiplier).delta(0.0).upper) / 2
        found = [float(binom.sf(each.right - 1, each.made, accuracy)) for each in self.guesses]
        return min(1.0, len(found) * min(found))

    @property
    def refuted(self) -> bool:
        """Whether the run leaks more than is charged."""
        return self.p_value < ALARM

    def lower(self, guesses: Guesses) -> float:
        """Epsilon at the scenario's delta, at least, if the scores of two canaries are independent.

        A guess is right with probability at most (1 + delta(0)) / 2. The plan with the least noise under which so many
        right guesses are too unlikely is refuted, and all with more noise: the run leaks at least what that one costs.
        """
        least = float(beta.ppf(1 - CONFIDENCE, guesses.right, guesses.made - guesses.right + 1))
        return self._cost(lambda plan: (1 + plan.delta(0.0).upper) / 2 < least)

    def lower_if_dependent(self, guesses: Guesses) -> float:
        """The same whatever the guesses have to do with each other (Mahloujifar, Melis, Chaudhuri 2024)."""
        asked = guesses.made, guesses.sure_made, guesses.sure_right
        return self._cost(lambda plan: exceeds(_most_right(plan), *asked, 1 - CONFIDENCE))

    def to_json(self) -> dict[str, Any]:
        """The answer of ``fedamp audit RUN --json``."""
        scenario, plan = self.plan.scenario, self.plan
        findings = [
            {
                "attack": each.attack,
                "guesses": {"right": each.right, "of": each.made},
                "surest": {"right": each.sure_right, "of": each.sure_made},
                "epsilon": {"lower": finite(self.lower(each)), "upper": finite(self.epsilon["upper"])},
                "epsilon_if_dependent": finite(self.lower_if_dependent(each)),
            }
            for each in self.guesses
        ]
        return {
            "scenario": scenario.name,
            "verdict": "refuted" if self.refuted else "consistent",
            "epsilon": findings[0]["epsilon"],
            "delta": scenario.privacy.delta,
            "confidence": CONFIDENCE,
            "p_value": self.p_value,
            "canaries": len(self.coins),
            "share_of_cohort": self.share,
            "findings": findings,
            "unit": scenario.privacy.unit,
            "adjacency": plan.adjacency,
            "noise_multiplier": plan.noise_multiplier,
            "mechanism": str(plan.charge.of_group(1)),
            "rounds": scenario.rounds,
        }

    def refutation(self) -> str:
        """One line that names the false claim."""
        worst = max(self.guesses, key=lambda each: each.right)
        return (
            f"audit: epsilon {self.epsilon['upper']:.3g} at delta {self.plan.scenario.privacy.delta:.3g} is charged, but "
            f"{worst.right} of {worst.made} coins were guessed (p-value {self.p_value:.1g}; attack: {worst.attack})"
        )

    def _at(self, noise: float) -> Mechanism:
        return self.plan.charge.at(noise, 1)

    def _cost(self, refuted: Callable[[Mechanism], bool]) -> float:
        """Epsilon of the plan with the least noise that is refuted; more noise is refuted, too."""
        few, many = -math.log(_MOST), math.log(_MOST)

        def found(log_factor: float) -> float:
            return 1.0 if refuted(self._at(self.plan.noise_multiplier * math.exp(log_factor))) else -1.0

        if found(many) < 0:
            return 0.0
        at = few if found(few) > 0 else float(brentq(found, few, many, xtol=3e-3)) + 6e-3
        bounds = self._at(self.plan.noise_multiplier * math.exp(at)).epsilon(delta_left(self.plan.scenario.privacy.delta))
        return bounds.lower


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


def _most_right(plan: Mechanism) -> Callable[[float], float]:
    rates = 1.0 - plan.trade_off().false_negative_rate(_RATES)[0]
    return lambda rate: float(np.interp(rate, rates, _RATES))


def audit_run(folder: Path) -> RunAudit:
    """Guess the coins of the canaries of a run that has ended, from its released models.

    Raises:
        RunFolderError: a run without canaries, or that has not ended.
    """
    files = RunFolder(folder)
    if not (files.canaries / "coins.json").exists():
        raise RunFolderError(f"{folder}: no canaries to guess; expected: an ended run with --canaries")
    scenario = load_scenario(files.scenario)
    plan = make_plan(scenario, privacy_units(scenario))
    coins = np.array(json.loads(read_regular(files.canaries / "coins.json")), dtype=bool)
    rounds = len(list(files.canaries.glob("*.safetensors"))) - 1
    models = [load(read_regular(files.canaries / f"{number}.safetensors")) for number in range(rounds + 1)]
    trained = sorted(name for name in models[0] if not np.array_equal(models[0][name], models[-1][name]))
    flat = np.stack([np.concatenate([model[name].ravel() for name in trained]) for model in models])
    return RunAudit(plan, attack(plan, flat, coins), coins)


def attack(plan: Plan, models: NDArray[np.float32], coins: NDArray[np.bool_]) -> tuple[Guesses, ...]:
    """The guesses of each attack.

    The steps of the server are undone: the noisy sum of each round follows from the models. What other units and noise
    leave on the sums is correlated over rounds; its covariance is that of the sums themselves, over coordinates, in
    which a canary hardly shows. Whitened by it, a round's product with a canary's vector is a likelihood ratio, and the
    hidden rounds are averaged over as they are charged: the strongest statistic (Neyman, Pearson 1933).

    Args:
        models: float32 [rounds + 1, coordinates], before the first round and after each.
        coins: [canaries], which were in.
    """
    rounds, size = len(models) - 1, models.shape[1]
    optimizer, part = plan.scenario.server, plan.parts[0]
    steps = np.diff(models.astype(np.float64), axis=0) / optimizer.learning_rate
    steps[1:] -= optimizer.momentum * steps[:-1]
    sums = (steps * (part.denominator / part.clip)).astype(np.float32)  # in clips
    covariance = sums.astype(np.float64) @ sums.T / size
    inverse = np.linalg.inv(covariance if 4 * rounds < size else np.diag(np.diag(covariance)))
    seen, last = np.empty((len(coins), rounds)), np.empty(len(coins))
    seed, moved = rng.public_seed(plan.scenario.seed, "data"), models[-1] - models[0]
    for some in np.array_split(np.arange(len(coins)), -(-len(coins) * size // _AT_ONCE)):
        signs = rng.public_signs(seed, "canary", (CANARY + some).tolist(), size)
        seen[some], last[some] = signs @ sums.T / math.sqrt(size), signs @ moved
    ratios = seen @ inverse - np.diag(inverse) / 2
    scores = {"all models": plan.check_in.log_likelihood_ratio(ratios)}
    if not plan.scenario.known_seed:
        public = Attendance(plan.check_in, rounds, plan.units, plan.scenario.seed, np.ones(len(coins), dtype=bool))
        there = np.zeros(ratios.shape, dtype=bool)
        for number in range(rounds):
            cohort = public.cohort(number + 1)
            there[cohort[cohort >= CANARY] - CANARY, number] = True
        scores["all models, rounds by the public seed"] = (ratios * there).sum(1)
    scores["the last model"] = last
    return tuple(Guesses.by(name, each, coins) for name, each in scores.items())
