"""Accuracy against epsilon of merged models: Figures 3 to 6 of Yin, Zaheer, Li 2026."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from benchmarks.papers import merging_training as training
from benchmarks.papers.drawing import Style, make_readable, save
from benchmarks.papers.merging_costs import (
    INPUTS,
    JOINT,
    MNIST,
    PAPER,
    SELECTION,
    SELECTION_RDP,
    STEPS,
    STEPS_RDP,
    Array,
    Portfolio,
    frontier,
    selection_by_rdp,
    simplex,
)
from benchmarks.papers.merging_training import LONG_CHECKPOINTS, MNIST_CHECKPOINTS, SCRATCH, TUNED, Trained
from benchmarks.record import Row

STYLES: dict[str, Style] = {
    "selection, Rényi": SELECTION_RDP,
    "selection, fedamp": SELECTION,
    "by steps, Rényi: no bound": STEPS_RDP,
    "by steps, privacy loss: no bound": STEPS,
    "combination, fedamp": JOINT,
}
Curves = dict[str, tuple[Array, Array]]
"""By name: epsilons, growing, and the best accuracy within each."""


class Experiment(NamedTuple):
    """Models of the paper, on data and networks that train in seconds.

    Attributes:
        trained: trains the models of a portfolio, and evaluates weighted sums of them.
        weights: of the sums, shape (rows, models).
        parts: curves of sums have the weights that are whole parts of this; the cost of all weights would take minutes.
        budgets: epsilons at which the tables show the curves.
    """

    words: str
    portfolio: Portfolio
    trained: Callable[[Portfolio, Array], Trained]
    weights: Array
    parts: int
    budgets: tuple[float, float]


FASHION = Experiment("Fashion-MNIST", MNIST, training.on_fashion_mnist, simplex(3, 12), 12, (2.0, 7.0))
DIGITS = Experiment("digits, from scratch", SCRATCH, training.from_scratch, simplex(3, 20), 10, (8.0, 12.0))
AFTER = Experiment("digits, trained before", TUNED, training.after_training_in_public, simplex(4, 6), 3, (9.0, 18.5))


def figure_3(path: Path) -> Sequence[Row]:
    """Accuracy against epsilon: three models with the paper's settings, logistic regression on Fashion-MNIST."""
    title = f"{PAPER}, Figure 3: logistic regression on Fashion-MNIST, δ = 1e-5"
    trained = FASHION.trained(MNIST, FASHION.weights)
    return _made(path, title, FASHION, trained, ("C = 1, σ = 0.5", "C = 2, σ = 0.5", "C = 1, σ = 2"))


def figure_4(path: Path) -> Sequence[Row]:
    """Accuracy against epsilon: small networks on digits, each trained from its own random start."""
    title = f"{PAPER}, Figure 4: from scratch; digits for CIFAR-10, δ = 1e-5"
    trained = DIGITS.trained(SCRATCH, DIGITS.weights)
    rows = _made(path, title, DIGITS, trained, _names(SCRATCH))
    shown = ((0.5, 0.5, 0), (0, 0.5, 0.5), (0.95, 0.05, 0))
    return [
        *rows,
        *(
            {
                "": f"sum with weights {', '.join(map(str, row))}",
                "epsilon": None,
                "accuracy": _of(row, DIGITS.weights, trained),
            }
            for row in shown
        ),
    ]


def figure_5(path: Path) -> Sequence[Row]:
    """Accuracy against epsilon: a small network on digits, first trained on other digits without privacy."""
    title = f"{PAPER}, Figure 5: trained before; digits for CIFAR-10, δ = 1e-5"
    trained = AFTER.trained(TUNED, AFTER.weights)
    rows = _made(path, title, AFTER, trained, _names(TUNED))
    return [{"": "before training with privacy", "epsilon": None, "accuracy": trained.before}, *rows]


def figure_6(path: Path) -> Sequence[Row]:
    """Accuracy against epsilon: random selection among checkpoints of one run."""
    network = training.NETWORK | {"server.learning_rate": 0.01}
    panels = [
        ("logistic regression, Fashion-MNIST", MNIST_CHECKPOINTS, training.FASHION, (1, 2, 3), (6.2, 8.6)),
        ("small network, digits", LONG_CHECKPOINTS, network, (12, 16, 20), (6.8, 8.8)),
    ]
    figure, all_axes = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    figure.suptitle(f"{PAPER}, Figure 6: random selection among checkpoints of one run, δ = 1e-5", fontsize=11)
    rows: list[Row] = []
    for axes, (words, portfolio, common, epochs, budgets) in zip(all_axes, panels, strict=True):
        accuracies = training.checkpoints(portfolio, common)
        curves = selection_curves(portfolio, accuracies)
        _draw(axes, words, portfolio, accuracies, curves)
        axes.set_xscale("linear")
        rows += _alone([f"{words}, epoch {epoch}" for epoch in epochs], portfolio, accuracies)
        rows += _within({f"{words}: {key}": curve for key, curve in curves.items()}, budgets)
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    save(figure, path)
    return rows


