"""A node of our own at the wire: with a registered key, through the proxy, it sends any bytes to Flower's fleet API.

An honest one trains as fedamp's client app does, in this process. It starts no process a message and hardly pauses, so
a run of many rounds takes seconds.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import PROTOBUF_MEDIA_TYPE, ProtobufRequestContext
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from google.protobuf.message import Message as ProtobufMessage
from httpx import HTTPStatusError

from fedamp import rng
from fedamp.client.app import app
from fedamp.engines import flower
from tests.deployment.machines import Machines
from tests.engines.superlink import Object

LONGEST_SILENCE = 1800.0  # seconds; Flower's longest interval between heartbeats
CALLS: dict[str, Callable[[], ProtobufMessage]] = {
    "register-node": fleet_pb2.RegisterNodeFleetRequest,
    "activate-node": fleet_pb2.ActivateNodeRequest,
    "deactivate-node": fleet_pb2.DeactivateNodeRequest,
    "unregister-node": fleet_pb2.UnregisterNodeFleetRequest,
    "send-node-heartbeat": heartbeat_pb2.SendNodeHeartbeatRequest,
    "pull-messages": fleet_pb2.PullMessagesRequest,
    "push-messages": fleet_pb2.PushMessagesRequest,
    "get-run": run_pb2.GetRunRequest,
    "get-fab": fab_pb2.GetFabRequest,
    "push-object": message_pb2.PushObjectRequest,
    "pull-object": message_pb2.PullObjectRequest,
    "confirm-message-received": message_pb2.ConfirmMessageReceivedRequest,
}
SERVER = 1  # the node id in whose name the server sends
SEND_ALL = 0.3  # seconds in which the server has sent the messages of a round to all nodes
BOMB = 300  # MiB that one chunk of 1 MiB becomes
FORGED = "\x1b[2J\n2026-11-23 06:00:00,000 WARNING fedamp.server: node site0 is a liar\u202e "


@dataclass(frozen=True)
class Order:
    """A message from the server, with the ids of all its objects."""

    message: Message
    names: frozenset[str]


class WireNode:
    """A registered node.

    Args:
        name: of its key, its folder, and itself.
    """

    def __init__(self, machines: Machines, name: str) -> None:
        flower.identify()
        self.name, self.data = name, str(machines.folder / name / "data")
        self.machines = machines
        self.config, self.runtime = {"data": self.data}, 0.0  # seconds of training, as it reports them
        self.state = RecordDict()  # of the run, as a SuperNode keeps it
        key = load_ssh_private_key((machines.folder / name / name).read_bytes(), None)
        self.public = public_key_to_bytes(key.public_key())
        signed = NodeAuthHttpInterceptor(key, key.public_key())
        self.client = FleetHttpClient.from_server_address(
            f"127.0.0.1:{machines.port}",
            insecure=machines.authority is None,
            root_certificates=machines.authority,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperNode"), signed],
        )
        self.id = self.connect()
        self.node = Node(node_id=self.id)

    def connect(self) -> int:
        """The node's id."""
        asked = fleet_pb2.ActivateNodeRequest(public_key=self.public, heartbeat_interval=LONGEST_SILENCE)
        return int(self.client.ActivateNode(asked).node_id)

    def leave(self) -> None:
        self.client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=self.id))

    def close(self) -> None:
        self.client.close()

    def pull(self) -> Order | None:
        """The next message of the server to this node; it stays in the SuperLink."""
        found = self.client.PullMessages(fleet_pb2.PullMessagesRequest(node=self.node))
        if not found.messages_list:
            return None
        [header], [tree] = found.messages_list, found.message_object_trees
        run, root = header.metadata.run_id, tree.object_id
        names = [each.object_id for each in iterate_object_tree(tree)]
        message = inflate_object_from_contents(root, {name: self._object(run, name) for name in names})
        flower.set_message_id(message, root)
        return Order(message, frozenset(names))

    def _object(self, run: int, name: str) -> bytes:
        while True:  # the server sends the header first
            found = self.client.PullObject(message_pb2.PullObjectRequest(node=self.node, run_id=run, object_id=name))
            if found.object_available:
                return found.object_content
            assert found.object_found
            time.sleep(0.05)

    def react(self, order: Order) -> None:
        """Answer a message that has come."""
        self.send(self.answer(order))

    def confirm(self, order: Order) -> None:
        """Say that a message has come: the SuperLink deletes its objects, but for those of other messages."""
        data = order.message.metadata
        asked = message_pb2.ConfirmMessageReceivedRequest(
            node=self.node, run_id=data.run_id, message_object_id=data.message_id
        )
        self.client.ConfirmMessageReceived(asked)

    def exists(self, run: int, name: str) -> bool:
        """Whether the SuperLink has an object, or waits for it."""
        asked = message_pb2.PullObjectRequest(node=self.node, run_id=run, object_id=name)
        return self.client.PullObject(asked).object_found

    def answer(self, order: Order) -> Message:
        """What an honest node answers."""
        context = Context(
            order.message.metadata.run_id,
            self.id,
            self.config,  # type: ignore[arg-type]
            self.state,
            {},
        )
        return app(message=order.message, context=context)

    def send(self, reply: Message) -> None:
        """A message with its content, as Flower's own client app does."""
        contents = [part.deflate() for part in get_all_nested_objects(reply).values()]
        self.push(reply, get_object_tree(reply), contents)

    def push(self, reply: Message, tree: ObjectTree, contents: Iterable[bytes]) -> None:
        """A header, the tree of the objects that it announces, and these."""
        self.push_objects(reply, self.announce(reply, tree), contents)

    def announce(self, reply: Message, tree: ObjectTree) -> str:
        """A header with the tree of its objects; the session in which they may come."""
        header = message_to_proto(remove_content_from_message(reply) if reply.has_content() else reply)
        header.metadata.message_id = tree.object_id
        asked = fleet_pb2.PushMessagesRequest(
            node=self.node,
            messages_list=[header],
            message_object_trees=[tree],
            clientapp_runtime_list=[self.runtime],
        )
        return str(self.client.PushMessages(asked).session_id)

    def push_objects(self, reply: Message, session: str, contents: Iterable[bytes]) -> None:
        of_session = {"node": self.node, "run_id": reply.metadata.run_id, "session_id": session}
        for content in contents:
            name = hashlib.sha256(content).hexdigest()
            asked = message_pb2.PushObjectRequest(**of_session, object_id=name, object_content=content)
            self.client.PushObject(asked)

    def post(self, call: str, body: bytes) -> int:
        """Any bytes to a call of the fleet API; the status of the answer."""
        request = self.client._client.build_request(
            "POST",
            f"{self.client._base_url}/v1/fleet/{call}",
            content=body,
            headers={"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE},
        )
        return self.client._send(ProtobufRequestContext(call, self.node, request)).status_code


def serve(attacker: "Attacker", honest: Sequence[WireNode], ended: Callable[[], bool]) -> None:
    """Answer as each node does, until the run has ended."""
    while not ended():
        mine = attacker.pull()
        if mine is not None:
            attacker.confirm(mine)
            time.sleep(SEND_ALL)
        orders = [(node, order) for node in honest if (order := node.pull()) is not None]
        if mine is not None:  # the others' messages are in the SuperLink still
            attacker.spy(mine, [order for _, order in orders])
            try:
                attacker.react(mine)
            except HTTPStatusError:  # a run that ended meanwhile takes no answer
                if not ended():
                    raise
        for node, order in orders:
            node.confirm(order)
            node.react(order)
        attacker.pause()


class Attacker(WireNode):
    """It answers the first query as it should, and then tries one attack a message.

    Attributes:
        victim: the id of an honest node.
        tried: the names of the attacks so far.
        looks: how often it looked, while others were asked, for the objects of its own message; ``seen``: those that
            were there; ``common``: those that were in the others' messages.
    """

    def __init__(self, machines: Machines, name: str, victim: int) -> None:
        super().__init__(machines, name)
        self.victim, self.tried, self.later, self.left_in = victim, [], [], None
        self.looks, self.seen, self.common = 0, [], set()
        self.attacks = iter(
            [
                *(self.no_protobuf, self.one_chunk_many_times, self.in_the_name_of_another, self.in_flowers_name),
                *(self.escapes_in_an_error, self.twenty_megabytes_of_log, self.envelope_before_its_objects),
                *(self.silence, self.silence, self.ping_of_another),
            ]
        )

    def spy(self, mine: Order, others: Sequence[Order]) -> None:
        """Ask for the objects of its own message, which nobody else should have got, while others have theirs."""
        run = mine.message.metadata.run_id
        if mine.message.metadata.message_type == "train" and others:
            self.looks += 1
            self.seen += [name for name in sorted(mine.names) if self.exists(run, name)]
            self.common |= mine.names & frozenset().union(*(order.names for order in others))

    def pause(self) -> None:
        """After the other nodes have answered."""
        while self.later:
            self.later.pop()()
        if self.left_in is not None and self.rounds() > self.left_in:
            self.left_in = None
            self.connect()
        time.sleep(0.2)  # each look of the three nodes costs all processes on the way

    def react(self, order: Order) -> None:
        if order.message.metadata.message_type == "query" and not self.tried:
            super().react(order)
            return
        attack = next(self.attacks, self.silence)
        self.tried.append(attack.__name__)
        attack(order.message)

    def no_protobuf(self, order: Message) -> None:
        self._push(order, _enclosed(b"\xff no protobuf", _array([b"\0"])))

    def one_chunk_many_times(self, order: Message) -> None:
        self._push(order, _enclosed(_header(order), _array([bytes(1 << 20)] * BOMB)))

    def in_the_name_of_another(self, order: Message) -> None:
        self._push(order, _enclosed(_header(order, src_node_id=self.victim), _array([b"\0"])))

    def in_flowers_name(self, order: Message) -> None:
        """Flower reports in its own name that a node is lost, and why."""
        self._push(order, Object("Message", body=_header(order, FORGED * 30_000, src_node_id=SERVER)))

    def escapes_in_an_error(self, order: Message) -> None:
        self._fail(order, FORGED * 3)

    def twenty_megabytes_of_log(self, order: Message) -> None:
        self._fail(order, FORGED * (20_000_000 // len(FORGED)))

    def envelope_before_its_objects(self, order: Message) -> None:
        """They come, and have no meaning, when all others have answered."""
        reply, root = _reply(order), _enclosed(_header(order), _array([b"\0"]))
        session, contents = self.announce(reply, root.tree()), [each.content for each in root.all()]
        self.later.append(lambda: self.push_objects(reply, session, contents))

    def silence(self, order: Message) -> None:
        """It leaves until the round is over, which the server ends as soon as Flower says so, and is then back."""
        self.leave()
        self.left_in = self.rounds()

    def rounds(self) -> int:
        file = self.machines.server / "run" / "rounds.jsonl"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def ping_of_another(self, order: Message) -> None:
        self._push(order, _enclosed(_header(order, reply_to_message_id="0" * 64), _array([b"\0"])))

    def order_another(self, run: int) -> None:
        """A query to the victim in the server's name, which Flower passes on; a bare answer could be guessed."""
        forged = Message(RecordDict({"config": ConfigRecord({"task": ""})}), self.victim, "query", ttl=600.0)
        forged.metadata.__dict__.update(_run_id=run, _src_node_id=SERVER)
        self.send(forged)

    def _fail(self, order: Message, why: str) -> None:
        root = Object("Message", body=_header(order, FORGED))
        self.push(Message(Error(5, why), reply_to=order), root.tree(), [root.content])

    def _push(self, order: Message, root: Object) -> None:
        self.push(_reply(order), root.tree(), [each.content for each in root.all()])


class Fuzzer:
    """Requests of an attacker with random and crafted bytes, the same ones each time.

    Each is a valid request for one of the calls, or: random bytes, some bytes changed, cut, something added, or fields
    with values that they should not have. It never leaves the federation, and sends no message to another node.

    Attributes:
        statuses: how often each call was answered with which status.
    """

    def __init__(self, attacker: Attacker, seed: int) -> None:
        self.attacker, self.stream, self.run = attacker, rng.stream(seed, "fuzzer"), 0
        self.names = ["", "0" * 64, "\x1b[2J\n", "../../../etc/passwd", "x" * 100_000]
        self.numbers = [0, 1, 2**31, 2**63, 2**64 - 1, attacker.victim]
        self.statuses: Counter[tuple[str, int]] = Counter()

    def see(self, order: Order) -> None:
        """Use the names in a message, and its run, from now on."""
        self.run = order.message.metadata.run_id
        self.names = [*self.names[:5], *sorted(order.names)]

    def send(self, count: int) -> None:
        for _ in range(count):
            call, kind = self._pick(list(CALLS)), self._pick(range(6))
            request = self.valid(call)
            if kind == 5:
                self._craft(request)
            body = request.SerializeToString()
            place = self._pick(range(len(body) + 1))
            noise = bytes(self.stream.integers(256, self._pick([1, 8, 64, 4096])).astype(np.uint8))
            body = [body, noise, body[:place] + noise[:8] + body[place + 8 :], body[:place], body + noise, body][kind]
            self.statuses[call, self.attacker.post(call, body)] += 1

    def valid(self, call: str) -> ProtobufMessage:
        request, me = CALLS[call](), self.attacker
        fields = request.DESCRIPTOR.fields_by_name
        if "public_key" in fields:
            request.public_key = me.public
        if "heartbeat_interval" in fields:
            request.heartbeat_interval = LONGEST_SILENCE
        if "node_id" in fields:  # of DeactivateNode and UnregisterNode: its own would end its attacks
            request.node_id = me.victim
        if "node" in fields:
            request.node.CopyFrom(me.node)
        if "run_id" in fields:
            request.run_id = self.run
        if call == "push-messages":
            data = request.messages_list.add().metadata
            data.run_id, data.message_id, data.message_type = self.run, self._pick(self.names), "train"
            data.src_node_id, data.dst_node_id, data.reply_to_message_id = me.id, SERVER, "1" * 64
            data.created_at, data.ttl = time.time(), 60.0
            request.message_object_trees.add().object_id = data.message_id
        return request

    def _craft(self, request: ProtobufMessage, depth: int = 0) -> None:
        for field in request.DESCRIPTOR.fields:
            if field.name in ("node", "node_id", "public_key", "reply_to_message_id") or not self._pick(range(3)):
                continue
            now = getattr(request, field.name)
            if field.message_type is not None:
                for _ in range(self._pick(range(3)) if hasattr(now, "add") and depth < 4 else 0):
                    self._craft(now.add(), depth + 1)
                continue
            value = self._pick(self.names if field.cpp_type == field.CPPTYPE_STRING else self.numbers)
            if field.type == field.TYPE_BYTES:
                value = value.encode()
            elif field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
                value = self._pick([0.0, -1.0, 1e300, float("inf"), float("nan")])
            with suppress(ValueError, TypeError):  # a number that the field cannot hold
                if hasattr(now, "extend"):
                    now.extend([value] * 3)
                else:
                    setattr(request, field.name, value)

    def _pick(self, values: Sequence[Any]) -> Any:
        return values[int(self.stream.integers(len(values), 1)[0])]


def _reply(order: Message) -> Message:
    return Message(RecordDict(), reply_to=order)


def _header(order: Message, error: str = "", **changes: object) -> bytes:
    """The body of the object of a message."""
    reply = Message(Error(5, error), reply_to=order) if error else remove_content_from_message(_reply(order))
    header = message_to_proto(reply)
    for name, value in changes.items():
        setattr(header.metadata, name, value)
    return header.SerializeToString()


def _array(chunks: Sequence[bytes]) -> Object:
    leaves = {chunk: Object("ArrayChunk", body=chunk) for chunk in chunks}
    order = [list(leaves).index(chunk) for chunk in chunks]
    told = {"dtype": "uint8", "shape": [sum(map(len, chunks))], "stype": "bytes", "arraychunk_ids": order}
    return Object("Array", list(leaves.values()), json.dumps(told).encode())


def _enclosed(body: bytes, array: Object) -> Object:
    record = Object("ArrayRecord", [array], json.dumps({"bytes": array.name}).encode())
    records = Object("RecordDict", [record], json.dumps({"sealed": record.name}).encode())
    return Object("Message", [records], body)
