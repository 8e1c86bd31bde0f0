"""Check a scenario before it runs, and find how its clients train; docs/scenarios.md explains :data:`LIMITS`.

All numbers are public, except those about the sizes of people's data, which only ``fedamp check --private`` asks for.
``fedamp check`` shows the checks; each run logs those that do not pass (:class:`fedamp.server.observers.Forewarning`).
The last functions train on public or made-up records: no answer depends on anybody's data.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedamp import rng
from fedamp.accounting.verify import Check, Verdict
from fedamp.base import devices
from fedamp.base.numbers import amount_of_bytes, amount_of_time, at_most, power
from fedamp.client.stacks import aligned
from fedamp.client.task import StackSize, kept_bytes, power_above
from fedamp.client.training import StackTrainer, arithmetic
from fedamp.client.worker import TrainingNode
from fedamp.data import PaddedRecords
from fedamp.data.dataset import TO_TEST
from fedamp.engines.wire import RoundOrder, rows
from fedamp.errors import DivergedError, FederationError, ScenarioError, fails_alone, one_line
from fedamp.federation.kept_answers import KEPT
from fedamp.federation.local_training import DEPLOYED_RECORDS
from fedamp.federation.model_noise import path_noise
from fedamp.federation.plan import DUMMY_WORK, PROTECTIONS, Plan, Protection, make_plan, weak_delta
from fedamp.models.custom import is_import_path
from fedamp.models.inspection import without_gradient
from fedamp.models.pieces import Piece
from fedamp.runs.verification import complaint
from fedamp.server.setup import RunInputs, made_up, memory_of_a_worker, steps_and_records
from fedamp.server.traffic import in_words, traffic_of

LIMITS: Mapping[str, tuple[float, float, str]] = {
    "signal": (1.0, 0.1, "privacy.noise_multiplier or privacy.epsilon, rounds, check_in, model"),
    "reach": (0.01, 0.001, "server.learning_rate, privacy.clip, rounds"),
    "longest reach": (500.0, 5000.0, "privacy.clip, server.learning_rate, rounds"),
    "drift": (100.0, 1000.0, "privacy.clip, server.learning_rate, privacy.noise_multiplier or privacy.epsilon"),
    "empty clients": (0.05, 0.5, "data.clients"),
    "learning rate": (100.0, 1000.0, "client.learning_rate"),
    "local steps": (1000.0, 100_000.0, "client.steps or client.epochs"),
    "hours": (24.0, math.inf, "rounds, check_in, client, model"),
}
"""Limits by check: beyond the first number it says caution, beyond the second one it fails; then the keys to change.

