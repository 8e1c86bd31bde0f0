"""The audit of a real run, once: which canaries were in (``privacy.canaries``), guessed from its released models.

Each canary is in or out by a secret coin. One that is in adds a vector of public random signs, as long as the clip, in
the hidden rounds of its check-in. The attacker knows the vectors, the scenario and all released models. The number of
right guesses bounds the leak from below, after one run (Steinke, Nasr, Jagielski 2023).
"""

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load
from scipy.stats import beta, binom

from fedamp import rng
from fedamp.accounting import Bounds, Compose, Mechanism
from fedamp.accounting.arithmetic import delta_left
from fedamp.accounting.bounds import finite
from fedamp.base.arrays import Arrays
from fedamp.base.files import read_regular
from fedamp.errors import RunFolderError
from fedamp.federation.check_in import CANARY, Attendance
from fedamp.federation.plan import Plan, make_plan, privacy_units
from fedamp.federation.reader import load as load_scenario
from fedamp.population.total import total
from fedamp.runs.folder import RunFolder

Floats = NDArray[np.float64]

CONFIDENCE = 0.95  # that a lower bound is not too high
ALARM = 1e-3  # the p-value of the charge below which a run is refuted
# Shares of the canaries that are guessed, the surest: half of them count best (as for two Gaussians that lie close),
# and few where guesses may depend on each other, because then rare events may reveal many coins at once.
SHARE, SUREST = 0.5, 0.05
_FACTORS = np.exp2(np.linspace(4, -4, 321)).tolist()  # of the plan's noise, that are looked for
_AT_ONCE = 1 << 25  # signs in memory
_RATES = np.concatenate([[0.0], np.logspace(-9, 0, 2000)])


