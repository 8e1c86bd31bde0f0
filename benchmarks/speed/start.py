"""Processor time of commands until they answer, over that of ``import torch``: `python -m benchmarks.speed.start`.

Times are of a process and its children, user and system. The least of a command is divided by the least of ``import
torch`` around it, because a busy machine only makes both longer. Bytecode is compiled before, as pip does it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.record import ROOT, made, store

TIMES = 2
# A command in this process, which ends before the first order to train, and tells its modules if it is asked to. As the
# whole run it keeps the curve over the rounds first, which a run computes while its clients train.
PROGRAM = """
import atexit, json, os, sys

def tell():
    if file := os.environ.get("MODULES"):
        with open(file, "w") as written:
            json.dump(sorted(sys.modules), written)

def end(strategy, *_):
    if os.environ.get("WHOLE"):
        strategy.plan.charge.epsilon_by_round
    tell()
    os._exit(0)

atexit.register(tell)
sys.argv = ["fedamp", *sys.argv[1:]]
from fedamp.__main__ import run_process
if sys.argv[1] == "run":
    from fedamp.strategies.private import PrivateStrategy
    PrivateStrategy.order_round = end
run_process()
"""
COMPLETION = {"_FEDAMP_COMPLETE": "complete_bash", "COMP_WORDS": "fedamp run digits --set privacy.", "COMP_CWORD": "4"}
COMMANDS: Mapping[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "--help": (["--help"], {}),
    "completion": (["--help"], COMPLETION),
    "explain privacy.clip": (["explain", "privacy.clip"], {}),
    "privacy digits": (["privacy", "digits"], {}),
    "check digits": (["check", "digits"], {}),
    "run digits": (["run", "digits", "--quiet"], {}),
}
"""By name: words, and variables of the environment. A run counts until the first order to train."""


def seconds(arguments: Sequence[str], folder: Path, **variables: str) -> float:
    """Processor seconds of a Python process and its children, with its files in a folder."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime + used.ru_stime


def call(name: str, folder: Path, **variables: str) -> float:
    """The same of a command, whose answers and compiled code are kept in the folder."""
    words, more = COMMANDS[name]
    kept = {"FEDAMP_CACHE": str(folder / "kept"), "NUMBA_CACHE_DIR": str(folder / "compiled")}
    return seconds(["-c", PROGRAM, *words], folder, **kept | more | variables)


def modules(name: str, folder: Path) -> set[str]:
    """What a command has imported when it has answered, or is about to train."""
    call(name, folder, MODULES=str(folder / "modules.json"))
    return set(json.loads((folder / "modules.json").read_text()))


def packages(found: set[str]) -> list[str]:
    """The packages of others among modules."""
    top = {each for each in found if "." not in each} - sys.stdlib_module_names - {"cython_runtime"}
    return sorted(each for each in top if each[0] != "_" and each not in ("fedamp", "sitecustomize"))


def measured(name: str) -> dict[str, Any]:
    """Of a command: the first time on a machine, the first time of its question, and again; and what it imports."""
    found: dict[str, list[float]] = {"torch": [], "first": [], "first question": [], "again": []}
    for _ in range(TIMES):
        with TemporaryDirectory() as place:
            folder = Path(place)
            found["first"].append(call(name, folder))
            found["torch"].append(seconds(["-c", "import torch"], folder))
            for file in (folder / "kept").glob("answers/*"):
                file.unlink()
            found["first question"].append(call(name, folder))
            found["torch"].append(seconds(["-c", "import torch"], folder))
            call(name, folder, WHOLE="1")
            found["again"].append(call(name, folder))
            imported = modules(name, folder)
    unit = min(found.pop("torch"))
    told = {when: {"ratio": min(each) / unit, "most": max(each) / unit} for when, each in found.items()}
    return told | {"imports": packages(imported), "fedamp": sum(each.startswith("fedamp") for each in imported)}


def main() -> None:
    """Measure all commands, and each package that they import alone."""
    figures = made() | {"commands": {}, "imports": {}}
    subprocess.run([sys.executable, "-m", "compileall", "-q", ROOT / "fedamp"], check=True)
    file = Path(__file__).with_suffix(".json")
    for name in COMMANDS:
        figures["commands"][name] = measured(name)
        print(name, json.dumps(figures["commands"][name]), flush=True)
        store(file, figures)
    for package in sorted({each for found in figures["commands"].values() for each in found["imports"]}):
        unit = seconds(["-c", "import torch"], ROOT)
        figures["imports"][package] = seconds(["-c", f"import {package}"], ROOT) / unit
        store(file, figures)


if __name__ == "__main__":
    main()
