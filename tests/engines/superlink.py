"""Flower's own SuperLink on a port of this process, and nodes that answer with any bytes."""

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2
from flwr.proto.message_pb2 import ObjectTree
from flwr.serverapp import Grid
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.task_identity import TaskIdentity

from fedamp.engines.direct import DirectAnswers, superlink_handlers
from tests.deployment.machines import free_port, wait


class Object:
    """An object as Flower stores it, with those below it.

    Args:
        kind: Flower's name of its type.
        named: whom it names as its children, if others than ``below``.
    """

    def __init__(self, kind: str, below: Sequence["Object"] = (), body: bytes = b"", named: Sequence[str] = ()) -> None:
        self.below = list(below)
        names = ",".join(named or [each.name for each in below])
        self.content = f"{kind} {names} {len(body)}".encode() + b"\0" + body
        self.name = hashlib.sha256(self.content).hexdigest()

    def tree(self) -> ObjectTree:
        return ObjectTree(object_id=self.name, children=[each.tree() for each in self.below])

    def all(self) -> list["Object"]:
        """Itself, then what is below."""
        return [self, *(other for each in self.below for other in each.all())]


def above(*below: Object) -> Object:
    """A message whose one array is in these chunks. What it says itself is nonsense: only the array counts."""
    unique = {each.name: each for each in below}
    order = [list(unique).index(each.name) for each in below]
    told = {"dtype": "uint8", "shape": [1], "stype": "bytes", "arraychunk_ids": order}
    array = Object("Array", list(unique.values()), json.dumps(told).encode())
    return Object("Message", [Object("RecordDict", [Object("ArrayRecord", [array])])], os.urandom(20))


def sent(data: bytes, chunk: int = 5 << 20) -> Object:
    """What an honest node sends: few bytes in a record, more in an array."""
    if len(data) <= 1 << 20:
        return in_record(data)
    return above(*(Object("ArrayChunk", body=data[start : start + chunk]) for start in range(0, len(data), chunk)))


def in_record(data: bytes) -> Object:
    """A message whose one record has these bytes, as Flower writes them."""
    record = Object("ConfigRecord", body=ConfigRecord({"bytes": data}).deflate().partition(b"\0")[2])
    return Object("Message", [Object("RecordDict", [record])], os.urandom(20))


class Node:
    """A registered node, which calls the handlers behind the HTTP routes for nodes."""

    def __init__(self, link: "Link", name: str) -> None:
        self.state, self.run_id = link.state, link.run_id
        self.id = self.state.create_node("", "", name.encode(), 30, name=name)
        assert self.state.activate_node(self.id, 1e6)

    def order(self) -> Message:
        """The next message to it, without its content."""
        found: list[Message] = []

        def came() -> bool:
            found.extend(self.state.get_message_ins(self.id, limit=1))
            return bool(found)

        wait(came, 20, "an order", every=0.01)
        return found[0]

    def push(self, order: Message, reply: Object, kept_back: int = 0, error: str = "", root_last=False) -> list[Object]:
        """Reply with these objects; returns the last ones, which are kept back."""
        message = Message(Error(2, error), reply_to=order) if error else Message(RecordDict(), reply_to=order)
        session = self._header(message, reply.tree())
        objects = reply.all()[::-1] if root_last else reply.all()
        give = len(objects) - kept_back
        self.push_objects(objects[:give], session)
        return objects[give:]

    def push_objects(self, objects: Sequence[Object], session: str = "") -> list[bool]:
        """Whether each was taken; a node of Flower's gives up where it was not."""
        return [self.state.store_object(self.run_id, session, each.name, each.content) for each in objects]

    def intrude(self, size: int) -> None:
        """Send the server a message that it did not ask for."""
        TaskIdentity.node_id, ours = 1, TaskIdentity.node_id
        message = Message(RecordDict(), 1, "train", group_id="g" * size)
        TaskIdentity.node_id = ours
        self._header(message, Object("Message", body=os.urandom(20)).tree())

    def _header(self, message: Message, tree: ObjectTree) -> str:
        from flwr.superlink.servicer.fleet import fleet_handlers

        header = message_to_proto(remove_content_from_message(message))
        header.metadata.message_id = tree.object_id
        request = fleet_pb2.PushMessagesRequest(messages_list=[header], message_object_trees=[tree])
        return fleet_handlers.push_messages(request, self.state).session_id

    def leave(self) -> None:
        self.state.deactivate_node(self.id)


class Link:
    """A SuperLink with one run at a time, which its server plays: without a beat, Flower ends it after a minute."""

    def __init__(self) -> None:
        from flwr.superlink.main import create_app  # takes a second

        self.port, flowers = free_port(), create_app()
        self.state, app = flowers.state.linkstate_factory.state(), DirectAnswers(flowers, superlink_handlers())
        self.server = uvicorn.Server(uvicorn.Config(app, port=self.port, log_level="critical", ws="none"))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.grids: list[Grid] = []
        self.begin()
        self.ended = threading.Event()
        self.beating = threading.Thread(target=self._beat, daemon=True)
        self.beating.start()

    def begin(self, fab: bytes | None = None) -> None:
        """A new run, of the app in a bundle; this process is its server."""
        named = None if fab is None else self.state.store_fab(Fab("", fab, {}))
        self.run_id = self.state.create_run(None, None, named, {}, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP)
        self.task = self.state.get_run_info(run_ids=[self.run_id])[0].primary_task_id
        self.token = self.state.claim_task(self.task)
        self.state.activate_task(self.task)
        TaskIdentity._run_id = TaskIdentity._task_id = TaskIdentity._node_id = None  # else Flower refuses another
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = self.run_id, self.task, 1

    def grid(self) -> Grid:
        """As Flower hands it to a server app."""
        from flwr.superlink.grid import HttpGrid

        grid = HttpGrid(f"127.0.0.1:{self.port}", insecure=True, token=self.token)
        grid.set_run(self.state.get_run_info(run_ids=[self.run_id])[0])
        self.grids.append(grid)
        return grid

    def _beat(self) -> None:
        """Say that the server app is alive; then it has another minute."""
        while not self.ended.wait(5):
            self.state.acknowledge_task_heartbeat(self.task)

    def stop(self) -> None:
        self.ended.set()
        self.beating.join()
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(120)

    def close(self) -> None:
        for grid in self.grids:
            if grid._client is not None:
                grid._disconnect()  # its sockets would stay open, and fail a later test


@contextmanager
def superlink() -> Iterator[Link]:
    """A SuperLink that is running; this process is the server of its run."""
    names = ("_run_id", "_task_id", "_node_id")
    before, link = {name: getattr(TaskIdentity, name) for name in names}, Link()
    link.thread.start()
    try:
        wait(lambda: link.server.started, 20, "the SuperLink to listen", every=0.01)
        yield link
    finally:
        link.stop()
        link.close()
        for name, value in before.items():
            setattr(TaskIdentity, name, value)
