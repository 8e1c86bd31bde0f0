"""Take one gradient step of each record, clip it, and add it up without forming a record's gradient.

The gradient of a linear layer for one record is a product of two vectors, the gradient of its output and its input
(Goodfellow 2015). So its norm is the product of theirs, and the sum of all clipped gradients is one matrix product.
Both vectors are truncated towards zero to whole multiples of powers of two whose product is the clip's quantum
(:mod:`fedamp.client.clipping`). No number grows by that, so a record adds at most the clip. And the sum is exact: the
matrix product is one of whole numbers, each term counts quanta, and float64 adds them without rounding.

:mod:`fedamp.client.worker` uses it where the unit is a record, training is one plain step, and the model is a built-in
network of linear layers. All other tasks form each update (:mod:`fedamp.client.training`).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedamp.base.devices import is_gpu
from fedamp.client.clipping import ClippedSum, clip_factors, clip_numbers
from fedamp.client.stacked_networks import layers_of
from fedamp.client.stacks import MILD_RATE, aligned, send_block, stacking_refusal
from fedamp.client.task import ClientTask
from fedamp.client.training import is_plain
from fedamp.data import PaddedRecords
from fedamp.federation.losses import LOSSES, CrossEntropy, Loss

# A norm at the clip is 2**31 quanta. An input has some hundred times the numbers of an output, so it gets more bits.
_INPUT_BITS, _ALL_BITS = 18, 31

_BLOCK, _GPU_BLOCK = 1 << 16, 1 << 24  # float64 numbers at once: they stay in a CPU's cache; a GPU wants few launches


class GhostClipping:
    """Sums the clipped single steps of many records from one model (ghost clipping: Li et al. 2022).

    Args:
        layers: names of the linear layers, from the first on, with a ReLU between them. They must be all of the model.
        rate: learning rate of the step.
        loss: built in, because a custom loss may mix records; default: cross-entropy.
    """

    @staticmethod
    def can_run(task: ClientTask, module: nn.Module, known: bool) -> bool:
        """Say whether a task consists of single plain steps, on a built-in network of linear layers alone.

        Args:
            task: of the run.
            module: the network.
            known: whether the network is built in; the code of others may treat records together.
        """
        plain = not task.linf_coordinates and not task.by_layer and is_plain(task.client, steps=1)
        # A custom loss may mix the records it is given, which are different clients' here.
        by_record = task.client.loss in LOSSES and LOSSES[task.client.loss].output_axes == 2
        return task.unit == "sample" and plain and by_record and known and layers_of(module) is not None

    def __init__(self, layers: Sequence[str], rate: float, loss: Loss | None = None) -> None:
        self._layers, self._rate, self._loss = layers, rate, loss or CrossEntropy()

    def sum(
        self,
        start: Mapping[str, Tensor],
        cohort: PaddedRecords,
        parts: Sequence[Sequence[str]],
        clips: Sequence[float],
        normalised: bool = False,
        counted: NDArray[np.bool_] | None = None,
    ) -> tuple[ClippedSum, Tensor]:
        """Return the sum of the clipped updates of records that are on the CPU, as :meth:`run` does on the device.

        Args:
            start: the model, by parameter name.
            cohort: of one record each [slots, 1, ...], or none in an empty slot.
            parts, clips, normalised, counted: as for :func:`fedamp.client.clipping.clip_and_sum`.
        """
        device = str(next(iter(start.values())).device)
        inputs = send_block(self.inputs_of(cohort, counted), device)
        return self.run(start, inputs, parts, clips, normalised)

    @staticmethod
    def inputs_of(cohort: PaddedRecords, counted: NDArray[np.bool_] | None = None) -> list[Tensor]:
        """Return what a step takes: inputs, labels, and which slots add nothing (bool [slots]); on the CPU."""
        silent = (cohort.sizes == 0) | (False if counted is None else ~counted)
        return [aligned(cohort.inputs[:, 0]), aligned(cohort.labels[:, 0]), torch.from_numpy(silent)]

    @torch.no_grad()
    def run(
        self,
        start: Mapping[str, Tensor],
        inputs: Sequence[Tensor],
        parts: Sequence[Sequence[str]],
        clips: Sequence[float],
        normalised: bool = False,
        numbers: Tensor | None = None,
        rate: float | Tensor | None = None,
    ) -> tuple[ClippedSum, Tensor]:
        """Return the sum of the clipped updates, and each record's loss before its step.

        The rounding of a record may depend on the number of slots, empty ones included. That number is public.

        Args:
            start: the model, by parameter name.
            inputs: of :meth:`inputs_of`, on the device.
            parts, clips, normalised, numbers: as for :func:`fedamp.client.clipping.clip_and_sum`.
            rate: learning rate of the step, also as a float64 tensor without axes; default: that of the constructor.

        Returns:
            The result of ``clip_and_sum`` for the updates, up to the rounding of single numbers by 2**-13 of a layer's
            largest; and the losses, float64 [slots].
        """
        values, labels, silent = inputs
        known = torch.from_numpy(clip_numbers(clips)).to(values.device) if numbers is None else numbers
        limits, units, _ = known
        limits = limits[:, None]
        losses, updates = self._backward(start, values, labels, self._rate if rate is None else rate)
        squares = updates.square_norms
        norms = torch.stack([reduce(torch.add, [squares[name] for name in part]) for part in parts]).sqrt()
        failed, scales = clip_factors(norms, limits, normalised)
        adds_nothing, sums = (failed | silent)[:, None], dict[str, Tensor]()
        for part, scale, unit in zip(parts, scales, units, strict=True):
            sums |= updates.sums(part, scale, adds_nothing, unit)
        return ClippedSum({name: sums[name] for name in start}, failed, ~failed & (norms > limits)), losses

    def stacking_refusal(self, start: Mapping[str, Tensor], like: PaddedRecords) -> str:
        """Say why records cannot share such slots; empty where they can.

        Args:
            start: the model, by parameter name.
            like: records in the shape and type of the slots; their values do not count.
        """
        mild = GhostClipping(self._layers, MILD_RATE, self._loss)

        def train(cohort: PaddedRecords, seeds: NDArray[np.void], kept: NDArray[np.int64]) -> dict[str, Tensor]:
            alone = PaddedRecords(cohort.inputs, cohort.labels, np.isin(np.arange(len(seeds)), kept).astype(np.int64))
            return mild.sum(start, alone, (tuple(start),), (1.0,))[0].sums

        return stacking_refusal(train, like, sum(value.numel() for value in start.values()))

    def _backward(
        self, start: Mapping[str, Tensor], inputs: Tensor, labels: Tensor, rate: float | Tensor
    ) -> tuple[Tensor, "_Updates"]:
        """Compute each record's loss, float64 [records], and its update as factors."""
        values, entered, left = inputs.flatten(1), list[Tensor](), list[Tensor]()
        with torch.enable_grad():
            for name in self._layers:
                values = values.relu() if left else values
                entered.append(values)
                values = nn.functional.linear(values, start[f"{name}.weight"], start[f"{name}.bias"])
                left.append(values.requires_grad_())
            losses = self._loss.each(values, labels)
        down = torch.autograd.grad(losses, left, torch.full_like(losses, -1.0))
        return losses.detach().double(), _Updates(self._layers, down, entered, rate)


