"""Feldman, Shenfeld 2025, Lemma F.1: the exact delta of random allocation as an expectation, estimated by sampling.

In ``chosen`` of ``rounds`` hidden rounds, the likelihood ratio is ``X = e_k(X_1, .., X_t) / binom(t, k)`` with ``e_k``
the elementary symmetric polynomial and ``X_i`` those of the single rounds (the lemma's mean for ``chosen = 1``).
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp, ndtri

from benchmarks.papers.bounds.arguments import Floats, check_count, check_positive

_NOMINAL_SHARE = 0.1  # of the samples from the law itself: no importance weight exceeds its inverse
_TILTS = 6
_CHUNK = 2**21  # numbers drawn at once


@dataclass(frozen=True)
class Estimate:
    """A Monte Carlo mean and its confidence limits."""

    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True)
class _Tilt:
    """Normals shifted by ``drift`` in every round and by ``jump`` more in ``chosen`` rounds drawn at random."""

    jump: float
    drift: float


def monte_carlo_delta(
    noise_multiplier: float,
    rounds: int,
    epsilon: float,
    samples: int,
    generator: np.random.Generator,
    chosen: int = 1,
    direction: Literal["remove", "add"] = "remove",
    confidence: float = 0.99,
) -> Estimate:
    """Lemma F.1: delta at ``epsilon`` of the Gaussian mechanism in ``chosen`` of ``rounds`` rounds, either direction.

    Importance sampled around the likely ways to a loss beyond ``epsilon``, mixed with the law itself so that
    the weights are bounded. The limits are those of the central limit theorem: right in the limit of many samples, not
    a guarantee (Chua et al. 2024, whom the paper follows, give one at the price of wide limits at small delta).

    Args:
        epsilon: not negative, in nats.
        samples: at least 2; each costs ``rounds * chosen`` operations.
        confidence: probability, in (0, 1), that the limits enclose the truth.

    Returns:
        estimate and limits, clipped to [0, 1].
    """
    check_positive("noise_multiplier", noise_multiplier)
    rounds, chosen = check_count("rounds", rounds), check_count("chosen", chosen)
    samples = check_count("samples", samples, 2)
    if chosen > rounds:
        raise ValueError(f"chosen must not exceed rounds, got {chosen} of {rounds}")
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be >= 0 and finite, got {epsilon}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    if direction not in ("remove", "add"):
        raise ValueError(f"direction must be 'remove' or 'add', got {direction!r}")
    nominal = _Tilt(1 / noise_multiplier if direction == "remove" else 0.0, 0.0)
    tilts = [nominal, *(_losing if direction == "remove" else _gaining)(noise_multiplier, rounds, chosen, epsilon)]
    chunk = max(1, _CHUNK // rounds)
    values = [
        _values(generator, min(chunk, samples - start), rounds, chosen, epsilon, noise_multiplier, tilts)
        for start in range(0, samples, chunk)
    ]
    value = np.concatenate(values)
    mean = float(value.mean())
    margin = float(ndtri((1 + confidence) / 2) * value.std(ddof=1) / math.sqrt(samples))
    return Estimate(min(mean, 1.0), max(mean - margin, 0.0), min(mean + margin, 1.0))


def _values(
    generator: np.random.Generator,
    samples: int,
    rounds: int,
    chosen: int,
    epsilon: float,
    noise_multiplier: float,
    tilts: list[_Tilt],
) -> Floats:
    """Weighted samples, shape (samples,), of which delta is the mean; the first of ``tilts`` is the law itself."""
    share = np.full(len(tilts), (1 - _NOMINAL_SHARE) / max(len(tilts) - 1, 1))
    share[0] = 1 - share[1:].sum()
    of = generator.choice(len(tilts), size=samples, p=share)
    z = generator.standard_normal((samples, rounds)) + np.array([tilt.drift for tilt in tilts])[of, None]
    # By symmetry the first rounds may stand for those drawn at random, as long as the densities below are symmetric.
    z[:, :chosen] += np.array([tilt.jump for tilt in tilts])[of, None]
    sum_z = z.sum(axis=1)
    log_densities = [
        _log_mean_product(z - tilt.drift, tilt.jump, chosen) + tilt.drift * (sum_z - rounds * tilt.drift / 2)
        for tilt in tilts
    ]
    log_mixture = logsumexp(log_densities, axis=0, b=share[:, None])
    log_ratio = _log_mean_product(z, 1 / noise_multiplier, chosen)
    removed = tilts[0].jump > 0
    excess = log_ratio - epsilon if removed else -epsilon - log_ratio
    larger = log_ratio if removed else 0.0
    return np.asarray(-np.expm1(-np.maximum(excess, 0.0)) * np.exp(larger - log_mixture))


def _log_mean_product(z: Floats, shift: float, chosen: int) -> Floats:
    """Log of the mean over all choices of rounds of the likelihood ratio of shifting those by ``shift``.

    ``z`` has shape (samples, rounds). Built up a round at a time: ``x[j]`` is ``e_j / binom(i, j)`` of the first i
    rounds, so that binomial coefficients never appear.
    """
    if shift == 0:
        return np.zeros(len(z))
    log_single = shift * (z - shift / 2)
    largest = log_single.max(axis=1)
    single = np.exp(log_single - largest[:, None])
    if chosen == 1:
        return np.log(single.mean(axis=1)) + largest
    x = np.zeros((chosen + 1, len(z)))
    x[0] = 1.0
    for i in range(1, z.shape[1] + 1):
        for j in range(min(i, chosen), 0, -1):
            x[j] = ((i - j) * x[j] + j * single[:, i - 1] * x[j - 1]) / i
    with np.errstate(divide="ignore"):
        return np.log(x[chosen]) + chosen * largest


def _gaining(noise_multiplier: float, rounds: int, chosen: int, epsilon: float) -> list[_Tilt]:
    """Shifts of all rounds around the one that brings the mean of the likelihood ratio to ``exp(-epsilon)``."""
    return [_Tilt(0.0, -factor * epsilon * noise_multiplier / chosen) for factor in np.linspace(0.5, 1.5, _TILTS)]


def _losing(noise_multiplier: float, rounds: int, chosen: int, epsilon: float) -> list[_Tilt]:
    """Ways to a likelihood ratio of ``exp(epsilon)``, from a jump of the chosen rounds alone to a shift of all."""
    nominal = 1 / noise_multiplier
    same = np.arange(max(0, 2 * chosen - rounds), chosen + 1)
    log_share = _log_binomial(chosen, same) + _log_binomial(rounds - chosen, chosen - same)

    def missing(jump: float, drift: float) -> float:
        """``epsilon - log X`` with the chosen rounds in their place and the others replaced by their mean."""
        log_chosen = (jump + drift) / noise_multiplier - 1 / (2 * noise_multiplier**2)
        log_terms = log_share + same * log_chosen + (chosen - same) * drift / noise_multiplier
        return epsilon - float(logsumexp(log_terms) - _log_binomial(rounds, np.array(chosen)))

    tilts = []
    for drift in np.linspace(0.0, epsilon * noise_multiplier / chosen, _TILTS):
        far = nominal
        while missing(far, drift) > 0:
            far += nominal + 1
        jump = nominal if far == nominal else float(brentq(missing, nominal, far, args=(drift,)))
        tilts.append(_Tilt(jump, float(drift)))
    return tilts


def _log_binomial(n: int, k: NDArray[np.int64]) -> Floats:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))
