"""What merging the models of Yin, Zaheer, Li 2026 costs, by the paper's bounds and by fedamp's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.bounds.merging import Step, step_rdp
from benchmarks.papers.bounds.selection import random_selection_epsilon
from fedamp.accounting import FIXED_GRADIENTS, Compose, Gaussian, LinearCombination, Mechanism, Poisson, Repeat
from fedamp.studies.merging.selection import selection_epsilon

Array = NDArray[np.float64]

DELTA = 1e-5
# The paper does not print its orders; these are those of Opacus, which it trains with.
ORDERS = np.concatenate([np.arange(11, 110) / 10, np.arange(12, 64)])


@dataclass(frozen=True)
class Portfolio:
    """Models trained by DP-SGD on the same records, for which weights are sought.

    Attributes:
        noises: noise multiplier of each model, > 0.
        steps: how many steps each model was trained for.
        rate: with which a record takes part in a step, for all models.
        scales: learning rate times clipping norm of each model; only their ratios matter.
    """

    noises: tuple[float, ...]
    steps: tuple[int, ...]
    rate: float
    scales: tuple[float, ...]

    @cached_property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """What releasing each model costs."""
        return tuple(
            Repeat(Poisson(Gaussian(noise), self.rate), steps)
            for noise, steps in zip(self.noises, self.steps, strict=True)
        )

    @cached_property
    def curves(self) -> Array:
        """Rényi divergences of each model, shape (models, orders), exact at all orders (as Opacus has them)."""
        return np.stack(
            [
                steps * step_rdp(Step((1.0,), (noise,), (self.rate,)), ORDERS)
                for noise, steps in zip(self.noises, self.steps, strict=True)
            ]
        )

    def selection_by_rdp(self, weights: Array) -> Array:
        """Epsilon of random selection by Theorem 5.1 and Algorithm 1, for every row of weights; shape (rows,)."""
        return random_selection_epsilon(self.curves, weights, ORDERS, DELTA)

    def selection_by_loss(self, weights: Array) -> Array:
        """Epsilon of random selection by Theorem 5.2, as fedamp computes it; shape (rows,)."""
        return np.array([selection_epsilon(self.mechanisms, row, DELTA).upper for row in weights])

    def steps_by_rdp(self, weights: Array) -> Array:
        """Epsilon of linear combination by Theorem 6.2 and Algorithm 3; shape (rows,). Not a privacy bound."""
        return np.array([_epsilon_by_steps(self.step(row.tolist()), self.steps[0]) for row in weights])

    def step(self, weights: Sequence[float]) -> Step:
        """One step of all models together."""
        return Step(tuple(weights), self.noises, (self.rate,) * len(weights), (), self.scales)

    def steps_by_loss(self, weights: Array) -> Array:
        """Epsilon of linear combination by Theorem 6.4 and Algorithm 4; shape (rows,).

        A privacy bound only where gradients do not depend on the models.
        """
        merged = (LinearCombination(self.mechanisms, tuple(row), FIXED_GRADIENTS, self.scales) for row in weights)
        return np.array([each.epsilon(DELTA, points=300).upper for each in merged])

    def joint(self, weights: Array) -> Array:
        """Epsilon of linear combination by Theorem 6.1, as fedamp charges it; shape (rows,).

        All models with some weight are released together.
        """
        used = [tuple(np.flatnonzero(row).tolist()) for row in weights]
        cost = {
            chosen: Compose(tuple(self.mechanisms[index] for index in chosen)).epsilon(DELTA).upper
            for chosen in set(used)
        }
        return np.array([cost[chosen] for chosen in used])


@cache  # two figures ask for the same weights
def _epsilon_by_steps(step: Step, times: int) -> float:
    return float(np.min(times * step_rdp(step, ORDERS) + math.log(1 / DELTA) / (ORDERS - 1)))


MNIST = Portfolio(
    noises=(0.5, 0.5, 2.0), steps=(3 * math.ceil(60_000 / 256),) * 3, rate=256 / 60_000, scales=(0.1, 0.2, 0.1)
)
"""The three models of Appendix H.1: learning rate 0.1, clipping norms 1, 2 and 1, three epochs of batches of 256."""


def simplex(models: int, steps: int) -> Array:
    """All weights that are multiples of ``1 / steps``, shape (points, models)."""
    counts = np.indices((steps + 1,) * (models - 1)).reshape(models - 1, -1).T
    inside = counts[counts.sum(axis=1) <= steps]
    return np.asarray(np.column_stack([inside, steps - inside.sum(axis=1)]) / steps)
