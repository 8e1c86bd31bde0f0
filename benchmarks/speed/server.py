"""Processor seconds of a deployment's server, a round, against the number of its nodes.

    python -m benchmarks.speed.server                some minutes on two idle cores; writes server.json
    python -m benchmarks.speed.server --only 20      prints one size, and writes nothing
    python -m benchmarks.speed.server --show         the table of docs/research/between-machines.md from it

The SuperLink, the proxy and the server's app are real, by the commands of docs/deployment.md. The nodes are real on the
wire and share one process: each has its key, asks as often as ``fedamp node``, trains with fedamp's client app, and
answers. So many of them need no memory for as many SuperNodes. Beside the seconds are the requests that the SuperLink
got (those by the clock are looks, of which a longer round has more), and the seconds of ``import torch`` on the same
processor.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from benchmarks.record import ROOT, Row, made, put_in, store, table
from fedamp.client import stacks
from fedamp.client.node import Looks, Waits
from tests.deployment.hostile import WireNode
from tests.deployment.machines import Machines, wait
from tests.deployment.test_processes import write_scenario
from tests.server.plays import rounds_of

RESULTS, PAGE = Path(__file__).with_suffix(".json"), ROOT / "docs" / "research" / "between-machines.md"
SIZES = 3, 20
ROUNDS, CLIENTS_EACH = 3, 3
BY_TIME = "fleet/pull-messages", "runtime/acquire-task", "runtime/get-nodes", "runtime/send-task-heartbeat"
PARTS = {"superlink": "flower-superlin", "app": "flwr-serverapp", "task starter": "flower-superexe", "proxy": "nginx"}


def used(machines: Machines) -> dict[str, float]:
    """Processor seconds so far of each part of the server."""
    proxy = psutil.Process(machines.processes["proxy"].pid)
    found = {part: machines.family(name) for part, name in PARTS.items()}
    found["proxy"] = [proxy, *proxy.children(recursive=True)]
    return {part: sum(sum(each.cpu_times()[:2]) for each in family) for part, family in found.items()}


def requests(machines: Machines) -> Counter[str]:
    """How often the SuperLink got each call."""
    return Counter(re.findall(r'"POST /v1/(\S+) HTTP', machines.log("superlink")))


def answer_all(nodes: list[WireNode], ended: Any) -> None:
    """Ask for orders as often as ``fedamp node`` does, and answer them, until the run has ended."""
    stacks._TRIES = 1  # how the nodes train is not measured
    since = dict.fromkeys((node.name for node in nodes), time.monotonic())
    due, looks = dict(since), {node.name: Looks(Waits.MESSAGE) for node in nodes}
    while not ended():
        for node in nodes:
            if time.monotonic() < due[node.name]:
                continue
            so_far = time.monotonic() - since[node.name]
            if (order := node.pull()) is None:
                due[node.name] = time.monotonic() + looks[node.name].wait(so_far)
                continue
            if due[node.name] > since[node.name]:
                looks[node.name].found(so_far)
            node.confirm(order)
            node.react(order)
            since[node.name] = due[node.name] = time.monotonic()
        time.sleep(0.01)


def measure(count: int) -> dict[str, Any]:
    """Play some rounds with so many nodes."""
    with tempfile.TemporaryDirectory() as folder:
        machines = Machines(Path(folder), [f"site{number}" for number in range(count)])
        try:
            return _measured(machines)
        finally:
            machines.stop()


def _measured(machines: Machines) -> dict[str, Any]:
    server = machines.folder / "server"
    machines.start("superlink", "server: start the SuperLink", server, FLWR_LOG_LEVEL="DEBUG")  # each request
    machines.start("proxy", "server: start the proxy", server)
    machines.wait_for_superlink()
    machines.admit_nodes()
    hosts = {
        name: f"{number * CLIENTS_EACH}-{(number + 1) * CLIENTS_EACH - 1}" for number, name in enumerate(machines.names)
    }
    federation = {"nodes": len(machines.names), "round_deadline": 900, "hosts": hosts}
    write_scenario(machines, clients=len(machines.names) * CLIENTS_EACH, rounds=ROUNDS, federation=federation)
    nodes, run = [WireNode(machines, name) for name in machines.names], machines.server / "run"
    machines.start_run(known_seed=True)
    marks: list[tuple[dict[str, float], Counter[str]]] = []

    def ended() -> bool:
        count = len(rounds_of(run)) if (run / "rounds.jsonl").exists() else 0
        if count and len(marks) < (1 if count < ROUNDS else 2):
            marks.append((used(machines), requests(machines)))
        return len(marks) == 2

    answer_all(nodes, ended)
    wait((run / "summary.json").exists, 600, "the end")
    (before, asked), (after, asked_later) = marks
    rounds = ROUNDS - 1
    return {
        "cpu_seconds_a_round": {part: round((after[part] - before[part]) / rounds, 2) for part in before},
        "requests_a_round": {
            name: round(number / rounds, 1)
            for name, number in sorted((asked_later - asked).items())
            if number / rounds >= 0.5
        },
    }


def import_seconds() -> float:
    """Processor seconds of ``import torch``, here and now."""
    program = "import torch, time; print(time.process_time())"
    return min(float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(3))


def rows(report: dict[str, Any]) -> list[Row]:
    """The lines of the page's table, one a number of nodes."""
    lines: list[Row] = []
    for count, found in report["sizes"].items():
        seconds, asked = found["cpu_seconds_a_round"], found["requests_a_round"]
        total, number = sum(seconds.values()), sum(asked.values())
        lines.append(
            {
                "nodes": int(count),
                "processor seconds of the server, a round": round(total, 2),
                "over `import torch`": round(total / report["import_torch_seconds"], 2),
                **{f"of the {part}": seconds[part] for part in ("superlink", "app", "proxy")},
                "requests": round(number),
                "of them by the clock": round(sum(asked.get(name, 0.0) for name in BY_TIME)),
                "milliseconds a request": round(1000 * seconds["superlink"] / number, 1),
            }
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, help="measure one number of nodes, and write nothing")
    parser.add_argument("--show", action="store_true", help="the table of what there is; measures nothing")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only), indent=1))
        return
    if not options.show:
        report: dict[str, Any] = made() | {"import_torch_seconds": round(import_seconds(), 2), "sizes": {}}
        for count in SIZES:
            report["sizes"][str(count)] = measure(count)
            print(count, json.dumps(report["sizes"][str(count)]), flush=True)
        store(RESULTS, report)
    put_in(PAGE, "server", table(rows(json.loads(RESULTS.read_text()))))


if __name__ == "__main__":
    main()
