"""DP-SGD with and without ModelMix (Xiao, Wan, Devadas 2022) at equal epsilon, every learning rate tried for both.

    python -m benchmarks.modelmix [--quick] [--workers N]

Real handwritten digits, logistic regression, every record protected at (epsilon, 1e-5), Poisson sampling at rate 0.1.
The width is in units of a record's largest step (its clipped gradient times the learning rate over the expected batch),
so that the same width costs the same at every learning rate. Width 0 is DP-SGD.

The paper compares at its own learning rates; with the best one for each width, ModelMix does not win: its uniform noise
has to be overcome too, and at equal variance no noise hides better than a normal (docs/strategies.md).
"""

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.training import train
from fedamp import scenario_file
from fedamp.plan import make_plan
from fedamp.scenario import Scenario

RECORDS, RATE, CLIP, DELTA, ROUNDS = 1437, 0.1, 1.0, 1e-5, 150
RESULTS = Path(__file__).parent / "results" / "modelmix.json"


@dataclass(frozen=True)
class Setting:
    """One cell: width in a record's largest steps (0: no mixing), truncation, learning rate, budget."""

    epsilon: float
    width: float
    linf_coordinates: int
    learning_rate: float


def settings(quick: bool) -> list[Setting]:
    """All cells: DP-SGD, and ModelMix of three widths with and without truncation, at each budget."""
    if quick:
        return [Setting(2.0, 0.0, 1, 1.0), Setting(2.0, 10.0, 25, 1.0)]
    mixings = [(0.0, 1), (2.0, 25), (5.0, 1), (5.0, 25), (15.0, 25)]
    return [
        Setting(epsilon, width, coordinates, rate)
        for epsilon, (width, coordinates), rate in product((1.0, 4.0), mixings, (0.5, 1.0, 2.0, 4.0))
    ]


def scenario_of(setting: Setting, seed: int, noise_multiplier: float | str, rounds: int) -> Scenario:
    """The scenario of one training."""
    step = setting.learning_rate * CLIP / (RATE * RECORDS)
    mixing = {"width": setting.width * step, "linf_coordinates": setting.linf_coordinates} if setting.width else None
    return scenario_file.validate(
        {
            "name": "modelmix",
            "seed": seed,
            "data": {"name": "digits"},
            "model": {"name": "logistic"},
            "rounds": rounds,
            "check_in": {"scheme": "poisson", "rate": RATE},
            "client": {"learning_rate": 1.0},
            "server": {"learning_rate": setting.learning_rate},
            "mixing": mixing,
            "privacy": {"unit": "sample", "clip": CLIP, "noise_multiplier": noise_multiplier}
            | ({"epsilon": setting.epsilon, "delta": DELTA} if noise_multiplier == "auto" else {}),
        },
        "modelmix",
    )


def train_cell(setting: Setting, seeds: int, rounds: int) -> dict[str, Any]:
    """Mean accuracy of a cell over the seeds."""
    noise = make_plan(scenario_of(setting, 0, "auto", rounds), RECORDS).noise_multiplier
    accuracies = []
    for seed in range(seeds):
        accuracies.append(train(scenario_of(setting, seed, noise, rounds)).accuracy)
    result = setting.__dict__ | {"noise_multiplier": round(noise, 3), "accuracy": round(float(np.mean(accuracies)), 4)}
    return result | {"accuracies": [round(accuracy, 4) for accuracy in accuracies]}


def main() -> None:
    """Train all cells, print the best learning rate of each line, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two cells, a few rounds: that it runs")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="cells trained at the same time")
    arguments = parser.parse_args()
    seeds, rounds = (1, 10) if arguments.quick else (3, ROUNDS)
    with ProcessPoolExecutor(arguments.workers) as pool:
        cells = settings(arguments.quick)
        outcomes = list(pool.map(train_cell, cells, [seeds] * len(cells), [rounds] * len(cells)))
    print(table(outcomes))
    if not arguments.quick:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({"rounds": rounds, "seeds": seeds, "cells": outcomes}, indent=1) + "\n")


def table(outcomes: list[dict[str, Any]]) -> str:
    """Every line with its accuracy at each learning rate."""
    rates = sorted({cell["learning_rate"] for cell in outcomes})
    lines = [f"{'epsilon':>7}{'width':>7}{'p':>4}{'noise':>8}  accuracy at learning rate " + " ".join(map(str, rates))]
    keys = dict.fromkeys((cell["epsilon"], cell["width"], cell["linf_coordinates"]) for cell in outcomes)
    for epsilon, width, coordinates in keys:
        line = [
            c for c in outcomes if (c["epsilon"], c["width"], c["linf_coordinates"]) == (epsilon, width, coordinates)
        ]
        by_rate = {cell["learning_rate"]: cell["accuracy"] for cell in line}
        accuracies = " ".join(f"{by_rate[rate]:.1%}" if rate in by_rate else "     " for rate in rates)
        best = max(by_rate.values())
        noise = line[0]["noise_multiplier"]
        lines.append(f"{epsilon:>7g}{width:>7g}{coordinates:>4}{noise:>8.3f}  {accuracies}   best {best:.1%}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
