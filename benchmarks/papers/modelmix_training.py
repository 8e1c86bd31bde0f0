"""Figure 2 and Table 2 of Xiao, Wan, Devadas 2022 on real handwritten digits, by logistic regression.

Their data sets are not at hand offline, and ResNet-20 would take days of two cores. What carries over is kept: Poisson
sampling of records, the enforced distance in learning rates, the truncation, equal noise (Figure 2) or equal epsilon
(Table 2). Every learning rate is tried for both methods, where the paper has one for each.
"""

import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.papers.drawing import OURS, finish, make_readable, save, start
from benchmarks.papers.record import Comparison
from benchmarks.training import train
from fedamp.accounting import Gaussian, Mechanism, ModelMix, Poisson, Repeat, calibrate
from fedamp.federation import reader
from fedamp.federation.plan import make_plan
from fedamp.federation.scenario import Scenario

PAPER = "Xiao, Wan, Devadas 2022"
RECORDS, CLIP, DELTA, SEEDS = 1437, 1.0, 1e-5, 3


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

    def scenario(self, seed: int, privacy: dict[str, Any] | None = None) -> Scenario:
        """As a scenario; ``privacy`` overrides some of its keys."""
        mixing = {"width": self.gap * self.learning_rate, "linf_coordinates": self.truncation}
        # Without noise there is nothing to clip for: the norm is far above any gradient's.
        clip = CLIP if self.noise_multiplier or privacy else 1000.0
        return reader.validate(
            {
                "name": "modelmix",
                "seed": seed,
                "data": {"name": "digits"},
                "model": {"name": "logistic"},
                "rounds": self.rounds,
                "check_in": {"scheme": "poisson", "rate": self.rate},
                "client": {"learning_rate": 1.0},
                "server": {"learning_rate": self.learning_rate},
                "mixing": mixing if self.gap else None,
                "privacy": {"unit": "sample", "clip": clip, "noise_multiplier": self.noise_multiplier}
                | {"epsilon": None, "delta": DELTA}
                | (privacy or {}),
            },
            "modelmix",
        )

    def calibrated(self, epsilon: float) -> "Training":
        """The same with the least noise that keeps (epsilon, 1e-5)."""
        budget = {"epsilon": epsilon, "noise_multiplier": "auto"}
        noise = make_plan(self.scenario(0, budget), RECORDS).noise_multiplier
        return replace(self, noise_multiplier=noise)

    def epsilon(self) -> float:
        """What it costs."""
        return make_plan(self.scenario(0), RECORDS).planned_epsilon.upper


def accuracies(training: Training, seed: int, evaluate_every: int | None = None) -> np.ndarray:
    """In percent, on the test set: after every so many rounds, or only at the end."""
    outcome = train(training.scenario(seed), evaluate_every)
    return 100 * np.array(outcome.accuracies if evaluate_every else [outcome.accuracy])


def train_all(trainings: Iterable[Training], evaluate_every: int | None = None) -> dict[Training, np.ndarray]:
    """Accuracies of every training, shape (seeds, tests), several trainings at the same time."""
    trainings = list(trainings)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        asked = list(product(trainings, range(SEEDS)))
        done = list(pool.map(partial(accuracies, evaluate_every=evaluate_every), *zip(*asked, strict=True)))
    return {training: np.array(done[i * SEEDS : (i + 1) * SEEDS]) for i, training in enumerate(trainings)}


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


def figure_2(path: Path) -> Sequence[Comparison]:
    """Accuracy over rounds with and without ModelMix: no noise, and the noise that costs DP-SGD (8, 1e-5)."""
    noise = {"no noise": 0.0, "equal noise": Training(**CURVE, learning_rate=4.0).calibrated(8.0).noise_multiplier}
    lines = {
        panel: [Training(**CURVE, learning_rate=r, gap=gap, noise_multiplier=noise[panel]) for r, gap, _ in lines]
        for panel, lines in PANELS.items()
    }
    curves = train_all((training for trainings in lines.values() for training in trainings), EVERY)
    figure, panels = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    for axes, (panel, trainings) in zip(panels, lines.items(), strict=True):
        for training, (*_, style) in zip(trainings, PANELS[panel], strict=True):
            values = curves[training].mean(axis=0)
            axes.plot(EVERY * np.arange(1, len(values) + 1), values, label=_words(training), **style)
        axes.set(title=panel, xlabel="rounds", ylabel="test accuracy, %")
        make_readable(axes)
        axes.legend(fontsize=9)
    figure.suptitle(f"{PAPER}, Figure 2, on digits: mean of {SEEDS} seeds")
    save(figure, path)
    return [
        _final(f"{panel}, {_words(training)}", training, curves[training])
        for panel, trainings in lines.items()
        for training in trainings
    ]


