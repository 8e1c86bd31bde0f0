"""Audit a real run, once: guess from its released models which canaries were in (``privacy.canaries``).

Each canary is in or out by a secret coin. One that is in adds a vector of public random signs, as long as the clip, in
the hidden rounds of its check-in. The attacker knows the vectors, the scenario and all released models. The number of
right guesses bounds the leak from below, after one run (Steinke, Nasr, Jagielski 2023).

:mod:`fedamp.extensions.audit.kept_models` has kept the models and the coins in the run folder.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from fedamp import rng
from fedamp.accounting.arithmetic import Array
from fedamp.base.arrays import Arrays
from fedamp.base.devices import usual_state
from fedamp.base.reading import read_regular
from fedamp.errors import RunFolderError
from fedamp.extensions.audit.bound import AttackGuesses, AuditResult
from fedamp.extensions.audit.kept_models import kept_in
from fedamp.federation.check_in import CANARY, Attendance
from fedamp.federation.kept_answers import KEPT
from fedamp.federation.plan import Plan, make_plan, privacy_units
from fedamp.federation.reader import load as load_scenario
from fedamp.runs.folder import RunFolder
from fedamp.runs.total import total

_AT_ONCE = 1 << 25  # signs in memory
_FEW = 4  # coordinates a round, below which a covariance of rounds says too little


@usual_state()
def audit_runs(folders: Sequence[Path]) -> AuditResult:
    """Guess the coins of the canaries of a run that has ended, from its released models; or of a series of runs.

    A unit of a series is a canary of each run, and was in all of them or in none. So canaries whose coins were alike
    are put together, as many of each kind. The attacker adds what it learned from each run.

    Args:
        folders: of the runs.

    Raises:
        RunFolderError: a run without canaries, or that has not ended; two runs of a series are not independent.
    """
    adaptive = total(folders)["adaptive_epsilon"] if len(folders) > 1 else None
    plans, found = zip(*map(_of_run, folders), strict=True)
    present = [(int(each[0].coins.sum()), plan.units) for each, plan in zip(found, plans, strict=True)]
    share = max(canaries / (canaries + people) for canaries, people in present)
    told = {"canaries": len(found[0][0].coins), "share_of_cohort": share}
    if len(folders) == 1:
        return AuditResult(plans, found[0], told=told)
    pairs = min(int(min(each[0].coins.sum(), (~each[0].coins).sum())) for each in found)
    coins, names = np.arange(2 * pairs) < pairs, [guesses.attack for guesses in found[0]]
    if not pairs:
        raise RunFolderError(f"{folders[0]}: too few canaries; expected: some of each coin in each run")
    if any([guesses.attack for guesses in each] != names for each in found):
        names = ["all models"]
    scores = {name: np.zeros(2 * pairs) for name in names}
    for each in found:
        for guesses in each:
            if guesses.attack in scores:
                both = [guesses.scores[guesses.coins == coin][:pairs] for coin in (True, False)]
                scores[guesses.attack] += np.concatenate(both)
    together = tuple(AttackGuesses(name, values, coins) for name, values in scores.items())
    told["canaries"] = 2 * pairs
    return AuditResult(plans, together, told=told, adaptive=adaptive)


def _of_run(folder: Path) -> tuple[Plan, tuple[AttackGuesses, ...]]:
    """Read a run's plan, models and coins, and attack it."""
    files = RunFolder(folder)
    kept = kept_in(files)
    if not (kept / "coins.json").exists():
        raise RunFolderError(f"{folder}: no canaries to guess; expected: an ended run with privacy.canaries")
    scenario = load_scenario(files.scenario)
    plan = make_plan(scenario, privacy_units(scenario), answers=KEPT)
    coins = np.array(json.loads(read_regular(kept / "coins.json")), dtype=bool)
    rounds = len(list(kept.glob("*.safetensors"))) - 1
    models = [load(read_regular(kept / f"{number}.safetensors")) for number in range(rounds + 1)]
    return plan, attack(plan, models, coins)


def attack(plan: Plan, models: Sequence[Arrays], coins: NDArray[np.bool_]) -> tuple[AttackGuesses, ...]:
    """Guess the coins of a run by each attack.

    The steps of the server are undone: the noisy sum of each round follows from the models. The part that follows from
    other units' data is taken off (:func:`_without_outliers`), and the rounds are whitened by the covariance of the
    sums. So a round's product with a canary's vector is a log-likelihood ratio, and the hidden rounds are averaged over
    as they are charged: the strongest statistic (Neyman, Pearson 1933).

    Args:
        plan: of the run.
        models: before the first round, and after each.
        coins: bool [canaries], which were in.

    Returns:
        Guesses from all models first; then with the check-ins that the public seed would draw, if the seed is secret;
        then from the last model alone.
    """
    trained = sorted(name for name in models[0] if not np.array_equal(models[0][name], models[-1][name]))
    flat = np.stack([np.concatenate([model[name].ravel() for name in trained]) for model in models])
    rounds, size, optimizer, part = len(models) - 1, flat.shape[1], plan.scenario.server, plan.parts[0]
    steps = np.diff(flat.astype(np.float64), axis=0) / optimizer.learning_rate
    steps[1:] -= optimizer.momentum * steps[:-1]
    sums, kept = _without_outliers(steps * (part.denominator / part.clip), [models[0][name].shape for name in trained])
    covariance = sums @ sums.T / size
    filters = np.linalg.inv(covariance if _FEW * rounds < size else np.diag(np.diag(covariance))) @ kept
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
            cohort = public.cohort_of(number + 1)
            there[cohort[cohort >= CANARY] - CANARY, number] = True
        scores["all models, rounds by the public seed"] = (ratios * there).sum(1)
    scores["the last model"] = last / last.std()
    return tuple(AttackGuesses(name, each, coins) for name, each in scores.items())


def _without_outliers(sums: Array, shapes: Sequence[tuple[int, ...]]) -> tuple[Array, Array]:
    """Take off the sums of rounds what stands out of noise.

    Data move many rounds alike, and each array by a matrix of low rank; a canary's signs have full rank. So in the
    combinations of rounds with more than noise, singular values above those of noise (sqrt(rows) + sqrt(columns)
    standard deviations) are taken off. Too few coordinates for a covariance of rounds: nothing is taken off.

    Args:
        sums: float64 [rounds, size], in clips.
        shapes: of the arrays that lie in a row of ``sums``.

    Returns:
        The sums that are left [rounds, size], and what is kept of a canary [rounds, rounds].
    """
    rounds, size = sums.shape
    if _FEW * rounds >= size:
        return sums, np.eye(rounds)
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
