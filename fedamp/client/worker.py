"""A round on one node, without Flower: train the clients asked for, clip their updates, add them up."""

import logging
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedamp import rng
from fedamp.client import perceptron
from fedamp.client.channels import ChannelsOfClients
from fedamp.client.clipping import ClippedSum, clip_and_sum
from fedamp.client.records import RecordSteps
from fedamp.client.task import ClientTask
from fedamp.client.training import Trained, Trainer, arithmetic
from fedamp.data import Cohort, Dataset
from fedamp.errors import DataError, InputError
from fedamp.losses import loss_of
from fedamp.models.pieces import WHOLE, Piece
from fedamp.submodels import submodels_of

log = logging.getLogger("fedamp.client")

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class TrainInstruction:
    """What a node is asked to do in a round.

    Attributes:
        round: number of the round.
        clients: ids of the clients.
        seeds: secret seed of each, 32 bytes.
        submodels: submodel of each; -1 for the whole model.
        batches: sizes of the consecutive batches in which they train stacked together.
        clips: clipping norm of the whole update (or of all that is trained, where nothing is shared); or of its shared
            and its split part.
        extracted: the submodel that the arrays are; -1 for the whole model.

    Raises:
        ValueError: lengths that do not match.
    """

    round: int
    clients: list[int]
    seeds: list[bytes]
    submodels: list[int]
    batches: list[int]
    clips: list[float]
    extracted: int = WHOLE

    def __post_init__(self) -> None:
        if not len(self.clients) == len(self.seeds) == len(self.submodels) == sum(self.batches):
            raise ValueError(
                f"clients, seeds, submodels and batches must agree, got {len(self.clients)}, {len(self.seeds)}, "
                f"{len(self.submodels)} and a sum of {sum(self.batches)}"
            )
        if any(len(seed) != rng.SEED_BYTES for seed in self.seeds):
            raise ValueError(f"seeds must have {rng.SEED_BYTES} bytes, got {sorted(set(map(len, self.seeds)))}")
        if len(self.clips) not in (1, 2):
            raise ValueError(f"clips must be [all] or [shared, split], got {len(self.clips)} numbers")
        if self.extracted != WHOLE and set(self.submodels) - {self.extracted}:
            raise ValueError(f"submodels must all be {self.extracted}, the one that was sent, got {self.submodels}")

    def stacks(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.void]]]:
        """Who trains stacked together: the clients of a batch that have the same submodel, and their seeds."""
        clients, submodels = np.array(self.clients, dtype=np.int64), np.array(self.submodels, dtype=np.int64)
        seeds, ends = np.array(self.seeds, dtype=f"V{rng.SEED_BYTES}"), np.cumsum(self.batches)
        for first, last in zip(ends - self.batches, ends, strict=True):
            batch = np.arange(first, last)
            for submodel in np.unique(submodels[batch]):
                stack = batch[submodels[batch] == submodel]
                yield int(submodel), clients[stack], seeds[stack]


@dataclass
class TrainReport:
    """What a node answers besides the sum. Computed from private data without noise: it must stay on the server.

    Attributes:
        reported: clients whose updates are in the sum.
        failed: clients whose update was not finite, or whose records could not be read; they add zero.
        clipped: clients whose update was clipped in some part.
        below_clip: clients whose update was within the clip in every part.
        loss_sum: loss of the received model, summed over the first batch of every client that did not fail.
        records: number of those records.
        seconds: time it took.
        error: what the first unit whose records could not be read failed with; empty where all could be.
    """

    reported: list[int] = field(default_factory=list)
    failed: int = 0
    clipped: int = 0
    below_clip: int = 0
    loss_sum: float = 0.0
    records: int = 0
    seconds: float = 0.0
    error: str = ""

    def add(self, clients: NDArray[np.int64], trained: Trained, clipped: ClippedSum) -> None:
        """Count clients that trained together."""
        fine = ~clipped.failed.cpu().numpy()
        self.reported += clients.tolist()
        self.failed += int((~fine).sum())
        self.clipped += int(clipped.clipped.any(0).sum())
        self.below_clip += int(clipped.below_clip.sum())
        self.loss_sum += float(np.where(np.isfinite(trained.losses) & fine, trained.losses, 0.0).sum())
        self.records += int(trained.records[fine].sum())


