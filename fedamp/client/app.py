"""Answer the server's messages as a Flower client app: a task and a model come in, a sum of clipped updates goes out.

``app`` trains as the scenario says. :class:`PrivateClientApp` runs a custom training loop, or a Flower app's handlers.
In simulation a node trains any client; in a deployment, the clients that its configuration names.

The layout of the messages is :mod:`fedamp.engines.wire`'s, the training :mod:`fedamp.client.worker`'s. What the node's
owner allows is checked in :mod:`fedamp.client.policy`, before anything is answered.
"""

import copy
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from numpy.typing import NDArray
from torch import Tensor, nn

from fedamp import rng
from fedamp.base.arrays import Arrays
from fedamp.client import configuration, policy
from fedamp.client.clipping import clip_and_sum
from fedamp.client.task import UNTRAINABLE, log
from fedamp.client.unit_vectors import sum_vectors
from fedamp.client.worker import LocalParameters, NodeSum, TrainingNode, TrainReport
from fedamp.engines import flower
from fedamp.engines.wire import AnswerStatus, RoundAnswer, RoundOrder, message_content, sealed_bytes
from fedamp.errors import DataError, DeploymentError, ModelError, UnwritableError, one_line
from fedamp.extension import keys, named, offered
from fedamp.federation.local_training import LocalTraining
from fedamp.models.custom import generators_from
from fedamp.models.model import WHOLE
from fedamp.models.networks import build

NODE_FAILED = "this node cannot do what it was asked; its own log says why"  # whatever its data are

TrainedModel = nn.Module | Mapping[str, Any]


class UnitRecords(NamedTuple):
    """The records of one unit, as a custom training loop gets them.

    Attributes:
        inputs: [records, *input_shape]; float32, or int64 where they are tokens.
        labels: [records, ...], as ``client.loss`` takes them.
    """

    inputs: NDArray[Any]
    labels: NDArray[Any]


@dataclass(frozen=True)
class TrainingContext:
    """Facts for a custom training loop beside model and records. None of them tells who else takes part, or when.

    Attributes:
        client: id of the client (of the record, where the unit is a sample).
        round: from 1.
        settings: the scenario's ``client`` section; a loop may follow it or not.
        config: the ``train_config`` that the server app gave to ``start``; empty elsewhere.
        device: torch's name of the node's device.
        flower: Flower's context, with ``node_config`` and ``run_config``.
    """

    client: int
    round: int
    settings: LocalTraining
    config: Mapping[str, Any]
    device: str
    flower: Context


TrainingLoop = Callable[[Any, UnitRecords | None, TrainingContext], TrainedModel]
NodeTraining = Callable[[RoundOrder], TrainReport]
"""Trains the units of an order, clips each update, and adds them up."""


