"""Dropout masks: the full model with one 0/1 number for every node of some hidden layers.

A dropped node says nothing to the rest of the network, and nothing reaches what it owns: the gradient of its weights,
its bias and the columns it meets in the next layer is exactly zero. **Nothing is rescaled**: kept nodes speak as they
do in the full model, neither divided by the keep probability in training nor multiplied by it in evaluation. A masked
model therefore computes what the extracted submodel of the kept nodes computes.
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from fedamp.errors import ModelError
from fedamp.models.units import Blocks, Units, check_shared, declared, named_layers


class Masks:
    """Runs a module with some of its nodes left out.

    A mask is one vector of zeros and ones, the named layers one after another. It is an argument like the inputs, so
    :meth:`call` can be vmapped over clients with a mask each.

    Args:
        module: what is run; it is not changed.
        layers: hidden layers to mask, as the module names them; none: all that it declares.
        rest: what becomes of the parameters of which no node owns anything: ``shared``, ``dealt`` or ``frozen``.

    Attributes:
        layers: number of nodes of every masked layer, in the order of the mask.
        nodes: length of a mask.
        shared, dealt, frozen: parameters that no mask silences in any part, by what becomes of them. Those neither
            shared nor frozen form the split group, in which the updates of masks without a common node have disjoint
            supports (Dong, Chen, Özgür 2025, Corollary 3.7), every coordinate of ``dealt`` counting as a node.

    Raises:
        ModelError: a layer that the module does not declare, a module that declares none, or nothing to share.
    """

    def __init__(self, module: nn.Module, layers: Sequence[str] = (), rest: str = "shared") -> None:
        self.module = module
        self._declarations = named_layers(module, layers)
        self.layers = {declaration.layer: declaration.count for declaration in self._declarations}
        self.nodes = sum(self.layers.values())
        names = [name for name, _ in module.named_parameters()]
        unowned = tuple(name for name in names if not any(each.owners(name) for each in self._declarations))
        check_shared(type(module).__name__, unowned, rest)
        self.shared = frozenset(unowned if rest == "shared" else ())
        self.frozen = frozenset(unowned if rest == "frozen" else ())
        self.dealt = unowned if rest == "dealt" else ()

    def call(self, parameters: Mapping[str, Tensor], inputs: Tensor, mask: Tensor) -> Tensor:
        """Logits [batch, classes] of the module with these parameter values, under a mask of shape [nodes]."""
        handles = self._attach(self.module, mask)
        try:
            logits: Tensor = functional_call(self.module, dict(parameters), (inputs,))
            return logits
        finally:
            for handle in handles:
                handle.remove()

    def of(self, kept: Mapping[str, Sequence[int]]) -> Tensor:
        """The mask that keeps these nodes of every masked layer."""
        mask = torch.zeros(self.nodes)
        for layer, part in zip(self.layers, torch.split(mask, list(self.layers.values())), strict=True):
            part[list(kept[layer])] = 1
        return mask

    def fixed(self, mask: Tensor) -> nn.Module:
        """A copy of the module that always runs under this mask."""
        module = copy.deepcopy(self.module)
        self._attach(module, mask)
        return module

    def check_silence(self, mask: Tensor, inputs: Tensor) -> None:
        """Refuse the module if something that a dropped node owns has a gradient on these inputs."""
        parameters = {name: value.detach().requires_grad_() for name, value in self.module.named_parameters()}
        logits = self.call(parameters, inputs, mask)
        loss = (logits * torch.randn_like(logits)).sum()
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        found = {name: value for name, value in zip(parameters, gradients, strict=True) if value is not None}
        for declaration, part in zip(self._declarations, torch.split(mask, list(self.layers.values())), strict=True):
            _check_silence(self.module, declaration, part, found)

    def _attach(self, module: nn.Module, mask: Tensor) -> list[RemovableHandle]:
        parts = torch.split(mask, list(self.layers.values()))
        return [
            module.get_submodule(submodule).register_forward_hook(hook)
            for declaration, part in zip(self._declarations, parts, strict=True)
            for submodule, hook in zip(declaration.submodules, declaration.hooks(part), strict=True)
        ]


def prove_silence(module: nn.Module, input_shape: tuple[int, ...], vocabulary: int | None = None) -> None:
    """Refuse a module whose declaration does not hold: everything a dropped node owns must have gradient zero.

    Tried on random inputs (from torch's default generator), dropping every node once while all other layers are whole,
    so that no other silence covers for it, and once together with nodes of other layers.

    Raises:
        ModelError: a parameter with a gradient where the declaration says there can be none.
    """
    if not declared(module):
        return
    masks = Masks(module, rest="dealt")  # whatever a scenario makes of the rest, if it masks at all
    layers = torch.cat([torch.full((count,), index) for index, count in enumerate(masks.layers.values())])
    half = (torch.rand(masks.nodes) < 0.5).float()

    def inputs() -> Tensor:
        shape = (4, *input_shape)
        return torch.randn(shape) if vocabulary is None else torch.randint(vocabulary, shape)

    for kept in (half, 1 - half):
        masks.check_silence(kept, inputs())
        for layer in range(len(masks.layers)):
            masks.check_silence(torch.where(layers == layer, kept, 1.0), inputs())


def _check_silence(
    module: nn.Module, declaration: Units | Blocks, mask: Tensor, gradients: Mapping[str, Tensor]
) -> None:
    nodes = torch.nonzero(mask == 0).flatten().tolist()
    for name, gradient in gradients.items():
        if not declaration.owners(name):
            continue
        dropped = declaration.owned_part(name, gradient, nodes)
        if bool((dropped != 0).any()):
            raise ModelError(
                f"{type(module).__name__}.units_to_split(): layer {declaration.layer!r} says its nodes own {name!r}, "
                "but leaving a node out does not silence it"
            )
