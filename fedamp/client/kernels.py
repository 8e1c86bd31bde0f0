"""What a CPU does to every number of every update or image, compiled: few passes over memory in place of a dozen.

Results go to the caller's arrays: making them here would take several times as long to compile.
"""

from typing import Any

import numpy as np

from fedamp.accounting.kernels import compiled

Array = Any  # Numba compiles for the arrays that come

_BLOCK = 2048  # numbers of the sum handled at a time: they stay in the fastest cache while all units are added


@compiled(nogil=True, fastmath={"reassoc", "contract"})
def square_norms(stack: Array, squares: Array) -> None:
    """Sums of squares, float64 [units], of float32 [units, numbers], in an order that is the same for every unit."""
    for unit in range(len(stack)):
        row, total = stack[unit], np.float64(0)
        for place in range(row.size):
            number = np.float64(row[place])
            total += number * number
        squares[unit] = total


@compiled(nogil=True)
def add_quanta(stack: Array, scales: Array, limit: Any, total: Array) -> None:
    """Add to ``total``, int64 [numbers], every unit's scaled numbers, truncated towards zero.

    ``limit`` < 2**31 bounds their size. A unit whose scale is zero adds nothing, finite or not.
    """
    for first in range(0, stack.shape[1], _BLOCK):
        into = total[first : first + _BLOCK]
        for unit in range(len(stack)):
            scale, row = scales[unit], stack[unit, first : first + _BLOCK]
            if scale != 0:
                for place in range(into.size):
                    into[place] += np.int32(min(max(row[place] * scale, -limit), limit))


@compiled(nogil=True)
def relu_max_pool(inputs: Array, pooled: Array) -> None:
    """The largest of each square of four of images [images, height, width], at least zero; NaN where one of them is."""
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
def relu_max_pool_backward(gradients: Array, inputs: Array, pooled: Array, found: Array) -> None:
    """Each gradient goes to the first of the four that is the largest, if that is above zero."""
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