class _Updates:
    """Holds the updates of all records as factors, and never multiplies them for a single record.

    The update of a layer's weight is ``back`` [records, out] times ``entered`` [records, in]; that of its bias is
    ``back`` alone. What all layers share is one operation for all of them, because a GPU's time goes into launches.

    Args:
        layers: their names.
        down: the negative gradients of their outputs, [records, out] each.
        entered: their inputs, [records, in] each.
        rate: learning rate.

    Attributes:
        square_norms: float64 [records] by parameter name, the squared norm of each record's update.
    """

    def __init__(
        self, layers: Sequence[str], down: Sequence[Tensor], entered: Sequence[Tensor], rate: float | Tensor
    ) -> None:
        self._layers, self._entered = layers, entered
        self._widths = [each.shape[1] for each in down]
        self._back = torch.cat(list(down), 1).double() * rate
        self._lengths = _row_norms(entered)
        biases = [each.sum(1) for each in torch.split(self._back.square(), self._widths, 1)]
        weights = torch.stack(biases) * self._lengths.square()
        self.square_norms: dict[str, Tensor] = {}
        for name, weight, bias in zip(layers, weights, biases, strict=True):
            self.square_norms |= {f"{name}.weight": weight, f"{name}.bias": bias}

    def sums(self, part: Sequence[str], scales: Tensor, adds_nothing: Tensor, quantum: Tensor) -> dict[str, Tensor]:
        """Add up the scaled updates of some parameters, each in whole quanta.

        Args:
            part: names of the parameters.
            scales: float64 [records], of each record's update.
            adds_nothing: bool [records, 1], which records do not count, whatever their numbers are.
            quantum: a power of two, float64 without axes.

        Returns:
            float64 by name.
        """
        scaled = (self._back * scales[:, None]).masked_fill_(adds_nothing, 0.0)
        backs, lengths = torch.split(scaled, self._widths, 1), self._lengths.masked_fill(adds_nothing.T, 1.0)
        # How many quanta long the product is, in bits; the input gets its share of them. By powers of two alone: a
        # logarithm may be rounded by a number's place among the others.
        _, size = torch.frexp(lengths)
        _, bits = torch.frexp(_row_norms(backs) * lengths / quantum)
        units = _power_below(size - bits.clamp(0, _ALL_BITS) * _INPUT_BITS // _ALL_BITS)[..., None]
        biases = torch.split(_whole(scaled, quantum).sum(0), self._widths)
        quanta = {f"{name}.bias": bias for name, bias in zip(self._layers, biases, strict=True)}
        of_layers = zip(self._layers, backs, self._entered, quantum / units, units, strict=True)
        for name, back, entered, of_back, of_entered in of_layers:
            if f"{name}.weight" not in part:
                continue
            total = quanta[f"{name}.weight"] = back.new_zeros(back.shape[1], entered.shape[1])
            for block in _record_blocks(entered):
                values = _whole(entered[block], of_entered[block]).masked_fill_(adds_nothing[block], 0.0)
                total.addmm_(_whole(back[block], of_back[block]).T, values)
        return dict(zip(part, torch._foreach_mul([quanta[name] for name in part], quantum), strict=True))


def _power_below(exponents: Tensor) -> Tensor:
    """Compute 2 ** (exponents - 1) exactly, as float64 numbers from their bits. Exponents are in -1021 ... 1024.

    Of the exponent that torch.frexp gives for a number, it is the largest power of two that is not above the number.
    """
    return ((exponents.long() + 1022) << 52).view(torch.float64)


def _whole(values: Tensor, unit: Tensor) -> Tensor:
    """Count how often units, powers of two, go into values, truncated towards zero; float64."""
    return torch.div(values, unit, rounding_mode="trunc")  # torch.trunc takes ten times as long on a CPU


def _row_norms(factors: Sequence[Tensor]) -> Tensor:
    """Compute the norms of the rows of some factors, float64 [factors, records], each of them [records, width]."""
    norms = [
        torch.linalg.vector_norm(each[block], dim=1, dtype=torch.float64)
        for each in factors
        for block in _record_blocks(each)
    ]
    return torch.cat(norms).view(len(factors), -1)


def _record_blocks(values: Tensor) -> Iterator[slice]:
    """Yield slices of records [records, width], of as many as are handled at once on their device."""
    records, width = values.shape
    size = max(1, (_GPU_BLOCK if is_gpu(values.device.type) else _BLOCK) // max(1, width))
    for start in range(0, records, size):
        yield slice(start, min(start + size, records))
