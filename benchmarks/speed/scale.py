"""What must not grow with size: seconds and memory with clients and rounds, and bytes with a large model's submodels.

``python -m benchmarks.speed.scale [SECTION ...]``; figures are kept in ``benchmarks/speed/scale.json``, by section.
"""

import json
import os
import secrets
import shlex
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from benchmarks.record import made, store
from benchmarks.speed import simulators
from benchmarks.speed.workloads import Workload
from fedamp.engines import flower
from fedamp.federation.scenario import Scenario
from fedamp.server.setup import prepare
from tests.deployment.machines import running, wait
from tests.server.plays import rounds_of


class Network:
    """Linux network namespaces, one a machine, on a bridge that leads nowhere else. As a context manager.

    Args:
        machines: their names.
        tag: tells its namespaces from those of others; at most four letters.
    """

    def __init__(self, machines: Sequence[str], tag: str) -> None:
        self.machines, self.tag = list(machines), tag

    def __enter__(self) -> "Network":
        hub = f"{self.tag}hub"
        self._ip("netns", "add", hub)
        self._ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        self._ip("-n", hub, "link", "set", "bridge", "up")
        for number, machine in enumerate(self.machines):
            name = self.tag + machine
            self._ip("netns", "add", name)
            peer = ("peer", "name", f"port{number}", "netns", hub)
            self._ip("-n", name, "link", "add", "eth0", "type", "veth", *peer)
            self._ip("-n", hub, "link", "set", f"port{number}", "master", "bridge", "up")
            self._ip("-n", name, "address", "add", f"{self.address(machine)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self._ip("-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("hub", *self.machines):
            self._ip("netns", "delete", self.tag + name)

    def pull_the_cable(self, machine: str) -> None:
        """From now on a machine and the others do not hear of each other."""
        self._ip("-n", self.tag + machine, "link", "set", "eth0", "down")

    def address(self, machine: str) -> str:
        return f"10.77.0.{self.machines.index(machine) + 1}"

    def inside(self, machine: str) -> list[str]:
        """What goes before a command to run it on a machine."""
        return ["ip", "netns", "exec", self.tag + machine]

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)


SMALL = Workload(
    "MLP 64-128-10",
    {"name": "mlp", "hidden": [128]},
    {"name": "synthetic", "features": 64, "records_per_client": 10},
    5,
    100,
    10,
)
LARGE = Workload(
    "MLP 784-3000-2500-10",
    {"name": "mlp", "hidden": [3000, 2500]},
    {"name": "synthetic", "features": 784, "records_per_client": 10},
    1,
    100,
    1,
)
FOUR = {"scheme": "disjoint", "count": 4}
NETWORK, PORT = Network(["head", "other"], tag="fdr"), 6379
ADDRESS = f"{NETWORK.address('head')}:{PORT}"
RESULTS = Path(__file__).with_suffix(".json")


def large_model() -> dict[str, Any]:
    """10 million parameters, 100 clients a round, one worker: the whole model against four disjoint submodels.

    Bytes on the wire are those of the arrays that a node of one client receives and sends.
    """
    work = replace(LARGE, rounds=1)
    found: dict[str, Any] = {}
    for name, sections in (("four", {"submodels": FOUR}), ("whole", {})):
        measured = _apart("fedamp", work, kind="serial", workers=1, **sections)
        found[name] = {
            **_on_the_wire(work.scenario("serial", 1, 1, **sections)),
            "seconds_a_round": statistics.median(measured["seconds"]),
            "processor_seconds_a_round": measured["processor_seconds"],
            "peak_megabytes": measured["peak_bytes"] / 1e6,
        }
    return found


def _on_the_wire(scenario: Scenario) -> dict[str, Any]:
    prepared = prepare(scenario)
    strategy = prepared.strategy(prepared.state)
    choices = [submodel for _, submodel in prepared.plan.submodels.possible_draws(masks=1)]
    received = [prepared.pieces(each, 1).extract(strategy.state.parameters) for each in choices]
    parameters = statistics.mean(sum(array.size for array in arrays.values()) for arrays in received)
    down = statistics.mean(flower.size(flower.to_record(arrays)) for arrays in received)
    return {"parameters_of_a_client": parameters, "megabytes_down": down / 1e6, "megabytes_up": 8 * parameters / 1e6}


