"""A rehearsal beside pfl's: both train few people with the noise of many, on the same data, and take turns.

    python -m benchmarks.peers.rehearsal --peers FOLDER [--seeds N]   resumes; three core-minutes a seed
    python -m benchmarks.peers.rehearsal --show                       the table of docs/research/federations.md

It is the shape of pfl's published benchmark on CIFAR-10 (``scenarios/cifar10-rehearsal.yaml``) with Fashion-MNIST and
fewer rounds. Both have the same clients, first model, rates, batches, clip, noise cohort and test. Each tool finds its
own noise for the budget. fedamp flips a coin for each client, as both accountants assume. pfl draws a cohort of fixed
size, with repetition. All is one process with one thread. Seconds are processor time of the training alone.

``FOLDER`` has pfl, and does not go with fedamp's environment: ``pip install --no-deps --target FOLDER pfl==0.6.0
prv-accountant dp-accounting multiprocess dill absl-py attrs dm-tree mpmath``.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import process_time

import numpy as np
import torch

from benchmarks.peers.table import spread
from benchmarks.record import ROOT, add_row, put_in, rows_of
from benchmarks.speed.workloads import records_of
from benchmarks.studies.federations import played
from benchmarks.training import fashion_mnist
from fedamp.base.arrays import Arrays
from fedamp.federation import reader
from fedamp.models.networks import build
from fedamp.server.setup import RunInputs, prepare

RESULTS, PAGE = Path(__file__).with_suffix(".jsonl"), ROOT / "docs" / "research" / "federations.md"
PUBLISHED = "cifar10-rehearsal"
CLIENTS, COHORT, RECORDS, ROUNDS = 1000, 50, 50, 150
MODEL = {"name": "cnn", "channels": [16, 32]}


Training = tuple[float, Callable[[], tuple[Arrays, int]]]
"""A noise multiplier, and what trains: it gives the last model, and how many clients have trained, all rounds added."""


@dataclass(frozen=True)
class Run:
    """A line of the results: test accuracy of the last model, and clients that trained a second of processor time."""

    tool: str
    version: str
    seed: int
    noise_multiplier: float
    accuracy: float
    clients_a_second: float


def prepared(folder: Path, seed: int) -> RunInputs:
    """The published federation with fewer rounds, a smaller model, and Fashion-MNIST, which is in the folder."""
    published = reader.load(PUBLISHED)
    data = {"name": "npz", "path": str(folder), "test_is_public": True, "clients": CLIENTS}
    changes = {"data": data, "model": MODEL, "rounds": ROUNDS, "seed": seed, "engine": {"kind": "serial"}}
    return prepare(reader.load(published.model_dump(mode="json", exclude_unset=True), changes=changes))


def in_fedamp(inputs: RunInputs) -> Training:
    """Noise multiplier, and what trains."""
    strategy = inputs.strategy(inputs.state)

    def train() -> tuple[Arrays, int]:
        clients = played(strategy)
        return strategy.state.parameters, clients

    return inputs.plan.noise_multiplier, train


def in_pfl(inputs: RunInputs) -> Training:
    """The same by pfl."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    scenario = inputs.plan.scenario
    dataset = scenario.data.load(inputs.task.data_seed, Path())
    rehearsed = scenario.privacy.noise_cohort
    assert rehearsed is not None
    accountant = PLDPrivacyAccountant(
        num_compositions=ROUNDS,
        sampling_probability=rehearsed.check_in.rate,
        mechanism="gaussian",
        epsilon=scenario.privacy.epsilon,
        delta=scenario.privacy.delta,
        noise_scale=COHORT / rehearsed.size,
    )
    np.random.seed(scenario.seed)
    torch.manual_seed(scenario.seed)
    module = build(scenario.model, dataset.input_shape, dataset.num_classes)
    module.load_state_dict({name: torch.from_numpy(value) for name, value in inputs.state.parameters.items()})
    module.loss = lambda inputs, labels, eval=False: torch.nn.functional.cross_entropy(module(inputs), labels)
    module.metrics = lambda inputs, labels, eval=True: {}
    users = FederatedDataset(
        lambda client: Dataset(raw_data=list(records_of(dataset, client)), user_id=str(client)),
        get_user_sampler("random", list(range(CLIENTS))),
    )
    noise = CentrallyAppliedPrivacyMechanism(
        GaussianMechanism.from_privacy_accountant(accountant=accountant, clipping_bound=scenario.privacy.clip)
    )

    def train() -> tuple[Arrays, int]:
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=ROUNDS,
                evaluation_frequency=ROUNDS + 1,
                train_cohort_size=COHORT,
                val_cohort_size=0,
            ),
            SimulatedBackend(training_data=users, val_data=users, postprocessors=[noise]),
            PyTorchModel(
                module,
                local_optimizer_create=torch.optim.SGD,
                central_optimizer=torch.optim.SGD(module.parameters(), lr=scenario.server.learning_rate),
            ),
            NNTrainHyperParams(
                local_num_epochs=scenario.client.epochs,
                local_learning_rate=scenario.client.learning_rate,
                local_batch_size=scenario.client.batch_size,
            ),
        )
        return {name: value.numpy() for name, value in module.state_dict().items()}, ROUNDS * COHORT

    return accountant.noise_parameter, train


TOOLS = {"fedamp": in_fedamp, "pfl": in_pfl}


def measure(tool: str, seed: int, folder: Path) -> Run:
    """One training, and its test."""
    inputs = prepared(folder, seed)
    noise, train = TOOLS[tool](inputs)
    start = process_time()
    with contextlib.redirect_stdout(io.StringIO()):  # pfl's many words
        model, clients = train()
    speed = clients / (process_time() - start)
    return Run(tool, version(tool), seed, round(noise, 4), inputs.evaluate(model).score, round(speed, 1))


def table(runs: list[Run]) -> str:
    """In Markdown: a tool a row."""
    lines = ["| | accuracy | noise multiplier | clients a second of a core |", "| --- |" + " --- |" * 3]
    for tool in TOOLS:
        if found := [run for run in runs if run.tool == tool]:
            named = tool if tool == "fedamp" else f"{tool} {found[0].version}"
            accuracy = spread([run.accuracy for run in found])
            speed = np.median([run.clients_a_second for run in found])
            lines.append(f"| {named} | {accuracy} | {found[0].noise_multiplier:.4f} | {speed:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, and show the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="", help="folder that pfl is installed in, if not in this environment")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--show", action="store_true", help="the table of what there is; measures nothing")
    asked = parser.parse_args()
    runs = [Run(**row) for row in rows_of(RESULTS)]
    sys.path.append(asked.peers)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not asked.show:
            training, test = fashion_mnist(())
            kept = CLIENTS * RECORDS
            np.savez(folder / "train.npz", x=training[0][:kept], y=training[1][:kept])
            np.savez(folder / "test.npz", x=test[0], y=test[1])
        for seed in range(1, 1 + (0 if asked.show else asked.seeds)):
            for tool in TOOLS:
                if not any((run.tool, run.seed) == (tool, seed) for run in runs):
                    runs.append(measure(tool, seed, folder))
                    add_row(RESULTS, asdict(runs[-1]))
    put_in(PAGE, "federations: rehearsal", table(runs))


if __name__ == "__main__":
    main()
