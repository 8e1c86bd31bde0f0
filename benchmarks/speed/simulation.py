"""Speed of simulation beside its peers, in one run on one machine: ten minutes on two idle cores.

``python -m benchmarks.speed.simulation [--minutes N] [--quick] [--long] [--peers FOLDER] [--only WORD] [--out FILE]``

Stock Flower's simulation, pfl, one JAX program for the whole round, a plain torch loop over clients and a bare
``torch.func.vmap`` loop run the same models on the same data as fedamp, which runs whole: accounting, ledger,
checkpoints. Where the unit is a record, so do Opacus and jax_privacy. Nobody evaluates in the rounds that count.
Figures are medians over the rounds of a steady state; passes take turns, so that a machine that is busy for a while is
unfair to nobody for long. Everybody has one pass, and more as long as there is time. On a busy machine, processor time
is what to compare. Whoever takes longer than ``LIMIT`` for a pass, compilation included, is not measured.

Figures go to ``benchmarks/speed/simulation.json``, and from there to the table of ``docs/research/architecture.md``.

``python -m benchmarks.speed.scale`` measures what grows with size, and ``python -m benchmarks.speed.gpu`` a GPU.

Peers live in a folder of their own, because what they pin does not go with fedamp's extras:
``pip install --no-deps --target FOLDER pfl prv-accountant opacus jax jaxlib ml_dtypes opt_einsum jax_privacy absl-py
chex optax drjax immutabledict toolz``. What is not installed is left out, with a note.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.record import ROOT, made, put_in, store
from benchmarks.speed import simulators
from benchmarks.speed.limited import Contender, Stopwatch
from benchmarks.speed.workloads import Workload

RESULTS, PAGE = Path(__file__).with_suffix(".json"), ROOT / "docs" / "research" / "architecture.md"
MLP = Workload("MLP 64-128-10", {"name": "mlp", "hidden": [128]}, {"name": "digits"}, 5, 100, 20)
# Just above a power of two, where sizes of stacks that are powers of two would nearly double the work.
SEVENTEEN = replace(
    MLP,
    name="MLP 64-128-10, 17 records",
    data={"name": "synthetic", "features": 64, "records_per_client": 17},
)
IMAGES = {"name": "synthetic", "test_records": 200}
CNN = Workload("CNN 28x28", {"name": "cnn"}, {**IMAGES, "shape": [1, 28, 28], "records_per_client": 10}, 2, 100, 3)
RESNET = Workload(
    "ResNet-20 32x32", {"name": "resnet20"}, {**IMAGES, "shape": [3, 32, 32], "records_per_client": 5}, 1, 100, 2
)
RECORDS = Workload(
    "records, MLP 64-128-10",
    {"name": "mlp", "hidden": [128]},
    {"name": "synthetic", "features": 64, "records_per_client": 1},
    1,
    1000,
    10,
    "sample",
)
USUAL = (
    (MLP, 5),
    (replace(MLP, clients=1000, rounds=5), 3),
    (SEVENTEEN, 5),
    (replace(SEVENTEEN, clients=1000, rounds=5), 3),
    (RECORDS, 3),
    (CNN, 3),
    (RESNET, 2),
)
LONG = ((replace(CNN, clients=1000, rounds=1), 1), (replace(RESNET, clients=1000, rounds=1), 1))
QUICK = ((replace(MLP, rounds=5), 1), (replace(CNN, clients=20, rounds=1), 1))
LIMIT = 90.0  # seconds a simulator may take for its start, compilation and rounds
SLOW = "stock Flower"  # has one pass of few rounds, and none with a thousand clients a round but in --long
SLOW_ROUNDS, SLOW_CLIENTS = 2, 100
# What the stacks of the bare loop, and of JAX, hold: they are fastest so on a CPU.
TOGETHER = {"mlp": 1000, "cnn": 10, "resnet20": 4}
TOGETHER_IN_JAX = {"mlp": 1000, "cnn": 1, "resnet20": 1}

OURS = ("fedamp, 1 worker", "fedamp, 2 workers")
# Columns, and against whom fedamp with one worker stands there, and with two.
COLUMNS = {
    "JAX": ("JAX, 1 thread", "JAX, 2 threads"),
    **{name: (name, name) for name in ("stock Flower", "pfl", "plain torch loop", "bare vmap", "Opacus")},
    "jax_privacy": ("jax_privacy, 1 thread",) * 2,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description="Speed of simulation beside its peers.")
    parser.add_argument("--minutes", type=float, default=10.0, help="no pass but the first is begun that ends later")
    parser.add_argument("--quick", action="store_true", help="two models, few rounds, in two minutes")
    parser.add_argument("--long", action="store_true", help="a thousand clients a round of the image models, too")
    parser.add_argument("--peers", default="", help="folder that peers are installed in, if not in this environment")
    parser.add_argument("--only", default="", help="workloads with this word in their name; the others' figures stay")
    parser.add_argument("--out", type=Path, help="where the figures go (JSON)")
    options = parser.parse_args(arguments)
    out = options.out or (Path("build/simulation_quick.json") if options.quick else RESULTS)
    workloads = QUICK if options.quick else (*USUAL, *LONG) if options.long else USUAL
    figures: dict[str, Any] = json.loads(out.read_text()) if options.only and out.exists() else {}
    figures |= made() | {"workloads": figures.get("workloads", [])}

    chosen = [each for each in workloads if options.only.lower() in each[0].name.lower()]
    races = [Race(workload, passes, questions(workload, options)) for workload, passes in chosen]
    end = monotonic() + 60 * options.minutes
    for number in range(max((race.passes for race in races), default=0)):
        for race in races:
            if number == 0 or (number < race.passes and monotonic() + race.seconds < end):
                race.run()
                keep(figures["workloads"], race.figures())
                store(out, figures | {"load_at_end": os.getloadavg()})
    print(in_markdown(figures))
    if out == RESULTS:
        put_in(PAGE, "table: simulation", in_markdown(figures))
    print(f"\nFigures: {out}")


def keep(known: list[dict[str, Any]], measured: dict[str, Any]) -> None:
    """Put a workload's figures in the place of its earlier ones."""
    keys = ("name", "clients")
    for place, earlier in enumerate(known):
        if all(earlier[key] == measured[key] for key in keys):
            known[place] = measured
            return
    known.append(measured)


