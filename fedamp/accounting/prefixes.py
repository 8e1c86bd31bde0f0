"""How rounds are put into groups, and how many of a person's rounds are among the first ones released."""

from functools import lru_cache

import numpy as np

from fedamp.accounting.bounds import Array


def group_sizes(k: int, rounds: int) -> list[tuple[int, int]]:
    """``rounds`` split into ``k`` groups as even as integers allow: pairs (size, how many groups of it)."""
    if k == 0:
        return []
    size, larger = divmod(rounds, k)
    return [(s, n) for s, n in ((size, k - larger), (size + 1, larger)) if n]


def _chances(k: int, rounds: int, released: int) -> Array:
    """Probabilities of independent coins whose sum has the law of a person's rounds among the released ones; shape
    (min(k, released),).

    They are the roots of a Jacobi polynomial: E[C(H, j)] = C(k, j) C(r, j) / C(T, j) makes the product of (x - p_i)
    proportional to 2F1(-n, T - n + 1; |r - k| + 1; x), n = min(k, r). Where k + r > T the coins of those not drawn
    are turned over.
    """
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


@lru_cache(maxsize=1024)
def coin_groups(k: int, rounds: int, released: int, most: int = 12) -> list[tuple[float, int, int]]:
    """The coins of a prefix and the sizes of their groups, at most ``most`` distinct ones: triples (probability,
    size, number).

    Sizes are in proportion to the probabilities, which is best at order 2. Where there are more coins, neighbours
    share the largest probability and the smallest size among them, which costs more.
    """
    coins = np.minimum(
        np.sort(_chances(k, rounds, released)) * (1 + 1e-12) + 4e-15, 1.0
    )  # up: a larger rate costs more
    if not len(coins):
        return []
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
