"""The simulators under test. Each runs rounds of a workload in a process of its own, and says how long each took."""

import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from benchmarks.speed import in_jax
from benchmarks.speed.workloads import CLIP, NOISE_MULTIPLIER, RATE, Workload, records_of, train_one
from fedamp.data import Dataset

WARM_UP = 2  # rounds that are run and not counted


@dataclass
class Measured:
    """What a simulator did.

    Attributes:
        seconds: of each counted round.
        warm_up: seconds from the start of the simulator to the end of its first round.
        processor_seconds: of all its processes over the counted rounds; less moved than the others by a busy machine.
        peak_bytes: resident memory of its processes at their highest, added up.
    """

    seconds: list[float] = field(default_factory=list)
    warm_up: float = 0.0
    processor_seconds: float = 0.0
    peak_bytes: int = 0


class Clock:
    """Notes the ends of rounds; ``rounds`` of them count."""

    def __init__(self, rounds: int) -> None:
        self.measured = Measured()
        self._counted = rounds
        self._start = self._last = perf_counter()
        self._rounds, self._processor_seconds = 0, 0.0

    def round_done(self) -> None:
        """A round has ended; nothing that happens in here is counted."""
        now = perf_counter()
        self._rounds += 1
        if self._rounds == 1:
            self.measured.warm_up = now - self._start
        if self._rounds > WARM_UP:
            self.measured.seconds.append(now - self._last)
            if self._rounds == WARM_UP + self._counted:
                self.measured.processor_seconds = processor_seconds() - self._processor_seconds
                self.measured.peak_bytes = sum(_status(process, "VmHWM") for process in family()) * 1024
        elif self._rounds == WARM_UP:
            self._processor_seconds = processor_seconds()
        self._last = perf_counter()


def fedamp(workload: dict[str, Any], kind: str, workers: int, device: str = "cpu", **sections: Any) -> dict[str, Any]:
    """The whole of ``fedamp run``, with accounting, ledger, checkpoints; nobody evaluates in the rounds that count."""
    from fedamp.engines.engines import open_grid
    from fedamp.runs.folder import new_folder
    from fedamp.runs.records import RoundRecord
    from fedamp.server.loop import play
    from fedamp.server.observers import Observer
    from fedamp.server.setup import prepare

    work = Workload(**workload)
    clock = Clock(work.rounds)
    rounds = work.rounds + WARM_UP + 1  # the last one is always evaluated

    class Watch(Observer):
        def started(self, *_: object) -> None: ...
        def stopping(self) -> None: ...
        def round_done(self, record: RoundRecord) -> None:
            if record.round < rounds:
                clock.round_done()

    federation = {"evaluate_every": rounds, "round_deadline": 3600}  # a busy machine is slow
    with tempfile.TemporaryDirectory() as name:
        scenario = work.scenario(kind, workers, rounds, device, federation=federation, **sections)
        folder, _ = new_folder(Path(name) / "run", scenario.name)
        folder.write_scenario(scenario)
        with open_grid(scenario.engine, folder.log) as grid:
            play(prepare(scenario), grid, folder, Watch())
    return asdict(clock.measured)


def plain_loop(workload: dict[str, Any], device: str = "cpu") -> dict[str, Any]:
    """A loop over clients in torch, with clipping and noise."""
    work, clock, dataset, module, model = _in_torch(workload, device)
    for _ in range(work.rounds + WARM_UP):
        total = {name: torch.zeros_like(value) for name, value in model.items()}
        for client in range(work.clients):
            inputs, labels = records_of(dataset, client)
            for name, value in train_one(module, model, inputs.to(device), labels.to(device), work.steps).items():
                total[name] += value
        model = _noisy(model, total, work.clients)
        if device != "cpu":
            torch.cuda.synchronize()
        clock.round_done()
    return asdict(clock.measured)


