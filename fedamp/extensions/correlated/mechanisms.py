"""Draw correlated noise, with bands or from buffers; and find coefficients with little noise in the server's model.

:mod:`fedamp.extensions.correlated.section` makes the mechanisms for a run; :mod:`fedamp.noise` has the independent
noise that they are made of, and the interface. The theorem is in docs/research/correlated-noise.md.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from fedamp.base.arrays import Arrays, Floats, State, Sums
from fedamp.federation.model_noise import mean_noise, path_noise
from fedamp.noise import Deviations, HiddenUniforms, Noise, add_noise, grid_of, norm_of, split

BITS = 10
MULTIPLIERS = 2.0**-10, 32.0  # noise multipliers for which float64 holds everything exactly

# Of r_t and its parts, in deviations: 53 bits, of which a unit of the sums takes up to 31 and the coefficients BITS.
_MOST = 2.0 ** (53 - 31 - BITS) / MULTIPLIERS[1]


Pair = tuple[Floats, Floats]  # numbers as sums of two, the second one below the last place of the first
Arrays64 = dict[str, Floats]


def check_size(name: str, size: float, deviation: float) -> None:
    """Refuse earlier noise that float64 may not hold exactly.

    Args:
        name: of the array.
        size: of its largest number.
        deviation: of independent noise.

    Raises:
        ValueError: it is of more than ``_MOST`` deviations.
    """
    if size > _MOST * deviation:
        raise ValueError(f"noise: {name}: earlier noise of more than {_MOST:g} deviations cannot be exact")


class CorrelatedGaussian(Noise):
    """Noise n_t = z_t - r_t, with r_t of the noise of earlier rounds, which it cancels.

    With C the lower triangular Toeplitz matrix of the coefficients 1, c_1, c_2, .., the release of round t is y_t = x_t
    + n_t with C n = z, z independent Gaussian noise (Choquette-Choo et al. 2023, 2306.08153). An adversary who sees y
    sees C y = C x + z. A contribution to x_s shows in the rows from s on, weighted by the coefficients. So z has the
    deviation of independent noise times the norm of the coefficients (docs/research/correlated-noise.md).

    Coefficients of banded noise are whole multiples of 2**-``BITS``, sums and releases of powers of two. So r_t = c_1
    n_(t-1) + c_2 n_(t-2) + .. is computed without rounding, and y_t is x_t - r_t + z_t, rounded once to the grid.

    Attributes:
        norm: deviation of z over that of independent noise.
    """

    norm: float

    @abstractmethod
    def _left(self, state: State, round_: int, name: str, deviation: float) -> Pair:
        """Compute r_t of an array.

        Raises:
            ValueError: float64 may not hold it.
        """

    @abstractmethod
    def _following(self, state: State, round_: int, newest: Arrays64) -> State:
        """Return the state after the noise n_t of a round."""

    def update(
        self, sums: Sums, deviation_of: Deviations, hidden: HiddenUniforms, state: State, seed: int, round_: int
    ) -> State:
        """Add the noise of a round to its sums, in place, and return the state of the noise after it.

        Args:
            sums: clipped sums, float64 by name, overwritten by the release.
            deviation_of: deviation of independent noise, by name.
            hidden: must be empty: mixing hides a round beside independent noise only.
            state: of the noise, secret.
            seed: secret, of the noise.
            round_: from 1.

        Raises:
            ValueError: there is mixing, or float64 may not hold the noise exactly.
        """
        if hidden:
            raise ValueError("mixing hides a round beside independent noise only")
        deviations = {name: self.norm * deviation for name, deviation in deviation_of.items()}
        whole: dict[str, Floats] = {}
        exact = {name: array.copy() for name, array in sums.items()}
        for name, array in sums.items():
            grid, (left, below) = grid_of(deviations[name]), self._left(state, round_, name, deviation_of[name])
            (whole[name], rest), (whole_left, rest_left) = split(array, grid), split(left, grid)
            whole[name] -= whole_left
            np.multiply(rest - rest_left - below / grid, grid, out=array)
        add_noise(sums, deviations, hidden, seed, round_)
        for name, array in sums.items():
            array += whole[name] * grid_of(deviations[name])
        return self._following(state, round_, {name: array - exact[name] for name, array in sums.items()})


class BandedGaussian(CorrelatedGaussian):
    """Noise of at least two bands.

    Args:
        coefficients: c_1, c_2, .. >= 0, whole multiples of 2**-``BITS``.
    """

    def __init__(self, coefficients: Sequence[float]) -> None:
        self.coefficients, self.norm = tuple(coefficients), norm_of(coefficients)

    def init(self, parameters: Arrays) -> State:
        """Return the state before the first round: zeros, float64.

        ``1``, ``2``, .. are the noise of the last rounds, the newest first.
        """
        return {
            str(back): {name: np.zeros(array.shape) for name, array in parameters.items()}
            for back in range(1, len(self.coefficients) + 1)
        }

    def _following(self, state: State, round_: int, newest: Arrays64) -> State:
        """Move each round's noise back by one, and forget the oldest."""
        first = state["1"] | newest
        return {"1": first} | {str(back + 1): state[str(back)] for back in range(1, len(self.coefficients))}

    def _left(self, state: State, round_: int, name: str, deviation: float) -> Pair:
        """Add up the noise of earlier rounds, weighted; exact up to 128 deviations, beyond it is refused."""
        left = np.zeros(state["1"][name].shape)
        for back, coefficient in enumerate(self.coefficients, 1):
            left += coefficient * state[str(back)][name]
            check_size(name, max(np.abs(left).max(), np.abs(state[str(back)][name]).max()), deviation)
        return left, np.zeros(left.shape)


