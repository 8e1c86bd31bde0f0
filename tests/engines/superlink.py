"""Flower's own SuperLink on a port of this process, and a node that answers with any bytes."""

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2, message_pb2
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.superlink.main import create_app
from flwr.superlink.servicer.fleet import fleet_handlers

from tests.deployment.machines import free_port, wait


def content_of(kind: str, children: Sequence[str], body: bytes) -> bytes:
    """An object as Flower stores it."""
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body


def name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Node:
    """A registered node. It speaks to the handlers behind the HTTP routes of nodes."""

    def __init__(self, link: "Link", name: str) -> None:
        self.link, self.name = link, name
        self.id = link.state.create_node("", "", name.encode(), 30, name=name)
        assert link.state.activate_node(self.id, 1e6)

    def order(self) -> Message:
        """The next message to it, without its content."""
        found = []
        wait(lambda: found.extend(self.link.state.get_message_ins(self.id, limit=1)) or found, 20, "an order", 0.01)
        return found[0]

    def push(self, reply: Message, tree: message_pb2.ObjectTree, contents: Sequence[bytes]) -> None:
        """Send a reply: its header, the tree of its objects, and some of these."""
        header = message_to_proto(remove_content_from_message(reply))
        header.metadata.message_id = tree.object_id
        request = fleet_pb2.PushMessagesRequest(messages_list=[header], message_object_trees=[tree])
        session = fleet_handlers.push_messages(request, self.link.state).session_id
        self.push_objects(contents, session)

    def push_objects(self, contents: Sequence[bytes], session: str = "") -> None:
        for content in contents:
            self.link.state.store_object(self.link.run_id, session, name_of(content), content)

    def answer(
        self,
        reply: Message,
        chunks: Sequence[bytes],
        array: bytes | None = None,
        message: bytes = b"no protobuf \xff",
        keep_back: int = 0,
        kind: str = "ArrayChunk",
    ) -> list[bytes]:
        """Send an array in chunks; returns the objects that are kept back, the last ones."""
        leaves = [content_of(kind, [], chunk) for chunk in chunks]
        names = list(dict.fromkeys(map(name_of, leaves)))
        told = {"dtype": "uint8", "shape": [1], "stype": "numpy.ndarray", "arraychunk_ids": list(range(len(names)))}
        tree = [message_pb2.ObjectTree(object_id=name) for name in names]
        above = []
        for part, body in (
            ("Array", array or json.dumps(told).encode()),
            ("ArrayRecord", b"{}"),
            ("RecordDict", b"{}"),
            ("Message", message),
        ):
            content = content_of(part, [each.object_id for each in tree], body)
            tree = [message_pb2.ObjectTree(object_id=name_of(content), children=tree)]
            above.append(content)
        contents = [*reversed(above), *leaves]
        sent = len(contents) - keep_back
        self.push(reply, tree[0], contents[:sent])
        return contents[sent:]


class Link:
    """A SuperLink with one run, which its server may play for a minute."""

    def __init__(self) -> None:
        self.port = free_port()
        app = create_app()
        self.state = app.state.linkstate_factory.state()
        self.server = uvicorn.Server(uvicorn.Config(app, port=self.port, log_level="error"))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.run_id = self.state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP)
        task = self.state.get_run_info(run_ids=[self.run_id])[0].primary_task_id
        self.token = self.state.claim_task(task)
        self.state.activate_task(task)
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = self.run_id, task, 1

    def grid(self) -> HttpGrid:
        grid = HttpGrid(f"127.0.0.1:{self.port}", insecure=True, token=self.token)
        grid.set_run(self.state.get_run_info(run_ids=[self.run_id])[0])
        return grid


@contextmanager
def superlink() -> Iterator[Link]:
    before = TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id
    link = Link()
    link.thread.start()
    try:
        wait(lambda: link.server.started, 20, "the SuperLink to listen", 0.01)
        yield link
    finally:
        link.server.should_exit = True
        link.thread.join(20)
        TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id = before