@dataclass(frozen=True)
class Guesses:
    """An attack's result.

    Attributes:
        scores: of the canaries, larger for those that seem to be in.
        coins: which of them were in.
    """

    attack: str
    scores: Floats
    coins: NDArray[np.bool_]

    def surest(self, share: float) -> tuple[int, int]:
        """How many guesses are made, a number fixed in advance, and how many are right: ends of the order are guessed.

        The half with the larger scores is guessed to be in.
        """
        made, order = math.ceil(share * len(self.coins)), np.argsort(self.scores, kind="stable")
        out, are_in = order[: made // 2], order[len(order) - (made - made // 2) :]
        return made, int(self.coins[are_in].sum() + (~self.coins[out]).sum())


@dataclass(frozen=True, eq=False)
class RunAudit:
    """What attacks on the canaries of a run found, or of a series of runs with units that are in all of them.

    Attributes:
        plans: of the runs.
        guesses: of the attacker with all models, of who else knows the check-ins that the scenario's public seed would
            draw, and of who has only the last model.
        share: canaries over all units of the cohorts, on average; of several runs the largest.
        adaptive: epsilon of a series whose runs were chosen after seeing others; None: one run, or above 70.
    """

    plans: tuple[Plan, ...]
    guesses: tuple[Guesses, ...]
    share: float
    adaptive: float | None = None

    @property
    def charged(self) -> Bounds:
        """The charge of one unit, for a series that was fixed beforehand."""
        return self._epsilon(1.0)

    @property
    def delta(self) -> float:
        """Of the guarantee; of several runs the largest."""
        return max(plan.scenario.privacy.delta for plan in self.plans)

    @property
    def p_value(self) -> float:
        """Of the charge: how likely correct code gives an attack so many right guesses, or more."""
        accuracy = _accuracy(self._curve(1.0))
        found = [float(binom.sf(right - 1, made, accuracy)) for made, right in self._counts]
        return min(1.0, len(found) * min(found))

    @property
    def refuted(self) -> bool:
        """Whether the run leaks more than is charged."""
        return self.p_value < ALARM

    def lower(self, guesses: Guesses) -> float:
        """Epsilon at the scenario's delta, at least, if the scores of two canaries are independent.

        A test that guesses wrongly with probability y, and rightly with x, has x <= B(y), B the largest true positive
        rate. So a guess is right with a probability that follows from the plan. The plan with the least noise under
        which so many right guesses are too unlikely is refuted, and all with more noise: the run leaks what it costs.
        """
        made, right = guesses.surest(SHARE)
        least = float(beta.ppf(1 - CONFIDENCE, right, made - right + 1))
        return self._cost(lambda curve: _accuracy(curve) < least)

    def lower_if_dependent(self, guesses: Guesses) -> float:
        """The same whatever the guesses have to do with each other (Mahloujifar, Melis, Chaudhuri 2024)."""
        asked = len(guesses.coins), *guesses.surest(SUREST), 1 - CONFIDENCE
        return self._cost(lambda curve: exceeds(lambda rate: float(np.interp(rate, curve, _RATES)), *asked))

    @property
    def _counts(self) -> list[tuple[int, int]]:
        return [each.surest(SHARE) for each in self.guesses]

    def to_json(self) -> dict[str, Any]:
        """The answer of ``fedamp audit RUN --json``."""
        first = self.plans[0]
        findings = [
            {
                "attack": each.attack,
                "guesses": {"right": counts[1], "of": counts[0]},
                "epsilon": {"lower": finite(self.lower(each)), "upper": finite(self.charged.upper)},
                "epsilon_if_dependent": finite(self.lower_if_dependent(each)),
            }
            for each, counts in zip(self.guesses, self._counts, strict=True)
        ]
        return {
            "scenario": " and ".join(plan.scenario.name for plan in self.plans),
            "verdict": "refuted" if self.refuted else "consistent",
            "epsilon": findings[0]["epsilon"],
            "delta": self.delta,
            "adaptive_epsilon": self.adaptive,
            "confidence": CONFIDENCE,
            "p_value": self.p_value,
            "canaries": len(self.guesses[0].coins),
            "share_of_cohort": self.share,
            "findings": findings,
            "unit": first.scenario.privacy.unit,
            "adjacency": first.adjacency,
            "noise_multipliers": [plan.noise_multiplier for plan in self.plans],
            "mechanism": str(self._mechanism(1.0)),
            "rounds": sum(plan.scenario.rounds for plan in self.plans),
        }

    def refutation(self) -> str:
        """One line that names the false claim."""
        (made, right), worst = max(zip(self._counts, self.guesses, strict=True), key=lambda each: each[0][1])
        return (
            f"audit: epsilon {self.charged.upper:.3g} at delta {self.delta:.3g} is charged, "
            f"but {right} of {made} guesses were right (p-value {self.p_value:.1g}; attack: {worst.attack})"
        )

    def _mechanism(self, factor: float) -> Mechanism:
        """What one unit is charged under the plans with so many times their noise."""
        each = tuple(plan.charge.at(plan.noise_multiplier * factor, 1) for plan in self.plans)
        return each[0] if len(each) == 1 else Compose(each)

    @cache  # noqa: B019  (an audit lives as long as its command)
    def _curve(self, factor: float) -> Floats:
        """The largest true positive rates at :data:`_RATES`."""
        return np.asarray(1.0 - self._mechanism(factor).trade_off().false_negative_rate(_RATES)[0])

    @cache  # noqa: B019
    def _epsilon(self, factor: float) -> Bounds:
        asked, precision = delta_left(self.delta, len(self.plans)), self.plans[0].scenario.privacy.precision
        return self._mechanism(factor).epsilon(asked, precision=precision)

    def _cost(self, refuted: Callable[[Floats], bool]) -> float:
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


def _accuracy(curve: Floats) -> float:
    """Of the guesses, at most, if a share of ``SHARE`` is guessed."""
    return 1 - float(np.interp(SHARE, curve + _RATES, _RATES)) / SHARE


def audit_runs(folders: Sequence[Path]) -> RunAudit:
    """Guess the coins of the canaries of a run that has ended, from its released models; or of a series of runs.

    A unit of a series is a canary of each run, and was in all of them or in none: canaries whose coins were alike are
    put together, as many of each kind. The attacker adds what it learned from each run.

    Raises:
        RunFolderError: a run without canaries, or that has not ended.
    """
    plans, found = zip(*map(_of_run, folders), strict=True)
    present = [(int(each[0].coins.sum()), plan.units) for each, plan in zip(found, plans, strict=True)]
    share = max(canaries / (canaries + people) for canaries, people in present)
    if len(folders) == 1:
        return RunAudit(plans, found[0], share)
    pairs = min(int(min(each[0].coins.sum(), (~each[0].coins).sum())) for each in found)
    coins, names = np.arange(2 * pairs) < pairs, [guesses.attack for guesses in found[0]]
    if any([guesses.attack for guesses in each] != names for each in found):
        names = ["all models"]
    scores = {name: np.zeros(2 * pairs) for name in names}
    for each in found:
        for guesses in each:
            if guesses.attack in scores:
                both = [guesses.scores[guesses.coins == coin][:pairs] for coin in (True, False)]
                scores[guesses.attack] += np.concatenate(both)
    together = tuple(Guesses(name, values, coins) for name, values in scores.items())
    return RunAudit(plans, together, share, total(folders)["adaptive_epsilon"])


def _of_run(folder: Path) -> tuple[Plan, tuple[Guesses, ...]]:
    files = RunFolder(folder)
    if not (files.canaries / "coins.json").exists():
        raise RunFolderError(f"{folder}: no canaries to guess; expected: an ended run with --canaries")
    scenario = load_scenario(files.scenario)
    plan = make_plan(scenario, privacy_units(scenario))
    coins = np.array(json.loads(read_regular(files.canaries / "coins.json")), dtype=bool)
    rounds = len(list(files.canaries.glob("*.safetensors"))) - 1
    models = [load(read_regular(files.canaries / f"{number}.safetensors")) for number in range(rounds + 1)]
    return plan, attack(plan, models, coins)


def attack(plan: Plan, models: Sequence[Arrays], coins: NDArray[np.bool_]) -> tuple[Guesses, ...]:
    """The guesses of each attack.

    The steps of the server are undone: the noisy sum of each round follows from the models. What is left of other
    units' data is taken off (:func:`_quiet`), and the rounds are whitened by the covariance of the sums. So a round's
    product with a canary's vector is a log-likelihood ratio, and the hidden rounds are averaged over as they are
    charged: the strongest statistic (Neyman, Pearson 1933).

    Args:
        models: before the first round, and after each.
        coins: [canaries], which were in.
    """
    trained = sorted(name for name in models[0] if not np.array_equal(models[0][name], models[-1][name]))
    flat = np.stack([np.concatenate([model[name].ravel() for name in trained]) for model in models])
    rounds, size, optimizer, part = len(models) - 1, flat.shape[1], plan.scenario.server, plan.parts[0]
    steps = np.diff(flat.astype(np.float64), axis=0) / optimizer.learning_rate
    steps[1:] -= optimizer.momentum * steps[:-1]
    sums, kept = _quiet(steps * (part.denominator / part.clip), [models[0][name].shape for name in trained])
    filters = np.linalg.inv(sums @ sums.T / size) @ kept
    sums, seen, last = sums.astype(np.float32), np.empty((len(coins), rounds)), np.empty(len(coins))
    seed, moved = rng.public_seed(plan.scenario.seed, "data"), flat[-1] - flat[0]
    for some in np.array_split(np.arange(len(coins)), -(-len(coins) * size // _AT_ONCE)):
        signs = rng.public_signs(seed, "canary", (CANARY + some).tolist(), size)
        seen[some], last[some] = signs @ sums.T / math.sqrt(size), signs @ moved
    ratios = seen @ filters - np.einsum("ij,ij->j", kept, filters) / 2
    unseen = plan.scenario.rounds - rounds  # which a budget has stopped: they say nothing
    scores = {"all models": plan.check_in.log_likelihood_ratio(np.pad(ratios, ((0, 0), (0, unseen))))}
    if not plan.scenario.known_seed:
        public = Attendance(
            plan.check_in, plan.scenario.rounds, plan.units, plan.scenario.seed, np.ones(len(coins), dtype=bool)
        )
        there = np.zeros(ratios.shape, dtype=bool)
        for number in range(rounds):
            cohort = public.cohort(number + 1)
            there[cohort[cohort >= CANARY] - CANARY, number] = True
        scores["all models, rounds by the public seed"] = (ratios * there).sum(1)
    scores["the last model"] = last / last.std()
    return tuple(Guesses(name, each, coins) for name, each in scores.items())


def _quiet(sums: Floats, shapes: Sequence[tuple[int, ...]]) -> tuple[Floats, Floats]:
    """Sums of rounds without what stands out of noise, and what is kept of a canary: [rounds, size], [rounds, rounds].

    Data move many rounds alike, and each array by a matrix of low rank; a canary's signs have full rank. So in the
    combinations of rounds with more than noise, singular values above those of noise (sqrt(rows) + sqrt(columns)
    standard deviations) are taken off. Too few coordinates for a covariance of rounds: nothing is taken off.
    """
    rounds, size = sums.shape
    values, vectors = np.linalg.eigh(sums @ sums.T / size)
    combined, noise, kept = vectors.T @ sums, math.sqrt(np.median(values)), np.ones(rounds)
    for index in np.flatnonzero(values > (noise * (1 + math.sqrt(rounds / size))) ** 2):
        place, left = 0, 0
        for shape in shapes:
            part = slice(place, place := place + math.prod(shape))
            matrix = combined[index, part].reshape(shape[0] if len(shape) > 1 else 1, -1)
            outer, sizes, inner = np.linalg.svd(matrix, full_matrices=False)
            rank = int((sizes > noise * sum(map(math.sqrt, matrix.shape))).sum())
            combined[index, part] -= ((outer[:, :rank] * sizes[:rank]) @ inner[:rank]).ravel()
            left += (matrix.shape[0] - rank) * (matrix.shape[1] - rank)
        kept[index] = left / size
    return vectors @ combined, (vectors * kept) @ vectors.T
