"""Add the noise of a binary tree, the first DP-FTRL (Kairouz et al. 2021, arXiv 2103.00039), as a baseline.

Node t ends with round t, and holds the last 2**j rounds, 2**j the largest power of two that divides t. So the sum of
the first t rounds is that of at most log2(t) + 1 nodes. A release is the difference of two such sums of noisy nodes.
Other schemes of this folder have less noise (docs/research/schemes.md).
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

import numpy as np

from fedamp.base.arrays import Arrays, State
from fedamp.extensions.correlated.check_in import MinSeparation
from fedamp.extensions.correlated.mechanisms import Arrays64, CorrelatedGaussian, Pair, check_size
from fedamp.extensions.correlated.section import check_exact
from fedamp.federation import facts
from fedamp.federation.check_in import CheckIn
from fedamp.federation.facts import AnyScenario
from fedamp.federation.noise import Coefficients, NoiseScheme
from fedamp.noise import Noise

MOST_STEPS = 10**5  # of the search for the longest sum, check-ins times rounds: below a second


class TreeNoise(NoiseScheme):
    """Noise of a binary tree over the rounds, for rounds that count as known.

    Formal guarantees: let C have a row for each node, 1 in the rounds that it holds. The releases follow from C x + z,
    and each row is released after its last round. Given what was released before, a person in the rounds S moves row t
    by at most clip |S in t|. So the rows are adaptive Gaussian releases, whose squares add up to at most |C 1_S|^2. The
    deviation of z is that of independent noise times the root of f, where |C 1_S|^2 <= f m for all S in the first r
    rounds, and m is the most check-ins in r rounds, for every r. So r rounds cost at most what m rounds of independent
    noise cost, whoever takes part when.
    """

    scheme: Literal["tree"]
    needs = facts.needs_facts(facts.ROUNDS_APART, facts.CLIP_FIXED, facts.NOISE_ADDED, facts.MODEL_ALONE)
    keeps = frozenset()
    _norm: float = 0.0
    _rounds: int = 0

    def check_within(self, scenario: AnyScenario) -> None:
        """Refuse a charge with amplification, and more check-ins and rounds than are searched.

        Raises:
            ValueError: it names the key.
        """
        if scenario.privacy.amplification:
            raise ValueError("privacy.noise tree is charged for known rounds; expected: privacy.amplification false")
        if scenario.check_in.k * scenario.rounds > MOST_STEPS:
            raise ValueError(f"privacy.noise tree: expected: check_in.k times rounds at most {MOST_STEPS:,}")

    def fitted_to(self, check_in: CheckIn, rounds: int) -> NoiseScheme:
        """Return the scheme with the deviation that known rounds of this separation need."""
        assert isinstance(check_in, MinSeparation), "validated with the scenario"
        fitted = self.model_copy()
        fitted._norm, fitted._rounds = longest_sum(check_in.k, check_in.count, rounds) ** 0.5 * (1 + 2.0**-50), rounds
        return fitted

    def noise_of(self, coefficients: Coefficients, multipliers: Iterable[float]) -> Noise:
        """Make what draws the noise of the tree.

        Raises:
            ScenarioError: with these multipliers, float64 is not exact.
        """
        assert self._norm >= 1, "fitted to a run"
        check_exact(self.scheme, multipliers)
        return TreeGaussian(self._norm, self._rounds)


@lru_cache(maxsize=64)
def longest_sum(k: int, gap: int, rounds: int) -> float:
    """Bound |C 1_S|^2 / m over all beginnings, S of at most k rounds that are ``gap`` apart; see :class:`TreeNoise`.

    A node of 2**j rounds holds at most c_j = min(k, ceil(2**j / gap)) rounds of S. So |C 1_S|^2 is at most the sum over
    S of w_s, the sum of c_j of the nodes with round s. The largest such sum follows by dynamic programming.

    >>> longest_sum(1, 1, 8), longest_sum(4, 10, 40)
    (4.0, 7.5)
    """
    worst = 0.0
    for most in range(1, k + 1):
        last = rounds if most == k else min(most * gap, rounds)
        best = [np.zeros(most + 1)]  # by the last round that is looked at, and the number of rounds of S
        for round_ in range(1, last + 1):
            weight, node = 0, round_
            while node <= last:
                weight, node = weight + min(k, -(-(node & -node) // gap)), node + (node & -node)
            best.append(best[-1].copy())
            np.maximum(best[-1][1:], best[max(0, round_ - gap)][:-1] + weight, out=best[-1][1:])
        worst = max(worst, float(best[-1].max()) / min(most, -(-last // gap)))
    return worst


class TreeGaussian(CorrelatedGaussian):
    """Noise of a round: that of its node, less that of the smaller nodes that the node holds.

    The state has the noise of the nodes that add up to all rounds so far, by their level.

    Args:
        norm: deviation of a node over that of independent noise.
        rounds: of the run.
    """

    def __init__(self, norm: float, rounds: int) -> None:
        self.norm, self._levels = norm, rounds.bit_length()

    def init(self, parameters: Arrays) -> State:
        """Return the state before the first round: zeros, float64."""
        zeros = {name: np.zeros(array.shape) for name, array in parameters.items()}
        return {str(level): zeros for level in range(self._levels)}

    def _left(self, state: State, round_: int, name: str, deviation: float) -> Pair:
        """Add up the smaller nodes; exact as long as none of their sums is refused."""
        left = np.zeros(state["0"][name].shape)
        for level in range(_level_of(round_)):
            left += state[str(level)][name]
            check_size(name, max(np.abs(left).max(), np.abs(state[str(level)][name]).max()), deviation)
        return left, np.zeros(left.shape)

    def _following(self, state: State, round_: int, newest: Arrays64) -> State:
        """Put the new node in the place of the smaller ones."""
        level, following = _level_of(round_), {each: dict(state[each]) for each in state}
        smaller = [str(each) for each in range(level)]
        for name, array in newest.items():
            following[str(level)][name] = array + sum(state[each][name] for each in smaller)
            following |= {each: following[each] | {name: np.zeros(array.shape)} for each in smaller}
        return following


def _level_of(round_: int) -> int:
    """Return the level of the node that ends with a round: log2 of how many rounds it holds."""
    return (round_ & -round_).bit_length() - 1
