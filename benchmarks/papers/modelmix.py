"""Xiao, Wan, Devadas 2022: Differentially Private Deep Learning with ModelMix."""

import math
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from benchmarks.papers import charges
from benchmarks.papers.bounds.mixtures import sampled_gaussian_rdp
from benchmarks.papers.bounds.modelmix import one_coordinate_rdp
from benchmarks.papers.bounds.partitioning import smallest_noise
from benchmarks.papers.charges import Charged
from benchmarks.papers.drawing import OURS, make_readable, save
from benchmarks.papers.modelmix_fashion import table_1
from benchmarks.papers.modelmix_training import figure_2, of_cifar10, table_2
from benchmarks.papers.record import Figure
from benchmarks.record import Row
from fedamp.accounting import Gaussian, Mechanism, ModelMix, Poisson, Repeat

PAPER = "Xiao, Wan, Devadas 2022"
RECORDS, CLIP, BUDGET, DELTA, LONGEST = 50_000, 20, 200.0, 1e-5, 5000
RATES, GAPS, TRUNCATIONS = (0.02, 0.04), (0.075, 0.15, 0.3), (1, 25, 100)
ROUNDS = np.array([250, 750, 1500, 3000, LONGEST])
WHOLE = np.arange(2.0, 25.0)
ORDERS = np.concatenate([[1.25, 1.5, 1.75], WHOLE])
PRINTED = {0.075: (57.2, 17.9, 15.3), 0.15: (40.4, 9.0, 7.9), 0.3: (31.7, 5.4, 4.8)}
DASHES: dict[int, dict[str, Any]] = {
    0: {"linestyle": "-", "marker": "x"},
    1: {"linestyle": "--", "marker": "o"},
    25: {"linestyle": "-.", "marker": "s"},
    100: {"linestyle": ":", "marker": "^"},
}


def figure_3(path: Path) -> Sequence[Row]:
    """Epsilon over rounds, with and without ModelMix: noise that costs plain DP-SGD 200 by the paper's accounting."""
    figure, panels = plt.subplots(2, 3, figsize=(12, 7.4), layout="constrained", sharex=True, sharey=True)
    for axes, (rate, gap) in zip(panels.flat, product(RATES, GAPS), strict=True):
        _draw(axes, rate, gap)
    for axes in panels[:, 0]:
        axes.set_ylabel("epsilon")
    for axes in panels[-1]:
        axes.set_xlabel("rounds")
    figure.suptitle(f"{PAPER}, Figure 3: delta 1e-5, distance tau of the mixed models in learning rates eta")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    save(figure, path)
    return _rows()


def _draw(axes: Axes, rate: float, gap: float) -> None:
    for truncation in (0, *TRUNCATIONS):
        words = "plain DP-SGD" if truncation == 0 else "ModelMix" + (f", p = {truncation}" if truncation > 1 else "")
        theirs = [_by_formula(rate, gap, truncation, int(t)) for t in ROUNDS]
        ours = [_by_fedamp(rate, gap, truncation, int(t)) for t in ROUNDS]
        axes.plot(ROUNDS, theirs, color="0.55", label=f"paper, {words}", **DASHES[truncation])
        look = OURS | DASHES[truncation] | {"marker": "", "label": f"fedamp, {words}", "linewidth": 2.0}
        axes.plot(ROUNDS, ours, **look)
    axes.set(title=f"rate {rate:g}, tau = {gap:g} eta", yscale="log")
    make_readable(axes)


def _rows() -> list[Row]:
    """The epsilons that sections 4.3 and 5.3 print, by the paper's bound; beside them fedamp's bracket."""
    rate = RATES[0]
    cases = [("plain DP-SGD", GAPS[0], 0, BUDGET)]
    cases += [
        (f"tau = {gap:g} eta, p = {truncation}", gap, truncation, printed)
        for gap in GAPS
        for truncation, printed in zip(TRUNCATIONS, PRINTED[gap], strict=True)
    ]
    rows: list[Row] = [
        {
            "": words,
            "paper prints": printed,
            "paper's bound": _by_formula(rate, gap, truncation, LONGEST),
            "fedamp": _by_fedamp(rate, gap, truncation, LONGEST),
            "at least": _by_fedamp(rate, gap, truncation, LONGEST, end="lower"),
        }
        for words, gap, truncation, printed in cases
    ]
    words = "section 5.3, transfer learning"
    return [
        *rows,
        {"": words, "paper prints": 0.64, "paper's bound": _transfer_epsilon(), "fedamp": None, "at least": None},
    ]


def _transfer_epsilon() -> float:
    """Section 5.3 and appendix E: 0.85 times the noise of (2, 1e-5) in 2,700 rounds, mixed in 1,500."""
    rate, clip = 1024 / RECORDS, 0.1
    noise = 0.85 * _noise(rate, 2.0, 2700)
    widths = [width(rate, gap, clip) for gap in (0.0075, 0.005, 0.0025)]
    parts = [500 * one_coordinate_rdp(noise, wide, ORDERS, rate) for wide in widths]
    return _loose(np.sum(parts, axis=0))


def width(rate: float, gap: float, clip: float = CLIP) -> float:
    """Of the uniform, in clipping norms of the summed update.

    The paper's ``eta`` multiplies the mean over an expected batch and its noise is added to the sum (section 4.1 reads
    as if both were sums; then the width would be 0.015 and nothing would be amplified).
    """
    return gap * rate * RECORDS / clip


@cache
def _noise(rate: float, budget: float = BUDGET, rounds: int = LONGEST) -> float:
    """The noise multiplier, not printed, at which plain DP-SGD costs that much."""
    return smallest_noise(lambda s: _loose(rounds * sampled_gaussian_rdp(s, rate, ORDERS)), budget)


@cache
def _divergences(rate: float, gap: float, truncation: int) -> np.ndarray:
    """Of one round, at ``ORDERS``; infinite where there is no bound to evaluate."""
    noise = _noise(rate)
    if truncation == 0:
        return sampled_gaussian_rdp(noise, rate, ORDERS)
    if truncation == 1:
        return one_coordinate_rdp(noise, width(rate, gap), ORDERS, rate)
    between = np.full(len(ORDERS) - len(WHOLE), math.inf)
    return np.concatenate([between, Poisson(ModelMix(noise, width(rate, gap), truncation), rate).rdp(WHOLE)])


def _by_formula(rate: float, gap: float, truncation: int, rounds: int) -> float:
    """Theorem 4.1, Corollary 4.1 (truncation 0: no ModelMix); below order 2 what the paper must have evaluated."""
    return _loose(rounds * _divergences(rate, gap, truncation))


def _loose(rdp: np.ndarray) -> float:
    return float(np.min(rdp - math.log(DELTA) / (ORDERS - 1)))


@cache
def _by_fedamp(
    rate: float, gap: float, truncation: int, rounds: int, end: Literal["upper", "lower"] = "upper"
) -> Charged:
    noise = _noise(rate)
    part: Mechanism = ModelMix(noise, width(rate, gap), truncation) if truncation else Gaussian(noise)
    return charges.epsilon(Repeat(Poisson(part, rate), rounds), DELTA, end=end)


FIGURES: Sequence[Figure] = (figure_2, figure_3, table_1, table_2, of_cifar10)
