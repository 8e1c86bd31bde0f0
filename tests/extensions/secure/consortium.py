"""Nodes that have agreed on secure aggregation, in one process, with files of their own and sealed messages."""

from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import Message

from fedamp.engines import flower
from fedamp.extensions.secure.participant import Agreement, join, written
from fedamp.server.loop import ask
from fedamp.server.setup import prepare
from fedamp.strategies.private import PrivateStrategy
from tests.deployed import Deployment
from tests.federations import hosting, small
from tests.orders import answer_in, order_in

FIVE = {f"site{number}": f"{4 * number}-{4 * number + 3}" for number in range(5)}
SECURE = "aggregation={scheme: secure, dropped: 0.2, colluding: 0.2}"
PLAIN_NOISE = "privacy.noise_multiplier=0"


def living(hosts: dict[str, str]) -> tuple[str, str]:
    """The overrides for a digit or more of each unit that lives on a node."""
    units = sum(int(text.split("-")[-1]) - int(text.split("-")[0]) + 1 for text in hosts.values())
    return f"data={{name: digits, clients: {units}}}", hosting(hosts)


class Consortium(Deployment):
    """Five nodes with four clients each, their keys, agreements and memories, and the server's strategy.

    Attributes:
        strategy: the server's.
        dropped: exchange -> names of the nodes whose answers are lost in it.
        spoiled: exchange -> names of the nodes whose answers are bytes of no meaning in it.
        seen: all that the server has received, as (exchange, name, bytes).
        told: the messages to the nodes, by exchange.
    """

    def __init__(self, folder: Path, *overrides: str, hosts: dict[str, str] = FIVE, terms=None) -> None:
        self.prepared = prepare(small(*living(hosts), SECURE, *overrides))
        task, plan = self.prepared.task, self.prepared.plan
        keys = {name: generate_private_key(SECP384R1()) for name in hosts}
        peers = {name: written(key.public_key()) for name, key in keys.items()}
        self.agreement = Agreement(run="test", peers=peers, task=task.digest, terms=terms or task.terms)
        configs = {}
        for name, key in keys.items():
            own = folder / name
            own.mkdir()
            (own / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
            (own / "agreement.json").write_text(self.agreement.to_text())
            join(own / "agreement.json", own / "state", without_noise=True)
            files = {"agreement": str(own / "agreement.json"), "key": str(own / "key"), "state": str(own / "state")}
            configs[name] = {"hosts": hosts[name], **files}
        super().__init__(configs)
        (folder / "agreement.json").write_text(self.agreement.to_text())
        federation = plan.scenario.federation.model_copy(update={"agreement": str(folder / "agreement.json")})
        plan = replace(plan, scenario=plan.scenario.model_copy(update={"federation": federation}))
        self.prepared = self.prepared.with_plan(plan)
        self.folder, self.dropped, self.spoiled, self.seen, self.told = folder, {}, {}, [], {}
        self.strategy: PrivateStrategy = self.prepared.strategy(self.prepared.state)

    def play(self, rounds: int = 1, units_left: frozenset[int] = frozenset()) -> PrivateStrategy:
        """Rounds up to and with their releases."""
        for _ in range(rounds):
            round_ = self.strategy.state.round + 1
            self.strategy.release(round_, ask(self.strategy, self, round_, units_left))
        return self.strategy

    def send_and_receive(self, messages, *, timeout=None) -> list[Message]:
        messages = list(messages)
        exchange = messages[0].metadata.message_type.removeprefix("train.") if messages else ""
        exchange = "masked" if exchange == "train" else exchange
        self.told.setdefault(exchange, []).extend(messages)
        asked, replies = {message.metadata.dst_node_id: message for message in messages}, []
        for reply in super().send_and_receive(messages, timeout=timeout):
            name = self.names[reply.metadata.src_node_id]
            if name in self.dropped.get(exchange, ()):
                continue
            if not reply.has_error() and (data := data_of(reply, asked[reply.metadata.src_node_id])):
                self.seen.append((exchange, name, data))
                if name in self.spoiled.get(exchange, ()):
                    change_data(reply, asked[reply.metadata.src_node_id], b"\xa5" * len(data))
            replies.append(reply)
        return replies

    def ask_node(self, name: str, message: Message) -> str:
        """What a node says to a message of the server's: empty, or why it refuses."""
        node = next(node for node, known in self.names.items() if known == name)
        copy = Message(flower.copy_message(message).content, node, message.metadata.message_type)
        [reply] = Deployment.send_and_receive(self, [copy])
        if not reply.has_error():
            self.seen_last = data_of(reply, message)
        return reply.error.reason if reply.has_error() else ""


def data_of(reply: Message, message: Message) -> bytes:
    """What a node says in an exchange."""
    return answer_in(reply, message).data


def change_data(reply: Message, message: Message, data: bytes) -> None:
    content = replace(answer_in(reply, message), data=data).content(order_in(message))
    reply.content["answer"] = content["answer"]


def plain(
    *overrides: str, hosts: dict[str, str] = FIVE, away: tuple[int, ...] = (), rounds: int = 1
) -> PrivateStrategy:
    """The same rounds with plain aggregation and without noise; the units of nodes that are ``away`` add zero."""
    prepared = prepare(small(*living(hosts), "federation.quorum=0", *overrides))
    grid = Deployment({name: {"hosts": text} for place, (name, text) in enumerate(hosts.items()) if place not in away})
    strategy = prepared.strategy(prepared.state)
    for _ in range(rounds):
        round_ = strategy.state.round + 1
        strategy.release(round_, ask(strategy, grid, round_))
    return strategy