def a_million_clients() -> dict[str, Any]:
    """10,000 clients a round of 20,000 and of a million: processor seconds from Python's start until clients are asked,
    and a round; and megabytes at the peak.
    """
    found = {}
    for clients in (20_000, 1_000_000):
        work = replace(SMALL, clients=clients, rounds=3)
        sections = {"check_in": {"scheme": "poisson", "rate": 10_000 / clients}}
        measured = _apart("fedamp", work, kind="serial", workers=1, **sections)
        found[str(clients)] = {
            "processor_seconds_to_start": statistics.median(_start(work, sections) for _ in range(3)),
            "processor_seconds_a_round": measured["processor_seconds"] / work.rounds,
            "peak_megabytes": measured["peak_bytes"] / 1e6,
        }
    return found


def _start(work: Workload, sections: dict[str, Any]) -> float:
    program = (
        "import os, sys; from pathlib import Path; from fedamp.server.launch import launch_by_round; "
        "from fedamp.server.observers import Observer; from fedamp.federation import reader\n"
        "class Watch(Observer):\n"
        "    def started(self, *_): print(sum(os.times()[:4]))\n"
        "    def round_done(self, *_): ...\n"
        "    def stopping(self): ...\n"
        "next(launch_by_round(reader.load(sys.argv[1]), Watch(), Path(sys.argv[2])))"
    )
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "scenario.yaml", Path(folder) / "run"
        file.write_text(work.scenario("serial", 1, work.rounds, **sections).to_yaml())
        command = [sys.executable, "-c", program, str(file), str(out)]
        return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def a_thousand_rounds() -> dict[str, Any]:
    """A million clients, each in 10 of 1,000 rounds, two Ray workers: seconds of all rounds, and memory over them."""
    rounds = 1000
    work = replace(SMALL, clients=1_000_000, rounds=rounds)
    federation = {"evaluate_every": 100}
    scenario = work.scenario("ray", 2, rounds=rounds, check_in={"scheme": "balanced", "k": 10}, federation=federation)
    samples: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        file, run = Path(folder) / "scenario.yaml", Path(folder) / "run"
        file.write_text(scenario.to_yaml())
        process = start(file, run)
        watch(process, run, lambda released: samples.append(memory(process.pid) | {"round": released}))
        seconds = sum(line["seconds"] for line in rounds_of(run))
    return {"milliseconds_a_client": seconds / 1e4, "megabytes": growth(samples, rounds)}


