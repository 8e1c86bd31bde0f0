"""Canaries: a client's real records and real training, present or absent, among units that send nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedamp import data
from fedamp.client.task import TrainInstruction
from fedamp.client.worker import TrainingNode
from fedamp.engines import flower
from fedamp.engines.engines import CLIENT_APP
from fedamp.engines.faults import only
from fedamp.engines.serial import SerialGrid
from fedamp.errors import DataError, FederationError
from fedamp.federation.losses import form_of
from fedamp.federation.submodels import Part
from fedamp.server.setup import Prepared

Vector = NDArray[np.float64]

# Clients looked at to find one that has records.
_TRIED = 1000

# Masks that stand for all of them (dropout): the adversary averages over these.
_MASKS = 64


class CanaryGrid(SerialGrid):
    """The serial engine, on which all units but the canaries answer with an update of zero.

    All canaries hold the same records, those of one client of the data set: people who are protected together may be
    alike. An absent canary never answers; a present one that fails to is an error.

    Args:
        client: the client of the data set whose records every canary holds.
        canaries: how many there are; their ids are 0, 1, ...

    Attributes:
        present: whether the canaries are there.
    """

    def __init__(self, client: int, canaries: int) -> None:
        super().__init__(CLIENT_APP, "cpu")
        self.present = True
        self._client, self._canaries = client, canaries

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
    ) -> list[Message]:
        asked = list(messages)
        if not asked or asked[0].metadata.message_type != "train":
            return super().send_and_receive(asked, timeout=timeout)
        trained, reported = [], []
        for message in asked:
            units = np.array(message.content["config"]["clients"], dtype=np.int64)
            trains = (units < self._canaries) & self.present
            trained.append(self._as_canaries(only(message, trains)))
            reported.append(units[trains | (units >= self._canaries)].tolist())
        replies = super().send_and_receive(trained, timeout=timeout)
        for reply, units_ in zip(replies, reported, strict=True):
            failed = reply.error.reason if reply.has_error() else dict(reply.content.get("errors") or {}).get("first")
            if failed:  # it would count as zero, and the audit would praise what it never tried
                raise FederationError(f"audit: the canary could not be trained: {failed!s}")
            reply.content["metrics"]["reported"] = units_
        return replies

    def _as_canaries(self, message: Message) -> Message:
        """The message, for units that all have the canary's records."""
        config = dict(message.content["config"])
        config["clients"] = [self._client] * len(config["clients"])  # type: ignore[arg-type]
        content = RecordDict({**message.content, "config": ConfigRecord(config)})  # type: ignore[arg-type]
        return flower.with_content(message, content)


@dataclass(frozen=True)
class Updates:
    """What a canary may send in a round: its clipped update for every hidden submodel, or for some masks.

    Attributes:
        whitened: [choices, coordinates], each coordinate over the variance of what hides it.
        energies: [choices], half the squared length of each update in standard deviations of the noise.
        strength: length of the updates, over the clipping norm, of the part where that is smallest on average; 1 where
            the canary is as loud as a unit can be.
    """

    whitened: Vector
    energies: Vector
    strength: float

    def log_ratios(self, released: Vector) -> Vector:
        """Log-likelihood ratio of a noisy sum with each of the updates in it against none; shape [choices].

        Args:
            released: the noisy sum, by coordinate.
        """
        return self.whitened @ released - self.energies


class Canary:
    """A client of the data, with what the adversary knows about it: all but its hidden choices.

    Args:
        prepared: the federation that is played.

    Attributes:
        client: the first client that has records.

    Raises:
        DataError: no client has any.
    """

    def __init__(self, prepared: Prepared) -> None:
        task = prepared.task
        form = form_of(task.client, task.model)
        dataset = data.load(prepared.plan.scenario.data, task.data_seed, Path(), form)
        units = dataset.by_record() if task.unit == "sample" else dataset
        filled = np.flatnonzero(units.sizes(np.arange(min(_TRIED, units.num_clients))))
        if not len(filled):
            raise DataError(f"data: none of the first {_TRIED} clients has records, so none can be a canary")
        self.client = int(filled[0])
        self._prepared = prepared
        self._node = TrainingNode(task, units)

    def updates(self, round_: int) -> Updates:
        """What the canary may send in a round, computed by the client's own code."""
        parts, choices = self._prepared.plan.parts, self._prepared.plan.submodels.choices(_MASKS)
        sent = np.stack([self._update(round_, seed, submodel) for seed, submodel in choices])
        part_of = self.by_coordinate([float(index) for index in range(len(parts))])
        lengths = [np.linalg.norm(sent[:, part_of == index], axis=1) / part.clip for index, part in enumerate(parts)]
        for index, length in enumerate(lengths):  # the adversary takes it that they are clipped as they should be
            sent[:, part_of == index] /= np.maximum(length, 1.0)[:, None]
        whitened = sent / self.by_coordinate([self._variance(part, round_) for part in parts])
        energies = (whitened * sent).sum(1) / 2
        return Updates(whitened, energies, float(min(np.mean(length) for length in lengths)))

    def by_coordinate(self, by_part: list[float]) -> Vector:
        """A number for every part of the model, as one for every coordinate."""
        model = self._prepared.pipeline.model
        return np.concatenate(
            [np.full(int(np.prod(shape)), by_part[model.part_of[name]]) for name, shape in model.shapes.items()]
        )

    def _variance(self, part: Part, round_: int) -> float:
        """Of what hides the canary, on every coordinate of the sum: noise, and the least that mixing adds to it."""
        plan = self._prepared.plan
        step = plan.optimizer.learning_rate / part.denominator
        return part.noise_deviation**2 + plan.mixing.variance(round_) / step**2

    def _update(self, round_: int, seed: bytes, submodel: int) -> Vector:
        clips = [part.clip for part in self._prepared.plan.parts]
        instruction = TrainInstruction(round_, [self.client], [seed], [submodel], clips)
        sums, _ = self._node.train(self._prepared.state.parameters, instruction)
        return flat(sums)


def flat(arrays: Mapping[str, NDArray[Any]]) -> Vector:
    """A model's arrays as one vector."""
    return np.concatenate([array.ravel() for array in arrays.values()], dtype=np.float64)
