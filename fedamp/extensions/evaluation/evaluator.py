"""Compute the vectors that a node's units contribute to an evaluation, from their held-out records.

:mod:`fedamp.client.app` makes the :class:`Evaluator` that a task asks for. The core clips each vector and adds them up
(:class:`fedamp.client.worker.NodeSum`); the noise comes at the server, or from nodes under secure aggregation.
:mod:`~fedamp.extensions.evaluation.section` says what the numbers of a vector mean. The server's evaluation on a public
test set is :mod:`fedamp.server.evaluate`.
"""

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
    """Score models on the held-out records of each unit.

    A unit whose records, model or loss raises an error contributes zeros, and the others do not notice.

    Args:
        task: with the section ``evaluation``.
        held_out: the records of each unit that never train (:meth:`fedamp.data.Dataset.held_out`).
        device: torch's name of the device on which the model computes.

    Raises:
        DataError: the section groups by a column that these data do not have.
        ModelError: the model cannot be built.
    """

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
        """Evaluate the order's model on the held-out records of units.

        Args:
            order: its arrays are the model, float32 by name.
            units: rows of the order, with the seed from which a unit's evaluation draws, if the model draws numbers.
            report: gets the units that answer, and those that failed, where the order only evaluates.

        Returns:
            float32 [units, cells], each row of Euclidean norm at most 1. Zeros for a unit that failed or has no
            held-out record.

        Raises:
            DeploymentError: the order has other cells or other parameters than the task's.
        """
        names = {name for name, _ in self._module.named_parameters()}
        if order.cells != self._asked.number_of_cells or set(order.arrays) != names:
            raise DeploymentError("the order's evaluation does not match the task")
        with arithmetic(self._task.client.precision, self._device), torch.no_grad():
            values = {name: aligned(array).to(self._device) for name, array in order.arrays.items()}
            each = [self._of_unit(values, int(unit["id"]), unit["seed"], order, report) for unit in units]
        return np.array(each, np.float32).reshape(len(units), order.cells)

    def _of_unit(
        self, values: Mapping[str, Tensor], client: int, seed: np.void, order: RoundOrder, report: TrainReport
    ) -> NDArray[np.float64]:
        """Compute the contribution of one unit, [cells]: its scores in the slot of its group, zeros elsewhere."""
        vector = np.zeros((len(self._asked.group_slots), order.cells // len(self._asked.group_slots)))
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
        """Compute the blocks of all metrics from a unit's records, one after the other, in the section's order.

        Each block is a distribution over its cells, times the section's weight. An output that is not finite counts as
        wrong, and as the largest loss.

        Args:
            values: the model's parameters, on the device.
            inputs: [records, *shape], one record or more.
            labels: of these records.
        """
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
                each_loss = (
                    loss.each(loss.exact_outputs(outputs), targets.clone()).double().nan_to_num(math.inf, math.inf)
                )
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
        return np.asarray(np.concatenate(blocks) * asked.block_weight)
