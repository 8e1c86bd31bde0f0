"""Seven visits of a new user: how many minutes each takes, from a fresh virtual environment to the answer.

    python -m benchmarks.speed.visits                       torch's CPU build, from its own index
    python -m benchmarks.speed.visits --torch REQUIREMENT   from the usual index: only right where it has a CPU build

Every command must do what the pages say, or the script ends with what it printed. The figures hold no time for thinking
or typing. They go to ``benchmarks/speed/visits.json``.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.speed.simulation import machine

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_suffix(".json")
CPU = ("torch", "--index-url", "https://download.pytorch.org/whl/cpu")
NOTEBOOK = """
import numpy as np, torch, fedamp

x = np.random.default_rng(0).normal(size=(1200, 20)).astype(np.float32)
y = x[:, :3].argmax(axis=1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.output = torch.nn.Linear(20, 16), torch.nn.Linear(16, 3)

    def forward(self, inputs):
        return self.output(torch.relu(self.hidden(inputs)))

def loss(outputs, labels):
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")

def accuracy(outputs, labels):
    return (outputs.argmax(1) == labels).double().mean()

print(fedamp.run(
    model=Net, data=(x[:1000], y[:1000], np.repeat(np.arange(100), 10)), test=(x[1000:], y[1000:]), loss=loss,
    metrics={"accuracy": accuracy}, rounds=30, check_in={"scheme": "balanced", "k": 6}, engine={"kind": "ray"},
    client={"steps": 4, "learning_rate": 0.5}, privacy={"clip": 0.5, "noise_multiplier": "auto", "epsilon": 8},
    out="notebook", callbacks=[lambda record: print(record.round, record.accuracy)],
))
"""


class Visitor:
    """Runs commands in an empty folder, with a home and a virtual environment of its own."""

    def __init__(self, folder: Path, torch: tuple[str, ...]) -> None:
        self.folder, self.torch = folder, torch
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        path = f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment = kept | {"HOME": str(folder), "PATH": path, "COLUMNS": "200"}

    def start(self, *command: str, printed: Path) -> "subprocess.Popen[bytes]":
        """Begin a command."""
        with printed.open("wb") as output:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def do(self, *command: str, status: int = 0) -> str:
        """What a command prints; ends the script if its exit status is another one."""
        printed = self.folder / "printed.txt"
        found = self.start(*command, printed=printed).wait()
        text = printed.read_text()
        if found != status:
            sys.exit(f"{' '.join(command)}\nended with {found}, expected {status}:\n{text[-3000:]}")
        return text

    def fedamp(self, line: str, status: int = 0) -> str:
        """What ``fedamp`` prints."""
        return self.do("fedamp", *line.split(), status=status)

    def install(self) -> str:
        """Install, without a GPU."""
        self.do(sys.executable, "-m", "venv", "venv")
        install = ("pip", "install", "--no-cache-dir", "--quiet")
        self.do(*install, *self.torch)
        self.do(*install, f"{ROOT}[all]")
        version = self.fedamp("--version").strip()
        self.do("python", "-c", "import torch; assert torch.version.cuda is None, 'not the CPU build'")
        return f"{version}, {gigabytes(self.folder / 'venv'):.1f} GB"

    def first_picture(self) -> str:
        """First federation, and its picture."""
        self.fedamp("run digits --out first")
        assert (self.folder / "first" / "plots" / "rounds.png").stat().st_size > 10_000
        return self.result("first")

    def own_scenario(self) -> str:
        """A scenario with a typo, its check, its run."""
        self.fedamp("new mine.yaml --epsilon 6")
        scenario = self.folder / "mine.yaml"
        right = scenario.read_text()
        scenario.write_text(right.replace("learning_rate: 0.5", "learning_rte: 0.5"))
        said = self.fedamp("check mine.yaml", status=2)
        assert said.startswith("error: mine.yaml, line "), said
        assert "did you mean learning_rate?" in said, said
        scenario.write_text(right)
        self.fedamp("check mine.yaml")
        self.fedamp("run mine.yaml --out mine")
        return self.result("mine")

    def kill_and_resume(self) -> str:
        """A run is killed (`kill -9`), and resumed."""
        run, rounds = "run mine.yaml --set rounds=600 --out long", self.folder / "long" / "rounds.jsonl"
        process = self.start("fedamp", *run.split(), printed=self.folder / "killed.txt")
        while process.poll() is None and not (rounds.exists() and rounds.read_bytes().count(b"\n") >= 50):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, (self.folder / "killed.txt").read_text()
        killed = rounds.read_bytes().count(b"\n")
        self.fedamp(f"{run} --resume")
        assert [json.loads(line)["round"] for line in rounds.open()] == list(range(1, 601))
        return f"killed after round {killed}, {self.result('long')}"

    def notebook(self) -> str:
        """Own model, loss and records in Python, on Ray."""
        (self.folder / "notebook.py").write_text(NOTEBOOK)
        self.do("python", "notebook.py")
        return self.result("notebook")

    def auditor(self) -> str:
        """A release, verified with the accountant alone."""
        made = json.loads(self.fedamp("release mine --out given --json"))
        bundle, key = made["archive"], made["public_key"]
        self.fedamp(f"verify {bundle} --key {key}")
        self.do(sys.executable, "-m", "venv", "auditor")
        self.do("auditor/bin/pip", "install", "--no-cache-dir", "--quiet", f"{ROOT}[signatures]")
        said = self.do("auditor/bin/fedamp-accounting", bundle, "--key", key)
        assert "fail" not in said, said
        return f"passed, with {gigabytes(self.folder / 'auditor'):.1f} GB installed"

    def publish(self) -> str:
        """A comparison as LaTeX and PDF."""
        table = self.fedamp("compare first mine --format latex --pictures pdf --out figures")
        assert r"\toprule" in table, table
        pictures = list((self.folder / "figures").glob("*.pdf"))
        assert pictures
        assert all(each.read_bytes().startswith(b"%PDF") for each in pictures)
        return f"a table, {len(pictures)} pictures"

    def result(self, run: str) -> str:
        """Accuracy and epsilon of a finished run."""
        summary = json.loads((self.folder / run / "summary.json").read_text())
        assert summary["stopped_because"] == "finished", summary
        return f"accuracy {summary['final']['accuracy']:.1%}, ε ≤ {summary['epsilon']['upper']:.2f}"

    VISITS: "tuple[Callable[[Visitor], str], ...]" = (
        install,
        first_picture,
        own_scenario,
        kill_and_resume,
        notebook,
        auditor,
        publish,
    )


def gigabytes(folder: Path) -> float:
    """What lies in a folder."""
    return sum(file.lstat().st_size for file in folder.rglob("*")) / 1e9


def main() -> None:
    """Make the visits in turn; each needs what earlier ones left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", nargs="+", default=CPU, help="what pip installs for torch")
    options = parser.parse_args()
    figures: dict[str, Any] = {"machine": machine(), "visits": []}
    with tempfile.TemporaryDirectory(prefix="fedamp-visits-", ignore_cleanup_errors=True) as folder:
        visitor = Visitor(Path(folder), tuple(options.torch))
        for visit in Visitor.VISITS:
            begin = time.monotonic()
            answer = visit(visitor)
            seconds = round(time.monotonic() - begin, 1)
            figures["visits"].append({"visit": str(visit.__doc__).rstrip("."), "seconds": seconds, "answer": answer})
            print(f"{seconds:7.1f} s  {visit.__doc__} {answer}", flush=True)
    RESULTS.write_text(json.dumps(figures | {"load_at_end": os.getloadavg()}, indent=1, ensure_ascii=False) + "\n")
    print(f"{sum(each['seconds'] for each in figures['visits']) / 60:.1f} minutes in all")


if __name__ == "__main__":
    main()
