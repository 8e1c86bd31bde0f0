"""Binary matrices with given row sums, weighted by how many ones share a column.

Dong, Chen and Özgür 2025 write the exact Rényi divergence of order ``a`` for ``chosen`` of ``blocks`` as a sum over all
``binom(blocks, chosen)^a`` tuples of binary vectors. A tuple is a binary matrix with ``a`` rows, each of sum
``chosen``, and its exponent counts the pairs of ones that share a column. Filling the matrix column by column, only the
histogram of the row sums so far matters: ``binom(a + chosen, chosen)`` states.
"""

from collections.abc import Iterator
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

_LARGEST_COST = 100_000_000  # elementary steps, of the order of ten seconds


def log_weighted_matrices(rows: int, columns: int, row_sum: int, pair_weight: float) -> float:
    """Log of the sum of ``exp(pair_weight * pairs)`` over ``rows`` x ``columns`` binary matrices of that row sum.

    ``pairs`` is the number of unordered pairs of ones in the same column. Needs ``1 <= row_sum <= columns``.

    Raises:
        ValueError: if it would take more than about ten seconds.
    """
    longest = min(columns, rows * row_sum)
    cost = comb(rows + 2 * row_sum, 2 * row_sum) * longest
    if cost > _LARGEST_COST or (rows + 1) ** row_sum >= 2**62:  # states are told apart by a 64-bit code
        raise ValueError(
            f"orders: order {rows} for {row_sum} of {columns} needs about {float(cost):.0e} steps to count exactly, "
            f"too many; use smaller orders or forward_rdp_upper"
        )
    states = np.array(list(_compositions(rows, row_sum + 1)))
    moves = _column_moves(states, pair_weight)
    totals = np.where(states[:, 0] == rows, 0.0, -np.inf)
    full = int(np.flatnonzero(states[:, -1] == rows)[0])
    answer = -np.inf
    for used in range(1, longest + 1):
        # Columns without a one are not walked through but chosen at the end: `used` of them have ones.
        grown = np.full_like(totals, -np.inf)
        for source, target, log_ways in moves:
            grown[target] = np.logaddexp(grown[target], totals[source] + log_ways)
        totals = grown
        choose_used = gammaln(columns + 1) - gammaln(used + 1) - gammaln(columns - used + 1)
        answer = np.logaddexp(answer, totals[full] + choose_used)
    return float(answer)


def _column_moves(states: NDArray[np.int64], pair_weight: float) -> list[tuple[NDArray, NDArray, NDArray]]:
    """Every way to fill one column: (states before, states after, log of the number of ways times the weight)."""
    rows, parts = int(states[0].sum()), states.shape[1]
    radix = (rows + 1) ** np.arange(parts - 1, -1, -1, dtype=np.int64)
    codes = states @ radix
    by_code = np.argsort(codes)
    log_factorial = gammaln(np.arange(rows + 1) + 1.0)
    moves = []
    for step in states:
        # step[j] rows of sum j get a one, for j below row_sum; the last part counts the rows that get none.
        ones = rows - step[-1]
        if ones == 0:
            continue
        taken = np.append(step[:-1], 0)
        source = np.flatnonzero((states >= taken).all(axis=1))
        before = states[source]
        after = before - taken
        ways = (log_factorial[before] - log_factorial[after] - log_factorial[taken]).sum(axis=1)
        target = by_code[np.searchsorted(codes, (after + np.roll(taken, 1)) @ radix, sorter=by_code)]
        moves.append((source, target, ways + pair_weight * ones * (ones - 1) / 2))
    return moves


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All tuples of ``parts`` whole numbers that sum to ``total``."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)
