"""Use Flower without its output and without copies. Only servers and nodes use more of Flower's internals.

So this is the file to read when a new version of Flower breaks something; then come :mod:`fedamp.engines.direct` and
:mod:`fedamp.client.node`. It knows arrays, messages, grids and the SuperLink, and nothing of rounds or privacy.
"""

import itertools
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from threading import Event, Lock
from time import monotonic, time
from typing import Any

import httpx
import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import HEARTBEAT_PATIENCE
from flwr.common.serde import message_to_proto
from flwr.proto import message_pb2, runtime_pb2
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.constant import HEAD_BODY_DIVIDER, HEAD_VALUE_DIVIDER
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.logger import FLOWER_LOGGER
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from fedamp.base import devices
from fedamp.base.files import as_its_folder
from fedamp.base.log_lines import LONGEST_RECORD, JsonRecords, wants_json
from fedamp.base.text import visible
from fedamp.errors import FedampError, FederationError

APP_RAISED, NODE_LOST, APP_CRASHED = 2, 5, 8  # codes of error replies, as real Flower gives them
STARTED_AGAIN = 1001  # ours: the node has forgotten the server
SERVER_NODE = 1
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

log = logging.getLogger("fedamp.server")


class NumpyArray(Array):
    """A Flower array that holds the NumPy array itself, read-only, and serialises it only for Flower's transport.

    Stock arrays copy; this one reaches a worker of the same machine through shared memory.

    Args:
        array: of any dtype and shape; a contiguous one is not copied, so it must not be written to afterwards.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        view = np.ascontiguousarray(array).reshape(array.shape).view()
        view.flags.writeable = False
        self.__dict__.update(_array=view, dtype=_name_of(view.dtype), shape=view.shape, stype="numpy.ndarray")

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """Return Flower's bytes of the array, as a stock array has them."""
        return Array(self._array).data  # type: ignore[attr-defined]

    def numpy(self) -> NDArray[Any]:
        """Return the array itself, read-only."""
        return self.__dict__["_array"]  # type: ignore[no-any-return]

    def deflate(self) -> bytes:
        """Write the array as Flower's wire format has it: the stock class's name is part of the bytes."""
        return Array(self.numpy()).deflate()  # the name of the stock class is part of Flower's wire format

    def __reduce__(self) -> tuple[type["NumpyArray"], tuple[NDArray[Any]]]:
        """Pickle the array as a buffer, which Ray places in shared memory."""
        return NumpyArray, (self.numpy(),)


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """Name a dtype; ``str`` of it takes as long in NumPy as all the rest of a message."""
    return str(dtype)  # as slow in NumPy as all the rest of a message


def to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Put named arrays into a Flower record, without copying them: do not write to them afterwards."""
    record = ArrayRecord()  # filled by item: its constructor would make stock arrays of ours
    for name, array in arrays.items():
        record[name] = NumpyArray(array)
    return record


def from_record(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Return the named arrays of a Flower record. They may be read-only and shared with other processes."""
    return {name: array.numpy() for name, array in record.items()}


def size(record: ArrayRecord) -> int:
    """Count the bytes of a record's arrays."""
    return sum(array.numpy().nbytes if isinstance(array, NumpyArray) else len(array.data) for array in record.values())


def identify() -> None:
    """Give this process the identity without which Flower refuses to make messages; one that Flower gave is kept."""
    if TaskIdentity._run_id is None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, SERVER_NODE


def empty_run() -> Run:
    """Return Flower's description of a run, for a simulation."""
    return Run.create_empty(1)


_deployed = False


def deployed_here() -> None:
    """Declare that this process is a node of a deployment that another framework carries.

    :func:`in_supernode` is true from then on: messages must be sealed, and the server is not told why a unit failed.
    """
    global _deployed
    _deployed = True


class OwnGrid(Grid):
    """A Flower grid that no SuperLink serves: the common part of simulated grids and those of other frameworks."""

    def __init__(self) -> None:
        identify()
        self._run = empty_run()
        self._numbers = itertools.count(1)  # of messages

    def set_run(self, run: Run) -> None:
        """Take the description of the run that Flower or the server gives."""
        self._run = run

    @property
    def run(self) -> Run:
        """Return Flower's description of the run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Make a message to a node, as Flower's ``Grid`` asks for."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


def in_supernode() -> bool:
    """Say whether this process is a node of a deployment: of a SuperNode, or of another framework's node."""
    return _deployed or "flwr.supernode.runtime.run_clientapp" in sys.modules


def is_deployed(grid: Grid) -> bool:
    """Say whether a grid is that of Flower's SuperLink."""
    from flwr.superlink.grid import HttpGrid  # only here: it takes a second

    return isinstance(grid, HttpGrid)


