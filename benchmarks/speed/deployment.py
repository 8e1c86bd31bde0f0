"""Seconds a round of a deployment beside training, processor seconds a message: stock SuperNodes and ``fedamp node``.

    python -m benchmarks.speed.deployment            under five minutes on two idle cores; writes deployment.json
    python -m benchmarks.speed.deployment --show     the table of docs/operations.md from it

A SuperLink, the proxy and the nodes, by the commands of docs/deployment.md, with the page's small model, one after the
other: three nodes with ``flower-supernode``, three with ``fedamp node``, twenty with ``fedamp node``. The processor
time is that of all processes of a node, or of the server, from the release of the first round to that of the last one.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.record import ROOT, Row, made, put_in, store, table
from tests.deployment.machines import Machines, wait
from tests.deployment.test_processes import wait_for_round, write_scenario
from tests.server.plays import rounds_of

RESULTS, PAGE = Path(__file__).with_suffix(".json"), ROOT / "docs" / "operations.md"
CLIENTS = 60
VARIANTS = {  # the command of a node, nodes, rounds
    "flower-supernode, 3 nodes": ("flower-supernode", 3, 3),
    "fedamp node, 3 nodes": ("fedamp node", 3, 10),
    "fedamp node, 20 nodes": ("fedamp node", 20, 3),
}


def used(machines: Machines, *names: str) -> float:
    """Processor seconds so far of processes with all that they started."""
    seconds = 0.0
    for name in names:
        process = psutil.Process(machines.processes[name].pid)
        for each in (process, *process.children(recursive=True)):
            try:
                seconds += sum(each.cpu_times()[:4])  # its own, and of children that have ended
            except psutil.NoSuchProcess:
                continue
    return seconds


def memory(machines: Machines, name: str) -> int:
    """Bytes of a node's processes that no other process shares."""
    process = psutil.Process(machines.processes[name].pid)
    family = (process, *process.children(recursive=True))
    return sum(each.memory_full_info().uss for each in family if each.status() != psutil.STATUS_ZOMBIE)


def measure(command: str, nodes: int, rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        names = [f"site{number}" for number in range(nodes)]
        machines = Machines(Path(folder), names)
        try:
            return _measured(machines, command, rounds)
        finally:
            machines.stop()


def _measured(machines: Machines, command: str, rounds: int) -> dict[str, object]:
    machines.start_server()
    machines.admit_nodes()
    each = CLIENTS // len(machines.names)
    hosts = {name: f"{number * each}-{(number + 1) * each - 1}" for number, name in enumerate(machines.names)}
    federation = {"nodes": len(machines.names), "round_deadline": 300, "hosts": hosts}
    write_scenario(machines, rounds=rounds, federation=federation)
    for name in machines.names:
        machines.start_node(name, command)
    wait(lambda: machines.connected() == len(machines.names), 300, "the nodes", every=1)
    began, run = time.monotonic(), machines.server / "run"
    machines.start_run(known_seed=True)
    wait(lambda: "Receiving:" in machines.log(machines.names[0]), 300, "the first order")
    ordered = time.monotonic() - began
    wait_for_round(machines, 1, 300)
    first, parts = time.monotonic() - began, (machines.names, ("superlink", "proxy"))
    before = [used(machines, *names) for names in parts]
    wait_for_round(machines, rounds, 600)
    of_nodes, of_server = (used(machines, *names) - so_far for names, so_far in zip(parts, before, strict=True))
    seconds, messages = [line["seconds"] for line in rounds_of(run)][1:], (rounds - 1) * len(machines.names)
    return {
        "seconds_a_round": {
            "median": round(statistics.median(seconds), 2),
            "least": round(min(seconds), 2),
            "most": round(max(seconds), 2),
        },
        "cpu_seconds_a_message": round(of_nodes / messages, 2),
        "server_cpu_seconds_a_round": round(of_server / (rounds - 1), 2),
        "server_share": round(of_server / (of_nodes + of_server), 2),
        "seconds_to_the_first_order": round(ordered, 1),
        "seconds_to_the_first_release": round(first, 1),
        "own_megabytes_of_a_node": round(memory(machines, machines.names[0]) / 2**20),
    }


def rows(report: dict[str, Any]) -> list[Row]:
    """The lines of the page's table, one a variant."""
    return [
        {
            f"on {report['machine']['cores']} cores": name,
            "seconds per round": "{median} ({least} to {most})".format(**found["seconds_a_round"]),
            "processor seconds per message": found["cpu_seconds_a_message"],
            "processor seconds of the server per round": found["server_cpu_seconds_a_round"],
            "memory of one node alone, MB": found["own_megabytes_of_a_node"],
        }
        for name, found in report["variants"].items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=VARIANTS, action="append", help="do not measure all of them")
    parser.add_argument("--show", action="store_true", help="the table of what there is; measures nothing")
    options = parser.parse_args()
    if not options.show:
        # On a shared machine only the processor times, and the ratio of both ways, tell anything.
        report: dict[str, Any] = made() | {"variants": {}}
        for name in options.only or VARIANTS:
            report["variants"][name] = measure(*VARIANTS[name])
            print(name, json.dumps(report["variants"][name]), flush=True)
        if options.only:
            return
        store(RESULTS, report)
    put_in(PAGE, "deployment", table(rows(json.loads(RESULTS.read_text()))))


if __name__ == "__main__":
    main()
