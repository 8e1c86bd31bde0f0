"""Run a full model under dropout masks: one 0/1 number for every node of some hidden layers.

A dropped node sends nothing to the rest of the network. The gradient of what it owns is exactly zero: its weights, its
bias and its columns of the next layer. Weight decay and the like would move them all the same, so :meth:`Masks.silence`
takes them out of every update. **Nothing is rescaled**, in training or evaluation: a masked model computes what the
extracted submodel of the kept nodes computes.

:mod:`fedamp.models.pieces` draws the masks, and calls :meth:`Masks.silence` before any update is clipped.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from fedamp.models.units import Blocks, Units, check_shared, hidden_layers


class Masks:
    """Runs a module without some of its nodes.

    A mask is one vector of zeros and ones, the named layers one after another; :meth:`call` can be vmapped over masks.

    Args:
        module: declares its nodes (:mod:`fedamp.models.units`).
        rest: treatment of parameters without owners: ``shared``, ``partitioned`` or ``frozen``.

    Attributes:
        module: the full network.
        layers: number of nodes of every masked layer, in the order of the mask.
        nodes: length of a mask.
        shared, partitioned, frozen: names of parameters that no unit owns, by ``rest``. All neither shared nor frozen
            form the split group, in which the updates of masks without a common node have disjoint supports (Dong,
            Chen, Özgür 2025, Corollary 3.7); every coordinate of ``partitioned`` counts as a node.

    Raises:
        ModelError: a module that declares no hidden layers, or nothing to share.
    """

    def __init__(self, module: nn.Module, rest: str = "shared") -> None:
        self.module = module
        self._declarations = hidden_layers(module)
        self.layers = {declaration.layer: declaration.count for declaration in self._declarations}
        self.nodes = sum(self.layers.values())
        names = [name for name, _ in module.named_parameters()]
        unowned = tuple(name for name in names if not any(each.owners(name) for each in self._declarations))
        check_shared(type(module).__name__, unowned, rest)
        self.shared = frozenset(unowned if rest == "shared" else ())
        self.frozen = frozenset(unowned if rest == "frozen" else ())
        self.partitioned = unowned if rest == "partitioned" else ()

    def call(self, parameters: Mapping[str, Tensor], inputs: Tensor, mask: Tensor) -> Tensor:
        """Compute logits [batch, classes] of the module with these parameter values, under a mask of shape [nodes]."""
        handles = self._attach(self.module, mask)
        try:
            logits: Tensor = functional_call(self.module, dict(parameters), (inputs,))
            return logits
        finally:
            for handle in handles:
                handle.remove()

    def of(self, kept: Mapping[str, Sequence[int]]) -> Tensor:
        """Return the mask, float32 [nodes], that keeps these nodes of every masked layer."""
        mask = torch.zeros(self.nodes)
        for declaration, part in self._parts(mask):
            part[list(kept[declaration.layer])] = 1
        return mask

    def fixed(self, mask: Tensor) -> nn.Module:
        """Copy the module so that it always runs under this mask."""
        module = copy.deepcopy(self.module)
        self._attach(module, mask)
        return module

    def dropped(self, name: str, shape: Sequence[int], mask: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield, for each layer with owners of a parameter, its name and the coordinates of dropped nodes.

        Args:
            name: of the parameter.
            shape: of the parameter.
            mask: [masks, nodes].

        Returns:
            bool tensors that broadcast to [masks, *shape].
        """
        for declaration, part in self._parts(mask != 0):
            if declaration.owners(name):
                yield declaration.layer, ~declaration.owned_by(name, shape, part)

    def silence(self, updates: Mapping[str, Tensor], mask: Tensor) -> None:
        """Set to zero, in place, what any dropped node owns.

        Args:
            updates: [masks, *shape] by parameter name.
            mask: [masks, nodes].
        """
        for name, update in updates.items():
            for _, dropped in self.dropped(name, update.shape[1:], mask):
                update.masked_fill_(dropped.to(update.device), 0.0)  # not a product: zero times NaN is NaN

    def _parts(self, mask: Tensor) -> Iterator[tuple[Units | Blocks, Tensor]]:
        """Yield the layers, with their part of a mask of shape [..., nodes]."""
        return zip(self._declarations, torch.split(mask, list(self.layers.values()), -1), strict=True)

    def _attach(self, module: nn.Module, mask: Tensor) -> list[RemovableHandle]:
        """Hook a mask to the outputs of the module's nodes; removing the handles takes it off."""
        return [
            module.get_submodule(submodule).register_forward_hook(hook)
            for declaration, part in self._parts(mask)
            for submodule, hook in zip(declaration.submodules, declaration.hooks(part), strict=True)
        ]
