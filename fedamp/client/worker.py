"""A round on one node, without Flower: train the clients asked for, clip their updates, add them up."""

import logging
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedamp import rng, scenario
from fedamp.client.clipping import clip_and_sum
from fedamp.client.folded import FoldedModule
from fedamp.client.precision import arithmetic
from fedamp.client.task import ClientTask
from fedamp.client.training import Trainer
from fedamp.data import Cohort, Dataset
from fedamp.errors import DataError
from fedamp.models import catalogue
from fedamp.models.masks import Masks
from fedamp.models.registry import build
from fedamp.models.splits import Split, split

log = logging.getLogger("fedamp.client")

Arrays = Mapping[str, NDArray[np.float32]]
WHOLE = -1


@dataclass(frozen=True)
class Order:
    """What a node is asked to do in a round.

    Attributes:
        round: number of the round.
        clients: ids of the clients.
        seeds: 63-bit seed of each.
        submodels: submodel of each; -1 for the whole model.
        batches: sizes of the consecutive batches in which they train stacked together.
        clips: clipping norm of the whole update; or of its shared and its split part.
        extracted: the submodel that the arrays are; -1 for the whole model.

    Raises:
        ValueError: lengths that do not match.
    """

    round: int
    clients: list[int]
    seeds: list[int]
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
        if len(self.clips) not in (1, 2):
            raise ValueError(f"clips must be [all] or [shared, split], got {len(self.clips)} numbers")
        if self.extracted != WHOLE and set(self.submodels) - {self.extracted}:
            raise ValueError(f"submodels must all be {self.extracted}, the one that was sent, got {self.submodels}")


@dataclass
class Report:
    """What a node answers besides the sum. Computed from private data without noise: it must stay on the server.

    Attributes:
        reported: clients whose updates are in the sum.
        failed: clients whose update was not finite, or whose records could not be read; they add zero.
        clipped: clients whose update was clipped in some part.
        below_clip: clients whose update was within the clip in every part.
        loss_sum: cross-entropy of the received model, summed over the first batch of every client that did not fail.
        records: number of those records.
        seconds: time it took.
    """

    reported: list[int] = field(default_factory=list)
    failed: int = 0
    clipped: int = 0
    below_clip: int = 0
    loss_sum: float = 0.0
    records: int = 0
    seconds: float = 0.0


