"""The one place that turns a scenario into a Flower grid: its engine, its faults, and the nodes that it simulates."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedamp import rng
from fedamp.engines import flower
from fedamp.engines.simulation import FIRST_NODE, LOGGER, SerialGrid, SimulationGrid
from fedamp.engines.wire import NO_UNIT, RoundOrder
from fedamp.errors import InputError, ScenarioError, fails_alone, missing
from fedamp.federation.losses import brings_code
from fedamp.federation.plan import Plan
from fedamp.federation.running import Engine, Faults
from fedamp.federation.scenario import Scenario
from fedamp.federation.terms import SecureAggregation
from fedamp.models.custom import is_import_path

CLIENT_APP = "fedamp.client.app:app"
# Operations from which on Ray's start of 5 to 10 s pays; the shipped models take some 10 s for as many on one core.
WORTH_RAY = 1e10
# Operations in a round from which on two workers are faster than one: Ray's messages take 3 to 5 ms a round.
WORTH_MESSAGES = 1e8
LONGEST_WAIT = 0.02  # seconds from sending a round's messages to the death of a worker


def choose(asked: Scenario, work: float, rounds: int) -> tuple[Engine, str]:
    """The engine for ``engine.kind: auto``, ``ray`` or ``serial``, and the reason; results do not depend on it.

    ``work`` is floating-point operations of all rounds, with one record in every gradient step.
    """
    kind, reason = _kind_and_reason(asked, work, work / max(rounds, 1))
    return asked.engine.model_copy(update={"kind": kind}), f"{kind}: {reason}"


def _kind_and_reason(asked: Scenario, work: float, a_round: float) -> tuple[str, str]:
    engine = asked.engine
    if engine.address is not None:
        return "ray", "engine.address is a cluster"
    if asked.faults is not None and asked.faults.killed_workers:
        return "ray", "faults.killed_workers needs workers"
    own = brings_code(asked)
    code = asked.model.name if is_import_path(asked.model.name) else asked.client.loss
    if not _ray_is_installed():
        where = f", so the code of {code} trains in the server's process" if own else ""
        return "serial", f"Ray is not installed{where}"
    if own:
        return "ray", f"the code of {code} trains in processes of its own"
    if engine.workers not in ("auto", 1):
        return "ray", f"engine.workers is {engine.workers}"
    words = "the clients' work, {:.1e} operations{}, is {} what Ray's {} worth, {:.0e}"
    if work < WORTH_RAY:
        return "serial", words.format(work, "", "less than", "start is", WORTH_RAY)
    if a_round < WORTH_MESSAGES:
        return "serial", words.format(a_round, " a round", "less than", "messages are", WORTH_MESSAGES)
    return "ray", words.format(a_round, " a round", "at least", "messages are", WORTH_MESSAGES)


@contextmanager
def open_grid(engine: Engine, log: Path, client_app: str = CLIENT_APP) -> Iterator[SimulationGrid]:
    """The nodes of a simulation, for as long as the context lasts. No process is left running after it. InputError: Ray
    is not installed, or the device or the cluster is not there.

    Args:
        engine: of kind ``ray`` or ``serial`` (:func:`choose`).
        log: file for the output of Flower, Ray and the nodes.
        client_app: import path of the Flower client app, ``package.module:name``.
    """
    grid: SimulationGrid
    if engine.kind == "serial":
        grid = SerialGrid(client_app, engine.device)
    elif engine.kind == "ray":
        if not _ray_is_installed():
            raise InputError(f"engine.kind: ray needs Ray: {missing('ray')}, or engine.kind: serial")
        from fedamp.engines.ray import RayGrid

        grid = RayGrid(client_app, engine, log)
    else:
        raise ValueError(f"engine.kind must be ray or serial here, got {engine.kind}")
    with flower.chatter_to(log, LOGGER):
        grid.__enter__()
        try:
            yield grid
        finally:
            with fails_alone("closing the engine"):  # all rounds are done
                grid.__exit__(*sys.exc_info())


def _ray_is_installed() -> bool:
    try:
        return find_spec("ray") is not None
    except ValueError:  # its import is blocked
        return False


class FaultyGrid:
    """A grid between the server and the real one, with the faults that the scenario asks for.

    Every fault is drawn from its address (faults' seed, round, client), so a run with faults is reproducible and can be
    resumed. A fault depends neither on data nor on the workers. Deadlines are not waited for: a late client trains, and
    its answer comes with those of the next round.
    """

    def __init__(self, grid: Grid, faults: Faults) -> None:
        self._grid, self._faults = grid, faults
        self.simulated = flower.is_simulated(grid)
        self._late: list[Message] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies that come in time, and the late ones of the round before."""
        asked = list(messages)
        if not asked or asked[0].metadata.message_type != "train":
            return list(self._grid.send_and_receive(asked, timeout=timeout))
        prompt, late, round_ = [], [], 0
        for message in asked:
            order = RoundOrder.of(message.content)
            round_ = order.round
            fails, lags = self._failing_and_late(round_, order.rows["id"])
            prompt.append(only(message, ~fails & ~lags))
            if (lags & ~fails).any():
                content = only(message, lags & ~fails).content
                late.append(Message(content, message.metadata.dst_node_id, "train"))
        killing = rng.public_stream(self._faults.seed, "faults workers", round_)
        if killing.random() < self._faults.killed_workers and hasattr(self._grid, "kill_soon"):
            self._grid.kill_soon(int(killing.integers(self.workers)), killing.random() * LONGEST_WAIT)
        replies = list(self._grid.send_and_receive([*prompt, *late], timeout=timeout))
        in_time = {message.metadata.message_id for message in prompt}
        came = [reply for reply in replies if reply.metadata.reply_to_message_id in in_time]
        before = self._late
        self._late = [reply for reply in replies if reply.metadata.reply_to_message_id not in in_time]
        return [*before, *came]

    def _failing_and_late(self, round_: int, clients: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which of the clients never answer, and which do so too late."""
        faults = self._faults
        fails, lags = rng.client_words(rng.client_seeds(faults.seed, "faults", round_, clients), "faults", 2).T
        return rng.happens(fails, faults.failing), rng.happens(lags, faults.late)


def with_faults(grid: Grid, faults: Faults | None) -> Grid:
    """The grid with the faults that the scenario asks for, if any."""
    return grid if faults is None else cast(Grid, FaultyGrid(grid, faults))


def only(message: Message, kept: NDArray[np.bool_]) -> Message:
    """The same message (it gets the same id), for the units in some of its rows."""
    order = RoundOrder.of(message.content)
    units = order.rows.copy()  # the others stay empty, because an answer names units by their rows
    units["id"][~kept] = NO_UNIT
    return flower.with_content(message, replace(order, rows=units).content())


class VirtualNodes:
    """A simulation's grid with one node for each of ``hosts``, a text such as ``0-9``: the units that live there.

    Each worker plays the same nodes throughout the run. A worker that dies takes the memory of its nodes with it.
    """

    simulated = True

    def __init__(self, grid: SimulationGrid, hosts: Sequence[str]) -> None:
        self._grid, self._hosts = grid, hosts
        self._node_of: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> list[int]:
        return [FIRST_NODE + number for number in range(len(self._hosts))]

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, name=str(node - FIRST_NODE)) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages, and return their ids at once."""
        sent = list(messages)
        ids = self._grid.push_messages(list(map(self._for_worker, sent)))
        for message, id_ in zip(sent, ids, strict=True):
            flower.set_message_id(message, id_)
            self._node_of[id_] = message.metadata.dst_node_id
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return self._named(list(self._grid.pull_messages(list(message_ids))))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and wait for the replies; ``timeout`` is in seconds."""
        return self._named(self._grid.collect(self.push_messages(messages), timeout))

    def _for_worker(self, message: Message) -> Message:
        data, workers = message.metadata, list(self._grid.get_node_ids())
        number = data.dst_node_id - FIRST_NODE
        content = RecordDict(
            {**message.content, "node": ConfigRecord({"number": number, "hosts": self._hosts[number]})}
        )
        return Message(content, workers[number % len(workers)], data.message_type, ttl=data.ttl, group_id=data.group_id)

    def _named(self, replies: list[Message]) -> list[Message]:
        for reply in replies:
            flower.set_sender(reply, self._node_of.pop(reply.metadata.reply_to_message_id))
        return replies


def with_all_nodes(grid: SimulationGrid, plan: Plan) -> SimulationGrid:
    """The grid of a plan whose simulation plays secure aggregation's messages, with all its nodes; others as they are.

    ScenarioError: there are more nodes than units.
    """
    asked = plan.scenario.aggregation
    if plan.terms is None or not (isinstance(asked, SecureAggregation) and asked.simulate == "protocol"):
        return grid
    nodes = plan.terms.nodes
    if nodes > plan.units:
        raise ScenarioError(f"aggregation.nodes is {nodes}; expected: at most one for each of {plan.units} units")
    ends = [plan.units * number // nodes for number in range(nodes + 1)]
    return cast(SimulationGrid, VirtualNodes(grid, [f"{first}-{end - 1}" for first, end in pairwise(ends)]))
