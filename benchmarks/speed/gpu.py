"""fedamp on a CUDA device: whole runs, whether units keep apart, speed beside peers, adapters on transformers.

python -m benchmarks.speed.gpu [--device cpu] [--small] [--peers FOLDER] [--out FILE] [PART ...]

It takes at most eight minutes on one GPU. JAX and pfl are in FOLDER, which ``pip install --no-deps --target FOLDER pfl
prv-accountant jax jaxlib jax-cuda12-plugin jax-cuda12-pjrt ml_dtypes opt_einsum`` fills. What is not installed is left
out, with a note.

Parts: run, apart, speed, transformers. Each runs in a process of its own, and what it has found so far is kept.
Figures go to ``benchmarks/speed/gpu.json``. Nobody rounds to tf32 but who says so.
"""

import argparse
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

import fedamp
from benchmarks.record import ROOT, made, store
from benchmarks.speed import simulation, simulators, zoo
from benchmarks.speed.limited import Contender, Stopwatch
from benchmarks.speed.workloads import RATE
from fedamp.base import devices
from fedamp.data import Dataset, PaddedRecords
from fedamp.errors import one_line

RESULTS = Path(__file__).with_suffix(".json")
SECONDS = {"speed": 220, "transformers": 100, "run": 60, "apart": 95}  # what is left unfinished is left out
PATIENT = 5  # times as long may small sizes take, which are tried on busy machines
Found = Iterator[tuple[str, dict[str, Any]]]