class PrivateClientApp(ClientApp):
    """A Flower client app whose clients' updates are clipped and added up before they leave the node.

    The difference of the trained and the given model is clipped, so no training can add more than the clipping norm. A
    client whose training raises, or gives NaN, other shapes or no model, counts as zero and as failed. Training must
    carry nothing from one client to another. Clients train in turn: torch's, NumPy's and Python's generators start from
    the client's seed each time, and are restored afterwards.

    Args:
        train: a custom training loop ``train(model, records, context)`` for one unit. It returns the trained model, a
            module or a mapping of arrays or tensors, with the names and shapes of the given one.
            *model* is this unit's own copy of the global model, a ``torch.nn.Module`` on the CPU; *records* are the
            unit's (:class:`UnitRecords`); *context* is a :class:`TrainingContext`. With ``data: {name: external}``,
            *model* is a dict of writable float32 arrays by name, and *records* None: the loop reads them itself.
            Default: the handler ``@app.train()`` trains, unchanged from Flower's ``ClientApp``. It is called once a
            client, with ``arrays`` and ``config`` (``train_config``, and ``server-round``) as FedAvg would send them,
            and the client's id as ``partition-id``; it answers with one ArrayRecord. No metric leaves the node, nor
            ``num-examples``: all clients count alike, because a weight would tell about the records.
        mods: Flower mods around the handlers.

    A node with external data, or with handlers, speaks for the clients in its ``hosts``, else for its ``partition-id``.
    A handler's ``context.state`` lasts where the node speaks for one client; else each call starts with an empty one.

    Raises:
        DeploymentError: on a message that is not PrivateStrategy's, on submodels, on clients of other nodes, and on an
            evaluation: its figures would come from records without noise.

    >>> from fedamp.client import PrivateClientApp
    >>> def train(model, records, context):
    ...     for parameter in model.parameters():  # a real loop descends a loss on records.inputs and records.labels
    ...         parameter.data.mul_(0.9)
    ...     return model
    >>> app = PrivateClientApp(train)
    """

    def __init__(self, train: TrainingLoop | None = None, mods: Sequence[Mod] = ()) -> None:
        super().__init__(mods=list(mods))
        self._loop = train

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message of the server; a sealed message gets a sealed answer, whatever fails here.

        The size of a sealed answer, and with ``federation.answer_after`` its time, follow from the order alone. Errors
        that may depend on records are told to the node's log, and to the server as one fixed sentence.

        Args:
            message: a ``query`` for the units that live here, or an order to ``train``.
            context: Flower's, with the configuration of the node.

        Raises:
            DeploymentError: another kind of message, or one that is not sealed in a deployment.
        """
        began, kind = time.monotonic(), message.metadata.message_type
        if kind.partition(".")[0] not in ("query", "train"):
            raise DeploymentError(f"{kind} messages are not answered: what they ask for is not covered by epsilon")
        is_sealed = sealed_bytes(message.content) is not None
        if not is_sealed and flower.in_supernode():  # the parts of a bare answer can be guessed, and asked for
            raise DeploymentError("the message is not sealed; expected: one of fedamp's server")
        order = RoundOrder.of(message.content)
        if not is_sealed:
            return flower.timely_reply(self._answer(order, message, context).content(order), message)
        seconds = 0.0
        try:
            secret, seconds = configuration.acquainted(kind, order, context), answer_after(kind, order)
            with _ended_before(seconds):
                answer = self._answer(order, message, context)
                if kind == "query":
                    answer.text = secret
                data = answer.sealed(order)
        except Exception as error:
            if isinstance(error, DeploymentError | ModelError):
                why = one_line(error)
                log.warning("refused: %s", why)
            else:  # it may tell what is in the records
                why, is_full = NODE_FAILED, isinstance(error, UnwritableError)  # whose line says all
                log.error("this node could not do what it was asked: %s", one_line(error), exc_info=not is_full)
            again = isinstance(error, configuration.StartedAgainError)
            status = AnswerStatus.STARTED_AGAIN if again else AnswerStatus.FAILED
            data = RoundAnswer(text=why, status=status).sealed(order)
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        return flower.timely_reply(message_content(data), message)

    def _answer(self, order: RoundOrder, message: Message, context: Context) -> RoundAnswer:
        """Answer an order that this node's policy allows: name the units, take part in an exchange, or train.

        Raises:
            DeploymentError: the policy or the configuration of this node does not allow it.
        """
        kind = message.metadata.message_type
        if configuration.text(context, policy.KEY):  # else it takes every task
            policy.check(context, order.task, self._reads_records(order.task))
        if kind == "query":
            hosted = configuration.hosts(context, order.task, self._reads_records(order.task))
            return RoundAnswer(status=AnswerStatus.ANY_UNIT) if hosted is None else RoundAnswer(reported=sorted(hosted))
        if order.exchange:
            hosted = configuration.hosts(context, order.task, self._reads_records(order.task))
            if hosted is None:
                raise DeploymentError("this node's configuration names no units; expected: hosts, or a data folder")
            train = partial(self._train, message=message, context=context, hosted=hosted)
            whose = self._whose(order.task, configuration.text(context, "data"))
            for exchange in offered("exchanges", "agreement"):
                return RoundAnswer(data=exchange.answer(order, context, hosted, whose, train))
            raise DeploymentError("this node knows no exchanges but orders to train; expected: fedamp with extensions")
        if configuration.text(context, "agreement"):
            raise DeploymentError("this node has an agreement: it gives its sums to secure aggregation alone")
        hosted = configuration.named_hosts(context, self._reads_records(order.task))
        return self._train(order, message, context, hosted)

    def _train(self, order: RoundOrder, message: Message, context: Context, hosted: set[int] | None) -> TrainReport:
        """Train the units of an order, and compute their side sum, as far as the order asks for it.

        Args:
            order: that is answered.
            message: which brought the order; handlers get a copy of it.
            context: of the node.
            hosted: ids of the clients that this node may train; None: all.

        Raises:
            DeploymentError: a client lives elsewhere, or the app reads its records itself and a side sum is asked for.
        """
        if hosted is not None and (others := set(order.ids) - hosted):
            raise DeploymentError(f"clients {sorted(others)} are not among this node's hosts")
        report = TrainReport(dummies=order.dummies)
        if order.trains:
            train = self._trainer(order, message, context, hosted)
            report = train(order)
        if order.cells:
            if self._reads_records(order.task):
                raise DeploymentError("this app reads its records itself, and no others are held out for a side sum")
            folder, device = configuration.text(context, "data"), configuration.device(context)
            side_sum_of(order.task, folder, device).add(order, report)
        report.text = UNTRAINABLE if report.text and flower.in_supernode() else report.text
        return report

    def _whose(self, task_json: str, folder: str) -> Iterator[bytes]:
        """Yield facts about whose the records in a node's folder are, where fedamp reads them."""
        if folder and not self._reads_records(task_json):
            yield from configuration.dataset(task_json, folder).whose()

    def _reads_records(self, task_json: str) -> bool:
        """Say whether the app's own code reads the clients' records; else fedamp does."""
        return self._loop is None or (bool(task_json) and configuration.task_of(task_json).data.name == "external")

    def _trainer(self, order: RoundOrder, message: Message, context: Context, hosted: set[int] | None) -> NodeTraining:
        """Choose what trains the units of an order, clips each update, and adds them up."""
        if self._loop is not None:
            one = _trained_by_loop(self._loop, order, context, self._reads_records(order.task))
            return partial(sum_of_units, train_one=one)
        dummies = order.dummies

        def train_one(client: int) -> Mapping[str, Any]:  # with copies of its own: no client learns of another
            record = ArrayRecord({name: Array(array) for name, array in order.arrays.items()})
            config = ConfigRecord({**order.config, "server-round": order.round})
            content = RecordDict({"arrays": record, "config": config})
            state = context.state if hosted is not None and len(hosted) == 1 else RecordDict()
            state = copy.deepcopy(state) if client in dummies else state
            own = replace(context, node_config={**context.node_config, "partition-id": client}, state=state)
            reply = ClientApp.__call__(self, flower.with_content(message, content), own)
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
            records = list(reply.content.array_records.values())
            if len(records) != 1:
                raise ValueError(f"the reply must hold one ArrayRecord, got {len(records)}")
            return flower.from_record(records[0])

        return partial(sum_of_units, train_one=train_one)


