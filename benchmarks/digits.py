"""What hidden check-in is worth: the default scenario at several privacy budgets, charged with and without it.

    python -m benchmarks.digits            about ten minutes on two cores
    python -m benchmarks.digits --quick    a few rounds of one seed, to see that it works

Prints the table of the README, and writes ``benchmarks/results/digits.json`` and ``docs/images/digits.png``.
"""

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedamp.launch import launch
from fedamp.numbers import power
from fedamp.plan import make_plan, privacy_units
from fedamp.report import style
from fedamp.runs.folder import read_summary
from fedamp.scenario.scenario_file import load
from fedamp.server.loop import Observer

SCENARIO = "digits"
EPSILONS, SEEDS = (1.0, 2.0, 4.0, 8.0), (1, 2, 3)
QUICK = ("rounds=6", "check_in.k=2", "data.clients=60")


@dataclass(frozen=True)
class Setting:
    """One row of the results.

    Attributes:
        epsilon: budget; None trains without privacy.
        amplified: whether hidden check-in is charged for; the noise is calibrated to the budget either way.
        overrides: what else differs from the scenario.
    """

    epsilon: float | None
    amplified: bool = True
    overrides: tuple[str, ...] = ()

    def measured(self, seeds: Iterable[int], pool: ProcessPoolExecutor) -> dict[str, Any]:
        """Noise and held-out accuracies, one a seed."""
        noise = self._noise_multiplier()
        fixed = [*self._privacy(), f"privacy.noise_multiplier={noise!r}"]
        accuracies = list(pool.map(_accuracy, [[*fixed, f"seed={seed}"] for seed in seeds]))
        return {
            "epsilon": self.epsilon,
            "amplified": self.amplified,
            "noise_multiplier": noise,
            "accuracies": accuracies,
            "mean": float(np.mean(accuracies)),
            "standard_deviation": float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else 0.0,
        }

    def _privacy(self) -> list[str]:
        epsilon = "null" if self.epsilon is None else repr(self.epsilon)
        charged = f"privacy.amplification={str(self.amplified).lower()}"
        return [*self.overrides, f"privacy.epsilon={epsilon}", charged]

    def _noise_multiplier(self) -> float:
        if self.epsilon is None:
            return 0.0
        scenario = load(SCENARIO, [*self._privacy(), "privacy.noise_multiplier=auto"])
        return make_plan(scenario, privacy_units(scenario)).noise_multiplier


class Nobody(Observer):
    """Watches in silence."""

    def started(self, *_: object) -> None: ...
    def round_done(self, *_: object) -> None: ...
    def stopping(self) -> None: ...


def _accuracy(overrides: list[str]) -> float:
    """Held-out accuracy of one run, trained in this process."""
    how = ("known_seed=true", "engine.kind=serial", "federation.evaluate_every=1000000")
    scenario = load(SCENARIO, [*overrides, *how])
    with tempfile.TemporaryDirectory() as folder:
        summary = read_summary(launch(scenario, Nobody(), Path(folder) / "run"))
    return float(summary.final.accuracy)


