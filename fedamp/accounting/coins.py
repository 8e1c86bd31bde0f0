"""The first rounds of k of T as independent coins, and groups of rounds for them; ``reductions`` has the theorem."""

from functools import lru_cache

import numpy as np

from fedamp.accounting.bounds import Array
from fedamp.accounting.moments import UNIT


def _chances(k: int, rounds: int, released: int) -> Array:
    """Probabilities of independent coins whose sum has the law of a person's rounds among the released ones; shape
    (min(k, released),).

    They are the roots of a Jacobi polynomial: E[C(H, j)] = C(k, j) C(r, j) / C(T, j) makes the product of (x - p_i)
    proportional to 2F1(-n, T - n + 1; |r - k| + 1; x), n = min(k, r). Where k + r > T the coins of those not drawn
    are turned over.
    """
    if min(k, released) == 1:
        return np.array([max(k, released) / rounds])
    if k + released > rounds:
        hidden = (
            1 - _chances(k, rounds, rounds - released) if k <= released else 1 - _chances(rounds - k, rounds, released)
        )
        return np.concatenate([np.ones(min(k, released) - len(hidden)), hidden])
    n, alpha, beta = min(k, released), abs(released - k), rounds - k - released
    if n == 0:
        return np.zeros(0)
    total, i = alpha + beta, np.arange(1.0, n)
    first = (beta - alpha) / (total + 2)
    diagonal = np.concatenate([[first], (beta - alpha) * total / ((2 * i + total) * (2 * i + total + 2))])
    numerator = 4 * i * (i + alpha) * (i + beta) * (i + total)
    beside = np.sqrt(numerator / ((2 * i + total) ** 2 * (2 * i + total + 1) * (2 * i + total - 1)))
    return np.clip((1 - _eigenvalues(diagonal, beside)) / 2, 0.0, 1.0)


def _eigenvalues(diagonal: Array, beside: Array) -> Array:
    """Eigenvalues of a symmetric tridiagonal matrix, increasing. Small ones do without an import that takes longer."""
    if len(diagonal) <= 32:
        return np.linalg.eigvalsh(np.diag(diagonal) + np.diag(beside, -1))
    from scipy.linalg import eigvalsh_tridiagonal

    return np.asarray(eigvalsh_tridiagonal(diagonal, beside))


def coin_groups(k: int, rounds: int, released: int, most: int = 12) -> list[tuple[float, int, int]]:
    """The coins of a prefix and the sizes of their groups, at most ``most`` distinct ones: triples (probability,
    size, number).

    Sizes are in proportion to the probabilities, which is best at order 2. Where there are more coins, neighbours
    share the largest probability and the smallest size among them, which costs more.
    """
    exact = np.sort(_chances(k, rounds, released))
    if not len(exact):
        return []
    # Up, by what eigenvalues of a matrix of norm 1 may be off: a larger rate costs more.
    off = 8 * UNIT * (len(exact) + 4) if len(exact) > 1 else 0.0
    coins = np.minimum(exact * (1 + 8 * UNIT) + off, 1.0)
    low, high = 0.0, released / coins[-1] * 2
    for _ in range(4):  # the largest multiple of the coins that fits, to one part in 20,000
        tried = np.linspace(low, high, 13)
        fits = np.maximum(1, np.floor(tried[:, None] * coins)).sum(axis=1) <= released
        last = int(np.flatnonzero(fits)[-1])
        low, high = tried[last], tried[min(last + 1, 12)]
    sizes = np.maximum(1, np.floor(low * coins)).astype(int)
    sizes[np.argsort(sizes - low * coins, kind="stable")[: released - sizes.sum()]] += 1
    chunks = np.array_split(np.arange(len(coins)), min(most, len(coins)))
    return [(float(coins[chunk].max()), int(sizes[chunk].min()), len(chunk)) for chunk in chunks]


@lru_cache(maxsize=1024)
def best_coin_groups(k: int, rounds: int, released: int) -> list[tuple[float, int, int]]:
    """The groups of this prefix or, where groups are small, of one a little longer, which costs at least as much but
    may divide better. The cheapest is told by the second moment, sum of p^2 / size.
    """
    ahead = 31 if released < 3 * k <= 600 else 0
    candidates = [coin_groups(k, rounds, r) for r in range(released, min(rounds, released + ahead) + 1)]
    return min(candidates, key=lambda groups: sum(n * p * p / size for p, size, n in groups))