class _StackedApp(PrivateClientApp):
    """Trains many clients at once, as the scenario says; no code of others but the scenario's model and loss."""

    def _reads_records(self, task_json: str) -> bool:
        """Say that fedamp always reads the records here."""
        return False

    def _trainer(self, order: RoundOrder, message: Message, context: Context, hosted: set[int] | None) -> NodeTraining:
        """Choose the training node of the task; or what adds up vectors, where the task asks for those."""
        most = None if hosted is None else len(hosted)
        folder, device = configuration.text(context, "data"), configuration.device(context)
        return _summing_vectors(order.task, folder) or node_of(order.task, folder, device, most).train


app = _StackedApp()


@lru_cache(maxsize=2)
def node_of(task_json: str, folder: str, device: str, hosts: int | None) -> TrainingNode:
    """Make what trains a task, and keep it, because data and model are the same in every round.

    Args:
        task_json: the :class:`fedamp.client.task.ClientTask` as JSON.
        folder: of the node's records; empty: the scenario's.
        device: torch's name of the device.
        hosts: how many clients live here; None: all may.

    Raises:
        DeploymentError: the task names a file that a node of a deployment would write.
        DataError: the records cannot be read.
    """
    dataset = configuration.dataset(task_json, folder)
    most = hosts if dataset.hosted is None else min(len(dataset.hosted), hosts or len(dataset.hosted))
    task = configuration.task_of(task_json)
    kept = [key for key in keys("local_parameters") if getattr(task, key)]
    if kept and flower.in_supernode():
        raise DeploymentError("the task names a file that this node would write; expected: that of a simulation alone")
    local = next(offered("local_parameters", kept[0])) if kept else LocalParameters
    return TrainingNode(task, dataset, device, most, local)


