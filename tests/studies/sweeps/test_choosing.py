"""What choosing among runs costs, against laws that are written out."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import fedamp
from fedamp.accounting import RandomisedResponse
from fedamp.studies.sweeps.choosing import ORDERS, best_of_geometric, cost_of_choosing
from tests.federations import small

DELTA = 1e-3


@pytest.mark.parametrize("expected", [1, 3, 20])
def test_the_best_of_a_random_number_of_runs_costs_no_more_than_is_said(expected):
    """The best of a geometric number of answers: its law is written out, and its worst delta compared."""
    true = 0.6
    bound = best_of_geometric(RandomisedResponse(true).rdp(ORDERS), expected, DELTA)

    def shows_best(once: float) -> float:  # 1 - E[(1 - once)^K], K geometric
        stop = 1 / expected
        return 1 - stop * (1 - once) / (1 - (1 - stop) * (1 - once))

    here, out = shows_best(true), shows_best(1 - true)
    pairs = [(here, out), (1 - here, 1 - out), (out, here), (1 - out, 1 - here)]
    assert max(p - math.exp(bound) * q for p, q in pairs) <= DELTA
    alone = math.log(true / (1 - true))
    assert bound <= 3 * alone + 2 * math.log(expected) + 1  # not empty: of the order of three times one run
    assert expected > 1 or bound <= alone  # one run is one run; its delta is of use


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    """Two runs of two rounds in which everybody takes part."""
    folder = tmp_path_factory.mktemp("secret")
    asked = small("known_seed=false", "rounds=2", "check_in={scheme: all}", "privacy.noise_multiplier=4")
    return [fedamp.run(asked, out=folder / name) for name in "ab"]


def test_all_runs_together_are_one_gaussian_release_of_all_their_rounds(secret):
    """Balle and Wang 2018, Theorem 8: four releases at noise multiplier 4 are one at 2."""
    answer = cost_of_choosing(secret)

    def excess(epsilon: float, noise: float = 2.0) -> float:
        near, far = 1 / (2 * noise) - epsilon * noise, -1 / (2 * noise) - epsilon * noise
        return norm.cdf(near) - np.exp(epsilon) * norm.cdf(far) - answer["delta"]

    exact = brentq(excess, 0, 50)
    assert exact <= answer["all_runs_epsilon"] <= 1.001 * exact  # the width of a bracket is promised to a thousandth
    assert answer["charged"] == 0
    assert f"epsilon = {answer['all_runs_epsilon']:.4g}" in " ".join(answer["in_words"])


def test_nothing_is_promised_of_runs_whose_seed_is_known(secret, tmp_path):
    known = fedamp.run(small("rounds=1", "check_in.k=1"), out=tmp_path / "known")
    for runs in ([known], [*secret, known], []):
        answer = cost_of_choosing(runs)
        assert answer["all_runs_epsilon"] is None
        assert answer["random_stop_epsilon"] is None
        assert "is not computed" in " ".join(answer["in_words"])
