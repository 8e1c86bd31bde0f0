"""Banded noise (matrix factorisation): the noise of a round is correlated with that of the rounds before, and cancels.

With C the lower triangular Toeplitz matrix of the coefficients 1, c_1, .., c_(b-1), b bands, the release of round t is
y_t = x_t + n_t with C n = z, z independent Gaussian noise (Choquette-Choo et al. 2023, 2306.08153). Who sees y sees C y
= C x + z. A contribution to x_s shows in rows s to s + b - 1, weighted by the coefficients. So z has the deviation of
independent noise times the norm of the coefficients (docs/correlated-noise.md).

Exactness. The coefficients are whole multiples of 2**-``BITS``, sums and releases of powers of two. So what is left of
the noise of earlier rounds, r_t = c_1 n_(t-1) + .. + c_(b-1) n_(t-b+1), is computed without rounding, and y_t is x_t -
r_t + z_t, rounded once to the grid of the noise. With n = y - x that is (C x)_t + z_t, less a function of the earlier
releases: post-processing of the charged Gaussian mechanism, without any loss.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedamp.base.arrays import Arrays, State, Sums
from fedamp.noise.gaussian import grid_of, split
from fedamp.noise.independent import Deviations, Hidden, Noise, add_noise

Floats = NDArray[np.float64]

BITS = 10
MULTIPLIERS = 2.0**-10, 32.0  # noise multipliers for which float64 holds everything exactly

# Of r_t and its parts, in deviations: 53 bits, of which a unit of the sums takes up to 31 and the coefficients BITS.
_MOST = 2.0 ** (53 - 31 - BITS) / MULTIPLIERS[1]


class BandedGaussian(Noise):
    """Noise of at least two bands.

    Args:
        coefficients: c_1, c_2, ..: at least 0, whole multiples of 2**-``BITS``.
    """

    def __init__(self, coefficients: Sequence[float]) -> None:
        self.coefficients = tuple(coefficients)

    def init(self, parameters: Arrays) -> State:
        """The noise of the last rounds, the newest first: ``1``, ``2``, .. (float64)."""
        return {
            str(back): {name: np.zeros(array.shape) for name, array in parameters.items()}
            for back in range(1, len(self.coefficients) + 1)
        }

    def update(
        self, sums: Sums, deviation_of: Deviations, hidden: Hidden, state: State, seed: int, round_: int
    ) -> State:
        if hidden:
            raise ValueError("mixing hides a round beside independent noise only")
        norm = norm_of(self.coefficients)
        deviations = {name: norm * deviation for name, deviation in deviation_of.items()}
        whole: dict[str, Floats] = {}
        exact = {name: array.copy() for name, array in sums.items()}
        for name, array in sums.items():
            grid, left = grid_of(deviations[name]), self._left(state, name, deviation_of[name])
            (whole[name], rest), (whole_left, rest_left) = split(array, grid), split(left, grid)
            whole[name] -= whole_left
            np.multiply(rest - rest_left, grid, out=array)
        add_noise(sums, deviations, hidden, seed, round_)
        for name, array in sums.items():
            array += whole[name] * grid_of(deviations[name])
        newest = {name: sums[name] - exact[name] if name in sums else old for name, old in state["1"].items()}
        return {"1": newest} | {str(back + 1): state[str(back)] for back in range(1, len(self.coefficients))}

    def _left(self, state: State, name: str, deviation: float) -> Floats:
        """r_t of an array; ValueError where float64 may not hold it exactly."""
        left = np.zeros(state["1"][name].shape)
        for back, coefficient in enumerate(self.coefficients, 1):
            left += coefficient * state[str(back)][name]
            if max(np.abs(left).max(), np.abs(state[str(back)][name]).max()) > _MOST * deviation:
                raise ValueError(f"noise: {name}: earlier noise of more than {_MOST:g} deviations cannot be exact")
        return left


def norm_of(coefficients: Sequence[float]) -> float:
    """The Euclidean norm of 1, c_1, c_2, .., rounded up."""
    return math.sqrt(1 + math.fsum(each * each for each in coefficients)) * (1 + 2.0**-50)


def path_noise(coefficients: Sequence[float], response: Floats) -> float:
    """Root mean square, over the rounds, of the noise in the server's model, for noise multiplier, clipping norm and
    denominator 1.

    Args:
        coefficients: c_1, c_2, ..; none: independent noise.
        response: shape [rounds]: what one unit of a round's mean update has added to the model after 0, 1, .. further
            rounds.
    """
    from scipy.signal import lfilter

    # |A C^-1| in Frobenius norm: both are Toeplitz, so each diagonal holds one number.
    filtered = lfilter([1.0], [1.0, *coefficients], response)
    rounds = len(response)
    return norm_of(coefficients) * math.sqrt(float(np.arange(rounds, 0, -1) @ filtered**2) / rounds)


def best_coefficients(bands: int, response: Floats) -> tuple[float, ...]:
    """Coefficients c_1, .., c_(bands-1) of little :func:`path_noise`; found by L-BFGS from those of (1 - x)^(-1/2)."""
    from scipy.optimize import minimize

    if bands == 1:
        return ()
    places = np.arange(1, bands)
    start = np.cumprod((2 * places - 1) / (2 * places))
    found = minimize(
        lambda coefficients: math.log(path_noise(coefficients, response)),
        start,
        method="L-BFGS-B",
        bounds=[(0.0, 2.0)] * (bands - 1),
    )
    return tuple((np.rint(found.x * 2**BITS) / 2**BITS).tolist())


def matched(products: Floats, coefficients: Sequence[float]) -> tuple[Floats, Floats]:
    """What an adversary knows of each round's contribution, who sees the releases and the coefficients.

    Args:
        products: shape [rounds, n]: of each release with n possible contributions, each coordinate over the variance of
            independent noise.
        coefficients: c_1, c_2, ..; none: independent noise, and the products stay the same.

    Returns:
        Shape [rounds, n] and [rounds]: the products for independent noise of the charged variance, and what share of
        the squared length of a contribution is out. It is less than 1 for the last rounds.
    """
    filtered, share = np.zeros_like(products), np.zeros(len(products))
    rows, norm = np.zeros_like(products), 1 + sum(each * each for each in coefficients)
    for back, coefficient in enumerate((1.0, *coefficients)):  # C y has independent noise
        rows[back:] += coefficient * products[: len(products) - back]
    for back, coefficient in enumerate((1.0, *coefficients)):  # a contribution shows in the rows from its own on
        filtered[: len(products) - back] += coefficient / norm * rows[back:]
        share[: len(products) - back] += coefficient**2 / norm
    return filtered, share
