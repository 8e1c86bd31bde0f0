"""Correlated noise: its matrices and schedules, and what `auto` chooses: `python -m benchmarks.studies.correlated`.

`matrices` is the noise of the averaged model (the root mean square of prefix sums) at equal epsilon, delta 1e-5, over
that of independent noise under k of T rounds. Each entry is the least over a few separations, calibrated to upper ends.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import ROOT, made, put_in, store, table
from benchmarks.studies.federation_tasks import features
from benchmarks.studies.federations import train, trained_alone
from fedamp.accounting import Allocation, BallsInBins, Cyclic, Gaussian, Mechanism, Poisson, Repeat, Spaced, calibrate
from fedamp.extensions.correlated.mechanisms import best_buffers, best_coefficients
from fedamp.federation import reader
from fedamp.federation.model_noise import path_noise
from fedamp.federation.plan import make_plan, privacy_units
from fedamp.federation.scenario import Scenario
from fedamp.server.setup import prepare

RESULTS = Path(__file__).with_suffix(".json")
PAGE = ROOT / "docs" / "research" / "correlated-noise.md"
SETTINGS = [(rounds, k, epsilon) for rounds, k in ((60, 3), (100, 4), (100, 10)) for epsilon in (1, 2, 4, 8)]
Coefficients = tuple[float, ...]


def inverse_square_root(bands: int, rounds: int) -> Coefficients:
    """c_1, c_2, .. of the inverse of the square root of prefix sums, cut to so many bands (Kalinin et al. 2025)."""
    places = np.arange(1, bands)
    kept = np.cumprod((2 * places - 3) / (2 * places))  # of (1 - x)^(1/2), negative
    column = [1.0]
    for t in range(1, rounds):
        column.append(float(-sum(kept[j - 1] * column[t - j] for j in range(1, min(t, bands - 1) + 1))))
    return tuple(column[1:])


def best_bands(rounds: int, k: int, epsilon: float) -> int:
    """As `auto` compares them: by check-in in classes, which has a law."""

    def classes(bands: int) -> Callable[[float], Mechanism]:
        return lambda s: Cyclic(Gaussian(s), k, rounds, bands)

    columns = {
        b: best_coefficients(b, np.ones(rounds)) for b in (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24) if b * k <= rounds
    }
    return min(columns, key=lambda bands: noise(columns[bands], classes(bands), epsilon, rounds))


def ways(rounds: int, k: int, epsilon: float) -> dict[str, Iterable[tuple[Coefficients, Callable[[float], Mechanism]]]]:
    """By name: the coefficients and the cost, by noise multiplier, of each separation that is tried."""
    response, most, best = np.ones(rounds), rounds // k, best_bands(rounds, k, epsilon)
    gaps = sorted({max(2, most // 4), max(2, most // 2), most})

    def poisson(gap: int) -> Callable[[float], Mechanism]:
        return lambda noise: Repeat(Poisson(Gaussian(noise), k * gap / rounds), rounds // gap)

    def spaced(gap: int, column: Coefficients) -> Callable[[float], Mechanism]:
        return lambda noise: Spaced(Gaussian(noise), k, rounds, gap, column)

    def bins(column: Coefficients) -> Callable[[float], Mechanism]:
        return lambda noise: BallsInBins(Gaussian(noise), rounds, most, column)

    banded = {gap: best_coefficients(gap, response) for gap in {best, *gaps}}
    buffered = {gap: best_buffers(2, [response], k, gap) for gap in gaps[2:]}
    inverse = {gap: inverse_square_root(gap, rounds) for gap in gaps[1:]}
    return {
        "cyclic Poisson, banded": [(banded[gap], poisson(gap)) for gap in gaps if k * gap < rounds],
        "bins, banded": [(banded[gap], bins(banded[gap])) for gap in gaps],
        "bins, BLT": [(buffered[most], bins(buffered[most]))],
        "bins, BISR": [(inverse[gap], bins(inverse[gap])) for gap in gaps[1:]],
        "spaced, banded": [(banded[best], spaced(best, banded[best]))],
        "spaced, BLT": [(buffered[most], spaced(most, buffered[most]))],
    }


def noise(column: Coefficients, build: Callable[[float], Mechanism], epsilon: float, rounds: int) -> float:
    """Of prefix sums, at the least noise multiplier for (epsilon, 1e-5)."""
    finer = 0.01 if isinstance(build(1.0), Spaced) else 0.05  # coarse answers are wide there
    return calibrate(build, epsilon, 1e-5, precision=finer) * path_noise(column, np.ones(rounds))


def matrices(settings: list[tuple[int, int, int]]) -> list[dict[str, float]]:
    """A row for each setting."""
    rows = []
    for rounds, k, epsilon in settings:
        start = time.process_time()
        alone = noise((), lambda s, k=k, rounds=rounds: Allocation(Gaussian(s), k, rounds), epsilon, rounds)
        found = {
            name: min(noise(column, build, epsilon, rounds) / alone for column, build in tried)
            for name, tried in ways(rounds, k, epsilon).items()
        }
        rows.append({"rounds": rounds, "k": k, "epsilon": epsilon} | found)
        shown = "  ".join(f"{name} {value:.3f}" for name, value in found.items())
        print(f"{rounds}, {k}, {epsilon}: {shown}  ({time.process_time() - start:.0f} s)", flush=True)
    return rows


TASKS: dict[str, tuple[str, int, list[str]]] = {  # a scenario, check-ins, and changes
    "digits": ("digits", 10, []),
    "sections": ("sections", 4, []),
    "students": ("ratings", 4, []),
    "clothes": (
        "baseline",
        3,
        [
            "rounds=60",
            "model={name: mlp, hidden: [32]}",
            "client={steps: 2, learning_rate: 0.1}",
            "server={momentum: 0.5, averaging: 0.9}",
        ],
    ),
}
BUDGETS, BANDS = (1, 2, 4, 8), (1, 2, 5, 10)
SEEDS = (1, 2, 3)  # the rule was found on the first one


def scenario_of(task: str, epsilon: float, bands: int | str, seed: int) -> Scenario:
    """Check-in by classes, which is charged exactly at once; ``bands`` a number or auto."""
    name, k, changes = TASKS[task]
    noise = f"privacy.noise={{scheme: banded, bands: {bands}}}"
    keys = [
        f"check_in={{scheme: classes, k: {k}}}",
        f"privacy={{clip: auto, epsilon: {epsilon}, precision: 0.05}}",
        noise,
        f"seed={seed}",
        "engine={kind: serial}",
        "federation={}",
    ]
    data = {"data": features({"scheme": "iid"})(False) | {"clients": 2000}} if task == "clothes" else {}
    return reader.load(name, [*changes, *keys], data)


def score(scenario: Scenario) -> float:
    """Test accuracy, or the share of variance that is explained, in percent."""
    found = trained_alone(scenario, False) if scenario.model.local else train(prepare(scenario), False)[False]
    return 100 * found[0]


def trained(seconds: float) -> list[dict[str, Any]]:
    """Scores that are not stored yet, for so many seconds."""
    facts, start = stored(), time.monotonic()
    rows = facts.setdefault("bands", [])
    done = {(row["task"], row["epsilon"], row["bands"], row["seed"]) for row in rows}
    for seed, epsilon, task in product(SEEDS, BUDGETS, TASKS):
        plain = scenario_of(task, epsilon, "auto", seed)
        chosen = len(make_plan(plain, privacy_units(plain)).coefficients) + 1
        facts.setdefault("chosen", {})[f"{task} at {epsilon}"] = chosen
        for bands in sorted({*BANDS, chosen}):
            if bands * TASKS[task][1] > plain.rounds or (task, epsilon, bands, seed) in done:
                continue
            if time.monotonic() - start > seconds:
                return rows
            row = {"task": task, "epsilon": epsilon, "bands": bands, "seed": seed}
            rows.append(row | {"score": round(score(scenario_of(task, epsilon, bands, seed)), 2)})
            print(json.dumps(rows[-1]), flush=True)
        store(RESULTS, facts)
    return rows


def bands_table(facts: dict[str, Any]) -> list[dict[str, str]]:
    """What `auto` gets beside each number of bands: means over the seeds, and how far it is below the best mean.

    A seed has the same split, start and check-in whatever the bands, so differences are taken within a seed.
    """
    found: dict[tuple[str, int], dict[int, dict[int, float]]] = {}
    for row in facts["bands"]:
        found.setdefault((row["task"], row["epsilon"]), {}).setdefault(row["bands"], {})[row["seed"]] = row["score"]
    lines = []
    for (task, epsilon), scores in sorted(found.items(), key=lambda item: ([*TASKS].index(item[0][0]), item[0][1])):
        chosen = facts["chosen"][f"{task} at {epsilon}"]
        seeds = set.intersection(*(set(scores[bands]) for bands in {*BANDS, chosen}))
        values = {bands: [scores[bands][seed] for seed in sorted(seeds)] for bands in {*BANDS, chosen}}
        means = {bands: float(np.mean(each)) for bands, each in values.items()}
        best = max(means, key=lambda bands: means[bands])
        below = f"{means[best] - means[chosen]:.1f}"
        if len(seeds) > 1 and best != chosen:
            apart = np.subtract(values[best], values[chosen])
            below += f" ± {np.std(apart, ddof=1) / np.sqrt(len(seeds)):.1f}"
        line = {"task, epsilon": f"{task}, {epsilon}", "seeds": f"{len(seeds)}"}
        line |= {"independent" if bands == 1 else f"{bands} bands": f"{means[bands]:.1f}" for bands in BANDS}
        lines.append(line | {"`auto`": f"{means[chosen]:.1f} ({chosen})", "below the best": below})
    return lines


def stored() -> dict[str, Any]:
    """What was measured so far."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def matrices_table(facts: dict[str, Any]) -> list[dict[str, str]]:
    """The least of a row is bold, if it is below that of independent noise, 1."""
    lines = []
    for row in facts["matrices"]:
        found = {name: value for name, value in row.items() if name not in ("rounds", "k", "epsilon")}
        least = min(1.0, *found.values())
        line = {"T, k, epsilon": f"{row['rounds']}, {row['k']}, {row['epsilon']}"}
        marks = {name: "**" if value <= least * 1.005 else "" for name, value in found.items()}
        lines.append(line | {name: f"{marks[name]}{value:.2f}{marks[name]}" for name, value in found.items()})
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only", type=int, nargs="*", help="settings, by their places from 0 on; others stay as stored"
    )
    parser.add_argument("--seconds", type=float, default=3600, help="after which no further model is trained")
    asked = parser.parse_args()
    only = asked.only
    warnings.simplefilter("ignore")
    facts = stored() | made()
    rows = {tuple(list(row.values())[:3]): row for row in facts.get("matrices", [])}
    for row in matrices([SETTINGS[i] for i in (range(len(SETTINGS)) if only is None else only)]):
        rows[tuple(list(row.values())[:3])] = row
    facts["matrices"] = [rows[setting] for setting in SETTINGS if setting in rows]
    store(RESULTS, facts)
    trained(asked.seconds)
    facts = stored()
    put_in(PAGE, "numbers: matrices", table(matrices_table(facts)))
    put_in(PAGE, "numbers: bands", table(bands_table(facts)))
