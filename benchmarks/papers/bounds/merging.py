"""Linear combination of trained models, from Yin, Zaheer, Li 2026, "Differentially Private Model Merging"
(Theorems 6.1, 6.2, 6.4; Corollary 6.5 with Algorithms 3 and 4 as printed).

What is released is the weighted mean of N models, each trained on the same data with its own fresh noise.

Corrected: the paper adds the per-step bounds (6.2, 6.4) over the steps (Corollary 6.5). A per-step bound is conditional
on the trajectories of all the models, which are *not* released; a later gradient, of anybody's data, carries a model's
hidden earlier state into the merged model. The composition is right where gradients do not depend on the models (one
step, mean estimation) and wrong in general. What always holds is the joint release, Theorem 6.1.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.signal import fftconvolve
from scipy.special import ndtr

from benchmarks.papers.bounds.arguments import Floats, check_orders, check_positive, check_sequence, check_weights
from benchmarks.papers.bounds.mixtures import (
    delta_of_mixture,
    inverse_log_likelihood_ratio,
    log_likelihood_ratio,
    renyi_of_mixtures,
)

_MOST_MODELS = 12


@dataclass(frozen=True)
class Step:
    """One training step of N models, taken together. All sequences have length N.

    Attributes:
        weights: weights of the linear combination, on the probability simplex.
        noise_multipliers: noise standard deviation over clipping norm, > 0.
        sampling_rates: Poisson sampling rate of the differing record, in [0, 1], drawn for every model by itself.
        learning_rates: > 0, default 1; only their ratios matter.
        clipping_norms: > 0, default 1; only their ratios matter.
    """

    weights: Sequence[float]
    noise_multipliers: Sequence[float]
    sampling_rates: Sequence[float]
    learning_rates: Sequence[float] = ()
    clipping_norms: Sequence[float] = ()

    def __post_init__(self) -> None:
        models = len(self.weights)
        if not 1 <= models <= _MOST_MODELS:
            raise ValueError(f"weights must hold 1 to {_MOST_MODELS} models (the cost doubles with each), got {models}")
        check_weights("weights", self.weights, models)
        rates = check_sequence("sampling_rates", self.sampling_rates, models)
        if not np.all((rates >= 0) & (rates <= 1)):
            raise ValueError(f"sampling_rates must lie in [0, 1], got {self.sampling_rates}")
        for name in ("noise_multipliers", "learning_rates", "clipping_norms"):
            values = getattr(self, name)
            if (values or name == "noise_multipliers") and not np.all(check_sequence(name, values, models) > 0):
                raise ValueError(f"{name} must be > 0, got {values}")

    def worst_case(self) -> tuple[Floats, Floats]:
        """The mixture of Theorem 6.4: probabilities and means, in noise standard deviations, over all subsets J.

        A subset J of the models samples the record with probability rho_J, and the merged step then moves by at most
        Delta_J, the sum of ``weight * learning rate * clipping norm`` over J. Both have shape (2^N,).
        """
        ones = np.ones(len(self.weights))
        scale = np.array(self.weights) * np.array(self.learning_rates or ones) * np.array(self.clipping_norms or ones)
        noise = math.sqrt(float(np.sum((scale * np.array(self.noise_multipliers)) ** 2)))
        drawn = np.array(list(itertools.product((0, 1), repeat=len(scale))))
        rates = np.array(self.sampling_rates)
        return np.prod(np.where(drawn == 1, rates, 1 - rates), axis=1), drawn @ scale / noise


def joint_release_rdp(curves: ArrayLike) -> Floats:
    """Theorem 6.1, Eq. (7): Rényi divergences of any linear combination, shape (orders,): the sum over the models.

    Args:
        curves: each model's Rényi divergences over *all* its steps, shape (models, orders), >= 0. The models must have
            been trained with independent noise and sampling.
    """
    divergences = np.asarray(curves, dtype=float)
    if divergences.ndim != 2 or not np.all(divergences >= 0):
        raise ValueError(f"curves must be >= 0 and of shape (models, orders), got shape {divergences.shape}")
    return divergences.sum(axis=0)


def joint_release_delta(mixtures: Sequence[tuple[Floats, Floats]], epsilon: float, spacing: float = 1e-3) -> float:
    """Theorem 6.1, Eq. (8): delta at ``epsilon`` of the joint release, by convolving privacy loss distributions.

    Losses are spread over a grid and what leaves the grid counts as an infinite loss, so the result is an upper bound
    up to floating-point rounding (about 1e-14).

    Args:
        mixtures: what is released, as (probabilities, means) of Gaussian mixtures against the unit Gaussian at 0:
            one for every step of every model, for instance ``step.worst_case()`` of a step with one model.
        epsilon: >= 0.
        spacing: of the grid of losses, in nats.
    """
    return max(_composed_delta(epsilon, mixtures, spacing, sign) for sign in (1, -1))


def step_rdp(step: Step, orders: ArrayLike) -> Floats:
    """Theorem 6.2: Rényi divergences of one merged step, given all that happened before, shape (orders,).

    The sum of Eq. (9) over the ways to distribute the order over 2^N subsets is the moment of the surrogate of
    Eq. (11); it is evaluated as an integral, for real orders too. The paper states the remove direction; this is the
    larger of both, which holds by the argument of Theorem 6.4.

    Not to be summed over the steps: see the module's docstring.
    """
    probabilities, means = step.worst_case()
    one, zero = np.array([1.0]), np.array([0.0])
    removal = renyi_of_mixtures(orders, probabilities, means, one, zero)
    return np.maximum(removal, renyi_of_mixtures(orders, one, zero, probabilities, means))


def step_delta(step: Step, epsilon: float) -> float:
    """Theorem 6.4: delta at ``epsilon`` >= 0 of one merged step, given all that happened before.

    Not to be convolved over the steps: see the module's docstring.
    """
    _check_epsilon(epsilon)
    return max(delta_of_mixture(epsilon, *step.worst_case()))


def not_a_bound_algorithm_3(steps: Sequence[Step], orders: ArrayLike) -> Floats:
    """Algorithm 3 as printed: Theorem 6.2 summed over the steps. **Not a privacy bound**; kept to show the difference.

    Two models, full participation, weights (0.9, 0.1), equal noise s, two steps: it claims 1.22 a / s^2 at order a,
    and the merged model, released once at the end, can reveal 1.61 a / s^2.
    """
    return np.sum([step_rdp(step, check_orders(orders)) for step in steps], axis=0)


def not_a_bound_algorithm_4(steps: Sequence[Step], epsilon: float, spacing: float = 1e-3) -> float:
    """Corollary 6.5 and Algorithm 4 as printed: Theorem 6.4 convolved over the steps. **Not a privacy bound**."""
    return joint_release_delta([step.worst_case() for step in steps], epsilon, spacing)


def _check_epsilon(epsilon: float) -> None:
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be >= 0, got {epsilon}")


# Probabilities of consecutive multiples of the spacing, the first multiple, and the probability of an infinite loss.
_Losses = tuple[Floats, int, float]


def _composed_delta(epsilon: float, mixtures: Sequence[tuple[Floats, Floats]], spacing: float, sign: int) -> float:
    """Upper bound of delta in one direction: ``sign`` 1 removes, -1 adds."""
    _check_epsilon(epsilon)
    check_positive("spacing", spacing)
    if not mixtures:
        raise ValueError("mixtures must not be empty")
    distinct = {(tuple(probabilities), tuple(means)) for probabilities, means in mixtures}
    total: _Losses = (np.ones(1), 0, 0.0)
    for key in sorted(distinct):
        times = sum((tuple(probabilities), tuple(means)) == key for probabilities, means in mixtures)
        total = _convolved(total, _repeated(_spread_losses(np.array(key[0]), np.array(key[1]), spacing, sign), times))
    law, first, infinite = total
    losses = (first + np.arange(len(law))) * spacing
    above = losses > epsilon
    return min(1.0, infinite + float(np.sum(law[above] * -np.expm1(epsilon - losses[above]))))


def _spread_losses(probabilities: Floats, means: Floats, spacing: float, sign: int) -> _Losses:
    """One mixture's privacy loss under the numerator's law, on multiples of ``spacing``.

    The mass between two multiples goes to both of them so that its mean likelihood ratio stays: a spread, hence an
    upper bound of every hockey-stick divergence (Doroshenko et al. 2022, "Connect the dots").
    """
    if np.max(means[probabilities > 0]) == 0:
        return np.ones(1), 0, 0.0
    reach = np.array([-9.0, np.max(means[probabilities > 0]) + 9.0])  # 1e-19 of the mass lies beyond on either side
    low, high = np.sort(sign * log_likelihood_ratio(reach, probabilities, means))
    multiples = np.arange(math.floor(low / spacing), math.ceil(high / spacing) + 1)
    losses = multiples * spacing
    points = inverse_log_likelihood_ratio(sign * losses, probabilities, means)
    mixture, center = ndtr(points[:, None] - means) @ probabilities, ndtr(points)
    numerator, denominator = (mixture, center) if sign == 1 else (1 - center, 1 - mixture)
    mass, other = np.diff(numerator), np.diff(denominator)
    upward = np.clip((mass - other * np.exp(losses[:-1])) / -math.expm1(-spacing), 0, np.maximum(mass, 0))
    law = np.concatenate([mass - upward, [0.0]]) + np.concatenate([[max(0.0, float(numerator[0]))], upward])
    return np.clip(law, 0, None), int(multiples[0]), max(0.0, float(1 - numerator[-1]))


def _repeated(one: _Losses, times: int) -> _Losses:
    """The sum of ``times`` independent losses, by binary powers."""
    total: _Losses = (np.ones(1), 0, 0.0)
    while times:
        if times % 2:
            total = _convolved(total, one)
        times //= 2
        one = _convolved(one, one) if times else one
    return total


def _convolved(one: _Losses, two: _Losses) -> _Losses:
    """The sum of two independent losses, without ends of mass 1e-16: the left moves up, the right to infinity."""
    law = np.clip(fftconvolve(one[0], two[0]), 0, None)
    left = int(np.searchsorted(np.cumsum(law), 1e-16))
    right = len(law) - int(np.searchsorted(np.cumsum(law[::-1]), 1e-16))
    kept = law[left:right].copy()
    kept[0] += law[:left].sum()
    return kept, one[1] + two[1] + left, min(1.0, one[2] + two[2] + float(law[right:].sum()))
