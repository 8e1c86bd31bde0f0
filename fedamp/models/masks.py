"""Dropout masks: the full model with one 0/1 number for every node of some hidden layers.

A dropped node says nothing to the rest of the network, and nothing reaches what it owns: the gradient of its weights,
its bias and the columns it meets in the next layer is exactly zero. Decay and the like would move them all the same, so
:meth:`Masks.silence` takes them out of every update. **Nothing is rescaled**: kept nodes speak as they
do in the full model, neither divided by the keep probability in training nor multiplied by it in evaluation. A masked
model therefore computes what the extracted submodel of the kept nodes computes.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from fedamp.errors import ModelError
from fedamp.models.units import Blocks, Units, check_shared, declared, named_layers

_MOVED = 0.1  # deviation by which parameters are moved from where they start


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

    def silence(self, updates: Mapping[str, Tensor], mask: Tensor) -> None:
        """Set to zero what dropped nodes own, in place; of a coordinate with two owners, where either is dropped.

        Args:
            updates: of shape [masks, *shape] by parameter name.
            mask: of shape [masks, nodes].
        """
        for declaration, part in self._parts(mask != 0):
            for name, update in updates.items():
                if declaration.owners(name):  # not a product: zero times NaN is NaN
                    update.masked_fill_(~declaration.owned_by(name, update.shape[1:], part).to(update.device), 0.0)

    def check_silence(self, inputs: Tensor, mask: Tensor) -> None:
        """Refuse the module if something that a dropped node owns has a gradient, at random values near its own."""
        start = {name: value.detach() for name, value in self.module.named_parameters()}
        leaves = {name: (value + _MOVED * torch.randn_like(value)).requires_grad_() for name, value in start.items()}
        outputs = self.call(leaves, inputs, mask)
        loss = (outputs * torch.randn_like(outputs)).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        for declaration, part in self._parts((mask != 0)[None]):
            for name, gradient in zip(leaves, gradients, strict=True):
                if declaration.owners(name):
                    dropped = ~declaration.owned_by(name, gradient.shape, part)[0]
                    if bool((torch.where(dropped, gradient, 0.0) != 0).any()):
                        raise ModelError(
                            f"{type(self.module).__name__}.units_to_split(): layer {declaration.layer!r} says its "
                            f"nodes own {name!r}, but leaving a node out does not silence it"
                        )

    def _parts(self, mask: Tensor) -> Iterator[tuple[Units | Blocks, Tensor]]:
        """The layers, with their part of a mask of shape [..., nodes]."""
        return zip(self._declarations, torch.split(mask, list(self.layers.values()), -1), strict=True)

    def _attach(self, module: nn.Module, mask: Tensor) -> list[RemovableHandle]:
        return [
            module.get_submodule(submodule).register_forward_hook(hook)
            for declaration, part in self._parts(mask)
            for submodule, hook in zip(declaration.submodules, declaration.hooks(part), strict=True)
        ]


def prove_silence(module: nn.Module, input_shape: tuple[int, ...], vocabulary: int | None = None) -> None:
    """Refuse a module whose declaration does not hold: everything a dropped node owns must have gradient zero.

    No epsilon rests on it, because updates are silenced whatever a model does; but what is trained would not be the
    submodel that is said. Tried on random inputs (from torch's default generator), dropping every node once while all
    other layers are whole, so that no other silence covers for it, and once together with nodes of other layers. Each
    time all parameters are moved from where they start: a layer that starts at zero would let nothing through.

    Raises:
        ModelError: a parameter with a gradient where the declaration says there can be none.
    """
    if not declared(module):
        return
    masks = Masks(module, rest="dealt")  # whatever a scenario makes of the rest, if it masks at all
    layers = torch.cat([torch.full((count,), index) for index, count in enumerate(masks.layers.values())])
    half = (torch.rand(masks.nodes) < 0.5).float()
    for kept in (half, 1 - half):
        masks.check_silence(example((4, *input_shape), vocabulary), kept)
        for layer in range(len(masks.layers)):
            masks.check_silence(example((4, *input_shape), vocabulary), torch.where(layers == layer, kept, 1.0))


def example(shape: tuple[int, ...], vocabulary: int | None) -> Tensor:
    """Random inputs of this shape, the batch included: numbers, or tokens of a vocabulary."""
    return torch.randn(shape) if vocabulary is None else torch.randint(vocabulary, shape)
