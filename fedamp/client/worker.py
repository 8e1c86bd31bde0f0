"""Play a round on one node, without Flower: train the clients of an order, clip their updates, add them up.

:meth:`TrainingNode.train` is the place to begin. It cuts the clients into stacks of equal shape. A
:class:`_PieceTrainer` trains a stack; :func:`fedamp.client.clipping.clip_and_sum` clips each update and adds them up.

:mod:`fedamp.client.app` makes the node and gives it the orders. Messages, policies and hosts are known there alone.
Everything in a :class:`TrainReport` is computed from private records without noise, so it must stay on the server.
"""

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedamp import rng
from fedamp.base.arrays import Arrays
from fedamp.base.devices import is_gpu, total_memory
from fedamp.client.capture import HeldBytes, RecordedPrograms, can_record
from fedamp.client.clipping import ClippedSum, TableRows, clip_and_sum, clip_numbers, clipped_each
from fedamp.client.device_records import DeviceRecords
from fedamp.client.ghost_clipping import GhostClipping
from fedamp.client.proofs import StackProof
from fedamp.client.stacked_networks import layers_of
from fedamp.client.stacks import MILD_RATE, ClientStack, StackBatches, aligned, fetch_block, send_block
from fedamp.client.task import UNTRAINABLE, ClientTask, log, places_for
from fedamp.client.training import StackTrainer, arithmetic
from fedamp.data import Dataset, PaddedRecords
from fedamp.engines import flower
from fedamp.engines.wire import SIDE_SUM, RoundAnswer, RoundOrder, Rows
from fedamp.errors import DataError, DeploymentError, fails_alone, one_line
from fedamp.federation.check_in import CANARY
from fedamp.federation.losses import Loss, loss_of
from fedamp.models.model import WHOLE
from fedamp.models.networks import input_type
from fedamp.models.pieces import Piece

_LARGEST_LOSS = 1e100  # of a unit
_UNITS = 4096  # whose vectors are added at once
_AT_ONCE, _BEYOND = 1 << 22, 1000.0  # numbers of canaries that are clipped together; length of each in clips

_BLOCK_BYTES = 1 << 28  # of records that are copied to a GPU at once

_Shape = tuple[Any, ...]  # of a stack: the shapes of a model, and the places for the records of a client
_DRAWN = np.float32(0.1)  # standard deviation of parameters that nobody has trained


@dataclass
class TrainReport(RoundAnswer):
    """Collects the answer to an order while its units train.

    Attributes:
        dummies: ids of the units that train as the others do, and count in none of the numbers.
    """

    dummies: frozenset[int] = frozenset()

    def counted(self, clients: NDArray[np.int64], slots: int | None = None) -> NDArray[np.bool_]:
        """Say which clients count in the numbers of the answer.

        Args:
            clients: ids, int64 [clients], in the first slots of a stack.
            slots: of the stack; default: as many as there are clients.

        Returns:
            bool [slots], False for dummies and for empty slots.
        """
        kept = np.zeros(slots or len(clients), bool)
        kept[: len(clients)] = True if not self.dummies else [each not in self.dummies for each in clients.tolist()]
        return kept

    def add(
        self,
        clients: NDArray[np.int64],
        clipped: ClippedSum,
        losses: NDArray[Any] | None = None,
        records: NDArray[np.int64] | None = None,
    ) -> None:
        """Count clients that trained together, in the first slots of a stack.

        Args:
            clients: ids, int64 [clients].
            clipped: the sum of their updates, with what became of each slot's.
            losses: [slots], sum of the losses over the records of the first batch, before training.
            records: int64 [slots], the number of these records.
        """
        here = np.flatnonzero(self.counted(clients))
        fine, longer = ~clipped.failed.cpu().numpy()[here], clipped.clipped.cpu().numpy()[:, here].any(0)
        self.reported += clients[here].tolist()
        self.failed += int((~fine).sum())
        self.clipped += int(longer.sum())
        self.below_clip += int((fine & ~longer).sum())
        if losses is not None and records is not None:
            told = (np.abs(losses[here]) < _LARGEST_LOSS) & fine  # else one person could make the sum infinite
            self.loss_sum += float(np.where(told, losses[here], 0.0).sum())
            self.records += int(records[here][fine].sum())

    def lose(self, clients: NDArray[np.int64], dataset: Dataset) -> None:
        """Count clients among those added as failed, because their records cannot be trained on: they added zero.

        The node's log says what is wrong with which record; the answer says only that there is one.

        Args:
            clients: ids, int64 [clients].
            dataset: with their records.
        """
        lost = int(self.counted(clients).sum())
        self.failed += lost
        self.text = self.text or UNTRAINABLE * bool(lost)
        for client in clients.tolist():
            with fails_alone("telling which record is wrong"):
                log.warning("client %d cannot train: %s", client, dataset.why(client))

    def fail(self, client: int, why: str, there: bool = True) -> None:
        """Count a client that adds zero.

        Args:
            client: its id.
            why: goes to the log; the first one also to the answer. In a deployment the app replaces it by a fixed
                sentence.
            there: False if it lives on another node: then it has not reported.
        """
        log.warning("client %d: %s", client, why)
        if client in self.dummies:
            return
        self.reported += [client] * there
        self.failed += 1
        self.text = self.text or f"client {client}: {why}"


