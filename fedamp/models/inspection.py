"""Inspect a model: whether it may be trained privately, and what it costs to send and to train.

Every breach is refused by name. Costs are counts, not times. :mod:`fedamp.models.networks` checks each model that it
builds. :mod:`fedamp.server.setup` checks once before a run that records are not mixed, and asks for the costs.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedamp.errors import ModelError, one_line
from fedamp.models.custom import generators_from
from fedamp.models.masks import Masks
from fedamp.models.model import Model
from fedamp.models.units import declared

_LARGE = 1000.0
_MOVED = 0.1  # standard deviation by which parameters move from their start
# Of the largest answer: sums in another order, by the number of records, differ in float32's last bits, of 6e-8, and a
# hundred layers may make a thousand times more of it.
_ROUNDED = 1e-3
_BATCHES = 8


def check(module: nn.Module) -> None:
    """Refuse a module that cannot be trained privately or reproducibly.

    Everything that a record can change must be a float32 parameter, because parameters are what is clipped and noised.
    Batch norm and running statistics mix records, which would leave the client unprotected. Other buffers, also frozen
    weights, are constants: :func:`check_calls` refuses those that change.

    Raises:
        ModelError: it breaks one of these rules.
    """
    for path, submodule in module.named_modules():
        name, kind = path or type(module).__name__, type(submodule).__name__
        if isinstance(submodule, nn.modules.batchnorm._BatchNorm):
            raise ModelError(f"model: {name} is {kind}, whose statistics mix records unprotected; use GroupNorm")
        if isinstance(submodule, _NormBase) and submodule.track_running_stats:
            raise ModelError(
                f"model: {name} ({kind}) keeps running statistics; use track_running_stats=False or GroupNorm"
            )
        if getattr(submodule, "max_norm", None) is not None:
            raise ModelError(f"model: {name} ({kind}) has max_norm, which changes weights when the model is called")
        for key, _ in submodule.named_buffers(recurse=False):
            if key.startswith("running"):
                raise ModelError(f"model: buffer {name}.{key} is a running statistic, which cannot be protected")
    for name, parameter in module.named_parameters():
        where = f"model: parameter {name}"
        if isinstance(parameter, nn.UninitializedParameter):
            raise ModelError(f"{where} has no shape yet (a lazy module); give its sizes")
        if parameter.dtype != torch.float32:
            raise ModelError(f"{where} is {str(parameter.dtype).removeprefix('torch.')}; only float32 is accepted")
    if sum(parameter.numel() for parameter in module.parameters()) == 0:
        raise ModelError(f"model {type(module).__name__} has no parameters to train")


def check_calls(module: nn.Module, config: Model, input_shape: tuple[int, ...], num_classes: int) -> None:
    """Refuse a module by what it does when it is called.

    Args:
        module: a custom one; it is called with random inputs.
        config: the scenario's ``model`` section.
        input_shape: of one record.
        num_classes: outputs for every record, or every token.

    Raises:
        ModelError: wrong shapes, constants or parameters that change, outputs that no seed decides, or declared nodes
            that are not silent when left out.
    """
    who = f"model {config.name}"

    def outputs() -> Any:
        with generators_from(0), torch.no_grad():
            return module(example((2, *input_shape), config.vocabulary))

    before = {name: value.clone() for name, value in constants(module).items()}
    weights = {name: value.detach().clone() for name, value in module.named_parameters()}
    try:
        first, second = outputs(), outputs()
    except Exception as error:
        raise ModelError(f"{who} cannot take inputs of shape {[2, *input_shape]} ({one_line(error)})") from error
    shape = tuple(getattr(first, "shape", ()))
    if shape[:1] != (2,) or shape[-1:] != (num_classes,) or len(shape) not in (2, 3):
        got = list(shape) or type(first).__name__
        raise ModelError(f"{who} must answer logits of shape [batch, {num_classes}], got {got} for a batch of 2")
    for name, value in constants(module).items():
        if name in before and not torch.equal(value, before[name]):
            raise ModelError(
                f"{who}: {name} is no parameter, and changes when the model is called, so that it would "
                "remember records unprotected; expected: constants"
            )
    _check_leaves_alone(module, who, weights, example((2, *input_shape), config.vocabulary))
    if not torch.equal(first.nan_to_num(), second.nan_to_num()):
        raise ModelError(
            f"{who} answers the same inputs in two ways, and no seed decides; expected: random numbers "
            "from torch's, NumPy's or Python's default generator, and nothing that is remembered from call to call"
        )
    prove_silence(module, input_shape, config.vocabulary)


def check_apart(module: nn.Module, config: Model, input_shape: tuple[int, ...]) -> None:
    """Refuse a model in which the answer to a record depends on the others of its batch, in training or evaluation.

    Activations that are computed again for the gradient (checkpoints) are refused, too: by then other parameters are in
    place. Parameters move from their start: a layer that starts at zero would let nothing through.

    Raises:
        ModelError: it mixes records, or has checkpoints.
    """
    with generators_from(1):
        moved = {name: each.detach() + _MOVED * torch.randn_like(each) for name, each in module.named_parameters()}
        inputs, training = example((4, *input_shape), config.vocabulary), module.training
    try:
        with generators_from(0), disable_saved_tensors_hooks("its activations are computed again for the gradient"):
            module(inputs)
    except RuntimeError as error:  # by then the module has its own parameters again (torch.func.functional_call)
        raise ModelError(f"model {config.name}: {one_line(error)}; expected: no checkpoints in forward()") from None
    for _ in ("training", "evaluation"):
        if mixes(lambda records: functional_call(module, moved, (records.clone(),)), inputs):
            what = "its answer to one changes with the others, or with their number"
            expected = "each record by itself, and the first axis for records alone (batch_first=True)"
            raise ModelError(f"model {config.name} mixes the records of a batch: {what}; expected: {expected}")
        module.eval()
    module.train(training)


def mixes(answer: Callable[[Tensor], Tensor], inputs: Tensor) -> bool:
    """Say whether the answer to a record depends on the others of its batch, beyond rounding.

    The first and the last of three records are compared beside two unlike ones in the middle, with the same random
    numbers. The answer to the first one is also compared with that to it alone, unless answers are random.

    Args:
        answer: from records [batch, ...] to answers [batch, ...].
        inputs: four records.
    """

    def of(records: Tensor, seed: int = 0) -> Tensor:
        with generators_from(seed), torch.no_grad():
            return answer(records).double().nan_to_num()

    first, middle, other, last = torch.split(inputs, 1)
    beside = torch.cat([first, middle, last])
    found = of(beside)
    pairs = [(found[[0, 2]], of(torch.cat([first, other, last]))[[0, 2]])]
    if torch.equal(found, of(beside, seed=1)):
        pairs.append((found[:1], of(first)))
    return any(bool((one - two).abs().max() > _ROUNDED * found.abs().max()) for one, two in pairs)


def without_gradient(module: nn.Module, config: Model, input_shape: tuple[int, ...]) -> list[str]:
    """Name the parameters that no answer's gradient reaches; they would only add noise.

    An expert, say, may be asked for some records alone: so several batches are tried.
    """
    unreached = {name: value for name, value in module.named_parameters() if value.requires_grad}
    for seed in range(_BATCHES):
        with generators_from(seed):
            outputs = module(example((_BATCHES, *input_shape), config.vocabulary)).sum()
        if outputs.requires_grad and unreached:
            found = torch.autograd.grad(outputs, list(unreached.values()), allow_unused=True)
            unreached = {name: unreached[name] for name, each in zip(unreached, found, strict=True) if each is None}
    return list(unreached)


def _check_leaves_alone(module: nn.Module, who: str, before: Mapping[str, Tensor], inputs: Tensor) -> None:
    """Refuse a model that changes its inputs, or its parameters from ``before``, when it is called.

    It is called once more with large weights and inputs, of both signs: a bound may be far from where training starts.
    """
    changed = [name for name, value in module.named_parameters() if not torch.equal(value, before[name])]
    large = {name: _LARGE * torch.randn_like(value) for name, value in before.items()}
    for weights, given in ((before, inputs), (large, inputs * _LARGE if inputs.is_floating_point() else inputs)):
        called, records = {name: value.clone() for name, value in weights.items()}, given.clone()
        with suppress(Exception), torch.no_grad():  # of large ones a model may raise anything
            functional_call(module, called, (records,))
        if not torch.equal(records, given):
            raise ModelError(f"{who} changes its inputs in place; expected: inputs - 5, not inputs.sub_(5)")
        changed += [name for name, value in called.items() if not torch.equal(value, weights[name])]
    if changed:
        raise ModelError(f"{who} changes its parameter {changed[0]} when it is called; expected: training alone does")


def prove_silence(module: nn.Module, input_shape: tuple[int, ...], vocabulary: int | None = None) -> None:
    """Refuse a declaration where something that a dropped node owns has a gradient that is not zero.

    No epsilon rests on it, because updates are silenced for every model; but the trained network would not be the
    declared submodel. Inputs are random (torch's default generator). Every node is dropped once while all other layers
    are whole, so that no other silence covers for it, and once with nodes of other layers. Parameters move from their
    start: a layer that starts at zero would let nothing through.

    Raises:
        ModelError: it names the layer and the parameter.
    """
    if not declared(module):
        return
    masks = Masks(module, rest="partitioned")  # "shared" would refuse a module whose nodes own everything
    layers = torch.cat([torch.full((count,), index) for index, count in enumerate(masks.layers.values())])
    half = (torch.rand(masks.nodes) < 0.5).float()
    for kept in (half, 1 - half):
        _check_silence(masks, example((4, *input_shape), vocabulary), kept)
        for layer in range(len(masks.layers)):
            _check_silence(masks, example((4, *input_shape), vocabulary), torch.where(layers == layer, kept, 1.0))


def _check_silence(masks: Masks, inputs: Tensor, mask: Tensor) -> None:
    """Refuse a gradient that is not zero where a node that a mask [nodes] drops owns the coordinate."""
    start = {name: value.detach() for name, value in masks.module.named_parameters()}
    leaves = {name: (value + _MOVED * torch.randn_like(value)).requires_grad_() for name, value in start.items()}
    outputs = masks.call(leaves, inputs, mask)
    loss = (outputs * torch.randn_like(outputs)).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    for name, gradient in zip(leaves, gradients, strict=True):
        for layer, dropped in masks.dropped(name, gradient.shape, mask[None]):
            if bool((torch.where(dropped[0], gradient, 0.0) != 0).any()):
                raise ModelError(
                    f"{type(masks.module).__name__}.units_to_split(): layer {layer!r} says its nodes own {name!r}, "
                    "but leaving a node out does not silence it"
                )


def example(shape: tuple[int, ...], vocabulary: int | None) -> Tensor:
    """Draw random inputs of this shape, the batch included: numbers, or tokens of a vocabulary."""
    return torch.randn(shape) if vocabulary is None else torch.randint(vocabulary, shape)


def constants(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that are no parameters, by name: buffers, and attributes of modules."""
    attributes = {
        f"{name}.{key}".lstrip("."): value
        for name, submodule in module.named_modules()
        for key, value in vars(submodule).items()
        if isinstance(value, Tensor) and not value.requires_grad
    }
    return dict(module.named_buffers()) | attributes


@dataclass(frozen=True)
class Cost:
    """Size of a (sub)model. Only the operations of matrix products and convolutions count: the rest is negligible.

    Attributes:
        parameters: float32 numbers; four bytes each in a message.
        flops_per_record: of a forward and a backward pass; two for a multiplication and addition.
    """

    parameters: int
    flops_per_record: int


def cost(module: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Cost:
    """Count one forward and backward pass of a single record of zeros; the module is left as it was.

    Args:
        module: the model.
        input_shape: of one record.
        dtype: of inputs: float32, or int64 for tokens.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with _Counter() as counter:  # type: ignore[no-untyped-call]
        torch.autograd.grad(module(torch.zeros(1, *input_shape, dtype=dtype)).sum(), parameters, allow_unused=True)
    return Cost(sum(parameter.numel() for parameter in parameters), counter.flops)


def kept_per_record(module: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> int:
    """Count the numbers that the forward pass of one record keeps for the backward pass, besides the parameters.

    The size of stacks follows from it (:func:`fedamp.client.task.stack_size`).
    """
    known = {each.untyped_storage().data_ptr() for each in (*module.parameters(), *module.buffers())}
    kept: dict[int, Tensor] = {}  # by place in memory: two operations may keep the same numbers

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in known:
            kept[place] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        module(torch.zeros(1, *input_shape, dtype=dtype))
    return sum(tensor.numel() for tensor in kept.values())


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up torch's own counts of the operations while the context lasts; torch's counter would load its compiler."""

    flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        return out
