"""The published bounds as functions that the plots evaluate; epsilon of the larger direction unless one is named."""

import math
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np
from scipy.special import logsumexp

from benchmarks.papers.bounds import allocation, balls_and_bins, partitioning
from fedamp.accounting import Allocation, Gaussian, Mechanism, Poisson, Repeat
from fedamp.accounting.laws import Detail, numerical_law
from fedamp.accounting.points import DEFAULT_POINTS

Direction = Literal["remove", "add"]

ORDERS = np.arange(2, 61)
"""The orders of Feldman and Shenfeld's own experiments."""

UPPER_ONLY = Detail(DEFAULT_POINTS, with_lower=False)


def repeated(mechanism: Mechanism, times: int) -> Mechanism:
    """``mechanism`` so many times, itself for once."""
    return mechanism if times == 1 else Repeat(mechanism, times)


def poisson(noise_multiplier: float, rounds: int, rate: float) -> Mechanism:
    """``rounds`` rounds of Poisson sampling."""
    return repeated(Poisson(Gaussian(noise_multiplier), rate), rounds)


def fedamp_epsilon(noise_multiplier: float, rounds: int, delta: float, chosen: int = 1, epochs: int = 1) -> float:
    """Our upper end for ``chosen`` of ``rounds``, ``epochs`` times."""
    return repeated(Allocation(Gaussian(noise_multiplier), chosen, rounds), epochs).epsilon(delta).upper


def by_law(mechanism: Mechanism, delta: float, direction: Direction) -> float:
    """The upper end of epsilon in one direction, by the numerical law."""
    law = numerical_law(mechanism, UPPER_ONLY)
    return (law.remove if direction == "remove" else law.add).epsilon(delta).upper


def local_epsilon(noise_multiplier: float, delta: float) -> float:
    """One unamplified round: the Gaussian mechanism."""
    return _smallest_epsilon(lambda epsilon: float(allocation.gaussian_delta(noise_multiplier, epsilon)), delta)


def poisson_epsilon(noise_multiplier: float, rounds: int, rate: float, delta: float) -> float:
    """Poisson sampling by a privacy loss distribution (ours agrees with dp-accounting's, and is faster)."""
    return poisson(noise_multiplier, rounds, rate).epsilon(delta).upper


def poisson_rdp_epsilon(noise_multiplier: float, rounds: int, rate: float, delta: float) -> float:
    """Poisson sampling by Rényi divergences, at dp-accounting's orders from 1.1 to 63."""
    whole, broken = np.arange(11, 64), np.arange(11, 110) / 10
    by_whole = partitioning.poisson_rdp(noise_multiplier, rate, whole)
    by_broken = [_poisson_rdp_by_quadrature(noise_multiplier, rate, float(order)) for order in broken]
    rdp = rounds * np.concatenate([by_broken, by_whole])
    return allocation.epsilon_from_rdp(rdp, np.concatenate([broken, whole]), delta)


def _poisson_rdp_by_quadrature(noise_multiplier: float, rate: float, order: float) -> float:
    """The exact divergence of one sampled round, remove direction, at any order (Mironov, Talwar, Zhang 2019).

    Trapezoids of a smooth function that vanishes at both ends: they err by less than rounding.
    """
    signal = 1 / noise_multiplier
    z, step = np.linspace(-12.0, order * signal + 12.0, 20_001, retstep=True)
    log_density = -(z**2) / 2 - math.log(2 * math.pi) / 2 + math.log(step)
    excess = rate * np.expm1(z * signal - signal**2 / 2)
    log_moment = float(logsumexp(log_density + order * np.log1p(excess)))
    if log_moment < 0.01:  # the excess has mean zero: without its first power nothing cancels
        powers = np.expm1(order * np.log1p(excess)) - order * excess
        log_moment = math.log1p(float(np.exp(log_density) @ powers))
    return log_moment / (order - 1)


def direct_epsilon(noise_multiplier: float, rounds: int, delta: float, chosen: int = 1, epochs: int = 1) -> float:
    """Feldman and Shenfeld 2025, Theorems 4.8 and 4.9 with Lemma 3.2, at the orders they use."""
    remove = direct_remove_epsilon(noise_multiplier, rounds, delta, chosen, epochs)
    if chosen > 1 or epochs > 1:
        return remove
    return max(remove, direct_add_epsilon(noise_multiplier, rounds, delta))


def direct_remove_epsilon(
    noise_multiplier: float, rounds: int, delta: float, chosen: int = 1, epochs: int = 1
) -> float:
    """Theorem 4.8 with Lemma 3.2."""
    parts = allocation.allocation_sizes(rounds, chosen)
    divergences = {size: partitioning.forward_rdp(noise_multiplier, size, ORDERS) for size in set(parts)}
    return allocation.epsilon_from_rdp(epochs * sum(divergences[size] for size in parts), ORDERS, delta)


def direct_add_epsilon(noise_multiplier: float, rounds: int, delta: float, chosen: int = 1) -> float:
    """Theorem 4.9 with Lemma 3.2: ``chosen`` shifted Gaussian losses, whose shifts add up.

    (random-allocation 1.0.5 adds one shift only, whatever ``chosen``; that is no bound.)
    """
    part = rounds // chosen
    shift = chosen * (1 - 1 / part) / (2 * noise_multiplier**2)
    return shift + local_epsilon(noise_multiplier * math.sqrt(part / chosen), delta)


