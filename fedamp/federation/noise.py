"""Noise schemes: how the noise of a round depends on that of earlier ones.

A section of a scenario is the scheme itself: it chooses its coefficients for the run, and makes the mechanism that
draws the noise.
"""

from collections.abc import Callable, Iterable
from typing import ClassVar, Literal

import numpy as np

from fedamp.base.arrays import Floats
from fedamp.federation import facts
from fedamp.federation.check_in import CheckIn
from fedamp.federation.facts import Declared
from fedamp.federation.optimizers import ServerOptimizer
from fedamp.noise import IndependentGaussian, Noise

Coefficients = tuple[float, ...]
"""c_1, c_2, .. of correlated noise: the weights of the noise of earlier rounds; none: it is independent."""


class NoiseScheme(Declared):
    """How the noise of a round depends on that of earlier rounds.

    Attributes:
        scheme: its name in a scenario.
        costs_add_up: whether the cost of rounds is the product of the costs of each; false where rounds of a unit meet
            in the same rows of the noise.
    """

    scheme: str
    costs_add_up: ClassVar[bool] = True
    concerns = frozenset({facts.NOISE_INDEPENDENT, facts.NOISE_HAS_BANDS})

    def coefficients_for(
        self, check_in: CheckIn, rounds: int, optimizer: ServerOptimizer, error: Callable[[int], float]
    ) -> Coefficients:
        """c_1, c_2, .. for the server's model; ``error``: of a number of bands, at the budget."""
        return ()

    def drawn(self, coefficients: Coefficients, multipliers: Iterable[float]) -> Noise:
        """What draws the noise."""
        return IndependentGaussian()

    def matched(self, products: Floats, coefficients: Coefficients) -> tuple[Floats, Floats]:
        """What an adversary knows of each round's contribution, who sees the releases and the coefficients.

        Args:
            products: shape [rounds, n], of each release with n possible contributions, each coordinate over the
                variance of independent noise.
            coefficients: c_1, c_2, .. of the noise.

        Returns:
            The products for independent noise of the charged variance, shape [rounds, n]; and the share of the squared
            length of a contribution that is out, shape [rounds].
        """
        return products, np.ones(len(products))

    def with_bands(self, bands: int, coefficients: tuple[float, ...] | Literal["auto"]) -> "NoiseScheme":
        """The same scheme with a number of bands, and their coefficients, instead of ``auto``."""
        return self


class IndependentNoise(NoiseScheme):
    """Independent Gaussian noise in every round."""

    scheme: Literal["independent"] = "independent"
    keeps = frozenset({facts.NOISE_INDEPENDENT})


NOISES: tuple[type[NoiseScheme], ...] = (IndependentNoise,)
