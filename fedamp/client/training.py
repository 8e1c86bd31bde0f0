"""Train many clients at once from one start: stacked parameters, padded records, one program for all of them.

:class:`StackTrainer` runs gradient descent for every slot of a stack and returns each client's update. It does not
clip; :mod:`fedamp.client.worker` calls it, and clips what it returns. :mod:`fedamp.client.stacks` gives the batches and
checks that no client's update depends on its mates. :mod:`fedamp.client.stacked_networks` has the faster forward
passes.
"""

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedamp import rng
from fedamp.base.devices import is_gpu, usual_state
from fedamp.client.stacked_networks import FullyConnected, for_all_clients, stacked
from fedamp.client.stacks import MILD_RATE, StackBatches, send_block, stacking_refusal
from fedamp.data import PaddedRecords
from fedamp.federation.local_training import LocalTraining
from fedamp.federation.losses import CrossEntropy, Loss
from fedamp.models.custom import generators_from
from fedamp.models.pieces import Piece

# Outputs [records, ...] of one client: forward(parameters, inputs [records, ...], *arguments of the client).
Forward = Callable[..., Tensor]


@dataclass(frozen=True)
class TrainedStack:
    """The result of local training of a stack.

    Attributes:
        updates: float32 [clients, *shape] by parameter name: trained minus start, not clipped.
        losses: float64 [clients], sum over the records of the first batch of their loss, before training.
        records: [clients], the number of these records.
    """

    updates: dict[str, Tensor]
    losses: Tensor
    records: NDArray[np.int64]


