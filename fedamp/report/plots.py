"""Pictures of a run: accuracy and epsilon over rounds; accuracy against epsilon, with and without amplification."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedamp.numbers import at_most, power
from fedamp.report import style
from fedamp.runs.folder import RunFolder
from fedamp.runs.run import Run, read_run

CHARGED, PLAIN = style.LOOKS[0], style.LOOKS[1]


def plot_run(folder: Path) -> list[Path]:
    """Draw a run's pictures into its ``plots`` folder; returns their files (none before the first evaluated round)."""
    files = RunFolder(folder)
    pictures = run_pictures(read_run(folder)) if files.read_rounds() else {}
    if pictures:
        files.plots.mkdir(exist_ok=True)
    return [style.save(picture, files.plots / f"{name}.png") for name, picture in pictures.items()]


def run_pictures(run: Run) -> dict[str, Figure]:
    """A run's pictures by name; none before the first evaluated round."""
    if not run.evaluated:
        return {}
    pictures = {"rounds": _over_rounds(run)}
    if run.is_private:
        pictures["accuracy-epsilon"] = _accuracy_against_epsilon(run)
    return pictures


def protection(run: Run) -> str:
    """What is protected, in a few words: the unit and delta."""
    privacy = run.scenario.privacy
    if not run.is_private:
        return "no privacy: epsilon is infinite"
    unit = f"one {privacy.unit}" if privacy.group_size == 1 else f"any {privacy.group_size} {privacy.unit}s together"
    return f"protected: {unit} of {run.ledger.units:,}, δ = {power(run.ledger.delta)}"


def _over_rounds(run: Run) -> Figure:
    heights = (2.3, 2.3) if run.is_private else (2.8,)
    canvas, axes = style.figure(run.scenario.name, protection(run), heights)
    rounds = [record.round for record in run.evaluated]
    accuracy = _accuracy(run)
    axes[0].plot(rounds, accuracy, color=CHARGED.color, marker=CHARGED.marker if len(rounds) < 20 else None)
    style.label(axes[0], f"{accuracy[-1]:.1f} %", (rounds[-1], accuracy[-1]), (0, 6), ha="right", fontweight="bold")
    style.percent(axes[0])
    axes[-1].set_xlabel("round")
    if run.is_private:
        axes[0].tick_params(labelbottom=False)
        axes[1].sharex(axes[0])
        _draw_spending(axes[1], run)
    return canvas


def _draw_spending(axes: Axes, run: Run) -> None:
    rounds = np.array([record.round for record in run.rounds])
    spent = np.array([record.epsilon_upper for record in run.rounds], dtype=float)
    axes.step(rounds, spent, where="post", color=CHARGED.color)
    end = (rounds[-1], spent[-1])
    style.label(axes, f"charged: {at_most(spent[-1])}", end, (0, -5), ha="right", va="top", fontweight="bold")
    highest = spent[-1]
    if run.is_amplified:
        plain = run.plan.unamplified_epsilon_by_round[rounds - 1]
        axes.step(rounds, plain, where="post", color=PLAIN.color, linestyle=PLAIN.dash)
        words = f"without amplification: {at_most(plain[-1])}"
        style.label(axes, words, (rounds[-1], plain[-1]), (0, 5), ha="right", va="bottom")
        highest = plain[-1]
    budget = run.scenario.privacy.epsilon
    if budget is not None and budget < 3 * highest:
        axes.axhline(budget, color=style.GREY, linestyle=":")
        middle = rounds[0] + 0.3 * (rounds[-1] - rounds[0])
        style.label(axes, f"budget: {budget:g}", (middle, budget), (0, 3), ha="center", va="bottom", color=style.GREY)
        highest = max(highest, budget)
    axes.set(ylabel="ε spent, at most", ylim=(0, 1.25 * highest))


def _accuracy_against_epsilon(run: Run) -> Figure:
    canvas, (axes,) = style.figure(f"{run.scenario.name}: what accuracy costs", protection(run))
    rounds = np.array([record.round for record in run.evaluated])
    accuracy = _accuracy(run)
    charged = np.array([record.epsilon_upper for record in run.evaluated], dtype=float)
    side = "right" if run.is_amplified else "center"
    _draw_bill(axes, charged, accuracy, CHARGED, ("charged", side, True))
    costs = charged
    if run.is_amplified:
        plain = run.plan.unamplified_epsilon_by_round[rounds - 1]
        _draw_bill(axes, plain, accuracy, PLAIN, ("without\namplification", "left", False))
        costs = np.concatenate([charged, plain])
    budget = run.scenario.privacy.epsilon
    if budget is not None and budget < 3 * costs.max():
        axes.axvline(budget, color=style.GREY, linestyle=":", zorder=0)
        style.label(axes, f"budget: {budget:g}", (budget, 3), (-3, 0), ha="right", color=style.GREY)
        costs = np.append(costs, budget)
    axes.set(xlabel="privacy cost ε, at most (less is better)")
    axes.set_xlim(max(costs.min() / 1.3, costs.max() / 300), costs.max() * (4 if run.is_amplified else 1.6))
    style.logarithmic(axes)
    style.percent(axes)
    return canvas


def _draw_bill(
    axes: Axes,
    costs: NDArray[np.float64],
    accuracy: NDArray[np.float64],
    look: style.Look,
    words: tuple[str, str, bool],
) -> None:
    text, side, filled = words
    axes.plot(costs, accuracy, color=look.color, linestyle=look.dash)
    face = look.color if filled else "white"
    axes.plot(costs[-1:], accuracy[-1:], look.marker, color=look.color, markerfacecolor=face, markersize=8)
    shift = {"right": (-2, 8), "center": (0, 8), "left": (-6, 10)}[side]
    style.label(axes, f"{text}: {at_most(costs[-1])}", (costs[-1], accuracy[-1]), shift, ha=side, color=look.color)


def _accuracy(run: Run) -> NDArray[np.float64]:
    return np.array([100 * (record.accuracy or 0.0) for record in run.evaluated])
