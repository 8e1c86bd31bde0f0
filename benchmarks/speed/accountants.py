"""Who answers the questions of the accounting benchmark: fedamp and its peers, each through its own interface.

Imports are inside the functions, so that a peer that is not installed is simply left out.
"""

from benchmarks.speed.limited import Contender

Bracket = tuple[float, float]


def fedamp_allocation(noise_multiplier: float, rounds: int, chosen: int, delta: float) -> Bracket:
    """Of the composition of ``chosen`` times 1 of ``rounds / chosen``, which is what the peers evaluate too."""
    from fedamp.accounting import Allocation, Gaussian, Repeat

    once = Allocation(Gaussian(noise_multiplier), 1, rounds // chosen)
    bounds = (once if chosen == 1 else Repeat(once, chosen)).epsilon(delta)
    return bounds.lower, bounds.upper


def pld_accounting_allocation(noise_multiplier: float, rounds: int, chosen: int, delta: float) -> Bracket:
    """The adaptive range, at its default accuracy."""
    from PLD_accounting import gaussian_allocation_epsilon_range

    upper, lower = gaussian_allocation_epsilon_range(
        delta=delta, sigma=noise_multiplier, num_steps=rounds, num_selected=chosen
    )
    return float(lower), float(upper)


def random_allocation_allocation(noise_multiplier: float, rounds: int, chosen: int, delta: float) -> Bracket:
    """The minimum of all its methods; its lower bound exists for a single allocation only, otherwise 0.

    Its search stops within 1e-3 of epsilon, so that either end may be off by that.
    """
    from random_allocation.comparisons.definitions import PrivacyParams, SchemeConfig
    from random_allocation.random_allocation_scheme.combined import allocation_epsilon_combined
    from random_allocation.random_allocation_scheme.lower_bound import allocation_epsilon_lower_bound

    params = PrivacyParams(sigma=noise_multiplier, num_steps=rounds, num_selected=chosen, num_epochs=1, delta=delta)
    # The orders of the authors' own experiments.
    config = SchemeConfig(allocation_direct_alpha_orders=list(range(2, 61)))
    lower = allocation_epsilon_lower_bound(params, config) if chosen == 1 else 0.0
    return float(lower), float(allocation_epsilon_combined(params, config))


def fedamp_composition(noise_multiplier: float, rate: float, rounds: int, delta: float) -> Bracket:
    from fedamp.accounting import Gaussian, Poisson, Repeat

    bounds = Repeat(Poisson(Gaussian(noise_multiplier), rate), rounds).epsilon(delta)
    return bounds.lower, bounds.upper


def dp_accounting_composition(
    noise_multiplier: float, rate: float, rounds: int, delta: float, interval: float
) -> float:
    """Its upper end, with losses on a grid of ``interval``."""
    from dp_accounting.pld import privacy_loss_distribution

    law = privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=rate, value_discretization_interval=interval
    )
    return float(law.self_compose(rounds).get_epsilon_for_delta(delta))


_ALLOCATION = {"noise_multiplier": 1.5, "rounds": 20, "chosen": 2, "delta": 1e-3}
_COMPOSITION = {"noise_multiplier": 1.5, "rate": 0.05, "rounds": 20, "delta": 1e-3}

ALLOCATION = (
    Contender("fedamp", "fedamp", fedamp_allocation, _ALLOCATION),
    Contender("PLD_accounting", "PLD_accounting", pld_accounting_allocation, _ALLOCATION),
    Contender("random-allocation", "random_allocation", random_allocation_allocation, _ALLOCATION),
)
COMPOSITION = (
    Contender("fedamp", "fedamp", fedamp_composition, _COMPOSITION),
    Contender("dp-accounting", "dp_accounting", dp_accounting_composition, _COMPOSITION | {"interval": 1e-2}),
)
