"""Noise schemes: decide how the noise of a round depends on that of earlier ones.

A section of a scenario is the scheme itself: it chooses its coefficients for the run, and makes the mechanism that
draws the noise (:mod:`fedamp.noise`). The core has independent noise alone; correlated noise is an extension
(``fedamp/extensions/correlated``), with a charge of its own.
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
"""Coefficients c_1, c_2, .. of correlated noise: weights of the noise of earlier rounds; empty: it is independent."""


class NoiseScheme(Declared):
    """Base of the schemes that decide how the noise of a round depends on that of earlier rounds.

    Attributes:
        scheme: its name in a scenario.
        costs_add_up: whether rounds cost what as many independent rounds cost, composed; False where rounds of a unit
            meet in the same rows of the noise.
    """

    scheme: str
    costs_add_up: ClassVar[bool] = True
    concerns = frozenset({facts.NOISE_INDEPENDENT, facts.NOISE_HAS_BANDS})

    def coefficients_for(
        self, check_in: CheckIn, rounds: int, optimizer: ServerOptimizer, error: Callable[[int], float]
    ) -> Coefficients:
        """Choose the coefficients c_1, c_2, .. of a run; empty for independent noise.

        Args:
            check_in: of the scenario; some coefficients need rounds of a unit that are apart.
            rounds: of the run.
            optimizer: of the server; it says how long a round's noise stays in the model.
            error: gives the noise in the model for a number of bands, at the budget.
        """
        return ()

    def fitted_to(self, check_in: CheckIn, rounds: int) -> "NoiseScheme":
        """Return the scheme of a run, where its noise depends on the rounds in which a unit may take part.

        Args:
            check_in: of the scenario.
            rounds: of the run.
        """
        return self

    def noise_of(self, coefficients: Coefficients, multipliers: Iterable[float]) -> Noise:
        """Make the mechanism that draws the noise.

        Args:
            coefficients: from :meth:`coefficients_for`.
            multipliers: noise multiplier of each part.
        """
        return IndependentGaussian()

    def matched_filter(self, products: Floats, coefficients: Coefficients) -> tuple[Floats, Floats]:
        """Compute what an adversary, who sees releases and coefficients, knows of each round's contribution.

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
        """Return the same scheme with a number of bands, and their coefficients, instead of ``auto``."""
        return self


class IndependentNoise(NoiseScheme):
    """Independent Gaussian noise in every round."""

    scheme: Literal["independent"] = "independent"
    keeps = frozenset({facts.NOISE_INDEPENDENT})


NOISES: tuple[type[NoiseScheme], ...] = (IndependentNoise,)
