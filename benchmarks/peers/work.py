"""What a peer is asked, and what all peers do alike. It needs numpy alone: it runs in the environment of each peer."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

Model = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        scheme: which of the tool's mechanisms.
        epsilon, delta: the budget that the tool calibrates its noise to.
        noise_multiplier: for a tool that calibrates nothing; None otherwise.
        rate: updates that all agree move the model by 2^rate in the whole run.
        seed: of the data's partition and all that is drawn; None: from the operating system.
        data: folder with train.npz and test.npz: inputs x, labels y and, unless they are dealt, the client of each.
        model: npz with the first model.
        check_in_rate: chance of a client to be in a round; the expected cohort is this share of the clients.
        clip: largest norm of an update.
        averaging: decay of the average of the models.
    """

    scheme: str
    epsilon: float
    delta: float
    noise_multiplier: float | None
    rate: int
    seed: int | None
    data: str
    model: str
    clients: int
    rounds: int
    check_in_rate: float
    steps: int
    local_rate: float
    clip: float
    momentum: float
    averaging: float

    @property
    def cohort(self) -> int:
        """Expected clients of a round."""
        return whole_cohort(self.check_in_rate, self.clients)

    @property
    def server_rate(self) -> float:
        """Learning rate of a server that averages updates of at most the clip's norm."""
        return 2.0**self.rate * (1 - self.momentum) / (self.rounds * self.clip)

    def first_model(self) -> Model:
        with np.load(self.model) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def partition(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Inputs [clients, most records of one, features] and labels [clients, most records of one].

        Records are dealt at random in equal shares unless each has a client. Shorter clients are padded: labels of -1.
        """
        inputs, labels, owners = _records(Path(self.data) / "train.npz")
        if owners is None:
            share = len(labels) // self.clients
            order = np.random.default_rng(self.seed).permutation(len(labels))[: share * self.clients]
            owners, inputs, labels = np.repeat(np.arange(self.clients), share), inputs[order], labels[order]
        sizes = np.bincount(owners, minlength=self.clients)
        own = np.arange(sizes.max()) < sizes[:, None]
        padded = np.zeros((*own.shape, inputs.shape[1]), np.float32), np.full(own.shape, -1)
        for place, values in zip(padded, (inputs, labels), strict=True):
            place[own] = values[np.argsort(owners, kind="stable")]
        return padded

    def accuracy(self, model: Model) -> float:
        """On the test records."""
        inputs, labels, _ = _records(Path(self.data) / "test.npz")
        return float((scores(model, inputs, lambda hidden: np.maximum(hidden, 0)).argmax(1) == labels).mean())


def whole_cohort(check_in_rate: float, clients: int) -> int:
    """Rounded down: where all take part in turn, nobody is in more rounds than the rate says."""
    return int(round(check_in_rate * clients, 6))


def scores(model: Any, inputs: Any, relu: Callable[[Any], Any]) -> Any:
    """Of the classes, [..., records, classes], by a linear layer behind a hidden one or none, in arrays of any tool."""
    if "hidden.0.weight" in model:
        inputs = relu(inputs @ model["hidden.0.weight"].T + model["hidden.0.bias"])
    return inputs @ model["output.weight"].T + model["output.bias"]


def _records(file: Path) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64] | None]:
    with np.load(file) as arrays:
        labels: NDArray[np.int64] = arrays["y"]
        owners = arrays["owner"] if "owner" in arrays.files else None
        return arrays["x"].reshape(len(labels), -1).astype(np.float32), labels, owners


class Average:
    """Of the models after each round, as ``server.averaging`` of fedamp: it costs no privacy."""

    def __init__(self, decay: float, first: Model) -> None:
        self._decay, self._rounds, self.model = decay, 0, {name: np.array(value) for name, value in first.items()}

    def add(self, model: Model) -> None:
        self._rounds += 1
        decay = min(self._decay, self._rounds / (self._rounds + 9))
        self.model = {name: decay * value + (1 - decay) * model[name] for name, value in self.model.items()}


Training = Callable[[Callable[[Model], None]], dict[str, Any]]
"""Trains, gives each round's model to its argument, and returns what else there is to say."""


def measure(job: Job, train: Training) -> dict[str, Any]:
    """Train, and test the average of the models and the last one."""
    average, last = Average(job.averaging, job.first_model()), {}

    def round_done(model: Model) -> None:
        average.add(model)
        last.update(model)

    start = process_time()
    said = train(round_done)
    seconds = round(process_time() - start, 2)
    return {"accuracy": job.accuracy(average.model), "last": job.accuracy(last), "seconds": seconds, **said}


def serve(answer: Callable[[Job], dict[str, Any]]) -> None:
    """Answer each line of the standard input, a job as JSON, with a line; what libraries print goes to the errors."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(Job(**json.loads(line)))), file=answers, flush=True)
