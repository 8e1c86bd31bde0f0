"""Server optimisers: what becomes of the noisy mean update. Post-processing, so it costs no privacy."""

from collections.abc import Callable

import numpy as np

from fedamp import scenario
from fedamp.strategies.layout import Arrays, Sums

Moments = dict[str, Arrays]


def step(config: scenario.Server, parameters: Arrays, update: Sums, moments: Moments, round_: int) -> None:
    """Move ``parameters`` by the mean ``update``, and keep the optimiser's ``moments``.

    Both dictionaries are changed in place. The arrays in ``parameters`` are new ones, because those that were sent to
    nodes, or handed to a caller, must stay what they were; those in ``moments`` are overwritten.

    SGD with momentum (``v = m v + u; w = w + r v``) and Adam with bias correction (Kingma, Ba 2015; on federated
    updates: Reddi et al. 2021), with the update in the place of the negative gradient.

    Args:
        config: optimiser and its rates.
        parameters: the model, by name.
        update: mean update, by name, same shapes.
        moments: what the optimiser remembers: a model-shaped set of arrays per moment. Empty at the start.
        round_: number of this round, from 1.
    """
    _STEPS[config.optimizer](config, parameters, update, moments, round_)


def _sgd(config: scenario.Server, parameters: Arrays, update: Sums, moments: Moments, round_: int) -> None:
    if config.momentum == 0:
        for name, array in parameters.items():
            parameters[name] = array + (config.learning_rate * update[name]).astype(np.float32)
        return
    velocity = moments.setdefault("velocity", _zeros_like(parameters))
    for name, array in parameters.items():
        velocity[name] *= np.float32(config.momentum)
        velocity[name] += update[name].astype(np.float32)
        parameters[name] = array + np.float32(config.learning_rate) * velocity[name]


def _adam(config: scenario.Server, parameters: Arrays, update: Sums, moments: Moments, round_: int) -> None:
    first = moments.setdefault("first", _zeros_like(parameters))
    second = moments.setdefault("second", _zeros_like(parameters))
    rate = config.learning_rate / (1 - config.beta1**round_)
    correction = 1 - config.beta2**round_
    for name, array in parameters.items():
        change = update[name].astype(np.float32)
        first[name] += np.float32(1 - config.beta1) * (change - first[name])
        second[name] += np.float32(1 - config.beta2) * (change * change - second[name])
        root = np.sqrt(second[name] / np.float32(correction)) + np.float32(config.epsilon)
        parameters[name] = array + np.float32(rate) * first[name] / root


def _zeros_like(parameters: Arrays) -> Arrays:
    return {name: np.zeros_like(array) for name, array in parameters.items()}


_STEPS: dict[str, Callable[[scenario.Server, Arrays, Sums, Moments, int], None]] = {"sgd": _sgd, "adam": _adam}