def loose_rdp_epsilon(noise_multiplier: float, rounds: int, delta: float, chosen: int = 1) -> float:
    """Dong, Chen, Özgür 2025, Eq. (3), with the tight conversion."""
    rdp = partitioning.forward_rdp_upper(noise_multiplier, rounds, ORDERS, chosen)
    return allocation.epsilon_from_rdp(rdp, ORDERS, delta)


def decomposition_epsilon(noise_multiplier: float, rounds: int, delta: float, direction: Direction = "remove") -> float:
    """Feldman and Shenfeld 2025, Theorem 4.6, at rate 1 / t; they found the remove direction to be the larger."""
    bound = allocation.decomposition_remove if direction == "remove" else allocation.decomposition_add
    profile = _poisson_profile(noise_multiplier, rounds, direction)
    return _smallest_epsilon(lambda e: bound(profile, rounds, e), delta)


def recursive_epsilon(
    noise_multiplier: float, rounds: int, delta: float, chosen: int = 1, direction: Direction = "remove"
) -> float:
    """Feldman and Shenfeld 2025, Theorem 4.2 with Lemma 3.2, bootstrapped with Theorems 4.6 and 4.9.

    The smallest epsilon' whose own term takes no more than a half, a tenth or a hundredth of delta; the best of them.
    """
    part = rounds // chosen
    profile = _poisson_profile(noise_multiplier, chosen * part, direction)
    known_at = _known_add(noise_multiplier, part)
    bound = allocation.recursive_remove if direction == "remove" else allocation.recursive_add

    def own_term(larger: float) -> float:
        return bound(lambda *_: 0.0, part, larger, larger, min(1.0, chosen * known_at(larger)))

    def epsilon_by(share: float) -> float:
        larger = _smallest_epsilon(lambda e: own_term(e) if e <= math.log(part) / 2 else 0.0, share * delta)
        if larger > math.log(part) / 2:
            return math.inf
        known = min(1.0, chosen * known_at(larger))
        return _smallest_epsilon(lambda e: bound(profile, part, e, larger, known), delta)

    return min(epsilon_by(share) for share in (0.5, 0.1, 0.01))


def combined_epsilon(noise_multiplier: float, rounds: int, delta: float) -> float:
    """The best of Feldman and Shenfeld's bounds but Theorem 4.1: here its rate is 1, or far above Theorem 4.2's."""
    return min(
        local_epsilon(noise_multiplier, delta),
        direct_epsilon(noise_multiplier, rounds, delta),
        decomposition_epsilon(noise_multiplier, rounds, delta),
        recursive_epsilon(noise_multiplier, rounds, delta),
    )


def combined_delta(noise_multiplier: float, rounds: int, epsilon: float) -> float:
    """Like :func:`combined_epsilon`: delta at ``epsilon``; the recursion takes the best epsilon' of a grid."""
    remove = _poisson_profile(noise_multiplier, rounds, "remove")
    known = _known_add(noise_multiplier, rounds)
    rdp = partitioning.forward_rdp(noise_multiplier, rounds, ORDERS)
    recursive = (
        allocation.recursive_remove(remove, rounds, epsilon, larger, known(larger))
        for larger in np.geomspace(0.01, math.log(0.2 * rounds) / 2, 28).tolist()
    )
    return min(
        float(allocation.gaussian_delta(noise_multiplier, epsilon)),
        max(allocation.delta_from_rdp(rdp, ORDERS, epsilon), allocation.direct_add(noise_multiplier, rounds, epsilon)),
        allocation.decomposition_remove(remove, rounds, epsilon),
        _lowest(recursive),
    )


def lower_epsilon(noise_multiplier: float, rounds: int, delta: float) -> float:
    """Chua et al. 2024: below this epsilon an attack on the largest round succeeds."""
    return _smallest_epsilon(lambda e: balls_and_bins.delta_from_below(noise_multiplier, rounds, e), delta)


def smallest_noise(epsilon_of: Callable[[float], float], epsilon: float) -> float:
    """The noise multiplier at which a published bound falls to ``epsilon``, to one part in 10^4, on the safe side."""
    low, high = 0.2, 20.0
    while high > low * 1.0001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if epsilon_of(middle) > epsilon else (low, middle)
    return high


def _poisson_profile(noise_multiplier: float, rounds: int, direction: Direction) -> Callable[[float, float], float]:
    """Delta of Poisson sampling in one direction as a function of rate and epsilon."""

    def delta(rate: float, epsilon: float) -> float:
        law = numerical_law(poisson(noise_multiplier, rounds, rate), UPPER_ONLY)
        return (law.remove if direction == "remove" else law.add).delta(epsilon).upper

    return delta


def _known_add(noise_multiplier: float, rounds: int) -> Callable[[float], float]:
    """The add direction's delta as Theorem 4.2 takes it at epsilon': the smaller one of Theorems 4.6 and 4.9."""
    add = _poisson_profile(noise_multiplier, rounds, "add")
    return lambda larger: min(
        allocation.direct_add(noise_multiplier, rounds, larger), allocation.decomposition_add(add, rounds, larger)
    )


def _lowest(values: Iterable[float]) -> float:
    """The bottom of ``values`` that fall and then rise: a larger epsilon' costs rate and saves delta."""
    lowest = math.inf
    for value in values:
        if value > lowest:
            break
        lowest = value
    return lowest


def _smallest_epsilon(delta_at: Callable[[float], float], delta: float) -> float:
    """Where a decreasing ``delta_at`` falls to ``delta``, to one part in a thousand and on the safe side."""
    low, high = 1e-6, 1.0
    while delta_at(high) > delta:
        low, high = high, 2 * high
        if high > 1e4:
            return math.inf
    while high > low * 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high
