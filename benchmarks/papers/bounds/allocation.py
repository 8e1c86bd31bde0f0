"""Feldman, Shenfeld 2025, "Privacy Amplification by Random Allocation": its bounds, in epsilon and in delta.

In exactly one of ``rounds`` hidden rounds, or in ``chosen`` of them by Lemma 3.2. "Remove" is H(with the person,
without), "add" is H(without, with). Noise multipliers are in clipping norms. Poisson sampling, Theorem 4.8 (Rényi
divergences of 1 of t) and the conversions are fedamp's; searches for epsilon end on the safe side, within 1e-3.
"""

import math
from collections.abc import Callable, Iterable

import numpy as np
from scipy.special import ndtr

from benchmarks.papers.bounds import balls_and_bins
from benchmarks.papers.bounds.mixtures import Floats, sampled_gaussian_rdp
from benchmarks.papers.bounds.partitioning import cheap_rdp
from benchmarks.papers.charges import Direction, upper_law
from fedamp.accounting import Allocation, Gaussian, Mechanism, Poisson, Repeat, epsilon_from_rdp

ORDERS = np.arange(2.0, 61.0)
"""The orders of the paper's experiments."""

PEER_ORDERS = np.concatenate([np.arange(11, 110) / 10, np.arange(12, 64)])
"""The orders of dp-accounting and Opacus."""


def poisson(noise_multiplier: float, rounds: int, rate: float) -> Mechanism:
    """``rounds`` rounds of Poisson sampling."""
    once = Poisson(Gaussian(noise_multiplier), rate)
    return once if rounds == 1 else Repeat(once, rounds)


def allocated(noise_multiplier: float, rounds: int, chosen: int = 1) -> Mechanism:
    """``chosen`` of ``rounds`` hidden rounds."""
    return Allocation(Gaussian(noise_multiplier), chosen, rounds)


# --- epsilon ----------------------------------------------------------------------------------------------------------


def local_epsilon(noise_multiplier: float, delta: float) -> float:
    """One round without amplification: the Gaussian mechanism."""
    return Gaussian(noise_multiplier).epsilon(delta).upper


def poisson_rdp_epsilon(noise_multiplier: float, rounds: int, rate: float, delta: float) -> float:
    """Poisson sampling by Rényi divergences, at the orders of dp-accounting from 1.1 to 63."""
    rdp = rounds * sampled_gaussian_rdp(noise_multiplier, rate, PEER_ORDERS)
    return epsilon_from_rdp(PEER_ORDERS, rdp, delta)


def cheap_epsilon(noise_multiplier: float, rounds: int, delta: float, chosen: int = 1) -> float:
    """Dong, Chen, Özgür 2025, Eq. (3), with the tight conversion."""
    return epsilon_from_rdp(ORDERS, cheap_rdp(noise_multiplier, chosen, rounds, ORDERS), delta)


def direct_rdp(noise_multiplier: float, rounds: int, chosen: int = 1) -> Floats:
    """Theorem 4.8 with Lemma 3.2 at ``ORDERS``: ``chosen`` parts of the rounds, as even as integers allow."""
    small, larger = divmod(rounds, chosen)
    sizes = {small + 1: larger, small: chosen - larger}
    parts = [times * allocated(noise_multiplier, size).rdp(ORDERS) for size, times in sizes.items() if times]
    return np.sum(parts, axis=0)


def direct_epsilon(
    noise_multiplier: float,
    rounds: int,
    delta: float,
    chosen: int = 1,
    epochs: int = 1,
    direction: Direction | None = None,
) -> float:
    """Theorems 4.8 and 4.9 with Lemma 3.2; for several rounds or epochs, the remove direction unless one is named."""
    remove = epsilon_from_rdp(ORDERS, epochs * direct_rdp(noise_multiplier, rounds, chosen), delta)
    if direction == "remove" or (direction is None and (chosen > 1 or epochs > 1)):
        return remove
    add = direct_add_epsilon(noise_multiplier, rounds, delta, chosen)
    return add if direction == "add" else max(remove, add)