def is_simulated(grid: Grid) -> bool:
    """Say whether the nodes of a grid are simulated: workers of ours, or of Flower's own simulation."""
    if getattr(grid, "simulated", False):
        return True
    from flwr.superlink.grid import InMemoryGrid  # only here: it takes a second

    return isinstance(grid, InMemoryGrid)


def answers(messages: Iterable[Message], replies: Iterable[Message], name: Callable[[int], str] = str) -> list[Message]:
    """Return the replies of nodes to the messages that were sent to them; log and drop all others.

    A reply is dropped that answers no message, or comes from another node than the message went to.

    Args:
        messages: as sent; a grid may give them ids while it sends.
        replies: as received.
        name: gives the name of a node for the log.
    """
    came = list(replies)  # before the messages have ids, where a grid gives them on the way
    asked = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
    found = []
    for reply in came:
        sender, node = reply.metadata.src_node_id, asked.get(reply.metadata.reply_to_message_id)
        if sender == node:
            found.append(reply)
        elif sender == SERVER_NODE and node is not None:  # Flower answers in its own name for a node that is gone
            log.warning("node %s is lost", name(node))
        else:
            log.warning("a reply in the name of node %s was left out: it answers no request", sender)
    return found


def seconds_since_heard(node: NodeInfo) -> float | None:
    """Return how long ago the SuperLink has heard of a node; None: it does not say.

    A node sends a sign of life every half minute.

    Args:
        node: as the SuperLink lists it, now.
    """
    if not node.HasField("online_until"):
        return None
    return time() - node.online_until + HEARTBEAT_PATIENCE * node.heartbeat_interval


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, as Flower's SuperLink does on arrival, and our grids before they send."""
    message.metadata.__dict__["_message_id"] = message_id


def copy_message(message: Message) -> Message:
    """Copy a message so that its records can change without the original's; the arrays are the same ones."""
    return with_content(message, RecordDict({name: record.copy() for name, record in message.content.items()}))


def with_content(message: Message, content: RecordDict) -> Message:
    """Return the same message with other content."""
    return make_message(metadata=message.metadata, content=content)


def message_without_arrays(message: Message) -> tuple[Message, dict[str, ArrayRecord]]:
    """Divide a message into one without its array records, and these by name."""
    arrays = dict(message.content.array_records)
    rest = RecordDict({name: record for name, record in message.content.items() if name not in arrays})
    return with_content(message, rest), arrays


def timely_reply(content: RecordDict, order: Message) -> Message:
    """Make a reply that Flower takes, also where this machine's clock is ahead of the server's.

    A reply is dropped after its order's last moment. An order that is handed out has not reached it by the server's
    clock, so neither has the reply.

    Args:
        content: of the reply.
        order: the message from the server.
    """
    reply = Message(content, reply_to=order)
    data, asked = reply.metadata, order.metadata
    data.created_at = min(data.created_at, asked.created_at + asked.ttl / 2)
    data.ttl = asked.created_at + asked.ttl - data.created_at
    return reply


def error_reply(message: Message, code: int, reason: str, lost: bool = False) -> Message:
    """Make the reply of a node that could not do what the message asked.

    Args:
        message: that was sent.
        code: of the error, as Flower numbers them (``APP_RAISED`` and the others of this module).
        reason: in words.
        lost: whether the reply comes in Flower's name, because the node is lost.
    """
    reply = Message(Error(code, reason), reply_to=message)
    if lost:
        reply.metadata.__dict__["_src_node_id"] = SERVER_NODE
    return reply


@dataclass(frozen=True)
class ReplyArrival:
    """The ids of what has arrived in reply to a message: an error, a record without arrays, or an array in pieces.

    Attributes:
        message_id: of the reply.
        error: Flower's error reply; None: there is a record.
        array: id of the array's object; empty: the record has no array.
        chunks: ids of its pieces, without order; without an array, the id of the record.
    """

    message_id: str
    error: Message | None = None
    array: str = ""
    chunks: frozenset[str] = frozenset()


