"""Take one gradient step of each record, clip it, and add it up without forming a record's gradient.

The gradient of a linear layer for one record is a product of two vectors, the gradient of its output and its input
(Goodfellow 2015). So its norm is the product of theirs, and the sum of all clipped gradients is one matrix product. The
sum is exact: both vectors are truncated to powers of two whose product is the clip's quantum
(:mod:`fedamp.client.clipping`). Every term is then a whole number of quanta, and float64 adds them without rounding.

:mod:`fedamp.client.worker` uses it where the unit is a record, training is one plain step, and the model is a built-in
network of linear layers. All other tasks form each update (:mod:`fedamp.client.training`).
"""

from collections.abc import Iterator, Mapping, Sequence

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
        limits, units = known[0][:, None], known[1]
        losses, products = self._backward(start, values, labels, self._rate if rate is None else rate)
        squares = {name: product.square_norms for name, product in products.items()}
        norms = torch.stack([torch.sqrt(sum((squares[name] for name in part), losses.new_zeros(()))) for part in parts])
        failed, factors = clip_factors(norms, limits, normalised)
        clipped = ~failed & (norms > limits)
        scales = torch.where(silent, 0.0, factors)
        sums = {
            name: products[name].sum(scale, unit)
            for part, scale, unit in zip(parts, scales, units, strict=True)
            for name in part
        }
        return ClippedSum({name: sums[name] for name in start}, failed, clipped), losses

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
    ) -> tuple[Tensor, dict[str, "_Products"]]:
        """Compute each record's loss, float64 [records], and its update of every parameter as a product."""
        values, entered, left = inputs.flatten(1), list[Tensor](), list[Tensor]()
        with torch.enable_grad():
            for name in self._layers:
                values = values.relu() if left else values
                weight, bias = (start[f"{name}.{kind}"].detach().requires_grad_() for kind in ("weight", "bias"))
                entered.append(values.detach())
                left.append(values := nn.functional.linear(values, weight, bias))
            losses = self._loss.each(values, labels)
        products: dict[str, _Products] = {}
        gradients = torch.autograd.grad(losses.sum(), left)
        for name, gradient, values in zip(self._layers, gradients, entered, strict=True):
            back = gradient.double() * -rate
            products |= {f"{name}.weight": _Products(back, values), f"{name}.bias": _Products(back, None)}
        return losses.detach().double(), products


class _Products:
    """Holds the updates of one parameter of all records as factors, and never multiplies them for a single record.

    The update of a weight is ``back`` [records, out] times ``entered`` [records, in]; that of a bias is ``back`` alone.

    Attributes:
        square_norms: float64 [records], the squared norm of each record's update.
    """

    def __init__(self, back: Tensor, entered: Tensor | None) -> None:
        self._back, self._entered = back, entered
        squares = back.square().sum(1)
        self._length = None
        if entered is not None:
            self._length = squares.new_empty(len(entered))
            for block in _record_blocks(entered):
                self._length[block] = torch.linalg.vector_norm(entered[block].double(), dim=1)
            squares = squares * self._length.square()
        self.square_norms = squares

    def sum(self, scales: Tensor, quantum: Tensor) -> Tensor:
        """Add up ``scales`` [records] times the updates, each in whole quanta; float64."""
        kept = ((scales > 0) & (self.square_norms > 0))[:, None]
        back = torch.where(kept, self._back * scales[:, None], 0.0)
        if self._entered is None or self._length is None:
            return _whole_multiples(back, quantum).sum(0)
        # By powers of two alone: a logarithm may be rounded by a number's place among the others.
        length = torch.where(kept[:, 0], self._length, 1.0)
        _, size = torch.frexp(length)
        # How many quanta long the product is, in bits; the input gets its share of them.
        _, bits = torch.frexp(torch.linalg.vector_norm(back, dim=1) * length / quantum)
        unit = _power_of_two(size - 1 - bits.clamp(0, _ALL_BITS) * _INPUT_BITS // _ALL_BITS)[:, None]
        total = back.new_zeros(back.shape[1], self._entered.shape[1])
        for block in _record_blocks(self._entered):
            left = _whole_multiples(back[block], quantum / unit[block])
            entered = torch.where(kept[block], self._entered[block], 0.0)
            total.addmm_(left.T, _whole_multiples(entered.double(), unit[block]))
        return total


def _power_of_two(exponents: Tensor) -> Tensor:
    """Compute 2 ** exponents exactly, as float64 numbers from their bits. Exponents are in -1022 ... 1023."""
    return ((exponents.long() + 1023) << 52).view(torch.float64)


def _whole_multiples(values: Tensor, unit: Tensor | float) -> Tensor:
    """Truncate float64 values towards zero to whole multiples of powers of two; in new memory."""
    quanta = values / unit
    quanta -= quanta.frac()  # torch's trunc takes ten times as long
    return quanta.mul_(unit)


def _record_blocks(values: Tensor) -> Iterator[slice]:
    """Yield slices of records [records, width], of as many as are handled at once on their device."""
    records, width = values.shape
    size = max(1, (_GPU_BLOCK if is_gpu(values.device.type) else _BLOCK) // max(1, width))
    for start in range(0, records, size):
        yield slice(start, min(start + size, records))
