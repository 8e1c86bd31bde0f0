"""Mean estimation, in which everything about merging two models is known exactly (Section 4.1, Figures 1, 7 and 8).

Noise is in units of the sensitivity where privacy is concerned. The paper prints neither the sensitivity nor the two
models' noises: here one of the samples is replaced, and the noises are 4 and 1 times what that changes.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import ndtr

from benchmarks.papers import charges
from benchmarks.papers.charges import Charged
from benchmarks.papers.drawing import OURS, Style, make_readable, save
from benchmarks.papers.merging_costs import (
    COMBINATION,
    COMBINATION_RDP,
    DELTA,
    INPUTS,
    ORDERS,
    PAPER,
    SELECTION,
    SELECTION_RDP,
    Array,
    frontier,
    largest_share,
    loose_epsilon,
)
from benchmarks.papers.merging_costs import selection_by_rdp as selection_of
from benchmarks.record import Row
from fedamp.accounting import FIXED_GRADIENTS, Gaussian, LinearCombination, RandomSelection

HIDDEN: Style = {"color": "0.3", "linestyle": "-.", "marker": "s", "label": "selection, the draw kept secret: exact"}
SAMPLES = 100
SENSITIVITY = 2 / SAMPLES  # of a mean of numbers in [-1, 1], one of which is replaced
NOISES = (4.0, 1.0)
# Of a standard normal clipped to [-1, 1].
SAMPLE_VARIANCE = 2 * float(ndtr(1)) - 1 - math.sqrt(2 / math.pi) * math.exp(-1 / 2) + 2 * float(ndtr(-1))
# Of the model with less noise: most happens near both ends.
SHARES = np.unique(np.concatenate([[0], np.geomspace(1e-7, 1, 40), 1 - np.geomspace(1e-4, 1, 16), np.arange(20) / 20]))


def mean_squared_error(variance: float | Array) -> Array:
    """Of an estimate with noise of this variance, in sensitivities squared, around the mean of the samples."""
    return np.asarray(SENSITIVITY**2 * np.asarray(variance) + SAMPLE_VARIANCE / SAMPLES)


# --- random selection -------------------------------------------------------------------------------------------------


def selected_variance(share: float | Array) -> Array:
    """Of the noise when the second model is drawn with probability ``share``."""
    return np.asarray((1 - np.asarray(share)) * NOISES[0] ** 2 + np.asarray(share) * NOISES[1] ** 2)


def selection_by_rdp(share: float) -> float:
    """Theorem 5.1 and Algorithm 1."""
    curves = np.stack([ORDERS / (2 * noise**2) for noise in NOISES])
    return float(selection_of(curves, np.array([1 - share, share])))


def selection_by_loss(share: float) -> Charged:
    """Theorem 5.2, by fedamp."""
    models = tuple(Gaussian(noise) for noise in NOISES)
    return charges.epsilon(RandomSelection(models, (1 - share, share)), DELTA)


def selection_hidden(share: float, noises: tuple[float, float] = NOISES, delta: float = DELTA) -> float:
    """What releasing the number alone costs, exactly: nobody is told which of the two models it came from.

    The hockey-stick divergence of the mixture of two Gaussians and the same mixture moved by the sensitivity, by the
    trapezoidal rule; mirroring exchanges the two, so that one direction is enough.
    """
    estimates = np.linspace(-12 * noises[0], 12 * noises[0] + 1, 100_001)
    near, far = (_density(estimates - shift, share, noises) for shift in (0, 1))

    def delta_at(epsilon: float) -> float:
        return float(np.trapezoid(np.maximum(near - math.exp(epsilon) * far, 0), estimates))

    low, high = 0.0, 50.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


def hidden_rdp(order: float, share: float, noises: tuple[float, float] = NOISES) -> float:
    """Rényi divergence of the same pair: what Lemma 4.1 is about."""
    estimates = np.linspace(-12 * noises[0] - order, 12 * noises[0] + order, 100_001)
    near, far = (np.log(_density(estimates - shift, share, noises)) for shift in (0, 1))
    moment = np.trapezoid(np.exp(order * near + (1 - order) * far), estimates)
    return float(np.log(moment) / (order - 1))


def _density(estimates: Array, share: float, noises: tuple[float, float]) -> Array:
    parts = [np.exp(-((estimates / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi)) for noise in noises]
    return np.asarray((1 - share) * parts[0] + share * parts[1])


# --- linear combination -----------------------------------------------------------------------------------------------


def combined_variance(share: float | Array) -> Array:
    """Of the noise of the weighted sum of both."""
    return np.asarray(((1 - np.asarray(share)) * NOISES[0]) ** 2 + (np.asarray(share) * NOISES[1]) ** 2)


def combination_by_rdp(share: float) -> float:
    """Lemma 4.1, which is Theorem 6.2 for one step in which everybody takes part."""
    return float(loose_epsilon(ORDERS / (2 * float(combined_variance(share)))))


def combination_by_loss(share: float) -> Charged:
    """Theorem 6.4, by fedamp. There is one step, and its assumption holds."""
    parts = tuple(Gaussian(noise) for noise in NOISES)
    return charges.epsilon(LinearCombination(parts, (1 - share, share), FIXED_GRADIENTS, (1.0, 1.0)), DELTA)


# --- the figures ------------------------------------------------------------------------------------------------------


def figure_1(path: Path) -> Sequence[Row]:
    """Mean estimation: error against epsilon, by random selection and by linear combination."""
    figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
    axes.set_title(f"{PAPER}, Figure 1: mean of 100 numbers, δ = 1e-5", fontsize=11)
    axes.set(xlabel="epsilon, at most", ylabel="mean squared error")
    combined = np.linspace(0, 1, 31)
    curves: list[tuple[Callable[[float], float], Array, Callable[[float | Array], Array], Style]] = [
        (selection_by_rdp, SHARES, selected_variance, SELECTION_RDP),
        (selection_by_loss, SHARES, selected_variance, SELECTION),
        (combination_by_rdp, combined, combined_variance, COMBINATION_RDP),
        (combination_by_loss, combined, combined_variance, COMBINATION),
        (selection_hidden, SHARES, selected_variance, HIDDEN),
    ]
    for cost, shares, variance, style in curves:
        epsilons = np.array([cost(float(share)) for share in shares])
        best, utilities = frontier(epsilons, -mean_squared_error(variance(shares)))
        axes.plot(best, -utilities, **style | {"markevery": 6})
    axes.plot(_alone(), mean_squared_error(np.square(NOISES)), **INPUTS)
    make_readable(axes)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    save(figure, path)
    return _errors_at_2()


def _errors_at_2() -> list[Row]:
    """The errors of the models alone, and of each merger within epsilon 2."""
    rows: list[Row] = [
        {"": f"model with noise {noise:g}", "epsilon": cost, "mean squared error": float(mean_squared_error(noise**2))}
        for noise, cost in zip(NOISES, _alone(), strict=True)
    ]
    for words, cost, variance in (
        ("random selection, Rényi", selection_by_rdp, selected_variance),
        ("random selection, privacy loss", selection_by_loss, selected_variance),
        ("linear combination, Rényi", combination_by_rdp, combined_variance),
        ("linear combination, privacy loss", combination_by_loss, combined_variance),
        ("random selection, the draw kept secret: exact", selection_hidden, selected_variance),
    ):
        error = float(mean_squared_error(variance(largest_share(cost, 2.0))))
        rows.append({"": words, "epsilon": "within 2", "mean squared error": error})
    return rows


def exact_order(_: Path) -> Sequence[Row]:
    """Selection (draw kept secret) over combination at equal error: Lemma 4.1 and Theorem 4.2 say above 1."""
    what = "at equal error, weights 1/2"
    rows: list[Row] = [
        {
            what: f"Rényi divergence of order {order}",
            "selection / combination": hidden_rdp(order, 0.5) * 2 * float(selected_variance(0.5)) / order,
        }
        for order in (2, 20)
    ]
    for factor in (1, 10, 100):
        noises = (NOISES[0] * factor, NOISES[1] * factor)
        combined = Gaussian(math.sqrt(float(selected_variance(0.5))) * factor).epsilon(DELTA).upper
        ratio = selection_hidden(0.5, noises) / combined
        rows.append({what: f"epsilon, combination at {combined:.2g}", "selection / combination": ratio})
    return rows


def _alone() -> list[Charged]:
    return [charges.epsilon(Gaussian(noise), DELTA) for noise in NOISES]


def figure_7(path: Path) -> Sequence[Row]:
    """Mean estimation by random selection: epsilon and error over the weight of the first model."""
    curves: list[tuple[Callable[[float], float], Style]] = [
        (selection_by_rdp, SELECTION_RDP),
        (selection_by_loss, SELECTION),
        (selection_hidden, HIDDEN),
    ]
    _over_weight(path, "Figure 7: random selection", "π", SHARES, curves, selected_variance)
    return [
        {
            "": f"π = {weight:g}",
            "Rényi": selection_by_rdp(1 - weight),
            "privacy loss": selection_by_loss(1 - weight),
            "the draw kept secret": selection_hidden(1 - weight),
            "mean squared error": float(mean_squared_error(selected_variance(1 - weight))),
        }
        for weight in (0.5, 0.99)
    ]


def figure_8(path: Path) -> Sequence[Row]:
    """Mean estimation by linear combination: epsilon and error over the weight of the first model."""
    shares = np.linspace(0, 1, 31)
    curves = [(combination_by_rdp, COMBINATION_RDP), (combination_by_loss, COMBINATION)]
    _over_weight(path, "Figure 8: linear combination", "λ", shares, curves, combined_variance)
    least = NOISES[1] ** 2 / (NOISES[0] ** 2 + NOISES[1] ** 2)
    rows: list[Row] = [
        {
            "": f"λ = {weight:.3g}{words}",
            "Rényi": combination_by_rdp(1 - weight),
            "privacy loss": combination_by_loss(1 - weight),
        }
        for weight, words in ((least, " (least error)"), (0.5, ""))
    ]
    joint = LinearCombination(tuple(Gaussian(noise) for noise in NOISES), (0.5, 0.5))
    words = "both models together (Theorem 6.1)"
    return [*rows, {"": words, "Rényi": None, "privacy loss": charges.epsilon(joint, DELTA)}]


def _over_weight(
    path: Path,
    title: str,
    symbol: str,
    shares: Array,
    curves: Sequence[tuple[Callable[[float], float], Style]],
    variance: Callable[[float | Array], Array],
) -> None:
    """Epsilon on the left, error on the right, over the weight of the first model."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    figure.suptitle(f"{PAPER}, {title} for the mean of 100 numbers, δ = 1e-5", fontsize=11)
    for cost, style in curves:
        left.plot(1 - shares, [cost(float(share)) for share in shares], **style | {"markevery": 7})
    left.plot((1, 0), _alone(), **INPUTS)
    right.plot(1 - shares, mean_squared_error(variance(shares)), **OURS | {"label": "noise and samples"})
    right.axhline(mean_squared_error(0.0), color="0.5", linestyle=":", label="samples alone")
    right.set_ylim(bottom=0)
    for axes, words in ((left, "epsilon, at most"), (right, "mean squared error")):
        axes.set(xlabel=f"{symbol}: weight of the model with more noise", ylabel=words)
        make_readable(axes)
        axes.legend(fontsize=9)
    save(figure, path)
