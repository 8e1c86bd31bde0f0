"""Accuracy against epsilon of merged models: Figures 3 to 6 of Yin, Zaheer, Li 2026.

The paper's sampling rates, steps and noises, so that models cost what the paper's do, on data and models that train in
seconds.
"""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from safetensors.numpy import save_file

from benchmarks.papers import merging_models as models
from benchmarks.papers.drawing import Style, make_readable, save
from benchmarks.papers.merging_curves import (
    INPUTS,
    JOINT,
    PAPER,
    SELECTION,
    SELECTION_RDP,
    STEPS,
    STEPS_RDP,
    frontier,
)
from benchmarks.papers.merging_models import Job
from benchmarks.papers.merging_portfolio import DELTA, MNIST, Array, Portfolio, simplex
from benchmarks.papers.record import Comparison
from fedamp.models.networks import initial_parameters
from fedamp.models.section import Model
from fedamp.runs.folder import read_summary
from fedamp.runs.run import read_run
from fedamp.studies.merging.candidates import Candidates, read_candidates
from fedamp.studies.merging.selection import BY_PRIVACY_LOSS, best_weights

GROUPS = 3  # of models, each with noise of its own; accuracies are means over the groups
# In place of MNIST: as many images, and as large, so that all settings are the paper's.
FASHION = "data={name: fashion-mnist}"
NETWORK = "model={name: mlp, hidden: [32]}"

# Appendix H.2: 20 epochs of 50,000 records in batches of 256, noises that keep epsilon below 10 and 9 by Rényi. The
# learning rates are ten times those of the paper, whose network is thousands of times as large.
LONG_EPOCH = math.ceil(50_000 / 256)
SCRATCH = Portfolio(noises=(0.6, 0.6, 0.64), steps=(20 * LONG_EPOCH,) * 3, rate=256 / 50_000, scales=(0.05, 0.1, 0.1))
# The same: half of 50,000 records, batches of 256, 3 epochs, two learning rates at each of two noises.
TUNED = Portfolio(
    noises=(0.4, 0.4, 0.5, 0.5),
    steps=(3 * math.ceil(25_000 / 256),) * 4,
    rate=256 / 25_000,
    scales=(0.05, 0.1, 0.05, 0.1),
)
BEFORE = (
    NETWORK,
    "privacy.noise_multiplier=0",
    "privacy.clip=1000",
    "check_in.rate=0.1",
    "rounds=60",
    "server.learning_rate=0.2",
)
# Appendix H.3: one run, after so many epochs each.
EPOCH = math.ceil(60_000 / 256)
MNIST_CHECKPOINTS = Portfolio((0.5,) * 3, (EPOCH, 2 * EPOCH, 3 * EPOCH), 256 / 60_000, (0.1,) * 3)
LONG_CHECKPOINTS = Portfolio((0.6,) * 3, (12 * LONG_EPOCH, 16 * LONG_EPOCH, 20 * LONG_EPOCH), 256 / 50_000, (0.1,) * 3)

STYLES: dict[str, Style] = {
    "selection, Rényi": SELECTION_RDP,
    "selection, fedamp": SELECTION,
    "combination by steps, Rényi": STEPS_RDP,
    "combination by steps, privacy loss": STEPS,
    "combination, fedamp": JOINT,
}
Curves = dict[str, tuple[Array, Array]]
"""By name: epsilons, growing, and the best accuracy within each."""


