"""Simulate nodes: their grid, its serial engine, and how many workers a machine or cluster gets.

A simulated node hosts all clients that it is asked to train, and answers through the same client app as a node of a
deployment. :mod:`fedamp.engines.engines` opens the grids; :mod:`fedamp.engines.ray` has the parallel one.
"""

import ctypes
import importlib
import logging
import math
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Self

from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from fedamp.base import devices
from fedamp.engines import flower
from fedamp.errors import InputError
from fedamp.federation.running import Engine, share_of_each

LOGGER = "fedamp.engines"
log = logging.getLogger(LOGGER)
FIRST_NODE = flower.SERVER_NODE + 1


class SimulationGrid(flower.OwnGrid):
    """A Flower grid of simulated nodes, as a context manager. Replies come in the order of the messages.

    Attributes:
        simulated: True: no node is another machine with its own data.
        workers: number of nodes; each hosts all clients that it is asked to train.
    """

    simulated = True
    workers: int

    def __enter__(self) -> Self:
        """Start what the nodes need."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing running."""

    def _numbered(self, messages: Iterable[Message]) -> list[Message]:
        """Give each message an id of its own, as Flower's SuperLink does.

        Raises:
            ValueError: a message is for a node that is not there.
        """
        numbered, known = list(messages), set(self.get_node_ids())
        for message in numbered:
            if message.metadata.dst_node_id not in known:
                raise ValueError(f"dst_node_id must be one of {sorted(known)}, got {message.metadata.dst_node_id}")
            flower.set_message_id(message, str(next(self._numbers)))
        return numbered

    @staticmethod
    def _warn_of_late(sent: list[Message], replies: list[Message], timeout: float | None) -> None:
        """Name in the log the nodes that have not answered within ``timeout`` seconds."""
        answered = {reply.metadata.reply_to_message_id for reply in replies}
        for data in (message.metadata for message in sent if message.metadata.message_id not in answered):
            words = "node %d did not answer the %s message of group %r within %.1f s"
            log.warning(words, data.dst_node_id, data.message_type, data.group_id, timeout)


class SimulatedNode:
    """A node of a simulation; it hosts all clients that it is asked to train.

    Args:
        client_app: import path of the Flower client app, ``package.module:name``.
        partition, partitions: number of the node, from 0, and how many there are.
        device: see :mod:`fedamp.base.devices`.
        share: of the GPU's memory that the node may use.

    Attributes:
        app: the client app.
        device: torch's name of the device.
        context: Flower's, with the node's number and device.

    Raises:
        InputError: the device is not there.
    """

    def __init__(self, client_app: str, partition: int, partitions: int, device: str, share: float = 1.0) -> None:
        flower.identify()
        keep_freed_memory()
        self.app: ClientApp = load_app(client_app)
        self.device = device = devices.available(device)
        devices.take_share(device, share)
        config: UserConfig = {"partition-id": partition, "num-partitions": partitions, "device": device}
        self.context = Context(1, FIRST_NODE + partition, config, RecordDict(), {})

    def handle(self, message: Message) -> tuple[Message, str]:
        """Have the app answer a message, with one thread on a CPU.

        Returns:
            The app's reply and an empty string; or an error reply (code 2) and the traceback of what it raised.
        """
        try:
            with devices.one_thread(self.device):
                return self.app(message, self.context), ""
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return flower.error_reply(message, flower.APP_RAISED, reason), traceback.format_exc()


def load_app(path: str) -> Any:
    """Import a Flower app by its path, ``package.module:name``.

    >>> load_app("math:floor")(2.5)
    2
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def keep_freed_memory() -> None:
    """Have glibc keep freed memory for the next step, which asks for the same amount.

    By default it returns blocks of a few megabytes, and the system clears them before each use: a third of the time
    that stacked convolutional models take to train.
    """
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(mmap_threshold, 32 << 20)  # the most that it takes
        mallopt(trim_threshold, 1 << 30)


class InProcessGrid(SimulationGrid):
    """Base of the grids whose nodes answer in this process, when a message is pushed."""

    def __init__(self) -> None:
        super().__init__()
        self._replies: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Have the nodes answer messages now, and keep the replies; returns the ids of the messages."""
        sent = list(messages)
        self._replies |= {reply.metadata.reply_to_message_id: reply for reply in self.send_and_receive(sent)}
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Take the kept replies to these messages, each once."""
        return [self._replies.pop(id_) for id_ in message_ids if id_ in self._replies]


class SerialGrid(InProcessGrid):
    """A Flower grid with one node: this process.

    A message that runs at the deadline is finished, and its reply is dropped.

    Args:
        client_app: import path of the Flower client app, ``package.module:name``.
        device: see :mod:`fedamp.base.devices`.

    Raises:
        InputError: the device is not there.
    """

    workers = 1

    def __init__(self, client_app: str, device: str = "auto") -> None:
        super().__init__()
        self._node = SimulatedNode(client_app, partition=0, partitions=1, device=device)

    def get_node_ids(self) -> list[int]:
        """Return the id of the only node."""
        return [FIRST_NODE]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Have the node answer messages in turn; the log names what came late.

        Args:
            messages: to the only node.
            timeout: seconds in all; None: no limit.

        Returns:
            The replies that came in time, in the order of their messages.
        """
        sent, replies = self._numbered(messages), list[Message]()
        deadline = math.inf if timeout is None else monotonic() + timeout
        for message in sent:
            if monotonic() >= deadline:
                break
            reply, trouble = self._node.handle(flower.copy_message(message))
            if trouble:
                log.warning("node %d: the client app failed\n%s", message.metadata.dst_node_id, trouble)
            if monotonic() < deadline:
                replies.append(reply)
        self._warn_of_late(sent, replies, timeout)
        return replies


@dataclass(frozen=True)
class WorkerResources:
    """The workers of a run, and what each reserves.

    Attributes:
        workers: their number, at least 1.
        device: torch's name of their device.
        cpus: cores that each reserves, at most 1.
        gpus: share of a GPU that each reserves; 0 on a CPU.
    """

    workers: int
    device: str
    cpus: float
    gpus: float


def worker_resources(engine: Engine, cores: float, gpus: float) -> WorkerResources:
    """Decide how many workers a machine or cluster gets; more workers than cores (or GPUs) share them evenly.

    By default each GPU has one: a recorded program does not wait for Python, so a second worker would only halve the
    memory. Results do not depend on the number.

    Args:
        engine: the section of the scenario.
        cores, gpus: as Ray counts them; a GPU that is named by its number is the only one that it sees.

    Raises:
        InputError: CUDA is asked for and there is no GPU; or a GPU is named by its number on a cluster.
    """
    device = engine.device
    if device == "auto":
        device = "cuda" if gpus and (engine.address is not None or devices.here("auto") == "cuda") else "cpu"
    if not devices.is_gpu(device):
        workers = max(1, int(cores)) if engine.workers == "auto" else engine.workers
        return WorkerResources(workers, device, cpus=share_of_each(workers, cores), gpus=0)
    if not gpus:
        raise InputError(f"engine.device: {device} needs a GPU and Ray sees none; expected here: auto, cpu")
    if engine.address is not None and device != "cuda":
        raise InputError(f"engine.device: {device} is one machine's; expected with engine.address: auto, cpu, cuda")
    workers = max(1, int(gpus)) if engine.workers == "auto" else engine.workers
    return WorkerResources(workers, "cuda", cpus=share_of_each(workers, cores), gpus=share_of_each(workers, gpus))
