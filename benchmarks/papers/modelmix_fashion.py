"""Tables 1 and 3 of Xiao, Wan, Devadas 2022 on Fashion-MNIST: a linear model on scattering features, and on pixels.

Sampling rate, rounds, clipping norms and distances are those of appendix E for Fashion-MNIST; the paper trains a small
convolutional network there. A line has the best of three learning rates on 10,000 training records that are
held out; then models are trained on all 60,000, and tested on the 10,000 test images. Noise multipliers are fedamp's.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.papers import charges, linear
from benchmarks.papers.charges import Charged
from benchmarks.papers.drawing import OURS, Style, make_readable, save
from benchmarks.papers.linear import Records, Sampling, Training
from benchmarks.papers.record import RESULTS
from benchmarks.record import Kept, Row
from benchmarks.training import fashion_mnist
from fedamp.accounting import Compose, Gaussian, Mechanism, ModelMix, Poisson, Repeat

PAPER = "Xiao, Wan, Devadas 2022"
RECORDS, HELD_OUT, EXPECTED, ROUNDS, DELTA = 60_000, 10_000, 8192, 800, 1e-5
SEEDS, TUNING = (1, 2, 3), 0
TRAININGS = RESULTS / "modelmix-table-1.jsonl"
SCHEDULE = Sampling(ROUNDS, EXPECTED / RECORDS)
BUDGETS = (0.2, 1.0)
SCATTERING = ({"name": "scattering", "scales": 2, "angles": 4}, {"name": "group_norm", "groups": 25})


@dataclass(frozen=True)
class Method:
    """A line of the tables.

    Attributes:
        printed: the paper's accuracy in percent at 0.2 and 1, with its network.
        steps: learning rates times clipping norm that are tried; the paper's is 0.4 for both methods.
    """

    name: str
    clip: float
    gaps: tuple[float, ...]
    truncation: int
    printed: tuple[float, float]
    steps: tuple[float, ...]

    def training(self, step: float, noise_multiplier: float) -> Training:
        return Training(step / self.clip, self.clip, noise_multiplier, self.gaps, self.truncation)

    def noise_multiplier(self, epsilon: float) -> Charged:
        """The smallest that keeps (epsilon, 1e-5); the same for every learning rate, because distances grow with it."""
        return charges.noise(self.mechanism, epsilon, DELTA)

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """The whole training. A width is in clipping norms of the summed gradient."""
        if not self.gaps:
            return Repeat(Poisson(Gaussian(noise_multiplier), SCHEDULE.rate), ROUNDS)
        parts = (ModelMix(noise_multiplier, gap * EXPECTED / self.clip, self.truncation) for gap in self.gaps)
        return Compose(tuple(Repeat(Poisson(part, SCHEDULE.rate), ROUNDS // len(self.gaps)) for part in parts))


PLAIN = Method("DP-SGD", 0.1, (), 1, (53.4, 85.6), (0.4, 1.6, 6.4))
MIXED = Method("ModelMix", 1.0, (0.05, 0.025), 1, (83.9, 88.8), (0.1, 0.4, 1.6))
TRUNCATED = Method("ModelMix, p = 100", 1.0, (0.05, 0.025), 100, (83.9, 88.8), MIXED.steps)


@cache
def images(features: str) -> tuple[Records, Records]:
    """Training and test records of Fashion-MNIST: ``scattering`` or ``pixels``."""
    steps = SCATTERING if features == "scattering" else ({"name": "standardise", "mean": 0.2860, "deviation": 0.3530},)
    training, test = fashion_mnist(steps)
    return Records.of(*training), Records.of(*test)


def accuracies(features: str, trainings: Sequence[Training], seed: int) -> list[float]:
    """On the test set, trained on all training records; of the seed to tune with, on the last ones, which it leaves."""

    def made() -> dict[str, Any]:
        training, test = images(features)
        if seed == TUNING:
            first = RECORDS - HELD_OUT
            training, test = training.part(slice(0, first)), training.part(slice(first, RECORDS))
        models = linear.train(trainings, training, SCHEDULE, seed)
        return {"accuracies": [linear.accuracy(model, test) for model in models]}

    settings = {"features": features, "seed": seed, "trainings": [_as_stored(training) for training in trainings]}
    return list(Kept(TRAININGS).get(settings, made)["accuracies"])


def _as_stored(training: Training) -> dict[str, Any]:
    """With four digits of the noise, as a later accountant may calibrate its last ones otherwise."""
    return asdict(training) | {"noise_multiplier": float(f"{training.noise_multiplier:.4g}")}


@cache
def chosen(features: str) -> dict[tuple[Method, float | None], Training]:
    """The best training of each method at each budget; None: ModelMix without noise, as its best one at the largest."""
    cells = [(method, epsilon) for method in (PLAIN, MIXED) for epsilon in BUDGETS]
    candidates = {cell: [cell[0].training(step, noise(*cell)) for step in cell[0].steps] for cell in cells}
    every = [training for trainings in candidates.values() for training in trainings]
    reached = dict(zip(every, accuracies(features, every, TUNING), strict=True))
    best: dict[tuple[Method, float | None], Training] = {
        cell: max(trainings, key=lambda t: reached[t]) for cell, trainings in candidates.items()
    }
    for epsilon in BUDGETS:  # truncation does not move the best learning rate
        step = best[MIXED, epsilon].learning_rate * MIXED.clip
        best[TRUNCATED, epsilon] = TRUNCATED.training(step, noise(TRUNCATED, epsilon))
    best[MIXED, None] = replace(best[MIXED, BUDGETS[-1]], noise_multiplier=0.0)
    return best


@cache
def noise(method: Method, epsilon: float) -> Charged:
    """Of a budget."""
    return method.noise_multiplier(epsilon)


@cache
def reached(features: str) -> dict[tuple[Method, float | None], list[float]]:
    """Test accuracies of the chosen trainings, one a seed."""
    best = chosen(features)
    by_seed = [accuracies(features, list(best.values()), seed) for seed in SEEDS]
    return {cell: [values[index] for values in by_seed] for index, cell in enumerate(best)}


def table_1(path: Path) -> Sequence[Row]:
    """Accuracy at equal epsilon with and without ModelMix: linear models on Fashion-MNIST."""
    figure, (axes, theirs) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained", sharex=True, sharey=True)
    looks: dict[str, Style] = {"scattering": {"marker": "o"}, "pixels": {"marker": "s", "markerfacecolor": "white"}}
    grey: Style = {"color": "0.5", "linestyle": "--", "linewidth": 2.0}
    rows: list[Row] = []
    for features, look in looks.items():
        found, best = reached(features), chosen(features)
        for method, style in ((PLAIN, OURS), (MIXED, grey)):
            values = [np.mean(found[method, epsilon]) for epsilon in BUDGETS]
            axes.plot(BUDGETS, values, **style | look | {"label": f"{method.name}, {features}"})
        rows += [_row(features, cell, best[cell], found[cell]) for cell in found]
    for method, style in ((PLAIN, OURS), (MIXED, grey)):
        theirs.plot(BUDGETS, method.printed, **style | {"marker": "x", "label": method.name})
    axes.set(title="here: linear models")
    theirs.set(title="paper: convolutional network on scattering features")
    for each in (axes, theirs):
        each.set(xlabel="epsilon (delta 1e-5)", ylabel="test accuracy, %")
        make_readable(each)
        each.legend(fontsize=9)
    figure.suptitle(f"{PAPER}, Table 1, Fashion-MNIST", fontsize=11)
    save(figure, path)
    return rows


def _row(features: str, cell: tuple[Method, float | None], training: Training, values: Sequence[float]) -> Row:
    method, epsilon = cell
    budget = "no noise but the mixture" if epsilon is None else f"epsilon {epsilon:g}"
    return {
        "": f"{features}, {budget}, {method.name}",
        "paper, %": None if epsilon is None else method.printed[BUDGETS.index(epsilon)],
        "fedamp, %": f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}",
        "noise multiplier": None if epsilon is None else noise(method, epsilon),
    }