def measure(epsilons: Iterable[float], seeds: Iterable[int], overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every budget with and without amplification, and no privacy, with every seed."""
    # Without privacy there is nothing to clip for, so the norm is far above any update's.
    settings = [Setting(None, True, (*overrides, "privacy.clip=1000"))]
    settings += [Setting(epsilon, amplified, overrides) for epsilon in epsilons for amplified in (True, False)]
    scenario, seeds = load(SCENARIO, overrides), list(seeds)
    rows = []
    # A run is small, so two runs at a time use two cores better than one run on both.
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for setting in settings:
            rows.append(setting.measured(seeds, pool))
            print(json.dumps(rows[-1]), flush=True)
    facts = {"scenario": scenario.name, "unit": scenario.privacy.unit, "delta": scenario.privacy.delta}
    return {**facts, "units": privacy_units(scenario), "seeds": seeds, "rows": rows}


def table(results: dict[str, Any]) -> str:
    """The results in Markdown: mean and standard deviation of held-out accuracy, noise multiplier in brackets."""
    lines = [
        f"| ε (δ = {power(results['delta'])}) | hidden check-in, amplified | charged without amplification |",
        "| --- | --- | --- |",
    ]
    for epsilon in sorted({row["epsilon"] for row in results["rows"] if row["epsilon"]}):
        cells = [_cell(_row(results, epsilon, amplified)) for amplified in (True, False)]
        lines.append(f"| {epsilon:g} | {cells[0]} | {cells[1]} |")
    bare = _row(results, None, True)
    lines.append(f"| no privacy | {_spread(bare)} | |")
    return "\n".join(lines)


def draw(results: dict[str, Any], file: Path) -> None:
    """Accuracy against epsilon, with and without amplification."""
    unit, units, delta = results["unit"], results["units"], power(results["delta"])
    subtitle = f"protected: one {unit} of {units}, δ = {delta}"
    canvas, (axes,) = style.figure("what hidden check-in is worth", subtitle)
    _draw_line(axes, results, True, "hidden check-in, amplified")
    _draw_line(axes, results, False, "charged without amplification")
    axes.legend(loc="lower right", frameon=False, handlelength=3, fontsize=style.TEXT)
    bare = 100 * _row(results, None, True)["mean"]
    axes.axhline(bare, color=style.GREY, linestyle=":")
    epsilons = sorted({row["epsilon"] for row in results["rows"] if row["epsilon"]})
    words = f"no privacy: {bare:.1f} %"
    style.label(axes, words, (epsilons[0], bare), (0, 3), ha="left", va="bottom", color=style.GREY)
    style.logarithmic(axes)
    axes.set(xlabel="privacy budget ε (less is better)", xticks=epsilons, xlim=(epsilons[0] / 1.2, epsilons[-1] * 1.35))
    style.percent(axes)
    axes.set_ylabel("held-out accuracy, %")
    file.parent.mkdir(parents=True, exist_ok=True)
    style.save(canvas, file)


def _draw_line(axes: Axes, results: dict[str, Any], amplified: bool, words: str) -> None:
    look = style.look(0 if amplified else 1)
    rows = [row for row in results["rows"] if row["epsilon"] and row["amplified"] == amplified]
    epsilons, means = [row["epsilon"] for row in rows], [100 * row["mean"] for row in rows]
    spread = [100 * row["standard_deviation"] for row in rows]
    drawn = {"color": look.color, "linestyle": look.dash, "marker": look.marker, "capsize": 3, "label": words}
    axes.errorbar(epsilons, means, spread, **drawn)
    for epsilon, mean in zip(epsilons, means, strict=True):
        # Beside the error bars, not on them.
        style.label(axes, f"{mean:.0f}", (epsilon, mean), (5, -5), ha="left", va="top", color=look.color)


def _row(results: dict[str, Any], epsilon: float | None, amplified: bool) -> dict[str, Any]:
    return next(row for row in results["rows"] if row["epsilon"] == epsilon and row["amplified"] == amplified)


def _cell(row: dict[str, Any]) -> str:
    return f"{_spread(row)} ({row['noise_multiplier']:.2f})"


def _spread(row: dict[str, Any]) -> str:
    return f"{100 * row['mean']:.1f} ± {100 * row['standard_deviation']:.1f} %"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds; the results go to a temporary folder")
    quick = parser.parse_args().quick
    folder = Path(tempfile.mkdtemp(prefix="fedamp-digits-")) if quick else Path()
    results = measure(EPSILONS[-1:], SEEDS[:1], QUICK) if quick else measure(EPSILONS, SEEDS)
    answer, picture = folder / "benchmarks/results/digits.json", folder / "docs/images/digits.png"
    answer.parent.mkdir(parents=True, exist_ok=True)
    answer.write_text(json.dumps(results, indent=1) + "\n")
    draw(results, picture)
    print(f"\n{table(results)}\n\n{answer}\n{picture}")


if __name__ == "__main__":
    main()