class _NotTogetherError(Exception):
    """Clients cannot share a stack, because the update of one would depend on the others."""


class NodeSum(ABC):
    """Compute the vectors that a node adds up for a side sum, and their sum.

    A section names its subclass (:attr:`fedamp.federation.side_sums.SideSum.node`), and :mod:`fedamp.client.app` makes
    it. Subclasses say what a unit's vector is; the clipping here is what the charge relies on.

    Args:
        task: asks for it.
        held_out: the records of each unit that never train.
        device: torch's name of the device.
    """

    @abstractmethod
    def __init__(self, task: ClientTask, held_out: Dataset, device: str = "cpu") -> None: ...

    @abstractmethod
    def vectors(self, order: RoundOrder, units: Rows, report: TrainReport) -> NDArray[np.float32]:
        """Compute the vectors of some units, float32 [units, cells]; zeros for a unit whose vector cannot be computed.

        Args:
            order: holds the model.
            units: rows of the order.
            report: of the order's training; without training, of nothing. It gets the units that failed.

        Raises:
            DeploymentError: the order is not what the task says.
        """

    def add(self, order: RoundOrder, report: TrainReport) -> None:
        """Clip the vector of each unit of an order to a norm of 1, and add their sum to the sums of a report.

        Args:
            order: with a number of cells; dummies in it count nothing.
            report: changed in place: its ``sums`` get the side sum, float64 [cells], without noise.

        Raises:
            DeploymentError: as :meth:`vectors`.
        """
        total, each = np.zeros(order.cells), order.units
        for start in range(0, len(each), _UNITS):
            units = each[start : start + _UNITS]
            counted = np.array([client not in report.dummies for client in units["id"].tolist()])
            stack = {SIDE_SUM: torch.from_numpy(self.vectors(order, units, report))}
            total += clip_and_sum(stack, [(SIDE_SUM,)], [1.0], counted=counted).sums[SIDE_SUM].numpy()
        report.sums = {**report.sums, SIDE_SUM: total}
        report.reported.sort()


@dataclass(frozen=True)
class TrainedClients:
    """Results of the clients of a stack in a round, for what each of them keeps.

    Attributes:
        stack: of the clients.
        counted: bool [slots], which slots hold no dummies.
        round: from 1.
        corrections: of their gradients, [slots, *shape] by name (:meth:`LocalParameters.corrections`).
        own: gives the values of the parameters that stay with their client, [slots, *shape] by name, when called.
        clipped: gives the clipped updates, [slots, *shape] by name, when called.
    """

    stack: ClientStack
    counted: NDArray[np.bool_]
    round: int
    corrections: Mapping[str, Tensor]
    own: Callable[[], dict[str, Tensor]]
    clipped: Callable[[], dict[str, Tensor]]


class LocalParameters:
    """Numbers that stay with their client. Here nothing is kept: all start parameters are the received ones.

    Extensions offer subclasses for the seam ``local_parameters``. They keep what clients have trained
    (``Piece.local``), or correct their gradients. What a client keeps is never sent. It follows from the client's own
    records and from what was released, and each update is clipped. So it costs no privacy while it stays.

    Args:
        task: of the run.
        piece: of the model, whose ``local`` names the parameters.

    Attributes:
        names: of the parameters.
    """

    def __init__(self, task: ClientTask, piece: Piece) -> None:
        self.names = piece.local

    def start(self, start: dict[str, Tensor], stack: ClientStack, round_: int) -> dict[str, Tensor]:
        """Return the start values of the clients in a stack, float32 [slots, *shape] by name.

        Args:
            start: the received parameters, by name.
            stack: of the clients.
            round_: from 1.
        """
        return {name: start[name].repeat(len(stack.seeds), *[1] * start[name].dim()) for name in self.names}

    def corrections(self, broadcast: Arrays, stack: ClientStack, round_: int) -> dict[str, Tensor]:
        """Return what is added to the gradients of each step, float32 [slots, *shape] by name; empty: nothing.

        Args:
            broadcast: what the server sends beside the model (:attr:`fedamp.engines.wire.RoundOrder.broadcast`).
            stack: of the clients.
            round_: from 1.

        Raises:
            DeploymentError: the server sends something, and nothing here reads it.
        """
        if broadcast:
            raise DeploymentError("the order has arrays beside the model, which this node does not read")
        return {}

    def keep(self, trained: TrainedClients) -> None:
        """Keep what clients need in their next round; here, nothing is kept."""

    @classmethod
    def kept_in(
        cls, folder: Path, shapes: Mapping[str, tuple[int, ...]], every: int
    ) -> Callable[[int, int], Mapping[str, NDArray[np.float32]] | None]:
        """Return a function that reads the values of a client, by its id, before a round; None: it has none of its own.

        Args:
            folder: of a run.
            shapes: of the parameters, by name.
            every: rounds from one checkpoint to the next.
        """
        return lambda client, round_: None


