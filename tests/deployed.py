"""A deployment in one process: real client apps, and sealed messages in the objects that Flower stores and cuts."""

from collections import Counter
from collections.abc import Callable, Iterable

from flwr.app import Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedamp.engines import flower
from fedamp.engines.simulation import load_app
from fedamp.engines.wire import AnswerStatus, RoundAnswer, RoundOrder, message_content, sealed_bytes

FIRST = 2**63 + 7  # as Flower's node ids, which need all 64 bits


class Deployment(Grid):
    """Nodes by their registered names.

    Args:
        nodes: name -> its configuration.
        client_app: import path of the app of all nodes.
        meddle: (name, sealed reply) -> what the node sends instead; None: nothing.

    Attributes:
        orders, replies: bytes of every training message and reply: a list of (name, bytes) for each round.
        stored: ids of all objects of all messages, as Flower's object store names them, with how often each came.
    """

    simulated = False

    def __init__(
        self,
        nodes: dict[str, dict],
        client_app: str = "fedamp.client.app:app",
        meddle: Callable[[str, bytes], bytes | None] = lambda name, data: data,
    ) -> None:
        flower.identify()
        self.app, self.meddle = load_app(client_app), meddle
        self.names = {FIRST + place: name for place, name in enumerate(nodes)}
        self.contexts = {node: Context(1, node, nodes[name], RecordDict(), {}) for node, name in self.names.items()}
        self.orders, self.replies, self.stored = [], [], Counter()

    def set_run(self, run) -> None:
        raise NotImplementedError

    @property
    def run(self):
        return flower.empty_run()

    def create_message(self, *arguments, **named):
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.names)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, name=name) for node, name in self.names.items()]

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout=None) -> list[Message]:
        messages, replies = list(messages), []
        training = bool(messages) and messages[0].metadata.message_type == "train"
        if training:
            self.orders.append([])
            self.replies.append([])
        for number, message in enumerate(messages):
            node = message.metadata.dst_node_id
            name = self.names[node]
            order = RoundOrder.of(message.content)
            data = order.sealed()
            flower.set_message_id(message, f"{len(self.orders)}/{number}")
            answer = self.app(self._passed(flower.with_content(message, message_content(data))), self.contexts[node])
            reply = sealed_bytes(self._passed(answer).content)
            if training:
                self.orders[-1].append((name, data))
                self.replies[-1].append((name, reply))
            reply = self.meddle(name, reply)
            if reply is None:
                continue
            try:
                replies.append(Message(RoundAnswer.opened(reply, order).content(order), reply_to=message))
            except ValueError as error:
                again = getattr(error, "status", None) == AnswerStatus.STARTED_AGAIN
                code = flower.STARTED_AGAIN if again else flower.APP_RAISED
                replies.append(flower.error_reply(message, code, str(error)))
        return replies

    def _passed(self, message: Message) -> Message:
        """The message out of the objects into which Flower takes it apart."""
        objects = get_all_nested_objects(message.content)
        self.stored.update(list(objects))
        content = inflate_object_from_contents(
            message.content.object_id, {name: part.deflate() for name, part in objects.items()}
        )
        return flower.with_content(message, content)
