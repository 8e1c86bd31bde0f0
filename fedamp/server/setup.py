"""Prepare a run from its scenario: data, model, plan, strategy.

Errors of bad input are found here, before a ledger begins: the loss is tried on the model's outputs, and custom code
on records that are public or made up. Nothing is chosen by looking at private records. The launch, the Flower app, the
audit and the preflight check call :func:`prepare`.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import nn

from fedamp import rng
from fedamp.base import devices
from fedamp.base.arrays import Arrays
from fedamp.base.section import Section
from fedamp.client.clipping import LARGEST_COHORT
from fedamp.client.ghost_clipping import GhostClipping
from fedamp.client.stacked_networks import layers_of
from fedamp.client.task import ClientTask, StackSize, bytes_of_a_worker, power_above, stack_size
from fedamp.client.training import StackTrainer
from fedamp.data.dataset import TO_TEST
from fedamp.data.sections import Data
from fedamp.errors import ModelError, ScenarioError, fails_alone, one_line
from fedamp.extension import extensions, keys, named
from fedamp.federation.contracts import distribution_of, is_foreign
from fedamp.federation.first_releases import data_after
from fedamp.federation.kept_answers import KEPT
from fedamp.federation.losses import Loss, form_of, loss_of, records_of
from fedamp.federation.plan import Plan, make_plan, privacy_units
from fedamp.federation.running import Engine, share_of_each
from fedamp.federation.scenario import Scenario
from fedamp.models.custom import is_import_path
from fedamp.models.inspection import check_apart, cost, kept_per_record
from fedamp.models.layers import LSTM
from fedamp.models.networks import build, initial_parameters, input_type, pinned
from fedamp.models.pieces import Piece, Pieces, check_embedding
from fedamp.runs.records import ModelCost
from fedamp.server.evaluate import PublicRecords, PublicTest
from fedamp.strategies.aggregation import ClippedSums, ModelParts
from fedamp.strategies.pipeline import ReleasePipeline, ServerState
from fedamp.strategies.private import PrivateStrategy

# A larger stack of clients leaves a CPU's caches, a smaller one spends its time on calls; torch's convolutions of many
# clients are slower. All are powers of two, like the slots of a stack. On a GPU all clients of a round are one stack if
# its memory holds them: small operations take the same time for one client as for many.
STACK, CONVOLUTIONS, SMALLEST_STACK = 64, 8, 16
RECORDS_AT_ONCE = 4096
EVALUATED = 1 << 28  # float32 numbers that a pass over test records may keep
# More records at once leave a CPU's caches: at every place of a sequence (twice the time a client); and in stacked
# perceptrons, whose fine steps of places fill large stacks badly.
RECURRENT_RECORDS, PERCEPTRON_RECORDS = 512, 1024


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run: a scenario with its data and model loaded, and the state before the first round.

    Attributes:
        pipeline: the plan, the pieces of the model, and the steps of a release.
        task: what nodes are told of the run.
        state: before the first round.
        worker_bytes: GPU memory that a worker needs for a stack of units.
        test, validation: public records, to test the model and to choose between settings; both may be empty.
        untrainable: which units of a simulation cannot train, and why, in words; private, and it decides nothing.
        owners: a digest, keyed by the plan's seed, of whose records are whose.
        engine: name of the engine and the reason for it; empty in a deployment.
        began: start of the run, by :func:`time.perf_counter`.
    """

    pipeline: ReleasePipeline
    task: ClientTask
    state: ServerState
    worker_bytes: int
    test: PublicRecords
    validation: PublicRecords
    untrainable: str = ""
    owners: str = ""
    engine: str = ""
    began: float = field(default_factory=perf_counter)

    @property
    def plan(self) -> Plan:
        """Plan of the run: its schedule, noise and charge."""
        return self.pipeline.plan

    @property
    def pieces(self) -> Pieces:
        """Function of submodel and round, which gives the piece of the model that a unit trains."""
        return self.pipeline.pieces

    def with_plan(self, plan: Plan) -> "RunInputs":
        """Return the inputs of another plan of the same data and model.

        Args:
            plan: with the same model, clipping parts and submodels.
        """
        return replace(self, pipeline=_make_pipeline(plan, self.state.parameters, self.pieces))

    def with_first_release(self, key: str, numbers: Section) -> "RunInputs":
        """Return the inputs with the numbers of a first release, which change the data, also public records.

        Args:
            key: of the release.
            numbers: as the ledger has them.
        """
        scenario, task = self.plan.scenario, self.task.model_copy(update={key: numbers})
        dataset = records_of(scenario, data_after(scenario.data, task))
        test, validation = _kept_apart(dataset.test(), scenario)
        return replace(self, task=task, test=test, validation=validation)

    def strategy(self, state: ServerState) -> PrivateStrategy:
        """Make the strategy that plays the plan.

        Args:
            state: after the last released round; :attr:`state` for a new run.
        """
        return PrivateStrategy(self.pipeline, self.task, state)

    @cached_property
    def evaluate(self) -> PublicTest:
        """Evaluator of models on the public records, by default on the test set."""
        device = devices.here(self.plan.scenario.engine.device)
        # As many records in a forward pass as a stack's memory holds; it follows from the model alone.
        kept = kept_per_record(self.module.cpu(), self.task.input_shape, input_type(self.task.model))
        at_once = max(1, min(1024, power_above(EVALUATED // max(kept, 1)) // 2))
        return PublicTest(self.module, self.loss, device, at_once, self.test, self.validation)

    @cached_property
    def evaluate_every(self) -> int:
        """Number of rounds between evaluations on the public test set; 0: no model is evaluated.

        ``auto`` evaluates so often that tests take about as much computation as training, ten times at least.
        """
        asked = self.plan.scenario.federation.evaluate_every
        if not (len(self.test[1]) and asked):
            return 0
        if asked != "auto":
            return asked
        # A gradient takes twice a forward pass, and needs one.
        trained = 3 * self.plan.expected_cohort * math.prod(steps_and_records(self.task, self.plan.scenario.data)[:2])
        share = self.cost.flops_share or 1.0
        return max(1, min(math.ceil(len(self.test[1]) / (trained * share)), self.plan.last_round // 10))

    @cached_property
    def loss(self) -> Loss:
        """Loss that clients minimise; it names the metrics."""
        return loss_of(self.task.client, self.task.model)

    @cached_property
    def module(self) -> nn.Module:
        """Whole model as a torch module; its parameter values are arbitrary."""
        return build(self.plan.scenario.model, self.task.input_shape, self.task.num_classes)

    @cached_property
    def cost(self) -> ModelCost:
        """Size and work of a unit's model in a round: mean over the submodels, and shares of the whole model."""
        shape, dtype = self.task.input_shape, input_type(self.task.model)
        trained = self.plan.submodels.submodel_frequencies(self.plan.units)
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
        return ModelCost(
            parameters_per_client=mean["parameters"],
            parameters_share=mean["parameters"] / sizes[0] if sizes[0] else 1.0,
            flops_per_record=mean["flops"],
            flops_share=mean["flops"] / flops[0] if flops[0] else 1.0,
        )

    @property
    def work(self) -> float:
        """Expected floating-point operations of the whole run, with one record in every gradient step."""
        trainings, client = self.plan.expected_cohort * self.plan.last_round, self.task.client
        return trainings * (client.steps or client.epochs or 1) * self.cost.flops_per_record


def prepare(scenario: Scenario, seed: int | None = None, planned: Plan | None = None) -> RunInputs:
    """Load data and model of a scenario, check that they fit, and plan the run.

    Partition, initial model and cut into submodels are public: a deployment's nodes derive them from the scenario, too.

    Args:
        scenario: validated, its paths absolute.
        seed: of everything the server draws; default: the scenario's, a known seed.
        planned: the scenario's plan with the known seed, whose costs need not be computed again.

    Raises:
        InputError: data, model, loss and plan do not fit; one line that names the key.
    """
    count = privacy_units(scenario)
    if planned is None or planned.units != count:  # the data may have changed since
        planned = make_plan(scenario, count, answers=KEPT)
    plan = planned if seed is None else planned.with_seed(seed)
    if plan.expected_cohort > LARGEST_COHORT:
        raise ScenarioError(
            f"check_in: {plan.expected_cohort:.0f} of {plan.units} units in a round, whose sum could not be exact; "
            f"expected: at most {LARGEST_COHORT}"
        )
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
        by_layer=plan.clipping.by_layer,
        answer_after=scenario.federation.answer_after,
        run="" if scenario.known_seed else plan.run_digest,
        charge=plan.charge.for_person(1).to_json() if scenario.federation.hosts and plan.is_private else None,
        data=scenario.data.model_copy(update=classes),  # a node's own folder need not say it
        data_seed=data_seed,
        **scenario.aggregation.task_keys(plan.agreed_terms),
        **{key: told for section in scenario.sections.values() for key, told in section.task_keys().items()},
    )
    pieces = plan.submodels.pieces(task.model, dataset.input_shape, dataset.num_classes, task.split_seed)
    if is_foreign(type(scenario.submodels)):
        for _, submodel in plan.submodels.submodel_frequencies(plan.units):
            check_embedding(pieces(submodel, 1), parameters)
    pipeline = _make_pipeline(plan, parameters, pieces)
    state = pipeline.start(parameters)
    stack, worker_bytes = _stack_size(plan, task, plan.submodels.a_piece(pieces))
    task = task.model_copy(update={"stack": stack, "packages": _packages_of(task)})
    untrainable = ""
    if dataset.hosted is None and not any(getattr(task, key) for key in keys("unit_vectors")):
        units = dataset.by_record() if scenario.privacy.unit == "sample" else dataset
        if len(wrong := np.flatnonzero(units.cannot_train(np.arange(units.num_clients)))):
            them = f"{len(wrong)} of {units.num_clients} {scenario.privacy.unit}s"
            untrainable = f"{them} cannot train, and count as zero: {units.why_all(wrong)}"
    tested = _kept_apart(dataset.test(), scenario)
    owners = rng.keyed_digest(plan.seed, "owners", dataset.whose())
    inputs = RunInputs(pipeline, task, state, worker_bytes, *tested, untrainable, owners)
    # Check that the outputs have the shape that the loss takes: here, not on every client.
    module = inputs.module.cpu()  # built outside of no_grad, because building tries a custom model with gradients
    with torch.no_grad():
        outputs = module(torch.zeros(2, *task.input_shape, dtype=input_type(task.model)))
        inputs.loss.check_outputs(outputs, torch.from_numpy(made_up(tested[0], 1, 2)[1][0]), task.model.name)
    if is_import_path(task.model.name):
        check_apart(module, task.model, task.input_shape)
    if is_import_path(task.client.loss) and inputs.evaluate_every:
        try:
            inputs.evaluate(parameters)
            inputs.evaluate.validation_score(parameters)
        except Exception as error:  # a custom loss or metric may raise anything
            raise ModelError(f"the public test records cannot be evaluated ({one_line(error)})") from error
    return inputs


def _packages_of(task: ClientTask) -> tuple[str, ...]:
    """Name the packages beside fedamp whose classes are in a task, with their versions: nodes need the same ones."""
    modules = [type(value).__module__ for value in (task.submodels, *getattr(task.data, "transform", ()))]
    modules += [
        path
        for extension in extensions()
        for key, path in extension.task_keys.items()
        if getattr(task, key) is not None
    ]
    foreign = dict.fromkeys(each.partition(".")[0] for each in modules)
    return tuple(filter(None, (distribution_of(each) for each in foreign if each != "fedamp")))


def steps_and_records(task: ClientTask, data: Data) -> tuple[int, int, int]:
    """Read from the scenario how much a unit trains; no record is counted.

    Returns:
        Gradient steps of a unit in a round, records in each of them, and records of the unit.
    """
    client, records = task.client, getattr(data, "records_per_client", 1) if task.unit == "client" else 1
    each = records if client.batch_size == "full" else min(records, client.batch_size)
    batches = 1 if client.batch_size == "full" else math.ceil(records / client.batch_size)
    return client.steps or (client.epochs or 1) * batches, each, records


def made_up(like: PublicRecords, units: int, records: int) -> PublicRecords:
    """Make up records of the form of others, for trying and timing; they are the same in every process.

    Args:
        like: inputs and labels, [records, ...].
        units, records: how many units, and records of each.

    Returns:
        Inputs drawn between 0 and 1 (tokens: 0), and labels of zeros: [units, records, ...].
    """
    inputs, labels = (np.zeros((units, records, *of.shape[1:]), of.dtype) for of in like)
    if np.issubdtype(inputs.dtype, np.floating):
        inputs[:] = rng.public_stream(0, "made-up").random(inputs.shape[1:], np.float32)
    return inputs, labels


def _kept_apart(public: PublicRecords, scenario: Scenario) -> tuple[PublicRecords, PublicRecords]:
    """Divide the public records into the test set and the validation records (``federation.validation_share``).

    The division is the same for every seed: validation records of one seed must not be test records of another.

    Raises:
        ScenarioError: one of them would be empty.
    """
    share, count = scenario.federation.validation_share, len(public[1])
    if share == 0:
        return public, (public[0][:0], public[1][:0])
    kept = round(share * count)
    if not 0 < kept < count:
        expected = "a share that leaves records for the test and for validation" if count else TO_TEST
        raise ScenarioError(
            f"federation.validation_share: {share:g} of {count} public test records are {kept}; expected: {expected}"
        )
    order = rng.public_stream(0, "validation").permutation(count)
    first, others = np.sort(order[:kept]), np.sort(order[kept:])
    return (public[0][others], public[1][others]), (public[0][first], public[1][first])


def _make_pipeline(plan: Plan, parameters: Arrays, pieces: Pieces) -> ReleasePipeline:
    """Make the steps of a plan's releases.

    Args:
        parameters: of the whole model, by name.
        pieces: gives the piece of a submodel in a round.
    """
    piece = plan.submodels.a_piece(pieces)
    trained = {name: array for name, array in parameters.items() if name not in piece.frozen}
    parts = ModelParts.of(trained, piece.shared if len(plan.parts_at(1.0)) == 2 else None)
    path = plan.scenario.aggregation.aggregator
    return ReleasePipeline(plan, parts, pieces, plan.noise, named(path)(plan) if path else ClippedSums())


def memory_of_a_worker(engine: Engine, device: str) -> int | None:
    """Read the bytes of a GPU's memory that a worker may use: of a GPU that several share, its part.

    Args:
        engine: the section of the scenario; workers of a cluster are counted as if this machine had all its GPUs.
        device: torch's name of the device; None is returned where it is not here, or no GPU.
    """
    memory = devices.total_memory(device)
    if memory is None or engine.workers == "auto" or engine.kind == "serial":
        return memory
    return int(memory * share_of_each(engine.workers, 1 if ":" in device else len(devices.names())))


def _stack_size(plan: Plan, task: ClientTask, piece: Piece) -> tuple[StackSize, int]:
    """Decide how many units train together; it is independent of the records.

    Args:
        plan: of the run; the expected cohort matters, which is public.
        task: of the clients.
        piece: a piece of the model that a unit trains.

    Returns:
        The size of stacks, and the bytes that a worker needs for one on a GPU.
    """
    trained, half = piece.module, power_above(math.ceil(plan.expected_cohort / 2))
    per_record = kept_per_record(trained, task.input_shape, input_type(task.model)) + math.prod(task.input_shape)
    parameters = sum(parameter.numel() for parameter in trained.parameters())
    for name in piece.tables if not task.client.moves_all else ():  # a record touches as many rows as tokens
        rows, numbers = trained.get_parameter(name).shape
        parameters -= rows * numbers
        per_record += math.prod(task.input_shape) * numbers
    asked, device = plan.scenario.engine.clients_per_batch, plan.scenario.engine.device
    device = devices.here(device) if device == "auto" else device  # a named one may be a cluster's
    on_gpu, spread = devices.is_gpu(device), 2 * math.sqrt(plan.expected_cohort) if plan.check_in.is_hidden else 0.0
    if piece.owns_all and GhostClipping.can_run(task, trained, piece.known):
        # No gradient of a record is formed: activations, their derivatives, and both as float64.
        parameters, per_record, most = 0, 4 * per_record, min(RECORDS_AT_ONCE, half)
    else:
        convolves = any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in trained.modules())
        most = min(max(SMALLEST_STACK, half), CONVOLUTIONS if convolves else STACK)
    if on_gpu:  # of the submodel that most units train
        share = max(share for share, _ in plan.submodels.submodel_frequencies(plan.units))
        most = math.ceil(share * plan.expected_cohort + spread)
    units = asked if asked != "auto" else most
    size = stack_size(parameters, per_record, units, device, memory_of_a_worker(plan.scenario.engine, device))
    recurs = any(isinstance(layer, LSTM | nn.RNNBase) for layer in trained.modules())
    if on_gpu and asked == "auto":
        size = size.model_copy(update={"cohort": most})
    elif not on_gpu and recurs:
        size = size.model_copy(update={"records": min(size.records, RECURRENT_RECORDS)})
    elif not on_gpu and parameters and layers_of(trained):
        size = size.model_copy(update={"records": min(size.records, PERCEPTRON_RECORDS)})
        loss, known = loss_of(task.client, task.model), trained if piece.known else None
        # Other ways of training compute what is left after whole vectors of numbers, in the last slots, otherwise.
        if asked == "auto" and StackTrainer(piece.forward, task.client, loss=loss, module=known).descends:
            size = size.model_copy(update={"cohort": math.ceil(plan.expected_cohort + spread)})
    units = min(size.units, math.ceil(plan.expected_cohort))
    return size, bytes_of_a_worker(2 * units * parameters + max(units, size.records) * per_record)
