"""ModelMix: each step starts from a random mixture of the last two global models (Xiao et al. 2023, Algorithm 1)."""

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.release import MixingRounds
from fedamp.strategies.layout import Arrays


def mix(current: Arrays, previous: Arrays, rounds: MixingRounds, seed: int, round_: int) -> Arrays:
    """A uniform point between the two models, coordinate by coordinate.

    They are first moved about their midpoint, apart or together, to a distance that is a whole multiple of the charged
    width: the largest that they have, and at least the enforced one. The paper only moves them apart where they are
    too close, and takes it that a wider uniform law hides a step at least as well. That is not proved there for any
    real width, but it is plain for whole multiples: the wider law is a mixture of shifted copies of the charged one.
    The weights are hidden: they never leave the server.

    Args:
        current: the last global model, by name.
        previous: the one before.
        rounds: the enforced distance and the charged width, in units of the model.
        seed: the run's seed.
        round_: number of the round that starts from the mixture.

    Returns:
        New arrays; the arguments are not changed.
    """
    mixed = {}
    for index, (name, now) in enumerate(current.items()):
        weight = np.asarray(rng.stream(seed, "mixing", round_, index).random(now.shape))
        mixed[name] = _mix(now.astype(np.float64), previous[name].astype(np.float64), rounds, weight)
    return mixed


def _mix(
    now: NDArray[np.float64], before: NDArray[np.float64], rounds: MixingRounds, weight: NDArray[np.float64]
) -> NDArray[np.float32]:
    widths = np.floor(np.abs(now - before) / rounds.charged)
    distance = rounds.charged * np.maximum(widths, np.ceil(rounds.least / rounds.charged))
    return ((now + before) / 2 + (weight - 0.5) * distance).astype(np.float32)