class _PieceTrainer:
    """Trains clients of one piece of the model, with the fastest applicable method.

    A stack of units with one record and one step each needs no update of a unit (:mod:`fedamp.client.ghost_clipping`).
    All others train by :class:`fedamp.client.training.StackTrainer`.

    Args:
        task: of the run.
        piece: of the model.
        loss: of the scenario.
        device: torch's name of the device.
        local: start values of the parameters that stay with their client.
        compiled: whether compiled kernels may clip.

    Attributes:
        batch: records in a gradient step; None: all of a client.
        places: gives the places for a client's records in a stack, by their number.
        programs: of stacks, on a GPU that records them.
    """

    def __init__(
        self,
        task: ClientTask,
        piece: Piece,
        loss: Loss,
        device: str,
        local: LocalParameters,
        compiled: bool,
    ) -> None:
        self.task, self.piece, self.local, self.compiled = task, piece, local, compiled
        module = piece.module.to(device)
        known = module if piece.known else None
        like = torch.zeros(1, *task.input_shape, dtype=input_type(task.model), device=device)
        self._trainer = StackTrainer.of_piece(piece, task.client, device, loss, like, known)
        layers = layers_of(known)
        single = piece.owns_all and GhostClipping.can_run(task, module, piece.known)
        self._ghost = GhostClipping(layers, MILD_RATE, loss) if layers and single else None
        size = task.client.batch_size
        self.batch = None if size == "full" else size
        # What the CPU draws or keeps for each client is no part of a recorded program.
        keeps = bool(piece.local) or task.client.is_extended
        self._is_fixed = not (keeps or piece.random) and type(piece).arguments is Piece.arguments
        self.programs = RecordedPrograms()
        self._row_inputs = partial(piece.row_inputs, decays=task.client.moves_all)
        stacked, fixed = self._trainer.stacked, self.batch if task.client.steps else None
        least, step = (stacked.least, stacked.places) if stacked else (2, None)
        least = 1 if self._ghost else least
        self.places = cache(partial(places_for, least=least, step=step, batch=fixed))  # by the records of a client

    def stacking_refusal(self, start: dict[str, Tensor], stack: ClientStack) -> str:
        """Say why clients cannot share a stack of this shape; empty where they can.

        Args:
            start: the parameters that all start from, by name.
            stack: of the shape; its records do not count.

        Raises:
            torch.OutOfMemoryError: the device has no room for the stack.
        """
        if self._ghost is not None:
            return self._ghost.stacking_refusal(start, stack.cohort)
        return self._trainer.stacking_refusal(
            start, stack.cohort, partial(self._row_inputs, start), self.task.model.vocabulary
        )

    def inputs_of(self, stack: ClientStack, counted: NDArray[np.bool_]) -> tuple[StackBatches | None, list[Tensor]]:
        """Draw what the training of a stack takes.

        Args:
            stack: of the clients.
            counted: bool [slots], which slots count in the sum.

        Returns:
            The batches, on the CPU; None where a step forms no update. And the tensors that the device needs.
        """
        if self._ghost is not None:
            return None, self._ghost.inputs_of(stack.cohort, counted)
        batches = StackBatches.drawn(self.task.client, stack.cohort, stack.seeds)
        return batches, [*batches.tensors, torch.from_numpy(counted)]

    def train(
        self, start: dict[str, Tensor], waiting: "_StackInputs", there: Sequence[Tensor], round_numbers: "_RoundNumbers"
    ) -> "_TrainedSum":
        """Train the clients in a stack, clip each update, and add them up. On a GPU nothing is read back.

        Args:
            start: the parameters that all start from, by name, on the device.
            waiting: the stack.
            there: its tensors, on the device.
            round_numbers: of the round.
        """
        piece, stack, task, clips = self.piece, waiting.stack, self.task, round_numbers.clips
        there = waiting.kept.gathered(there) if waiting.kept else there
        parts = piece.parts if len(clips) == 2 else (sum(piece.parts, ()),)
        if self._ghost is not None:
            numbers = round_numbers.numbers, round_numbers.rate
            clipped, losses = self._ghost.run(start, there, parts, clips, task.normalised, *numbers)
            return _TrainedSum(waiting, clipped, losses, stack.cohort.sizes)
        assert waiting.batches is not None
        batches, counted = waiting.batches.with_tensors(there[:-1]), there[-1]
        own = self.local.start(start, stack, round_numbers.round)
        added = self.local.corrections(round_numbers.broadcast, stack, round_numbers.round)
        added = {name: each.to(counted.device) for name, each in added.items()}
        arguments, tables = self._row_inputs(start, batches.inputs, stack.seeds)
        trained = self._trainer.run(start, batches, stack.seeds, arguments, own | tables, round_numbers.rate, added)
        moved = trained.updates
        after, updates = partial(_moved, own, moved), piece.owned(moved, stack.seeds)
        each = partial(clipped_each, updates, parts, clips, task.normalised, task.by_layer)
        self.local.keep(TrainedClients(stack, waiting.counted, round_numbers.round, added, after, each))
        rows = {name: TableRows(arguments[0], len(start[name])) for name in tables}
        options = (
            task.linf_coordinates,
            task.normalised,
            counted,
            rows,
            self.compiled,
            round_numbers.numbers,
            task.by_layer,
        )
        return _TrainedSum(waiting, clip_and_sum(updates, parts, clips, *options), trained.losses, trained.records)

    def is_recorded(self, waiting: "_StackInputs", round_numbers: "_RoundNumbers") -> bool:
        """Say whether a stack is trained by a recorded program: on a GPU that can, with nothing that changes it."""
        fixed = self._is_fixed and (waiting.slots > 1 or self._ghost is not None or self._trainer.stacked is not None)
        return round_numbers.numbers is not None and fixed and can_record(self._trainer.device)

    def train_recorded(
        self, start: dict[str, Tensor], waiting: "_StackInputs", there: Sequence[Tensor], round_numbers: "_RoundNumbers"
    ) -> "_TrainedSum":
        """Train a stack by a program that is recorded once and replayed; see :meth:`train` for the arguments."""
        assert isinstance(round_numbers.numbers, Tensor)
        assert isinstance(round_numbers.rate, Tensor)
        summed = [name for name in start if name not in self.piece.frozen]

        def program(numbers: Tensor, rate: Tensor, *tensors: Tensor) -> list[Tensor]:
            values, inputs = dict(zip(start, tensors, strict=False)), tensors[len(start) :]
            trained = self.train(values, waiting, inputs, replace(round_numbers, numbers=numbers, rate=rate))
            clipped = trained.clipped
            return [clipped.failed, clipped.clipped, trained.losses, *(clipped.sums[name] for name in summed)]

        given = [round_numbers.numbers, round_numbers.rate, *start.values(), *there]
        failed, longer, losses, *sums = self.programs.run(program, given)
        clipped = ClippedSum(dict(zip(summed, sums, strict=True)), failed, longer)
        records = waiting.stack.cohort.sizes if waiting.batches is None else waiting.batches.counts
        return _TrainedSum(waiting, clipped, losses, records)


