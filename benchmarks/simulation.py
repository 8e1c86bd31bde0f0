"""Speed of simulation beside its peers, in one run on one machine: ten minutes on two idle cores.

``python -m benchmarks.simulation [--quick] [--long] [--gpu] [--peers FOLDER] [--only WORD] [--out FILE]``

Stock Flower's simulation, pfl, one JAX program for the whole round, a plain torch loop over clients and a bare
``torch.func.vmap`` loop run the same models on the same data as fedamp, which runs whole: accounting, ledger,
checkpoints. Where the unit is a record, so do Opacus and jax_privacy. Nobody evaluates in the rounds that count.
Figures are medians over the rounds of a steady state; passes take turns, so that a machine that is busy for a while is
unfair to nobody for long. On a busy one, processor time is what to compare.

What grows with size is measured by ``python -m benchmarks.scale``.

Peers live in a folder of their own, because what they pin does not go with fedamp's extras:
``pip install --no-deps --target FOLDER pfl prv-accountant opacus jax jaxlib ml_dtypes opt_einsum jax_privacy absl-py
chex optax drjax immutabledict toolz``. What is not installed is left out, with a note.
"""

import argparse
import copy
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import simulators
from benchmarks.limited import Contender, Stopwatch
from benchmarks.workloads import Workload

RESULTS = Path(__file__).parent / "results"
MLP = Workload("MLP 64-128-10", {"name": "mlp", "hidden": [128]}, {"name": "digits"}, 5, 100, 20)
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
USUAL = ((MLP, 3), (replace(MLP, clients=1000, rounds=5), 2), (RECORDS, 2), (CNN, 2), (RESNET, 1))
LONG = ((replace(CNN, clients=1000, rounds=1), 1), (replace(RESNET, clients=1000, rounds=1), 1))
QUICK = ((replace(MLP, rounds=5), 1), (replace(CNN, clients=20, rounds=1), 1))
LIMIT = 600.0  # seconds a simulator may take for its rounds
FEW = {"stock Flower": 3}  # rounds of simulators that are far slower; one pass
# What the stacks of the bare loop, and of JAX, hold: they are fastest so on a CPU.
TOGETHER = {"mlp": 1000, "cnn": 10, "resnet20": 4}
TOGETHER_IN_JAX = {"mlp": 1000, "cnn": 1, "resnet20": 1}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description="Speed of simulation beside its peers.")
    parser.add_argument("--quick", action="store_true", help="two models, few rounds, in two minutes")
    parser.add_argument("--gpu", action="store_true", help="on one CUDA device, against the plain and the vmap loop")
    parser.add_argument("--long", action="store_true", help="a thousand clients a round of the image models, too")
    parser.add_argument("--peers", default="", help="folder that peers are installed in, if not in this environment")
    parser.add_argument("--only", default="", help="workloads with this word in their name; the others' figures stay")
    parser.add_argument("--out", type=Path, help="where the figures go (JSON)")
    options = parser.parse_args(arguments)
    if options.gpu and not torch.cuda.is_available():
        print("no CUDA device here: the benchmark on a GPU is left out")
        return
    name = "simulation_gpu" if options.gpu else "simulation_quick" if options.quick else "simulation"
    out = options.out or RESULTS / f"{name}.json"
    workloads = QUICK if options.quick else (*USUAL, *LONG) if options.long else USUAL
    figures: dict[str, Any] = json.loads(out.read_text()) if options.only and out.exists() else {}
    figures |= {"machine": machine(), "workloads": figures.get("workloads", [])}

    for workload, passes in workloads:
        if options.only.lower() in workload.name.lower():
            keep(figures["workloads"], compare(workload, passes, options.peers, options.gpu))
            write(out, figures)
    figures["load_at_end"] = os.getloadavg()
    write(out, figures)
    print(f"\nFigures: {out}")


def keep(known: list[dict[str, Any]], measured: dict[str, Any]) -> None:
    """Put a workload's figures in the place of its earlier ones."""
    keys = ("name", "clients")
    for place, earlier in enumerate(known):
        if all(earlier[key] == measured[key] for key in keys):
            known[place] = measured
            return
    known.append(measured)