class BufferedGaussian(CorrelatedGaussian):
    """Noise without bands, from d buffers (a buffered linear Toeplitz matrix; Dvijotham et al. 2024, 2404.16706).

    r_t = sum_i a_i B_i, and each buffer becomes l_i B_i + n_t, so that c_j = sum_i a_i l_i^(j - 1). No float64 holds
    powers of l_i exactly: a buffer is the sum of two, and what is lost is charged (docs/research/correlated-noise.md).

    Args:
        coefficients: c_1, c_2, .. of :func:`best_buffers`.

    Attributes:
        buffers: pairs (a_i, l_i).

    Raises:
        ValueError: the coefficients are of no few buffers.
    """

    def __init__(self, coefficients: Sequence[float]) -> None:
        self.coefficients, self.buffers = tuple(coefficients), buffers_of(coefficients)
        self.norm = norm_of(coefficients)

    def init(self, parameters: Arrays) -> State:
        """Return the state before the first round: the buffers and their rests, zeros, float64."""
        names = [f"{i}{rest}" for i in range(len(self.buffers)) for rest in ("", "-rest")]
        return {part: {name: np.zeros(array.shape) for name, array in parameters.items()} for part in names}

    def _left(self, state: State, round_: int, name: str, deviation: float) -> Pair:
        """Add up the buffers, weighted, as pairs of numbers."""
        left = (np.zeros(state["0"][name].shape),) * 2
        for i, (weight, _) in enumerate(self.buffers):
            buffer = state[str(i)][name], state[f"{i}-rest"][name]
            if np.abs(buffer[0]).max() > _MOST * deviation:
                raise ValueError(f"noise: {name}: earlier noise of more than {_MOST:g} deviations cannot be kept")
            left = _two_sum(_two_product(weight, buffer), left)
        return left

    def _following(self, state: State, round_: int, newest: Arrays64) -> State:
        """Let each buffer decay, and add the newest noise to it."""
        following: State = {part: dict(arrays) for part, arrays in state.items()}
        for name, array in newest.items():
            for i, (_, decay) in enumerate(self.buffers):
                kept = _two_product(decay, (state[str(i)][name], state[f"{i}-rest"][name]))
                following[str(i)][name], following[f"{i}-rest"][name] = _two_sum(kept, (array, np.zeros(array.shape)))
        return following


def _two_sum(one: Pair, other: Pair) -> Pair:
    """Add two pairs, to some units of 2**-106 (Knuth's two-sum)."""
    total, rest = _exact_sum(one[0], other[0])
    return _exact_sum(total, rest + (one[1] + other[1]))


def _two_product(factor: float, number: Pair) -> Pair:
    """Multiply a pair by a whole multiple of 2**-``BITS`` in [0, 1], to some units of 2**-106 (Veltkamp's split)."""
    large = number[0] * (2.0**27 + 1)
    top = large - (large - number[0])
    product, rest = _exact_sum(factor * top, factor * (number[0] - top))
    return _exact_sum(product, rest + factor * number[1])


def _exact_sum(one: Floats, other: Floats) -> Pair:
    """Return a sum and its rounding error (Knuth's two-sum)."""
    total = one + other
    part = total - one
    return total, (one - (total - part)) + (other - part)


def of_buffers(buffers: Sequence[tuple[float, float]], rounds: int) -> tuple[float, ...]:
    """Compute the coefficients c_1, .., c_(rounds - 1) of buffers.

    Each is rounded up to a multiple of 2**-30: larger coefficients never cost less.

    Args:
        buffers: pairs (a_i, l_i) in [0, 1], whole multiples of 2**-``BITS``; the a_i sum to at most 1.
        rounds: of the run.

    >>> [round(each, 6) for each in of_buffers([(0.5, 0.5)], 4)]
    [0.5, 0.25, 0.125]
    """
    powers, found = [weight for weight, _ in buffers], []
    for _ in range(rounds - 1):
        found.append(math.ceil(math.fsum(powers) * (1 + 1e-12) * 2**30) / 2**30)
        powers = [power * decay for power, (_, decay) in zip(powers, buffers, strict=True)]
    return tuple(min(each, 1.0) for each in found)


