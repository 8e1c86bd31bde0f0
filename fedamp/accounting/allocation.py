"""Check-in to exactly k of T rounds, hidden: the whole run, and what is out after some of its rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedamp.accounting import checks, moments, transform
from fedamp.accounting.composition import NOTHING, Compose, Repeat, mechanism_of
from fedamp.accounting.mechanism import Mechanism, central, log_moments, negative, raw
from fedamp.accounting.moments import Array
from fedamp.accounting.sampling import Derived, Poisson, Submodels
from fedamp.accounting.transform import Transform


@dataclass(frozen=True)
class Allocation(Derived):
    """The whole run of ``rounds`` rounds, of which a person takes part in exactly ``k``, drawn at random and hidden.

    A random partition of the rounds into k groups, as even as integers allow, with one round drawn from each, is a
    random choice of k rounds; joint convexity removes the partition, and X is a product of k means (Feldman and
    Shenfeld 2025, Theorem 3.1 and Lemmas 3.2 and F.1).

    Args:
        mechanism: one round; it may itself be amplified (``Submodels``) or composed.
        k: 0 to ``rounds``.
        rounds: T >= 1.
    """

    mechanism: Mechanism
    k: int
    rounds: int

    def __post_init__(self) -> None:
        mechanism_of(self.mechanism)
        object.__setattr__(self, "rounds", checks.count("rounds", self.rounds))
        object.__setattr__(self, "k", checks.count("k", self.k, 0, self.rounds, "rounds"))

    def __str__(self) -> str:
        return f"{self.k} hidden rounds of {self.rounds} ({self.mechanism})"

    @property
    def is_private(self) -> bool:
        return self.k == 0 or self.mechanism.is_private

    @property
    def span(self) -> int:
        return self.rounds

    def unamplified(self) -> Mechanism:
        return Repeat(self.mechanism.unamplified(), self.k)

    def _prefix(self, rounds: int) -> Mechanism:
        return AllocationPrefix(self.mechanism, self.k, self.rounds, rounds)

    def _expansion(self) -> Mechanism:
        return Compose(
            tuple(Repeat(Submodels(self.mechanism, size), n) for size, n in _group_sizes(self.k, self.rounds))
            or (NOTHING,)
        )

    def _attack(self) -> Mechanism | None:
        if self.k == 1 and self.mechanism._attack() is self.mechanism:
            return self
        return _attack_on_allocation(self.mechanism, self.k, self.rounds, self.rounds)

    def _log_moments_over_rounds(self, rounds: Sequence[int], highest: int) -> Array:
        return _curve(self, rounds, highest)


@dataclass(frozen=True)
class AllocationPrefix(Derived):
    """The first ``released`` rounds of an ``Allocation``; the others are not out, and may never be.

    The number of a person's rounds among them is hypergeometric, hence a sum of independent coins of probabilities
    p_i (Vatutin and Mikhailov 1982). Split the released rounds at random into one group per coin, of any fixed sizes:
    one hidden round of group i, if coin i says so, is a random choice of that many rounds. So X is bounded by the
    product of (1 - p_i) + p_i (mean of the group's copies), in convex order, by joint convexity in the partition. At
    the last round every p_i is 1.

    For Rényi there is a second bound, better in early rounds: in the k-fold split of the whole run the numbers of
    released rounds in the groups are negatively associated, and each group's moment increases with its own, so the
    mean of the product of moments is at most the product of their means (Joag-Dev and Proschan 1983).

    Args:
        mechanism: one round.
        k: 0 to ``rounds``.
        rounds: T >= 1, of the whole run.
        released: 0 to ``rounds``.
    """

    mechanism: Mechanism
    k: int
    rounds: int
    released: int

    def __post_init__(self) -> None:
        Allocation(self.mechanism, self.k, self.rounds)
        object.__setattr__(self, "released", checks.count("released", self.released, 0, self.rounds, "rounds"))

    def __str__(self) -> str:
        return f"the first {self.released} of {Allocation(self.mechanism, self.k, self.rounds)}"

    @property
    def is_private(self) -> bool:
        return self.k == 0 or self.released == 0 or self.mechanism.is_private

    @property
    def span(self) -> int:
        return self.released

    def unamplified(self) -> Mechanism:
        return Repeat(self.mechanism.unamplified(), min(self.k, self.released))

    def _prefix(self, rounds: int) -> Mechanism:
        return AllocationPrefix(self.mechanism, self.k, self.rounds, rounds)

    def _expansion(self) -> Mechanism:
        groups = [
            Poisson(Submodels(self.mechanism, size), p) for p, size in _coin_groups(self.k, self.rounds, self.released)
        ]
        return Compose(tuple(groups) or (NOTHING,))

    def _raw(self, highest: int) -> Array:
        return np.minimum(raw(self._expansion(), highest), self._split_moments(highest)[0])

    def _negative(self, highest: int) -> Array:
        return np.minimum(negative(self._expansion(), highest), self._split_moments(highest)[1])

    def _split_moments(self, highest: int) -> tuple[Array, Array]:
        """The second bound: log E[X^a] for a = 0..A and log E[X^-b] for b = 0..A-1."""
        groups = [
            (n, _group_moments(self.mechanism, size, self.rounds, self.released, highest))
            for size, n in _group_sizes(self.k, self.rounds)
        ]
        totals = [np.sum([n * pair[direction] for n, pair in groups], axis=0) for direction in (0, 1)]
        return totals[0], totals[1]

    def _attack(self) -> Mechanism | None:
        if self.k == 1 and self.mechanism._attack() is self.mechanism:
            return self
        return _attack_on_allocation(self.mechanism, self.k, self.rounds, self.released)


def _group_sizes(k: int, rounds: int) -> list[tuple[int, int]]:
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
    from scipy.linalg import eigvalsh_tridiagonal

    n, alpha, beta = min(k, released), abs(released - k), rounds - k - released
    if n == 0:
        return np.zeros(0)
    total, i = alpha + beta, np.arange(1.0, n)
    first = (beta - alpha) / (total + 2)
    diagonal = np.concatenate([[first], (beta - alpha) * total / ((2 * i + total) * (2 * i + total + 2))])
    numerator = 4 * i * (i + alpha) * (i + beta) * (i + total)
    beside = np.sqrt(numerator / ((2 * i + total) ** 2 * (2 * i + total + 1) * (2 * i + total - 1)))
    roots = (1 - eigvalsh_tridiagonal(diagonal, beside)) / 2
    return np.clip(roots, 0.0, 1.0)


def _coin_groups(k: int, rounds: int, released: int) -> list[tuple[float, int]]:
    """Coins of a prefix and the sizes of their groups; sizes in proportion to the probabilities, which is best at
    order 2.
    """
    coins = np.minimum(
        np.sort(_coins(k, rounds, released)) * (1 + 1e-12) + 1e-15, 1.0
    )  # up: a larger rate is a larger cost
    if not len(coins):
        return []
    low, high = 0.0, released / coins[-1]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(1, np.floor(middle * coins)).sum() <= released else (low, middle)
    sizes = np.maximum(1, np.floor(low * coins)).astype(int)
    sizes[np.argsort(-coins * low + sizes, kind="stable")[: released - sizes.sum()]] += 1
    return [(float(p), int(size)) for p, size in zip(coins, sizes, strict=True)]


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

    def log_choose(n: int, j: Array) -> Array:
        from scipy.special import gammaln

        return gammaln(n + 1) - gammaln(j + 1) - gammaln(n - j + 1)

    logs = log_choose(size, numbers) + log_choose(rounds - size, released - numbers)
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
def _group_moments(mechanism: Mechanism, size: int, rounds: int, released: int, highest: int) -> tuple[Array, Array]:
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


def _curve(run: Allocation, rounds: Sequence[int], highest: int) -> Array:
    """Log moments of all prefixes, from at most 33 of them.

    The moments of a group's mean (not their logs) are convex in the number of released rounds: E f(S + Y + Z) - E f(S
    + Y) - E f(S + Z) + E f(S) >= 0 for independent centred Y, Z when f'' is convex, as for x^a and x^-b; averaging
    over hypergeometric numbers keeps that. So straight lines between computed prefixes are upper bounds.
    """
    knots = np.unique(np.linspace(0, run.rounds, min(run.rounds, 32) + 1).round().astype(int))
    position = np.clip(np.searchsorted(knots, rounds, side="left"), 1, len(knots) - 1)
    part = (np.asarray(rounds) - knots[position - 1]) / (knots[position] - knots[position - 1])
    used = np.unique(np.concatenate([position - 1, position]))
    result = [np.zeros((len(rounds), highest + 1)), np.zeros((len(rounds), highest))]
    with np.errstate(divide="ignore"):
        log_low, log_high = np.log1p(-part)[:, None], np.log(part)[:, None]
    for size, n in _group_sizes(run.k, run.rounds):
        pairs = {j: _group_moments(run.mechanism, size, run.rounds, int(knots[j]), highest) for j in used}
        for direction in (0, 1):
            low = np.stack([pairs[j - 1][direction] for j in position])
            high = np.stack([pairs[j][direction] for j in position])
            result[direction] += n * np.logaddexp(log_low + low, log_high + high)
    both = result[0]
    both[:, 1:] = np.maximum(both[:, 1:], result[1])
    whole = log_moments(run, highest)
    return np.where(np.asarray(rounds)[:, None] == run.rounds, whole, both)


def _linear_signal(mechanism: Mechanism) -> float | None:
    """Squared signal-to-noise ratio of the best fixed linear statistic of one release; None if the release is not of
    that kind.
    """
    from fedamp.accounting.basic import Gaussian

    if isinstance(mechanism, Gaussian):
        return 1 / mechanism.noise_multiplier**2
    if isinstance(mechanism, Submodels):
        inner = _linear_signal(mechanism.mechanism)
        return None if inner is None else inner / mechanism.count
    if isinstance(mechanism, Repeat):
        inner = _linear_signal(mechanism.mechanism)
        return None if inner is None else inner * mechanism.times
    if isinstance(mechanism, Compose):
        inners = [_linear_signal(part) for part in mechanism.mechanisms]
        return None if None in inners else sum(inner for inner in inners if inner is not None)
    return None


def _attack_on_allocation(mechanism: Mechanism, k: int, rounds: int, released: int) -> Mechanism | None:
    """For lower ends: the sum of all rounds' releases when all are out, one round's release otherwise."""
    from fedamp.accounting.basic import Gaussian

    signal = _linear_signal(mechanism)
    if k == 0 or released == 0:
        return NOTHING
    if released == rounds and signal is not None:
        return Gaussian((rounds / signal) ** 0.5 / k)
    attack = mechanism._attack()
    return None if attack is None else Poisson(attack, k / rounds)
