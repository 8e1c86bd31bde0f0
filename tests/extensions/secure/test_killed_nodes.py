"""A node of secure aggregation that is killed between any two steps, and its file of before put back."""

import os
import signal
from collections import defaultdict
from dataclasses import replace
from unittest.mock import patch

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message

from fedamp.engines import flower
from fedamp.engines.wire import RoundAnswer, message_content, sealed_bytes
from fedamp.extensions.secure import participant as secure
from fedamp.extensions.secure.member import ProtocolMember
from fedamp.extensions.secure.protocol import SHARE, SIGNATURE, padded, set_to_bytes, sign
from tests.extensions.secure.consortium import Consortium
from tests.orders import order_in

NODE, EXCHANGES = "site0", ("keys", "shares", "masked", "agree", "unmask")
PARENT = os.getpid()


class Killable(Consortium):
    """``NODE`` answers from its files, and a process of its own answers where SIGKILL is to end it.

    Attributes:
        kill: the exchange, and the number of the write to the disk before which its process is killed.
        killed: where it was killed last.
        writes: exchange -> how many writes it takes.
        files: the node's round files, as each exchange has left them.
        words: list of members -> all words that the node has sent, masked for that list.
        sets: (exchange, round) -> the lists and survivors that it has signed, and those that it has unmasked.
    """

    def __init__(self, folder, *overrides):
        super().__init__(folder, *overrides)
        self.kill, self.killed, self.writes, self.files = None, None, {}, []
        self.words, self.sets = defaultdict(set), defaultdict(set)
        self._app, self.app = self.app, self._answer

    def key(self, name):
        return load_ssh_private_key((self.folder / name / "key").read_bytes(), None)

    @property
    def file(self):
        return next((self.folder / NODE / "state").glob("*.json")).with_suffix(".round")

    def _answer(self, message, context):
        kind = message.metadata.message_type
        if self.names[context.node_id] != NODE or kind == "query":
            return self._app(message, context)
        exchange = "masked" if kind == "train" else kind.removeprefix("train.")
        before = ProtocolMember.of(self.file.read_bytes()) if self.file.exists() else None
        if self.kill and self.kill[0] == exchange:
            child = os.fork()
            if not child:
                self._answer_and_count(message, context)  # ends at its last write, at the latest
                os.kill(os.getpid(), signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
            data, self.killed = b"its process was killed", self.kill
        else:
            self.writes[exchange], data = self._answer_and_count(message, context)
            self._note(message, exchange, data, before)
        if self.file.exists() and (now := self.file.read_bytes()) not in self.files:
            self.files.append(now)
        return Message(message_content(data), reply_to=message)

    def _answer_and_count(self, message, context):
        write, step = secure.write_secret, 0

        def counted(*arguments):
            nonlocal step
            step += 1
            if self.kill and self.kill[1] == step and os.getpid() != PARENT:
                os.kill(os.getpid(), signal.SIGKILL)
            write(*arguments)

        with patch.object(secure, "write_secret", counted):
            reply = sealed_bytes(self._app(message, context).content)
        return step, reply

    def _note(self, message, exchange, data, before):
        """What the node has answered, if it has."""
        order = order_in(message)
        told = order.exchange
        try:
            answer = RoundAnswer.opened(data, order).data
        except ValueError:
            return
        if exchange == "masked":
            self.words[before.listed].add(answer)
        elif exchange in ("agree", "unmask"):
            survivors = bytes(told["survivors"] or told["data"])
            self.sets[exchange, order.round].add((before.listed, survivors))

    def asked(self, exchange, round_):
        """The messages of an exchange to the node."""
        messages = [m for m in self.told.get(exchange, ()) if self.names[m.metadata.dst_node_id] == NODE]
        return [m for m in messages if order_in(m).round == round_]


def questions(consortium, round_, file):
    """What a server that holds the keys of all other nodes may ask the node again about a round, or ask otherwise."""
    for message in consortium.asked("masked", round_):
        yield message
        order = order_in(message)
        other = replace(order, arrays={name: array + 1 for name, array in order.arrays.items()})
        yield flower.with_content(message, other.content())
    member = ProtocolMember.of(file)
    if not member.listed:
        return
    for message in consortium.asked("keys", round_):
        names = member.members.names
        others = {place: name for place, name in enumerate(names) if name != NODE}
        for found in (frozenset(range(len(names))), frozenset(range(len(names))) - {max(others)}):
            survivors, agreed = set_to_bytes(found, len(names)), member.members.agreed(found)
            signed = b"".join(padded(sign(consortium.key(name), agreed)) for name in others.values())
            for told in (
                {"exchange": "agree", "data": survivors},
                {"exchange": "unmask", "survivors": survivors, "data": signed, "numbers": list(others)},
            ):
                size = SIGNATURE if told["exchange"] == "agree" else SHARE * len(names)
                order = order_in(message)
                changed = replace(order, exchange=dict(order.exchange) | told, answer_bytes=size)
                yield flower.with_content(message, changed.content())


@pytest.mark.slow
def test_a_node_killed_at_any_step_answers_no_second_question_from_a_file_put_back(tmp_path):
    consortium = Killable(tmp_path, "rounds=40", "check_in={scheme: all}")
    consortium.play(rounds=2)  # in the first one, it writes down whose units it hosts
    steps = [(exchange, step) for exchange in EXCHANGES for step in range(1, consortium.writes[exchange] + 2)]
    assert len(steps) == 14
    for step in steps:
        before, consortium.kill = len(consortium.files), step
        consortium.play()
        assert consortium.killed == step
        consortium.kill = None
        for file in consortium.files[max(0, before - 1) :]:  # that of the round before, and those of this one
            for question in questions(consortium, consortium.strategy.state.round, file):
                consortium.file.write_bytes(file)
                consortium.ask_node(NODE, question)
        consortium.play()  # a node that misses two rounds is given up
    assert max(map(len, consortium.words.values())) == 1  # the same question has the same answer
    assert max(map(len, consortium.sets.values())) == 1
    assert {exchange for exchange, _ in consortium.sets} == {"agree", "unmask"}
