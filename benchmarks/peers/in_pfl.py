"""Apple's pfl: DP-FedAvg with central Gaussian noise, and banded matrix factorisation. Runs where pfl is installed."""

import os
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import HyperParam, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

from benchmarks.peers.work import Job, Model, measure, serve


class Network(torch.nn.Module):
    """One hidden layer or none, with the loss and the metrics that pfl asks a model for."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        layers = {name: torch.nn.Linear(*value.shape[::-1]) for name, value in model.items() if value.ndim == 2}
        self.output = layers.pop("output.weight")
        self.hidden = torch.nn.ModuleList(layers.values())
        self.load_state_dict({name: torch.from_numpy(value) for name, value in model.items()})

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.hidden:
            inputs = torch.relu(layer(inputs))
        return self.output(inputs)

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor, eval: bool = False) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(inputs), labels)

    def metrics(self, inputs: torch.Tensor, labels: torch.Tensor, eval: bool = True) -> dict[str, Any]:
        return {}


class PoissonCohort(HyperParam, TrainingProcessCallback):
    """Who is in the next round: pfl's accountant assumes coins, and pfl's own samplers draw cohorts of a fixed size."""

    def __init__(self, job: Job) -> None:
        self._job, self._random = job, np.random.default_rng(job.seed)
        self._draw()

    def _draw(self) -> None:
        members = np.flatnonzero(self._random.random(self._job.clients) < self._job.check_in_rate)
        self._size, self._members = len(members), iter(members.tolist())

    def value(self) -> int:
        return self._size

    def member(self) -> int:
        return next(self._members)

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self._draw()
        return False, Metrics()


class Watch(TrainingProcessCallback):
    """Hands on the model after each round."""

    def __init__(self, network: Network, round_done: Callable[[Model], None]) -> None:
        self._network, self._round_done = network, round_done

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self._round_done({name: value.numpy().copy() for name, value in self._network.state_dict().items()})
        return False, Metrics()


@cache
def calibrated(compositions: int, rate: float, epsilon: float, delta: float) -> tuple[float, float]:
    """Noise multiplier that pfl's accountant finds, and the epsilon that it then says."""
    ask = {"num_compositions": compositions, "sampling_probability": rate, "mechanism": "gaussian", "delta": delta}
    noise = float(PLDPrivacyAccountant(epsilon=epsilon, **ask).noise_parameter)
    return noise, float(PLDPrivacyAccountant(noise_parameter=noise, **ask).epsilon)


def separation(job: Job) -> int:
    """Rounds between two participations of a client, where everybody takes part in turn."""
    return job.clients // job.cohort


def sensitivity(matrix: np.ndarray, apart: int) -> float:
    """By how much a person moves ``C x`` who is in one round in ``apart``, with updates of norm 1.

    The matrix has fewer bands than that, so that the columns of a person's rounds share no row.
    """
    squares = (matrix.astype(float) ** 2).sum(0)
    return float(np.sqrt(max(squares[first::apart].sum() for first in range(apart))))


def train(job: Job, noise: float, round_done: Callable[[Model], None]) -> dict[str, Any]:
    inputs, labels = (torch.from_numpy(part) for part in job.partition())
    own = labels >= 0
    network = Network(job.first_model())
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=job.server_rate, momentum=job.momentum),
    )
    callbacks: list[TrainingProcessCallback] = [Watch(network, round_done)]
    cohort: Any
    mechanism: Any
    said: dict[str, float]
    if job.scheme == "banded":
        # Clients in turn: the sampler that pfl advises, and the separation that the mechanism assumes.
        turns = np.random.default_rng(job.seed).permutation(job.clients).tolist()
        cohort, member = job.cohort, get_user_sampler("minimize_reuse", turns)
        mechanism = BandedMatrixFactorizationMechanism(
            job.clip,
            job.rounds,
            separation(job),
            lambda times: PLDPrivacyAccountant(times, 1.0, "gaussian", noise_parameter=noise, delta=job.delta),
        )
        said = {"sensitivity": sensitivity(mechanism.query_matrix, separation(job))}
    else:
        cohort = PoissonCohort(job)
        member = cohort.member
        callbacks.append(cohort)
        mechanism, said = GaussianMechanism(job.clip, noise), {}
    users = FederatedDataset(
        lambda client: Dataset(raw_data=[part[client, own[client]] for part in (inputs, labels)], user_id=str(client)),
        member,
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds + 1,
            train_cohort_size=cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(
            training_data=users, val_data=users, postprocessors=[CentrallyAppliedPrivacyMechanism(mechanism)]
        ),
        model,
        NNTrainHyperParams(local_num_epochs=job.steps, local_learning_rate=job.local_rate, local_batch_size=None),
        callbacks=callbacks,
    )
    sent = sum(value.element_size() * value.numel() for value in network.state_dict().values())
    return {"bytes": 2 * sent, **said}


def answer(job: Job) -> dict[str, Any]:
    """One training by pfl, in a folder of its own: the mechanism keeps its matrix in the working folder."""
    if job.seed is None:
        np.random.seed(None)
        torch.seed()
    else:
        np.random.seed(job.seed)
        torch.manual_seed(job.seed)
    banded = job.scheme == "banded"
    # In turn nothing is hidden: a client is in one round of each cycle with certainty, and is charged for each.
    times, rate = (-(-job.rounds // separation(job)), 1.0) if banded else (job.rounds, job.check_in_rate)
    noise, own = calibrated(times, rate, job.epsilon, job.delta)
    bands = separation(job) if banded else 1
    found = {"version": version("pfl"), "noise_multiplier": noise, "own_epsilon": own, "bands": bands}
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return found | measure(job, lambda done: train(job, noise, done))
        finally:
            os.chdir(here)


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(answer)
