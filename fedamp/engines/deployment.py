"""Guard the grid of a deployment: one sealed record a message, replies one by one, and an end to every wait.

With Flower's own grid, a registered node has four attacks. Bytes that are no message end the run. An array that repeats
one chunk fills the memory. Parts that never come hold a round. A reply may be in another node's name. Here, none of
them works.

The server app puts :func:`guarded` around Flower's grid. The calls to the SuperLink are in
:class:`fedamp.engines.flower.SuperLink`; whether a reply is a possible answer is decided in :mod:`fedamp.engines.wire`.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, cast

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedamp.engines import flower
from fedamp.engines.wire import AnswerStatus, NodeFailedError, RoundAnswer, RoundOrder, message_content
from fedamp.errors import FederationError

THREADS = 4
SHORTEST_CHUNK = 1 << 20  # bytes; Flower cuts an array in chunks of 5 MiB
OVERHEAD = 1 << 10  # bytes of an object beside its body and the ids of its children
LEAST_PAUSE = 0.001  # seconds; a clock that is asked twice may have stood still
ONCE = 5.0  # seconds for a look that no round waits for
SHORTEST_PAUSE, LONGEST_PAUSE, PAUSE_EACH = 0.2, 5.0, 0.05  # seconds between two looks for replies; for each node
LOOK = 5.0  # seconds between two looks for nodes that were started again
EARLY, LATELY = 0.9, 4  # no look before this share of the shortest time of a node's last answers; how many answers
SOONER = 0.7  # of the time of an answer that the first look finds: it may have been there for long
SETTLE = 2.0  # seconds in which a node sends what is around its array


@dataclass(eq=False)
class _SentOrder:
    """A message to a node, and the part of its reply that has arrived.

    Attributes:
        message: with the order, as the server made it.
        order: that the message holds; it decides the size of the reply.
        size: bytes of the reply.
        sent: when the SuperLink has got the message; None: it has not.
        due: before then, nobody looks for the reply. Both are on the monotonic clock.
        looked: whether somebody has looked for it.
        lately: in how many seconds the node has answered such orders, the latest last.
        arrival: ids of the reply's parts; None: nothing has come.
        arrived: when they have come, on the same clock.
        chunks: ids of the parts of the reply's array, in order; empty: not read yet.
        parts: the chunks that have come, in order.
        reply: as the server gets it; None: it is not complete.
    """

    message: Message
    order: RoundOrder
    size: int  # bytes of the reply
    sent: float | None = None
    due: float = 0.0
    looked: bool = False
    lately: deque[float] = field(default_factory=deque)
    arrival: flower.ReplyArrival | None = None
    arrived: float = 0.0
    chunks: list[str] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    reply: Message | None = None


def failed(message: Message, error: Exception) -> Message:
    """Make the error reply to a message whose answer cannot be read, or says that its node has none.

    Args:
        message: that was sent.
        error: :class:`NodeFailedError`, or any other for an answer that cannot be read.
    """
    again = isinstance(error, NodeFailedError) and error.status == AnswerStatus.STARTED_AGAIN
    code = flower.STARTED_AGAIN if again else flower.APP_RAISED
    return flower.error_reply(message, code, str(error) or type(error).__name__)


def _pause(waiting: int, elapsed: float) -> float:
    """Return the seconds until the next look for a reply.

    A look costs the SuperLink about 10 ms of a processor for each node that is waited for. So the looks take a fifth of
    one at most, and a reply waits for an eighth of the time so far at most, unless there are many nodes.

    Args:
        waiting: for how many replies the look is.
        elapsed: seconds since they were sent, or since the first part of the one has come.
    """
    return max(SHORTEST_PAUSE, min(LONGEST_PAUSE, elapsed / 8), PAUSE_EACH * waiting)


class DeploymentGrid:
    """A grid of Flower's SuperLink that trusts no reply.

    A reply has exactly the bytes that were asked for, or it becomes an error in the name of the node that was asked.
    The SuperLink takes a reply only with the id of its message, and no other node knows that. What the node writes into
    the message beside these bytes is not read. Flower's own errors, for lost nodes, keep Flower's name.

    Args:
        grid: Flower's. All that is not defined here is answered by it.

    Raises:
        FederationError: from every method: the SuperLink does not answer, or has stopped the run.
    """

    simulated = False

    def __init__(self, grid: Grid) -> None:
        self._grid, self._superlink = grid, flower.SuperLink(grid)
        self._pings: dict[int, _SentOrder] = {}
        # By node and bytes of the reply, which tell apart the exchanges of a protocol.
        self._lately: defaultdict[tuple[int, int], deque[float]] = defaultdict(lambda: deque(maxlen=LATELY))
        self._forgetting = ThreadPoolExecutor(1)

    def __getattr__(self, name: str) -> Any:
        """Take everything else from Flower's grid."""
        return getattr(self._grid, name)

    def close(self) -> None:
        """Disconnect from the SuperLink, once it has deleted all replies."""
        self._forgetting.shutdown()
        self._superlink.close()

    def get_node_ids(self) -> list[int]:
        """Return the ids of the connected nodes."""
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self) -> list[NodeInfo]:
        """Return Flower's description of the connected nodes, with the time at which each has connected."""
        try:
            return self._superlink.nodes(monotonic() + self._superlink.patience() + 1)
        except ValueError as error:
            raise FederationError(f"the SuperLink did not list its nodes: {error}") from None

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages for which nobody waits; a node has one at a time.

        Returns:
            The ids of the messages, for :meth:`pull_messages`.
        """
        orders = [self._order(message) for message in messages]
        for order in orders:
            self._advance(order, monotonic() + self._superlink.patience() + 1)
            self._pings[order.message.metadata.dst_node_id] = order
        return [order.message.metadata.message_id for order in orders]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to such messages that are there now, each once."""
        wanted, replies = set(message_ids), []
        for node, order in list(self._pings.items()):
            if order.message.metadata.message_id in wanted:
                self._advance(order, monotonic() + ONCE)
                if order.reply is not None:
                    replies.append(order.reply)
                    del self._pings[node]
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and wait for the replies.

        A node that was started again meanwhile has lost its order; it gets an error reply, so that nobody waits for it.

        Args:
            messages: one a node.
            timeout: seconds in all; None: a day. While the SuperLink does not answer, no node is late.

        Returns:
            The replies that came in time, in the order of their messages.

        Raises:
            FederationError: the SuperLink did not answer, or has stopped the run.
        """
        began = monotonic()
        deadline = began + (86_400 if timeout is None else timeout)
        orders = [self._order(message) for message in messages]
        for order in orders:
            order.lately = self._lately[order.message.metadata.dst_node_id, order.size]
        running: dict[int, Future[None]] = {}
        since, looked, look = self._since(deadline), began, began  # the next look for those that are silent
        self._superlink.leaving.clear()
        pool = ThreadPoolExecutor(THREADS)  # a call with which one node keeps the SuperLink busy delays no other reply
        try:
            while waiting := [n for n, order in enumerate(orders) if order.reply is None]:
                if monotonic() >= deadline:
                    if not self._superlink.trouble:
                        break
                    deadline = self._deadline_after_trouble()
                now = monotonic()
                ready = [number for number in waiting if orders[number].due <= now and orders[number].arrival]
                for order in (orders[number] for number in ready):  # what one keeps back costs no looks for others
                    order.due = now + _pause(1, now - order.arrived)
                if silent := [n for n in waiting if orders[n].due <= now and not orders[n].arrival and now >= look]:
                    look, ready = now + _pause(len(silent), now - began), ready + silent
                with suppress(ValueError, TimeoutError):
                    if ready:
                        self._superlink.arrival(None, deadline)
                for number in ready:
                    if number not in running:
                        running[number] = pool.submit(self._advance, orders[number], deadline)
                soonest = min(orders[n].due if orders[n].arrival else max(orders[n].due, look) for n in waiting)
                until = min(now + LONGEST_PAUSE, deadline, soonest if soonest > now else now + SHORTEST_PAUSE)
                wait(running.values(), timeout=until - monotonic())
                for number in [number for number, future in running.items() if future.done()]:
                    running.pop(number).result()
                if monotonic() > looked + LOOK:
                    latest, looked = self._since(deadline), monotonic()
                    for number in set(waiting) - set(running):
                        self._give_up(orders[number], since, latest)
                if any(order.reply is None for order in orders):
                    sleep(max(LEAST_PAUSE, until - monotonic()))
        except (KeyboardInterrupt, SystemExit):
            self._superlink.leaving.set()  # this process waits for its threads when it ends
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return [order.reply for order in orders if order.reply is not None]

    def _deadline_after_trouble(self) -> float:
        """Wait for the SuperLink, and return until when nodes may send what it could not take meanwhile."""
        with suppress(ValueError):
            self._superlink.nodes(monotonic() + self._superlink.patience() + 1)
        return monotonic() + self._superlink.patience()

    def _since(self, deadline: float) -> dict[int, str]:
        """Return when each connected node has connected, by its id; empty: the SuperLink does not say it now."""
        with suppress(ValueError, TimeoutError):
            return {node.node_id: node.last_activated_at for node in self._superlink.nodes(deadline)}
        return {}

    def _give_up(self, order: _SentOrder, before: dict[int, str], now: dict[int, str]) -> None:
        """Answer for a node that was started again meanwhile: it has forgotten this server, and would refuse the order.

        Flower hands an order out once, and reports it as lost only if we look while the node is away.
        """
        node = order.message.metadata.dst_node_id
        if order.reply is None and node in before and before[node] != now.get(node, before[node]):
            lost = NodeFailedError("it was started again, and its order is lost", AnswerStatus.STARTED_AGAIN)
            order.reply = failed(order.message, lost)

    def _order(self, message: Message) -> _SentOrder:
        """Prepare to send a message, and raise the length that an object of a reply may have."""
        order = RoundOrder.of(message.content)
        size = order.answer_size
        self._superlink.longest = max(self._superlink.longest, size + OVERHEAD)
        return _SentOrder(message, order, size)

    def _advance(self, order: _SentOrder, deadline: float) -> None:
        """Send a message, or take what is there of its reply, without waiting for the node."""
        try:
            if order.sent is not None:
                order.reply = self._reply(order, deadline)
            else:
                self._send(order, deadline)
                order.sent = monotonic()
                order.due = order.sent + EARLY * min(order.lately, default=0.0)
        except TimeoutError:
            return
        except FederationError:
            raise
        except Exception as error:  # whatever it is, it stops no round
            order.reply = failed(order.message, error)
        if order.reply is not None and order.arrival is not None:
            self._forgetting.submit(self._forget, order.arrival.message_id, monotonic() + SETTLE)

    def _forget(self, message_id: str, settled: float) -> None:
        """Delete a reply when its node has sent all of it: else the node would say that it could not send it."""
        sleep(max(0.0, settled - monotonic()))
        with suppress(ValueError, TimeoutError, FederationError):
            if not self._superlink.trouble:  # else the end of this process would wait for each of them
                self._superlink.forget(message_id, monotonic() + ONCE)

    def _send(self, order: _SentOrder, deadline: float) -> None:
        """Send the sealed order in a message of its own, and give its id to the server's message."""
        message, content = order.message, message_content(order.order.sealed())
        data = message.metadata
        copy = Message(content, data.dst_node_id, data.message_type, ttl=data.ttl, group_id=data.group_id)
        flower.set_message_id(message, self._superlink.push(copy, deadline))

    def _reply(self, order: _SentOrder, deadline: float) -> Message | None:
        """Return the reply once all of it is there; else None. An answer of another form raises ValueError."""
        if order.arrival is None:
            order.arrival = self._superlink.arrival(order.message, deadline)
            if order.arrival is not None and order.sent is not None:
                order.arrived = order.due = monotonic()
                order.lately.append((monotonic() - order.sent) * (1.0 if order.looked else SOONER))
            order.looked = True
        if (arrival := order.arrival) is None:
            return None
        if arrival.error is not None:
            return arrival.error
        if not self._is_complete(order, arrival, deadline):
            return None
        data = b"".join(order.parts)
        if not arrival.array:
            data = data[-order.size :]  # a record's names and types come first
        content = RoundAnswer.opened(data, order.order).content(order.order)
        return Message(content, reply_to=order.message)

    def _is_complete(self, order: _SentOrder, arrival: flower.ReplyArrival, deadline: float) -> bool:
        """Take the chunks of a reply's array that are there, and say whether it is complete.

        Raises:
            ValueError: it has more or longer parts than the asked bytes need, or other parts than it says.
        """
        if not arrival.array:
            order.chunks = list(arrival.chunks)
        elif not order.chunks:
            if len(arrival.chunks) > 1 + order.size // SHORTEST_CHUNK:
                raise ValueError(f"its answer has {len(arrival.chunks)} parts")
            found = self._superlink.object(arrival.array, OVERHEAD + 100 * len(arrival.chunks), deadline)
            if found is None:
                return False
            order.chunks = found[0]
            if len(order.chunks) != len(arrival.chunks) or set(order.chunks) != arrival.chunks:
                raise ValueError("its answer has other parts than it says")
        for name in order.chunks[len(order.parts) :]:
            longest = order.size - sum(map(len, order.parts)) + OVERHEAD
            found = self._superlink.object(name, longest, deadline)
            if found is None:
                return False
            order.parts.append(found[1])
        return True


@contextmanager
def guarded(grid: Grid) -> Iterator[Grid]:
    """Put Flower's grid of a deployment behind this boundary, and give other grids as they are.

    When the context ends, all replies have been deleted. After the run, the SuperLink would refuse to do it.
    """
    if not flower.is_deployed(grid):
        yield grid
        return
    with closing(DeploymentGrid(grid)) as ours:
        yield cast(Grid, ours)
