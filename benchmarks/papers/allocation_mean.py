"""Feldman, Shenfeld 2025, section 5.1 and Figure 3: the mean of private bits by Poisson sampling and by allocation.

Each of n people holds a vector of d bits, each 1 with probability 0.9. Every round releases the noisy sum over those
who check in, and the sum of all releases over n estimates the mean. One coordinate is simulated, with the noise that d
of them need (a vector's norm is up to sqrt(d)). The estimate uses the sum of all rounds only. So the simulation draws
the number of ones that check in over all rounds: each once, or a binomial number. fedamp's accounting sets the noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from benchmarks.papers import charges
from benchmarks.papers.bounds.allocation import allocated, poisson
from benchmarks.papers.charges import Charged
from benchmarks.papers.drawing import OURS, POISSON, Style, make_readable, save
from benchmarks.record import Row

MEAN, ROUNDS, DELTA, SEED = 0.9, 1000, 1e-10, 5
SIZES = tuple(np.logspace(2, 5, 7, dtype=int).tolist())
REPETITIONS = 10_000  # of a whole vector; of which up to this many coordinates are drawn:
COORDINATES = 20
ALLOCATION, SAMPLING = SCHEMES = ("allocation", "Poisson sampling")


@dataclass(frozen=True)
class Errors:
    """Mean square errors over the sample sizes.

    Attributes:
        noise: multiplier, in clipping norms.
        simulated: shape (sizes,).
        spread: three standard deviations of ``simulated``.
        predicted: by formula, at ``SIZES``.
    """

    noise: Charged
    simulated: NDArray[np.float64]
    spread: NDArray[np.float64]
    predicted: NDArray[np.float64]


def figure_3(path: Path) -> Sequence[Row]:
    """Square error of a private mean over the sample size: one of 1000 rounds against Poisson at rate 1/1000."""
    panels = [(1.0, 1), (0.1, 1), (0.1, 1000)]
    figure, all_axes = plt.subplots(
        2, 3, figsize=(12, 6.6), layout="constrained", sharex=True, height_ratios=(3, 2), squeeze=False
    )
    rows: list[Row] = []
    for (axes, ratios), (epsilon, dimension) in zip(all_axes.T, panels, strict=True):
        poisson, ours = (errors(scheme, epsilon, dimension) for scheme in (SAMPLING, ALLOCATION))
        draw(axes, poisson, POISSON | {"label": "Poisson sampling at rate 1 / 1000"})
        draw(axes, ours, OURS | {"marker": "o", "linewidth": 1.6, "label": "one hidden round of 1000"})
        axes.set(title=f"epsilon {epsilon:g}, dimension {dimension}", xscale="log", yscale="log")
        draw_ratio(ratios, poisson, ours)
        for each in (axes, ratios):
            make_readable(each)
        rows += compare(epsilon, dimension, ours, poisson)
    all_axes[0, 0].set_ylabel("mean square error of a coordinate")
    all_axes[1, 0].set_ylabel("Poisson / one hidden round")
    figure.legend(*all_axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    title = "Feldman, Shenfeld 2025, Figure 3: simulated (bars: three standard deviations); lines are formulas"
    figure.suptitle(title, fontsize=11)
    save(figure, path)
    return rows


def draw(axes: Axes, result: Errors, style: Style) -> None:
    """One scheme: what was simulated, with its bars, and the formula's line."""
    points = {key: value for key, value in style.items() if key != "linestyle"} | {"linestyle": "none"}
    axes.errorbar(SIZES, result.simulated, result.spread, **points)
    axes.plot(SIZES, result.predicted, **{key: value for key, value in style.items() if key not in ("marker", "label")})


def draw_ratio(axes: Axes, poisson: Errors, ours: Errors) -> None:
    """How many times the error of allocation Poisson sampling has."""
    ratio, spread = ratio_of(poisson, ours)
    axes.errorbar(SIZES, ratio, spread, color="black", marker="o", linestyle="none")
    axes.plot(SIZES, poisson.predicted / ours.predicted, color="black")
    axes.axhline(1, color="0.5", linestyle=":")
    axes.set(xlabel="people n", xscale="log", yscale="log" if ratio.max() > 2 else "linear")


def noise_multiplier(scheme: str, epsilon: float) -> Charged:
    """The smallest that keeps the budget, by fedamp's accounting."""
    if scheme == ALLOCATION:
        return charges.noise(lambda noise: allocated(noise, ROUNDS), epsilon, DELTA)
    return charges.noise(lambda noise: poisson(noise, ROUNDS, 1 / ROUNDS), epsilon, DELTA)


def errors(scheme: str, epsilon: float, dimension: int) -> Errors:
    """Simulated and predicted errors of one scheme at one budget."""
    noise = noise_multiplier(scheme, epsilon)
    # The rounds' noises are independent, and only their sum is used.
    deviation = noise * math.sqrt(dimension * ROUNDS)
    draws = REPETITIONS * min(dimension, COORDINATES)
    seeds = [(SEED, SCHEMES.index(scheme), size, dimension, int(10 * epsilon)) for size in SIZES]
    square = [
        square_errors(scheme, size, deviation, draws, np.random.default_rng(seed))
        for size, seed in zip(SIZES, seeds, strict=True)
    ]
    return Errors(
        noise,
        np.array([each.mean() for each in square]),
        np.array([3 * each.std() / math.sqrt(len(each)) for each in square]),
        np.array([predicted_error(scheme, size, deviation) for size in SIZES]),
    )


def square_errors(
    scheme: str, size: int, deviation: float, draws: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """The square errors of ``draws`` estimates from ``size`` people each; shape (draws,)."""
    ones = generator.binomial(size, MEAN, draws)
    # Everyone's number of check-ins is binomial under Poisson sampling, and so is the number of all.
    counted = ones if scheme == ALLOCATION else generator.binomial(ones * ROUNDS, 1 / ROUNDS)
    estimates = (counted + deviation * generator.standard_normal(draws)) / size
    return np.asarray((estimates - MEAN) ** 2)


def predicted_error(scheme: str, size: int, deviation: float) -> float:
    """Section 5.1: the sample's own variance, Poisson's part where a person's number of check-ins varies, the noise's.

    The paper rounds 1 - 1 / t of Poisson's part up to 1.
    """
    chance = 0.0 if scheme == ALLOCATION else 1 - 1 / ROUNDS
    return MEAN * (1 - MEAN) / size + MEAN * chance / size + (deviation / size) ** 2


def ratio_of(poisson: Errors, ours: Errors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the simulated errors, with three standard deviations of it; shape (sizes,) each."""
    ratio = poisson.simulated / ours.simulated
    return ratio, ratio * np.hypot(poisson.spread / poisson.simulated, ours.spread / ours.simulated)


def compare(epsilon: float, dimension: int, ours: Errors, poisson: Errors) -> list[Row]:
    """The ratio of the square errors at three sample sizes, and the noise multipliers."""
    (ratio, error), predicted = ratio_of(poisson, ours), poisson.predicted / ours.predicted
    return [
        {
            "": f"epsilon {epsilon:g}, dimension {dimension}, {SIZES[i]} people",
            "error, Poisson / allocation": f"{ratio[i]:.3g} ± {error[i]:.2g}",
            "by formula": predicted[i],
            "noise, allocation": ours.noise,
            "noise, Poisson": poisson.noise,
        }
        for i in (0, -1)
    ]