class StackTrainer:
    """Trains clients whose models have the same architecture.

    Clients train together under ``torch.func.vmap``, or in a faster way (:mod:`fedamp.client.stacked_networks`). The
    result is the same to floating-point tolerance. A stack of one client needs none of it: any model trains in one.

    Args:
        forward: the model. It must treat records independently.
        config: the scenario's ``client`` section.
        device: torch's name of the device.
        loss: default: cross-entropy.
        rate: learning rate; default: that of the first round.
        module: the same model, if it is built in: some of them train faster.
        casts: whether ``forward`` computes in bfloat16 if its parameters and inputs are bfloat16.

    Attributes:
        stacked: the model of all clients, where it runs faster than under ``vmap``; else None.
        descends: whether the backward pass is written out, without autograd.
        gives_copies: whether the model gets copies of parameters and inputs, because its code may change them in place.
    """

    def __init__(
        self,
        forward: Forward,
        config: LocalTraining,
        device: str = "cpu",
        loss: Loss | None = None,
        rate: float | None = None,
        module: nn.Module | None = None,
        casts: bool = False,
    ) -> None:
        self.forward, self.config, self.device, self.casts = forward, config, device, casts
        self.loss = loss or CrossEntropy()
        self.rate = config.learning_rate_in(1) if rate is None else rate
        self.stacked = stacked(module, device)  # the model of all clients
        plain = is_plain(config) and type(self.loss) is CrossEntropy
        self.descends = plain and isinstance(self.stacked, FullyConnected)  # without autograd
        self.gives_copies = module is None  # what other people's code changes in place, no further step must see

    @classmethod
    def of_piece(
        cls,
        piece: Piece,
        config: LocalTraining,
        device: str,
        loss: Loss,
        inputs: Tensor,
        module: nn.Module | None = None,
    ) -> "StackTrainer":
        """Make the trainer of a piece of a model; its module must be on the device.

        Args:
            piece: what clients train.
            config, device, loss, module: as of the class.
            inputs: one record, [1, *input_shape], on the device; its values do not count.
        """
        low = piece.forward_in(torch.bfloat16, inputs) if config.precision == "bfloat16" else None
        return cls(low or piece.forward, config, device, loss, module=module, casts=low is not None)

    def train(
        self,
        start: dict[str, Tensor],
        cohort: PaddedRecords,
        seeds: NDArray[np.void],
        arguments: Sequence[Tensor] = (),
        own: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> TrainedStack:
        """Train every client of a stack.

        A client's update follows from the shape of the stack, not from its mates, where the kernels allow it
        (:func:`fedamp.client.stacks.stacking_refusal`).

        Args:
            start: the parameters that all of them start from, by name; never written to.
            cohort: each client's records, [clients, places, ...].
            seeds: 32 secret bytes for each client, of the order of its records and of what the model draws.
            arguments: further arguments of ``forward``, of shape [clients, ...].
            own: [clients, *shape], in place of some of ``start``, what each client starts from (``module`` is None).
        """
        batches = self.send_batches(StackBatches.drawn(self.config, cohort, seeds))
        return self.run(start, batches, seeds, arguments, own)

    def send_batches(self, batches: StackBatches) -> StackBatches:
        """Copy batches from the CPU to the device, as one block."""
        return batches.with_tensors(send_block(batches.tensors, self.device))

    def run(
        self,
        start: dict[str, Tensor],
        batches: StackBatches,
        seeds: NDArray[np.void],
        arguments: Sequence[Tensor] = (),
        own: Mapping[str, Tensor] = MappingProxyType({}),
        rate: float | Tensor | None = None,
        corrections: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> TrainedStack:
        """Train every client of a stack from what is on the device; no value is read back.

        Args:
            start, seeds, arguments, own: as for :meth:`train`.
            batches: of the clients.
            rate: learning rate, also as a float64 tensor without axes; default: that of the trainer.
            corrections: [clients, *shape] by parameter name, added to the gradients of each step; empty: nothing.
        """
        clients, rate = len(batches.counts), self.rate if rate is None else rate
        if self.descends and isinstance(self.stacked, FullyConnected):
            updates, losses = self.stacked.descend(start, batches.inputs, list(batches), rate)
            return TrainedStack(updates, losses, batches.counts)
        values = {name: value.expand(clients, *value.shape) for name, value in start.items()} | dict(own)
        arguments = [each.to(self.device) for each in arguments]
        if self.stacked is None and clients == 1:
            word = int(rng.client_words(seeds, "what the model draws", 1)[0, 0])
            with generators_from(word >> 1, is_gpu(self.device)):
                return self._descend(self._alone, values, batches, arguments, rate, corrections)
        together = self.stacked or for_all_clients(self.forward)
        return self._descend(together, values, batches, arguments, rate, corrections)

    def _descend(
        self,
        together: Forward,
        start: dict[str, Tensor],
        batches: StackBatches,
        arguments: Sequence[Tensor],
        rate: float | Tensor,
        corrections: Mapping[str, Tensor],
    ) -> TrainedStack:
        """Take steps down the mean loss of each batch, in every client's model at once.

        Args:
            together: the model of all clients: parameters, inputs and arguments have an axis of clients in front.
            start: [clients, *shape] by parameter name.
            batches: the records of each step.
            arguments: further arguments of the model, [clients, ...].
            rate: learning rate.
            corrections: added to the gradients, by parameter name.
        """
        factor, scale = (1.0, rate.float()) if isinstance(rate, Tensor) else (rate, None)
        directions, proximal = OPTIMIZERS[self.config.optimizer](self.config), self.config.proximal
        values, losses = [*start.values()], batches.weights.new_zeros(len(batches.counts), dtype=torch.float64)
        first, casts, lower = values, self.casts, list[Tensor]()
        by_operation = self.config.precision == "bfloat16" and not casts  # code that does not compute in bfloat16
        if casts:
            batches = batches.with_tensors([_lower(batches.inputs), *batches.tensors[1:]])
            arguments = [_lower(each) for each in arguments]
        for step, batch in enumerate(batches):
            leaves = values  # what a step has made is nobody else's
            if by_operation:
                torch.clear_autocast_cache()  # it keeps what it has cast, by the tensor, and values change in place
            if casts:
                lower = _copies(values, torch.bfloat16, lower if step > 1 else None)
                leaves = lower
            elif self.gives_copies or step == 0:
                leaves = [value.clone() if self.gives_copies else value.detach() for value in values]
            for leaf in leaves:
                leaf.requires_grad_()
            with torch.autocast(batches.inputs.device.type, torch.bfloat16) if by_operation else nullcontext():
                given = [batches.inputs_of(batch), *arguments]
                if self.gives_copies and step < batches.steps - 1:
                    given = [each.clone() for each in given]
                outputs = together(dict(zip(start, leaves, strict=True)), *given)
            found = outputs.detach().float()
            if step == 0:
                losses = self.loss.loss_sums(found, batch.labels, batch.weights)
            # Through a scalar: handing torch the outputs' gradients makes it import its symbolic algebra, which takes
            # longer than many rounds.
            scalar = (outputs * self.loss.gradients(found, batch.labels, batch.weights)).sum()
            gradients = list(torch.autograd.grad(scalar, leaves, materialize_grads=True))
            for leaf in leaves:
                leaf.requires_grad_(False)
            if casts:
                gradients = _copies(gradients, torch.float32)
            if proximal:
                gradients = list(torch._foreach_add(gradients, torch._foreach_sub(values, first), alpha=proximal))
            if corrections:
                gradients = list(torch._foreach_add(gradients, [corrections[name] for name in start]))
            if self.config.weight_decay:
                gradients = list(torch._foreach_add(gradients, values, alpha=self.config.weight_decay))
            gradients = directions(gradients)
            if not is_plain(self.config):  # clients that have done all their steps stay where they are
                active = (batch.weights > 0).any(1)
                gradients = [gradient * active.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients]
            if scale is not None:
                gradients = list(torch._foreach_mul(gradients, scale))
            if step == 0:
                # All clients share the start, so the first step goes to new memory. Stacks lie in memory as their
                # gradients do: then the steps that follow are fast.
                values = [torch.empty_like(gradient) for gradient in gradients]
                for value, shared, gradient in zip(values, first, gradients, strict=True):
                    torch.add(shared, gradient, alpha=-factor, out=value)
            else:
                torch._foreach_add_(values, gradients, alpha=-factor)
            del gradients, scalar  # the next step needs the memory
        if values is first:
            changes = [torch.zeros_like(each, memory_format=torch.contiguous_format) for each in first]
        else:
            changes = [value.sub_(each) for value, each in zip(values, first, strict=True)]
        return TrainedStack(dict(zip(start, changes, strict=True)), losses, batches.counts)

    def stacking_refusal(
        self,
        start: dict[str, Tensor],
        like: PaddedRecords,
        row_inputs: Callable[[Tensor, NDArray[np.void]], tuple[Sequence[Tensor], Mapping[str, Tensor]]],
        vocabulary: int | None,
    ) -> str:
        """Say why clients cannot share a stack; empty where they can. At most three steps are tried.

        Args:
            start: the parameters that all of them start from, by name.
            like: records of the shape and type of the stack; their values do not count.
            row_inputs: gives arguments of ``forward`` and ``own``, for inputs and seeds.
            vocabulary: number of tokens; None where inputs are numbers.

        Raises:
            torch.OutOfMemoryError: the device has no room for the stack.
        """
        few = copy.copy(self)
        few.rate = MILD_RATE
        few.config = self.config.model_copy(update={"steps": min(self.config.steps or 3, 3), "epochs": None})

        def train(cohort: PaddedRecords, seeds: NDArray[np.void], kept: NDArray[np.int64]) -> dict[str, Tensor]:
            batches = few.send_batches(StackBatches.drawn(few.config, cohort, seeds))
            updates = few.run(start, batches, seeds, *row_inputs(batches.inputs, seeds)).updates
            return {name: update[torch.from_numpy(kept).to(update.device)] for name, update in updates.items()}

        return stacking_refusal(train, like, sum(value.numel() for value in start.values()), vocabulary)

    def _alone(self, parameters: dict[str, Tensor], inputs: Tensor, *arguments: Tensor) -> Tensor:
        """Run the model of a single client without ``vmap``, which some custom models cannot go through."""
        mine = {name: value[0] for name, value in parameters.items()}
        return self.forward(mine, inputs[0], *(argument[0] for argument in arguments))[None]


def _lower(tensor: Tensor) -> Tensor:
    """Cast numbers to bfloat16; integers, which stand for tokens or rows, stay as they are."""
    return tensor.bfloat16() if tensor.is_floating_point() else tensor


def _copies(tensors: list[Tensor], kind: torch.dtype, into: list[Tensor] | None = None) -> list[Tensor]:
    """Cast tensors in one operation, to new memory or into earlier copies."""
    copies = into or [torch.empty_like(each, dtype=kind) for each in tensors]
    torch._foreach_copy_(copies, tensors)
    return copies


# From gradients, stacks [clients, *shape], to the directions of a step, whose length is the learning rate times theirs.
# Neither arguments nor earlier results are written to. The state ends with the round.
Directions = Callable[[list[Tensor]], list[Tensor]]


class LocalSgd:
    """Gradient descent with momentum, as ``torch.optim.SGD`` without dampening and without Nesterov's step.

    With momentum m the velocity is ``v = m v + gradient``, at first the gradient, and v is the direction.
    """

    def __init__(self, config: LocalTraining) -> None:
        self._momentum = config.momentum
        self._velocity: list[Tensor] = []

    def __call__(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the direction of a step for gradients [clients, *shape]; see ``Directions``."""
        if self._velocity:
            gradients = list(torch._foreach_add(gradients, self._velocity, alpha=self._momentum))
        if self._momentum:
            self._velocity = gradients
        return gradients


class LocalAdam:
    """Adam (Kingma, Ba 2015), as ``torch.optim.Adam``.

    The direction is the mean of the gradients over the root of the mean of their squares. Both means decay with the
    betas of the section, and are corrected for their start at zero. ``epsilon`` is added to the root.
    """

    def __init__(self, config: LocalTraining) -> None:
        self._config, self._steps = config, 0
        self._moments: list[tuple[Tensor, Tensor]] = []

    def __call__(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the direction of a step for gradients [clients, *shape]; see ``Directions``."""
        betas = self._config.beta1, self._config.beta2
        if not self._moments:
            self._moments = [(torch.zeros_like(gradient), torch.zeros_like(gradient)) for gradient in gradients]
        self._steps += 1
        first, second = (1 - beta**self._steps for beta in betas)
        directions = []
        for gradient, (mean, square) in zip(gradients, self._moments, strict=True):
            mean.lerp_(gradient, 1 - betas[0])
            square.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
            directions.append((mean / first).div_((square / second).sqrt_().add_(self._config.epsilon)))
        return directions


# A further optimiser is a class here, a line in ``OPTIMIZERS``, and its name in ``LocalTraining.optimizer``. Its
# gradients have the weight decay in them.
OPTIMIZERS: dict[str, Callable[[LocalTraining], Directions]] = {"sgd": LocalSgd, "adam": LocalAdam}


def is_plain(config: LocalTraining, steps: Literal[1] | None = None) -> bool:
    """Say whether every step is the learning rate times a gradient of the loss alone.

    Only plain steps may use ghost clipping and the written-out backward pass.

    Args:
        config: the scenario's ``client`` section.
        steps: 1: whether the first step is, which momentum does not change.
    """
    momentum = config.momentum if steps is None else 0.0
    return config.optimizer == "sgd" and not (momentum or config.proximal or config.moves_all)


@contextmanager
def arithmetic(precision: str, device: str) -> Iterator[None]:
    """Make a device round alike in every run while the context lasts.

    By default, torch lets convolutions on a GPU round to tf32, and sums of gradients depend on which thread comes
    first. Then no update would follow from a unit's records and seed alone. Operations without another kernel warn.

    Args:
        precision: the scenario's ``client.precision``; a GPU rounds to tf32 only where it is not ``float32``. Backward
            passes that are written out, and ghost clipping, do so in place of bfloat16, which has fewer bits.
        device: torch's name of the device.
    """
    if not is_gpu(device):
        with usual_state():
            yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when a process first multiplies matrices
    strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filling: Any = torch.utils.deterministic
    cuda: Any = torch.backends.cuda
    low = precision != "float32"
    with ExitStack() as held:
        # Nobody reads what is filled, and it takes time; and kernels that are chosen by their time differ between runs.
        for owner, name in ((filling, "fill_uninitialized_memory"), (torch.backends.cudnn, "benchmark")):
            held.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, False)
        held.callback(torch.use_deterministic_algorithms, strict[0], warn_only=strict[1])
        torch.use_deterministic_algorithms(True, warn_only=True)
        if hasattr(cuda, "allow_fp16_bf16_reduction_math_sdp"):  # since torch 2.5; else attention casts to float32
            held.callback(cuda.allow_fp16_bf16_reduction_math_sdp, cuda.fp16_bf16_reduction_math_sdp_allowed())
            cuda.allow_fp16_bf16_reduction_math_sdp(low)
        held.enter_context(_rounding_to_tf32(low))
        held.enter_context(usual_state())
        yield


@contextmanager
def _rounding_to_tf32(allowed: bool) -> Iterator[None]:
    """Let a GPU round to tf32 while the context lasts, or forbid it.

    Torch has two interfaces, of which it refuses to read the older one where the newer one, since 2.9, contradicts it.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    kinds: list[Any] = [matmul, cudnn.conv, cudnn.rnn] if hasattr(cudnn, "conv") else []

    def set_all(of_matmul: bool, of_cudnn: bool, names: Sequence[str]) -> None:
        matmul.allow_tf32, cudnn.allow_tf32 = of_matmul, of_cudnn
        for each, name in zip(kinds, names, strict=True):
            each.fp32_precision = name

    names = [each.fp32_precision for each in kinds]
    older = [name == "tf32" for name in names[:2]] if kinds else [matmul.allow_tf32, cudnn.allow_tf32]
    set_all(allowed, allowed, ["tf32" if allowed else "ieee"] * len(kinds))
    try:
        yield
    finally:
        set_all(older[0], older[1], names)