class SuperLink:
    """Flower's SuperLink, as the server of a deployment calls it. Nothing of a reply is inflated.

    Each call ends by its deadline, in seconds of the monotonic clock. Several threads may call at once.

    Args:
        grid: Flower's ``HttpGrid``, whose address, certificate and identity are used.

    Attributes:
        longest: bytes of an object that is pulled.
        trouble: why the last call was not answered; empty: it was.
        silent_since: when the first of the calls was made that were not answered, by the monotonic clock.
        leaving: set when no call shall be tried again.

    Raises:
        FederationError: from every method: nobody has answered for :meth:`patience` seconds, or the run was stopped.
        TimeoutError: from every method: it is busy with this call, or the deadline has come.
        ValueError: from every method: it cannot give what was asked for, or what a node sent is too long or of another
            form.
    """

    PATIENCE = 60.0
    BUSY = 30.0  # seconds for one try
    LONGEST_HEADER, LONGEST_REASON = 1 << 22, 10_000  # bytes; letters

    def __init__(self, grid: Any) -> None:
        self._grid, self.longest, self.leaving, self._lock = grid, 0, Event(), Lock()
        self.trouble, self.silent_since = "", 0.0
        interceptors = grid._runtime_client._interceptors  # that client would try for ever
        self._client = RuntimeHttpClient.from_server_address(grid._addr, grid._insecure, grid._cert, interceptors)
        self._client._client.event_hooks = {"response": [self._check_length]}
        self.close = self._client.close

    def patience(self) -> float:
        """Return the seconds to wait for a SuperLink: longer where each core has several processes to run."""
        return self.PATIENCE * devices.patience_factor()

    def nodes(self, deadline: float) -> list[NodeInfo]:
        """Return the connected nodes."""
        return list(self._call("GetNodes", runtime_pb2.GetNodesRequest(), deadline).nodes)

    def push(self, message: Message, deadline: float) -> str:
        """Send a message with all its objects; return its id."""
        with no_object_id_recompute():
            set_message_id(message, message.object_id)
            objects = get_all_nested_objects(message)
            header, tree = message_to_proto(remove_content_from_message(message)), get_object_tree(message)
            request = runtime_pb2.PushAppMessagesRequest(messages_list=[header], message_object_trees=[tree])
            sent = self._call("PushMessages", request, deadline)
            for name in sent.objects_to_push:
                part = {"object_id": name, "object_content": objects[name].deflate(), "session_id": sent.session_id}
                self._call("PushObject", message_pb2.PushObjectRequest(**part, **self._ours), deadline)
        return message.metadata.message_id

    def arrival(self, order: Message | None, deadline: float) -> ReplyArrival | None:
        """Return what has come in reply to a message, told once; None: nothing yet.

        Args:
            order: the message that was sent. None: what nodes sent unasked is dropped, which would make another reply
                too long.
            deadline: on the monotonic clock.

        Raises:
            ValueError: the reply is not one sealed record; or as every method.
        """
        message_id = order.metadata.message_id if order else ""
        request = runtime_pb2.PullAppMessagesRequest(message_ids=[message_id] if order else [])
        found = self._call("PullMessages", request, deadline)
        for header, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            data = header.metadata
            if order is None or data.reply_to_message_id != message_id:
                continue
            if header.HasField("error"):
                reason = header.error.reason[: self.LONGEST_REASON] or "no reason is given"
                # This header's sender is known to the SuperLink; within the message it is the node's to choose.
                lost = data.src_node_id == SERVER_NODE
                error = error_reply(order, header.error.code, reason, lost)
                return ReplyArrival(data.message_id, error)
            for depth in range(3):  # message, records, record
                if depth == 2 and not tree.children:
                    return ReplyArrival(data.message_id, None, "", frozenset([tree.object_id]))
                if len(tree.children) != 1:
                    raise ValueError("its answer is not one sealed record; expected: as fedamp.client.app answers")
                [tree] = tree.children
            chunks = frozenset(part.object_id for part in tree.children)
            return ReplyArrival(data.message_id, None, tree.object_id, chunks)
        return None

    def object(self, object_id: str, longest: int, deadline: float) -> tuple[list[str], bytes] | None:
        """Pull an object of a reply, without inflating it.

        Args:
            object_id: its hash.
            longest: bytes that its body may have.
            deadline: on the monotonic clock.

        Returns:
            The ids of its children, in order, and its body; None: it is not there yet.

        Raises:
            ValueError: it was deleted, or is too long; or as every method.
        """
        request = message_pb2.PullObjectRequest(object_id=object_id, **self._ours)
        found = self._call("PullObject", request, deadline)
        if not found.object_found:
            raise ValueError("a part of its answer is missing")
        if not found.object_available:
            return None
        if len(found.object_content) > longest:
            raise ValueError("a part of its answer is too long")
        head, _, body = found.object_content.partition(HEAD_BODY_DIVIDER)
        _, _, rest = head.decode("ascii").partition(HEAD_VALUE_DIVIDER)
        return rest.partition(HEAD_VALUE_DIVIDER)[0].split(","), body

    def forget(self, message_id: str, deadline: float) -> None:
        """Delete what a node sent, so that the SuperLink's memory does not grow over the rounds."""
        request = message_pb2.ConfirmMessageReceivedRequest(message_object_id=message_id, **self._ours)
        self._call("ConfirmMessageReceived", request, deadline)

    @property
    def _ours(self) -> dict[str, Any]:
        """Return the fields by which a request names the server and the run."""
        return {"node": Node(node_id=SERVER_NODE), "run_id": self._grid.run.run_id}

    def _call(self, method: str, request: Any, deadline: float) -> Any:
        """Call a method of the SuperLink, again and again while it cannot be reached, and translate its errors."""
        began, patience = monotonic(), self.patience()
        while True:
            # Silence counts from its beginning, not from this call: a round's deadlines come again and again.
            until = min(deadline, (self.silent_since if self.trouble else began) + patience)
            self._client._client.timeout = min(self.BUSY, max(1.0, until - monotonic()))
            try:
                answer = getattr(self._client, method)(request)
                self.trouble = ""
                return answer
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                if status in (401, 403):
                    raise FederationError(f"the SuperLink has stopped this run (HTTP {status})") from None
                raise ValueError(f"the SuperLink fails on it (HTTP {status})") from None
            except httpx.TransportError as error:
                if isinstance(error, httpx.ReadTimeout) and method.startswith("Pull"):
                    raise TimeoutError(f"the SuperLink is busy with {method}") from None
                trouble = f"{type(error).__name__}: {error}"
            with self._lock:  # one line of several threads
                if not self.trouble:
                    self.silent_since = began
                    told = trouble, patience, devices.busy_words()
                    log.warning("the SuperLink does not answer (%s); trying again for %g s%s", *told)
                self.trouble = trouble
                silence = monotonic() - self.silent_since
            if silence >= patience:
                told_busy = devices.busy_words()
                raise FederationError(f"the SuperLink has not answered for {patience:g} s ({trouble}){told_busy}")
            if monotonic() >= deadline or self.leaving.is_set():
                raise TimeoutError(trouble)
            self.leaving.wait(min(1.0, max(0.0, until - monotonic())))

    def _check_length(self, response: httpx.Response) -> None:
        """Refuse a response by its announced length, before the body is read."""
        path = response.request.url.path.rpartition("/")[2]
        most = {"pull-object": self.longest, "pull-messages": self.LONGEST_HEADER}.get(path)
        if most is not None and int(response.headers.get("content-length", most + 1)) > most:
            raise ValueError(f"a part of its answer is longer than {most} bytes")


