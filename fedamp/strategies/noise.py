"""Gaussian noise on a sum."""

from collections.abc import Mapping

from fedamp import rng
from fedamp.strategies.layout import Sums


def add_noise(sums: Sums, deviation_of: Mapping[str, float], seed: int, round_: int) -> None:
    """Add independent N(0, deviation^2) to every coordinate, in place.

    Args:
        sums: arrays by name.
        deviation_of: standard deviation for each array, in the units of the sum; 0 adds nothing.
        seed: the run's seed; the noise is a function of it, the round and the array's place alone.
        round_: number of this round.
    """
    for index, (name, array) in enumerate(sums.items()):
        if deviation_of[name] > 0:
            noise = rng.stream(seed, "noise", round_, index).standard_normal(array.shape)
            noise *= deviation_of[name]
            array += noise
