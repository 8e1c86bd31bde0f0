"""Feldman, Shenfeld 2025 against quadrature over two rounds, and the order of its bounds."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from benchmarks.papers.bounds import allocation


def call_option(noise_multiplier, strike):
    """``E[(X - strike)+]`` of one Gaussian likelihood ratio (Black and Scholes)."""
    if strike <= 0:
        return 1 - strike
    d = -math.log(strike) * noise_multiplier
    half = 1 / (2 * noise_multiplier)
    return norm.cdf(d + half) - strike * norm.cdf(d - half)


def two_rounds(noise_multiplier, weight, epsilon, direction):
    """Exact delta of two rounds, by quadrature over the first and in closed form over the second.

    ``weight = None`` is one of two rounds, (X_1 + X_2) / 2; a number is Poisson sampling at that rate in both.
    """

    def given_first(z):
        x = math.exp(z / noise_multiplier - 1 / (2 * noise_multiplier**2))
        # f(x, X_2) = scale * (X_2 + offset)
        if weight is None:
            scale, offset = 0.5, x
        else:
            scale, offset = (1 - weight + weight * x) * weight, (1 - weight) / weight
        if direction == "remove":
            inner = scale * call_option(noise_multiplier, math.exp(epsilon) / scale - offset)
        else:
            strike = math.exp(-epsilon) / scale - offset
            inner = (
                math.exp(epsilon) * scale * (strike - 1 + call_option(noise_multiplier, strike)) if strike > 0 else 0
            )
        return inner * norm.pdf(z)

    return quad(given_first, -30, 30, points=[0, 1 / noise_multiplier], limit=400, epsabs=1e-13, epsrel=1e-10)[0]


@pytest.mark.statement("allocation", "Theorem 4.6")
@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("noise_multiplier", "epsilon"), [(0.5, 1.0), (1.0, 0.3), (1.0, 2.0), (3.0, 0.1)])
def test_decomposition_bounds_the_exact_delta_of_two_rounds(direction, noise_multiplier, epsilon):
    bound = allocation.decomposition_remove if direction == "remove" else allocation.decomposition_add
    exact = two_rounds(noise_multiplier, None, epsilon, direction)
    # The margin is that of the quadrature.
    assert exact <= bound(lambda rate, e: two_rounds(noise_multiplier, rate, e, direction), 2, epsilon) + 1e-11


@pytest.mark.statement("allocation", "Theorem 4.2")
@pytest.mark.parametrize(("noise_multiplier", "epsilon", "larger"), [(1, 0.1, 0.3), (3, 0.05, 0.2), (3, 0.1, 0.3)])
def test_recursion_bounds_the_exact_delta_of_two_rounds(noise_multiplier, epsilon, larger):
    larger_delta = two_rounds(noise_multiplier, None, larger, "add")
    exact = two_rounds(noise_multiplier, None, epsilon, "remove")

    def poisson(rate, at):
        return two_rounds(noise_multiplier, rate, at, "remove")

    assert exact <= allocation.recursive_remove(poisson, 2, epsilon, larger, larger_delta) + 1e-11


@pytest.mark.statement("allocation", "Theorem 4.9")
@pytest.mark.parametrize("noise_multiplier", [0.5, 1, 2])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.5])
def test_theorem_4_9_bounds_two_rounds_and_its_printed_sign_does_not(noise_multiplier, epsilon):
    exact = two_rounds(noise_multiplier, None, epsilon, "add")
    assert exact <= allocation.direct_add(noise_multiplier, 2, epsilon) + 1e-11
    printed = epsilon + 0.5 / (2 * noise_multiplier**2)  # epsilon - t log Z
    assert allocation.gaussian_delta(math.sqrt(2) * noise_multiplier, printed) < exact
    assert allocation.direct_add(noise_multiplier, 1, epsilon) == pytest.approx(
        call_option(noise_multiplier, math.exp(epsilon)), rel=1e-9
    )


@pytest.mark.parametrize(("noise_multiplier", "delta"), [(1.0, 1e-10), (3.0, 1e-5)])
def test_bounds_stand_in_their_order(noise_multiplier, delta):
    # Attack, ours, the best published, no amplification. Searches stop at a thousandth.
    lower = allocation.attacked_epsilon(noise_multiplier, 100, delta)
    ours = allocation.allocated(noise_multiplier, 100).epsilon(delta).upper
    best = allocation.combined_epsilon(noise_multiplier, 100, delta)
    assert lower / 1.001 <= ours <= best * 1.001 <= allocation.local_epsilon(noise_multiplier, delta) * 1.002
    # Delta at that epsilon, by the same theorems; delta moves faster than epsilon.
    assert allocation.combined_delta(noise_multiplier, 100, best) == pytest.approx(delta, rel=0.03)


@pytest.mark.parametrize(("noise_multiplier", "rate"), [(1.0, 1e-4), (0.6, 1 / 1024)])
def test_rényi_curves_of_poisson_sampling_are_dp_accountings(noise_multiplier, rate):
    peer = pytest.importorskip("dp_accounting")
    accountant = peer.rdp.RdpAccountant()
    sampled = peer.PoissonSampledDpEvent(rate, peer.GaussianDpEvent(noise_multiplier))
    accountant.compose(sampled, round(1 / rate))
    ours = allocation.poisson_rdp_epsilon(noise_multiplier, round(1 / rate), rate, 1e-6)
    # The peer leaves out some orders near 1, and has a few above 63, of no use here.
    assert ours == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-4)


@pytest.mark.statement("allocation", "Lemma 3.2")
def test_lemma_3_2_takes_parts_as_even_as_integers_allow():
    parts = [allocation.allocated(1.0, size).rdp(allocation.ORDERS) for size in (3, 2, 2)]
    np.testing.assert_allclose(allocation.direct_rdp(1.0, 7, 3), np.sum(parts, axis=0), rtol=1e-12)