def questions(workload: Workload, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Who is asked what, by the name in the tables."""
    peers = options.peers
    model = workload.model["name"]
    together = TOGETHER[model]
    jax = {"simulator": "jax", "folder": peers, "together": TOGETHER_IN_JAX[model]}
    others: dict[str, dict[str, Any]] = {
        SLOW: {"simulator": "stock_flower"},
        "pfl": {"simulator": "pfl", "folder": peers},
        "plain torch loop": {"simulator": "plain_loop"},
    }
    if workload.unit == "sample":
        others = {
            "Opacus": {"simulator": "opacus", "folder": peers},
            "jax_privacy, 1 thread": {**jax, "threads": 1, "library": True},
        }
    if workload.clients > SLOW_CLIENTS and not options.long:
        others.pop(SLOW, None)
    return {
        **others,
        "bare vmap": {"simulator": "bare_vmap", "together": together},
        "JAX, 1 thread": {**jax, "threads": 1},
        "JAX, 2 threads": {**jax, "threads": 2},
        "fedamp, 1 worker": {"simulator": "fedamp", "kind": "serial", "workers": 1},
        "fedamp, 2 workers": {"simulator": "fedamp", "kind": "ray", "workers": 2},
    }


class Race:
    """Everybody on one workload.

    Args:
        workload: what is run.
        passes: how many at most.
        asked: the questions, by the name in the tables.
    """

    def __init__(self, workload: Workload, passes: int, asked: dict[str, dict[str, Any]]) -> None:
        self.workload, self.passes, self.asked = workload, passes, asked
        self.seconds = 0.0  # of the last pass
        self._answers: dict[str, list[dict[str, Any]]] = {name: [] for name in asked}
        self._problems: dict[str, str] = {}  # by simulator
        self._load = os.getloadavg()[0]

    def run(self) -> None:
        """One pass: everybody once, but those who could not before, and who is slow."""
        start = monotonic()
        for name, question in self.asked.items():
            done = name == SLOW and self._answers[name]
            if done or question["simulator"] in self._problems:  # with two threads it compiles as long as with one
                continue
            rounds = min(self.workload.rounds, SLOW_ROUNDS) if name == SLOW else self.workload.rounds
            print(f"{self.workload.name}, {self.workload.clients} clients: {name} ...", file=sys.stderr, flush=True)
            # A process of its own each time: memory that others used before does not count.
            with Stopwatch(Contender(name, "torch", simulators.answer, {"simulator": "nothing"}), LIMIT) as watch:
                timed = watch.ask(workload=asdict(replace(self.workload, rounds=rounds)), **question)
            if timed.problem and question["simulator"] == "fedamp":  # no figure without it, and the stored ones stay
                sys.exit(f"{name}: {timed.problem}")
            if timed.problem:
                self._problems[question["simulator"]] = f"not measured: {timed.problem}"
            else:
                self._answers[name].append(timed.answer)
        self.seconds = monotonic() - start

    def figures(self) -> dict[str, Any]:
        """What is known so far."""
        rows = {}
        for name, answers in self._answers.items():
            problem = {"problem": self._problems.get(self.asked[name]["simulator"], "")}
            rows[name] = figures_of(answers, self.workload.clients) if answers else problem
        return {**asdict(self.workload), "load_before": self._load, "simulators": rows}


def figures_of(answers: list[dict[str, Any]], clients: int) -> dict[str, Any]:
    """Medians over all rounds of all passes, and over the rounds of each."""
    rounds = [second for answer in answers for second in answer["seconds"]]
    seconds = statistics.median(rounds)
    processor = sum(answer["processor_seconds"] for answer in answers)
    return {
        "clients_per_second": clients / seconds,
        "clients_per_second_by_pass": [clients / statistics.median(answer["seconds"]) for answer in answers],
        "rounds_per_second": 1 / seconds,
        "processor_milliseconds_a_client": 1e3 * processor / clients / len(rounds),
        "fastest_round_seconds": min(rounds),
        "rounds": len(rounds),
        "warm_up_seconds": statistics.median(answer["warm_up"] for answer in answers),
        "peak_megabytes": max(answer["peak_bytes"] for answer in answers) / 1e6,
    }


def in_markdown(figures: dict[str, Any]) -> str:
    """fedamp with one and two workers: clients a second, and how many times as fast as the others; the machine."""
    machine, workloads = figures["machine"], figures["workloads"]
    rows = [["model, clients a round", "clients/s", *COLUMNS], ["---"] * (2 + len(COLUMNS)), *map(_row, workloads)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    clock = f" of {machine['gigahertz']} GHz" if machine["gigahertz"] else ""
    return (
        f"{table}\nMedians on {machine['cores']} cores{clock}, load {machine['load_at_start'][0]:.1f} at the start. "
        "In brackets: from the slowest pass of fedamp over the fastest of the other, to the reverse.\n"
    )


def _row(workload: dict[str, Any]) -> list[str]:
    passes = {name: row["clients_per_second_by_pass"] for name, row in _measured(workload).items()}
    speeds = {name: row["clients_per_second"] for name, row in _measured(workload).items()}
    cells = [" / ".join(f"{speeds[name]:,.0f}" for name in OURS if name in speeds)]
    for others in COLUMNS.values():
        pairs = [(name, other) for name, other in zip(OURS, others, strict=True) if {name, other} <= set(speeds)]
        ratios = " / ".join(
            f"{speeds[name] / speeds[other]:.3g} ({_spread(passes[name], passes[other])})" for name, other in pairs
        )
        cells.append(ratios or ("not measured" if set(others) & set(workload["simulators"]) else ""))
    return [f"{workload['name']}, {workload['clients']:,}", *cells]


def _spread(ours: list[float], theirs: list[float]) -> str:
    """Smallest and largest ratio of any pass of ours over any pass of theirs."""
    if len(ours) == len(theirs) == 1:
        return "one pass"
    return f"{min(ours) / max(theirs):.2g} to {max(ours) / min(theirs):.2g}"


def _measured(workload: dict[str, Any]) -> dict[str, Any]:
    return {name: row for name, row in workload["simulators"].items() if "problem" not in row}


if __name__ == "__main__":
    main()