def trained_directly(_: Path) -> Sequence[Row]:
    """The best accuracy that merging reaches within a budget, beside that of models trained for this budget."""
    rows: list[Row] = []
    for each in (FASHION, DIGITS, AFTER):
        curves = _curves(each, each.trained(each.portfolio, each.weights))
        for budget in each.budgets:
            direct = each.portfolio.trained_for(budget)
            alone = each.trained(direct, np.empty((0, len(direct.scales)))).alone
            rows.append(
                {
                    "": each.words,
                    "budget": f"{budget:g}",
                    "selection": _best_within(*curves["selection, fedamp"], budget),
                    "combination": _best_within(*curves["combination, fedamp"], budget),
                    "trained directly": f"{alone.max():.4f}",
                    "its noise multiplier": f"{direct.noises[0]:g}",
                    "its epsilon": direct.alone[0],
                }
            )
    return rows


def selection_curves(portfolio: Portfolio, accuracies: Array) -> Curves:
    """Best expected accuracy of random selection within each epsilon: by Rényi as in the paper, and by fedamp."""
    weights = np.concatenate([simplex(len(accuracies), 12), _rare(len(accuracies))])
    return {
        "selection, Rényi": frontier(selection_by_rdp(portfolio.curves, weights), weights @ accuracies),
        "selection, fedamp": frontier(portfolio.selection_by_loss(weights), weights @ accuracies),
    }


def combination_curves(portfolio: Portfolio, sums: Array, weights: Array) -> Curves:
    """Best accuracy of linear combination within each epsilon: by the paper's steps, and as fedamp charges it."""
    return {
        "by steps, Rényi: no bound": frontier(portfolio.steps_by_rdp(weights), sums),
        "by steps, privacy loss: no bound": frontier(np.array(portfolio.steps_by_loss(weights)), sums),
        "combination, fedamp": frontier(np.array(portfolio.joint(weights)), sums),
    }


def _curves(experiment: Experiment, trained: Trained) -> Curves:
    """All curves of an experiment."""
    parts, weights = experiment.parts, experiment.weights
    coarse = np.isclose(parts * weights, np.round(parts * weights)).all(axis=1)
    combination = combination_curves(experiment.portfolio, trained.sums[coarse], weights[coarse])
    return selection_curves(experiment.portfolio, trained.alone) | combination


def _rare(count: int) -> Array:
    """Weights of two models each, one of them rare; shape (rows, count)."""
    share = np.geomspace(1e-9, 1, 60)[:-1, None]
    corners = np.eye(count)
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    return np.concatenate([(1 - share) * corners[one] + share * corners[other] for one, other in pairs])


def _made(path: Path, title: str, experiment: Experiment, trained: Trained, names: Sequence[str]) -> list[Row]:
    """The picture and the rows of a figure with all curves."""
    portfolio, curves = experiment.portfolio, _curves(experiment, trained)
    figure, axes = plt.subplots(figsize=(7, 5.2), layout="constrained")
    _draw(axes, title, portfolio, trained.alone, curves)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    save(figure, path)
    return [*_alone(names, portfolio, trained.alone), *_within(curves, experiment.budgets)]


def _draw(axes: Axes, title: str, portfolio: Portfolio, accuracies: Array, curves: Curves) -> None:
    for name, (epsilons, best) in curves.items():
        axes.plot(epsilons, 100 * best, **STYLES[name] | {"markevery": max(1, len(best) // 8)})
    axes.plot(portfolio.alone, 100 * accuracies, **INPUTS)
    axes.set_title(title, fontsize=11)
    axes.set(xlabel="epsilon, at most", ylabel="accuracy on the test set, %", xscale="log")
    make_readable(axes)


def _names(portfolio: Portfolio) -> list[str]:
    pairs = zip(portfolio.scales, portfolio.noises, strict=True)
    return [f"learning rate {rate:g}, σ = {noise:g}" for rate, noise in pairs]


def _of(row: Sequence[float], weights: Array, trained: Trained) -> float:
    """The accuracy of one weighted sum."""
    return float(trained.sums[int(np.argmin(np.abs(weights - np.array(row)).sum(axis=1)))])


def _alone(names: Sequence[str], portfolio: Portfolio, accuracies: Array) -> list[Row]:
    return [
        {"": name, "epsilon": cost, "accuracy": accuracy}
        for name, cost, accuracy in zip(names, portfolio.alone, accuracies.tolist(), strict=True)
    ]


def _within(curves: Curves, budgets: Sequence[float]) -> list[Row]:
    """The best accuracy of every curve by privacy loss within some budgets."""
    words = f"within {' / '.join(f'{budget:g}' for budget in budgets)}"
    return [
        {"": name, "epsilon": words, "accuracy": " / ".join(_best_within(*curve, budget) for budget in budgets)}
        for name, curve in curves.items()
        if "Rényi" not in name
    ]


def _best_within(epsilons: Array, best: Array, budget: float) -> str:
    return f"{best[epsilons <= budget].max():.4f}" if (epsilons <= budget).any() else "none"