def buffers_of(coefficients: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Find the at most three buffers that have these coefficients (Prony's method).

    Raises:
        ValueError: there are none.
    """
    given = np.array(coefficients)
    for d in range(1, 4):
        some = min(len(given), 40)
        if some < 2 * d:
            break
        places = np.arange(some - d)[:, None] + np.arange(d)
        recurrence = np.linalg.lstsq(given[places], given[d:some], rcond=None)[0]
        roots = np.roots([1.0, *-recurrence[::-1]])
        if np.iscomplexobj(roots) and np.abs(roots.imag).max() > 0:
            continue
        decays = np.rint(np.sort(roots.real) * 2**BITS) / 2**BITS
        weights = np.linalg.lstsq(decays ** np.arange(some)[:, None], given[:some], rcond=None)[0]
        found = tuple(zip((np.rint(weights * 2**BITS) / 2**BITS).tolist(), (decays + 0.0).tolist(), strict=True))
        possible = all(0 <= a <= 1 and 0 <= decay < 1 for a, decay in found)
        if possible and of_buffers(found, len(given) + 1) == tuple(coefficients):
            return found
    raise ValueError("coefficients must be those of up to three buffers")


def best_buffers(buffers: int, responses: Sequence[Floats], k: int, gap: int) -> tuple[float, ...]:
    """Find coefficients of buffers that add little noise to the server's models.

    Minimised is :func:`fedamp.federation.model_noise.mean_noise` times what ``k`` known rounds of a person add over
    one of them, by L-BFGS.

    Args:
        buffers: the most, 1 to 3; fewer where two of them are too much alike.
        responses: of the models to a round's update, float64 [rounds] each
            (:meth:`fedamp.federation.optimizers.ServerOptimizer.step_responses`).
        k: check-ins of a person.
        gap: least distance of two of them, in rounds.

    Returns:
        c_1, .., c_(rounds - 1); empty where no buffers are found.
    """
    from scipy.optimize import minimize

    rounds = len(responses[0])
    places = np.arange(rounds - 1)[:, None]

    def filled(values: Floats) -> Floats:
        weights, decays = np.split(values, 2)
        found = (weights * decays**places).sum(1)
        return np.asarray(found / max(1.0, float(weights.sum())))

    def cost(values: Floats) -> float:
        column, signal = np.append(1.0, filled(values)), np.zeros(rounds)
        for start in range(0, min(k * gap, rounds), gap):
            signal[start:] += column[: rounds - start]
        return math.log(mean_noise(column[1:].tolist(), *responses) * math.sqrt(signal @ signal / (column @ column)))

    for d in range(buffers, 0, -1):
        start = np.append(np.full(d, 0.5 / d), 1 - 0.6 ** np.arange(1, d + 1))
        found = minimize(cost, start, method="L-BFGS-B", bounds=[(0.0, 1.0)] * d + [(0.0, 0.999)] * d).x
        weights, decays = np.split(np.floor(found * 2**BITS) / 2**BITS, 2)
        if weights.sum() > 1:
            weights = np.floor(weights / weights.sum() * 2**BITS) / 2**BITS
        coefficients = of_buffers(list(zip(weights.tolist(), decays.tolist(), strict=True)), rounds)
        try:
            buffers_of(coefficients)
        except ValueError:  # two of them are too much alike
            continue
        return coefficients
    return ()


def best_coefficients(bands: int, *responses: Floats) -> tuple[float, ...]:
    """Find coefficients c_1, .., c_(bands-1) of little path noise, by L-BFGS from those of (1 - x)^(-1/2).

    Args:
        bands: at least 1; 1 has no coefficients.
        responses: of the models to a round's update, float64 [rounds] each
            (:meth:`fedamp.federation.optimizers.ServerOptimizer.step_responses`).
    """
    from scipy.optimize import minimize

    if bands == 1:
        return ()
    places = np.arange(1, bands)
    start = np.cumprod((2 * places - 1) / (2 * places))

    def cost(coefficients: Floats) -> float:
        return sum(math.log(path_noise(coefficients.tolist(), each)) for each in responses) / len(responses)

    found = minimize(cost, start, method="L-BFGS-B", bounds=[(0.0, 2.0)] * (bands - 1))
    return tuple((np.rint(found.x * 2**BITS) / 2**BITS).tolist())


def matched(products: Floats, coefficients: Sequence[float]) -> tuple[Floats, Floats]:
    """Compute what an adversary learns of each round's contribution from the releases and the coefficients.

    Args:
        products: float64 [rounds, n], of each release with n possible contributions, each coordinate over the variance
            of independent noise.
        coefficients: c_1, c_2, ..

    Returns:
        The products for independent noise of the charged variance [rounds, n]; and the share [rounds] of the squared
        length of a contribution that is out, less than 1 for the last rounds.
    """
    filtered, share = np.zeros_like(products), np.zeros(len(products))
    rows, norm = np.zeros_like(products), 1 + sum(each * each for each in coefficients)
    for back, coefficient in enumerate((1.0, *coefficients)):  # C y has independent noise
        rows[back:] += coefficient * products[: len(products) - back]
    for back, coefficient in enumerate((1.0, *coefficients)):  # a contribution shows in the rows from its own on
        filtered[: len(products) - back] += coefficient / norm * rows[back:]
        share[: len(products) - back] += coefficient**2 / norm
    return filtered, share
