"""From a scenario to everything that a run needs: data, model, plan, strategy."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedamp import data, models, rng, scenario
from fedamp.client.memory import clients_per_batch
from fedamp.client.task import ClientTask
from fedamp.data.dataset import Dataset
from fedamp.errors import ModelError, ScenarioError
from fedamp.models.evaluate import evaluate
from fedamp.models.splits import split
from fedamp.plan import Plan, make_plan
from fedamp.scenario import Scenario
from fedamp.strategies.layout import Arrays
from fedamp.strategies.private import PrivateStrategy, ServerState
from fedamp.strategies.submodels import Partition

# More batches a round than most machines have workers, so that the work divides well; fewer would waste stacking.
BATCHES_A_ROUND = 8
SMALLEST_BATCH = 16


@dataclass(frozen=True)
class Prepared:
    """A scenario with its data and model loaded.

    Attributes:
        plan: what will be done, and its cost.
        task: what clients are told.
        state: the state before the first round.
        largest_batch: how many units train stacked together at most.
        partition: how the model is cut; None where it is whole.
        test: the public test set, inputs and labels.
    """

    plan: Plan
    task: ClientTask
    state: ServerState
    largest_batch: int
    partition: Partition | None
    test: tuple[NDArray[np.float32], NDArray[np.int64]]

    def strategy(self, state: ServerState) -> PrivateStrategy:
        """The strategy that plays the plan from a state on."""
        return PrivateStrategy(self.plan, self.task, state, self.largest_batch, self.partition)

    def evaluate(self, parameters: Arrays) -> tuple[float, float]:
        """Accuracy and mean loss of a model on the public test set."""
        inputs, labels = self.test
        return evaluate(self._module, parameters, inputs, labels)

    @property
    def _module(self):  # type: ignore[no-untyped-def]
        return models.build(self.plan.scenario.model, self.task.input_shape, self.task.num_classes)


def privacy_units(scenario_: Scenario) -> int:
    """How many units the scenario's data holds, without loading more than it takes to count them."""
    if scenario_.privacy.unit == "sample":
        return data.count_records(scenario_.data, Path())
    return data.count_clients(scenario_.data, Path())


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
    parameters = models.initial_parameters(
        scenario_.model, dataset.input_shape, dataset.num_classes, rng.public_seed(scenario_.seed, "model")
    )
    task = ClientTask(
        model=scenario_.model.model_dump(mode="json"),
        input_shape=dataset.input_shape,
        num_classes=dataset.num_classes,
        client=scenario_.client.model_dump(mode="json"),
        unit=scenario_.privacy.unit,
        submodels=scenario_.submodels.model_dump(mode="json"),
        split_seed=rng.public_seed(scenario_.seed, "split"),
        linf_coordinates=scenario_.mixing.linf_coordinates if scenario_.mixing else 0,
        data=scenario_.data.model_dump(mode="json"),
        data_seed=data_seed,
        folder="",
        precision=scenario_.engine.precision,
    )
    partition = _partition(scenario_, task)
    return Prepared(plan, task, ServerState(parameters), _largest_batch(plan, dataset, parameters), partition, dataset.test())


def _largest_batch(plan: Plan, dataset: Dataset, parameters: Arrays) -> int:
    asked = plan.scenario.engine.clients_per_batch
    if asked != "auto":
        return asked
    fits = clients_per_batch(sum(array.size for array in parameters.values()), dataset)
    return max(1, min(fits, max(SMALLEST_BATCH, round(plan.expected_cohort / BATCHES_A_ROUND))))


def _partition(scenario_: Scenario, task: ClientTask) -> Partition | None:
    submodels = scenario_.submodels
    if isinstance(submodels, scenario.NoSubmodels):
        return None
    ...
