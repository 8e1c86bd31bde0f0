"""Oracles that several tests share. They know no theorem: laws of finite outputs, choices of rounds, and a grid."""

import functools
import itertools
import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm


def delta_of(inside, outside, epsilon):
    """delta of two finite laws, the larger of both directions."""
    scale = math.exp(epsilon)
    return max(np.maximum(inside - scale * outside, 0).sum(), np.maximum(outside - scale * inside, 0).sum())


def renyi_of(inside, outside, order):
    """The Rényi divergence of two finite laws, the larger of both directions."""
    logs = [order * np.log(a) + (1 - order) * np.log(b) for a, b in ((inside, outside), (outside, inside))]
    return max(float(np.logaddexp.reduce(each)) for each in logs) / (order - 1)


def gaussian_delta(epsilon, noise_multiplier):
    """Balle and Wang 2018, Theorem 8; the same in both directions."""
    half, scaled = 1 / (2 * noise_multiplier), epsilon * noise_multiplier
    return norm.cdf(half - scaled) - np.exp(epsilon + norm.logcdf(-half - scaled))


def gaussian_epsilon(delta, noise_multiplier):
    """Where that is this delta."""
    return brentq(lambda epsilon: gaussian_delta(epsilon, noise_multiplier) - delta, 0, 200, xtol=1e-12)


# Choices of rounds: pairs (rounds taken part in, chance).


def uniform_sets(rounds, size, chance=1.0):
    sets = list(itertools.combinations(range(rounds), size))
    return [(each, chance / len(sets)) for each in sets]


def coins(rounds, rate):
    sets = [each for size in range(rounds + 1) for each in itertools.combinations(range(rounds), size)]
    return [(each, rate ** len(each) * (1 - rate) ** (rounds - len(each))) for each in sets]


def capped(rounds, rate, at_most):
    """By coins; if too many come up, a uniform set of them is kept."""
    return [
        (tuple(each[i] for i in kept), chance * share)
        for each, chance in coins(rounds, rate)
        for kept, share in uniform_sets(len(each), min(at_most, len(each)))
    ]


def declined(choices, participation):
    return [
        (tuple(each[i] for i in kept), chance * p)
        for each, chance in choices
        for kept, p in coins(len(each), participation)
    ]


def beginning(choices, released):
    return [(tuple(i for i in each if i < released), chance) for each, chance in choices]


def bits(choices, rounds, truth):
    """The laws, in and out, of ``rounds`` randomised bits: 0 with chance ``truth`` if the person takes part."""
    laws = []
    for out in itertools.product((0, 1), repeat=rounds):
        inside = (
            chance * math.prod((truth, 1 - truth)[o if i in chosen else 1 - o] for i, o in enumerate(out))
            for chosen, chance in choices
        )
        laws.append((sum(inside), math.prod((1 - truth, truth)[o] for o in out)))
    return np.array(laws).T


def product_of(*laws):
    """The laws of several releases together."""
    return np.array([np.prod(rows, axis=0) for rows in itertools.product(*(law.T for law in laws))]).T


def allocation_on_grid(noise: float, k: int, rounds: int, released: int) -> tuple[np.ndarray, np.ndarray]:
    """X of k hidden rounds on a grid of trapezoid nodes in ``released`` <= 3 dimensions, and the masses."""
    z = np.linspace(-9, 9 + 6 / noise, {1: 4001, 2: 1201, 3: 161}[released])  # E[X^6] is largest around z = 6 / noise
    mass = np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    ratio = np.exp(z / noise - 0.5 / noise**2)
    shapes = [tuple(-1 if i == axis else 1 for i in range(released)) for axis in range(released)]
    choices = list(itertools.combinations(range(rounds), k))
    value, weight = np.zeros([1] * released), np.ones([1] * released)
    for choice in choices:
        seen = (ratio.reshape(shapes[i]) for i in choice if i < released)
        value = value + functools.reduce(np.multiply, seen, np.ones([1] * released)) / len(choices)
    for shape in shapes:
        weight = weight * mass.reshape(shape)
    value, weight = np.broadcast_arrays(value, weight)
    return value.ravel(), weight.ravel()