def direct_add_epsilon(noise_multiplier: float, rounds: int, delta: float, chosen: int = 1) -> float:
    """Theorem 4.9 with Lemma 3.2: ``chosen`` shifted Gaussian losses, whose shifts add up.

    (random-allocation 1.0.5 adds one shift only, for every ``chosen``; that is no bound.)
    """
    part = rounds // chosen
    shift = chosen * (1 - 1 / part) / (2 * noise_multiplier**2)
    return shift + local_epsilon(noise_multiplier * math.sqrt(part / chosen), delta)


def decomposition_epsilon(noise_multiplier: float, rounds: int, delta: float, direction: Direction = "remove") -> float:
    """Theorem 4.6; the remove direction is the larger one."""
    bound = decomposition_remove if direction == "remove" else decomposition_add
    return _smallest_epsilon(lambda e: bound(_poisson_delta(noise_multiplier, rounds, direction), rounds, e), delta)


def recursive_epsilon(
    noise_multiplier: float, rounds: int, delta: float, chosen: int = 1, direction: Direction = "remove"
) -> float:
    """Theorem 4.2 with Lemma 3.2, from the known add direction of Theorems 4.6 and 4.9.

    The smallest epsilon' whose own term takes no more than a half, a tenth or a hundredth of delta; the best of them.
    """
    part = rounds // chosen
    profile = _poisson_delta(noise_multiplier, chosen * part, direction)
    known_at = _known_add(noise_multiplier, part)

    def own_term(larger: float) -> float:
        return _recursion_factor(larger, direction) * min(1.0, chosen * known_at(larger))

    def epsilon_by(share: float) -> float:
        larger = _smallest_epsilon(lambda e: own_term(e) if e <= math.log(part) / 2 else 0.0, share * delta)
        if larger > math.log(part) / 2:
            return math.inf
        return _smallest_epsilon(lambda e: profile(math.exp(2 * larger) / part, e) + own_term(larger), delta)

    return min(epsilon_by(share) for share in (0.5, 0.1, 0.01))


def combined_epsilon(noise_multiplier: float, rounds: int, delta: float) -> float:
    """The best of the paper's bounds but Theorem 4.1, whose rate is 1 or far above Theorem 4.2's at these settings."""
    bounds = (direct_epsilon, decomposition_epsilon, recursive_epsilon)
    return min(local_epsilon(noise_multiplier, delta), *(bound(noise_multiplier, rounds, delta) for bound in bounds))


def attacked_epsilon(noise_multiplier: float, rounds: int, delta: float) -> float:
    """Chua et al. 2024: below this epsilon an attack on the largest round succeeds."""
    return _smallest_epsilon(lambda e: balls_and_bins.delta_from_below(noise_multiplier, rounds, e), delta)


# --- delta ------------------------------------------------------------------------------------------------------------


def combined_delta(noise_multiplier: float, rounds: int, epsilon: float) -> float:
    """As :func:`combined_epsilon`: delta at ``epsilon``. The recursion takes the best epsilon' of a grid."""
    remove, known = _poisson_delta(noise_multiplier, rounds, "remove"), _known_add(noise_multiplier, rounds)
    recursive = (
        recursive_remove(remove, rounds, epsilon, larger, known(larger))
        for larger in np.geomspace(0.01, math.log(0.2 * rounds) / 2, 28).tolist()
    )
    direct = delta_from_rdp(direct_rdp(noise_multiplier, rounds), ORDERS, epsilon)
    return min(
        gaussian_delta(noise_multiplier, epsilon),
        max(direct, direct_add(noise_multiplier, rounds, epsilon)),
        decomposition_remove(remove, rounds, epsilon),
        _lowest(recursive),
    )


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Lemma 2.7 (Balle and Wang 2018): the exact delta of the Gaussian mechanism, at any real ``epsilon``."""
    half, scaled = 1 / (2 * noise_multiplier), epsilon * noise_multiplier
    return max(float(ndtr(half - scaled) - math.exp(epsilon) * ndtr(-half - scaled)), 0.0)


def delta_from_rdp(rdp: Floats, orders: Floats, epsilon: float) -> float:
    """Lemma 2.4 (Canonne, Kamath, Steinke 2020, Prop. 12): the smallest delta of all ``orders``, at most 1."""
    log_delta = (orders - 1) * (rdp - epsilon) + orders * np.log1p(-1 / orders) - np.log(orders - 1)
    return math.exp(min(0.0, float(np.min(log_delta))))


PoissonDelta = Callable[[float, float], float]
"""Delta of ``rounds`` rounds at a sampling rate and an epsilon, in the direction that the theorem asks for."""


def recursive_remove(
    poisson_delta: PoissonDelta, rounds: int, epsilon: float, larger_epsilon: float, larger_delta_add: float
) -> float:
    """Theorem 4.2, remove direction: delta at ``epsilon`` from the add direction's delta at ``larger_epsilon``.

    ``larger_epsilon`` is at most ``log(rounds) / 2``, where the rate is 1.
    """
    own = _recursion_factor(larger_epsilon, "remove") * larger_delta_add
    return min(1.0, poisson_delta(math.exp(2 * larger_epsilon) / rounds, epsilon) + own)


def decomposition_remove(poisson_delta: PoissonDelta, rounds: int, epsilon: float) -> float:
    """Theorem 4.6, remove direction, at rate 1 / t as in the paper's figures."""
    gamma = _never_chosen(rounds)
    return gamma * poisson_delta(1 / rounds, math.log1p(math.expm1(epsilon) / gamma))


