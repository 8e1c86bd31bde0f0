"""Noise of a binary tree: its nodes are independent, and known rounds cost what is charged, by brute force."""

from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest

from fedamp.accounting import Gaussian, Repeat
from fedamp.errors import ScenarioError
from fedamp.extensions.correlated.tree import TreeGaussian, longest_sum
from fedamp.federation.plan import make_plan
from fedamp.noise import IndependentGaussian, grid_of
from fedamp.runs.verification import verify_ledger
from tests.federations import small
from tests.server.plays import ledger_of, play_in

SPACED = "check_in={scheme: spaced, k: 2, gap: 2}"
TREE = "privacy={clip: 0.5, noise_multiplier: 1.5, epsilon: null, amplification: false, noise: {scheme: tree}}"


def nodes(rounds: int) -> np.ndarray:
    """Node t holds the rounds of the last block of length 2**j that ends in t."""
    found = np.zeros((rounds, rounds))
    for node in range(1, rounds + 1):
        length = max(2**j for j in range(20) if node % 2**j == 0)
        found[node - 1, node - length : node] = 1
    return found


@pytest.mark.parametrize(("k", "gap", "rounds"), [(1, 1, 9), (3, 1, 9), (2, 3, 16), (3, 4, 13), (4, 2, 11)])
def test_known_rounds_of_any_beginning_cost_no_more_than_is_charged(k, gap, rounds):
    charged, worst = longest_sum(k, gap, rounds), 0.0
    for first in range(1, rounds + 1):
        tree, most = nodes(rounds)[:first, :first], min(k, -(-first // gap))
        for size in range(1, most + 1):
            for chosen in combinations(range(first), size):
                if all(after - before >= gap for before, after in pairwise(chosen)):
                    worst = max(worst, float((tree[:, chosen].sum(1) ** 2).sum()) / most)
    assert worst <= charged <= 1.25 * worst


def test_the_releases_follow_from_nodes_with_independent_noise():
    """Oracle: the dense matrix of the nodes, on the noise that was added to zeros."""
    rounds, size, norm, deviation = 11, 20_000, 1.5, 0.7
    noise, model = TreeGaussian(norm, rounds), {"w": np.zeros(size, np.float32)}
    state, added, before_rounds = noise.init(model), [], dict(vars(noise))
    for round_ in range(1, rounds + 1):
        sums = {"w": np.zeros(size)}
        before = {level: arrays["w"].copy() for level, arrays in state.items()}
        following = noise.update(sums, {"w": deviation}, {}, state, 7 + round_, round_)
        assert all((state[level]["w"] == each).all() for level, each in before.items()), "an attempt may be repeated"
        assert vars(noise) == before_rounds, "the state is all that a round leaves"
        state = following
        added.append(sums["w"])
    found = np.cov(nodes(rounds) @ np.array(added)) / (norm * deviation) ** 2
    assert np.abs(found - np.eye(rounds)).max() < 5 * np.sqrt(2 / size)
    last = sum(arrays["w"] for arrays in state.values())
    assert last == pytest.approx(np.sum(added, 0), abs=1e-9), "the nodes of 8, 2 and 1 rounds add up to all"


def test_a_release_is_a_function_of_the_nodes_to_the_bit():
    """Independent noise on the sum of a node, less earlier releases in it, in exact arithmetic."""
    rounds, norm = 9, 2.5
    sums = np.random.default_rng(1).integers(-(2**34), 2**34, (rounds, 3)) * 2.0**-31
    noise, found, grid = TreeGaussian(norm, rounds), [], Fraction(grid_of(norm))
    state = noise.init({"w": sums[0]})
    for t, total in enumerate(sums):
        released = {"w": total.copy()}
        state = noise.update(released, {"w": 1.0}, {}, state, 1, t + 1)
        found.append(released["w"])
        inside = np.flatnonzero(nodes(rounds)[t])
        rests, wholes = np.zeros(3), []
        for place in range(3):
            mixed = sum(Fraction(sums[s][place]) for s in inside)
            public = sum((Fraction(found[s][place]) for s in inside[:-1]), Fraction(0))
            wholes.append(round((mixed - public) / grid) * grid)
            rests[place] = float(mixed - public - wholes[-1])
            assert Fraction(rests[place]) == mixed - public - wholes[-1]  # nothing was rounded here
        alone = {"w": rests}
        IndependentGaussian().update(alone, {"w": norm}, {}, {}, 1, t + 1)
        assert [Fraction(each) for each in found[-1]] == [
            Fraction(each) + whole for each, whole in zip(alone["w"], wholes, strict=True)
        ]


def test_a_run_is_charged_for_known_rounds_and_is_verified(tmp_path):
    run, asked = tmp_path / "run", small("rounds=4", SPACED, TREE)
    play_in(run, asked)
    plan, ledger = make_plan(asked, 60), ledger_of(run)
    assert plan.charge.mechanism == Repeat(Gaussian(1.5), 2)
    assert ledger["mechanism"] == plan.charge.mechanism.to_json()
    assert isinstance(plan.noise, TreeGaussian)
    assert plan.noise.norm**2 == pytest.approx(longest_sum(2, 2, 4))
    assert not [check for check in verify_ledger(run) if check.verdict == "fail"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((SPACED, "privacy.noise={scheme: tree}"), "privacy.noise tree is charged for known rounds"),
        (("check_in={scheme: balanced, k: 2}", TREE), "a unit's rounds are at least a known number of rounds apart"),
        (("check_in={scheme: spaced, k: 2}", TREE), "check_in.gap"),
        (("rounds=200000", SPACED, TREE), "check_in.k times rounds at most 100,000"),
    ],
)
def test_what_is_not_charged_is_refused_in_one_line(overrides, words):
    with pytest.raises(ScenarioError, match=words) as caught:
        small(*overrides)
    assert "\n" not in str(caught.value)
