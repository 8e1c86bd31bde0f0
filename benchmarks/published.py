"""Published tables of private image classification by one data holder, and the shipped scenarios beside them.

    python -m benchmarks.published            what is missing in benchmarks/results/published.json; stop it at any time
    python -m benchmarks.published --table    no run, only the tables of docs/published.md from that file

Test accuracy of ``fashion-mnist-sample`` and ``mnist-sample`` at delta 1e-5, five seeds, three ways to draw batches.
A run takes about half a minute of one core, once the features are kept (docs/data.md).
"""

import argparse
import json
import re
import tempfile
import time
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedamp import api
from fedamp.federation.plan import Plan, make_plan, privacy_units
from fedamp.federation.reader import load
from fedamp.federation.scenario import Scenario

RESULTS, PAGE = Path("benchmarks/results/published.json"), Path("docs/published.md")
EPSILONS, SEEDS = (1.0, 2.0, 3.0), (1, 2, 3, 4, 5)
FASHION, DIGITS = "fashion-mnist-sample", "mnist-sample"
RATES = {FASHION: 30.0, DIGITS: 4.0}  # server's learning rate over epsilon; chosen on held-out training records

# Test accuracy in per cent on Fashion-MNIST at delta 1e-5, by epsilon, and where it is printed.
PUBLISHED = {
    "DP-SGD, CNN end to end": ((80.3, 82.6, 84.7), "Tramèr, Boneh 2021"),
    "DP-SGD, CNN on scattering features": ((85.5, 88.0, 89.0), "Tramèr, Boneh 2021"),
    "DP-SGD, linear on scattering features": ((None, None, 89.7), "Tramèr, Boneh 2021"),
    "DPIS (importance sampling)": ((86.3, 88.2, 88.8), "Wei et al. 2022"),
    "DPSUR (selective release; its charge is doubtful)": ((88.4, 89.3, 89.7), "Fu et al. 2024"),
}

UNTOLD = {"description", "engine", "federation", "seed"}  # settings that change no figure, or are kept with each run
FIRST = "check-in"
SCHEMES = {
    FIRST: "balanced: every record in exactly k hidden rounds",
    "poisson": "Poisson sampling at the same rate",
    "shuffled": "shuffled batches, charged as Poisson sampling, as is usual",
}


@cache
def plan_of(name: str, scheme: str, epsilon: float) -> Plan:
    """What a way of drawing batches does: its schedule, and the noise with which it is said to keep the budget."""
    budget = [f"privacy.epsilon={epsilon!r}", f"server.learning_rate={RATES[name] * epsilon!r}"]
    own = load(name, budget)
    k, rate = own.check_in.k, own.check_in.k / own.rounds  # type: ignore[union-attr]
    if scheme == FIRST:
        return _plan(own)
    poisson = _plan(load(name, [*budget, f"check_in={{scheme: poisson, rate: {rate!r}}}"]))
    if scheme == "poisson":
        return poisson
    noise = f"privacy.noise_multiplier={poisson.noise_multiplier!r}"
    shuffled = f"check_in={{scheme: stratified, k: {k}}}"
    return _plan(load(name, [*budget, shuffled, "privacy.epsilon=null", noise]))


def _plan(scenario: Scenario) -> Plan:
    return make_plan(scenario, privacy_units(scenario))


def measured(plan: Plan, seed: int) -> dict[str, Any]:
    """One run, trained in this process."""
    asked = plan.scenario
    how = ("known_seed=true", "engine.kind=serial", f"federation.evaluate_every={asked.rounds}", f"seed={seed}")
    changes = [f"privacy.noise_multiplier={plan.noise_multiplier!r}", *how]
    wall, cpu = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        summary = api.run(load(asked.model_dump(mode="json"), changes), Path(folder) / "run").summary
    assert summary.final.accuracy is not None, "evaluated after the last round; a run that was stopped raises"
    return {
        "seed": seed,
        "accuracy": summary.final.accuracy,
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "seconds": round(time.monotonic() - wall, 1),
    }