def figure_3(path: Path) -> Sequence[Comparison]:
    """Accuracy against epsilon: three models with the paper's settings, logistic regression on Fashion-MNIST."""
    changes = [
        (FASHION, f"privacy.clip={clip}", f"privacy.noise_multiplier={noise}")
        for clip, noise in zip((1.0, 2.0, 1.0), MNIST.noises, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        groups = _train_groups(Path(folder), changes, MNIST)
        accuracies = models.alone(groups)
        curves = selection_curves(MNIST, accuracies) | combination_curves(MNIST, groups, 12)
    title = f"{PAPER}, Figure 3: logistic regression on Fashion-MNIST, δ = 1e-5"
    _draw(path, title, MNIST, accuracies, curves)
    names = ("C = 1, σ = 0.5", "C = 2, σ = 0.5", "C = 1, σ = 2")
    return [*_alone(names, MNIST, accuracies), *_within(curves, (2.0, 7.0))]


def figure_4(path: Path) -> Sequence[Comparison]:
    """Accuracy against epsilon: small networks on digits, each trained from a random start of its own."""
    section = Model(name="mlp", hidden=[32])
    with tempfile.TemporaryDirectory() as folder:
        starts = [Path(folder) / f"start-{model}.safetensors" for model in range(len(SCRATCH.noises))]
        for model, start in enumerate(starts):
            save_file(initial_parameters(section, (64,), 10, seed=model), start)
        changes = [
            (
                f"model={{name: mlp, hidden: [32], initial: {start}}}",
                f"server.learning_rate={rate}",
                f"privacy.noise_multiplier={noise}",
                f"check_in.rate={SCRATCH.rate!r}",
                f"rounds={SCRATCH.steps[0]}",
            )
            for start, rate, noise in zip(starts, SCRATCH.scales, SCRATCH.noises, strict=True)
        ]
        groups = _train_groups(Path(folder), changes, SCRATCH)
        accuracies = models.alone(groups)
        curves = selection_curves(SCRATCH, accuracies) | combination_curves(SCRATCH, groups, 12)
        rows = [[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5], [0.95, 0.05, 0], [0, 0.05, 0.95]]
        reached = models.combined(groups, np.array(rows))
    _draw(path, f"{PAPER}, Figure 4: from scratch; digits for CIFAR-10, δ = 1e-5", SCRATCH, accuracies, curves)
    sums = [
        Comparison(f"accuracy of the sum with weights {', '.join(map(str, row))}", None, float(accuracy))
        for row, accuracy in zip(rows, reached, strict=True)
    ]
    return [*_alone(_names(SCRATCH), SCRATCH, accuracies), *sums, *_within(curves, (8.0, 12.0))]


def figure_5(path: Path) -> Sequence[Comparison]:
    """Accuracy against epsilon: a small network on digits, first trained on other digits without privacy."""
    changes = [
        (f"server.learning_rate={rate}", f"privacy.noise_multiplier={noise}", f"rounds={TUNED.steps[0]}")
        for rate, noise in zip(TUNED.scales, TUNED.noises, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        first, second = models.write_halves(Path(folder))
        start = models.train(Job(Path(folder) / "start", "merging", (*BEFORE, f"data={{name: npz, path: {first}}}")))
        before = float(read_summary(start).final.accuracy)
        common = (
            f"data={{name: npz, path: {second}}}",
            f"model={{name: mlp, hidden: [32], initial: {start / 'model.safetensors'}}}",
            f"check_in.rate={TUNED.rate!r}",
        )
        groups = _train_groups(Path(folder), [(*change, *common) for change in changes], TUNED)
        accuracies = models.alone(groups)
        curves = selection_curves(TUNED, accuracies) | combination_curves(TUNED, groups, 6)
    _draw(path, f"{PAPER}, Figure 5: trained before; digits for CIFAR-10, δ = 1e-5", TUNED, accuracies, curves)
    numbers = [Comparison("accuracy before training with privacy", None, before)]
    return [*numbers, *_alone(_names(TUNED), TUNED, accuracies), *_within(curves, (9.0, 18.5))]


def figure_6(path: Path) -> Sequence[Comparison]:
    """Accuracy against epsilon: random selection among checkpoints of one run."""
    network = (
        NETWORK,
        "privacy.noise_multiplier=0.6",
        f"check_in.rate={LONG_CHECKPOINTS.rate!r}",
        "server.learning_rate=0.01",
    )
    panels: list[tuple[str, Portfolio, tuple[str, ...], tuple[int, ...], tuple[float, ...]]] = [
        ("logistic regression on Fashion-MNIST", MNIST_CHECKPOINTS, (FASHION,), (1, 2, 3), (6.2, 8.6)),
        ("small network; digits for CIFAR-10", LONG_CHECKPOINTS, network, (12, 16, 20), (6.8, 8.8)),
    ]
    figure, all_axes = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    figure.suptitle(f"{PAPER}, Figure 6: random selection among checkpoints of one run, δ = 1e-5", fontsize=11)
    numbers = []
    for axes, (words, portfolio, overrides, epochs, budgets) in zip(all_axes, panels, strict=True):
        with tempfile.TemporaryDirectory() as folder:
            accuracies = models.alone([_train_checkpoints(Path(folder), portfolio, overrides)])
        curves = selection_curves(portfolio, accuracies)
        _draw_curves(axes, words, portfolio, accuracies, curves)
        axes.set_xscale("linear")
        numbers += _alone([f"{words}, after epoch {epoch}" for epoch in epochs], portfolio, accuracies)
        numbers += _within({f"{words}, {key}": curve for key, curve in curves.items()}, budgets)
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    save(figure, path)
    return numbers


# --- the models -------------------------------------------------------------------------------------------------------


def _train_groups(folder: Path, changes: Sequence[tuple[str, ...]], portfolio: Portfolio) -> list[Candidates]:
    """The same models several times, each with noise of its own."""
    jobs = [
        Job(folder / f"{group}-{model}", "merging", change, noise_seed=100 * group + model)
        for group in range(GROUPS)
        for model, change in enumerate(changes)
    ]
    runs, size = models.train_all(jobs), len(changes)
    return [_read(runs[size * group : size * (group + 1)], portfolio) for group in range(GROUPS)]


def _train_checkpoints(folder: Path, portfolio: Portfolio, overrides: tuple[str, ...]) -> Candidates:
    """Models of one run after the rounds of a portfolio.

    A run keeps its last two checkpoints; an earlier one is the last model of a run that stops there, to the last bit.
    """
    first, middle, last = portfolio.steps
    every = f"federation.checkpoint_every={last - middle}"
    long = Job(folder / "long", "merging", (*overrides, every, f"rounds={last}"))
    short = Job(folder / "short", "merging", (*overrides, every, f"rounds={first}"))
    models.train_all([long, short])
    releases = [read_run(job.folder).ledger.releases[first - 1].digest for job in (long, short)]
    assert releases[0] == releases[1]
    return _read([short.folder, f"{long.folder}@{middle}", long.folder], portfolio)


def _read(runs: Sequence[Path | str], portfolio: Portfolio) -> Candidates:
    """As ``fedamp merge`` reads them; what their ledgers say is what the curves charge for."""
    candidates = read_candidates([str(run) for run in runs])
    assert candidates.mechanisms == portfolio.mechanisms
    return candidates


# --- the curves -------------------------------------------------------------------------------------------------------


def selection_curves(portfolio: Portfolio, accuracies: Array) -> Curves:
    """Best expected accuracy of random selection within each epsilon: by Rényi as the paper has it, and by fedamp."""
    weights = np.concatenate([simplex(len(accuracies), 12), _rare(len(accuracies))])
    costs = [mechanism.epsilon(DELTA).upper for mechanism in portfolio.mechanisms]
    low, high = min(costs), max(costs)
    budgets = np.unique(np.clip(np.concatenate([np.geomspace(low, high, 20), np.linspace(low, high, 30)]), low, high))
    best = [
        best_weights(portfolio.mechanisms, lambda row: float(np.dot(row, accuracies)), float(budget), DELTA)
        for budget in budgets
    ]
    ours = np.array([np.dot(found[BY_PRIVACY_LOSS], accuracies) for found in best])
    return {
        "selection, Rényi": frontier(portfolio.selection_by_rdp(weights), weights @ accuracies),
        "selection, fedamp": (budgets, ours),
    }


def _rare(count: int) -> Array:
    """Weights of two models each, one of them rare; shape (rows, count)."""
    share = np.geomspace(1e-9, 1, 60)[:-1, None]
    corners = np.eye(count)
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    return np.concatenate([(1 - share) * corners[one] + share * corners[other] for one, other in pairs])


def combination_curves(portfolio: Portfolio, groups: Sequence[Candidates], steps: int) -> Curves:
    """Best accuracy of linear combination within each epsilon: by the paper's steps, and as fedamp charges it."""
    weights = simplex(len(portfolio.noises), steps)
    accuracies = models.combined(groups, weights)
    return {
        "combination by steps, Rényi": frontier(portfolio.steps_by_rdp(weights), accuracies),
        "combination by steps, privacy loss": frontier(portfolio.steps_by_loss(weights), accuracies),
        "combination, fedamp": frontier(portfolio.joint(weights), accuracies),
    }


# --- pictures and numbers ---------------------------------------------------------------------------------------------


def _draw(path: Path, title: str, portfolio: Portfolio, accuracies: Array, curves: Curves) -> None:
    figure, axes = plt.subplots(figsize=(7, 5.2), layout="constrained")
    _draw_curves(axes, title, portfolio, accuracies, curves)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    save(figure, path)


def _draw_curves(axes: Axes, title: str, portfolio: Portfolio, accuracies: Array, curves: Curves) -> None:
    for name, (epsilons, best) in curves.items():
        axes.plot(epsilons, 100 * best, **STYLES[name] | {"markevery": max(1, len(best) // 8)})
    alone = [mechanism.epsilon(DELTA).upper for mechanism in portfolio.mechanisms]
    axes.plot(alone, 100 * accuracies, **INPUTS)
    axes.set_title(title, fontsize=11)
    axes.set(xlabel="epsilon, at most", ylabel="accuracy on the test set, %", xscale="log")
    make_readable(axes)


def _names(portfolio: Portfolio) -> list[str]:
    pairs = zip(portfolio.scales, portfolio.noises, strict=True)
    return [f"learning rate {rate:g}, σ = {noise:g}" for rate, noise in pairs]


def _alone(names: Sequence[str], portfolio: Portfolio, accuracies: Array) -> list[Comparison]:
    costs = [mechanism.epsilon(DELTA).upper for mechanism in portfolio.mechanisms]
    return [
        Comparison(f"{name}, epsilon {cost:.3g}: accuracy", None, float(accuracy))
        for name, cost, accuracy in zip(names, costs, accuracies, strict=True)
    ]


def _within(curves: Curves, budgets: Sequence[float]) -> list[Comparison]:
    """The best accuracy of every curve within some budgets."""
    numbers = []
    for budget in budgets:
        for name, (epsilons, best) in curves.items():
            if (epsilons <= budget).any():
                remark = "not a privacy bound" if "by steps" in name else ""
                accuracy = float(best[epsilons <= budget].max())
                numbers.append(Comparison(f"within epsilon {budget:g}: {name}", None, accuracy, remark))
    return numbers