def write(out: Path, figures: dict[str, Any]) -> None:
    """The figures so far: a run that is stopped leaves those."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(figures, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What the figures depend on. Load above zero is other people's, and makes all figures worse."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "load_at_start": os.getloadavg(),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def questions(workload: Workload, peers: str, gpu: bool) -> dict[str, dict[str, Any]]:
    """Who is asked what, by the name in the tables."""
    model = workload.model["name"]
    together = TOGETHER[model]
    jax = {"simulator": "jax", "folder": peers, "together": TOGETHER_IN_JAX[model]}
    if gpu:
        return {
            "plain torch loop": {"simulator": "plain_loop", "device": "cuda"},
            "bare vmap": {"simulator": "bare_vmap", "together": 100, "device": "cuda"},
            "fedamp, serial": {"simulator": "fedamp", "kind": "serial", "workers": 1, "device": "auto"},
            "fedamp, Ray": {"simulator": "fedamp", "kind": "ray", "workers": 2, "device": "auto"},
        }
    others: dict[str, dict[str, Any]] = {
        "stock Flower": {"simulator": "stock_flower"},
        "pfl": {"simulator": "pfl", "folder": peers},
        "plain torch loop": {"simulator": "plain_loop"},
    }
    if workload.unit == "sample":
        others = {
            "Opacus": {"simulator": "opacus", "folder": peers},
            "jax_privacy, 1 thread": {**jax, "threads": 1, "library": True},
        }
    return {
        **others,
        "bare vmap": {"simulator": "bare_vmap", "together": together},
        "JAX, 1 thread": {**jax, "threads": 1},
        "JAX, 2 threads": {**jax, "threads": 2},
        "fedamp, 1 worker": {"simulator": "fedamp", "kind": "serial", "workers": 1},
        "fedamp, 2 workers": {"simulator": "fedamp", "kind": "ray", "workers": 2},
    }


def compare(workload: Workload, passes: int, peers: str, gpu: bool) -> dict[str, Any]:
    """Everybody on one workload."""
    asked = questions(workload, peers, gpu)
    nothing_yet = {"seconds": [], "warm_up": [], "peak_bytes": 0, "processor_seconds": 0.0}
    answers: dict[str, dict[str, Any]] = {name: copy.deepcopy(nothing_yet) for name in asked}
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        for pass_ in range(passes):
            for name, question in asked.items():
                if pass_ and name in FEW:
                    continue
                rounds = min(workload.rounds, FEW.get(name, workload.rounds))
                # A process of its own each time: memory that others used before does not count.
                watch = stack.enter_context(Stopwatch(Contender(name, "torch", simulators.answer, _NOTHING), LIMIT))
                print(f"{workload.name}, {workload.clients} clients: {name} ...", file=sys.stderr, flush=True)
                timed = watch.ask(workload=asdict(replace(workload, rounds=rounds)), **question)
                watch._stop()
                collect(answers[name], timed.answer, timed.problem)
    rows = {name: figures_of(answer, workload.clients) for name, answer in answers.items()}
    show(workload, rows)
    return {**asdict(workload), "passes": passes, "load_before": load, "simulators": rows}


def collect(answer: dict[str, Any], measured: dict[str, Any] | None, problem: str) -> None:
    """Add what one pass gave."""
    if measured is None:
        answer["problem"] = problem
        return
    answer["seconds"] += measured["seconds"]
    answer["warm_up"].append(measured["warm_up"])
    answer["processor_seconds"] += measured["processor_seconds"]
    answer["peak_bytes"] = max(answer["peak_bytes"], measured["peak_bytes"])


def figures_of(answer: dict[str, Any], clients: int) -> dict[str, Any]:
    """Medians."""
    if not answer["seconds"]:
        return {"problem": answer.get("problem", "no round")}
    seconds = statistics.median(answer["seconds"])
    return {
        "clients_per_second": clients / seconds,
        "rounds_per_second": 1 / seconds,
        "processor_milliseconds_a_client": 1e3 * answer["processor_seconds"] / clients / len(answer["seconds"]),
        "fastest_round_seconds": min(answer["seconds"]),
        "rounds": len(answer["seconds"]),
        "warm_up_seconds": statistics.median(answer["warm_up"]),
        "peak_megabytes": answer["peak_bytes"] / 1e6,
    }


def show(workload: Workload, rows: dict[str, dict[str, Any]]) -> None:
    """A table: speed, memory, and how many times as fast as each the two fedamps are."""
    ours = [row.get("clients_per_second") for name, row in rows.items() if name.startswith("fedamp")]
    names = [name.removeprefix("fedamp, ") for name in rows if name.startswith("fedamp")]
    table = Table(box=box.SIMPLE, title=f"{workload.name}, {workload.clients} clients a round, {workload.steps} steps")
    times = [f"{name} fedamp: times" for name in names]
    for column in ("who", "clients/s", "rounds/s", "processor ms a client", "warm-up, s", "peak MB", *times):
        table.add_column(column, justify="left" if column == "who" else "right")
    for name, row in rows.items():
        if "problem" in row:
            table.add_row(name, row["problem"][:60])
            continue
        speed = row["clients_per_second"]
        ratios = [f"{our / speed:.2f}" if our else "" for our in ours]
        rounds, warm_up, memory = row["rounds_per_second"], row["warm_up_seconds"], row["peak_megabytes"]
        work = f"{row['processor_milliseconds_a_client']:.3g}"
        table.add_row(name, f"{speed:.4g}", f"{rounds:.3g}", work, f"{warm_up:.1f}", f"{memory:.0f}", *ratios)
    Console(width=140).print(table)


_NOTHING: dict[str, Any] = {"simulator": "nothing"}

if __name__ == "__main__":
    main()
