"""The contract of mechanisms: brackets hold a real mechanism, compose, and survive a ledger.

The oracle is a table of probabilities: each output of a real mechanism, with the person and without. From it the suite
computes hockey-stick and Rényi divergences by plain sums. A density becomes a table by integrating it over a fine grid.
"""

import json
import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedamp.accounting import Compose, Mechanism, Poisson, Repeat, Submodels, from_json
from fedamp.testing.contract import Contract

KINK = 1e-5
"""Relative error of a sum over a grid of a density with a kink."""


class MechanismContract(Contract):
    """The tests of a mechanism of your own.

    A new kind needs one test class with a typical value of each field; extreme values deserve further classes.
    docs/research/additions.md, "A mechanism", walks through one. The bracket of delta must contain the oracle's delta,
    and the Rényi divergences must be above the oracle's. JSON must return an equal object, and hiding or composing must
    cost as theory says.

    Attributes:
        mechanism: an example of it, with values of its fields.
        is_worst: whether the outputs of :meth:`outputs` are the worst case that it describes. If they are only some
            case, lower ends are not compared.

    Example:
        >>> from fedamp.accounting import RandomisedResponse
        >>> class TestBit(MechanismContract):
        ...     mechanism = RandomisedResponse(0.75)
        ...     def outputs(self):
        ...         return [(0.75, 0.25), (0.25, 0.75)]
        >>> TestBit().test_brackets_hold_the_real_mechanism()
    """

    mechanism: ClassVar[Mechanism]
    is_worst: ClassVar[bool] = True

    @abstractmethod
    def outputs(self) -> ArrayLike:
        """Return the probabilities of the outputs of a real mechanism.

        Returns:
            Shape [outputs, 2]: with the person, and without. Each column sums to 1, to 1e-6.
        """

    @property
    def delta(self) -> float:
        """A delta at which epsilon is finite; a suite may override it."""
        return 1e-3

    def test_brackets_hold_the_real_mechanism(self) -> None:
        """The bracket of delta contains the oracle's delta, and is at most two per cent wide."""
        present, absent = _pair(self.outputs())
        for epsilon in (0.0, 0.2, 0.9):
            truth, bounds = _delta(present, absent, epsilon), self.mechanism.delta(epsilon)
            assert bounds.upper >= truth * (1 - KINK) - 1e-9, f"delta at epsilon {epsilon:g} is {truth:.6g}"
            if self.is_worst:
                assert bounds.lower <= truth * (1 + KINK) + 1e-9, f"delta at epsilon {epsilon:g} is {truth:.6g}"
                assert bounds.width <= 2e-2 * bounds.upper, "a bracket is at most two per cent wide"
        cost = self.mechanism.epsilon(self.delta)
        assert _delta(present, absent, cost.upper + 1e-9) <= self.delta * (1 + 1e-3)

    def test_moments_are_above_those_of_the_real_mechanism(self) -> None:
        """Rényi divergences of orders 2 and 5 are at least the oracle's, in both directions."""
        present, absent = _pair(self.outputs())
        for order in (2, 5):
            truth = _moment(present, absent, order)
            assert self.mechanism.rdp([order])[0] >= truth * (1 - 1e-6) - 1e-9, f"order {order}: {truth:.6g}"

    def test_it_is_written_and_read(self) -> None:
        """JSON without infinities gives an equal object back, with an equal hash, and the text has one line."""
        text = json.dumps(self.mechanism.to_json(), allow_nan=False)
        read = from_json(json.loads(text))
        assert read == self.mechanism
        assert hash(read) == hash(self.mechanism)
        assert "\n" not in str(self.mechanism)

    def test_epsilon_and_delta_are_inverse(self) -> None:
        """``epsilon`` and ``delta`` invert each other, and a smaller delta costs more."""
        cost = self.mechanism.epsilon(self.delta)
        assert 0 <= cost.lower <= cost.upper < math.inf
        assert self.mechanism.delta(cost.upper).lower <= self.delta * (1 + 1e-6)
        assert self.mechanism.delta(cost.lower).upper >= self.delta * (1 - 1e-6) or cost.lower == 0
        assert self.mechanism.epsilon(self.delta / 10).upper >= cost.upper

    def test_amplification_never_costs(self) -> None:
        """Hiding participation or submodels never raises epsilon; nor does the mechanism's own amplification."""
        cost = self.mechanism.epsilon(self.delta)
        assert cost.lower <= self.mechanism.unamplified().epsilon(self.delta).upper * 1.001
        if self.mechanism.is_of_whole_run or self.mechanism.relation == "substitution":
            return  # it cannot be hidden
        for hidden in (Poisson(self.mechanism, 0.5), Submodels(self.mechanism, 2)):
            assert hidden.epsilon(self.delta).upper <= cost.upper * 1.001

    def test_moments_add_where_it_is_repeated(self) -> None:
        """Rényi divergences of independent releases add up (Mironov 2017, Proposition 1)."""
        once = self.mechanism.rdp([2, 3, 9])
        assert np.allclose(Repeat(self.mechanism, 3).rdp([2, 3, 9]), 3 * once, rtol=1e-9)
        assert np.allclose(Compose([self.mechanism, self.mechanism]).rdp([2, 3, 9]), 2 * once, rtol=1e-9)

    def test_two_releases_cost_what_both_outputs_cost(self) -> None:
        """The bracket of two releases is above delta of all pairs of outputs."""
        present, absent = _pair(self.outputs())
        if len(present) > 1000:
            return  # all pairs of so many outputs would take the memory
        both, neither = (np.outer(law, law).ravel() for law in (present, absent))
        for epsilon in (0.2, 0.9):
            assert Repeat(self.mechanism, 2).delta(epsilon).upper >= _delta(both, neither, epsilon) * (1 - KINK) - 1e-9


def _pair(outputs: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both columns as arrays, each checked to sum to 1."""
    present, absent = np.asarray(outputs, dtype=float).T
    assert abs(present.sum() - 1) < 1e-6, "probabilities with the person add up to 1"
    assert abs(absent.sum() - 1) < 1e-6, "probabilities without the person add up to 1"
    return present, absent


def _delta(present: NDArray[np.float64], absent: NDArray[np.float64], epsilon: float) -> float:
    """Return the larger hockey-stick divergence of both directions, sum of (p - e^epsilon q)+."""
    factor = math.exp(epsilon)
    return float(
        max(np.maximum(one - factor * other, 0).sum() for one, other in ((present, absent), (absent, present)))
    )


def _moment(present: NDArray[np.float64], absent: NDArray[np.float64], order: int) -> float:
    """Return the larger Rényi divergence of both directions; 0 where an output has no probability on one side."""
    if not (present.all() and absent.all()):
        return 0.0
    pairs = ((present, absent), (absent, present))
    return max(math.log(float((one**order * other ** (1 - order)).sum())) / (order - 1) for one, other in pairs)
