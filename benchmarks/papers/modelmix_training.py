"""Figure 2 and Table 2 of Xiao, Wan, Devadas 2022 on real handwritten digits, by logistic regression.

CIFAR-10 and SVHN are not available offline, and ResNet-20 takes days of two cores. Poisson sampling of records, the
enforced distance in learning rates, the truncation, equal noise (Figure 2) and equal epsilon (Table 2) are the paper's.
Both methods have the best of several learning rates; the paper has one for each method. Results are stored in
``benchmarks/papers/modelmix-digits.jsonl``.
"""

import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

import fedamp
from benchmarks.papers import charges
from benchmarks.papers.charges import Charged
from benchmarks.papers.drawing import OURS, finish, make_readable, save, start
from benchmarks.papers.record import RESULTS
from benchmarks.record import Kept, Row
from benchmarks.training import train
from fedamp.accounting import Gaussian, Mechanism, ModelMix, Poisson, Repeat

PAPER = "Xiao, Wan, Devadas 2022"
RECORDS, CLIP, DELTA, SEEDS = 1437, 1.0, 1e-5, 3
TRAININGS = RESULTS / "modelmix-digits.jsonl"


@dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        rate: of Poisson sampling.
        gap: enforced distance of the mixed models, in learning rates; 0: plain DP-SGD.
        truncation: the paper's p.
        noise_multiplier: 0 trains without privacy.
    """

    rate: float
    rounds: int
    learning_rate: float
    gap: float = 0.0
    truncation: int = 1
    noise_multiplier: float = 0.0

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """The whole training with some noise. The width is in clipping norms of the summed gradient."""
        width = self.gap * self.rate * RECORDS / CLIP
        part = ModelMix(noise_multiplier, width, self.truncation) if self.gap else Gaussian(noise_multiplier)
        return Repeat(Poisson(part, self.rate), self.rounds)

    def noise(self, epsilon: float) -> Charged:
        """The smallest noise multiplier that keeps (epsilon, 1e-5); the same for every learning rate."""
        return charges.noise(self.mechanism, epsilon, DELTA)

    @property
    def words(self) -> str:
        """The method."""
        return f"ModelMix, tau = {self.gap:g} eta" if self.gap else "DP-SGD"

    def settings(self) -> dict[str, Any]:
        """As a scenario."""
        mixing = {"width": self.gap * self.learning_rate, "linf_coordinates": self.truncation}
        clip = CLIP if self.noise_multiplier else 1000.0  # without noise nothing needs to be clipped
        return {
            "name": "modelmix",
            "data": {"name": "digits"},
            "model": {"name": "logistic"},
            "rounds": self.rounds,
            "check_in": {"scheme": "poisson", "rate": self.rate},
            "client": {"learning_rate": 1.0},
            "server": {"learning_rate": self.learning_rate},
            "mixing": mixing if self.gap else None,
            "privacy": {
                "unit": "sample",
                "clip": clip,
                "noise_multiplier": float(self.noise_multiplier),
                "delta": DELTA,
            },
        }


def accuracies(training: Training, seed: int, evaluate_every: int | None = None) -> list[float]:
    """In percent, on the test set: after every so many rounds, or only at the end."""
    outcome = train(fedamp.load(training.settings(), seed=seed), evaluate_every)
    return [100 * accuracy for accuracy in (outcome.accuracies if evaluate_every else [outcome.accuracy])]


def train_all(trainings: Iterable[Training], evaluate_every: int | None = None) -> dict[Training, NDArray[np.float64]]:
    """Accuracies of every training, shape (seeds, tests)."""
    kept, trainings = Kept(TRAININGS), list(trainings)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        started = {
            (training, seed): pool.submit(accuracies, training, seed, evaluate_every)
            for training, seed in product(trainings, range(SEEDS))
            if kept.find(_asked(training, seed, evaluate_every)) is None
        }
        for (training, seed), result in started.items():
            kept.get(_asked(training, seed, evaluate_every), lambda: {"accuracies": result.result()})  # noqa: B023
    every = {
        training: [kept.find(_asked(training, seed, evaluate_every)) for seed in range(SEEDS)] for training in trainings
    }
    return {training: np.array([each["accuracies"] for each in found if each]) for training, found in every.items()}


def _asked(training: Training, seed: int, evaluate_every: int | None) -> dict[str, Any]:
    return {**asdict(training), "noise_multiplier": float(f"{training.noise_multiplier:.4g}"), "seed": seed} | (
        {"every": evaluate_every} if evaluate_every else {}
    )


# --- Figure 2 --------------------------------------------------------------------------------------------------------

CURVE: dict[str, Any] = {"rate": 0.05, "rounds": 600}
EVERY = 30
GREY, BLACK = {"color": "0.45"}, {"color": "black", "linewidth": 2.0}
# Learning rate, gap, look. The paper has learning rates 0.1 and 0.2 for ResNet-20; 4 is the best of plain DP-SGD here.
PANELS: dict[str, list[tuple[float, float, dict[str, Any]]]] = {
    "no noise": [
        (0.5, 0.0, GREY | {"linestyle": "-", "marker": "x"}),
        (0.5, 0.05, BLACK | {"linestyle": "-"}),
        (0.5, 0.1, BLACK | {"linestyle": ":"}),
    ],
    "equal noise": [
        (4.0, 0.0, GREY | {"linestyle": "-", "marker": "x"}),
        (8.0, 0.0, GREY | {"linestyle": "--", "marker": "o"}),
        (8.0, 0.05, BLACK | {"linestyle": "-"}),
        (8.0, 0.1, BLACK | {"linestyle": ":"}),
    ],
}


def figure_2(path: Path) -> Sequence[Row]:
    """Accuracy over rounds with and without ModelMix: no noise, and the noise that costs DP-SGD (8, 1e-5)."""
    noise = {"no noise": 0.0, "equal noise": Training(**CURVE, learning_rate=4.0).noise(8.0)}
    lines = {
        panel: [Training(**CURVE, learning_rate=r, gap=gap, noise_multiplier=noise[panel]) for r, gap, _ in lines]
        for panel, lines in PANELS.items()
    }
    curves = train_all((training for trainings in lines.values() for training in trainings), EVERY)
    figure, panels = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    rows: list[Row] = []
    for axes, (panel, trainings) in zip(panels, lines.items(), strict=True):
        for training, (*_, style) in zip(trainings, PANELS[panel], strict=True):
            values = curves[training].mean(axis=0)
            words = f"{training.words}, eta = {training.learning_rate:g}"
            axes.plot(EVERY * np.arange(1, len(values) + 1), values, label=words, **style)
            cost = training.mechanism(training.noise_multiplier) if training.noise_multiplier else None
            # The mean of the last five tests varies less than the last one.
            rows.append(
                {
                    "": f"{panel}, {words}",
                    "accuracy, %": float(curves[training][:, -5:].mean()),
                    "epsilon": None if cost is None else charges.epsilon(cost, DELTA),
                }
            )
        axes.set(title=panel, xlabel="rounds", ylabel="test accuracy, %")
        make_readable(axes)
        axes.legend(fontsize=9)
    figure.suptitle(f"{PAPER}, Figure 2, on digits: mean of {SEEDS} seeds")
    save(figure, path)
    return rows


# --- Table 2 ---------------------------------------------------------------------------------------------------------

BUDGETS = (1.0, 2.0, 4.0, 8.0)
SHORT: dict[str, Any] = {"rate": 0.1, "rounds": 150}
LEARNING_RATES = (0.5, 1.0, 2.0, 4.0)
GAPS = (0.05, 0.15)  # the second is the paper's
TRUNCATION = 25  # of 650 coordinates; the paper has 100 of 270,000


def table_2(path: Path) -> Sequence[Row]:
    """Accuracy at equal epsilon with and without ModelMix, each at its best learning rate."""
    gaps = (0.0, *GAPS)
    cells = {(gap, epsilon): _candidates(gap, epsilon) for gap in gaps for epsilon in (*BUDGETS, None)}
    reached = train_all(training for candidates in cells.values() for training in candidates)
    best = {cell: max(candidates, key=lambda t: reached[t].mean()) for cell, candidates in cells.items()}
    axes = start(f"{PAPER}, Table 2, on digits: mean of {SEEDS} seeds", "epsilon (delta 1e-5)", "test accuracy, %")
    looks = [OURS | {"marker": "x"}, {"linestyle": "--", "marker": "o"}, {"linestyle": ":", "marker": "^"}]
    for gap, style in zip(gaps, looks, strict=True):
        values = [reached[best[gap, epsilon]].mean() for epsilon in BUDGETS]
        words = best[gap, 1.0].words + (f", p = {TRUNCATION}" if gap else "")
        axes.plot(BUDGETS, values, **{"color": "0.4"} | style | {"label": words})
    axes.set_xscale("log", base=2)
    finish(axes, path)
    return [_cell(epsilon, [(best[gap, epsilon], reached) for gap in gaps]) for epsilon in (*BUDGETS, None)]


def _candidates(gap: float, epsilon: float | None) -> list[Training]:
    trainings = [Training(**SHORT, learning_rate=r, gap=gap, truncation=TRUNCATION) for r in LEARNING_RATES]
    noise = 0.0 if epsilon is None else trainings[0].noise(epsilon)
    return [replace(training, noise_multiplier=noise) for training in trainings]


def _cell(epsilon: float | None, found: Sequence[tuple[Training, dict[Training, NDArray[np.float64]]]]) -> Row:
    """A line of Table 2: accuracy with its spread, and the noise multiplier, of every method."""
    row: Row = {"epsilon": "no noise" if epsilon is None else f"{epsilon:g}"}
    for training, reached in found:
        values = reached[training]
        row[f"{training.words}, %"] = f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"
        row[f"noise, {training.words}"] = training.noise_multiplier
    return row


def of_cifar10(_: Path) -> Sequence[Row]:
    """The noise of epsilon 8 in the paper's setting for CIFAR-10 (appendix E): rate 0.03, 3,500 rounds, p = 100."""
    rate, rounds, width = 0.03, 3500, 0.15 * 1500 / 20

    def training(part: Mechanism) -> Mechanism:
        return Repeat(Poisson(part, rate), rounds)

    plain = charges.noise(lambda s: training(Gaussian(s)), 8.0, DELTA)
    mixed = charges.noise(lambda s: training(ModelMix(s, width, 100)), 8.0, DELTA)
    both = math.hypot(mixed, width / math.sqrt(12))
    return [
        {"": "noise multiplier of DP-SGD at epsilon 8", "fedamp": plain},
        {"": "noise multiplier of ModelMix at epsilon 8", "fedamp": mixed},
        {"": "the same with the mixture's uniform noise: standard deviation in clipping norms", "fedamp": both},
        {
            "": "epsilon of DP-SGD with that much normal noise",
            "fedamp": charges.epsilon(training(Gaussian(both)), DELTA),
        },
    ]
