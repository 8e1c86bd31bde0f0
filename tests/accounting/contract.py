"""The data of the contract of all mechanisms: values of their fields, and oracles that know no theorem.

An oracle is a pair of finite laws, with the person in and out, of a real mechanism that the kind describes.
"""

import dataclasses
import itertools
import math

import numpy as np
from scipy.stats import norm

from fedamp.accounting import Mechanism, RandomisedResponse

BIT = RandomisedResponse(0.75)
VALUES = {  # of every field that a kind has, by its name
    "noise_multiplier": 1.5,
    "scale": 1.2,
    "probability": 0.75,
    "width": 2.0,
    "shift": 0.8,
    "linf_coordinates": 1,
    "shifts": (0.0, 1.0, 1.5),
    "weights": (0.5, 0.5),
    "rate": 0.25,
    "keep": 0.4,
    "size": 2,
    "count": 3,
    "k": 2,
    "rounds": 4,
    "released": 3,
    "at_most": 2,
    "times": 3,
    "batch": 2,
    "population": 5,
    "mechanism": BIT,
    "mechanisms": (BIT, RandomisedResponse(0.6)),
    "assumption": "joint release",
    "scales": (),
}
SPECIAL = {"GaussianMixture": {"weights": (0.5, 0.3, 0.2)}, "WithoutReplacement": {"size": 1}}


def example(kind, **changes):
    names = [field.name for field in dataclasses.fields(Mechanism.kinds[kind]) if field.name != "relation"]
    values = VALUES | SPECIAL.get(kind, {}) | changes
    missing = [name for name in names if name not in values]
    assert not missing, f"add values of {missing} to VALUES for {kind}"
    return Mechanism.kinds[kind](**{name: values[name] for name in names})


# Oracles: lists of (probability with the person in, out).


def finite(*outputs):
    return np.array(outputs, dtype=float)


def on_grid(density_in, density_out):
    z = np.arange(-14, 16, 2e-3)
    return np.stack([density_in(z), density_out(z)], axis=1) * 2e-3


def product(*pairs):
    return np.array([np.prod(rows, axis=0) for rows in itertools.product(*pairs)])


def in_rounds(pair, count, choices, weights=None):
    """``count`` releases of which the person is in those of a hidden choice; choices are equally likely or weighted."""
    listed = []
    for outputs in itertools.product(pair, repeat=count):
        inside = [math.prod(out[int(i not in chosen)] for i, out in enumerate(outputs)) for chosen in choices]
        listed.append((np.average(inside, weights=weights), math.prod(out[1] for out in outputs)))
    return finite(*listed)


def mixed(y):
    return (norm.cdf((y + 1) / 1.5) - norm.cdf((y - 1) / 1.5)) / 2


ONE, OTHER = finite((0.75, 0.25), (0.25, 0.75)), finite((0.6, 0.4), (0.4, 0.6))
PAIRS = [set(c) for c in itertools.combinations(range(4), 2)]
COINS = [set(c) for h in range(5) for c in itertools.combinations(range(4), h)]
CAPPED = [  # four coins of 1/4, and a pair of their rounds where more than two came up; each with its chance
    (set(kept), 0.25 ** len(coins) * 0.75 ** (4 - len(coins)) / math.comb(len(coins), min(2, len(coins))))
    for coins in COINS
    for kept in itertools.combinations(sorted(coins), min(2, len(coins)))
]
EXACT, WITHIN = True, False  # whether the oracle is a worst case of the kind, or only some case
ORACLES = {
    "Gaussian": lambda: (on_grid(norm(1, 1.5).pdf, norm(0, 1.5).pdf), EXACT),
    "Laplace": lambda: (
        on_grid(lambda z: np.exp(-abs(z - 1) / 1.2) / 2.4, lambda z: np.exp(-abs(z) / 1.2) / 2.4),
        EXACT,
    ),
    "RandomisedResponse": lambda: (ONE, EXACT),
    "NotPrivate": lambda: (finite((1, 0), (0, 1)), EXACT),
    "MixedCoordinate": lambda: (on_grid(lambda y: mixed(y - 0.8), mixed), EXACT),
    "ModelMix": lambda: (on_grid(lambda y: mixed(y - 1), mixed), WITHIN),
    "GaussianMixture": lambda: (
        on_grid(lambda z: 0.5 * norm.pdf(z) + 0.3 * norm.pdf(z - 1) + 0.2 * norm.pdf(z - 1.5), norm.pdf),
        EXACT,
    ),
    "GroupPoissonGaussian": lambda: (
        on_grid(
            lambda z: 0.5625 * norm.pdf(z, 0, 1.5) + 0.375 * norm.pdf(z, 1, 1.5) + 0.0625 * norm.pdf(z, 2, 1.5),
            norm(0, 1.5).pdf,
        ),
        EXACT,
    ),
    "Compose": lambda: (product(ONE, OTHER), EXACT),
    "Repeat": lambda: (product(ONE, ONE, ONE), EXACT),
    "RandomSelection": lambda: (np.concatenate([ONE / 2, OTHER / 2]), EXACT),
    "LinearCombination": lambda: (ONE, WITHIN),  # the other model tells nothing
    "Poisson": lambda: (ONE @ [[0.25, 0], [0.75, 1]], EXACT),
    "Submodels": lambda: (in_rounds(ONE, 3, [{0}, {1}, {2}]), EXACT),
    "Dropout": lambda: (ONE @ [[0.4, 0], [0.6, 1]], WITHIN),  # a model of one unit
    "Allocation": lambda: (in_rounds(ONE, 4, PAIRS), WITHIN),
    "AllocationPrefix": lambda: (in_rounds(ONE, 3, [chosen - {3} for chosen in PAIRS]), WITHIN),
    "CappedPoisson": lambda: (
        in_rounds(ONE, 3, [kept - {3} for kept, _ in CAPPED], [chance for _, chance in CAPPED]),
        WITHIN,
    ),
    "Group": lambda: (ONE, EXACT),  # one bit, whoever turns it
    "WithoutReplacement": lambda: (finite((0.75, 0.55), (0.25, 0.45)), EXACT),  # 0.6 * 0.75 + 0.4 * 0.25
}


MONOTONE = {  # which way the cost goes with a field, and another value of it
    "noise_multiplier": (-1, 2.0),
    "scale": (-1, 2.0),
    "width": (-1, 4.0),
    "probability": (1, 0.9),
    "shift": (1, 1.2),
    "rate": (1, 0.5),
    "count": (-1, 5),
    "k": (1, 3),
    "at_most": (1, 3),
    "rounds": (-1, 8),
    "released": (1, 4),
    "times": (1, 6),
    "batch": (1, 3),
    "size": (1, 3),
    "linf_coordinates": (-1, 4),
}