@lru_cache(maxsize=2)
def _summing_vectors(task_json: str, folder: str) -> NodeTraining | None:
    """Make what adds up vectors in place of trained updates, and keep the columns that they are computed from.

    Args:
        task_json: the :class:`fedamp.client.task.ClientTask` as JSON.
        folder: of the node's records; empty: the scenario's.

    Returns:
        None: the task asks for no vectors, and units train.
    """
    task = configuration.task_of(task_json)
    for key in keys("unit_vectors"):
        if getattr(task, key):
            dataset = configuration.dataset(task_json, folder)
            if vectors := next(offered("unit_vectors", key))(task, dataset):
                return partial(sum_vectors, vectors=vectors, dataset=dataset)
    return None


@lru_cache(maxsize=2)
def side_sum_of(task_json: str, folder: str, device: str) -> NodeSum:
    """Make what adds up the side sum of a task, and keep it.

    Args:
        task_json: the :class:`fedamp.client.task.ClientTask` as JSON.
        folder: of the node's records; empty: the scenario's.
        device: torch's name of the device.

    Raises:
        DeploymentError: the task has no side sum.
    """
    task, held_out = configuration.task_of(task_json), configuration.divided(task_json, folder)[1]
    if task.side_sum is None or held_out is None:
        raise DeploymentError("the order asks for a side sum, and the task for none")
    found: NodeSum = named(task.side_sum.node)(task, held_out, device)
    return found


def answer_after(kind: str, order: RoundOrder) -> float:
    """Read after how many seconds an order to train is answered; 0: at once.

    An order whose task cannot be read is answered at once, too.
    """
    with suppress(ValueError):
        if kind == "train":
            return configuration.task_of(order.task).answer_after or 0.0
    return 0.0


class _TooLate(BaseException):
    """The training has no time left. It is no Exception, because a unit's training may catch those."""


@contextmanager
def _ended_before(seconds: float) -> Iterator[None]:
    """Interrupt what leaves less than a tenth of the time to send an answer: a late answer tells who trained.

    Args:
        seconds: until the answer is due; 0: no limit.

    Raises:
        DeploymentError: the time was up.
        ValueError: this is not the main thread, which alone gets signals.
    """

    def interrupt(*_: object) -> None:
        raise _TooLate

    if not seconds:
        yield
        return
    before = signal.signal(signal.SIGALRM, interrupt)  # where this is not the main thread, ValueError: no answer
    try:
        timer = signal.setitimer(signal.ITIMER_REAL, 0.9 * seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, *timer)
    except _TooLate:
        raise DeploymentError(f"it trained for more than 0.9 of federation.answer_after {seconds:g} s") from None
    finally:
        signal.signal(signal.SIGALRM, before)


