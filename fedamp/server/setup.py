"""From a scenario to everything for a run: data, model, plan, strategy."""

import math
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedamp import rng
from fedamp.base import devices
from fedamp.base.arrays import Arrays
from fedamp.client.ghost_clipping import GhostClipping
from fedamp.client.stacked_networks import layers_of
from fedamp.client.stacks import aligned
from fedamp.client.task import ClientTask, StackSize, bytes_of_a_worker, power_above, stack_size
from fedamp.client.training import Trainer
from fedamp.data import PaddedRecords
from fedamp.data.dataset import TO_TEST, WRONG_RECORDS
from fedamp.engines.simulation import Demand
from fedamp.errors import DivergedError, FederationError, ScenarioError, fails_alone, one_line, tell
from fedamp.federation.check_in import AllCheckIn
from fedamp.federation.losses import Loss, form_of, loss_of
from fedamp.federation.plan import Plan, make_plan, privacy_units
from fedamp.federation.scenario import Scenario
from fedamp.models.custom import is_import_path
from fedamp.models.inspection import cost, kept_per_record
from fedamp.models.layers import LSTM
from fedamp.models.networks import build, initial_parameters, input_type, pinned
from fedamp.models.pieces import Piece, Pieces
from fedamp.runs.records import Cost
from fedamp.server.evaluate import Evaluation, evaluate
from fedamp.strategies.aggregation import ClippedSums, ModelParts
from fedamp.strategies.pipeline import ReleasePipeline, ServerState
from fedamp.strategies.private import PrivateStrategy, WriteDown
from fedamp.strategies.secure import SecureSums

# A larger stack of clients leaves a CPU's caches, a smaller one spends its time on calls; torch's convolutions of many
# clients are slower. All are powers of two, like the slots of a stack.
STACK, CONVOLUTIONS, SMALLEST_STACK = 64, 8, 16
RECORDS_AT_ONCE = 4096
EVALUATED = 1 << 28  # float32 numbers that a pass over test records may keep
# More records at once leave a CPU's caches: at every place of a sequence (twice the time a client); and in stacked
# perceptrons, whose fine steps of places fill large stacks badly.
RECURRENT_RECORDS, PERCEPTRON_RECORDS = 512, 1024
LARGE_INPUTS = 30.0
_TRIED = 8  # public records that are trained on before the first round

Records = tuple[NDArray[Any], NDArray[Any]]
"""Inputs and labels."""


