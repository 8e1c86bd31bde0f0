"""The mathematics of a prefix: what the first r rounds of a k-of-T allocation tell (see ``AllocationPrefix`` for the
proofs).
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fedamp.accounting import moments, transform
from fedamp.accounting.mechanism import Mechanism, central, negative, raw
from fedamp.accounting.moments import Array
from fedamp.accounting.transform import Transform


def group_sizes(k: int, rounds: int) -> list[tuple[int, int]]:
    """``rounds`` split into ``k`` groups as even as integers allow: pairs (size, how many groups of it)."""
    if k == 0:
        return []
    size, larger = divmod(rounds, k)
    return [(s, n) for s, n in ((size, k - larger), (size + 1, larger)) if n]


def _coins(k: int, rounds: int, released: int) -> Array:
    """Probabilities of independent coins whose sum has the law of a person's rounds among the released ones; shape
    (min(k, released),).

    They are the roots of a Jacobi polynomial: E[C(H, j)] = C(k, j) C(r, j) / C(T, j) makes the product of (x - p_i)
    proportional to 2F1(-n, T - n + 1; |r - k| + 1; x), n = min(k, r). Where k + r > T the coins of those not drawn
    are turned over.
    """
    if k + released > rounds:
        hidden = 1 - _coins(k, rounds, rounds - released) if k <= released else 1 - _coins(rounds - k, rounds, released)
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
    coins = np.minimum(np.sort(_coins(k, rounds, released)) * (1 + 1e-12) + 4e-15, 1.0)  # up: a larger rate costs more
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


@lru_cache(maxsize=1024)
def best_coin_groups(k: int, rounds: int, released: int) -> list[tuple[float, int, int]]:
    """The groups of this prefix or of one a little longer, which costs at least as much but may divide better.

    The cheapest is told by the second moment, sum of p^2 / size.
    """
    ahead = 31 if k <= 200 else 0  # sizes of very many groups divide about equally well everywhere
    candidates = [coin_groups(k, rounds, r) for r in range(released, min(rounds, released + ahead) + 1)]
    return min(candidates, key=lambda groups: sum(n * p * p / size for p, size, n in groups))


def most_likely_share(rounds: int, released: int) -> tuple[float, float]:
    """A probability at which ``released`` or more of ``rounds`` rounds are out with a chance near 1/2, and that
    chance.
    """
    rate = released / rounds
    if rate in (0.0, 1.0):
        return rate, 1.0
    out = np.arange(rounds + 1.0)
    logs = moments.log_choose(rounds, out) + out * np.log(rate) + (rounds - out) * np.log1p(-rate)
    chance = np.exp(moments.log_sum(logs[released:]) - moments.log_sum(logs))
    return rate, float(chance) * (1 - 1e-7)  # down: the exponents are rounded, for a million rounds by some 1e-8


@lru_cache(maxsize=4096)
def _share_raw(mechanism: Mechanism, copies: int, of: int, highest: int) -> Array:
    """log E[X^a] of the mean of ``of`` rounds of which ``copies`` are released."""
    if copies == of == 1:
        return raw(mechanism, highest)
    if copies == 0:
        return np.zeros(highest + 1)
    return moments.raw(moments.mean(central(mechanism, highest), copies, of))


def _share_law(size: int, rounds: int, released: int, most: int = 48) -> list[tuple[int, float]]:
    """How many of a group's ``size`` rounds are among the first ``released`` of ``rounds``: pairs (number, log
    probability).

    Hypergeometric; at most ``most`` numbers are kept, each standing for those just below it (more released costs more).
    """
    numbers = np.arange(max(0.0, size + released - rounds), min(size, released) + 1)

    logs = moments.log_choose(size, numbers) + moments.log_choose(rounds - size, released - numbers)
    logs -= moments.log_sum(logs)
    likely = np.flatnonzero(logs > -800)
    chunks = np.array_split(likely, min(most, len(likely)))
    above = np.exp(logs[likely[-1] + 1 :]).sum()
    shares = [(int(numbers[chunk[-1]]), float(moments.log_sum(logs[chunk]))) for chunk in chunks]
    return shares if above == 0 else [*shares, (int(numbers[-1]), -800.0)]


@lru_cache(maxsize=64)
def _grid_transform(mechanism: Mechanism, size: int) -> Transform:
    return mechanism._transform(transform.GRID / size)


@lru_cache(maxsize=512)
def group_moments(mechanism: Mechanism, size: int, rounds: int, released: int, highest: int) -> tuple[Array, Array]:
    """Moments of one group's mean, averaged over how many of its rounds are released: log E[X^a] and log E[X^-b]."""
    shares = _share_law(size, rounds, released)
    logs = np.array([log for _, log in shares])
    positive = moments.log_sum(
        np.stack([_share_raw(mechanism, n, size, highest) for n, _ in shares]) + logs[:, None], axis=0
    )
    if size == 1:
        parts = np.stack([negative(mechanism, highest) if n else np.zeros(highest) for n, _ in shares])
        return positive, moments.log_sum(parts + logs[:, None], axis=0)

    def averaged(u: Array) -> Transform:
        part = _grid_transform(mechanism, size) if u is transform.GRID else mechanism._transform(u / size)
        means = [Transform(n * part.log - u * ((size - n) / size), n * part.excess) for n, _ in shares]
        return transform.mixture(means, tuple(np.exp(logs)))

    return positive, transform.negative_moments(averaged, highest)


def moments_over_rounds(
    mechanism: Mechanism, k: int, rounds: int, asked: Sequence[int], highest: int, knots: int = 32
) -> Array:
    """Log moments (both directions) of the prefixes of an allocation, from at most ``knots + 1`` of them; shape
    (len(asked), A + 1).

    The moments of a group's mean (not their logs) are convex in the number of released rounds: E f(S + Y + Z) - E f(S
    + Y) - E f(S + Z) + E f(S) >= 0 for independent centred Y, Z when f'' is convex, as for x^a and x^-b; averaging
    over hypergeometric numbers keeps that. So straight lines between computed prefixes are upper bounds.
    """
    at = np.unique(np.linspace(0, rounds, min(rounds, knots) + 1).round().astype(int))
    right = np.clip(np.searchsorted(at, asked, side="left"), 1, len(at) - 1)
    part = (np.asarray(asked) - at[right - 1]) / (at[right] - at[right - 1])
    totals = [np.zeros((len(asked), highest + 1)), np.zeros((len(asked), highest))]
    with np.errstate(divide="ignore"):
        log_left, log_right = np.log1p(-part)[:, None], np.log(part)[:, None]
    for size, n in group_sizes(k, rounds):
        groups = {j: group_moments(mechanism, size, rounds, int(at[j]), highest) for j in {*right, *(right - 1)}}
        for direction, total in enumerate(totals):
            before, after = (np.stack([groups[j][direction] for j in index]) for index in (right - 1, right))
            total += n * np.logaddexp(_weighted(log_left, before), _weighted(log_right, after))
    totals[0][:, 1:] = np.maximum(totals[0][:, 1:], totals[1])
    return totals[0]


def _weighted(log_weight: Array, log_moments: Array) -> Array:
    """Log of weight times moment, where a weight of zero leaves nothing even of an infinite moment."""
    nothing = np.full(np.broadcast_shapes(log_weight.shape, log_moments.shape), -np.inf)
    return np.add(log_weight, log_moments, out=nothing, where=log_weight > -np.inf)
