"""What the figures of Schuchardt et al. 2024 compare: their tight bounds, the baseline of a group and fedamp's own.

Every curve is a function of orders of shape (n,) that gives Rényi divergences in nats, the larger of both directions.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from benchmarks.papers.bounds import base, groups, subsampling
from benchmarks.papers.bounds.allocation import epsilon_from_rdp
from benchmarks.papers.bounds.arguments import Floats
from fedamp.accounting import Gaussian, Mechanism, Poisson, RandomisedResponse, WithoutReplacement, group

Curve = Callable[[Floats], Floats]

SIZES = (2, 4, 8)
RATES = (0.2, 0.1, 0.001)


def whole_orders(number: int = 121, highest: float = 1e4) -> Floats:
    """Equidistant in logarithm from 2 on, rounded down to whole orders: the paper's own (appendix B)."""
    return np.unique(np.floor(np.geomspace(2, highest, number) + 1e-9))


def all_orders(number: int) -> Floats:
    """Whole orders above 10, and below also some between, for phase transitions."""
    return np.unique(np.concatenate([np.geomspace(1.2, 10, number // 2), whole_orders(number)]))


def conversion_orders(highest: float) -> Floats:
    """Where divergences are converted to (epsilon, delta): the paper's, but above 200 only some of all whole orders."""
    whole = whole_orders()
    return np.unique(np.concatenate([np.geomspace(1.02, 10, 121), np.arange(10.0, 201.0), whole[whole <= highest]]))


def tight_response(true_response: float, rate: float, size: int) -> Curve:
    """Theorem G.1: randomised response under Poisson sampling."""
    return lambda orders: groups.group_poisson_randomized_response(true_response, rate, size, orders)


def tight_gaussian(noise_multiplier: float, rate: float, size: int) -> Curve:
    """Theorem 4.2: Gaussian noise under Poisson sampling."""
    return lambda orders: groups.group_poisson_gaussian(noise_multiplier, rate, size, orders)


def baseline(individual: Curve, size: int) -> Curve:
    """Appendix B.1: the group property, from the tight curve of one person."""
    return lambda orders: groups.group_property(individual, size, orders)


def printed_baseline(individual: Curve, size: int) -> Curve:
    """The same with the factor that appendix B.1 prints in the last term, a / (a - 1) where Mironov 2017 has 1."""

    def curve(orders: Floats) -> Floats:
        if size == 1:
            return individual(orders)
        half = printed_baseline(individual, size // 2)
        return ((orders - 0.5) * half(2 * orders) + orders * half(2 * orders - 1)) / (orders - 1)

    return curve


def sampled_response(true_response: float, rate: float, size: int) -> Mechanism:
    """fedamp's group under Poisson sampling and randomised response."""
    return group(Poisson(RandomisedResponse(true_response), rate), size)


def sampled_gaussian(noise_multiplier: float, rate: float, size: int) -> Mechanism:
    """fedamp's group under Poisson sampling and Gaussian noise."""
    return group(Poisson(Gaussian(noise_multiplier), rate), size)


def drawn_gaussian(noise_multiplier: float, batch: int, population: int) -> Mechanism:
    """fedamp's batch of fixed size. Its noise is relative to one contribution, the paper's to one substitution."""
    return WithoutReplacement(Gaussian(2 * noise_multiplier), batch, population)


def drawn_response(true_response: float, fraction: float) -> tuple[Curve, Curve]:
    """Theorem 3.7, and the baseline for one substituted record (Wang et al. 2019, Theorem 9, with all extensions)."""
    one = base.randomized_response(true_response)
    return (
        lambda orders: subsampling.substitution_randomized_response(true_response, fraction, orders),
        lambda orders: subsampling.substitution_baseline(one, fraction, orders, tightened=True),
    )


def converted(curve: Curve, delta: float, highest: float = 1e4) -> Callable[[int], float]:
    """epsilon at ``delta`` after so many rounds, by the conversion that the paper takes (Balle et al. 2020)."""
    orders = conversion_orders(highest)
    divergences = curve(orders)
    return lambda rounds: epsilon_from_rdp(rounds * divergences, orders, delta)


@cache
def gaussian_individual(noise_multiplier: float, rate: float) -> Curve:
    """The curve of one person under Poisson sampling and Gaussian noise: by the binomial sum at whole orders, where it
    is exact (the paper's tight version of Zhu, Wang 2019), by integration between. Every order is computed once.
    """
    known: dict[float, float] = {}
    noise = base.gaussian(noise_multiplier)

    def add(orders: list[float], values: Floats) -> None:
        known.update(zip(orders, values.tolist(), strict=True))

    def curve(orders: Floats) -> Floats:
        missing = set(orders.tolist()) - known.keys()
        whole, between = sorted(a for a in missing if a % 1 == 0), sorted(a for a in missing if a % 1)
        if whole:
            add(whole, subsampling.poisson_baseline(noise, rate, whole, symmetric=True))
        if between:
            add(between, tight_gaussian(noise_multiplier, rate, 1)(np.array(between)))
        return np.array([known[order] for order in orders.tolist()])

    return curve


def first_order_above(curve: Curve, threshold: float, orders: Sequence[float] | Floats) -> float:
    """Where an increasing curve crosses ``threshold``, by straight lines between ``orders``."""
    values = curve(np.asarray(orders, dtype=float))
    return float(np.interp(np.log(threshold), np.log(values), orders))