def a_lost_machine() -> dict[str, Any]:
    """A million clients, each in one of 100 rounds, on two machines of a Ray cluster, one of which is lost in round 40.

    Seconds of a round, and whether all came out as without Ray.
    """
    rounds, lost_after, found = 100, 40, dict[str, Any]()
    work = replace(SMALL, clients=1_000_000, rounds=rounds)
    asked = {"check_in": {"scheme": "balanced", "k": 1}, "federation": {"evaluate_every": rounds}, "known_seed": True}
    engine = {"kind": "ray", "address": ADDRESS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, sections in (("cluster", {"engine": engine}), ("alone", {})):
            scenario = work.scenario("serial", 1, rounds=rounds, **(asked | sections))
            (folder / f"{kind}.yaml").write_text(scenario.to_yaml())
        run, out = folder / "cluster", folder / "out.txt"
        with cluster() as begin:
            command = [sys.executable, "-m", "fedamp", "run", str(folder / "cluster.yaml"), "--out", str(run)]
            process = begin("head", command, out)

            def pull(released: int) -> None:
                if released >= lost_after and "round" not in found:
                    NETWORK.pull_the_cable("other")
                    found["round"] = released

            watch(process, run, pull)
        alone = start(folder / "alone.yaml", folder / "alone")
        watch(alone, folder / "alone", lambda released: None)
        lines = rounds_of(run)
        seconds = [line["seconds"] for line in lines]
        lost = found["round"]
        return {
            "lost_after_round": lost,
            "seconds_a_round_before": statistics.median(seconds[:lost]),
            "seconds_of_the_longest_round": max(seconds),
            "rounds_longer_than_twice_the_median": sum(each > 2 * statistics.median(seconds) for each in seconds),
            "seconds_a_round_after": statistics.median(seconds[lost + 1 :]),
            "clients": sum(line["scheduled"] for line in lines),
            "clients_missing": sum(line["scheduled"] - line["reported"] for line in lines),
            "each_round_once": [line["round"] for line in lines] == list(range(1, rounds + 1)),
            "every_release_equal": digests(run) == digests(folder / "alone"),
        }


def start(scenario: Path, run: Path) -> subprocess.Popen:
    """``fedamp run``, with its words in a file beside the run folder."""
    command = [sys.executable, "-m", "fedamp", "run", scenario, "--out", run]
    with run.with_suffix(".out").open("a") as output:
        return subprocess.Popen(command, stdout=output, stderr=output)


def watch(process: subprocess.Popen, run: Path, look: Callable[[int], None]) -> None:
    """Call ``look`` with the number of released rounds, some times a second, until the process ends."""
    while process.poll() is None:
        look((run / "rounds.jsonl").read_bytes().count(b"\n") if (run / "rounds.jsonl").exists() else 0)
        time.sleep(0.2)
    if process.returncode:
        sys.exit(f"the run ended with {process.returncode}: {run.with_suffix('.out').read_text()[-2000:]}")


def memory(pid: int) -> dict[str, float]:
    """Resident megabytes of a process, and of the workers of its Ray session."""
    sizes = {"driver": 0.0, "workers": 0.0}
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        sizes["driver"] = process.memory_info().rss / 2**20
        for each in process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "ray::RayWorker" in " ".join(each.cmdline()):
                    sizes["workers"] += each.memory_info().rss / 2**20
    return sizes


def growth(samples: list[dict], rounds: int) -> dict:
    """Memory after a tenth of the rounds (caches are warm by then) and at the end, in megabytes."""
    warm = [sample for sample in samples if sample["round"] >= rounds // 10 and sample["workers"]]
    first, last = warm[0], next(sample for sample in reversed(warm) if sample["round"] < rounds)
    thousands = max(last["round"] - first["round"], 1) / 1000
    return {
        part: {
            "after_a_tenth": round(first[part], 1),
            "at_the_end": round(last[part], 1),
            "growth_per_1000_rounds": round((last[part] - first[part]) / thousands, 1),
        }
        for part in ("driver", "workers")
    }


def digests(run: Path) -> list[str]:
    """The digests of the released models."""
    return [entry["digest"] for entry in json.loads((run / "ledger.json").read_text())["releases"]]


@contextmanager
def cluster() -> Iterator[Callable[[str, list[str], Path], "subprocess.Popen[bytes]"]]:
    """Two machines of one Ray cluster, of a core each, on this one: in a network whose cables can be pulled.

    It takes root, and the command ``ip``. Gives what starts a command on one of them, with its words in a file.
    """
    with ExitStack() as stack:
        # Ray's sockets stand in it, and their paths must be short.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedamp-", dir="/tmp")))
        stack.enter_context(NETWORK)
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}

        def begin(machine: str, command: list[str], log: Path) -> "subprocess.Popen[bytes]":
            words = shlex.join([*NETWORK.inside(machine), *command])
            return stack.enter_context(running(f"exec {words}", log, os.environ | token))

        options = ("--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder / 'ray'}")
        for machine, own in {"head": options, "other": (f"--address={ADDRESS}",)}.items():
            ray, log = Path(sysconfig.get_path("scripts")) / "ray", folder / f"{machine}.log"
            here = ("--node-ip-address", NETWORK.address(machine), "--num-cpus=1", "--block")
            node = begin(machine, [sys.executable, str(ray), "start", *here, *own], log)
            wait(lambda node=node, log=log: node.poll() is not None or "Ray runtime started" in log.read_text())
            if node.poll() is not None:
                raise RuntimeError(f"{machine}: no Ray node: {log.read_text()[-2000:]}")
        yield begin


SECTIONS = (large_model, a_million_clients, a_thousand_rounds, a_lost_machine)


def _apart(simulator: str, work: Workload, **question: Any) -> dict[str, Any]:
    """In a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(simulators.answer, simulator, workload=asdict(work), **question).result()


if __name__ == "__main__":
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for section in SECTIONS:
        if section.__name__ in sys.argv[1:] or len(sys.argv) == 1:
            kept[section.__name__] = made() | {"figures": section()}
            store(RESULTS, kept)
            print(f"{section.__doc__}\n{json.dumps(kept[section.__name__]['figures'], indent=1)}", flush=True)
