"""Play the real server and client code on the serial engine, with units that an audit changes or removes.

Attacks (:mod:`fedamp.extensions.audit.attack`) and tests use it. Nothing of the server or the client is replaced: only
messages are cut, and records exchanged.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from fedamp.client.app import node_of
from fedamp.client.task import ClientTask
from fedamp.data import Dataset, PaddedRecords
from fedamp.data.stored import Records, StoredDataset
from fedamp.data.table import Table
from fedamp.engines import flower
from fedamp.engines.engines import CLIENT_APP, only, with_faults
from fedamp.engines.simulation import SerialGrid
from fedamp.engines.wire import NO_UNIT, RoundAnswer, RoundOrder
from fedamp.errors import FederationError
from fedamp.federation.kept_answers import KEPT
from fedamp.federation.plan import Plan
from fedamp.federation.scenario import Scenario
from fedamp.server.loop import ask
from fedamp.server.setup import RunInputs, prepare
from fedamp.strategies.aggregation import Aggregate
from fedamp.strategies.pipeline import RoundRelease

PlantedRecords = tuple[NDArray[Any], NDArray[Any]]
"""Inputs [records, ...] and labels [records, ...]."""


def records_of(dataset: Dataset, unit: int) -> PlantedRecords:
    """Return one unit's inputs and labels; a record of zeros where it has none."""
    cohort = dataset.gather(np.array([unit]))
    if cohort.sizes[0]:
        return cohort.inputs[0], cohort.labels[0]
    inputs, labels = (np.zeros((1, *each.shape[2:]), each.dtype) for each in (cohort.inputs, cohort.labels))
    return inputs, labels


