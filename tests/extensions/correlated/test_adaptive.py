"""An adversary that chooses contributions by what was released gains nothing over the charge of banded noise."""

import numpy as np
import pytest

from fedamp.accounting import Cyclic, Gaussian
from fedamp.noise import norm_of

ROUNDS, CLASSES, COEFFICIENTS, NOISE = 6, 2, (1.0, 0.75), 0.7
OWN = range(0, ROUNDS, CLASSES)  # one hidden round of these
RUNS = 200_000


def likelihood_ratios(adaptive: bool, seed: int) -> np.ndarray:
    """dP/dQ of whole runs without the person, whose contribution of each round would point where the releases say."""
    rng, deviation = np.random.default_rng(seed), NOISE * norm_of(COEFFICIENTS[1:])
    rows = rng.normal(scale=deviation, size=(ROUNDS, RUNS, 2))  # C y, in the plane of all contributions
    ratio = np.zeros(RUNS)
    for own in OWN:
        direction = np.tile([1.0, 0.0], (RUNS, 1))
        if adaptive and own:
            seen = rows[:own].sum(axis=0)
            direction = seen / np.linalg.norm(seen, axis=1, keepdims=True)
        exponent = np.zeros(RUNS)
        for back, coefficient in enumerate(COEFFICIENTS):
            exponent += coefficient * (rows[own + back] * direction).sum(axis=1) / deviation**2
            exponent -= coefficient**2 / (2 * deviation**2)
        ratio += np.exp(exponent) / len(OWN)
    return ratio


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("epsilon", [0.5, 1.5])
def test_no_direction_of_the_contributions_costs_more_than_is_charged(adaptive, epsilon):
    """Both directions, by 200,000 runs each; five standard errors. A fixed direction attains the charge."""
    charged = Cyclic(Gaussian(NOISE), 1, ROUNDS, CLASSES).delta(epsilon)
    ratio = likelihood_ratios(adaptive, seed=7)
    out = np.maximum(ratio - np.exp(epsilon), 0), np.maximum(1 - np.exp(epsilon) * ratio, 0)
    found = max(out, key=np.mean)
    error = 5 * found.std() / np.sqrt(RUNS)
    assert found.mean() - error <= charged.upper
    if not adaptive:
        assert found.mean() + error >= charged.lower > 0
