"""ModelMix: each step starts from a random mixture of the last two global models (Xiao et al. 2023, Algorithm 1)."""

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.strategies.layout import Arrays


def mix(current: Arrays, previous: Arrays, width: float, seed: int, round_: int) -> Arrays:
    """A uniform point between the two models, coordinate by coordinate.

    Where they are closer than ``width`` they are first moved apart to that distance about their midpoint, so that the
    uniform law that hides a step is at least that wide. The weights are hidden: they never leave the server.

    Args:
        current: the last global model, by name.
        previous: the one before.
        width: enforced distance (tau), in units of the model.
        seed: the run's seed.
        round_: number of the round that starts from the mixture.

    Returns:
        New arrays; the arguments are not changed.
    """
    mixed = {}
    for index, (name, now) in enumerate(current.items()):
        weight = rng.stream(seed, "mixing", round_, index).random(now.shape)
        mixed[name] = _mix(now.astype(np.float64), previous[name].astype(np.float64), width, weight)
    return mixed


def _mix(
    now: NDArray[np.float64], before: NDArray[np.float64], width: float, weight: NDArray[np.float64]
) -> NDArray[np.float32]:
    # On either side of the midpoint: half the distance, at least half the width. A tie goes up: both are public.
    midpoint, distance = (now + before) / 2, now - before
    reach = np.maximum(np.abs(distance), width) * np.where(distance < 0, -0.5, 0.5)
    return (midpoint + (2 * weight - 1) * reach).astype(np.float32)
