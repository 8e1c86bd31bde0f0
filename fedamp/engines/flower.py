"""Flower without its output and without copies: the only module that uses Flower's internals."""

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.serverapp import Grid
from flwr.supercore.logger import FLOWER_LOGGER
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

APP_RAISED, NODE_LOST, APP_CRASHED = 2, 5, 8  # codes of error replies, as real Flower gives them
SERVER_NODE = 1
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

log = logging.getLogger("fedamp.server")


class NumpyArray(Array):
    """A Flower array that holds the NumPy array itself, read-only, and serialises it only for Flower's transport.

    Stock arrays copy; this one reaches a worker of the same machine through shared memory.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        view = np.ascontiguousarray(array).reshape(array.shape).view()
        view.flags.writeable = False
        self.__dict__.update(_array=view, dtype=_name_of(view.dtype), shape=view.shape, stype="numpy.ndarray")

    @property
    def data(self) -> bytes:  # type: ignore[override]
        return Array(self._array).data  # type: ignore[attr-defined]

    def numpy(self) -> NDArray[Any]:
        return self.__dict__["_array"]  # type: ignore[no-any-return]

    def deflate(self) -> bytes:
        return Array(self.numpy()).deflate()  # the name of the stock class is part of Flower's wire format

    def __reduce__(self) -> tuple[type["NumpyArray"], tuple[NDArray[Any]]]:
        return NumpyArray, (self.numpy(),)


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return str(dtype)  # as slow in NumPy as all the rest of a message


def to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Named arrays as a Flower record, without copying them: do not write to them afterwards."""
    record = ArrayRecord()  # filled by item: its constructor would make stock arrays of ours
    for name, array in arrays.items():
        record[name] = NumpyArray(array)
    return record


def from_record(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """The named arrays of a Flower record. They may be read-only and shared with other processes."""
    return {name: array.numpy() for name, array in record.items()}


def size(record: ArrayRecord) -> int:
    """Bytes of a record's arrays."""
    return sum(array.numpy().nbytes if isinstance(array, NumpyArray) else len(array.data) for array in record.values())


def identify() -> None:
    """Give this process the identity without which Flower refuses to make messages; one that Flower gave is kept."""
    if TaskIdentity._run_id is None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, SERVER_NODE


def empty_run() -> Run:
    """The run of a simulation."""
    return Run.create_empty(1)


def is_simulated(grid: Grid) -> bool:
    """Whether the nodes of a grid are simulated: workers of ours, or of Flower's own simulation."""
    if getattr(grid, "simulated", False):
        return True
    from flwr.superlink.grid import InMemoryGrid  # only here: it takes a second

    return isinstance(grid, InMemoryGrid)


def answers(messages: Iterable[Message], replies: Iterable[Message]) -> list[Message]:
    """The replies of nodes to the messages that were sent to them; others are logged.

    A sender could write another's name into its reply. The proof is the id of the message, a hash of its content: only
    its receiver knows it.
    """
    came = list(replies)  # before the messages have ids, where a grid gives them on the way
    asked = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
    found = []
    for reply in came:
        sender, node = reply.metadata.src_node_id, asked.get(reply.metadata.reply_to_message_id)
        if sender == node:
            found.append(reply)
        elif sender == SERVER_NODE and node is not None:  # Flower answers in its own name for a node that is gone
            log.warning("node %s is lost: %s", node, reply.error.reason if reply.has_error() else "no reason is given")
        else:
            log.warning("a reply in the name of node %s was left out: it answers nothing that was asked of it", sender)
    return found


def set_message_id(message: Message, message_id: str) -> None:
    """As Flower's SuperLink does on arrival, and our grids before they send."""
    message.metadata.__dict__["_message_id"] = message_id


def copy_message(message: Message) -> Message:
    """A message whose records can be changed without changing the original's; the arrays are the same ones."""
    return with_content(message, RecordDict({name: record.copy() for name, record in message.content.items()}))


def with_content(message: Message, content: RecordDict) -> Message:
    """The same message with other content."""
    return make_message(metadata=message.metadata, content=content)


def message_without_arrays(message: Message) -> tuple[Message, dict[str, ArrayRecord]]:
    """The message without its array records, and these by name."""
    arrays = dict(message.content.array_records)
    rest = RecordDict({name: record for name, record in message.content.items() if name not in arrays})
    return with_content(message, rest), arrays


def error_reply(message: Message, code: int, reason: str) -> Message:
    """The reply of a node that could not do what the message asked."""
    return Message(Error(code, reason), reply_to=message)


@contextmanager
def chatter_to(log: Path, *loggers: str) -> Iterator[None]:
    """Within the context, the lines of Flower's logger and the named ones go to a file and nowhere else."""
    handler = _LogFile(log, delay=True)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    quiet = [FLOWER_LOGGER, *(logging.getLogger(name) for name in loggers)]
    before = [(logger.handlers[:], logger.propagate, logger.level) for logger in quiet]
    for logger in quiet:
        logger.handlers, logger.propagate = [handler], False
        if logger.name.startswith("fedamp"):
            logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, (handlers, propagate, level) in zip(quiet, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
        with suppress(OSError):  # a full disk
            handler.close()


class _LogFile(logging.FileHandler):
    """A log file that may fail, as on a full disk: one warning, and the run goes on."""

    def handleError(self, record: logging.LogRecord) -> None:
        with suppress(Warning):
            warnings.warn(f"{self.baseFilename} cannot be written to; the run goes on without it", stacklevel=2)
