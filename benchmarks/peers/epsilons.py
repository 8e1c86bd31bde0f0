"""Epsilon of other accountants, and of fedamp, to the same questions in one run.

    python -m benchmarks.peers.epsilons              some ten minutes on one core
    python -m benchmarks.peers.epsilons --show       the tables of docs/research/accountants.md; asks nobody

Each question is asked of everybody before the next one, so that all see the same load. Every accountant has a process
of its own, which answers small questions of each kind first: nobody's imports and compilation count. (opake's is
compiled, and would take minutes for them.) Seconds are processor seconds of all threads.

All are in fedamp's environment (``make install``) but opake, whose release needs Python 3.13. ``--environments`` names
the folder of its own. The package of its accountant needs none of the others' dependencies:

    python3.13 -m venv ENVIRONMENTS/opake
    ENVIRONMENTS/opake/bin/pip install --no-deps opake-accounting==0.16.1 opake-base==0.16.1 opake-dpsgd==0.16.1 \\
        opake-engine==0.16.1
"""

import argparse
import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.peers.in_accountants import ANSWERS
from benchmarks.record import ROOT, made, put_in, store, table
from fedamp.base.files import cache_folder

RESULTS, PAGE = Path(__file__).with_suffix(".json"), ROOT / "docs" / "research" / "accountants.md"
LIMIT = 240.0  # seconds of the clock that a question may take

Question = dict[str, Any]


def hidden(chosen: int, rounds: int, noise: float, delta: float = 1e-5) -> Question:
    """Some hidden rounds of all."""
    return {"kind": "hidden", "chosen": chosen, "rounds": rounds, "noise": noise, "delta": delta}


def poisson(rate: float, noise: float, rounds: int, delta: float = 1e-5, kind: str = "poisson") -> Question:
    """Rounds with sampling by coins; ``kind="attack"`` asks for true positives in place of epsilon."""
    return {"kind": kind, "rate": rate, "noise": noise, "rounds": rounds, "delta": delta}


QUESTIONS = {
    "Poisson 0.01, noise 1, 1,000 rounds": poisson(0.01, 1.0, 1000),
    "Poisson 0.1, noise 3, 1,000 rounds": poisson(0.1, 3.0, 1000),
    "Poisson 0.001, noise 0.6, 10,000 rounds, delta 1e-6": poisson(0.001, 0.6, 10_000, 1e-6),
    "Poisson 0.02, noise 1.2, 5,000 rounds, delta 1e-10": poisson(0.02, 1.2, 5000, 1e-10),
    "Gaussian 20, 100 rounds, delta 1e-8": {"kind": "gaussian", "noise": 20.0, "rounds": 100, "delta": 1e-8},
    "Laplace 10, 100 rounds": {"kind": "laplace", "scale": 10.0, "rounds": 100, "delta": 1e-5},
    "three people, Poisson 0.01, noise 1, 1,000 rounds": poisson(0.01, 1.0, 1000, kind="group") | {"people": 3},
    "batches of 10 of 1,000, noise 1, 100 rounds": {
        "kind": "batches",
        "noise": 1.0,
        "batch": 10,
        "population": 1000,
        "rounds": 100,
        "delta": 1e-5,
    },
    "true positives at 0.1 % false ones, Poisson 0.01, noise 1, 1,000 rounds": poisson(0.01, 1.0, 1000, kind="attack"),
    "10 of 100 hidden rounds, noise 1": hidden(10, 100, 1.0),
    "2 of 10, noise 1": hidden(2, 10, 1.0),
    "50 of 100, noise 4": hidden(50, 100, 4.0),
    "1 of 1,000, noise 1": hidden(1, 1000, 1.0),
    "10 of 10,000, noise 1": hidden(10, 10_000, 1.0),
}
WARM_UP = [
    hidden(2, 12, 1.5, 1e-3),
    hidden(1, 12, 1.5, 1e-3),
    *(
        {"kind": kind, "rate": 0.1, "noise": 2.0, "rounds": 3, "delta": 1e-3} | more
        for kind, more in {
            "poisson": {},
            "gaussian": {},
            "attack": {},
            "group": {"people": 2},
            "laplace": {"scale": 2.0},
            "batches": {"batch": 2, "population": 10},
        }.items()
    ),
]