@dataclass(frozen=True)
class RunInputs:
    """A scenario with its data and model loaded, and the state before the first round.

    Attributes:
        worker_bytes: GPU memory that a worker needs for a stack of units.
        pieces: (submodel, round) -> the piece of the model that a unit trains.
        test, validation: public records, to test the model and to choose between settings; both may be empty.
        untrainable: number of units here that cannot train; private, and it decides nothing.
        owners: a digest, keyed by the plan's seed, of whose records are whose.
        engine: name of the engine and the reason for it; empty in a deployment.
        began: start of the run, by :func:`time.perf_counter`.
    """

    plan: Plan
    task: ClientTask
    state: ServerState
    worker_bytes: int
    pieces: Pieces
    test: Records
    validation: Records
    untrainable: int = 0
    owners: str = ""
    engine: str = ""
    began: float = field(default_factory=perf_counter)

    def strategy(self, state: ServerState, write_down: WriteDown | None = None) -> PrivateStrategy:
        return PrivateStrategy(self.pipeline, self.task, state, write_down)

    def tell_untrainable(self) -> None:
        """Say on the terminal how many units of a simulation cannot train, if any."""
        if self.untrainable:
            unit = self.plan.scenario.privacy.unit
            tell(f"{self.untrainable} of {self.plan.units} {unit}s cannot train, and count as zero: {WRONG_RECORDS}")

    @property
    def hint(self) -> str | None:
        """Advice for inputs that are much larger than learning rates are meant for; from the public test set."""
        inputs = self.test[0]
        is_measured = np.issubdtype(inputs.dtype, np.floating) and inputs.size > 0
        size = math.sqrt(float(np.square(inputs, dtype=np.float64).mean())) if is_measured else 0.0
        if size < LARGE_INPUTS:
            return None
        return (
            f"their size is {size:.3g} (root mean square of the public test set), so a step moves the model "
            "far, and noise on it counts much; better divided by data.scale or data.transform standardise"
        )

    @cached_property
    def pipeline(self) -> ReleasePipeline:
        return _pipeline(self.plan, self.state.parameters, self.pieces)

    def evaluate(self, parameters: Arrays, records: Records | None = None) -> Evaluation:
        """Loss and metrics of a model on public records; default: the test set."""
        device = devices.here(self.device)
        return evaluate(self.module, parameters, *(records or self.test), device, self._tested_at_once, self.loss)

    @cached_property
    def _tested_at_once(self) -> int:
        """Records in a forward pass: as many as a stack's memory holds; it follows from the model alone."""
        kept = kept_per_record(self.module.cpu(), self.task.input_shape, input_type(self.task.model))
        return max(1, min(1024, power_above(EVALUATED // max(kept, 1)) // 2))

    @property
    def records_and_steps(self) -> tuple[int, int]:
        """Records of a unit as the scenario tells them, and its gradient steps in a round: no record is counted."""
        client, by_client = self.task.client, self.task.unit == "client"
        records = getattr(self.plan.scenario.data, "records_per_client", 1) if by_client else 1
        batches = 1 if client.batch_size == "full" else math.ceil(records / client.batch_size)
        return records, client.steps or (client.epochs or 1) * batches

    @property
    def records_a_step(self) -> int:
        """Of such a unit."""
        records, batch = self.records_and_steps[0], self.task.client.batch_size
        return records if batch == "full" else min(records, batch)

    @property
    def has_test_set(self) -> bool:
        """Whether there are records that the scenario declares public."""
        return len(self.test[1]) > 0

    @cached_property
    def evaluate_every(self) -> int:
        """Rounds between evaluations on the public test set; 0: no model is evaluated."""
        asked = self.plan.scenario.federation.evaluate_every
        if not (self.has_test_set and asked):
            return 0
        if asked != "auto":
            return asked
        # A gradient takes twice a forward pass, and needs one.
        trained = 3 * self.plan.expected_cohort * self.records_and_steps[1] * self.records_a_step
        share = self.cost.flops_share or 1.0
        return max(1, min(math.ceil(len(self.test[1]) / (trained * share)), self.plan.last_round // 10))

    @property
    def evaluation(self) -> tuple[str, str | None]:
        """What models are evaluated on; and a caution where nothing says that they are not to be."""
        if self.has_test_set and self.plan.scenario.federation.evaluate_every:
            return f"on {len(self.test[1]):,} public test records", None
        asked = self.plan.scenario.federation.evaluate_every == 0
        return (
            "none, as federation.evaluate_every says",
            None if asked else f"none; expected: {TO_TEST}, or federation.evaluate_every: 0",
        )

    def validate(self, parameters: Arrays) -> float | None:
        """The leading metric on the validation records; None without such records."""
        return self.evaluate(parameters, self.validation).score if len(self.validation[1]) else None

    @property
    def demand(self) -> Demand | None:
        """The GPU memory that the run needs; None if it does not train on this machine's GPUs."""
        device = devices.here(self.device)
        if not devices.is_gpu(device):
            return None
        batches = math.ceil(self.plan.expected_cohort / self.task.stack.units)
        return Demand(self.worker_bytes, devices.free_memory(device), batches)

    @property
    def device(self) -> str:
        """Of this machine, as the scenario names it."""
        return self.plan.scenario.engine.device

    @cached_property
    def loss(self) -> Loss:
        return loss_of(self.task.client, self.task.model)

    @cached_property
    def module(self) -> nn.Module:
        """The whole model; its parameter values are arbitrary."""
        return build(self.plan.scenario.model, self.task.input_shape, self.task.num_classes)

    @cached_property
    def cost(self) -> Cost:
        """Size and work of a unit's model in a round: mean over the submodels, and shares of the whole model."""
        shape, dtype = self.task.input_shape, input_type(self.task.model)
        trained = self.plan.submodels.trained(self.plan.units)
        modules = [self.module.cpu(), *(self.pieces(submodel, 1).module.cpu() for _, submodel in trained)]
        flops = [0] * len(modules)
        with fails_alone("counting the model's operations"):
            flops = [cost(module, shape, dtype).flops_per_record for module in modules]
        sizes = [sum(each.numel() for each in module.parameters() if each.requires_grad) for module in modules]
        often = [share for share, _ in trained]
        mean = {
            name: float(np.average(parts, weights=often))
            for name, (_, *parts) in (("parameters", sizes), ("flops", flops))
        }
        return Cost(
            parameters_per_client=mean["parameters"],
            parameters_share=mean["parameters"] / sizes[0] if sizes[0] else 1.0,
            flops_per_record=mean["flops"],
            flops_share=mean["flops"] / flops[0] if flops[0] else 1.0,
        )

    @property
    def how_clients_train(self) -> str:
        """Together or one by one, in words: it follows from the scenario and the model alone."""
        if alone := self._why_one_by_one:
            return f"clients train one by one, slower than together: {alone}"
        most = self.task.stack.units
        return f"up to {most} clients train together" if most > 1 else "clients train one by one"

    @property
    def _why_one_by_one(self) -> str:
        """Why clients cannot train stacked; empty if they can, as with every built-in model."""
        if not is_import_path(self.task.model.name):
            return ""
        if self._piece.random:
            return "the model draws random numbers, for each client from its own stream"
        slots = self.task.stack.slots(2, self.plan.units)
        like = PaddedRecords(*self.made_up(slots, 2), np.zeros(slots, np.int64))
        trainer, start = self._training()
        row_inputs = partial(self._piece.row_inputs, start, decays=bool(self.task.client.weight_decay))
        return trainer.why_alone(start, like, row_inputs, self.task.model.vocabulary)

    @cached_property
    def _piece(self) -> Piece:
        return self.plan.submodels.a_piece(self.pieces)

    def made_up(self, units: int, records: int) -> Records:
        """Inputs drawn between 0 and 1 (tokens: 0), with labels of zeros: [units, records, ...]."""
        inputs, labels = (np.zeros((units, records, *of.shape[1:]), of.dtype) for of in self.test)
        if np.issubdtype(inputs.dtype, np.floating):
            inputs[:] = rng.public_stream(0, "made-up").random(inputs.shape[1:], np.float32)
        return inputs, labels

    def _training(self) -> tuple[Trainer, dict[str, Tensor]]:
        start = {name: aligned(array) for name, array in self._piece.extract(self.state.parameters).items()}
        return Trainer(self._piece.forward, self.task.client, loss=self.loss), start

    def check_training(self) -> None:
        """Train the first model on public records, to find before the first round what fails for every unit.

        They are of the test set, else made up. FederationError: training raises. DivergedError: the update is not
        finite. Later failures depend on the units' data, so they do not stop the run.
        """
        seeds = np.zeros(1, dtype=f"V{rng.SEED_BYTES}")
        inputs, labels = (part[None, :_TRIED] for part in self.test) if self.has_test_set else self.made_up(1, _TRIED)
        kind = "public test" if self.has_test_set else "synthetic"
        records = PaddedRecords(inputs, labels, np.array([inputs.shape[1]]))
        trainer, start = self._training()
        try:
            trained = trainer.train(start, records, seeds, self._piece.arguments(seeds))
        except Exception as error:  # a custom model may raise anything
            raise FederationError(
                f"round 1: no client can train: training on {kind} records fails ({one_line(error)})"
            ) from error
        if not all(bool(update.isfinite().all()) for update in trained.updates.values()):
            raise DivergedError(1, f"an update of {kind} records")

    @property
    def work(self) -> float:
        """Expected floating-point operations of the whole run, with one record in every gradient step."""
        trainings = self.plan.expected_cohort * self.plan.last_round
        client = self.plan.scenario.client
        return trainings * (client.steps or client.epochs or 1) * self.cost.flops_per_record


def prepare(scenario: Scenario, seed: int | None = None, planned: Plan | None = None) -> RunInputs:
    """Load data and model of a scenario, check that they fit (InputError, one line), and plan the run.

    Args:
        scenario: validated, its paths absolute.
        seed: of everything the server draws; default: the scenario's, a known seed.
        planned: the scenario's plan with the known seed, whose costs need not be computed again.
    """
    count = privacy_units(scenario)
    if planned is None or planned.units != count:  # the data may have changed since
        planned = make_plan(scenario, count)
    plan = planned if seed is None else planned.with_seed(seed)
    # Partition, initial model and cut are public: a deployment's nodes may derive them from the scenario, too.
    data_seed, model_seed, split_seed = (rng.public_seed(scenario.seed, use) for use in ("data", "model", "split"))
    dataset = scenario.data.load(data_seed, Path(), form_of(scenario.client, scenario.model))
    parameters = initial_parameters(scenario.model, dataset.input_shape, dataset.num_classes, model_seed)
    classes = {"classes": dataset.num_classes} if getattr(scenario.data, "classes", 0) is None else {}
    task = ClientTask(
        model=pinned(scenario.model, dataset.input_shape, dataset.num_classes),
        input_shape=dataset.input_shape,
        num_classes=dataset.num_classes,
        client=scenario.client,
        unit=scenario.privacy.unit,
        submodels=scenario.submodels,
        split_seed=split_seed,
        linf_coordinates=plan.linf_coordinates,
        normalised=plan.clipping.normalises,
        terms=plan.terms,
        answer_after=scenario.federation.answer_after,
        run="" if scenario.known_seed else rng.keyed_digest(plan.seed, "run", ())[:32],
        data=scenario.data.model_copy(update=classes),  # a node's own folder need not say it
        data_seed=data_seed,
    )
    pieces = plan.submodels.pieces(task.model, dataset.input_shape, dataset.num_classes, task.split_seed)
    state = _pipeline(plan, parameters, pieces).start(parameters)
    stack, worker_bytes = _stack(plan, task, plan.submodels.a_piece(pieces))
    task = task.model_copy(update={"stack": stack})
    untrainable = 0
    if dataset.hosted is None:
        units = dataset.by_record() if scenario.privacy.unit == "sample" else dataset
        untrainable = int(units.cannot_train(np.arange(units.num_clients)).sum())
    tested = _kept_apart(dataset.test(), scenario)
    owners = rng.keyed_digest(plan.seed, "owners", dataset.whose())
    prepared = RunInputs(plan, task, state, worker_bytes, pieces, *tested, untrainable, owners)
    # Check that the outputs have the shape that the loss takes: here, not on every client.
    module = prepared.module.cpu()  # built outside of no_grad, because building tries a custom model with gradients
    with torch.no_grad():
        outputs = module(torch.zeros(2, *task.input_shape, dtype=input_type(task.model)))
        prepared.loss.check_outputs(outputs, torch.from_numpy(prepared.made_up(1, 2)[1][0]), task.model.name)
    return prepared


def _kept_apart(public: Records, scenario: Scenario) -> tuple[Records, Records]:
    """The public records in two: the test set, and the validation records; ScenarioError if one would be empty."""
    share, count = scenario.federation.validation_share, len(public[1])
    if share == 0:
        return public, (public[0][:0], public[1][:0])
    kept = round(share * count)
    if not 0 < kept < count:
        expected = "a share that leaves records for the test and for validation" if count else TO_TEST
        raise ScenarioError(
            f"federation.validation_share: {share:g} of {count} public test records are {kept}; expected: {expected}"
        )
    # The same for every seed: validation records of one seed must not be test records of another.
    order = rng.public_stream(0, "validation").permutation(count)
    first, others = np.sort(order[:kept]), np.sort(order[kept:])
    return (public[0][others], public[1][others]), (public[0][first], public[1][first])


def _pipeline(plan: Plan, parameters: Arrays, pieces: Pieces) -> ReleasePipeline:
    piece = plan.submodels.a_piece(pieces)
    trained = {name: array for name, array in parameters.items() if name not in piece.frozen}
    parts = ModelParts.of(trained, piece.shared if len(plan.parts_at(1.0)) == 2 else None)
    aggregator = ClippedSums() if plan.terms is None else SecureSums(plan)
    return ReleasePipeline(plan, parts, pieces, plan.noise, aggregator)


def _stack(plan: Plan, task: ClientTask, piece: Piece) -> tuple[StackSize, int]:
    """How many units train together, and the bytes that a worker needs for it on a GPU; independent of the records."""
    trained, half = piece.module, power_above(math.ceil(plan.expected_cohort / 2))
    per_record = kept_per_record(trained, task.input_shape, input_type(task.model)) + math.prod(task.input_shape)
    parameters = sum(parameter.numel() for parameter in trained.parameters())
    for name in piece.tables if not task.client.weight_decay else ():  # a record touches as many rows as tokens
        rows, numbers = trained.get_parameter(name).shape
        parameters -= rows * numbers
        per_record += math.prod(task.input_shape) * numbers
    asked, device = plan.scenario.engine.clients_per_batch, plan.scenario.engine.device
    device = devices.here(device) if device == "auto" else device  # a named one may be a cluster's
    if piece.owns_all and GhostClipping.can_run(task, trained, piece.known):
        # No gradient of a record is formed: activations, their derivatives, and both as float64.
        parameters, per_record, most = 0, 4 * per_record, min(RECORDS_AT_ONCE, half)
    elif devices.is_gpu(device):
        most = max(SMALLEST_STACK, half)
    else:
        convolves = any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in trained.modules())
        most = min(max(SMALLEST_STACK, half), CONVOLUTIONS if convolves else STACK)
    size = stack_size(parameters, per_record, asked if asked != "auto" else most, device)
    recurs = any(isinstance(layer, LSTM | nn.RNNBase) for layer in trained.modules())
    if not devices.is_gpu(device) and recurs:
        size = size.model_copy(update={"records": min(size.records, RECURRENT_RECORDS)})
    elif not devices.is_gpu(device) and parameters and layers_of(trained):
        spread = 0.0 if isinstance(plan.check_in, AllCheckIn) else 2 * math.sqrt(plan.expected_cohort)
        cohort = math.ceil(plan.expected_cohort + spread) if asked == "auto" else None
        size = size.model_copy(update={"records": min(size.records, PERCEPTRON_RECORDS), "cohort": cohort})
    units = min(size.units, math.ceil(plan.expected_cohort))
    return size, bytes_of_a_worker(2 * units * parameters + max(units, size.records) * per_record)