def bare_vmap(workload: dict[str, Any], together: int, device: str = "cpu", captured: bool = False) -> dict[str, Any]:
    """Nothing but ``torch.func.vmap`` over stacked clients, with clipping and noise; all data lie ready in memory.

    ``captured``: the sums of a round are one CUDA graph, as one writes it by hand; on a CPU they are called.
    """
    work, clock, dataset, module, model = _in_torch(workload, device)
    pieces = np.array_split(np.arange(work.clients), -(-work.clients // together))
    stacks = [tuple(part.to(device) for part in _stack(dataset, clients)) for clients in pieces]

    def loss(values: dict[str, Tensor], inputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        logits = functional_call(module, values, (inputs,))
        return (torch.nn.functional.cross_entropy(logits, labels, reduction="none") * weights).sum()

    def train(start: dict[str, Tensor], inputs: Tensor, labels: Tensor, weights: Tensor) -> dict[str, Tensor]:
        values = start
        for _ in range(work.steps):
            gradients = grad(loss)(values, inputs, labels, weights)
            values = {name: value - RATE * gradients[name] for name, value in values.items()}
        update = {name: value - start[name] for name, value in values.items()}
        norm = torch.sqrt(torch.stack([value.square().sum() for value in update.values()]).sum())
        return {name: value * torch.clamp(CLIP / norm, max=1.0) for name, value in update.items()}

    every = vmap(train, in_dims=(None, 0, 0, 0))

    def summed() -> dict[str, Tensor]:
        total = {name: torch.zeros_like(value) for name, value in model.items()}
        for stack in stacks:
            for name, value in every(model, *stack).items():
                total[name] += value.sum(0)
        return total

    play = _captured(summed) if captured and device != "cpu" else summed
    for _ in range(work.rounds + WARM_UP):
        for name, value in _noisy(model, play(), work.clients).items():
            model[name].copy_(value)
        if device != "cpu":
            torch.cuda.synchronize()
        clock.round_done()
    return asdict(clock.measured)


def _captured(action: Callable[[], Any]) -> Callable[[], Any]:
    """Record an action of CUDA as a graph; the result lies in the same memory each time."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        action()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = action()

    def replay() -> Any:
        graph.replay()
        return found

    return replay


def jax(workload: dict[str, Any], folder: str, together: int, threads: int, library: bool = False) -> dict[str, Any]:
    """One JAX program for the whole round (:mod:`benchmarks.speed.in_jax`); ``library``: jax_privacy clips."""
    sys.path.append(folder)
    in_jax.limit_threads(threads)
    work, clock, dataset, _, model = _in_torch(workload)
    data = [part.numpy() for part in _stack(dataset, np.arange(work.clients))]
    in_jax.rounds(
        work.model["name"],
        {name: value.numpy() for name, value in model.items()},
        (data[0], data[1].astype(np.int32), data[2]),
        steps=work.steps,
        rate=RATE,
        clip=CLIP,
        noise_multiplier=NOISE_MULTIPLIER,
        together=min(together, work.clients),
        library=library,
        each=lambda _: clock.round_done(),
        count=work.rounds + WARM_UP,
    )
    return asdict(clock.measured)


def opacus(workload: dict[str, Any], folder: str) -> dict[str, Any]:
    """Opacus: gradients of all records of a round in one batch, clipped, with noise."""
    sys.path.append(folder)
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    work, clock, dataset, module, _ = _in_torch(workload)
    inputs, labels, _ = _stack(dataset, np.arange(work.clients))
    network = GradSampleModule(module)
    optimizer = DPOptimizer(
        torch.optim.SGD(network.parameters(), lr=RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP / RATE,
        expected_batch_size=work.clients,
    )
    for _ in range(work.rounds + WARM_UP):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(inputs[:, 0]), labels[:, 0]).backward()
        optimizer.step()
        clock.round_done()
    return asdict(clock.measured)


def stock_flower(workload: dict[str, Any]) -> dict[str, Any]:
    """Flower's own simulation: a node a client, its own strategy with fixed clipping and noise."""
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", FLWR_LOG_LEVEL="ERROR")
    os.environ["PYTHONPATH"] = os.getcwd()
    from flwr.app import ArrayRecord, ConfigRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
    from flwr.simulation import run_simulation

    from benchmarks.speed.stock_flower_app import app

    work = Workload(**workload)
    clock = Clock(work.rounds)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        module = work.module(work.dataset())
        average = FedAvg(fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients)
        strategy = DifferentialPrivacyServerSideFixedClipping(average, NOISE_MULTIPLIER, CLIP, work.clients)
        strategy.start(
            grid,
            ArrayRecord(dict(module.named_parameters())),
            num_rounds=work.rounds + WARM_UP,
            train_config=ConfigRecord({"workload": json.dumps(workload)}),
            evaluate_fn=lambda round_, arrays: clock.round_done() if round_ else None,
        )

    with _silence():
        run_simulation(server, app, num_supernodes=work.clients, backend_config={"client_resources": {"num_cpus": 1}})
    return asdict(clock.measured)


def pfl(workload: dict[str, Any], folder: str) -> dict[str, Any]:
    """Apple's pfl in one process, with central Gaussian noise."""
    sys.path.append(folder)
    multiprocessing.current_process().name = "MainProcess"  # in others pfl does without what it needs
    torch.set_num_threads(1)
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    work = Workload(**workload)
    clock = Clock(work.rounds)
    dataset = work.dataset()
    module = work.module(dataset)
    module.loss = lambda inputs, labels, eval=False: torch.nn.functional.cross_entropy(module(inputs), labels)
    module.metrics = lambda inputs, labels, eval=True: {}
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    users = FederatedDataset(
        lambda client: Dataset(raw_data=list(records_of(dataset, client)), user_id=client),
        get_user_sampler("minimize_reuse", list(range(work.clients))),
    )
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP, NOISE_MULTIPLIER))

    class Watch(TrainingProcessCallback):
        def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Any]:
            from pfl.metrics import Metrics

            clock.round_done()
            return False, Metrics()

    with _silence():
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=work.rounds + WARM_UP,
                evaluation_frequency=1_000_000,
                train_cohort_size=work.clients,
                val_cohort_size=0,
            ),
            SimulatedBackend(training_data=users, val_data=users, postprocessors=[noise]),
            model,
            NNTrainHyperParams(local_num_epochs=work.steps, local_learning_rate=RATE, local_batch_size=None),
            callbacks=[Watch()],
        )
    return asdict(clock.measured)


