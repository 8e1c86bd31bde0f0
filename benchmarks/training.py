"""Training a scenario from a benchmark, without a run folder."""

import time
from dataclasses import dataclass

import torch
from flwr.app import ConfigRecord

from fedamp.arrays import Arrays
from fedamp.scenario import Scenario
from fedamp.server.setup import prepare
from fedamp.simulation.engines import CLIENT_APP
from fedamp.simulation.serial import SerialGrid


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


def train(scenario: Scenario, evaluate_every: int | None = None) -> Outcome:
    """All rounds in this process, on one thread; tested on the way every so many rounds, or not at all."""
    torch.set_num_threads(1)
    prepared = prepare(scenario)
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
        parameters_share=cost["parameters_share"],
        flops_share=cost["flops_share"],
        seconds=seconds,
    )
