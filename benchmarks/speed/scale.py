"""What grows with size, and what must not: start, clients a round, clients in all, parameters.

``python -m benchmarks.speed.scale [SECTION ...]``; figures are kept in ``benchmarks/speed/scale.json``, by section.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import monotonic, perf_counter, process_time, sleep
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict

from benchmarks.speed import simulators, soak
from benchmarks.speed.lost_machine import Cluster
from benchmarks.speed.simulation import machine
from benchmarks.speed.workloads import Workload
from fedamp.engines import flower
from fedamp.engines.wire import RoundAnswer, RoundOrder, rows
from fedamp.federation import reader
from fedamp.federation.check_in import BalancedCheckIn
from fedamp.federation.optimizers import ServerUpdate
from fedamp.federation.plan import make_plan
from fedamp.federation.scenario import Scenario
from fedamp.noise import add_noise
from fedamp.server.setup import prepare
from fedamp.strategies.aggregation import Asked, ClippedSums, ModelParts

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
RESULTS = Path(__file__).with_suffix(".json")


def first_round() -> dict[str, Any]:
    """Seconds from the command to the end of the first round: the demo, and a small run on either engine."""
    work = replace(SMALL, data={"name": "digits"})
    runs = {kind: work.scenario(kind, 2, rounds=3) for kind in ("serial", "ray")} | {"demo": reader.load("digits")}
    return {name: statistics.median(_first_round(made) for _ in range(5)) for name, made in runs.items()}


def _first_round(made: Scenario) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "scenario.yaml", Path(folder) / "run"
        file.write_text(made.to_yaml())
        command = ["-m", "fedamp", "run", str(file), "--out", str(out)]
        start = monotonic()
        run = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rounds, seconds = out / "rounds.jsonl", None
        while run.poll() is None and seconds is None:
            seconds = monotonic() - start if rounds.exists() and rounds.stat().st_size else None
            sleep(0.005)
        run.wait()
        if seconds is None:
            raise RuntimeError(f"fedamp run ended with {run.returncode} before its first round")
        return seconds


def accounting() -> dict[str, Any]:
    """Accounting in the loop: the curve over all rounds once, then a look at it a round."""
    made = Workload.scenario(SMALL, "serial", 1, 1000, check_in={"scheme": "balanced", "k": 100})
    plan = make_plan(made, made.data.clients or 0)
    start = perf_counter()
    curve = plan.charge.epsilon_by_round
    once = perf_counter() - start
    start = perf_counter()
    for round_ in range(len(curve)):
        float(plan.charge.epsilon_by_round[round_])
    return {"rounds": len(curve), "curve_seconds": once, "seconds_a_round": (perf_counter() - start) / len(curve)}


def clients_a_round() -> dict[str, Any]:
    """Milliseconds of processor time a client, with more and more clients a round (one worker)."""
    works = [replace(SMALL, clients=clients, rounds=rounds) for clients, rounds in ((100, 20), (1000, 5), (10_000, 2))]
    return {str(work.clients): _milliseconds_a_client(work) for work in works}


def submodels() -> dict[str, Any]:
    """The same with the full model, and with four disjoint submodels (MLP 64-1024-10, one worker)."""
    work = replace(SMALL, model={"name": "mlp", "hidden": [1024]})
    found = {"full": _milliseconds_a_client(work), "four": _milliseconds_a_client(work, submodels=FOUR)}
    return {**found, "times_faster": found["full"] / found["four"]}


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


def _on_the_wire(made: Scenario) -> dict[str, Any]:
    prepared = prepare(made)
    strategy = prepared.strategy(prepared.state)
    choices = [submodel for _, submodel in prepared.plan.submodels.choices(masks=1)]
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
        "import os, sys; from pathlib import Path; from fedamp.server.launch import rounds; "
        "from fedamp.server.observers import Observer; from fedamp.federation import reader\n"
        "class Watch(Observer):\n"
        "    def started(self, *_): print(sum(os.times()[:4]))\n"
        "    def round_done(self, *_): ...\n"
        "    def stopping(self): ...\n"
        "next(rounds(reader.load(sys.argv[1]), Watch(), Path(sys.argv[2])))"
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
    made = work.scenario("ray", 2, rounds=rounds, check_in={"scheme": "balanced", "k": 10}, federation=federation)
    samples: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        file, run = Path(folder) / "scenario.yaml", Path(folder) / "run"
        file.write_text(made.to_yaml())
        process = soak.start(file, run, resume=False)
        soak.watch(process, run, lambda released: samples.append(soak.memory(process.pid) | {"round": released}))
        seconds = sum(line["seconds"] for line in soak.lines(run))
    return {"milliseconds_a_client": seconds / 1e4, "megabytes": soak.growth(samples, rounds)}


def a_lost_machine() -> dict[str, Any]:
    """A million clients, each in one of 100 rounds, on two machines of a Ray cluster, one of which is lost in round 40.

    Seconds of a round, and whether all came out as without Ray.
    """
    rounds, lost_after, found = 100, 40, dict[str, Any]()
    work = replace(SMALL, clients=1_000_000, rounds=rounds)
    asked = {"check_in": {"scheme": "balanced", "k": 1}, "federation": {"evaluate_every": rounds}, "known_seed": True}
    engine = {"kind": "ray", "address": Cluster.address}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, sections in (("cluster", {"engine": engine}), ("alone", {})):
            made = work.scenario("serial", 1, rounds=rounds, **(asked | sections))
            (folder / f"{kind}.yaml").write_text(made.to_yaml())
        run, out = folder / "cluster", folder / "out.txt"
        with Cluster() as cluster:
            command = [sys.executable, "-m", "fedamp", "run", str(folder / "cluster.yaml"), "--out", str(run)]
            process = cluster.start("head", command, out)

            def pull(released: int) -> None:
                if released >= lost_after and "round" not in found:
                    cluster.pull_the_cable()
                    found["round"] = released

            soak.watch(process, run, pull)
        alone = soak.start(folder / "alone.yaml", folder / "alone", resume=False)
        soak.watch(alone, folder / "alone", lambda released: None)
        lines = soak.lines(run)
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
            "every_release_equal": soak.digests(run) == soak.digests(folder / "alone"),
        }


def check_in_schedule() -> dict[str, Any]:
    """10 hidden rounds of a thousand, for a million clients: processor seconds, and megabytes on top."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = process_time()
    check_in = BalancedCheckIn(scheme="balanced", k=10)
    total = sum(len(cohort) for cohort in check_in.cohorts(1000, 1_000_000, seed=1))
    seconds = process_time() - start
    assert total == 10_000_000
    return {"seconds": seconds, "megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3}


def server() -> dict[str, Any]:
    """Processor seconds for what the server does in a round with 44 million parameters."""
    shapes = [(2048, 1024)] * 20 + [(1024, 1024)] * 2
    generator = np.random.default_rng(1)
    model = {f"layer{i}": generator.random(shape, dtype=np.float32) for i, shape in enumerate(shapes)}
    flower.identify()
    asked = Message(RecordDict(), 2, "train")
    flower.set_message_id(asked, "1")
    # On the grid of clipped sums, and within the clip.
    sums = {name: np.trunc(array * 2.0**10).astype(np.float64) * 2.0**-30 for name, array in model.items()}
    order = RoundOrder("", 1, (1.0,), rows([1], [bytes(32)]), model)
    reply = Message(RoundAnswer(sums, [1], below_clip=1, loss_sum=1.0, records=1).content(order), reply_to=asked)
    expected = Asked({reply.metadata.src_node_id: order}, ModelParts.of(model), [1.0])
    found = {"parameters": sum(array.size for array in model.values())}
    optimizer = ServerUpdate(momentum=0.9).rule()
    state = optimizer.init(model)
    deviations = dict.fromkeys(model, 1.0)

    def timed(name: str, action: Callable[[], Any]) -> Any:
        start = process_time()
        result = action()
        found[name] = min(found.get(name, np.inf), process_time() - start)
        return result

    for round_ in (1, 2, 3):
        collected = timed("collect_a_reply", lambda: ClippedSums().aggregate([reply], expected))
        assert collected.reported == 1
        update = collected.sums
        timed("noise", lambda update=update, round_=round_: add_noise(update, deviations, {}, 1, round_))
        step = partial(optimizer.apply, model, update, dict.fromkeys(model, 100.0), state, round_)
        model, state = timed("optimizer", step)
    return found


SECTIONS = (
    first_round,
    accounting,
    clients_a_round,
    submodels,
    large_model,
    a_million_clients,
    a_thousand_rounds,
    a_lost_machine,
    check_in_schedule,
    server,
)


def _milliseconds_a_client(work: Workload, **sections: Any) -> float:
    measured = _apart("fedamp", work, kind="serial", workers=1, **sections)
    return float(1e3 * measured["processor_seconds"] / work.clients / work.rounds)


def _apart(simulator: str, work: Workload, **question: Any) -> dict[str, Any]:
    """In a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(simulators.answer, simulator, workload=asdict(work), **question).result()


if __name__ == "__main__":
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for section in SECTIONS:
        if section.__name__ in sys.argv[1:] or len(sys.argv) == 1:
            kept[section.__name__] = {"machine": machine(), "figures": section()}
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
            print(f"{section.__doc__}\n{json.dumps(kept[section.__name__]['figures'], indent=1)}", flush=True)