class NeighbourDataset:
    """A data set in which some units have the same other records, which are read and checked like stored ones.

    Args:
        dataset: the real one.
        units: ids of the changed units, int64.
        records: theirs.
    """

    def __init__(self, dataset: Dataset, units: NDArray[np.int64], records: PlantedRecords) -> None:
        self._dataset, self._units = dataset, units
        table = Table(f"records of unit {', '.join(map(str, units))}", *records)
        own = Records.all_of(table, dataset.form, dataset.num_classes)
        self._own = StoredDataset(
            num_clients=1,
            input_shape=dataset.input_shape,
            num_classes=dataset.num_classes,
            form=dataset.form,
            training=own,
            offsets=np.array([0, len(table)]),
            testing=own,
        )

    def __getattr__(self, name: str) -> Any:
        """Take everything else from the real data."""
        return getattr(self._dataset, name)

    def sizes(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count records; see :class:`fedamp.data.Dataset`."""
        own = self._own.sizes(np.zeros(1, dtype=np.int64))
        return np.where(np.isin(clients, self._units), own, self._dataset.sizes(clients))

    def cannot_train(self, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say who has a wrong record; see :class:`fedamp.data.Dataset`."""
        return np.where(np.isin(clients, self._units), self._own.untrainable, self._dataset.cannot_train(clients))

    def gather(self, clients: NDArray[np.int64]) -> PaddedRecords:
        """Read records; see :class:`fedamp.data.Dataset`."""
        changed, sizes = np.isin(clients, self._units), self.sizes(clients)
        real, own = self._dataset.gather(clients[~changed]), self._own.gather(np.zeros(changed.sum(), dtype=np.int64))
        longest = int(sizes.max(initial=0))

        def together(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
            both = np.zeros((len(clients), longest, *one.shape[2:]), one.dtype)
            for some, values in ((~changed, one[:, :longest]), (changed, other)):
                both[some, : values.shape[1]] = values
            return both

        return PaddedRecords(together(real.inputs, own.inputs), together(real.labels, own.labels), sizes)


class PlantedFederation:
    """A federation that is played round by round, without files.

    Args:
        scenario: to play.
        units: number of units; default: that of the data.
        canaries: the first units, which alone train. All others answer with an update of zero, and a canary that cannot
            be trained is an error. Default: all units train, and failures count as zero, as in a run.

    Attributes:
        prepared: inputs of the run.
        node: that trains.
        dataset: its real records.
        strategy: with the current model.

    Raises:
        InputError: a scenario that cannot be prepared.
    """

    def __init__(self, scenario: Scenario, units: int | None = None, canaries: int | None = None) -> None:
        self.prepared = prepare(scenario)
        if units is not None:
            self.prepared = self.prepared.with_plan(Plan(scenario, units, self.prepared.plan.seed, answers=KEPT))
        self._local = _PlantedGrid(self.prepared.task, scenario.engine.device, canaries)
        self.node, self.dataset = self._local.node, self._local.node.dataset
        self._start(self.prepared)

    def restart(self, seed: int) -> None:
        """Start again from the initial model, with another seed of the server."""
        plan = self.prepared.plan
        self._start(self.prepared.with_plan(Plan(plan.scenario, plan.units, seed, answers=KEPT)))

    def _start(self, prepared: RunInputs) -> None:
        """Begin with a fresh strategy and, if the scenario has them, faults."""
        self.strategy = prepared.strategy(prepared.state)
        self._grid = with_faults(self._local, prepared.plan.scenario.faults)

    @contextmanager
    def planted(self, units: NDArray[np.int64], records: PlantedRecords | None) -> Iterator[None]:
        """Give units the same other records while the context lasts; None: remove the units."""
        before = self._local.absent, self.node.dataset
        if records is None:
            self._local.absent = units
        else:
            self.node.dataset = cast(Dataset, NeighbourDataset(self.dataset, units, records))
        try:
            yield
        finally:
            self._local.absent, self.node.dataset = before

    def collect(self, round_: int) -> Aggregate:
        """Play a round from the current model up to the sum of its updates, which has no noise yet."""
        return ask(self.strategy, self._grid, round_)

    def release(self, round_: int, aggregate: Aggregate) -> RoundRelease:
        """Release a round, also below quorum, and go over to its model."""
        strategy = self.strategy
        strategy.state, release = strategy.pipeline.release(strategy.state, round_, aggregate, needs_quorum=False)
        return release


class _PlantedGrid(SerialGrid):
    """The serial engine, where some units are absent, and only canaries may train.

    Args:
        task: of the run.
        device: torch's name of the device.
        canaries: how many units train; None: all.

    Attributes:
        node: the client app's own training node.
        absent: ids of units that answer nothing.
    """

    def __init__(self, task: ClientTask, device: str, canaries: int | None) -> None:
        super().__init__(CLIENT_APP, device)
        self.node = node_of(task.to_json(), "", self._node.device, None)  # the client app uses the same one
        self.absent = np.empty(0, dtype=np.int64)
        self._canaries = canaries

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send orders without absent units, and let units that must not train report updates of zero.

        Raises:
            FederationError: a canary could not be trained; a zero in its place would hide a leak.
        """
        messages = list(messages)
        if not messages or messages[0].metadata.message_type != "train":
            return super().send_and_receive(messages, timeout=timeout)
        orders = [RoundOrder.of(each.content) for each in messages]
        units = [order.rows["id"] for order in orders]
        here = [(some != NO_UNIT) & ~np.isin(some, self.absent) for some in units]
        most = np.inf if self._canaries is None else self._canaries
        trains = [there & (some < most) for some, there in zip(units, here, strict=True)]
        kept = [only(*each) for each in zip(messages, trains, strict=True)]
        replies = super().send_and_receive(kept, timeout=timeout)
        if self._canaries is None:
            return replies
        for place, (reply, order) in enumerate(zip(replies, orders, strict=True)):
            answer = RoundAnswer() if reply.has_error() else RoundAnswer.of(reply.content, order)
            if failed := reply.error.reason if reply.has_error() else answer.text:  # a zero would hide a leak
                raise FederationError(f"audit: the canary could not be trained: {failed!s}")
            answer.reported = units[place][here[place]].tolist()
            replies[place] = flower.with_content(reply, answer.content(order))
        return replies