def answer(simulator: str, **question: Any) -> dict[str, Any]:
    """What a simulator's process answers; it is asked by name."""
    ask: Callable[..., dict[str, Any]] = globals()[simulator]
    return ask(**question)


def nothing(**_: Any) -> dict[str, Any]:
    """Answers at once: the first question, which is not timed."""
    return {}


def family() -> list[str]:
    """Ids of this process and of all that it started."""
    parents = {int(entry): _status(entry, "PPid") for entry in os.listdir("/proc") if entry.isdigit()}
    members, found = {os.getpid()}, True
    while found:
        found = {process for process, parent in parents.items() if parent in members} - members
        members |= found
    return [str(member) for member in members]


def processor_seconds() -> float:
    """Processor time of the family so far."""
    total = 0
    for process in family():
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def _status(process: str, key: str) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), 0)


def _in_torch(
    workload: dict[str, Any], device: str = "cpu"
) -> tuple[Workload, Clock, Dataset, torch.nn.Module, dict[str, Tensor]]:
    """What a loop in torch begins with: workload, clock, data, module and its parameters; on one thread."""
    torch.set_num_threads(1)
    work = Workload(**workload)
    clock = Clock(work.rounds)
    dataset = work.dataset()
    module = work.module(dataset).to(device)
    return work, clock, dataset, module, {name: value.detach().clone() for name, value in module.named_parameters()}


def _stack(dataset: Any, clients: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    cohort = dataset.gather(clients)
    real = np.arange(cohort.inputs.shape[1]) < cohort.sizes[:, None]
    weights = (real / cohort.sizes[:, None]).astype(np.float32)
    return torch.from_numpy(cohort.inputs), torch.from_numpy(cohort.labels), torch.from_numpy(weights)


def _noisy(model: dict[str, Tensor], total: dict[str, Tensor], clients: int) -> dict[str, Tensor]:
    return {
        name: value + (total[name] + CLIP * NOISE_MULTIPLIER * torch.randn_like(value)) / clients
        for name, value in model.items()
    }


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing that this process or its children print is seen."""
    sys.stdout.flush()
    kept = os.dup(1), os.dup(2)
    with open(os.devnull, "w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
        try:
            yield
        finally:
            for stream, was in zip((1, 2), kept, strict=True):
                os.dup2(was, stream)
                os.close(was)