class Worker:
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
        self._model, self._client, self._submodels = task.model, task.client, task.submodels
        self._stages: dict[int, _Stage] = {}
        self._split: tuple[int, Split] | None = None

    def train(self, arrays: Arrays, order: Order) -> tuple[dict[str, NDArray[np.float64]], Report]:
        """One round.

        Args:
            arrays: the global model (or the submodel ``order.extracted`` of it).
            order: who trains, and how the updates are clipped.

        Returns:
            The sum of the clipped, quantised updates (trained minus received) in the shape of ``arrays``, and a report.
        """
        begin = time.monotonic()
        report = Report()
        sums = {name: np.zeros(array.shape) for name, array in arrays.items()}
        with arithmetic(self.task.precision, self.device):
            received = _tensors(arrays, self.device)
            starts: dict[int, dict[str, Tensor]] = {}
            for submodel, clients, seeds in _pieces(order):
                stage = self._stage(submodel, order.round)
                if submodel not in starts:
                    cut = stage.split is not None and order.extracted == WHOLE
                    starts[submodel] = stage.split.extract(received, submodel) if cut else received  # type: ignore[union-attr]
                part = self._train_batch(stage, starts[submodel], clients, seeds, order, report)
                if stage.split is not None and order.extracted == WHOLE:
                    stage.split.embed_add(sums, part, submodel)
                else:
                    for name, total in sums.items():
                        total += part[name]
        report.seconds = time.monotonic() - begin
        return sums, report

    def _train_batch(
        self,
        stage: "_Stage",
        start: dict[str, Tensor],
        clients: NDArray[np.int64],
        seeds: NDArray[np.uint64],
        order: Order,
        report: Report,
    ) -> dict[str, NDArray[np.float64]]:
        clients, seeds, cohort = self._gather(clients, seeds, report)
        stacked = {name: value.expand(len(clients), *value.shape) for name, value in start.items()}
        trained = stage.trainer.train(stacked, cohort, seeds, stage.arguments(seeds, self.device))
        parts = stage.parts if len(order.clips) == 2 else (tuple(start),)
        result = clip_and_sum(trained.updates, parts, order.clips, self.task.linf_coordinates)
        fine = ~result.failed.cpu().numpy()
        report.reported += clients.tolist()
        report.failed += int((~fine).sum())
        report.clipped += int(result.clipped.any(0).sum())
        report.below_clip += int(result.below_clip.sum())
        report.loss_sum += float(np.where(np.isfinite(trained.losses) & fine, trained.losses, 0.0).sum())
        report.records += int(trained.records[fine].sum())
        return {name: total.cpu().numpy() for name, total in result.sums.items()}

    def _gather(
        self, clients: NDArray[np.int64], seeds: NDArray[np.uint64], report: Report
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64], Cohort]:
        """The records of those clients whose records can be read; the others fail."""
        try:
            cohort = self.dataset.gather(clients)
            self._check_labels(cohort)
        except DataError as error:
            readable = np.array([self._is_readable(client) for client in clients], dtype=bool)
            if readable.all():
                raise
            log.warning("%d of %d clients failed: %s", (~readable).sum(), len(clients), error)
            report.failed += int((~readable).sum())
            clients, seeds = clients[readable], seeds[readable]
            cohort = self.dataset.gather(clients)
        return clients, seeds, cohort

    def _is_readable(self, client: np.int64) -> bool:
        try:
            self._check_labels(self.dataset.gather(np.array([client])))
        except DataError:
            return False
        return True

    def _check_labels(self, cohort: Cohort) -> None:
        if cohort.labels.size and not 0 <= cohort.labels.min() <= cohort.labels.max() < self.task.num_classes:
            raise DataError(f"labels must be from 0 to {self.task.num_classes - 1}, got others")

    def _stage(self, submodel: int, round_: int) -> "_Stage":
        submodels = self._submodels
        if not isinstance(submodels, scenario.DisjointSubmodels) or submodel == WHOLE:
            if WHOLE not in self._stages:
                module = build(self._model, self.task.input_shape, self.task.num_classes)
                masked = isinstance(submodels, scenario.DropoutSubmodels)
                masks = Masks(module, submodels.layers) if masked else None  # type: ignore[union-attr]
                self._stages[WHOLE] = self._make_stage(module, masks=masks)
            return self._stages[WHOLE]
        index = round_ if submodels.partition == "fresh" else 0
        if self._split is None or self._split[0] != index:
            where = (self.task.input_shape, self.task.num_classes, submodels.count, submodels.shared)
            self._split = index, split(self._model, *where, self.task.split_seed, index)
            self._stages = {}
        if submodel not in self._stages:
            cut = self._split[1]
            self._stages[submodel] = self._make_stage(cut.module(submodel), cut=cut)
        return self._stages[submodel]

    def _make_stage(self, module: nn.Module, masks: Masks | None = None, cut: Split | None = None) -> "_Stage":
        module.to(self.device)

        def forward(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
            return functional_call(module, parameters, (inputs,))

        # Nothing in a model of ours looks across records; a person's own may.
        own = catalogue.is_import_path(self._model.name)
        folded = FoldedModule(module) if masks is None and not own and FoldedModule.can_run(module) else None
        trainer = Trainer(masks.call if masks else forward, self._client, self.device, self.task.precision, folded)
        shared = masks.shared if masks else cut.shared if cut else frozenset()
        names = [name for name, _ in module.named_parameters()]
        parts = tuple(name for name in names if name in shared), tuple(name for name in names if name not in shared)
        return _Stage(trainer, parts, cut, masks, getattr(self._submodels, "keep", 1.0))


@dataclass(frozen=True)
class _Stage:
    """A model that some clients train together: the whole one, or a submodel."""

    trainer: Trainer
    parts: tuple[tuple[str, ...], tuple[str, ...]]
    split: Split | None
    masks: Masks | None
    keep: float

    def arguments(self, seeds: NDArray[np.uint64], device: str) -> list[Tensor]:
        """A dropout mask for each client, from its own seed."""
        if self.masks is None:
            return []
        kept = rng.uniforms(seeds, "dropout mask", self.masks.nodes) < self.keep
        return [torch.from_numpy(kept.astype(np.float32)).to(device)]


def _pieces(order: Order) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.uint64]]]:
    """The units of stacking: the clients of a batch that train the same submodel."""
    clients, submodels = np.array(order.clients, dtype=np.int64), np.array(order.submodels, dtype=np.int64)
    seeds = np.array(order.seeds, dtype=np.uint64)
    ends = np.cumsum(order.batches)
    for first, last in zip(ends - order.batches, ends, strict=True):
        batch = np.arange(first, last)
        for submodel in np.unique(submodels[batch]):
            piece = batch[submodels[batch] == submodel]
            yield int(submodel), clients[piece], seeds[piece]


def _tensors(arrays: Arrays, device: str) -> dict[str, Tensor]:
    """The arrays on the device. They may be read-only, and nothing here writes to them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
