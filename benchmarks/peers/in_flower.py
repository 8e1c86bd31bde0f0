"""Flower's own DP: FedAvg in its wrapper with fixed clipping and noise on the server, in one process."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.privacy_accounting import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
from flwr.supercore.task_identity import TaskIdentity
from torch.func import grad, vmap

from benchmarks.peers.work import Job, Model, measure, scores, serve


class InProcess(Grid):
    """Answers the strategy's messages in this process, with all clients of a round trained together.

    Args:
        scale: each update is multiplied by this before it is sent: Flower's wrapper has no rate of the server.
    """

    def __init__(self, job: Job, scale: float) -> None:
        self._job, self._scale = job, scale
        self._inputs, self._labels = (torch.from_numpy(part) for part in job.partition())
        self._train = vmap(partial(local_update, job), in_dims=(None, 0, 0))
        self.sent = 0

    def get_node_ids(self) -> list[int]:
        return list(range(1, self._job.clients + 1))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        asked = list(messages)
        if not asked:
            return []
        model = {name: value.clone() for name, value in asked[0].content["arrays"].to_torch_state_dict().items()}
        clients = [message.metadata.dst_node_id - 1 for message in asked]
        updates = self._train(model, self._inputs[clients], self._labels[clients])
        replies = []
        for place, message in enumerate(asked):
            arrays = ArrayRecord({name: model[name] + self._scale * value[place] for name, value in updates.items()})
            # As many records for everybody: the strategy weights by them, which the wrapper's noise does not cover.
            content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
            replies.append(Message(content, reply_to=message))
        self.sent = message.content["arrays"].count_bytes() + arrays.count_bytes()
        return replies

    def set_run(self, run_id: int) -> None: ...
    @property
    def run(self) -> Any: ...
    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def local_update(job: Job, model: Any, inputs: Any, labels: Any) -> Any:
    def loss(values: Any) -> Any:
        return torch.nn.functional.cross_entropy(scores(values, inputs, torch.relu), labels, ignore_index=-1)

    trained = model
    for _ in range(job.steps):
        slope = grad(loss)(trained)
        trained = {name: value - job.local_rate * slope[name] for name, value in trained.items()}
    return {name: value - model[name] for name, value in trained.items()}


def own_epsilon(job: Job) -> float:
    """Flower's accountant for this wrapper: fixed clipping is accounted without amplification only."""
    config = PrivacyConfig(
        target_delta=job.delta,
        population_size=job.clients,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=SamplingMethod.NO_AMPLIFICATION,
    )
    accountant = RdpAccountant(config)
    accountant.compose(GaussianPrivacyEvent(float(job.noise_multiplier or 0), job.cohort, job.clients), job.rounds)
    return float(accountant.get_epsilon(job.delta))


def train(job: Job, round_done: Callable[[Model], None]) -> dict[str, Any]:
    # The wrapper adds its noise after the strategy's step. So a step other than the average, or momentum, would not
    # be covered by it (its accountant refuses them): the norm itself is the rate of the server.
    clip = 2.0**job.rate / job.rounds
    assert job.noise_multiplier is not None
    grid = InProcess(job, clip / job.clip)
    average = FedAvg(
        fraction_train=job.cohort / job.clients,
        fraction_evaluate=0.0,
        min_train_nodes=job.cohort,
        min_available_nodes=job.clients,
    )
    wrapped = DifferentialPrivacyServerSideFixedClipping(average, job.noise_multiplier, clip, job.cohort)
    first = job.first_model()

    def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord:
        if round_:
            round_done({name: value.numpy() for name, value in arrays.to_torch_state_dict().items()})
        return MetricRecord({})

    state = {name: torch.from_numpy(value) for name, value in first.items()}
    wrapped.start(grid, ArrayRecord(state), num_rounds=job.rounds, evaluate_fn=evaluate)
    return {"bytes": grid.sent}


def answer(job: Job) -> dict[str, Any]:
    """One training by Flower's strategies, which draw from the global generators of random and numpy."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 0  # messages name who sent them
    random.seed(job.seed)
    np.random.seed(job.seed)
    found = {"version": version("flwr"), "noise_multiplier": job.noise_multiplier, "own_epsilon": own_epsilon(job)}
    found["bands"] = 1
    return found | measure(job, lambda done: train(job, done))


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(answer)
