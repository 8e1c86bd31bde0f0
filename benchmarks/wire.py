"""Seconds a round of a deployment on this machine, beyond training, and where they go.

    python -m benchmarks.wire            some minutes; writes benchmarks/results/wire.json

A SuperLink, the proxy and three nodes, by the commands of docs/deployment.md, with the page's small model. Each variant
is a run of its own: stock Flower's FedAvg with a client app that imports torch; fedamp; fedamp with Flower's default
interval at which an executor asks for tasks; fedamp with nodes that keep one process (tests/deployment/hostile.py).
The first round also asks the nodes for their units, and is left out. Ratios are to stock Flower in the same session.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path

from tests.deployment.hostile import WireNode
from tests.deployment.machines import NODES, Machines, wait
from tests.deployment.test_processes import write_scenario
from tests.server.plays import rounds_of

RESULTS = Path("benchmarks/results/wire.json")
INTERVAL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
IMPORTS = {
    "python": "",
    "flower": "flwr.supernode.cli.flwr_clientapp",
    "flower and torch": "flwr.supernode.cli.flwr_clientapp, torch",
    "flower and fedamp": "flwr.supernode.cli.flwr_clientapp, fedamp.client.app",
}
CLIENT = """
import torch
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.app import MetricRecord, RecordDict
app = ClientApp()

@app.train()
def train(message, context):
    records = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(records), reply_to=message)
"""
SERVER = """
import time
import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
app = ServerApp()

@app.main()
def main(grid, context):
    def done(round_, arrays):
        with open("stock.txt", "a") as file:
            print(time.monotonic(), file=file)
        return MetricRecord({"round": round_})
    arrays = ArrayRecord([np.zeros(910, np.float32)])
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=3)
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS, evaluate_fn=done)
"""


def cpu_seconds(modules: str) -> float:
    """Of a new process that imports them: the median of five."""
    program = f"import resource{f', {modules}' if modules else ''}; "
    program += "used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_utime + used.ru_stime)"
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True) for _ in range(5)]
    return statistics.median(float(run.stdout) for run in runs)


def started(stack: ExitStack, interval: str | None) -> Machines:
    machines = Machines(Path(stack.enter_context(tempfile.TemporaryDirectory())), NODES)
    stack.callback(machines.stop)
    if interval is not None:
        before = os.environ.get(INTERVAL)
        os.environ[INTERVAL] = interval
        stack.callback(lambda: os.environ.pop(INTERVAL) if before is None else os.environ.update({INTERVAL: before}))
    machines.start_server()
    machines.shell("server: register the nodes")
    return machines


def stock(rounds: int) -> list[float]:
    with ExitStack() as stack:
        machines = started(stack, "1.0")
        app = machines.server / "app" / "fedamp_app"
        (app / "client.py").write_text(CLIENT)
        (app / "server.py").write_text(SERVER.replace("ROUNDS", str(rounds)))
        for name in NODES:
            (machines.folder / name / "data").mkdir()
            machines.start_node(name)
        wait(lambda: machines.connected() == len(NODES), 120, "the nodes", every=1)
        machines.start_run()
        file = machines.server / "stock.txt"
        wait(lambda: file.exists() and len(file.read_text().splitlines()) > rounds, 60 * rounds, "the rounds")
        times = [float(line) for line in file.read_text().splitlines()][1:]  # the first is before round 1
        return [after - before for before, after in pairwise(times)]


def private(rounds: int, interval: str | None = None, processes: bool = True) -> list[float]:
    with ExitStack() as stack:
        machines = started(stack, interval)
        write_scenario(machines, rounds=rounds)
        run = machines.server / "run"
        if processes:
            for name in NODES:
                machines.start_node(name)
            machines.start_run(known_seed=True)
            wait((run / "summary.json").exists, 60 * rounds, "the end of the run")
        else:
            nodes = [stack.enter_context(closing(WireNode(machines, name))) for name in NODES]
            machines.start_run(known_seed=True)
            while not (run / "summary.json").exists():
                for node in nodes:
                    if (order := node.pull()) is not None:
                        node.confirm(order)
                        node.react(order)
                time.sleep(0.05)
        return [line["seconds"] for line in rounds_of(run)][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    variants = {
        "stock Flower": lambda: stock(rounds),
        "fedamp, an executor that asks each second": lambda: private(rounds, "1.0"),
        "fedamp": lambda: private(rounds),
        "fedamp, nodes that keep one process": lambda: private(rounds, processes=False),
    }
    seconds = {name: play() for name, play in variants.items()}
    medians = {name: statistics.median(measured) for name, measured in seconds.items()}
    report = {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),  # the machine is shared
        "rounds": rounds - 1,
        "seconds_a_round": {
            name: {
                "median": round(medians[name], 2),
                "least": round(min(measured), 2),
                "most": round(max(measured), 2),
                "of_stock": round(medians[name] / medians["stock Flower"], 2),
            }
            for name, measured in seconds.items()
        },
        "cpu_seconds_of_a_client_process": {name: round(cpu_seconds(modules), 2) for name, modules in IMPORTS.items()},
    }
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