Both are least values where the second one is smaller, else largest values.
"""

LARGE_INPUTS = 30.0  # root mean square
_TRIED = 8  # public records that are trained on before the first round
_TIMED_STEPS, _PATIENCE = 4, 3.0  # of the timed training; seconds after which no further advice is computed


def preflight(
    plan: Plan, inputs: RunInputs | None = None, thorough: bool = False, sizes: NDArray[np.int64] | None = None
) -> list[Check]:
    """Make the checks of a scenario.

    Args:
        plan: of the scenario.
        inputs: of the plan; without it nothing is said that depends on the model.
        thorough: time the training of synthetic records, and ask the accountant for a better check-in: some seconds.
        sizes: number of records of each unit [units], which is private; default: nothing is said about them.

    Returns:
        Checks with the verdicts ``pass``, ``caution`` and ``fail``.
    """
    private = () if sizes is None else _of_sizes(sizes)
    return [*_of_plan(plan), *private, *(_of_model(plan, inputs, thorough) if inputs else ())]


def refuse(checks: list[Check], how: str = "--anyway") -> None:
    """Refuse a scenario if a check fails.

    Args:
        checks: of :func:`preflight`.
        how: what runs the scenario all the same, for the error.

    Raises:
        ScenarioError: one line with all failed checks.
    """
    if wrong := complaint(checks):
        raise ScenarioError(f"hopeless: {wrong}, or {how}")


def signal_to_noise(plan: Plan, sizes: Mapping[str, int]) -> float:
    """Compute the largest length of the mean update over the expected length of its noise, in all rounds together.

    A part of the model has D coordinates, clip C, noise multiplier s, and denominator m, in a cohort of n units. If all
    updates agree, its mean has length C sqrt(n / m) (a submodel is trained by m of the n units), and in R rounds R
    times that. Noise has length C s sqrt(D) / m, and in R rounds sqrt(R) times that; banded noise has less, by its path
    noise. For one part the clip cancels: n sqrt(R) / (s sqrt(D)). Real updates agree less, so this is the best case.

    Args:
        plan: of the run.
        sizes: number of trained coordinates of each part, by name.

    Returns:
        The quotient; infinite without noise.
    """
    longest = sum(part.clip**2 * plan.expected_cohort / part.denominator for part in plan.parts)
    each = zip(plan.parts, plan.noise_deviations, strict=True)
    noise = sum(sizes[part.name] * (deviation / part.denominator) ** 2 for part, deviation in each)
    response = plan.optimizer.step_response(plan.scenario.rounds) if plan.coefficients else None
    banded = path_noise(plan.coefficients, response) / path_noise((), response) if response is not None else 1.0
    return math.sqrt(plan.last_round * longest / noise) / banded if noise else math.inf


def _judge_value(name: str, value: float, found: str) -> Check:
    """Compare a number with its limits."""
    caution, fail, keys = LIMITS[name]
    side = 1 if fail > caution else -1
    verdict: Verdict = "fail" if side * value > side * fail else "caution" if side * value > side * caution else "pass"
    expected = f"; expected: at {'most' if side > 0 else 'least'} {caution:g}; change {keys}"
    return Check(name, verdict, found + expected * (verdict != "pass"))


def _of_plan(plan: Plan) -> Iterator[Check]:
    """Check what follows from the plan alone: delta, budget, local steps, hosts."""
    asked, rounds, client = plan.scenario, plan.scenario.rounds, plan.scenario.client
    delta = asked.privacy.delta
    if plan.is_private:
        units = plan.full_size.units
        weak = plan.rehearsal or weak_delta(delta, units)
        yield Check.of_failure("delta", f"{power(delta)} for {units:,} {asked.privacy.unit}s", caution=weak)
    paid = plan.charge.affordable_rounds
    words = f"privacy.epsilon pays for {paid:,} of {rounds:,} rounds"
    yield Check.of_failure("budget", words, caution=f"{words}; expected: all of them" if paid < rounds else None)
    several = client.steps != 1 and asked.privacy.unit == "client"
    rate = max(rate for _, rate in client.learning_rates) if several else 0.0  # a single step is clipped in any case
    yield _judge_value("learning rate", rate, f"client.learning_rate {rate:g}" if several else "one local step")
    if asked.privacy.unit == "client" and (client.steps is None or client.batch_size == "full"):
        most = f"a deployment's node trains on the first {client.max_records or DEPLOYED_RECORDS:,} records of a client"
        yield Check("records", "pass", f"{most} (client.max_records)")
    steps = client.steps or client.epochs or 1
    yield _judge_value(
        "local steps", steps, f"{steps:,} {'epochs' if client.epochs else 'steps'} of a client in a round"
    )
    if asked.federation.names_units:
        yield _check_hosts(plan)
    if plan.is_private and plan.protection and plan.charge.nodes_epsilon:
        yield _check_nodes(plan, plan.protection, plan.charge.nodes_epsilon.upper)


def _check_hosts(plan: Plan) -> Check:
    """Check that each unit lives on a node, and that the nodes that are waited for can come."""
    federation, units = plan.scenario.federation, plan.units
    there, nodes = sum(federation.hosted_units.values()), len(federation.hosted_units)
    wrong = [f"{units - there:,} of {units:,} units live on no node, and count as zero"] * bool(units - there)
    wrong += [f"federation.nodes waits for {federation.nodes} of {nodes} nodes"] * (federation.nodes > nodes)
    return Check.of_failure(
        "hosts", f"each of {units:,} units lives on one of {nodes} nodes", caution="; ".join(wrong) or None
    )


def _check_nodes(plan: Plan, protection: Protection, epsilon: float) -> Check:
    """Check what registered nodes see, what that costs, and what hides it."""
    work = plan.units / plan.expected_cohort
    found = f"{PROTECTIONS[protection]}: epsilon {at_most(epsilon, 3)} for a registered node"
    if protection == "none":
        found += "; expected: federation.answer_after, which costs bytes"
        found += f", or federation.dummies: true, {work:.3g} times the work; both need the units of each node in hosts"
    elif protection != "answer_after":
        found += f", {work:.3g} times the work of the cohort"
    dear = protection == "dummies" and work > DUMMY_WORK
    seen = epsilon > 1.001 * plan.charge.planned_epsilon.upper
    return Check("registered nodes", "caution" if seen or dear else "pass", found)


def _of_model(plan: Plan, inputs: RunInputs, thorough: bool) -> Iterator[Check]:
    """Check what depends on the model: signal, reach, drift, evaluation, inputs."""
    model, server = inputs.pipeline.model, plan.scenario.server
    sizes = {part.name: 0 for part in plan.parts}
    for name, shape in model.shapes.items():
        sizes[plan.parts[model.part_of[name]].name] += math.prod(shape)
    size, signal = sum(sizes.values()), signal_to_noise(plan, sizes)
    found = f"{signal:,.3g} times the noise in all rounds together, at best, for {size:,} parameters"
    wanted = LIMITS["signal"][0]
    if signal < wanted:
        found += f"; {wanted:g} needs {_enough_signal(plan, signal / wanted)}"
    yield _judge_value("signal", signal, found if plan.is_private else "no noise is added")
    # How far clipped updates, and noise, can move the model, over its initial norm.
    length = math.sqrt(sum(float(np.square(inputs.state.parameters[name]).sum()) for name in model.shapes)) or 1.0
    step = math.hypot(*(part.clip for part in plan.parts)) if server.is_linear else math.sqrt(size)
    reach = server.learning_rate / (1 - server.effective_momentum) * step * plan.last_round / length
    yield _judge_value("reach", reach, f"updates can move the model by {reach:,.3g} times its initial norm")
    far = reach if plan.clipping.normalises else 0.0  # other updates are mostly shorter than their norm
    found = f"updates of privacy.clip: auto move the model by up to {far:,.3g} times its initial norm"
    yield _judge_value("longest reach", far, found if far else "no update is lengthened")
    drift = reach / signal
    yield _judge_value("drift", drift, f"noise moves the model by {drift:,.3g} times its initial norm")
    yield _check_evaluation(inputs)
    if is_import_path(plan.scenario.model.name):
        with fails_alone("looking for parameters without a gradient"):
            yield _check_gradients(inputs)
    is_asked_once = not plan.scenario.aggregation.hides_sums
    if plan.protection is not None and plan.scenario.federation.hosted_units and is_asked_once:
        yield Check("a node's round", "pass", in_words(traffic_of(inputs)["each_round"]))
    yield from _of_inputs(inputs.test[0])
    if thorough:
        yield from _in_numbers(plan, inputs, sizes)


def _check_gradients(inputs: RunInputs) -> Check:
    """Caution about parameters that are sent and noised, and never learn."""
    module, task = inputs.module.cpu(), inputs.task
    names = without_gradient(module, task.model, task.input_shape)
    numbers, more = sum(module.get_parameter(name).numel() for name in names), ", ..." * (len(names) > 5)
    off = f"none reaches {', '.join(names[:5])}{more}: noise alone moves their {numbers:,} numbers"
    expected = "expected: a model without them, or model.trainable"
    return Check.of_failure("gradients", "one reaches each parameter", caution=f"{off}; {expected}" if names else None)


def _check_evaluation(inputs: RunInputs) -> Check:
    """Tell what models are evaluated on, and caution where nothing says that they are not to be."""
    asked, public = inputs.plan.scenario.federation.evaluate_every, len(inputs.test[1])
    if (side := inputs.plan.side_sum) is not None and not (public and asked):
        found, caution = side.foreseen(inputs.plan)
        return Check.of_failure(side.key, found, caution)
    if public and asked:
        return Check("evaluation", "pass", f"on {public:,} public test records")
    caution = None if asked == 0 else f"none; expected: {TO_TEST}, or federation.evaluate_every: 0"
    return Check.of_failure("evaluation", "none, as federation.evaluate_every says", caution)


def _of_inputs(inputs: NDArray[Any]) -> Iterator[Check]:
    """Caution about inputs of the public test set that are much larger than learning rates are meant for."""
    is_measured = np.issubdtype(inputs.dtype, np.floating) and inputs.size > 0
    size = math.sqrt(float(np.square(inputs, dtype=np.float64).mean())) if is_measured else 0.0
    if size >= LARGE_INPUTS:
        found = f"their size is {size:.3g} (root mean square of the public test set), so a step moves the model far, "
        advice = "and noise on it counts much; better divided by data.scale or data.transform standardise"
        yield Check("inputs", "caution", found + advice)


def _of_sizes(sizes: NDArray[np.int64]) -> Iterator[Check]:
    """Check the share of clients without records; it is private."""
    empty, usual = float((sizes == 0).mean()), f"half have at most {np.median(sizes):g}"
    found = f"{empty:.0%}: {len(sizes):,} clients have {sizes.sum():,} records; {usual} (data.records_per_client)"
    yield _judge_value("empty clients", empty, found)


def _enough_signal(plan: Plan, factor: float) -> str:
    """Write what multiplies the signal by 1 / ``factor``: less noise at its cost, or more units."""
    noise = plan.noise_multiplier * factor
    mechanism = plan.charge.with_noise(noise, plan.scenario.privacy.group_size)
    cost = plan.answers.epsilon(mechanism, plan.scenario.privacy.delta, points=300)
    costs = f"privacy.noise_multiplier {noise:.2g} (epsilon {at_most(cost.upper)})"
    return f"{costs}, or {1 / factor:,.3g} times as many {plan.scenario.privacy.unit}s"


def _in_numbers(plan: Plan, inputs: RunInputs, sizes: Mapping[str, int]) -> Iterator[Check]:
    """Tell the work of the run, and whether another check-in would serve better at the same epsilon."""
    check_ins = plan.expected_cohort * plan.last_round
    each = inputs.cost.bytes_per_check_in
    yield Check("bytes", "pass", f"{amount_of_bytes(each)} a check-in, {amount_of_bytes(each * check_ins)} in all")
    with fails_alone("timing the training of synthetic records"):
        seconds = seconds_of_a_unit(inputs, _TIMED_STEPS)
        hours = seconds * check_ins / 3600
        yield _judge_value(
            "hours", hours, f"{amount_of_time(seconds)} a check-in, {hours:.2g} hours in all, in one process"
        )
        if is_import_path(plan.scenario.model.name) and inputs.task.stack.units > 1:
            alone = f"{amount_of_time(seconds_of_a_unit(inputs, 1, 1))} with engine.clients_per_batch 1"
            yield Check("together", "pass", f"{how_clients_train(inputs)}: {amount_of_time(seconds)} each, {alone}")
    began, found = perf_counter(), []
    for check_in in _other_schemes(plan) if plan.is_private else ():
        privacy = {"noise_multiplier": "auto", "epsilon": plan.charge.planned_epsilon.upper, "precision": 0.05}
        changes = {"check_in": check_in, "privacy": plan.scenario.privacy.model_copy(update=privacy)}
        if perf_counter() - began < _PATIENCE:
            with fails_alone("advice"):
                signal = signal_to_noise(
                    make_plan(plan.scenario.model_copy(update=changes), plan.units, answers=KEPT), sizes
                )
                key = "k" if hasattr(check_in, "k") else "rate"
                found.append(f"{signal:,.3g} with check_in.{key} {getattr(check_in, key):g}")
    if found:
        now = signal_to_noise(plan, sizes)
        yield Check(
            "advice", "pass", f"at the same epsilon the signal is {now:,.3g} now; it would be {', '.join(found)}"
        )


def check_device(inputs: RunInputs) -> Check:
    """Tell how units train on the scenario's device: stacks of a round, memory of a worker, units a second.

    Memory is that of the tensors of a stack, counted without the device. Units a second are measured on synthetic
    records, if the device is here.

    Args:
        inputs: of the run.
    """
    plan, task, device = inputs.plan, inputs.task, inputs.plan.scenario.engine.device
    places = power_above(steps_and_records(task, plan.scenario.data)[2])
    slots = task.stack.slots(places, plan.units)
    stacks = math.ceil(plan.expected_cohort / slots)
    units = f"{plan.scenario.privacy.unit}s"
    found = f"{device}: {how_clients_train(inputs)}; stacks of a round: {stacks:,}, of {slots:,} {units}"
    found += f" with {places:,} records each"
    if devices.is_gpu(devices.here(device) if device == "auto" else device):
        kept = amount_of_bytes(kept_bytes(memory_of_a_worker(plan.scenario.engine, device)))
        found += f"; a worker keeps records on a GPU, if they take at most {kept}"
        with fails_alone("counting the memory of a stack"):  # code that needs values
            node, order, _ = _made_up_round(inputs, "meta", _TIMED_STEPS)
            taken = amount_of_bytes(node.bytes_of_a_stack(order, several=stacks > 1))
            found += f"; a stack takes {taken}, and its graph as much again"
    if device != "auto" and devices.here(device) != device:
        return Check("device", "caution", f"{found}; the device is not here, so no speed was measured")
    speed = 1 / seconds_of_a_unit(inputs, _TIMED_STEPS)
    return Check("device", "pass", f"{found}; about {speed:,.3g} {units} a second and worker")


def _other_schemes(plan: Plan) -> Iterator[object]:
    """Yield the check-in with half, and with twice, as many check-ins."""
    check_in = plan.check_in
    for factor in (0.5, 2):
        if hasattr(check_in, "k") and 1 <= (k := int(check_in.k * factor)) <= plan.scenario.rounds:
            yield check_in.model_copy(update={"k": k})
        elif hasattr(check_in, "rate") and (rate := check_in.rate * factor) <= 1 <= rate * plan.units:
            yield check_in.model_copy(update={"rate": rate})


# The training of a unit, on public test records or on synthetic ones: no answer depends on anybody's records.


def check_training(inputs: RunInputs) -> None:
    """Train the first model on a few public or made-up records: what fails for every unit fails before the first round.

    Later failures depend on the units' data, so they do not stop the run.

    Args:
        inputs: of the run.

    Raises:
        FederationError: training raises.
        DivergedError: the update is not finite.
    """
    seeds, public = np.zeros(1, dtype=f"V{rng.SEED_BYTES}"), len(inputs.test[1]) > 0
    tried, labels = (part[None, :_TRIED] for part in inputs.test) if public else made_up(inputs.test, 1, _TRIED)
    kind = "public test" if public else "synthetic"
    records, (piece, trainer, start) = PaddedRecords(tried, labels, np.array([tried.shape[1]])), _training_parts(inputs)
    try:
        trained = trainer.train(start, records, seeds, piece.arguments(seeds))
    except Exception as error:  # a custom model may raise anything
        raise FederationError(
            f"round 1: no client can train: training on {kind} records fails ({one_line(error)})"
        ) from error
    if not all(bool(update.isfinite().all()) for update in trained.updates.values()):
        raise DivergedError(1, f"an update of {kind} records")


def how_clients_train(inputs: RunInputs) -> str:
    """Say whether clients train together or one by one; it follows from the scenario and the model alone."""
    if alone := _why_one_by_one(inputs):
        return f"clients train one by one, slower than together: {alone}"
    most = inputs.task.stack.units
    return f"up to {most} clients train together" if most > 1 else "clients train one by one"


def seconds_of_a_unit(inputs: RunInputs, steps: int, units: int | None = None) -> float:
    """Measure the seconds of a unit's training in a round, from units that train on synthetic records here.

    Args:
        inputs: of the run.
        steps: the most gradient steps that are timed.
        units: how many train together at most; default: as the run does it.
    """
    device = devices.here(inputs.plan.scenario.engine.device)
    node, order, trained = _made_up_round(inputs, device, steps, units)
    with devices.one_thread(device):  # as workers train
        for _ in range(3 if devices.is_gpu(device) else 1):  # it tries how clients can train together; a GPU records
            node.train(order)
        began = perf_counter()
        node.train(order)
        return (perf_counter() - began) / trained


def _made_up_round(
    inputs: RunInputs, device: str, steps: int, units: int | None = None
) -> tuple[TrainingNode, RoundOrder, float]:
    """Make a node whose units have synthetic records, and an order for them; arguments as of the function above.

    Also returns how many units it trains, in units that train all of their steps.
    """
    task, plan = inputs.task, inputs.plan
    whole, _, records = steps_and_records(task, plan.scenario.data)
    few = min(whole, steps)
    changes: dict[str, Any] = {"client": task.client.model_copy(update={"steps": few, "epochs": None})}
    if units is not None:
        changes["stack"] = StackSize(units=units, records=task.stack.records)
    units = max(1, min(units or task.stack.units, math.floor(plan.expected_cohort)))

    def gather(clients: NDArray[np.int64]) -> PaddedRecords:
        return PaddedRecords(*made_up(inputs.test, len(clients), records), sizes(clients))

    def sizes(clients: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(clients), records)

    def lost(clients: NDArray[np.int64], read: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.zeros(len(clients), dtype=bool)

    shape = {"input_shape": task.input_shape, "num_clients": units, "hosted": None}
    synthetic: Any = SimpleNamespace(**shape, sizes=sizes, gather=gather, lost=lost)
    node = TrainingNode(task.model_copy(update=changes), synthetic, device, compiled=False)
    seeds, (_, submodel) = [bytes(rng.SEED_BYTES)] * units, plan.submodels.possible_draws(masks=1)[0]
    clips, arrays = (1.0,) * len(plan.parts), inputs.state.parameters
    return node, RoundOrder("", 1, clips, rows(range(units), seeds, submodel), arrays), units * few / whole


def _training_parts(inputs: RunInputs) -> tuple[Piece, StackTrainer, dict[str, Tensor]]:
    """Return the piece that trains as nodes do, its trainer, and its start values, on the nodes' device if possible."""
    piece = inputs.plan.submodels.a_piece(inputs.pieces)
    device = devices.here(inputs.plan.scenario.engine.device)
    piece.module.to(device)  # what is frozen, and buffers
    start = {name: aligned(array).to(device) for name, array in piece.extract(inputs.state.parameters).items()}
    like = aligned(inputs.test[0][:1]).to(device)
    return piece, StackTrainer.of_piece(piece, inputs.task.client, device, inputs.loss, like), start


def _why_one_by_one(inputs: RunInputs) -> str:
    """Say why clients cannot train stacked; empty if they can, as with every built-in model."""
    task = inputs.task
    if not is_import_path(task.model.name):
        return ""
    piece, trainer, start = _training_parts(inputs)
    if piece.random:
        return "the model draws random numbers, for each client from its own stream"
    slots = task.stack.slots(2, inputs.plan.units)
    row_inputs = partial(piece.row_inputs, start, decays=task.client.moves_all)
    with arithmetic(task.client.precision, trainer.device):
        while True:
            like = PaddedRecords(*made_up(inputs.test, slots, 2), np.zeros(slots, np.int64))
            try:
                return trainer.stacking_refusal(start, like, row_inputs, task.model.vocabulary)
            except torch.OutOfMemoryError:  # nodes halve their stacks, too
                slots //= 2
