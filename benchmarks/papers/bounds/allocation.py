"""Feldman, Shenfeld 2025, "Privacy Amplification by Random Allocation": in exactly one of ``rounds`` hidden rounds.

The bounds of sections 4.1 and 4.3 compare with Poisson sampling. They take its privacy profile as a function
``poisson_delta(rate, epsilon)``: the delta of ``rounds`` rounds at that sampling rate, in the direction that the
theorem asks for, or an upper bound of it. (The larger of both directions will do, but loses much in the add direction
at large epsilon.) Take it from ``fedamp.accounting`` or from dp-accounting. "Remove" is H(with the person, without),
"add" is H(without, with).

Noise multipliers are in clipping norms, epsilon and Rényi divergences in nats.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, logsumexp, ndtr

from benchmarks.papers.bounds.arguments import Floats, check_count, check_orders, check_positive, check_probability

PoissonDelta = Callable[[float, float], float]

_LARGEST_EPSILON = 700.0  # exp overflows beyond; delta only falls with epsilon, so that stopping here is safe
_LARGEST_PARTITIONED = 50  # 204226 partitions; of 100 there are 190 million

__all__ = [
    "allocation_sizes",
    "decomposition_add",
    "decomposition_remove",
    "delta_from_rdp",
    "direct_add",
    "direct_add_as_printed",
    "direct_remove_rdp",
    "epsilon_from_rdp",
    "gaussian_delta",
    "gaussian_log_moments",
    "recursive_add",
    "recursive_remove",
    "truncated_poisson",
]


def gaussian_delta(noise_multiplier: float, epsilon: ArrayLike) -> Floats:
    """Lemma 2.7 (Balle and Wang 2018): the exact delta of the Gaussian mechanism; any real ``epsilon``, any shape."""
    check_positive("noise_multiplier", noise_multiplier)
    eps = np.asarray(epsilon, dtype=float)
    half = 1 / (2 * noise_multiplier)
    return np.maximum(ndtr(half - eps * noise_multiplier) - np.exp(eps) * ndtr(-half - eps * noise_multiplier), 0.0)


def gaussian_log_moments(noise_multiplier: float, top: int) -> Floats:
    """``log E[X^p] = (p - 1) R_p`` of the Gaussian mechanism for p = 0..top: what :func:`direct_remove_rdp` takes."""
    check_positive("noise_multiplier", noise_multiplier)
    power = np.arange(check_count("top", top) + 1)
    return power * (power - 1) / (2 * noise_multiplier**2)


def allocation_sizes(rounds: int, chosen: int) -> tuple[int, ...]:
    """Lemma 3.2: ``chosen`` of ``rounds`` costs at most one of each of these numbers of rounds, composed.

    The paper takes ``floor(rounds / chosen)`` for every one of the ``chosen`` parts; any random partition gives the
    same allocation, so the parts may be as even as integers allow, and the remainder is not lost.
    """
    rounds, chosen = check_count("rounds", rounds), check_count("chosen", chosen)
    if chosen > rounds:
        raise ValueError(f"chosen must not exceed rounds, got {chosen} of {rounds}")
    small, larger = divmod(rounds, chosen)
    return (small + 1,) * larger + (small,) * (chosen - larger)


def truncated_poisson(
    poisson_delta: PoissonDelta, rounds: int, epsilon: float, local_epsilon: float, local_delta: float, slack: float
) -> float:
    """Theorem 4.1: delta at ``epsilon``, either direction (that of ``poisson_delta``).

    Args:
        local_epsilon, local_delta: what one round satisfies without amplification, ``local_epsilon > 0``.
        slack: the probability, in (0, 1), given to the event that the posterior sampling rate is exceeded.

    The proof bounds the range of a martingale step by ``2 cosh(local_epsilon)``; it is ``2 sinh(local_epsilon)``.
    """
    rounds = check_count("rounds", rounds)
    check_positive("epsilon", epsilon)
    check_positive("local_epsilon", local_epsilon)
    check_probability("local_delta", local_delta)
    if not 0 < slack < 1:
        raise ValueError(f"slack must lie strictly between 0 and 1, got {slack}")
    deviation = math.cosh(min(local_epsilon, _LARGEST_EPSILON)) * math.sqrt(-2 * math.log(slack) / rounds)
    gamma = min(deviation, 1 - 1 / rounds)
    return min(1.0, poisson_delta(1 / (rounds * (1 - gamma)), epsilon) + rounds * local_delta + slack)


def recursive_remove(
    poisson_delta: PoissonDelta, rounds: int, epsilon: float, larger_epsilon: float, larger_delta_add: float
) -> float:
    """Theorem 4.2, remove direction: delta at ``epsilon`` from the scheme's own delta at ``larger_epsilon``.

    Args:
        larger_epsilon: epsilon' of the theorem, positive, at most ``log(rounds) / 2`` (the rate would exceed 1).
        larger_delta_add: any bound of the *add* direction's delta of the same allocation at ``larger_epsilon``.

    The proof carries a factor 2 that the theorem does not; Markov's inequality needs none, so the theorem is right.
    """
    rate, tau = _recursion(rounds, epsilon, larger_epsilon, larger_delta_add)
    return min(1.0, poisson_delta(rate, epsilon) + tau * larger_delta_add)


def recursive_add(
    poisson_delta: PoissonDelta, rounds: int, epsilon: float, larger_epsilon: float, larger_delta_add: float
) -> float:
    """Theorem 4.2, add direction; arguments as in :func:`recursive_remove`."""
    rate, tau = _recursion(rounds, epsilon, larger_epsilon, larger_delta_add)
    return min(1.0, poisson_delta(rate, epsilon) + tau * math.exp(2 * larger_epsilon) * larger_delta_add)


def decomposition_remove(poisson_delta: PoissonDelta, rounds: int, epsilon: float, rate: float | None = None) -> float:
    """Theorem 4.6, remove direction, for any ``rate`` in (0, 1] of the Poisson scheme (the paper's figures: 1 / t)."""
    rate, gamma = _decomposition(rounds, epsilon, rate)
    at = math.log1p(math.expm1(min(epsilon, _LARGEST_EPSILON)) / gamma)
    return min(1.0, gamma * poisson_delta(rate, at))


def decomposition_add(poisson_delta: PoissonDelta, rounds: int, epsilon: float, rate: float | None = None) -> float:
    """Theorem 4.6, add direction, for any ``rate`` in (0, 1] of the Poisson scheme (the paper's figures: 1 / t)."""
    rate, gamma = _decomposition(rounds, epsilon, rate)
    reached = min(epsilon, _LARGEST_EPSILON)
    scale = 1 + math.exp(reached) * (gamma - 1)
    return min(1.0, scale * poisson_delta(rate, -math.log1p(math.expm1(-reached) / gamma)))


def direct_remove_rdp(log_moments: ArrayLike, rounds: int, orders: ArrayLike) -> Floats:
    """Theorem 4.8, Corollary 4.10: the exact Rényi divergence in the remove direction, by integer partitions.

    Args:
        log_moments: ``(p - 1) R_p`` of the randomizer for p = 0..(largest order), shape (largest order + 1,); the proof
            in appendix E prints ``(order - 1) R_p`` where it means this.
        orders: integers from 2 to 50. Beyond, ``partitioning.forward_rdp`` gives the same number by generating
            functions.

    Raises:
        ValueError: for an order above 50, which has too many partitions.
    """
    rounds = check_count("rounds", rounds)
    order = check_orders(orders, integer=True).astype(int)
    moments = np.asarray(log_moments, dtype=float)
    if order.max() > _LARGEST_PARTITIONED:
        raise ValueError(f"orders must be at most {_LARGEST_PARTITIONED} for a sum over partitions, got {order.max()}")
    if moments.shape != (len(moments),) or len(moments) <= order.max():
        raise ValueError(f"log_moments must hold the orders 0 to {order.max()}, got shape {moments.shape}")
    return np.array([_partition_sum(moments, rounds, int(a)) / (a - 1) for a in order])


def direct_add(noise_multiplier: float, rounds: int, epsilon: float) -> float:
    """Theorem 4.9 as Corollary 4.10 evaluates it for Gaussian noise: delta at ``epsilon`` in the add direction.

    The Gaussian mechanism with ``sqrt(rounds)`` times the noise, at ``epsilon - (1 - 1 / rounds) / (2 s^2)``.

    The theorem prints ``epsilon - t log Z``; with Z the normalising factor it is ``epsilon + t log Z``. The proof of
    the corollary has ``log Z`` with the wrong sign too, so that its result is right.
    """
    rounds = check_count("rounds", rounds)
    check_positive("noise_multiplier", noise_multiplier)
    shifted = epsilon + rounds * _log_normalizer(noise_multiplier, rounds)
    return float(gaussian_delta(math.sqrt(rounds) * noise_multiplier, shifted))


def direct_add_as_printed(noise_multiplier: float, rounds: int, epsilon: float) -> float:
    """Theorem 4.9 with the sign of ``t log Z`` as printed: **not** an upper bound; use :func:`direct_add`."""
    rounds = check_count("rounds", rounds)
    check_positive("noise_multiplier", noise_multiplier)
    shifted = epsilon - rounds * _log_normalizer(noise_multiplier, rounds)
    return float(gaussian_delta(math.sqrt(rounds) * noise_multiplier, shifted))


def epsilon_from_rdp(rdp: ArrayLike, orders: ArrayLike, delta: float) -> float:
    """Lemma 2.4 (Canonne, Kamath, Steinke 2020, Prop. 12): the smallest epsilon of all ``orders``, at least 0.

    Args:
        rdp: divergences in nats, shape (orders,).
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta}")
    order = check_orders(orders)
    conversion = (-math.log(delta) - np.log(order - 1) + order * np.log1p(-1 / order)) / (order - 1)
    return max(0.0, float(np.min(np.asarray(rdp) + conversion)))


def delta_from_rdp(rdp: ArrayLike, orders: ArrayLike, epsilon: float) -> float:
    """Lemma 2.4 the other way round: the smallest delta of all ``orders`` at ``epsilon >= 0``, at most 1."""
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be >= 0 and finite, got {epsilon}")
    order = check_orders(orders)
    log_delta = (order - 1) * (np.asarray(rdp) - epsilon) + order * np.log1p(-1 / order) - np.log(order - 1)
    return float(np.exp(min(0.0, float(np.min(log_delta)))))


def _recursion(rounds: int, epsilon: float, larger_epsilon: float, larger_delta: float) -> tuple[float, float]:
    """``(eta, tau)`` of Theorem 4.2."""
    rounds = check_count("rounds", rounds)
    check_positive("epsilon", epsilon)
    check_positive("larger_epsilon", larger_epsilon)
    check_probability("larger_delta_add", larger_delta)
    rate = math.exp(2 * larger_epsilon) / rounds
    if rate > 1:
        raise ValueError(
            f"larger_epsilon must not exceed log(rounds) / 2 = {math.log(rounds) / 2:.6g}, got {larger_epsilon}"
        )
    return rate, 1 / (math.exp(larger_epsilon) * math.expm1(larger_epsilon))


def _decomposition(rounds: int, epsilon: float, rate: float | None) -> tuple[float, float]:
    """The Poisson rate and gamma, the inverse of the probability that it picks the person at least once."""
    rounds = check_count("rounds", rounds)
    check_positive("epsilon", epsilon)
    rate = 1 / rounds if rate is None else check_positive("rate", check_probability("rate", rate))
    never = rounds * math.log1p(-rate) if rate < 1 else -math.inf
    return rate, -1 / math.expm1(never)


def _log_normalizer(noise_multiplier: float, rounds: int) -> float:
    """``log Z`` of Theorem 4.9: the integral of ``P^(1/t) Q^(1 - 1/t)`` for Gaussians one apart; not positive."""
    share = 1 / rounds
    return -share * (1 - share) / (2 * noise_multiplier**2)


def _partition_sum(log_moments: Floats, rounds: int, order: int) -> float:
    """``log E[(mean of rounds copies)^order]`` as the sum over the integer partitions of ``order``."""
    log_factorial = gammaln(np.arange(order + 1) + 1.0)
    log_part = log_moments[: order + 1] - log_factorial[: order + 1]
    terms = []
    for counts in _partitions(order, order):
        used = sum(number for _, number in counts)
        if used <= rounds:
            # Which rounds get which part: rounds! / ((rounds - used)! product of number!), kept exact for large rounds.
            placements = float(np.sum(np.log(rounds - np.arange(used))))
            terms.append(placements + sum(n * log_part[part] - log_factorial[n] for part, n in counts))
    return float(logsumexp(terms) + log_factorial[order] - order * math.log(rounds))


def _partitions(total: int, largest: int) -> Iterator[list[tuple[int, int]]]:
    """Integer partitions of ``total`` into parts of at most ``largest``, each as pairs (part, how many)."""
    if total == 0:
        yield []
        return
    if largest == 1:
        yield [(1, total)]
        return
    for number in range(total // largest, -1, -1):
        for rest in _partitions(total - number * largest, largest - 1):
            yield ([(largest, number), *rest]) if number else rest
