"""Nodes and a server of secure aggregation in one process; each message is handled from the bytes of a node's state."""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedamp.extensions.secure.collector import Collector
from fedamp.extensions.secure.member import ProtocolMember
from fedamp.extensions.secure.protocol import ProtocolSettings, bytes_to_set

NONE = frozenset[str]()


class Round:
    """A round among ``settings.nodes`` nodes with random words.

    Attributes:
        lost: exchange -> names of the nodes that answer it no more, nor any later one.
        garbage: exchange -> names of the nodes that answer it with random bytes of the right length.
    """

    def __init__(self, settings, bits=32, length=5, seed=0, context=b"round 1", lost=None, garbage=None):
        self.settings, self.bits, self.length, self.context = settings, bits, length, context
        self.lost, self.garbage = lost or {}, garbage or {}
        self.random = np.random.default_rng(seed)
        self.names = [f"node{number:04}" for number in range(settings.nodes)]
        self.signing = {name: Ed25519PrivateKey.from_private_bytes(self.random.bytes(32)) for name in self.names}
        self.peers = {name: key.public_key() for name, key in self.signing.items()}
        kind = np.dtype(f"u{bits // 8}")
        self.words = {name: np.frombuffer(self.random.bytes(length * kind.itemsize), kind) for name in self.names}
        self.states: dict[str, bytes] = {}
        self.gone: set[str] = set()

    def member(self, name):
        return ProtocolMember.of(self.states[name])

    def exchange(self, name_of_it, asked, answer):
        """The replies to an exchange; ``answer`` takes a member and its name."""
        self.gone |= self.lost.get(name_of_it, set())
        replies = {}
        for name in asked:
            if name in self.gone:
                continue
            member = self.member(name)
            replies[name] = answer(member, name)
            self.states[name] = member.state
            if name in self.garbage.get(name_of_it, NONE):
                replies[name] = self.random.bytes(len(replies[name]))
        return replies

    def begin(self):
        """Keys and shares, again while a node drops out between them; returns what each node gets to mask its words."""
        asked, boxes, attempt = self.names, {}, 0
        while not boxes:
            attempt += 1
            context = self.context + bytes([attempt])
            self.collector = Collector(self.settings, context, self.length, self.bits)
            for name in asked:
                self.states[name] = ProtocolMember.enter(self.settings, context, name, "agreement").state
            keys = self.exchange("keys", asked, lambda member, name: member.keys(self.signing[name]))
            self.lists = self.collector.members(keys)
            boxes = self.collector.shares(
                self.exchange("shares", self.lists, lambda member, name: member.shares(self.lists[name], self.peers))
            )
            asked = self.collector.sharing
        return boxes

    def mask(self):
        """Up to the survivors."""
        boxes = self.begin()
        self.survivors = self.collector.masked(
            self.exchange("masked", boxes, lambda m, name: m.masked(boxes[name], self.words[name].copy()))
        )
        return self.survivors

    def agree(self):
        left = [self.collector.list.names[number] for number in sorted(self.collector.survivors)]
        replies = self.exchange("agree", left, lambda m, name: m.agree(self.survivors, self.signing[name]))
        self.signatures = self.collector.agreed(replies)
        return left

    def play(self):
        """The sum that the server learns, and the plain sum of the survivors' words."""
        self.mask()
        left = self.agree()
        shares = self.exchange("unmask", left, lambda m, _: m.unmask(self.survivors, self.signatures, self.peers))
        names = self.collector.list.names
        assert bytes_to_set(self.survivors, len(names)) == {names.index(name) for name in left}
        return self.collector.unmasked(shares), np.sum(
            [self.words[name] for name in left], 0, self.words[left[0]].dtype
        )


def settings(nodes, dropped, colluding):
    found = ProtocolSettings(nodes, dropped, colluding)
    found.check()
    return found
