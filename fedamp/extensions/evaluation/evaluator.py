"""Sums of a node beside updates: scores on its units' held-out records."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from fedamp import rng
from fedamp.base.devices import is_gpu
from fedamp.client.stacks import aligned
from fedamp.client.task import ClientTask
from fedamp.client.training import arithmetic
from fedamp.client.worker import NodeSum, TrainReport
from fedamp.data import Dataset
from fedamp.engines.wire import RoundOrder, Rows
from fedamp.errors import DeploymentError, one_line
from fedamp.extensions.evaluation.section import ClientEvaluation
from fedamp.federation.losses import loss_of
from fedamp.models.custom import generators_from
from fedamp.models.networks import Network, build

_RECORDS = 1024  # of a forward pass


class Evaluator(NodeSum):
    """Scores models on the records that are held out of each unit's."""

    def __init__(self, task: ClientTask, held_out: Dataset, device: str = "cpu") -> None:
        told: Any = task  # with the keys of this extension
        self._asked: ClientEvaluation = told.evaluation
        self._task, self._held_out, self._device = task, held_out, device
        self._loss = loss_of(task.client, task.model)
        self._module = build(task.model, task.input_shape, task.num_classes).to(device).eval()
        # Code of other people gets copies, as in :func:`fedamp.server.evaluate.evaluate`.
        self._is_known = isinstance(self._module, Network) and self._loss.is_known
        units, by = np.arange(held_out.num_clients), self._asked.by
        self._here = None if held_out.hosted is None else set(held_out.hosted.tolist())
        self._slots = self._asked.slot_of(units)
        if isinstance(by, str):
            self._slots = held_out.groups(by, self._asked.groups, "evaluation.by")

    def vectors(self, order: RoundOrder, units: Rows, report: TrainReport) -> NDArray[np.float32]:
        """Evaluate the order's model on the held-out records of units; a unit that fails contributes zeros."""
        names = {name for name, _ in self._module.named_parameters()}
        if order.cells != self._asked.cells or set(order.arrays) != names:
            raise DeploymentError("the order evaluates otherwise than the task says")
        with arithmetic(self._task.client.precision, self._device), torch.no_grad():
            values = {name: aligned(array).to(self._device) for name, array in order.arrays.items()}
            each = [self._of_unit(values, int(unit["id"]), unit["seed"], order, report) for unit in units]
        return np.array(each, np.float32).reshape(len(units), order.cells)

    def _of_unit(
        self, values: Mapping[str, Tensor], client: int, seed: np.void, order: RoundOrder, report: TrainReport
    ) -> NDArray[np.float64]:
        """The contribution of a unit, [cells]; zeros where it has no records that can be read."""
        vector = np.zeros((len(self._asked.slots), order.cells // len(self._asked.slots)))
        here = self._here is None or client in self._here
        if here and not (order.trains or client in report.dummies):
            report.reported.append(client)
        try:
            cohort = self._held_out.gather(np.array([client]))
            if size := int(cohort.sizes[0]):
                inputs, labels = cohort.inputs[0, :size], cohort.labels[0, :size]
                word = int(rng.client_words(np.array([seed]), "what the evaluated model draws", 1)[0, 0]) >> 1
                with nullcontext() if self._is_known else generators_from(word, is_gpu(self._device)):
                    vector[self._slots[client]] = self._scored(values, inputs, labels)
        except Exception as error:  # data, models and losses may raise anything; the other units do not notice
            vector[:] = 0
            if not order.trains:  # else its training has failed, too
                report.fail(client, one_line(error), there=False)
        return vector.ravel()

    def _scored(self, values: Mapping[str, Tensor], inputs: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.float64]:
        """The blocks of the metrics, of a unit's records, one after the other."""
        asked, loss, records = self._asked, self._loss, len(labels)
        tally, losses, bins = dict[str, Any](), 0.0, np.zeros((asked.bins, 2))
        for start in range(0, records, _RECORDS):
            given, targets = (
                torch.tensor(each[start : start + _RECORDS], device=self._device) for each in (inputs, labels)
            )
            own = dict(values) if self._is_known else {name: value.clone() for name, value in values.items()}
            outputs = functional_call(self._module, own, (given,))
            if "score" in asked.metrics:
                found = loss.tally(outputs.clone(), targets.clone())
                tally = {name: tally[name] + value if name in tally else value for name, value in found.items()}
            if "loss" in asked.metrics:
                each_loss = loss.each(loss.exact(outputs), targets.clone()).double().nan_to_num(math.inf, math.inf)
                losses += float(each_loss.clamp(0.0, asked.loss_at_most).sum())
            if "calibration" in asked.metrics:
                confidence, answer = outputs.double().softmax(1).max(1)
                places = (confidence.nan_to_num(0.0) * asked.bins).long().clamp(0, asked.bins - 1)
                np.add.at(bins, (places.cpu().numpy(), (answer != targets).long().cpu().numpy()), 1.0)
        blocks = []
        for metric in asked.metrics:
            if metric == "calibration":
                blocks.append(bins.ravel() / records)
                continue
            if metric == "score":
                part = next(iter(loss.metrics(tally).values()))
            else:
                part = losses / records / asked.loss_at_most
            part = min(max(part, 0.0), 1.0) if math.isfinite(part) else float(metric == "loss")
            blocks.append(np.array([part, 1 - part]))
        return np.asarray(np.concatenate(blocks) * asked.weight)
