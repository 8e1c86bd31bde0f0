"""A round on one node, without Flower: train the clients asked for, clip their updates, add them up."""

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedamp import rng
from fedamp.client import perceptron
from fedamp.client.channels import ChannelsOfClients
from fedamp.client.clipping import ClippedSum, clip_and_sum
from fedamp.client.memory import places_for
from fedamp.client.records import RecordSteps
from fedamp.client.stacks import Stack, aligned
from fedamp.client.task import ClientTask
from fedamp.client.training import Trained, Trainer, arithmetic
from fedamp.data import Cohort, Dataset
from fedamp.errors import DataError, InputError, one_line
from fedamp.federation.losses import loss_of
from fedamp.models.pieces import WHOLE, Piece

log = logging.getLogger("fedamp.client")

Arrays = Mapping[str, NDArray[np.float32]]
_Shape = tuple[Any, ...]


@dataclass(frozen=True)
class TrainInstruction:
    """What a node is asked to do in a round.

    Attributes:
        round: number of the round.
        clients: ids of the clients.
        seeds: secret seed of each, 32 bytes.
        submodels: submodel of each; -1 for the whole model.
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
    clips: list[float]
    extracted: int = WHOLE

    def __post_init__(self) -> None:
        if not len(self.clients) == len(self.seeds) == len(self.submodels):
            raise ValueError(
                f"clients, seeds and submodels must agree, got {len(self.clients)}, {len(self.seeds)} and "
                f"{len(self.submodels)}"
            )
        if any(len(seed) != rng.SEED_BYTES for seed in self.seeds):
            raise ValueError(f"seeds must have {rng.SEED_BYTES} bytes, got {sorted(set(map(len, self.seeds)))}")
        if len(self.clips) not in (1, 2):
            raise ValueError(f"clips must be [all] or [shared, split], got {len(self.clips)} numbers")
        if self.extracted != WHOLE and set(self.submodels) - {self.extracted}:
            raise ValueError(f"submodels must all be {self.extracted}, the one that was sent, got {self.submodels}")

    def by_submodel(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.void]]]:
        """The clients that train each submodel, and their seeds."""
        clients, submodels = np.array(self.clients, dtype=np.int64), np.array(self.submodels, dtype=np.int64)
        seeds = np.array(self.seeds, dtype=f"V{rng.SEED_BYTES}")
        for submodel in np.unique(submodels):
            yield int(submodel), clients[submodels == submodel], seeds[submodels == submodel]


@dataclass
class TrainReport:
    """What a node answers besides the sum. Computed from private data without noise: it must stay on the server.

    Attributes:
        reported: clients that are in the sum, those that failed among them: whether a client fails follows from its
            data, and must not decide whether a round has its quorum.
        failed: clients whose records could not be read or trained, or whose update was not finite; they add zero.
        clipped: clients whose update was clipped in some part.
        below_clip: clients whose update was within the clip in every part.
        loss_sum: loss of the received model, summed over the first batch of every client that did not fail.
        records: number of those records.
        seconds: time it took.
        error: what the first unit failed with whose records could not be read or trained; empty where all could be.
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
        """Count clients that trained together, in the first slots of a stack."""
        here = slice(len(clients))
        fine = ~clipped.failed.cpu().numpy()[here]
        self.reported += clients.tolist()
        self.failed += int((~fine).sum())
        self.clipped += int(clipped.clipped[:, here].any(0).sum())
        self.below_clip += int(clipped.below_clip[here].sum())
        losses = trained.losses[here]
        self.loss_sum += float(np.where(np.isfinite(losses) & fine, losses, 0.0).sum())
        self.records += int(trained.records[here][fine].sum())

    def fail(self, client: int, why: str, there: bool = True) -> None:
        """Count a client that adds zero, and keep the first reason; one that lives elsewhere is not ``there``."""
        log.warning("client %d: %s", client, why)
        self.reported += [client] * there
        self.failed += 1
        self.error = self.error or f"client {client}: {why}"


