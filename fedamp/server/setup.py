"""From a scenario to everything that a run needs: data, model, plan, strategy."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedamp import data, rng, scenario
from fedamp.client.memory import clients_per_batch
from fedamp.client.task import ClientTask
from fedamp.data.dataset import Dataset
from fedamp.models.cost import cost, kept_per_record
from fedamp.models.evaluate import evaluate
from fedamp.models.masks import Masks
from fedamp.models.registry import build, initial_parameters
from fedamp.models.splits import Split, split
from fedamp.plan import Plan, make_plan, privacy_units
from fedamp.scenario import Scenario
from fedamp.strategies.layout import Arrays
from fedamp.strategies.private import PrivateStrategy, ServerState
from fedamp.strategies.submodels import Partition

# Beyond this many clients in a stack its memory leaves a CPU's caches; below the smallest, calls cost more than
# arithmetic. In between a round is cut in two, so that two workers share it. Torch's convolutions of more clients than
# a few are slower again.
STACK, CONVOLUTIONS, SMALLEST_STACK = 50, 20, 16


@dataclass(frozen=True)
class Prepared:
    """A scenario with its data and model loaded.

    Attributes:
        plan: what will be done, and its cost.
        task: what clients are told.
        state: the state before the first round.
        units_per_batch: how many units train stacked together, about.
        partition: how the model is cut; None where it is whole.
        test: the public test set, inputs and labels.
    """

    plan: Plan
    task: ClientTask
    state: ServerState
    units_per_batch: int
    partition: Partition | None
    test: tuple[NDArray[np.float32], NDArray[np.int64]]

    def strategy(self, state: ServerState) -> PrivateStrategy:
        """The strategy that plays the plan from a state on."""
        return PrivateStrategy(self.plan, self.task, state, self.units_per_batch, self.partition)

    def evaluate(self, parameters: Arrays) -> tuple[float, float]:
        """Accuracy and mean loss of a model on the public test set."""
        inputs, labels = self.test
        return evaluate(self.module, parameters, inputs, labels, "cuda" if _on_gpu(self.plan) else "cpu")

    @cached_property
    def module(self) -> nn.Module:
        """The whole model; its parameter values are arbitrary."""
        return build(self.plan.scenario.model, self.task.input_shape, self.task.num_classes)

    def cost(self) -> dict[str, float]:
        """What a unit receives and computes in a round, on average over the submodels, and as shares of the whole."""
        whole = cost(self.module.cpu(), self.task.input_shape)
        parts = [whole]
        if isinstance(self.plan.scenario.submodels, scenario.DisjointSubmodels):
            cut = self.partition.at(1) if self.partition else None
            assert cut is not None
            parts = [cost(cut.module(j), self.task.input_shape) for j in range(cut.count)]
        parameters = float(np.mean([part.parameters for part in parts]))
        flops = float(np.mean([part.flops_per_record for part in parts]))
        return {
            "parameters_per_client": parameters,
            "parameters_share": parameters / whole.parameters,
            "flops_per_record": flops,
            "flops_share": flops / whole.flops_per_record,
        }


def prepare(scenario_: Scenario, seed: int | None = None) -> Prepared:
    """Load data and model of a scenario, check that they go together, and plan the run.

    Args:
        scenario_: the validated scenario, its paths absolute.
        seed: of everything the server draws; left out: the scenario's (a rehearsal).

    Raises:
        InputError: one line that names what does not fit.
    """
    plan = make_plan(scenario_, privacy_units(scenario_), seed)
    # Partition, initial model and cut are public, so a deployment's nodes may derive them from the scenario too.
    data_seed = rng.public_seed(scenario_.seed, "data")
    dataset = data.load(scenario_.data, data_seed, Path())
    parameters = initial_parameters(
        scenario_.model, dataset.input_shape, dataset.num_classes, rng.public_seed(scenario_.seed, "model")
    )
    task = ClientTask(
        model=scenario_.model,
        input_shape=dataset.input_shape,
        num_classes=dataset.num_classes,
        client=scenario_.client,
        unit=scenario_.privacy.unit,
        submodels=scenario_.submodels,
        split_seed=rng.public_seed(scenario_.seed, "split"),
        linf_coordinates=scenario_.mixing.linf_coordinates if scenario_.mixing else 0,
        data=scenario_.data,
        data_seed=data_seed,
        folder="",
        precision=scenario_.engine.precision,
    )
    partition = _partition(scenario_, task)
    cut = partition.at(1) if partition else None
    trained = cut.module(0) if cut else build(scenario_.model, dataset.input_shape, dataset.num_classes)
    return Prepared(
        plan, task, ServerState(parameters), _units_per_batch(plan, dataset, trained), partition, dataset.test()
    )


def _units_per_batch(plan: Plan, dataset: Dataset, trained: nn.Module) -> int:
    asked = plan.scenario.engine.clients_per_batch
    if asked != "auto":
        return asked
    units = dataset.by_record() if plan.scenario.privacy.unit == "sample" else dataset
    on_gpu = _on_gpu(plan)
    size = sum(parameter.numel() for parameter in trained.parameters())
    kept = kept_per_record(trained, dataset.input_shape)
    fits = clients_per_batch(size, kept, units, "cuda" if on_gpu else "cpu")
    half = max(SMALLEST_STACK, math.ceil(plan.expected_cohort / 2))
    if on_gpu:
        return max(1, min(fits, half))
    convolves = any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in trained.modules())
    return max(1, min(fits, half, CONVOLUTIONS if convolves else STACK))


def _on_gpu(plan: Plan) -> bool:
    return torch.cuda.is_available() and plan.scenario.engine.device != "cpu"


def _partition(scenario_: Scenario, task: ClientTask) -> Partition | None:
    submodels, where = scenario_.submodels, (task.input_shape, task.num_classes)
    match submodels:
        case scenario.NoSubmodels():
            return None
        case scenario.DropoutSubmodels(layers=layers):
            return Partition(Masks(build(scenario_.model, *where), layers).shared)
        case scenario.DisjointSubmodels(count=count, shared=shared, partition=partition):

            @lru_cache(maxsize=1)
            def cut(index: int) -> Split:
                return split(scenario_.model, *where, count, shared, task.split_seed, index)

            return Partition(cut(0).shared, lambda round_: cut(round_ if partition == "fresh" else 0))