class _Kept(NamedTuple):
    """A piece of the model with what trains it: ``steps`` where single steps are all, which is faster."""

    piece: Piece
    rate: float
    trainer: Trainer
    steps: RecordSteps | None


class _Stack(NamedTuple):
    """Clients that train the same piece together, with their seeds and records."""

    clients: NDArray[np.int64]
    seeds: NDArray[np.void]
    cohort: Cohort

    def cut(self, size: int) -> list["_Stack"]:
        """Stacks of at most so many clients."""
        cohort, count = self.cohort, len(self.clients)
        parts = [slice(first, first + size) for first in range(0, max(count, 1), size)]
        each = [Cohort(cohort.inputs[part], cohort.labels[part], cohort.sizes[part]) for part in parts]
        return [_Stack(self.clients[part], self.seeds[part], own) for part, own in zip(parts, each, strict=True)]


class TrainingNode:
    """Trains the clients of a data set for a task, on one device.

    Args:
        task: what to train, and how.
        dataset: the clients' records (one record each where the unit is a sample).
        device: torch's name of the device.

    Raises:
        DataError: records of another shape, or with more labels, than the model takes.
        ModelError: a model that cannot be built or split.
    """

    def __init__(self, task: ClientTask, dataset: Dataset, device: str = "cpu") -> None:
        if tuple(dataset.input_shape) != tuple(task.input_shape):
            raise DataError(
                f"inputs of the data have shape {list(dataset.input_shape)}, the model takes {list(task.input_shape)}"
            )
        self.task, self.dataset, self.device = task, dataset, device
        submodels = submodels_of(task.submodels)
        self._client, self._loss = task.client, loss_of(task.client, task.model)
        self._piece = submodels.pieces(task.model, tuple(task.input_shape), task.num_classes, task.split_seed)
        self._frozen = submodels.a_piece(self._piece).frozen
        self._trainers: dict[int, _Kept] = {}
        self._at_once = sys.maxsize  # clients that the device has room for, as far as is known

    def train(
        self, arrays: Arrays, instruction: TrainInstruction
    ) -> tuple[dict[str, NDArray[np.float64]], TrainReport]:
        """One round.

        Args:
            arrays: the global model (or the submodel ``instruction.extracted`` of it).
            instruction: who trains, and how the updates are clipped.

        Returns:
            The sum of the clipped, quantised updates (trained minus received) in the shape of ``arrays``, without those
            that are frozen, and a report.
        """
        begin = time.monotonic()
        report = TrainReport()
        sums = {name: np.zeros(array.shape) for name, array in arrays.items() if name not in self._frozen}
        with arithmetic(self.task.precision, self.device):
            received = _tensors(arrays, self.device)
            for submodel, clients, seeds in instruction.stacks():
                kept = self._trainer(submodel, instruction.round)
                start = kept.piece.extract(received) if instruction.extracted == WHOLE else received
                stack = self._gather(clients, seeds, report)
                for part in self._within_memory(kept, start, stack, instruction, report):
                    if instruction.extracted == WHOLE:
                        kept.piece.embed_add(sums, part)
                    else:
                        for name, total in sums.items():
                            total += part[name]
        report.seconds = time.monotonic() - begin
        return sums, report

    def _within_memory(
        self, kept: _Kept, start: dict[str, Tensor], stack: _Stack, instruction: TrainInstruction, report: TrainReport
    ) -> Iterator[dict[str, NDArray[np.float64]]]:
        """Sums that together are those of :meth:`_train_stack`: a stack that a GPU has no room for is cut in two."""
        waiting = stack.cut(self._at_once)
        while waiting:
            stack = waiting.pop()
            try:
                yield self._train_stack(kept, start, stack, instruction, report)
            except torch.OutOfMemoryError as error:
                count = len(stack.clients)
                if count == 1:
                    raise InputError(
                        f"{self.device} has no memory for the training of one client; accepted: fewer engine.workers, "
                        "a smaller model or client.batch_size, or engine.device: cpu"
                    ) from error
                self._at_once = min(self._at_once, count // 2)
                waiting += stack.cut(self._at_once)
                log.warning(
                    "%s has no memory for %d clients together, so %d train at once from here on; engine.workers may be "
                    "too many, or engine.clients_per_batch",
                    *(self.device, count, self._at_once),
                )

    def _train_stack(
        self, kept: _Kept, start: dict[str, Tensor], stack: _Stack, instruction: TrainInstruction, report: TrainReport
    ) -> dict[str, NDArray[np.float64]]:
        """The sum of the clipped updates of some clients that train the same piece, in its shape."""
        (piece, _, trainer, steps), (clients, seeds, cohort) = kept, stack
        parts = piece.parts if len(instruction.clips) == 2 else (sum(piece.parts, ()),)
        if steps is not None:
            inputs, labels = (torch.from_numpy(each[:, 0]).to(self.device) for each in (cohort.inputs, cohort.labels))
            clipped, losses = steps.sum(start, inputs, labels, parts, instruction.clips, self.task.normalised)
            trained = Trained({}, losses.cpu().numpy(), cohort.sizes)
        else:
            stacked = {name: value.expand(len(clients), *value.shape) for name, value in start.items()}
            trained = trainer.train(stacked, cohort, seeds, piece.arguments(seeds))
            updates = piece.owned(trained.updates, seeds)
            clipped = clip_and_sum(updates, parts, instruction.clips, self.task.linf_coordinates, self.task.normalised)
        sums = {name: total.cpu().numpy() for name, total in clipped.sums.items()}
        report.add(clients, trained, clipped)  # at last: a stack that is cut in two is not counted twice
        return sums

    def _trainer(self, submodel: int, round_: int) -> _Kept:
        piece = self._piece(submodel, round_)
        kept = self._trainers.get(submodel)
        rate = self._client.learning_rate_in(round_)
        if kept is None or kept.piece is not piece or kept.rate != rate:
            module = piece.module.to(self.device)
            layers = perceptron.layers_of(module) if piece.known else None
            together = ChannelsOfClients(module) if piece.known and ChannelsOfClients.can_run(module) else None
            precision = self.task.precision
            trainer = Trainer(piece.forward, self._client, self.device, precision, layers, together, self._loss, rate)
            trainer.stacks = not piece.random
            single = piece.owns_all and RecordSteps.can_run(self.task, module, piece.known)
            kept = _Kept(piece, rate, trainer, RecordSteps(module, rate, self._loss) if single else None)
            self._trainers[submodel] = kept
        return kept

    def _gather(self, clients: NDArray[np.int64], seeds: NDArray[np.void], report: TrainReport) -> _Stack:
        """The records of those clients whose records can be read; the others fail."""
        try:
            return _Stack(clients, seeds, self._records(clients))
        except DataError as error:
            readable = np.array([self._is_readable(client) for client in clients], dtype=bool)
            if readable.all():
                raise
            log.warning("%d of %d clients failed: %s", (~readable).sum(), len(clients), error)
            report.failed += int((~readable).sum())
            report.error = report.error or str(error)
            return _Stack(clients[readable], seeds[readable], self._records(clients[readable]))

    def _is_readable(self, client: np.int64) -> bool:
        try:
            self._records(np.array([client]))
        except DataError:
            return False
        return True

    def _records(self, clients: NDArray[np.int64]) -> Cohort:
        cohort = self.dataset.gather(clients)
        if cohort.labels.size and not self._loss.labels.fit(cohort.labels, self.task.num_classes):
            raise DataError(
                f"labels must be {self._loss.labels.accepted}, for {self.task.num_classes} outputs; got others"
            )
        return cohort


def _tensors(arrays: Arrays, device: str) -> dict[str, Tensor]:
    """The arrays on the device. They may be read-only, and nothing here writes to them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