def _in_one_line(record: logging.LogRecord) -> bool:
    """Shorten the log record of an app's error to its line: Flower logs a traceback, in which that line is lost."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(error, FedampError):
        record.msg, record.args, record.exc_info = f"{error.kind}: {error}", (), None
    return True


FLOWER_LOGGER.addFilter(_in_one_line)


@contextmanager
def chatter_to(log: Path, *loggers: str) -> Iterator[None]:
    """Send the lines of Flower's logger and the named ones to a file and nowhere else, while the context lasts.

    Contexts may end in any order: the loggers write where the latest one that still lasts says.

    Args:
        log: the file; it is made with the first line.
        loggers: names of further loggers. Those of fedamp log from level INFO on.
    """
    handler = _LogFile(log, delay=True)
    handler.setFormatter(JsonRecords() if wants_json() else _Margin(LOG_FORMAT))
    quiet = [FLOWER_LOGGER, *(logging.getLogger(name) for name in loggers)]
    for logger in quiet:
        settings = _SETTINGS.setdefault(logger, {None: (logger.handlers[:], logger.propagate, logger.level)})
        settings[handler] = ([handler], False, logging.INFO if logger.name.startswith("fedamp") else logger.level)
        _set_latest(logger)
    try:
        yield
    finally:
        for logger in quiet:
            del _SETTINGS[logger][handler]
            _set_latest(logger)
            if len(_SETTINGS[logger]) == 1:
                del _SETTINGS[logger]
        with suppress(OSError):  # a full disk
            handler.close()


# By logger and context, the latest last: handlers, whether lines propagate, and the level. None: outside all contexts.
_SETTINGS: dict[logging.Logger, dict[logging.Handler | None, tuple[list[logging.Handler], bool, int]]] = {}


def _set_latest(logger: logging.Logger) -> None:
    """Give a logger the settings of the latest context that lasts."""
    logger.handlers, logger.propagate, level = list(_SETTINGS[logger].values())[-1]
    logger.setLevel(level)


class _Margin(logging.Formatter):
    """Formats a record so that only its first line begins at the margin: no text of a node can look like a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record of at most ``LONGEST_RECORD`` letters, its further lines indented."""
        return "\n    ".join(map(visible, super().format(record)[:LONGEST_RECORD].splitlines()))


class _LogFile(logging.FileHandler):
    """A log file, as private as its folder, that may fail, as on a full disk: it warns, and the run goes on."""

    def _open(self) -> TextIOWrapper:
        """Open the file where the first line is written."""
        return open(self.baseFilename, "a", encoding="utf-8", opener=as_its_folder)

    def handleError(self, record: logging.LogRecord) -> None:
        """Warn once that the file cannot be written to."""
        with suppress(Warning):
            warnings.warn(f"{self.baseFilename} cannot be written to; the run goes on without it", stacklevel=2)
