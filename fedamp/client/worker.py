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
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedamp import rng
from fedamp.client.clipping import ClippedSum, TableRows, clip_and_sum
from fedamp.client.ghost_clipping import GhostClipping
from fedamp.client.proofs import StackProof
from fedamp.client.stacked_networks import layers_of
from fedamp.client.stacks import ClientStack, aligned
from fedamp.client.task import UNTRAINABLE, ClientTask, log, places_for
from fedamp.client.training import StackTrainer, arithmetic
from fedamp.data import Dataset, PaddedRecords
from fedamp.engines.wire import SIDE_SUM, RoundAnswer, RoundOrder, Rows
from fedamp.errors import DataError, fails_alone, one_line
from fedamp.federation.check_in import CANARY
from fedamp.federation.losses import Loss, loss_of
from fedamp.models.model import WHOLE
from fedamp.models.pieces import Piece

_LARGEST_LOSS = 1e100  # of a unit
_UNITS = 4096  # whose vectors are added at once
_AT_ONCE, _BEYOND = 1 << 22, 1000.0  # numbers of canaries that are clipped together; length of each in clips

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


class LocalParameters:
    """Start values of the parameters that stay with their client (``Piece.local``): here, the received ones.

    Extensions offer subclasses that keep what clients have trained, for the seam ``local_parameters``. Such parameters
    are never clipped or sent, so they cost no privacy while they stay.

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

    def keep(
        self, trained: Callable[[], dict[str, Tensor]], stack: ClientStack, counted: NDArray[np.bool_], round_: int
    ) -> None:
        """Keep the trained values after a round; here, nothing is kept.

        Args:
            trained: gives the values [slots, *shape] by name, when it is called.
            stack: of the clients.
            counted: bool [slots], which slots hold no dummies.
            round_: from 1.
        """

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
    """Trains clients of one piece of the model at one learning rate, with the fastest applicable method.

    A stack of units with one record and one step each needs no update of a unit (:mod:`fedamp.client.ghost_clipping`).
    All others train by :class:`fedamp.client.training.StackTrainer`.

    Args:
        task: of the run.
        piece: of the model.
        rate: learning rate of the round.
        loss: of the scenario.
        device: torch's name of the device.
        local: start values of the parameters that stay with their client.
        compiled: whether compiled kernels may clip.

    Attributes:
        batch: records in a gradient step; None: all of a client.
        places: gives the places for a client's records in a stack, by their number.
    """

    def __init__(
        self,
        task: ClientTask,
        piece: Piece,
        rate: float,
        loss: Loss,
        device: str,
        local: LocalParameters,
        compiled: bool,
    ) -> None:
        self.task, self.piece, self.rate, self.local, self.compiled = task, piece, rate, local, compiled
        module = piece.module.to(device)
        known = module if piece.known else None
        self._trainer = StackTrainer(piece.forward, task.client, device, loss, rate, known)
        layers = layers_of(known)
        single = piece.owns_all and GhostClipping.can_run(task, module, piece.known)
        self._ghost = GhostClipping(layers, rate, loss) if layers and single else None
        size = task.client.batch_size
        self.batch = None if size == "full" else size
        self._row_inputs = partial(piece.row_inputs, decays=bool(task.client.weight_decay))
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

    def train(
        self, start: dict[str, Tensor], stack: ClientStack, clips: Sequence[float], report: TrainReport, round_: int
    ) -> dict[str, NDArray[np.float64]]:
        """Train the clients in a stack, clip each update, and add them up.

        Args:
            start: the parameters that all start from, by name.
            stack: of the clients.
            clips: clipping norm of all parameters; or of the shared and of the split part.
            report: counts the clients, once the whole stack has trained.
            round_: from 1.

        Returns:
            Sums by name, float64 on the CPU, in the piece's shapes.
        """
        piece, cohort = self.piece, stack.cohort
        parts = piece.parts if len(clips) == 2 else (sum(piece.parts, ()),)
        counted = report.counted(stack.units, len(stack.seeds))
        if self._ghost is not None:
            clipped, tensor = self._ghost.sum(start, cohort, parts, clips, self.task.normalised, counted)
            losses, records = tensor.cpu().numpy(), cohort.sizes
        else:
            own = self.local.start(start, stack, round_)
            arguments, tables = self._row_inputs(start, cohort.inputs, stack.seeds)
            trained = self._trainer.train(start, cohort, stack.seeds, arguments, own | tables)
            losses, records, moved = trained.losses, trained.records, trained.updates
            self.local.keep(lambda: {name: each + moved[name] for name, each in own.items()}, stack, counted, round_)
            updates = piece.owned(trained.updates, stack.seeds)
            rows = {name: TableRows(arguments[0], len(start[name])) for name in tables}
            clipped = clip_and_sum(
                updates, parts, clips, self.task.linf_coordinates, self.task.normalised, counted, rows, self.compiled
            )
        sums = {name: total.cpu().numpy() for name, total in clipped.sums.items()}
        report.add(stack.units, clipped, losses, records)  # at last: a stack that is cut in two is not counted twice
        return sums


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
        with arithmetic(self.task.client.precision, self.device):
            received = {name: aligned(array).to(self.device) for name, array in order.arrays.items()}
            for trainer, units in self._by_submodel(order):
                whole, piece = order.extracted == WHOLE, trainer.piece
                start = piece.extract(received) if whole else received
                planted, units = units["id"][units["id"] >= CANARY], units[units["id"] < CANARY]
                for name, total in self._canaries(planted, piece, order.clips, report).items():
                    sums[name] += total
                waiting = self._by_places(units["id"], trainer, report)
                while waiting:
                    places, members = waiting.pop()
                    shape, slots = self._room(trainer, start, places)
                    if len(members) > slots:
                        waiting += [(places, members[first : first + slots]) for first in range(0, len(members), slots)]
                        continue
                    try:
                        stack = self._stack(trainer, start, units[members], shape, slots)
                        lost = self.dataset.lost(units["id"][members], stack.cohort.sizes[: len(members)])
                        part = trainer.train(start, stack, order.clips, report, order.round)
                        report.lose(units["id"][members[lost]], self.dataset)
                    except Exception as error:  # data and custom models may raise anything; other units do not notice
                        waiting += self._smaller(error, units["id"], shape, members, report)
                    else:
                        if whole:
                            piece.embed_add(sums, part)
                        else:
                            for name, total in sums.items():
                                total += part[name]
        report.reported.sort()  # in which order they trained tells their sizes
        report.sums, report.seconds = sums, time.monotonic() - begin
        return report

    def _by_submodel(self, order: RoundOrder) -> Iterator[tuple[_PieceTrainer, Rows]]:
        """Yield the units of each submodel, with what trains them at the learning rate of the round.

        The trainer of a submodel is kept as long as its piece and the learning rate are the same.
        """
        units, rate = order.units, self.task.client.learning_rate_in(order.round)
        for submodel in np.unique(units["submodel"]).tolist():
            piece, trainer = self._piece(submodel, order.round), self._trainers.get(submodel)
            if trainer is None or trainer.piece is not piece or trainer.rate != rate:
                trainer = _PieceTrainer(self.task, piece, rate, self._loss, self.device, self._local, self._compiled)
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

    def _stack(
        self, trainer: _PieceTrainer, start: dict[str, Tensor], units: Rows, shape: _Shape, slots: int
    ) -> ClientStack:
        """Read the records of units into the slots of a stack.

        Args:
            trainer: of the piece.
            start: the parameters of the piece, by name.
            units: rows of the units, at most ``slots``.
            shape, slots: of :meth:`_room`.

        Raises:
            _NotTogetherError: units cannot share a stack of this shape.
            DataError: their records cannot be read.
        """
        stack = ClientStack.of(units["id"], units["seed"], self._records(units["id"]), slots, shape[-1])
        if slots > 1 and (shape, slots) not in self._apart and (why := self._stacking_refusal(trainer, start, stack)):
            raise _NotTogetherError(why)
        self._apart.add((shape, slots))
        return stack

    def _smaller(
        self,
        error: Exception,
        clients: NDArray[np.int64],
        shape: _Shape,
        members: NDArray[np.int64],
        report: TrainReport,
    ) -> list[tuple[int, NDArray[np.int64]]]:
        """Cut a stack that has raised an error into smaller ones; a client that fails alone is counted as failed.

        Args:
            error: that the stack has raised.
            clients: ids of all clients.
            shape: of the stack, as :meth:`_room` names it.
            members: those in the stack, as indices of ``clients``.
            report: counts a client that fails.

        Returns:
            Numbers of places for records, and the members, of the stacks to try next.
        """
        places, slots = shape[-1], self._slots[shape]
        if isinstance(error, _NotTogetherError):
            log.warning("clients train one by one, slower than together: %s", error)
            self._slots[shape] = 1
            return [(places, members)]
        if not isinstance(error, torch.OutOfMemoryError):
            if len(members) == 1:
                report.fail(int(clients[members[0]]), one_line(error))
                return []
            return [(places, half) for half in np.array_split(members, 2)]
        if slots == 1:  # how much memory a client needs follows from its records: the others train
            why = "no memory for the training of one client; expected: fewer engine.workers, a smaller model, "
            why += "client.batch_size or client.max_records, or engine.device: cpu"
            report.fail(int(clients[members[0]]), f"{self.device} has {why}")
            return []
        self._slots[shape] = slots // 2
        log.warning(
            "%s has no memory for %d clients together, so %d train at once from here on; engine.workers may be "
            "too many, or engine.clients_per_batch",
            *(self.device, slots, slots // 2),
        )
        return [(places, members)]

    def _stacking_refusal(self, trainer: _PieceTrainer, start: dict[str, Tensor], stack: ClientStack) -> str:
        """Say why clients cannot share a stack; empty where they can.

        A SuperNode's processes remember a check that has passed (:class:`fedamp.client.proofs.StackProof`).
        That check trains from parameters of our own: from a server's, it could pass once and hold no more.
        """
        if not (trainer.piece.known and StackProof.is_for(self.task, self.device)):
            return trainer.stacking_refusal(start, stack)
        cohort, sizes = stack.cohort, {name: tuple(value.shape) for name, value in start.items()}
        records = [(each.shape, str(each.dtype)) for each in (cohort.inputs, cohort.labels)]
        proof = StackProof(self.task, (sizes, records, trainer.rate, len(stack.seeds)))
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