def measure(seeds: tuple[int, ...], file: Path) -> None:
    """Every data set, budget and scheme; what the file has already is not run again."""
    rows: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for scheme, name, epsilon in product(SCHEMES, (FASHION, DIGITS), EPSILONS):
        key, plan = f"{name} {scheme} {epsilon:g}", plan_of(name, scheme, epsilon)
        settings = plan.scenario.model_dump(mode="json", exclude=UNTOLD, exclude_defaults=True)
        if rows.get(key, {}).get("settings") != settings:
            rows[key] = {"settings": settings, "runs": []}
        rows[key] |= _cost(plan, rows[f"{name} {FIRST} {epsilon:g}"].get("noise_multiplier", plan.noise_multiplier))
    for seed, name, scheme, epsilon in product(seeds, (FASHION, DIGITS), SCHEMES, EPSILONS):
        key, plan = f"{name} {scheme} {epsilon:g}", plan_of(name, scheme, epsilon)
        if seed not in [run["seed"] for run in rows[key]["runs"]]:
            rows[key]["runs"].append(measured(plan, seed))
            print(key, rows[key]["runs"][-1], flush=True)
            file.write_text(json.dumps(rows, indent=1) + "\n")


def _cost(plan: Plan, noise: float) -> dict[str, Any]:
    """What a plan costs, and what it would with another noise multiplier."""
    privacy = plan.scenario.privacy.model_copy(update={"noise_multiplier": noise})
    other = replace(plan, scenario=plan.scenario.model_copy(update={"privacy": privacy}))
    return {
        "units": plan.units,
        "noise_multiplier": plan.noise_multiplier,
        "epsilon": plan.planned_epsilon.to_json(),
        "epsilon_with_check_in_s_noise": other.planned_epsilon.to_json(),
    }


# --- tables -----------------------------------------------------------------------------------------------------------


def beside_published(rows: dict[str, Any]) -> str:
    """Markdown: the published rows, and ours last."""
    lines = ["| test accuracy, % | ε = 1 | ε = 2 | ε = 3 | source |", "| --- | --- | --- | --- | --- |"]
    for words, (values, source) in PUBLISHED.items():
        cells = ["" if value is None else f"{value:.1f}" for value in values]
        lines.append(f"| {words} | {' | '.join(cells)} | {source} |")
    ours = " | ".join(f"**{_accuracy(rows[f'{FASHION} check-in {epsilon:g}'])}**" for epsilon in EPSILONS)
    return "\n".join([*lines, f"| `{FASHION}` | {ours} | trained here |"])


def schemes(rows: dict[str, Any], name: str) -> str:
    """Markdown: the ways to draw batches, at the same epsilon; and what each one's noise costs in truth."""
    columns = ("", "budget ε", "noise multiplier", "ε in truth", "ε with check-in's noise", "test accuracy, %")
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for epsilon, (scheme, words) in product(EPSILONS, SCHEMES.items()):
        row = rows[f"{name} {scheme} {epsilon:g}"]
        costs = f"{row['epsilon']['upper']:.3f} | {row['epsilon_with_check_in_s_noise']['upper']:.3f}"
        lines.append(f"| {words} | {epsilon:g} | {row['noise_multiplier']:.3f} | {costs} | {_accuracy(row)} |")
    return "\n".join(lines)


def _accuracy(row: dict[str, Any]) -> str:
    values = [100 * run["accuracy"] for run in row["runs"]]
    if not values:
        return ""
    spread = f" ± {np.std(values, ddof=1):.2f} ({len(values)} seeds)" if len(values) > 1 else " (one seed)"
    return f"{np.mean(values):.2f}{spread}"


def with_tables(text: str, rows: dict[str, Any]) -> str:
    """A page with the present tables in every place that asks for one."""
    made = {"published": beside_published(rows), "schemes": schemes(rows, FASHION), "digits": schemes(rows, DIGITS)}
    place = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return place.sub(lambda found: f"{found[1]}{made[found[2]]}\n{found[3]}", text)


def main() -> None:
    """Measure what is missing, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    asked = parser.parse_args()
    if not asked.table:
        measure(tuple(asked.seeds), RESULTS)
    PAGE.write_text(with_tables(PAGE.read_text(), json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
