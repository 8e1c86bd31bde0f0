"""A long run that is disturbed all the time, beside the same run left in peace.

    python -m benchmarks.speed.soak            2,000 rounds, 5 % failing and 1 % late clients, a worker killed every 200
                                         rounds on average, three kill -9 of the whole run, each resumed
    python -m benchmarks.speed.soak --quick    120 rounds

Says whether the final model and epsilon are equal to the bit, and how much memory each thousand rounds cost. Writes
``benchmarks/speed/soak.json``.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

RESULTS = Path(__file__).with_suffix(".json")
SCENARIO = {
    "name": "soak",
    "seed": 11,
    "known_seed": True,
    "data": {"name": "digits", "clients": 479},
    "model": {"name": "mlp", "hidden": [32]},
    "check_in": {"scheme": "poisson", "rate": 0.1},
    "client": {"steps": 2, "learning_rate": 0.5},
    "server": {"learning_rate": 0.5, "momentum": 0.8},
    "privacy": {"clip": 0.3, "noise_multiplier": 4.0},
    "engine": {"kind": "ray", "workers": 2},
    "federation": {"checkpoint_every": 25, "evaluate_every": 20},
}
FAULTS = {"seed": 5, "failing": 0.06}
KILLS = 3


def soak(rounds: int, folder: Path) -> dict:
    """Both runs; what ``soak.json`` holds."""
    peace, disturbed = folder / "peace", folder / "disturbed"
    samples: list[dict] = []
    begin = time.monotonic()
    process = start(write(folder / "peace.yaml", rounds, FAULTS), peace, resume=False)
    watch(process, peace, lambda released: samples.append(memory(process.pid) | {"round": released}))
    seconds = time.monotonic() - begin
    killed_after = disturb(folder, disturbed, rounds)
    return {
        "rounds": rounds,
        "seconds_in_peace": round(seconds, 1),
        "rounds_a_second": round(rounds / sum(line["seconds"] for line in lines(peace)), 1),
        "clients_missing": sum(line["scheduled"] - line["reported"] for line in lines(disturbed)),
        "clients_scheduled": sum(line["scheduled"] for line in lines(disturbed)),
        "workers_killed": (disturbed / "log.txt").read_text().count("its worker died"),
        "run_killed_after_rounds": killed_after,
        "model_equal": (peace / "model.safetensors").read_bytes() == (disturbed / "model.safetensors").read_bytes(),
        "every_release_equal": digests(peace) == digests(disturbed),
        "each_round_once": [entry["round"] for entry in releases(disturbed)] == list(range(1, rounds + 1)),
        "epsilon_upper": releases(disturbed)[-1]["epsilon_upper"],
        "epsilon_upper_in_peace": releases(peace)[-1]["epsilon_upper"],
        "memory": growth(samples, rounds),
    }


def disturb(folder: Path, run: Path, rounds: int) -> list[int]:
    """The run with workers dying, killed as a whole at random rounds and resumed; after which rounds it was killed."""
    chance = 1 / 200 if rounds > 500 else 1 / 30
    scenario = write(folder / "disturbed.yaml", rounds, FAULTS | {"killed_workers": chance})
    generator = random.Random(3)
    goals = [rounds * (number + 1) // (KILLS + 1) + generator.randrange(rounds // 10) for number in range(KILLS)]
    killed = []
    for goal in [*goals, rounds + 1]:
        process = start(scenario, run, resume=run.exists())

        def kill_after(released: int, process: subprocess.Popen = process, goal: int = goal) -> None:
            if released >= goal:
                process.send_signal(signal.SIGKILL)

        watch(process, run, kill_after, expected=0 if goal > rounds else -signal.SIGKILL)
        killed.append(len(releases(run)))
    return killed[:-1]


def write(file: Path, rounds: int, faults: dict) -> Path:
    """The scenario as a file."""
    file.write_text(yaml.safe_dump(SCENARIO | {"rounds": rounds, "faults": faults}))
    return file


def start(scenario: Path, run: Path, resume: bool) -> subprocess.Popen:
    """``fedamp run``, with its words in a file beside the run folder."""
    command = [sys.executable, "-m", "fedamp", "run", scenario, "--out", run, *(["--resume"] if resume else [])]
    with run.with_suffix(".out").open("a") as output:
        return subprocess.Popen(command, stdout=output, stderr=output)


def watch(process: subprocess.Popen, run: Path, look: Callable[[int], None], expected: int = 0) -> None:
    """Call ``look`` with the number of released rounds, some times a second, until the process ends."""
    while process.poll() is None:
        look((run / "rounds.jsonl").read_bytes().count(b"\n") if (run / "rounds.jsonl").exists() else 0)
        time.sleep(0.2)
    if process.returncode != expected:
        sys.exit(f"the run ended with {process.returncode}: {run.with_suffix('.out').read_text()[-2000:]}")


def memory(pid: int) -> dict[str, float]:
    """Resident megabytes of a process, and of the workers of its Ray session."""
    parents, sizes, names = {}, {}, {}
    for folder in Path("/proc").iterdir():
        try:
            number, text = int(folder.name), (folder / "status").read_text()
            status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
            parents[number] = int(status["PPid"])
            sizes[number] = int(status.get("VmRSS", "0 kB").split()[0]) / 1024
            names[number] = (folder / "cmdline").read_bytes().decode(errors="replace")
        except (ValueError, OSError, KeyError):  # no process, or none any more
            continue

    def below(number: int) -> bool:
        while number in parents and number != pid:
            number = parents[number]
        return number == pid

    workers = [number for number, name in names.items() if name.startswith("ray::RayWorker") and below(number)]
    return {"driver": sizes.get(pid, 0.0), "workers": sum(sizes[number] for number in workers)}


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


def lines(run: Path) -> list[dict]:
    """Of ``rounds.jsonl``."""
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def releases(run: Path) -> list[dict]:
    """Of the ledger."""
    content = json.loads((run / "ledger.json").read_text()) if (run / "ledger.json").exists() else {"releases": []}
    return list(content["releases"])


def digests(run: Path) -> list[str]:
    """Of the released models."""
    return [entry["digest"] for entry in releases(run)]


def main() -> None:
    """Run it, print and write what came out; the exit status says whether everything is equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="120 rounds, nothing is written")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="fedamp-soak-") as folder:
        found = soak(120 if quick else 2000, Path(folder))
    text = json.dumps(found | {"cores": os.cpu_count()}, indent=1)
    print(text)
    if not quick:
        RESULTS.write_text(text + "\n")
    equal = found["model_equal"] and found["every_release_equal"] and found["each_round_once"]
    sys.exit(0 if equal else "the disturbed run differs from the one in peace")


if __name__ == "__main__":
    main()