def decomposition_add(poisson_delta: PoissonDelta, rounds: int, epsilon: float) -> float:
    """Theorem 4.6, add direction, at rate 1 / t."""
    gamma = _never_chosen(rounds)
    scale = 1 + math.exp(min(epsilon, 700.0)) * (gamma - 1)
    return min(1.0, scale * poisson_delta(1 / rounds, -math.log1p(math.expm1(-epsilon) / gamma)))


def direct_add(noise_multiplier: float, rounds: int, epsilon: float) -> float:
    """Theorem 4.9 as Corollary 4.10 evaluates it: delta at ``epsilon`` in the add direction.

    Corrected: the theorem prints ``epsilon - t log Z`` where it has to be ``epsilon + t log Z``.
    """
    log_z = -(1 - 1 / rounds) / (2 * noise_multiplier**2)  # t log Z
    return gaussian_delta(math.sqrt(rounds) * noise_multiplier, epsilon + log_z)


def _recursion_factor(larger_epsilon: float, direction: Direction) -> float:
    """The factor of the known delta in Theorem 4.2."""
    tau = 1 / (math.exp(larger_epsilon) * math.expm1(larger_epsilon))
    return tau if direction == "remove" else tau * math.exp(2 * larger_epsilon)


def _never_chosen(rounds: int) -> float:
    """Gamma of Theorem 4.6 at rate 1 / t: the inverse of the probability that Poisson sampling picks a person."""
    return 1.0 if rounds == 1 else -1 / math.expm1(rounds * math.log1p(-1 / rounds))


def _poisson_delta(noise_multiplier: float, rounds: int, direction: Direction) -> PoissonDelta:
    def delta(rate: float, epsilon: float) -> float:
        law = upper_law(poisson(noise_multiplier, rounds, rate))
        return (law.remove if direction == "remove" else law.add).delta(epsilon).upper

    return delta


def _known_add(noise_multiplier: float, rounds: int) -> Callable[[float], float]:
    """The add direction's delta that Theorem 4.2 takes: the smaller one of Theorems 4.6 and 4.9."""
    add = _poisson_delta(noise_multiplier, rounds, "add")
    return lambda larger: min(direct_add(noise_multiplier, rounds, larger), decomposition_add(add, rounds, larger))


def _lowest(values: Iterable[float]) -> float:
    """The lowest of ``values`` that fall and then rise: a larger epsilon' costs rate and saves delta."""
    lowest = math.inf
    for value in values:
        if value > lowest:
            break
        lowest = value
    return lowest


def _smallest_epsilon(delta_at: Callable[[float], float], delta: float) -> float:
    """The point at which a decreasing ``delta_at`` falls to ``delta``."""
    low, high = 1e-6, 1.0
    while delta_at(high) > delta:
        low, high = high, 2 * high
        if high > 1e4:
            return math.inf
    while high > low * 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high