class Accountant:
    """A process that answers questions, started again after one that ran into the limit. Use it as a context manager.

    Attributes:
        version: of its package; None: it is not installed.
    """

    def __init__(self, name: str, environments: Path) -> None:
        own = environments / name / "bin" / "python"
        self._name, self._python = name, str(own) if own.exists() else sys.executable
        self._process: subprocess.Popen[str] | None = None
        self.version: str | None = None

    def __enter__(self) -> "Accountant":
        command = [self._python, "-m", "benchmarks.peers.in_accountants", self._name]
        settings = os.environ | {"FEDAMP_CACHE": "off", "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=settings,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.version = json.loads(line) if line else None
        for question in WARM_UP if self.version and self._name != "opake" else []:
            self.ask(question)
        if self._name == "fedamp":
            self.ask(hidden(10, 10_000, 1.0, 1e-6))  # compiles what few of many rounds need
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def ask(self, question: Question) -> dict[str, Any]:
        """Its answer, or why there is none."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        if select.select([self._process.stdout], [], [], LIMIT)[0]:
            return dict(json.loads(self._process.stdout.readline()))
        self.__exit__(None, None, None)
        self.__enter__()
        return {"problem": f"more than {LIMIT:g} s", "seconds": LIMIT}


def measure(environments: Path) -> None:
    """Ask everybody every question, and store the answers so far after each."""
    accountants = {name: Accountant(name, environments) for name in ANSWERS}
    figures, answers = made(), {}
    try:
        for accountant in accountants.values():
            accountant.__enter__()
        versions = {name: each.version for name, each in accountants.items()}
        for text, question in QUESTIONS.items():
            answers[text] = {name: each.ask(question) for name, each in accountants.items() if versions[name]}
            print(text, *(f"\n    {name}: {found}" for name, found in answers[text].items()), flush=True)
            store(RESULTS, figures | {"versions": versions, "answers": answers})
    finally:
        for accountant in accountants.values():
            accountant.__exit__(None, None, None)


def rows(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for each question that another accountant answers: fedamp's bracket, and the best of the others."""
    found = []
    for text, answers in figures["answers"].items():
        ours = answers["fedamp"]
        others = [(name, each) for name, each in answers.items() if name != "fedamp" and "upper" in each]
        for name, each in sorted(others, key=lambda other: other[1]["upper"]):
            found.append(
                {
                    "question": text,
                    "lower": ours["lower"],
                    "upper": ours["upper"],
                    "seconds": ours["seconds"],
                    "other": name,
                    "its upper": each["upper"],
                    "more, %": 100 * (each["upper"] / ours["upper"] - 1),
                    "its seconds over ours": each["seconds"] / ours["seconds"],
                }
            )
    return found


def show(figures: dict[str, Any]) -> None:
    """Put the table into the page, and say where fedamp's end is above another, or slower."""
    found = rows(figures)
    put_in(PAGE, "numbers: beside_others", table(found))
    print(f"{sum(each['more, %'] < 0 for each in found)} of {len(found)} are below fedamp's upper end")
    print(f"{sum(each['its seconds over ours'] < 1 for each in found)} of {len(found)} are faster")


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask everybody, or show what is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    home = cache_folder() / "peers"
    parser.add_argument("--environments", type=Path, default=home, help=f"folder of environments of their own ({home})")
    parser.add_argument("--show", action="store_true", help="the table of what there is")
    asked = parser.parse_args(arguments)
    if not asked.show:
        measure(asked.environments)
    show(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