def _moved(own: Mapping[str, Tensor], moved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return trained values: those of the start and their updates."""
    return {name: each + moved[name] for name, each in own.items()}


@dataclass
class _Submodel:
    """A submodel that units of a round train.

    Attributes:
        trainer: of the piece.
        whole: whether the order has the whole model, of which the piece is a part.
        start: the parameters that all start from, by name, on the CPU.
        there: the same on the device, once they have been sent.
        total: sums so far by name, float64, on the device.
    """

    trainer: _PieceTrainer
    whole: bool
    start: dict[str, Tensor]
    there: dict[str, Tensor] = field(default_factory=dict)
    total: dict[str, Tensor] = field(default_factory=dict)

    def add(self, sums: Mapping[str, Tensor]) -> None:
        """Add the sums of a stack. All are there before the first is added, so no error leaves half of them added."""
        for name, each in sums.items():
            if name in self.total:
                self.total[name] += each
            else:
                self.total[name] = each


@dataclass(frozen=True)
class _Members:
    """Units of a submodel that wait for their training: their rows in the order, and the places for their records."""

    submodel: _Submodel
    places: int
    units: Rows


@dataclass(frozen=True)
class _StackInputs:
    """A stack that is ready to train.

    Attributes:
        members: the units in it.
        shape: of the stack, as :meth:`TrainingNode._room` names it.
        stack: their records.
        counted: bool [slots], which slots count in the sum.
        lost: bool [units], who cannot train.
        kept: has the records on the device; None: they are in the stack.
        batches: on the CPU; None where a step forms no update.
        tensors: that the device needs, on the CPU.
    """

    members: _Members
    shape: _Shape
    stack: ClientStack
    counted: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    kept: DeviceRecords | None
    batches: StackBatches | None
    tensors: list[Tensor]

    @property
    def slots(self) -> int:
        """Slots of the stack."""
        return len(self.stack.seeds)


@dataclass(frozen=True)
class _RoundNumbers:
    """The numbers of a round: clipping norms, and learning rate.

    Attributes:
        round: from 1.
        clips: clipping norm of all parameters; or of the shared and of the split part.
        rate: learning rate; on a GPU a float64 tensor without axes, so that it may change between replays.
        numbers: result of :func:`fedamp.client.clipping.clip_numbers`, on a GPU.
        broadcast: what the server sends beside the model, by name.
    """

    round: int
    clips: Sequence[float]
    rate: float | Tensor
    numbers: Tensor | None = None
    broadcast: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class _TrainedSum:
    """The result of a stack on the device: clipped sums and flags, losses [slots]; and its numbers of records."""

    waiting: _StackInputs
    clipped: ClippedSum
    losses: Tensor
    records: NDArray[np.int64]


class TrainingNode:
    """Trains the clients of a data set (one record each where the unit is a sample) for a task, on one device.

    A node lasts over the rounds of a run. It keeps the trainers, and which stacks have been found to keep clients
    apart.

    Args:
        task: what the node is told of the run.
        dataset: the records of its clients.
        device: torch's name of the device.
        most: the most clients that can be asked of this node, where that is known; no stack has more slots.
        local: makes the start values of the parameters that stay with their client.
        compiled: whether compiled kernels may clip; they take a second to load.

    Raises:
        DataError: records of another shape than the model takes.
        ModelError: a model that cannot be built or split.
    """

    def __init__(
        self,
        task: ClientTask,
        dataset: Dataset,
        device: str = "cpu",
        most: int | None = None,
        local: Callable[[ClientTask, Piece], LocalParameters] = LocalParameters,
        compiled: bool = True,
    ) -> None:
        shape, expected = list(dataset.input_shape), list(task.input_shape)
        if shape != expected:
            raise DataError(f"inputs of the data have shape {shape}, the model takes {expected}")
        self.task, self.dataset, self.device = task, dataset, device
        submodels, self._loss = task.submodels, loss_of(task.client, task.model)
        self._piece = submodels.pieces(task.model, tuple(task.input_shape), task.num_classes, task.split_seed)
        one = submodels.a_piece(self._piece)
        self._frozen, self._local = one.frozen, local(task, one)
        self._most, self._compiled = sys.maxsize if most is None else most, compiled
        self._trainers: dict[int, _PieceTrainer] = {}
        # By the shapes of a model and places for records: how many clients train together, and where that was tried.
        self._slots: dict[_Shape, int] = {}
        self._apart: set[tuple[_Shape, int]] = set()
        self._block_bytes = _BLOCK_BYTES
        self._kept: DeviceRecords | None = None
        self._kept_of: Dataset | None = None  # whose records they are
        self._ahead: dict[tuple[bytes, int, _Shape], _StackInputs] = {}  # of the next round, by units and shape

    def train(self, order: RoundOrder) -> TrainReport:
        """Train the units of an order, clip each update, and add them up.

        A stack of units that raises, or has no room on a GPU, is cut in two, until it is clear which unit fails. So the
        records of one unit, however malformed, change that unit's summand alone.

        Args:
            order: with the global model, or the submodel ``order.extracted`` of it.

        Returns:
            The sum of the clipped, quantised updates (trained minus received), float64 in the shapes of the received
            arrays, without frozen ones; and its counts. It is not noisy, and must go to the server or the aggregator
            alone.
        """
        begin, report = time.monotonic(), TrainReport(dummies=order.dummies)
        sums = {name: np.zeros(array.shape) for name, array in order.arrays.items() if name not in self._frozen}
        source, waiting, done = self._members(order, sums, report), list[_Members](), list[_TrainedSum]()
        with arithmetic(self.task.client.precision, self.device):
            self._keep_records()
            for each, there, numbers in self._sent_stacks(order, source, waiting, report):
                submodel, trained = each.members.submodel, None
                if self._slots[each.shape] < each.slots:  # another stack of the wave has shown that fewer fit
                    waiting.append(each.members)
                else:
                    try:
                        self._check_apart(each)
                        is_recorded = submodel.trainer.is_recorded(each, numbers)
                        train = submodel.trainer.train_recorded if is_recorded else submodel.trainer.train
                        trained = train(submodel.there, each, there, numbers)
                        submodel.add(trained.clipped.sums)
                        done.append(trained)
                    except Exception as error:  # custom models may raise anything; other units do not notice
                        waiting += self._smaller(error, each.members, each.shape, each.slots, report)
                del each, there, trained  # the next stack needs their memory
                if not is_gpu(self.device):  # there a copy takes no time, and memory is for one stack
                    self._bring_home(done, sums, report)
            self._draw_ahead(order)  # a GPU still trains
            self._bring_home(done, sums, report)
        report.reported.sort()  # in which order they trained tells their sizes
        report.sums, report.seconds = sums, time.monotonic() - begin
        return report

    def bytes_of_a_stack(self, order: RoundOrder, several: bool = False) -> int:
        """Count the bytes that a model and the first stack of an order take at most; nothing is computed.

        Args:
            order: for a node whose device is torch's ``meta``.
            several: whether the sums of other stacks of the round are on the device, too.
        """
        report, held, swaps = TrainReport(), HeldBytes(), torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)  # so that a weight that two layers share stays one
        try:
            stack = self._next_wave(self._members(order, {}, report), [], report)[0]
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swaps)
        submodel = stack.members.submodel
        numbers = torch.from_numpy(clip_numbers(order.clips, self.task.linf_coordinates))
        with arithmetic(self.task.client.precision, self.device), held:
            start = {name: value.to(self.device) for name, value in submodel.start.items()}
            there = [each.to(self.device) for each in stack.tensors]
            rate = torch.zeros((), dtype=torch.float64, device=self.device)
            numbers_there = _RoundNumbers(order.round, order.clips, rate, numbers.to(self.device), order.broadcast)
            summed = [value for name, value in start.items() if several and name not in self._frozen]
            sums = [torch.empty_like(value, dtype=torch.float64) for value in summed]
            submodel.trainer.train(start, stack, there, numbers_there)
            del sums
        module = submodel.trainer.piece.module  # of whose weights some may be frozen
        return held.most + sum(each.nbytes for each in (*module.parameters(), *module.buffers()))

    def _members(
        self, order: RoundOrder, sums: dict[str, NDArray[np.float64]], report: TrainReport
    ) -> Iterator[_Members]:
        """Yield the units of an order by submodel and places for their records; canaries are added up meanwhile.

        Args:
            order: to train.
            sums: by name; changed in place.
            report: counts canaries, and clients whose records are not here.
        """
        received = {name: aligned(array) for name, array in order.arrays.items()}
        for trainer, units in self._by_submodel(order):
            whole, piece = order.extracted == WHOLE, trainer.piece
            submodel = _Submodel(trainer, whole, piece.extract(received) if whole else received)
            planted, units = units["id"][units["id"] >= CANARY], units[units["id"] < CANARY]
            for name, total in self._canaries(planted, piece, order.clips, report).items():
                sums[name] += total
            for places, some in reversed(self._by_places(units["id"], trainer, report)):
                yield _Members(submodel, places, units[some])

    def _sent_stacks(
        self, order: RoundOrder, source: Iterator[_Members], waiting: list[_Members], report: TrainReport
    ) -> Iterator[tuple[_StackInputs, list[Tensor], _RoundNumbers]]:
        """Yield the stacks of an order, one wave after another, until no units wait.

        Args:
            order: to train.
            source, waiting, report: as of :meth:`_next_wave`.

        Yields:
            A stack, its tensors on the device, and the numbers of the round.
        """
        rate = self.task.client.learning_rate_in(order.round)
        numbers = _RoundNumbers(order.round, order.clips, rate, broadcast=order.broadcast)
        while wave := self._next_wave(source, waiting, report):
            numbers, sent = self._send_wave(wave, numbers, waiting, report)
            while sent:
                yield *sent.pop(0), numbers

    def _next_wave(
        self, source: Iterator[_Members], waiting: list[_Members], report: TrainReport
    ) -> list[_StackInputs]:
        """Read the records of the next stacks: of one on a CPU, of as many as a copy to a GPU holds.

        Args:
            source: gives more units when none wait.
            waiting: units that wait; changed in place.
            report: counts units whose records cannot be read.

        Returns:
            The stacks; empty: all units have trained.
        """
        wave, size = list[_StackInputs](), 0
        while (not wave or (is_gpu(self.device) and size < self._block_bytes)) and (
            members := waiting.pop() if waiting else next(source, None)
        ):
            shape, slots = self._room(members.submodel.trainer, members.submodel.start, members.places)
            if len(members.units) > slots:
                cuts = range(0, len(members.units), slots)
                waiting += [replace(members, units=members.units[first : first + slots]) for first in cuts]
                continue
            try:
                wave.append(self._read(members, shape, slots, report))
            except Exception as error:  # data may raise anything; other units do not notice
                waiting += self._smaller(error, members, shape, slots, report)
            else:
                size += sum(each.numel() * each.element_size() for each in wave[-1].tensors)
        return wave

    def _read(self, members: _Members, shape: _Shape, slots: int, report: TrainReport) -> _StackInputs:
        """Read the records of units into the slots of a stack, and draw their batches.

        Raises:
            DataError: their records cannot be read.
        """
        ids, seeds = members.units["id"], members.units["seed"]
        drawn_ahead = self._ahead.get((members.units.tobytes(), slots, shape))
        if drawn_ahead and drawn_ahead.kept is self._kept:
            return replace(drawn_ahead, members=members)
        if self._kept is not None:
            stack = self._kept.stack(ids, seeds, slots, shape[-1])
        else:
            stack = ClientStack.of(ids, seeds, self._records(ids), slots, shape[-1])
        lost, counted = self.dataset.lost(ids, stack.cohort.sizes[: len(ids)]), report.counted(ids, slots)
        drawn = members.submodel.trainer.inputs_of(stack, counted)
        return _StackInputs(members, shape, stack, counted, lost, self._kept, *drawn)

    def _draw_ahead(self, order: RoundOrder) -> None:
        """Draw the stacks of the next round from what the server tells of it, if their records stay on the GPU.

        They are the same as if they were drawn later: all draws follow from the seeds of the units.
        """
        self._ahead.clear()
        units = order.following[order.following["id"] < CANARY]
        if self._kept is None or not len(units) or order.extracted != WHOLE:
            return
        following, report = replace(order, round=order.round + 1, rows=units), TrainReport()
        with fails_alone("drawing the next round"):
            for each in self._next_wave(self._members(following, {}, report), [], report):
                self._ahead[each.members.units.tobytes(), each.slots, each.shape] = each

    def _keep_records(self) -> None:
        """Copy all records to a GPU, if they fit and this process lasts; once for each data set."""
        if self._kept_of is self.dataset or not is_gpu(self.device) or flower.in_supernode():
            return
        self._kept_of, self._kept = self.dataset, None
        self._forget_programs()  # they gather from the records of before
        try:
            self._kept = DeviceRecords(self.dataset, self._records, self.device, total_memory(self.device))
        except Exception as error:  # data may raise anything; each client's records are read where it trains
            log.info("records are copied to %s in every round: %s", self.device, one_line(error))

    def _forget_programs(self) -> None:
        """Free the memory of all recorded programs."""
        for trainer in self._trainers.values():
            trainer.programs.forget()

    def _send_wave(
        self,
        wave: list[_StackInputs],
        round_numbers: _RoundNumbers,
        waiting: list[_Members],
        report: TrainReport,
    ) -> tuple[_RoundNumbers, list[tuple[_StackInputs, list[Tensor]]]]:
        """Send stacks to the device in one block.

        Args:
            wave: the stacks.
            round_numbers: of the round.
            waiting: gets the units of stacks that have no room, in smaller ones; changed in place.
            report: counts clients that fail.

        Returns:
            The numbers of the round, on the device; and the stacks that have room, each with its tensors there.
        """
        new = list({id(each.members.submodel): each.members.submodel for each in wave}.values())
        new = [submodel for submodel in new if not submodel.there]
        first = is_gpu(self.device) and round_numbers.numbers is None
        block = [aligned(clip_numbers(round_numbers.clips, self.task.linf_coordinates))] if first else []
        block += [torch.tensor(round_numbers.rate, dtype=torch.float64)] if first else []
        block += [tensor for submodel in new for tensor in submodel.start.values()]
        try:
            sent = iter(send_block([*block, *(tensor for each in wave for tensor in each.tensors)], self.device))
        except torch.OutOfMemoryError as error:
            if len(wave) == 1:
                waiting += self._smaller(error, wave[0].members, wave[0].shape, wave[0].slots, report)
            else:
                self._block_bytes //= 2
                waiting += [each.members for each in wave]
            return round_numbers, []
        if first:
            round_numbers = replace(round_numbers, numbers=next(sent), rate=next(sent))
        for submodel in new:
            submodel.there = {name: next(sent) for name in submodel.start}
        return round_numbers, [(each, [next(sent) for _ in each.tensors]) for each in wave]

    def _check_apart(self, waiting: _StackInputs) -> None:
        """Check once for each kind of stack that its units keep apart.

        Raises:
            _NotTogetherError: units cannot share a stack of this shape.
        """
        kind, submodel = (waiting.shape, waiting.slots), waiting.members.submodel
        known = waiting.slots == 1 or kind in self._apart
        like = waiting.kept.like(waiting.stack) if waiting.kept else waiting.stack
        if not known and (why := self._stacking_refusal(submodel.trainer, submodel.there, like)):
            raise _NotTogetherError(why)
        self._apart.add(kind)

    def _bring_home(self, done: list[_TrainedSum], sums: dict[str, NDArray[np.float64]], report: TrainReport) -> None:
        """Copy the results of stacks from the device as one block, and count their clients.

        Args:
            done: the stacks; empty afterwards.
            sums: by name; changed in place.
            report: counts the clients.
        """
        submodels = list({id(each.waiting.members.submodel): each.waiting.members.submodel for each in done}.values())
        told = [tensor for each in done for tensor in (each.clipped.failed, each.clipped.clipped, each.losses)]
        home = iter(fetch_block([*told, *(total for each in submodels for total in each.total.values())]))
        for each in done:
            clients, (failed, clipped, losses) = each.waiting.stack.units, (next(home) for _ in range(3))
            flags = ClippedSum({}, torch.from_numpy(failed > 0), torch.from_numpy(clipped > 0))
            report.add(clients, flags, losses, each.records)
            report.lose(clients[each.waiting.lost], self.dataset)
        for submodel in submodels:
            part = {name: next(home) for name in submodel.total}
            submodel.total.clear()
            if submodel.whole:
                submodel.trainer.piece.embed_add(sums, part)
            else:
                for name, total in sums.items():
                    total += part[name]
        done.clear()

    def _by_submodel(self, order: RoundOrder) -> Iterator[tuple[_PieceTrainer, Rows]]:
        """Yield the units of each submodel, with what trains them; that is kept as long as the piece is the same."""
        units = order.units
        for submodel in np.unique(units["submodel"]).tolist():
            piece, trainer = self._piece(submodel, order.round), self._trainers.get(submodel)
            if trainer is None or trainer.piece is not piece:
                trainer = _PieceTrainer(self.task, piece, self._loss, self.device, self._local, self._compiled)
                self._trainers[submodel] = trainer
            yield trainer, units[units["submodel"] == submodel]

    def _canaries(
        self, ids: NDArray[np.int64], piece: Piece, clips: Sequence[float], report: TrainReport
    ) -> dict[str, NDArray[np.float64]]:
        """Add up the updates of canaries (``privacy.canaries``), which train on nothing.

        The update of a canary is a public vector of random signs, far beyond the clip, so that it is clipped.

        Args:
            ids: of the canaries, int64.
            piece: of the model; its shapes are those of the sum.
            clips: clipping norm of all parameters.
            report: counts them.
        """
        shapes = {name: piece.module.get_parameter(name).shape for name in sorted(sum(piece.parts, ()))}
        ends, sums = np.cumsum([shape.numel() for shape in shapes.values()]), dict[str, NDArray[np.float64]]()
        for some in np.array_split(ids, -(-len(ids) * ends[-1] // _AT_ONCE)) if len(ids) else ():
            signs = rng.public_signs(self.task.data_seed, "canary", some.tolist(), int(ends[-1]))
            signs *= np.float32(_BEYOND * clips[0] / math.sqrt(ends[-1]))
            updates = {
                name: torch.from_numpy(np.ascontiguousarray(each).reshape(len(some), *shapes[name])).to(self.device)
                for name, each in zip(shapes, np.split(signs, ends[:-1], axis=1), strict=True)
            }
            clipped = clip_and_sum(updates, [tuple(shapes)], clips, self.task.linf_coordinates, self.task.normalised)
            for name, total in clipped.sums.items():
                sums[name] = sums.get(name, np.float64(0)) + total.cpu().numpy()
            report.add(some, clipped)
        return sums

    def _room(self, trainer: _PieceTrainer, start: dict[str, Tensor], places: int) -> tuple[_Shape, int]:
        """Name a kind of stack, and count its slots.

        Args:
            trainer: of the piece.
            start: the parameters of the piece, by name.
            places: for the records of a client.

        Returns:
            The shapes of the model with the places for records, which name the kind; and the most clients that train
            together in such a stack. It follows from the task, until a GPU has no room for so many.
        """
        shape = (*((name, *value.shape) for name, value in start.items()), places)
        if shape not in self._slots:
            most = 1 if trainer.piece.random else self._most  # a random model draws from the client's own stream
            self._slots[shape] = self.task.stack.slots(places, most, trainer.batch)
        return shape, self._slots[shape]

    def _smaller(
        self, error: Exception, members: _Members, shape: _Shape, slots: int, report: TrainReport
    ) -> list[_Members]:
        """Cut a stack that has raised an error into smaller ones; a client that fails alone is counted as failed.

        Args:
            error: that the stack has raised.
            members: those in the stack.
            shape, slots: of the stack, as :meth:`_room` names them.
            report: counts a client that fails.

        Returns:
            The members of the stacks to try next.
        """
        clients = members.units["id"]
        if isinstance(error, _NotTogetherError):
            log.warning("clients train one by one, slower than together: %s", error)
            self._slots[shape] = 1
            return [members]
        if not isinstance(error, torch.OutOfMemoryError):
            if len(clients) == 1:
                report.fail(int(clients[0]), one_line(error))
                return []
            return [replace(members, units=half) for half in np.array_split(members.units, 2)]
        self._forget_programs()  # of larger stacks, which keep their memory
        if self._kept is not None:  # the records take memory, too: they are copied in every round from here on
            self._kept = None
            return [members]
        if slots == 1:  # how much memory a client needs follows from its records: the others train
            why = "no memory for the training of one client; expected: fewer engine.workers, a smaller model, "
            why += "client.batch_size or client.max_records, or engine.device: cpu"
            report.fail(int(clients[0]), f"{self.device} has {why}")
            return []
        self._slots[shape] = slots // 2
        log.warning(
            "%s has no memory for %d clients together, so %d train at once from here on; engine.workers may be "
            "too many, or engine.clients_per_batch",
            *(self.device, slots, slots // 2),
        )
        return [members]

    def _stacking_refusal(self, trainer: _PieceTrainer, start: dict[str, Tensor], stack: ClientStack) -> str:
        """Say why clients cannot share a stack; empty where they can.

        A SuperNode's processes remember a check that has passed (:class:`fedamp.client.proofs.StackProof`).
        That check trains from parameters of our own: from a server's, it could pass once and hold no more.
        """
        if not (trainer.piece.known and StackProof.is_for(self.task, self.device)):
            return trainer.stacking_refusal(start, stack)
        cohort, sizes = stack.cohort, {name: tuple(value.shape) for name, value in start.items()}
        records = [(each.shape, str(each.dtype)) for each in (cohort.inputs, cohort.labels)]
        proof = StackProof(self.task, (sizes, records, len(stack.seeds)))
        if proof.holds:
            return ""
        generator = rng.public_stream(0, "parameters of a proof")
        drawn = {name: _DRAWN * generator.standard_normal(shape, np.float32) for name, shape in sizes.items()}
        if trainer.stacking_refusal({name: aligned(value) for name, value in drawn.items()}, stack):
            return trainer.stacking_refusal(start, stack)
        proof.keep()
        return ""

    def _by_places(
        self, clients: NDArray[np.int64], trainer: _PieceTrainer, report: TrainReport
    ) -> list[tuple[int, NDArray[np.int64]]]:
        """Group clients by the places for their records in a stack.

        Args:
            clients: ids, int64 [clients]; one whose records are not here is counted as failed.

        Returns:
            Numbers of places, and the clients of each, as indices of ``clients``.
        """

        def size(client: int) -> int:
            try:
                return int(self.dataset.sizes(np.array([client]))[0])
            except DataError as error:  # its records are not here
                report.fail(client, one_line(error), there=False)
                return -1

        try:
            sizes = self.dataset.sizes(clients)
        except DataError:
            sizes = np.array([size(client) for client in clients.tolist()])
        found, which = np.unique(sizes, return_inverse=True)
        places = np.array([trainer.places(size) if size >= 0 else 0 for size in found.tolist()], np.int64)[which]
        return [(int(each), np.flatnonzero(places == each)) for each in np.unique(places) if each]

    def _records(self, clients: NDArray[np.int64]) -> PaddedRecords:
        """Read the records of clients.

        Raises:
            DataError: they cannot be read, or have labels for which the model has no output.
        """
        cohort = self.dataset.gather(clients)
        labels, outputs = self._loss.labels, self.task.num_classes
        if cohort.labels.size and not labels.fit(cohort.labels, outputs):
            raise DataError(f"labels must be {labels.expected}, for {outputs} outputs; got others")
        return cohort
