"""What clipping does to every number of every update on a CPU, compiled: one pass for the norms, one for the sum.

As array operations the same takes a dozen passes over memory, and longer than to train a small network. Results
go to arrays of the caller's: making them here would take several times as long to compile.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"

import numpy as np

from fedamp.accounting.compiled import compiled

_BLOCK = 2048  # numbers of the sum handled at a time: they stay in the fastest cache while all units are added


@compiled(nogil=True, fastmath={"reassoc", "contract"})
def square_norms(stack, squares):
    """Sums of squares, float64 [units], of float32 [units, numbers].

    Numbers may be added up in any order, the same for every unit.
    """
    for unit in range(len(stack)):
        row, total = stack[unit], 0.0
        for place in range(row.size):
            number = np.float64(row[place])
            total += number * number
        squares[unit] = total


@compiled(nogil=True)
def add_quanta(stack, scales, limit, total):
    """Add to ``total``, int64 [numbers], every unit's scaled numbers, at most ``limit`` < 2**31 in size and truncated
    towards zero.
    """
    for first in range(0, stack.shape[1], _BLOCK):
        into = total[first : first + _BLOCK]
        for unit in range(len(stack)):
            scale, row = scales[unit], stack[unit, first : first + _BLOCK]
            if scale != 0:  # what is not finite has no part in the sum
                for place in range(into.size):
                    into[place] += np.int32(min(max(row[place] * scale, -limit), limit))
