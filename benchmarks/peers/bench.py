"""The peers, the runs so far, and those that are made when they are asked for."""

import json
import math
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from benchmarks.peers.work import Job, whole_cohort
from benchmarks.record import ROOT, add_row, rows_of
from benchmarks.studies.federation_tasks import DELTA, TASKS, Task, folders
from benchmarks.studies.federations import on_made_up_records
from benchmarks.training import best_power
from fedamp.accounting import Gaussian, Mechanism, Poisson, Repeat, WithoutReplacement, calibrate
from fedamp.base.files import cache_folder
from fedamp.federation import reader

RESULTS = Path(__file__).with_suffix(".jsonl")
CLIP = 0.1
# One thread for everybody, and no messages to the makers of Flower.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "NPROC": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_LOG_LEVEL": "ERROR",
}


@dataclass(frozen=True)
class Federation:
    """A task as all tools have it.

    Attributes:
        data: folders to tune on (True), and to test on.
        held_out: one client in so many is tested on while rates are chosen.
    """

    name: str
    data: Callable[[], dict[bool, Path]]
    held_out: int
    epsilons: tuple[float, ...]

    @property
    def task(self) -> Task:
        return TASKS[self.name]

    @property
    def rounds(self) -> int:
        return int(self.task.federation["rounds"])

    @property
    def check_ins(self) -> int:
        return int(self.task.federation["check_in"]["k"])

    @property
    def check_in_rate(self) -> float:
        return self.check_ins / self.rounds

    @property
    def cohort(self) -> int:
        return whole_cohort(self.check_in_rate, self.task.clients)


@cache
def features_of_people() -> dict[bool, Path]:
    """The packages' features by fedamp's loader, and whose each is, as npz files, made once."""
    home = cache_folder() / "federations" / "features-of-people"
    result = {True: home / "tuning", False: home / "test"}
    for tuning, folder in result.items():
        if not (folder / "test.npz").exists():
            folder.mkdir(parents=True, exist_ok=True)
            raw = {**TASKS["sections"].federation, "data": TASKS["sections"].data(tuning)}
            scenario = reader.validate_scenario({**raw, "privacy": {"clip": 1.0, "noise_multiplier": 1.0}}, "sections")
            dataset = scenario.data.load(1, Path())
            people = dataset.gather(np.arange(dataset.num_clients))
            own = np.arange(people.labels.shape[1]) < people.sizes[:, None]
            owners = np.repeat(np.arange(dataset.num_clients), people.sizes)
            np.savez(folder / "train.npz", x=people.inputs[own], y=people.labels[own], owner=owners)
            inputs, labels = dataset.test()
            np.savez(folder / "test.npz", x=inputs, y=labels)
    return result


FEDERATIONS = {
    "iid": Federation("iid", folders, 10, (0.1, 1.0, 4.0)),
    "sections": Federation("sections", features_of_people, 5, TASKS["sections"].epsilons),
}


@dataclass(frozen=True)
class Peer:
    """A row of the table.

    Attributes:
        words: with ``{bands}``, where a run says how many, ``{cohort}`` and ``{clients}``.
        module: that runs it, in its environment; None: in fedamp's.
        mechanism: what is released, for fedamp's accountant, at a noise multiplier, bands and sensitivity of a run.
        calibrates: whether the tool finds the noise itself; otherwise fedamp's accountant does.
    """

    tool: str
    words: str
    module: str
    environment: str | None
    scheme: str
    mechanism: Callable[[Federation, float, int, float], Mechanism]
    calibrates: bool = True
    momentum: bool = True