def run(device: str, small: bool) -> Found:
    """The default scenario on the CPU, and twice on the device; by Ray, too, where it is installed."""
    fewer = {"rounds": 10, "check_in": {"scheme": "balanced", "k": 1}} if small else {}
    asked = fedamp.load(ROOT / "scenarios" / "digits.yaml", known_seed=True, **fewer)
    reference: dict[str, Any] = {}
    ways = {"cpu": ("serial", "cpu"), "first": ("serial", device), "second": ("serial", device)}
    ways |= {"Ray": ("ray", device)} if find_spec("ray") else {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (kind, where) in ways.items():
            out = Path(folder) / name
            _forget_peak()
            engine = {"kind": kind, "device": where, "workers": 2 if kind == "ray" else 1}
            fedamp.run(asked, out, engine=engine)
            verified = subprocess.run([sys.executable, "-m", "fedamp", "verify", str(out)], capture_output=True)
            model = load_file(out / "model.safetensors")
            reference = reference or model
            summary = json.loads((out / "summary.json").read_text())
            yield (
                name,
                {
                    "verifies": verified.returncode == 0,
                    "accuracy": summary["final"]["accuracy"],
                    "rounds a second": summary["rounds_completed"] / summary["wall_seconds"],
                    "sha256": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
                    "largest difference to the CPU": max(
                        float(np.abs(value - reference[key]).max()) for key, value in model.items()
                    ),
                    "peak MB": _peak(),
                },
            )


class Hostile:
    """Records of which every other client's are replaced."""

    def __init__(self, dataset: Dataset, change: Callable[[Any], Any]) -> None:
        self._dataset, self._change = dataset, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def gather(self, clients: Any) -> PaddedRecords:
        records = self._dataset.gather(clients)
        inputs, odd = records.inputs.copy(), clients % 2 == 1
        with np.errstate(over="ignore", invalid="ignore"):
            inputs[odd] = self._change(inputs[odd])
        return replace(records, inputs=inputs)


MAGNITUDES = (1.0, 1e-40, 1e-20, 1e4, 1e12, 1e30, np.inf, np.nan)


def apart(device: str, small: bool) -> Found:
    """Of each model: the sum of a round is that of its even and of its odd clients, to the bit, whatever the odd have.

    Sums are exact, so that anything else is an update that depends on its mates, or on its slot.
    """
    said: list[str] = []
    logging.getLogger("fedamp").addHandler(handler := logging.Handler())
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    names = list(zoo.ZOO)[:3] if small else list(zoo.ZOO)
    for name in names:
        animal, began = zoo.ZOO[name], time.perf_counter()
        said.clear()
        try:
            found = _apart(animal, device)
        except Exception as error:  # a library raises anything
            found = {"refused": one_line(error)}
        yield name, found | {"said": sorted(set(said)), "seconds": round(time.perf_counter() - began, 1)}


def _apart(animal: zoo.Animal, device: str) -> dict[str, Any]:
    sizes = np.random.default_rng(1).integers(1, zoo.RECORDS + 1, zoo.CLIENTS)
    x, y = zoo.records_of(animal, int(sizes.sum()))
    prepared, node = zoo.prepared_of(animal, (x, y, np.repeat(np.arange(zoo.CLIENTS), sizes)), device=device)
    records, tokens, longest = node.dataset, animal.model.get("vocabulary"), 0.0
    found: dict[str, list[float]] = {"mixed at": [], "not repeated at": []}
    for factor in (0, 1, 7) if tokens else MAGNITUDES:
        by = int(factor) if tokens else np.float32(factor)
        node.dataset = Hostile(records, lambda inputs, by=by: (inputs * by + 1) % tokens if tokens else inputs * by)  # type: ignore
        everybody, again, even, odd, one = (
            node.train(zoo.order_of(prepared, who)).sums
            for who in (*2 * [range(zoo.CLIENTS)], *(range(first, zoo.CLIENTS, 2) for first in (0, 1)), [1])
        )
        for how, other in (("mixed at", _added(even, odd)), ("not repeated at", again)):
            found[how] += [float(factor)] * any((total != other[key]).any() for key, total in everybody.items())
        longest = max(
            longest, float(np.sqrt(sum(np.square(each.astype(np.longdouble)).sum() for each in one.values())))
        )
    slots = sorted(set(node._slots.values()))
    return {**found, "longest over clip": longest / zoo.CLIP, "slots": slots, "peak MB": _peak()}


def _added(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {key: value + second[key] for key, value in first.items()}


def workloads(small: bool) -> list[Any]:
    images = simulation.CNN, simulation.RESNET
    if small:
        return [replace(simulation.MLP, rounds=3), replace(simulation.CNN, clients=20, rounds=1)]
    return [
        simulation.MLP,
        replace(simulation.MLP, clients=1000),
        simulation.RECORDS,
        *(
            replace(each, clients=clients, rounds=5 if clients == 100 else 3)
            for each in images
            for clients in (100, 1000)
        ),
    ]


def speed(device: str, small: bool) -> Found:
    """Rounds beside loops in torch, a bare vmap, one that is captured by hand, JAX and pfl.

    Each simulator has one process for all its workloads.
    """
    ours = {"simulator": "fedamp", "kind": "serial", "workers": 1, "device": device}
    asked: dict[str, dict[str, Any]] = {
        "fedamp": ours,
        "bare vmap": {"simulator": "bare_vmap", "device": device},
        "captured vmap": {"simulator": "bare_vmap", "device": device, "captured": True},
        "JAX": {"simulator": "jax", "folder": "", "threads": os.cpu_count()},
        "pfl": {"simulator": "pfl", "folder": ""},
        "plain torch loop": {"simulator": "plain_loop", "device": device},
        "fedamp, tf32": ours | {"precision": "tf32"},
        "fedamp, Ray": ours | {"kind": "ray", "workers": 2},
    }
    for name, question in asked.items():
        with Stopwatch(
            Contender(name, "torch", answer, {"simulator": "nothing"}), 40.0 * (PATIENT if small else 1)
        ) as watch:
            for work in workloads(small):
                image, many = work.model["name"] != "mlp", work.clients > 100
                if (name in ("plain torch loop", "pfl") and many) or (
                    name in ("fedamp, tf32", "fedamp, Ray") and not (image and many)
                ):
                    continue
                # As fast as they can be: measured, the stacks of a convolutional network are best at a hundred.
                together = {"together": 100 if image else 1000} if name in ("bare vmap", "captured vmap", "JAX") else {}
                timed = watch.ask(workload=asdict(work), **question, **together)
                figures = (
                    {"problem": timed.problem} if timed.problem else simulation.figures_of([timed.answer], work.clients)
                )
                yield (
                    f"{work.name}, {work.clients}: {name}",
                    figures | ({} if timed.problem else {"peak GPU MB": timed.answer["gpu"]} | _backend(timed.answer)),
                )


def ratios(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """How many times as fast as the others fedamp is, by workload; of those that were measured.

    >>> ratios({"MLP, 9: fedamp": {"clients_per_second": 6.0}, "MLP, 9: JAX": {"clients_per_second": 8.0}})
    {'MLP, 9': {'JAX': 0.75}}
    """
    speeds: dict[str, dict[str, float]] = {}
    for name, figures in found.items():
        work, _, simulator = name.partition(": ")
        if "clients_per_second" in figures:
            speeds.setdefault(work, {})[simulator] = figures["clients_per_second"]
    return {
        work: {name: round(each["fedamp"] / speed, 3) for name, speed in each.items() if name != "fedamp"}
        for work, each in speeds.items()
        if "fedamp" in each
    }


def answer(precision: str = "", **question: Any) -> dict[str, Any]:
    """As :func:`benchmarks.speed.simulators.answer`, in float32, and with the peak of the GPU's memory."""
    os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
    torch.backends.cudnn.allow_tf32 = False
    if precision:
        client = {"steps": question["workload"]["steps"], "learning_rate": RATE, "precision": precision}
        question["client"] = client
    _forget_peak()
    found = simulators.answer(**question) | {"gpu": _peak()}
    jax: Any = sys.modules.get("jax")
    return found | ({} if jax is None else {"backend": jax.default_backend()})


def _backend(answer: dict[str, Any]) -> dict[str, str]:
    """Where JAX has computed: without its plugin it takes the CPU."""
    return {key: answer[key] for key in ("backend",) if key in answer}


LORA = {"r": 8, "lora_alpha": 16}
GPT2 = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 128}
MINILM = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12}
LARGE = {
    "MiniLM, 23 million, LoRA": zoo.Animal(
        {"name": "transformers:BertForSequenceClassification", "vocabulary": 30522},
        (128,),
        own=MINILM | {"lora": LORA | {"target_modules": ["query", "value"]}},
    ),
    "GPT-2, 124 million, LoRA": zoo.Animal(
        {"name": "transformers:GPT2LMHeadModel", "vocabulary": 50257},
        (128,),
        "token-cross-entropy",
        GPT2 | {"lora": LORA | {"target_modules": ["c_attn"], "fan_in_fan_out": True}},
    ),
}


def transformers(device: str, small: bool) -> Found:
    """Models of common shapes with random weights, two steps on four records of 128 tokens; beside loops by hand."""
    for name, animal in LARGE.items():
        for precision in ("float32", "bfloat16"):
            if small:
                smaller = {
                    "n_embd": 48,
                    "n_layer": 2,
                    "hidden_size": 48,
                    "num_hidden_layers": 2,
                    "intermediate_size": 64,
                }
                own = {key: smaller.get(key, value) for key, value in animal.own.items()}
                animal = replace(animal, own=own, model=animal.model | {"vocabulary": 500}, shape=(16,))
            clients = 4 if small else 32
            _forget_peak()
            ours, stacked, alone, prepared = zoo.play(animal, clients, 4, device, precision)
            facts: dict[str, Any] = {
                "estimated MB": prepared.worker_bytes / 1e6,
                "clients together": prepared.task.stack.units,
            }
            facts |= {"clients a second": clients / _seconds(ours, device), "peak MB": _peak()}
            for way, theirs in {"stacked": stacked, "one by one": alone}.items() if precision == "float32" else ():
                _forget_peak()
                try:
                    facts[f"by hand, {way}, clients a second"] = clients / _seconds(theirs, device)
                    facts[f"by hand, {way}, peak MB"] = _peak()
                except Exception as error:  # torch raises anything
                    facts[f"by hand, {way}"] = one_line(error)[:100]
            yield f"{name}, {precision}", facts


def _seconds(action: Callable[[], Any], device: str) -> float:
    """The median of three calls, after one that warms up."""
    times = []
    for _ in range(4):
        began = time.perf_counter()
        action()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return float(np.median(times[1:]))


def _forget_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak() -> float:
    """MB of the GPU that this process has had at most."""
    return round(torch.cuda.max_memory_reserved() / 1e6, 1) if torch.cuda.is_available() else 0.0


PARTS: dict[str, Callable[[str, bool], Found]] = {
    "speed": speed,
    "transformers": transformers,
    "run": run,
    "apart": apart,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all", choices=[*PARTS, []])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="small sizes, to try it")
    parser.add_argument("--peers", type=Path, default=Path(), metavar="FOLDER", help="has JAX and pfl, if this has not")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device != "cpu" and not torch.cuda.is_available():
        print("no CUDA device here: the benchmark on a GPU is left out")
        return
    sys.path.append(str(options.peers.absolute()))  # of the children's children, too
    if options.child:
        torch.set_num_threads(1 if options.parts[0] != "transformers" else max(1, (os.cpu_count() or 1) // 2))
        for name, facts in PARTS[options.parts[0]](options.device, options.small):
            print(json.dumps([name, facts]), flush=True)
        return
    figures: dict[str, Any] = json.loads(options.out.read_text()) if options.parts and options.out.exists() else {}
    figures |= made() | {"cuda": torch.version.cuda, "GPUs": devices.names()}
    for part in options.parts or PARTS:
        figures[part] = {}
        command = [sys.executable, "-m", "benchmarks.speed.gpu", "--child", "--device", options.device, part]
        command += ["--peers", str(options.peers)]
        with subprocess.Popen(
            ["timeout", str(SECONDS[part] * (PATIENT if options.small else 1)), *command, *["--small"] * options.small],
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            for line in child.stdout or ():
                if line.startswith('["'):
                    name, facts = json.loads(line)
                    figures[part][name] = facts
                    figures["times as fast as"] = ratios(figures.get("speed", {}))
                    store(options.out, figures)
                print(line.rstrip()[:400], flush=True)
        if child.returncode:
            print(f"{part}: ended with {child.returncode}", flush=True)
    print(json.dumps(figures.get("times as fast as", {}), indent=1), flush=True)


if __name__ == "__main__":
    main()
