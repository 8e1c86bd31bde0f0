"""Training a scenario from a benchmark, without a run folder; real images for it, and the search for its rate."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord
from numpy.typing import NDArray

from fedamp.base.arrays import Arrays
from fedamp.data.places import folder_of
from fedamp.data.published import KnownImages
from fedamp.engines.engines import CLIENT_APP
from fedamp.engines.simulation import SerialGrid
from fedamp.federation.scenario import Scenario
from fedamp.server.setup import prepare

Labelled = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Inputs [records, ...] and labels [records]."""


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        parameters: of the last model.
        accuracy: its, on the test set.
        accuracies: the same after every so many rounds, where that was asked for.
        clipped: share of the last round's updates that were clipped.
        parameters_share, flops_share: of the whole model, what a unit receives and computes.
        seconds: of training.
    """

    parameters: Arrays
    accuracy: float
    accuracies: tuple[float, ...]
    clipped: float
    parameters_share: float
    flops_share: float
    seconds: float


def at_hand(name: str) -> Path:
    """The folder of ``make data`` with this name; FileNotFoundError: it is not on this machine."""
    if (found := folder_of(name)) is None:
        raise FileNotFoundError(f"{name}: not on this machine; expected: make data")
    return found


def train(scenario: Scenario, evaluate_every: int | None = None, seed: int | None = None) -> Outcome:
    """All rounds in this process, on one thread; tested on the way every so many rounds, or not at all.

    With a ``seed``, check-ins and noise are another run's; data and first model stay those of the scenario's seed.
    """
    torch.set_num_threads(1)
    prepared = prepare(scenario, seed)
    strategy = prepared.strategy(prepared.state)
    start, accuracies = time.perf_counter(), []
    with SerialGrid(CLIENT_APP, "cpu") as grid:
        for round_ in range(1, scenario.rounds + 1):
            messages = strategy.configure_train(round_, strategy.arrays(), ConfigRecord(), grid)
            strategy.aggregate_train(round_, grid.send_and_receive(messages))
            if evaluate_every and round_ % evaluate_every == 0:
                accuracies.append(prepared.evaluate(strategy.state.parameters).score)
    seconds = time.perf_counter() - start
    collected, cost = strategy.collected, prepared.cost
    assert collected is not None
    return Outcome(
        parameters=strategy.state.parameters,
        accuracy=prepared.evaluate(strategy.state.parameters).score,
        accuracies=tuple(accuracies),
        clipped=collected.clipped / max(collected.reported, 1),
        parameters_share=cost.parameters_share,
        flops_share=cost.flops_share,
        seconds=seconds,
    )


def evaluator(scenario: Scenario) -> Callable[[Arrays], float]:
    """The accuracy of parameters on the scenario's test set."""
    prepared = prepare(scenario)
    return lambda parameters: prepared.evaluate(parameters).score


def fashion_mnist(transform: Sequence[Mapping[str, Any]]) -> tuple[Labelled, Labelled]:
    """Its 60,000 training and 10,000 test records after public transforms, which are kept on disk."""
    section = KnownImages.model_validate({"name": "fashion-mnist", "transform": transform})
    loaded = section.load(0, Path())
    training = loaded.by_record().gather(np.arange(60_000))
    return (training.inputs[:, 0], training.labels[:, 0]), loaded.test()


def best_power(score: Callable[[int], float], start: int) -> int:
    """The whole number with the highest score near ``start``, with both neighbours no better: never at an edge."""
    while True:
        scores = {power: score(power) for power in (start, start - 1, start + 1)}
        best = max(scores, key=lambda power: scores[power])
        if best == start:
            return best
        start = best