def _poisson(about: Federation, noise: float, bands: int, sensitivity: float) -> Mechanism:
    """One of so many groups in turn, sampled by coins: each column of the banded matrix is one release."""
    return Repeat(Poisson(Gaussian(noise), about.check_in_rate * bands), about.rounds // bands)


def _in_turn(about: Federation, noise: float, bands: int, sensitivity: float) -> Mechanism:
    """One Gaussian release of the whole run: the noise is on ``C x``, which a person moves by the sensitivity."""
    return Gaussian(noise / sensitivity)


def _fixed_size(about: Federation, noise: float, bands: int, sensitivity: float) -> Mechanism:
    return Repeat(WithoutReplacement(Gaussian(noise), about.cohort, about.task.clients), about.rounds)


_JAX, _PFL = ("in_jax_privacy", "jax_privacy"), ("in_pfl", "pfl")
PEERS = {
    "jax-fedavg": Peer("jax_privacy", "DP-SGD of clients, Poisson sampling", *_JAX, "fedavg", _poisson),
    "jax-banded": Peer(
        "jax_privacy", "DP-BandMF of clients, {bands} bands, cyclic Poisson sampling", *_JAX, "banded", _poisson
    ),
    "pfl-fedavg": Peer("pfl", "DP-FedAvg, Poisson sampling", *_PFL, "fedavg", _poisson),
    "pfl-banded": Peer("pfl", "banded matrix factorisation, everybody in turn", *_PFL, "banded", _in_turn),
    "flower-fixed": Peer(
        "Flower",
        "wrapper with fixed clipping, {cohort:,} of {clients:,} without replacement, no momentum",
        "in_flower",
        None,
        "fixed",
        _fixed_size,
        calibrates=False,
        momentum=False,
    ),
}


@dataclass(frozen=True)
class Run:
    """One line of the results.

    Attributes:
        version: of the tool.
        rate: updates that all agree move the model by 2^rate in the whole run.
        tuning: whether the accuracy is on held-out training images.
        bands: of the noise; 1: independent noise.
        own_epsilon: by the peer's accountant.
        charged_epsilon: of the same mechanism, by fedamp's.
        bytes: of the arrays that a client receives and sends in a round.
        accuracy, last: of the average of the models, and of the last one.
        seconds: of one core, for training.
        sensitivity: by how much a person moves what banded noise is added to, over the whole run, in norms of an
            update; 1 for noise that is charged round by round.
        task: of :data:`FEDERATIONS`.
    """

    peer: str
    version: str
    epsilon: float
    rate: int
    seed: int
    tuning: bool
    noise_multiplier: float
    bands: int
    own_epsilon: float
    charged_epsilon: float
    bytes: int
    accuracy: float
    last: float
    seconds: float
    sensitivity: float = 1.0
    task: str = "iid"


@cache
def charged(about: Federation, peer: str, noise: float, bands: int, sensitivity: float = 1.0) -> float:
    """Epsilon by fedamp's accountant: the upper end of its bracket."""
    return PEERS[peer].mechanism(about, noise, bands, sensitivity).epsilon(DELTA).upper


def _charged_for(said: dict[str, Any]) -> tuple[float, int, float]:
    return said["noise_multiplier"], said["bands"], said.get("sensitivity", 1.0)


@cache
def calibrated(about: Federation, peer: str, epsilon: float) -> float:
    """Noise for a tool that calibrates nothing."""
    return calibrate(lambda noise: PEERS[peer].mechanism(about, noise, 1, 1.0), epsilon, DELTA)


class Bench:
    """The runs so far, and the processes of the peers, which are started when they are needed."""

    def __init__(self, file: Path, environments: Path, about: Federation) -> None:
        self.file, self._environments, self.about = file, environments, about
        self.runs = [Run(**row) for row in rows_of(file)]
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes.values():
            process.communicate()  # closes its questions, which ends it

    def run(self, peer: str, epsilon: float, rate: int, seed: int, tuning: bool) -> Run:
        """A run, made unless there is one."""
        asked = (self.about.name, peer, epsilon, rate, seed, tuning)
        for known in self.runs:
            if (known.task, known.peer, known.epsilon, known.rate, known.seed, known.tuning) == asked:
                return known
        said = self.ask(peer, epsilon, rate, seed, tuning)
        done = Run(task=self.about.name, peer=peer, epsilon=epsilon, rate=rate, seed=seed, tuning=tuning,
                   charged_epsilon=charged(self.about, peer, *_charged_for(said)), **said)  # fmt: skip
        self.runs.append(done)
        add_row(self.file, asdict(done))
        return done

    def ask(self, peer: str, epsilon: float, rate: int, seed: int | None, tuning: bool) -> dict[str, Any]:
        """What a peer's process says of one training; with no seed it draws its own from the operating system."""
        tool, about, task = PEERS[peer], self.about, self.about.task
        start = on_made_up_records(about.name, seed=secrets.randbits(31) if seed is None else seed)
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model.npz"
            np.savez(model, **start.state.model)
            job = Job(
                scheme=tool.scheme,
                epsilon=epsilon,
                delta=DELTA,
                noise_multiplier=None if tool.calibrates else calibrated(about, peer, epsilon),
                rate=rate,
                seed=seed,
                data=str(about.data()[tuning].resolve()),
                model=str(model),
                clients=task.clients - (task.clients // about.held_out if tuning else 0),
                rounds=about.rounds,
                check_in_rate=about.check_in_rate,
                steps=task.federation["client"]["steps"],
                local_rate=task.federation["client"]["learning_rate"],
                clip=CLIP,
                momentum=task.federation["server"]["momentum"] * tool.momentum,
                averaging=task.federation["server"]["averaging"],
            )
            process = self._process(tool)
            assert process.stdin
            assert process.stdout
            process.stdin.write(json.dumps(asdict(job)) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{peer} ended; its errors: {self._errors(tool)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _process(self, tool: Peer) -> "subprocess.Popen[str]":
        if tool.module not in self._processes:
            own = self._environments / tool.environment / "bin" / "python" if tool.environment else sys.executable
            with self._errors(tool).open("w") as errors:
                self._processes[tool.module] = subprocess.Popen(
                    [str(own), "-m", f"benchmarks.peers.{tool.module}"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=os.environ | SETTINGS | {"PYTHONPATH": str(ROOT)},
                )
        return self._processes[tool.module]

    @staticmethod
    def _errors(tool: Peer) -> Path:
        return Path(tempfile.gettempdir()) / f"fedamp-peer-{tool.module}.log"

    def best_rate(self, peer: str, epsilon: float) -> int:
        """The rate with the highest accuracy, which no neighbour exceeds; searched from the nearest budget's best."""
        known = [run for run in self.runs if (run.task, run.peer, run.tuning) == (self.about.name, peer, True)]
        near = max(known, key=lambda run: (-abs(math.log(run.epsilon / epsilon)), run.accuracy), default=None)
        return best_power(lambda rate: self.run(peer, epsilon, rate, 1, True).accuracy, near.rate if near else 8)


def measure(bench: Bench, peers: Sequence[str], epsilons: Sequence[float]) -> None:
    """Everything that is missing: first a seed of each, then the others."""
    cells = [(peer, epsilon) for peer in peers for epsilon in epsilons]
    best = {cell: bench.best_rate(*cell) for cell in cells}
    for seed in bench.about.task.seeds:
        for cell in cells:
            bench.run(*cell, best[cell], seed, False)


def entry(bench: Bench, peer: str, epsilon: float) -> dict[str, Any]:
    """What the leaderboard is told of one more run, whose seeds nobody knows, at the tuned rate."""
    tool, about, clients = PEERS[peer], bench.about, bench.about.task.clients
    if "fedavg" not in tool.scheme:
        raise ValueError(f"{peer}: the leaderboard's statements have no word for its mechanism")
    said = bench.ask(peer, epsilon, bench.best_rate(peer, epsilon), None, False)
    mechanism = {
        "rounds": about.rounds,
        "rate": about.check_in_rate,
        "clip": CLIP,
        "noise": CLIP * said["noise_multiplier"],
        "noise_multiplier": said["noise_multiplier"],
        "cohort": about.check_in_rate * clients,
        "people": clients,
        "delta": DELTA,
        # Rounded up: the two accountants agree to four digits, and each has its own upper bound.
        "epsilon": math.ceil(1e4 * charged(about, peer, *_charged_for(said))) / 1e4,
    }
    return {
        "task": "fashion-mnist",
        "words": f"{tool.words}, an MLP on scattering features; rate by held-out training images",
        "tool": {"name": tool.tool, "version": said["version"], "own_epsilon": said["own_epsilon"]},
        "mechanism": mechanism,
        "claims": {
            "value": said["accuracy"],
            "check_ins": about.check_ins * clients,
            "bytes": said["bytes"],
        },
    }
