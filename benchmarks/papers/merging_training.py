"""Models to merge for Figures 3 to 6 of Yin, Zaheer, Li 2026: trained with the paper's rates, steps and noises.

The paper's sampling rates, steps and noise multipliers decide the epsilons. The data and models are ones that train in
seconds. Results are stored in ``benchmarks/papers/merging.jsonl``.
"""

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_digits

import fedamp
from benchmarks.papers.merging_costs import Array, Portfolio
from benchmarks.papers.record import RESULTS
from benchmarks.record import Kept
from benchmarks.training import evaluator, train

Settings = Mapping[str, Any]
GROUPS, SEED = 3, 42  # models are trained three times, with their own check-ins and noise; the seed is the paper's
TRAININGS = RESULTS / "merging.jsonl"
FASHION: Settings = {"data": {"name": "fashion-mnist"}}
PUBLIC = {"name": "npz", "test_is_public": True}
NETWORK: Settings = {"model": {"name": "mlp", "hidden": [32]}}

# Appendix H.2: 50,000 records in batches of 256, 20 epochs; and 3 epochs of half of them. Learning rates are ten times
# the paper's, because the networks are thousands of times smaller.
LONG_EPOCH = math.ceil(50_000 / 256)
SCRATCH = Portfolio((0.6, 0.6, 0.64), (20 * LONG_EPOCH,) * 3, 256 / 50_000, (0.05, 0.1, 0.1))
TUNED = Portfolio((0.4, 0.4, 0.5, 0.5), (3 * math.ceil(25_000 / 256),) * 4, 256 / 25_000, (0.05, 0.1, 0.05, 0.1))
BEFORE: Settings = {
    "privacy.noise_multiplier": 0,
    "privacy.clip": 1000,
    "check_in.rate": 0.1,
    "rounds": 60,
    "server.learning_rate": 0.2,
}
# Appendix H.3: one run, after some epochs.
EPOCH = math.ceil(60_000 / 256)
MNIST_CHECKPOINTS = Portfolio((0.5,) * 3, (EPOCH, 2 * EPOCH, 3 * EPOCH), 256 / 60_000, (0.1,) * 3)
LONG_CHECKPOINTS = Portfolio((0.6,) * 3, (12 * LONG_EPOCH, 16 * LONG_EPOCH, 20 * LONG_EPOCH), 256 / 50_000, (0.1,) * 3)


class Trained(NamedTuple):
    """Accuracies on the test set, means over groups: of the models, and of weighted sums of them."""

    alone: Array
    sums: Array
    before: float | None = None  # of the common start


def settings_of(portfolio: Portfolio, common: Settings) -> list[dict[str, Any]]:
    """The scenario's changes for every model of a portfolio."""
    return [
        {
            "privacy.noise_multiplier": noise,
            "rounds": steps,
            "check_in.rate": portfolio.rate,
            "server.learning_rate": learning_rate,
            **common,
        }
        for noise, steps, learning_rate in zip(portfolio.noises, portfolio.steps, portfolio.scales, strict=True)
    ]


def on_fashion_mnist(portfolio: Portfolio, weights: Array) -> Trained:
    """Figure 3: logistic regression with three pairs of clipping norm and noise."""
    models = [
        {**one, "server.learning_rate": 0.1, "privacy.clip": round(scale / 0.1, 9)}
        for one, scale in zip(settings_of(portfolio, FASHION), portfolio.scales, strict=True)
    ]
    return _kept("figure_3", models, lambda _: (models, None), weights)


def from_scratch(portfolio: Portfolio, weights: Array) -> Trained:
    """Figure 4: small networks on digits, each with its own random start."""
    models = [{**one, "seed": SEED + index} for index, one in enumerate(settings_of(portfolio, NETWORK))]

    def on_digits(folder: Path) -> tuple[list[Settings], None]:
        whole, _ = write_digits(folder)
        return [{**one, "data": PUBLIC | {"path": str(whole)}} for one in models], None

    return _kept("figure_4", models, on_digits, weights)


def after_training_in_public(portfolio: Portfolio, weights: Array) -> Trained:
    """Figure 5: one small network, trained on half of the digits without privacy, then on the other half with it."""
    models = settings_of(portfolio, {})

    def from_a_start(folder: Path) -> tuple[list[Settings], float]:
        _, (first, second) = write_digits(folder)
        start = train(fedamp.load("merging", **BEFORE, **NETWORK, data=PUBLIC | {"path": str(first)}))
        save_file(start.parameters, folder / "start")
        model = {"name": "mlp", "hidden": [32], "initial": str(folder / "start")}
        return [{**one, "model": model, "data": PUBLIC | {"path": str(second)}} for one in models], start.accuracy

    return _kept("figure_5", models, from_a_start, weights)


def checkpoints(portfolio: Portfolio, common: Settings) -> Array:
    """Figure 6: accuracies of one run after the steps of a portfolio, shape (models,)."""
    run = settings_of(portfolio, common)[-1]
    every = math.gcd(*portfolio.steps)

    def made() -> dict[str, Any]:
        reached = train(fedamp.load("merging", **run), every).accuracies
        return {"alone": [reached[steps // every - 1] for steps in portfolio.steps]}

    return np.array(Kept(TRAININGS).get({"figure": "figure_6", "run": run}, made)["alone"])


def write_digits(folder: Path) -> tuple[Path, tuple[Path, Path]]:
    """The digits as folders of arrays with one test set: all training records, and two halves of them."""
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    test, training = order[:360], order[360:]
    folders = []
    for name, records in (("whole", training), ("first", training[::2]), ("second", training[1::2])):
        (folder / name).mkdir()
        for file, chosen in (("train", records), ("test", test)):
            inputs = (digits.data[chosen] / 16).astype(np.float32)
            np.savez(folder / name / f"{file}.npz", x=inputs, y=digits.target[chosen].astype(np.int64))
        folders.append(folder / name)
    return folders[0], (folders[1], folders[2])


def _kept(
    figure: str,
    models: Sequence[Settings],
    prepared: Callable[[Path], tuple[Sequence[Settings], float | None]],
    weights: Array,
) -> Trained:
    """The stored accuracies, or those of models trained now. ``prepared`` adds the places of data and starts."""

    def made() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as scratch:
            complete, before = prepared(Path(scratch))
            return _train(complete, weights) | {"before": before}

    found = Kept(TRAININGS).get({"figure": figure, "models": models, "weights": len(weights)}, made)
    return Trained(np.array(found["alone"]), np.array(found["sums"]), found["before"])


def _train(models: Sequence[Settings], weights: Array) -> dict[str, Any]:
    jobs = [(one, SEED + len(models) * group + index) for group in range(GROUPS) for index, one in enumerate(models)]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        trained = list(pool.map(_parameters, *zip(*jobs, strict=True)))
    evaluate = evaluator(fedamp.load("merging", **models[0]))
    groups = [trained[start : start + len(models)] for start in range(0, len(trained), len(models))]

    def mean(row: Array) -> float:
        return round(float(np.mean([evaluate(weighted_sum(group, row)) for group in groups])), 6)

    return {"alone": [mean(row) for row in np.eye(len(models))], "sums": [mean(row) for row in weights]}


def _parameters(settings: Settings, seed: int) -> dict[str, Any]:
    return dict(train(fedamp.load("merging", **settings), seed=seed).parameters)


def weighted_sum(models: Sequence[Mapping[str, Any]], weights: Array) -> dict[str, Any]:
    """The linear combination of models' parameters."""
    return {
        name: np.tensordot(weights, np.stack([model[name] for model in models]), 1).astype(np.float32)
        for name in models[0]
    }