class _Kept(NamedTuple):
    """A piece of the model with what trains it: ``steps`` where single steps are all, which is faster."""

    piece: Piece
    rate: float
    trainer: Trainer
    steps: RecordSteps | None

    def places(self, records: int) -> int:
        """For the records of a client. Products of single rows often round by their place in memory."""
        together = self.trainer.together
        channels = together if isinstance(together, ChannelsOfClients) else None
        least = 1 if self.steps or (channels and channels.takes_single_records) else 2
        return places_for(records, least, fine=channels is not None)


class TrainingNode:
    """Trains the clients of a data set for a task, on one device.

    Args:
        task: what to train, and how.
        dataset: the clients' records (one record each where the unit is a sample).
        device: torch's name of the device.
        most: how many clients can be asked of this node at most, where that is known; no stack has more slots.

    Raises:
        DataError: records of another shape, or with more labels, than the model takes.
        ModelError: a model that cannot be built or split.
    """

    def __init__(self, task: ClientTask, dataset: Dataset, device: str = "cpu", most: int | None = None) -> None:
        if tuple(dataset.input_shape) != tuple(task.input_shape):
            raise DataError(
                f"inputs of the data have shape {list(dataset.input_shape)}, the model takes {list(task.input_shape)}"
            )
        self.task, self.dataset, self.device = task, dataset, device
        submodels = task.submodels
        self._client, self._loss = task.client, loss_of(task.client, task.model)
        self._piece = submodels.pieces(task.model, tuple(task.input_shape), task.num_classes, task.split_seed)
        self._frozen = submodels.a_piece(self._piece).frozen
        self._most = sys.maxsize if most is None else most
        self._trainers: dict[int, _Kept] = {}
        # By the shapes of a model and places for records: how many clients train together, and where that was tried.
        self._slots: dict[_Shape, int] = {}
        self._apart: set[tuple[_Shape, int]] = set()

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
            received = {name: aligned(array).to(self.device) for name, array in arrays.items()}
            for submodel, clients, seeds in instruction.by_submodel():
                kept = self._trainer(submodel, instruction.round)
                start = kept.piece.extract(received) if instruction.extracted == WHOLE else received
                for part in self._sums(kept, start, clients, seeds, instruction, report):
                    if instruction.extracted == WHOLE:
                        kept.piece.embed_add(sums, part)
                    else:
                        for name, total in sums.items():
                            total += part[name]
        report.reported.sort()  # in which order they trained tells their sizes
        report.seconds = time.monotonic() - begin
        return sums, report

    def _sums(
        self,
        kept: _Kept,
        start: dict[str, Tensor],
        clients: NDArray[np.int64],
        seeds: NDArray[np.void],
        instruction: TrainInstruction,
        report: TrainReport,
    ) -> Iterator[dict[str, NDArray[np.float64]]]:
        """Sums of the clipped updates of clients that train the same piece, in its shape.

        Stacks that raise are cut in two, as are those that a GPU has no room for, until it is told which client fails.
        """
        waiting = self._by_places(clients, kept, report)
        while waiting:
            places, members = waiting.pop()
            shape = (*((name, *value.shape) for name, value in start.items()), places)
            most = 1 if kept.piece.random else self._most  # what a model draws is from the client's own stream
            slots = self._slots.setdefault(shape, self.task.stack.slots(places, most))
            if len(members) > slots:
                waiting += [(places, members[first : first + slots]) for first in range(0, len(members), slots)]
                continue
            try:
                stack = Stack.of(clients[members], seeds[members], self._records(clients[members]), slots, places)
                if slots > 1 and (shape, slots) not in self._apart and (why := self._why_alone(kept, start, stack)):
                    log.warning("clients train one by one, slower than together: %s", why)
                    self._slots[shape] = 1
                    waiting.append((places, members))
                    continue
                self._apart.add((shape, slots))
                sums = self._train_stack(kept, start, stack, instruction, report)
            except torch.OutOfMemoryError as error:
                if slots == 1:
                    raise InputError(
                        f"{self.device} has no memory for the training of one client; expected: fewer engine.workers, "
                        "a smaller model or client.batch_size, or engine.device: cpu"
                    ) from error
                self._slots[shape] = slots // 2
                waiting.append((places, members))
                log.warning(
                    "%s has no memory for %d clients together, so %d train at once from here on; engine.workers may be "
                    "too many, or engine.clients_per_batch",
                    *(self.device, slots, slots // 2),
                )
            except Exception as error:  # whatever data and a model of somebody's own do; the others are not to notice
                if len(members) == 1:
                    report.fail(int(clients[members[0]]), one_line(error))
                waiting += [(places, half) for half in np.array_split(members, 2) if len(members) > 1]
            else:
                yield sums

    def _by_places(
        self, clients: NDArray[np.int64], kept: _Kept, report: TrainReport
    ) -> list[tuple[int, NDArray[np.int64]]]:
        """Which of the clients, as indices, train in stacks of how many places for records."""
        try:
            sizes = self.dataset.sizes(clients)
        except DataError:
            sizes = np.array([self._size(client, report) for client in clients])
        places = np.array([kept.places(size) if size >= 0 else 0 for size in sizes.tolist()], np.int64)
        return [(int(each), np.flatnonzero(places == each)) for each in np.unique(places) if each]

    def _size(self, client: np.int64, report: TrainReport) -> int:
        """How many records a client has; -1 for one that fails because they are not here."""
        try:
            return int(self.dataset.sizes(np.array([client]))[0])
        except DataError as error:
            report.fail(int(client), one_line(error), there=False)
            return -1

    def _why_alone(self, kept: _Kept, start: dict[str, Tensor], stack: Stack) -> str:
        """Why clients cannot share a stack of this shape; empty where they can."""
        if kept.steps is not None:
            return kept.steps.why_alone(start, stack.cohort)
        return kept.trainer.why_alone(start, stack.cohort, kept.piece.arguments, self.task.model.vocabulary)

    def _train_stack(
        self, kept: _Kept, start: dict[str, Tensor], stack: Stack, instruction: TrainInstruction, report: TrainReport
    ) -> dict[str, NDArray[np.float64]]:
        """The sum of the clipped updates of some clients that train the same piece, in its shape."""
        piece, cohort = kept.piece, stack.cohort
        parts = piece.parts if len(instruction.clips) == 2 else (sum(piece.parts, ()),)
        if kept.steps is not None:
            clipped, losses = kept.steps.sum(start, cohort, parts, instruction.clips, self.task.normalised)
            trained = Trained({}, losses.cpu().numpy(), cohort.sizes)
        else:
            trained = kept.trainer.train(start, cohort, stack.seeds, piece.arguments(stack.seeds))
            updates = piece.owned(trained.updates, stack.seeds)
            clipped = clip_and_sum(updates, parts, instruction.clips, self.task.linf_coordinates, self.task.normalised)
        sums = {name: total.cpu().numpy() for name, total in clipped.sums.items()}
        report.add(stack.units, trained, clipped)  # at last: a stack that is cut in two is not counted twice
        return sums

    def _trainer(self, submodel: int, round_: int) -> _Kept:
        piece = self._piece(submodel, round_)
        kept = self._trainers.get(submodel)
        rate = self._client.learning_rate_in(round_)
        if kept is None or kept.piece is not piece or kept.rate != rate:
            module = piece.module.to(self.device)
            layers = perceptron.layers_of(module) if piece.known else None
            together = perceptron.LayersOfClients(layers) if layers else ChannelsOfClients.of(module, piece.known)
            precision = self.task.precision
            trainer = Trainer(piece.forward, self._client, self.device, precision, layers, together, self._loss, rate)
            single = piece.owns_all and RecordSteps.can_run(self.task, module, piece.known)
            kept = _Kept(piece, rate, trainer, RecordSteps(module, rate, self._loss) if single else None)
            self._trainers[submodel] = kept
        return kept

    def _records(self, clients: NDArray[np.int64]) -> Cohort:
        cohort = self.dataset.gather(clients)
        if cohort.labels.size and not self._loss.labels.fit(cohort.labels, self.task.num_classes):
            raise DataError(
                f"labels must be {self._loss.labels.expected}, for {self.task.num_classes} outputs; got others"
            )
        return cohort