def _words(training: Training) -> str:
    mixing = f"ModelMix, tau = {training.gap:g} eta" if training.gap else "SGD"
    return f"{mixing}, eta = {training.learning_rate:g}"


def _final(words: str, training: Training, curves: np.ndarray) -> Comparison:
    """Mean of the last five tests, which jump less than the last one."""
    cost = f"epsilon {training.epsilon():.2f}" if training.noise_multiplier else ""
    return Comparison(f"accuracy, {words}, %", None, float(curves[:, -5:].mean()), cost)


# --- Table 2 ---------------------------------------------------------------------------------------------------------

BUDGETS = (1.0, 2.0, 4.0, 8.0)
SHORT: dict[str, Any] = {"rate": 0.1, "rounds": 150}
LEARNING_RATES = (0.5, 1.0, 2.0, 4.0)
GAPS = (0.05, 0.15)  # the second is the paper's
TRUNCATION = 25  # of 650 coordinates; the paper has 100 of 270,000


def table_2(path: Path) -> Sequence[Comparison]:
    """Accuracy at equal epsilon with and without ModelMix, each at its best learning rate."""
    cells = {(gap, epsilon): _candidates(gap, epsilon) for gap in (0.0, *GAPS) for epsilon in (*BUDGETS, None)}
    reached = train_all(training for candidates in cells.values() for training in candidates)
    best = {cell: max(candidates, key=lambda t: reached[t].mean()) for cell, candidates in cells.items()}
    axes = start(f"{PAPER}, Table 2, on digits: mean of {SEEDS} seeds", "epsilon (delta 1e-5)", "test accuracy, %")
    look = [{"linestyle": "--", "marker": "o"}, {"linestyle": ":", "marker": "^"}]
    for gap, style in zip((0.0, *GAPS), (OURS | {"marker": "x"}, *look), strict=True):
        values = [reached[best[gap, epsilon]].mean() for epsilon in BUDGETS]
        words = f"ModelMix, tau = {gap:g} eta, p = {TRUNCATION}" if gap else "DP-SGD"
        axes.plot(BUDGETS, values, **{"color": "0.4"} | style | {"label": words})
    axes.set_xscale("log", base=2)
    finish(axes, path)
    numbers = [_cell(gap, epsilon, best[gap, epsilon], reached) for epsilon in (*BUDGETS, None) for gap in (0.0, *GAPS)]
    return [*numbers, *_noise_of_the_paper()]


def _candidates(gap: float, epsilon: float | None) -> list[Training]:
    trainings = [Training(**SHORT, learning_rate=r, gap=gap, truncation=TRUNCATION) for r in LEARNING_RATES]
    if epsilon is None:
        return trainings
    noise = trainings[0].calibrated(epsilon).noise_multiplier  # the gap in steps is the same at every learning rate
    return [replace(training, noise_multiplier=noise) for training in trainings]


def _cell(gap: float, epsilon: float | None, best: Training, reached: dict[Training, np.ndarray]) -> Comparison:
    words = f"ModelMix, tau = {gap:g} eta" if gap else "DP-SGD"
    budget = "no noise" if epsilon is None else f"epsilon {epsilon:g}"
    spread = reached[best].std(ddof=1)
    remark = f"noise multiplier {best.noise_multiplier:.2f}, learning rate {best.learning_rate:g}, +- {spread:.1f}"
    return Comparison(f"{budget}, {words}, accuracy, %", None, float(reached[best].mean()), remark)


def _noise_of_the_paper() -> list[Comparison]:
    """What epsilon 8 takes in the paper's own setting for CIFAR-10 (appendix E): rate 0.03, 3,500 rounds, p = 100."""
    rate, rounds, width = 0.03, 3500, 0.15 * 1500 / 20

    def training(part: Mechanism) -> Mechanism:
        return Repeat(Poisson(part, rate), rounds)

    plain = calibrate(lambda s: training(Gaussian(s)), 8.0, DELTA)
    mixed = calibrate(lambda s: training(ModelMix(s, width, 100)), 8.0, DELTA)
    both = math.hypot(mixed, width / math.sqrt(12))
    words = "CIFAR-10 as in the paper, epsilon 8"
    return [
        Comparison(f"{words}: noise multiplier of DP-SGD", None, plain),
        Comparison(f"{words}: noise multiplier of ModelMix", None, mixed),
        Comparison(f"{words}: standard deviation with the mixture's noise, clipping norms", None, both),
        Comparison(
            "epsilon of DP-SGD with that much normal noise", None, training(Gaussian(both)).epsilon(DELTA).upper
        ),
    ]
