"""ReLU and 2 x 2 max pooling in one pass, compiled: torch takes longer for the two than for a convolution before them.

Values and gradients are those of ``max_pool2d(relu(inputs), 2)``, to the bit; a NaN stays one, without a gradient.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedamp.accounting.compiled import compiled


class ReluMaxPool(nn.Module):
    """``max_pool2d(relu(inputs), 2)`` of images [..., height, width]."""

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.device.type != "cpu" or inputs.dtype != torch.float32:
            return F.max_pool2d(F.relu(inputs), 2)
        pooled: Tensor = _ReluMaxPool.apply(inputs)
        return pooled


class _ReluMaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        pooled = inputs.new_empty(*inputs.shape[:-2], inputs.shape[-2] // 2, inputs.shape[-1] // 2)
        inputs = inputs.contiguous()
        _pool(_images(inputs), _images(pooled))
        ctx.save_for_backward(inputs, pooled)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx, gradients):
        inputs, pooled = ctx.saved_tensors
        covered = all(size % 2 == 0 for size in inputs.shape[-2:])
        found = torch.empty_like(inputs) if covered else torch.zeros_like(inputs)
        _spread(_images(gradients.contiguous()), _images(inputs), _images(pooled), _images(found))
        return found


def _images(stack):
    return stack.detach().flatten(0, -3).numpy()


@compiled(nogil=True)
def _pool(inputs, pooled):
    """The largest of each square of four, at least zero; NaN where one of them is."""
    zero = np.float32(0)
    for image in range(len(pooled)):
        for row in range(pooled.shape[1]):
            into, top, bottom = pooled[image, row], inputs[image, 2 * row], inputs[image, 2 * row + 1]
            for place in range(into.size):
                most = top[2 * place]
                for value in (top[2 * place + 1], bottom[2 * place], bottom[2 * place + 1]):
                    most = value if value > most or value != value else most
                into[place] = zero if most <= zero else most


@compiled(nogil=True)
def _spread(gradients, inputs, pooled, found):
    """What comes back goes to the first of the four that is the largest, if that is above zero."""
    zero = np.float32(0)
    for image in range(len(pooled)):
        for row in range(pooled.shape[1]):
            largest, back = pooled[image, row], gradients[image, row]
            top, bottom = inputs[image, 2 * row], inputs[image, 2 * row + 1]
            top_found, bottom_found = found[image, 2 * row], found[image, 2 * row + 1]
            for place in range(largest.size):
                most = largest[place]
                left = back[place] if most > zero else zero
                hit = top[2 * place] == most
                top_found[2 * place] = left if hit else zero
                left = zero if hit else left
                hit = top[2 * place + 1] == most
                top_found[2 * place + 1] = left if hit else zero
                left = zero if hit else left
                hit = bottom[2 * place] == most
                bottom_found[2 * place] = left if hit else zero
                bottom_found[2 * place + 1] = zero if hit else left