def sum_of_units(order: RoundOrder, train_one: Callable[[int], Mapping[str, Any]]) -> TrainReport:
    """Train units one after another with code of other people, clip each update, and add them up.

    Args:
        order: with the global model.
        train_one: gives the trained arrays of a unit, by name. It may raise anything: then the unit counts as failed.

    Returns:
        The sum of the clipped, quantised updates, float64 in the shapes of the model, with its counts.

    Raises:
        DeploymentError: submodels are asked for; custom training cannot be kept to one.
    """
    task, units = configuration.task_of(order.task), order.units
    if len(order.clips) != 1 or {order.extracted, *units["submodel"].tolist()} - {WHOLE}:
        raise DeploymentError("custom training trains whole models; expected: submodels: {scheme: none}")
    if order.broadcast:
        raise DeploymentError("the order has arrays beside the model, which custom training does not read")
    begin, report = time.monotonic(), TrainReport(dummies=order.dummies)
    sums = {name: np.zeros(array.shape) for name, array in order.arrays.items()}
    for client, seed in zip(units["id"].tolist(), units["seed"], strict=True):
        try:
            word = int(rng.client_words(seed.reshape(1), "own loop", 1)[0, 0])
            with generators_from(word >> 1, gpus=True):  # so that no unit's draws depend on another's
                update = _update_of(order.arrays, train_one(client))
        except Exception as error:  # custom training may raise anything; the other clients' updates count
            report.fail(client, one_line(error))
            continue
        options = task.linf_coordinates, task.normalised
        clipped = clip_and_sum(update, [tuple(update)], order.clips, *options, by_layer=task.by_layer)
        for name, total in sums.items():
            total += clipped.sums[name].numpy().reshape(total.shape) * (client not in report.dummies)
        if clipped.failed.any():
            report.fail(client, "its update is not finite")
        else:
            report.add(np.array([client]), clipped)
    report.sums, report.seconds = sums, time.monotonic() - begin
    return report


def _trained_by_loop(
    loop: TrainingLoop, order: RoundOrder, context: Context, external: bool
) -> Callable[[int], Mapping[str, Any]]:
    """Return a function that gives the trained arrays of a unit, by a custom loop.

    Args:
        loop: the custom loop.
        order: with the global model.
        context: of the node.
        external: whether the loop reads its records itself.
    """
    task, device = configuration.task_of(order.task), configuration.device(context)
    dataset = None if external else configuration.dataset(order.task, configuration.text(context, "data"))
    module = None if external else build(task.model, task.input_shape, task.num_classes)

    def train_one(client: int) -> Mapping[str, Any]:
        copies: dict[str, Any] = {name: np.array(array) for name, array in order.arrays.items()}
        model: TrainedModel = copies
        if module is not None:
            model = copy.deepcopy(module)
            model.load_state_dict({name: torch.from_numpy(array) for name, array in copies.items()}, strict=False)
        records = None
        if dataset is not None:
            cohort = dataset.gather(alone := np.array([client]))
            if dataset.lost(alone, cohort.sizes).any():
                raise DataError(dataset.why(client))
            size = int(cohort.sizes[0])
            records = UnitRecords(cohort.inputs[0, :size].copy(), cohort.labels[0, :size].copy())
        about = TrainingContext(client, order.round, task.client, dict(order.config), device, context)
        trained = loop(model, records, about)
        if isinstance(trained, nn.Module):
            return {name: value for name, value in trained.state_dict().items() if name in order.arrays}
        if isinstance(trained, Mapping):
            return trained
        raise TypeError(
            f"train must return the model, a torch module or a dict of arrays, got {type(trained).__name__}"
        )

    return train_one


def _update_of(arrays: Arrays, trained: Mapping[str, Any]) -> dict[str, Tensor]:
    """Subtract the received arrays from the trained ones, as float32 of shape [1, size] by name.

    Raises:
        ValueError: they have other names or shapes.
    """
    if set(trained) != set(arrays):
        raise ValueError(f"the trained model has arrays {sorted(trained)}, not {sorted(arrays)}")
    update = {}
    for name, received in arrays.items():
        value = trained[name]
        value = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        with np.errstate(all="ignore"):  # clipping finds numbers that are not finite
            value = np.asarray(value, dtype=np.float32)
            if value.shape != received.shape:
                raise ValueError(f"the trained array {name} has shape {value.shape}, not {received.shape}")
            update[name] = torch.from_numpy((value - received).reshape(1, received.size))
    return update
