"""Play a node's part of secure aggregation: from its words to masked words, and from the survivors to its shares.

Each message is answered from bytes that the node keeps itself (:attr:`ProtocolMember.state`), because a node may start
a new process for each. A node answers once about who survived a round: then nobody can have both secrets of a node.

:mod:`fedamp.extensions.secure.participant` stores the state, and knows orders, units and noise; here are words and keys
alone. The primitives are in :mod:`fedamp.extensions.secure.protocol`.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from types import MappingProxyType
from typing import ClassVar, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from pydantic import ConfigDict, TypeAdapter

from fedamp import rng
from fedamp.extensions.secure.protocol import (
    KEY,
    SHARE,
    MemberKeys,
    MemberList,
    ProtocolSettings,
    PublicKey,
    SigningKey,
    WordArray,
    add_masks,
    bytes_to_set,
    check_signature,
    commitment_to,
    derived,
    padded,
    public_part,
    shared_secret,
    shares_of,
    sign,
    unpadded,
)

SEALED = 2 * SHARE + 16  # bytes of the encrypted shares for one neighbour
DIGEST = 32  # bytes of what tells the server a false share from a true one
SHARES = SEALED + 2 * DIGEST  # bytes of a node's second message, for each neighbour


@dataclass
class ProtocolMember:
    """One node in one attempt at a round.

    Attributes:
        settings: of the protocol.
        context: names run, round and attempt; never the same twice.
        name: under which the others know its signing key.
        agreement: names what the signers have agreed on, so that keys count in one run. The server need not know it.
        secret: of this attempt, 32 bytes; all its keys follow from it and the question. Empty after the node has
            unmasked.
        question: digest of what the node is asked to train. An order with another one is another question, which would
            be answered under the same masks.
        last: the last round whose survivors the node has signed.
        listed: the members, as the server sent them; empty before.
        held: the shares of each neighbour (of its mask key, then of its seed) that this node holds. False ones are left
            out.
        summed: whether it has sent its masked words.
        signed: the survivors that it has signed; empty before.
        answered: the survivors for which it has given its shares; empty before.
        answer: its last message, so that the same question has the same answer after the secrets are deleted.
        signers: the nodes that had signed the survivors then.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")

    settings: ProtocolSettings
    context: bytes
    name: str
    agreement: str
    secret: bytes
    question: bytes = b""
    last: int = 0
    listed: bytes = b""
    held: dict[int, bytes] = field(default_factory=dict)
    summed: bool = False
    signed: bytes = b""
    answered: bytes = b""
    answer: bytes = b""
    signers: list[str] = field(default_factory=list)

    @classmethod
    def enter(
        cls, settings: ProtocolSettings, context: bytes, name: str, agreement: str, question: bytes = b"", last: int = 0
    ) -> Self:
        """Begin a new attempt, with a new secret from the operating system.

        Args:
            settings, context, name, agreement, question, last: as the attributes.
        """
        return cls(settings, context, name, agreement, rng.fresh_bytes(KEY), question, last)

    @cached_property
    def mask(self) -> bytes:
        """Private key of the masks, X25519."""
        return derived(self.secret, b"mask", self.question)

    @cached_property
    def encryption(self) -> bytes:
        """Private key of the channels to the neighbours, X25519."""
        return derived(self.secret, b"encryption", self.question)

    @cached_property
    def seed(self) -> bytes:
        """Seed of the node's own mask, which nobody shares."""
        return derived(self.secret, b"seed", self.question)

    def noise_seed(self, content: bytes) -> int:
        """Derive the seed of the noise on this content.

        The same question gets the same answer, so that two answers tell no more than one. Other content gets new noise.
        """
        return int.from_bytes(derived(self.secret, b"noise", self.members.digest + content))

    @property
    def state(self) -> bytes:
        """JSON of the whole attempt. It is secret."""
        return _STATE.dump_json(self)

    @staticmethod
    def of(state: bytes) -> "ProtocolMember":
        """Restore a member from its state."""
        return _STATE.validate_json(state)

    @cached_property
    def members(self) -> MemberList:
        """List of members, as the server sent it."""
        return MemberList.read(self.settings, self.context, self.listed)

    @property
    def number(self) -> int:
        """Number of this node in the list."""
        return self.members.names.index(self.name)

    def keys(self, key: SigningKey) -> bytes:
        """Write the first message: public keys, signed."""
        unsigned = MemberKeys(
            public_part(self.mask), public_part(self.encryption), commitment_to(self.seed), b"", self.last
        )
        return replace(unsigned, signature=sign(key, unsigned.signed(self.agreement, self.context, self.name))).write()

    def shares(
        self, members: bytes, peers: Mapping[str, PublicKey], seen: Mapping[str, int] = MappingProxyType({})
    ) -> bytes:
        """Write the second message: shares of both secrets, encrypted to each neighbour, in the order of their numbers.

        Args:
            members: as the server sent them.
            peers: the public key of each node, from a file of this node.
            seen: the last round that this node has seen each of them sign.

        Raises:
            ValueError: the members are not nodes with valid signatures, one has forgotten what it signed, this node's
                keys are not among them, or it has dealt already.
        """
        if self.listed:  # another dealing would be encrypted with the same keys
            raise ValueError("this node has dealt its shares already")
        found = MemberList.read(self.settings, self.context, members)
        for name, keys in zip(found.names, found.keys, strict=True):
            if name not in peers:
                raise ValueError(f"member {name} is not in this node's agreement")
            check_signature(peers[name], keys.signature, keys.signed(self.agreement, self.context, name), name)
            if keys.last < seen.get(name, 0):
                raise ValueError(f"member {name} has no record of a round that it signed: an older memory was restored")
        if self.name not in found.names:
            raise ValueError("this node is not among the members")
        self.listed = members
        self.__dict__.pop("members", None)
        own = found.keys[self.number]
        if (own.mask, own.encryption) != (public_part(self.mask), public_part(self.encryption)):
            raise ValueError("this node's own keys are not those that it sent")
        neighbours = found.neighbours(self.number)
        holders = [*neighbours, self.number]
        of_mask, of_seed = (
            shares_of(each, holders, self.settings.threshold, int.from_bytes(derived(self.secret, what, found.digest)))
            for each, what in ((self.mask, b"shares of mask"), (self.seed, b"shares of seed"))
        )
        self.held[self.number] = of_mask[self.number] + of_seed[self.number]
        digests = [digest_of(share) for number in holders for share in (of_mask[number], of_seed[number])]
        sealed = [
            self._box(other, to=True).encrypt(bytes(12), of_mask[other] + of_seed[other], found.digest)
            for other in neighbours
        ]
        return b"".join([*sealed, *digests])

    def masked(self, shares: Mapping[int, bytes], words: WordArray) -> bytes:
        """Write the third message: the words with all masks.

        Args:
            shares: the encrypted shares of all neighbours, with their digests, by number. A server that chose among
                them would choose the graph: it could cut off a part of the nodes, and open their sum.
            words: this node's own; they are overwritten.

        Raises:
            ValueError: shares of other nodes; or this was asked before.
        """
        if set(shares) != set(self.members.neighbours(self.number)):
            raise ValueError("the server sends the shares of other nodes; expected: of each neighbour")
        if self.summed:
            raise ValueError("this node has sent its masked words already")
        self.summed = True
        for other, told in shares.items():
            with suppress(InvalidTag):  # a faulty neighbour: its secrets have one holder fewer
                dealt = self._box(other, to=False).decrypt(bytes(12), told[:SEALED], self.members.digest)
                digests = digest_of(dealt[:SHARE]) + digest_of(dealt[SHARE:])
                if digests == told[SEALED:]:  # else this node would be blamed for what was dealt
                    self.held[other] = dealt
        keys = {other: pair_key(self.mask, self.members, self.number, other) for other in shares}
        added = [self.seed_key, *(key for other, key in keys.items() if other > self.number)]
        add_masks(words, added, [key for other, key in keys.items() if other < self.number])
        return words.astype(words.dtype.newbyteorder("<"), copy=False).tobytes()

    @property
    def seed_key(self) -> bytes:
        """Key of the node's own mask."""
        return derived(self.seed, b"own mask", self.members.digest)

    def agree(self, survivors: bytes, key: SigningKey) -> bytes:
        """Write the fourth message: a signature of the survivors, one set in a round.

        Args:
            survivors: a bit for each member.
            key: the node's signing key.

        Raises:
            ValueError: it has signed others, or the set could be of few honest nodes.
        """
        self._check(survivors)
        if self.signed not in (b"", survivors):
            raise ValueError("this node has signed other survivors of this round")
        self.signed = survivors
        return padded(sign(key, self.members.agreed(bytes_to_set(survivors, len(self.members.names)))))

    def unmask(self, survivors: bytes, signatures: Mapping[int, bytes], peers: Mapping[str, PublicKey]) -> bytes:
        """Write the last message: a share for each holder in turn, of its seed if it survived, else of its mask key.

        The shares are in the order of the neighbours and this node's own last; zeros for those that it refused. The
        same survivors get the same answer again. All secrets are deleted: with them and the messages, a later reader of
        this node's disk would know its sum.

        Args:
            survivors: a bit for each member.
            signatures: of the set, by the members' numbers.
            peers: the public key of each node, from a file of this node.

        Raises:
            ValueError: too few survivors, this node is not among them, or too few nodes have signed them; or they were
                others before.
        """
        self._check(survivors)
        if self.answered not in (b"", survivors):
            raise ValueError("this node has unmasked this round for other survivors")
        if self.answer:
            return self.answer
        members = self.members
        found, signers = bytes_to_set(survivors, len(members.names)), []
        for signer in set(signatures) & set(range(len(members.names))):  # each once; -1 would be the last one again
            name = members.names[signer]
            with suppress(ValueError):  # one false signature is not in the way of the others
                check_signature(peers[name], unpadded(signatures[signer]), members.agreed(found), name)
                signers.append(name)
        if (count := len(signers)) < self.settings.signers:
            raise ValueError(f"{count} nodes have signed the survivors; expected: at least {self.settings.signers}")
        answer = []
        for holder in [*members.neighbours(self.number), self.number]:
            both = self.held.get(holder, bytes(2 * SHARE))
            answer.append(both[SHARE:] if holder in found else both[:SHARE])
        self.answered, self.answer, self.signers = survivors, b"".join(answer), signers
        self.secret, self.held = b"", {}
        for key in ("mask", "encryption", "seed"):
            self.__dict__.pop(key, None)
        return self.answer

    def _check(self, survivors: bytes) -> None:
        """Refuse a set of survivors before the words are sent, without this node, or of too few honest nodes."""
        if not self.summed:
            raise ValueError("this node has sent no masked words")
        found = bytes_to_set(survivors, len(self.members.names))
        self.members.check_survivors(found)
        if self.number not in found:
            raise ValueError("this node is not among the survivors")

    def _box(self, other: int, to: bool) -> ChaCha20Poly1305:
        """Make the encryption to a neighbour, or from it; its key is for one message."""
        first, second = (self.number, other) if to else (other, self.number)
        secret = shared_secret(self.encryption, self.members.keys[other].encryption)
        purpose = b"shares " + first.to_bytes(4) + second.to_bytes(4)
        return ChaCha20Poly1305(derived(secret, purpose, self.members.digest))


_STATE = TypeAdapter(ProtocolMember)


def pair_key(mask: bytes, members: MemberList, own: int, other: int) -> bytes:
    """Derive the key of the mask that two nodes share, from the private key of one of them.

    Their numbers are in it: a colluding node that repeats an honest one's public key would cancel that one's mask.

    Args:
        mask: private key of the node ``own``.
        members: with the public key of the node ``other``.
        own, other: numbers of the two nodes.
    """
    purpose = b"pair mask " + min(own, other).to_bytes(4) + max(own, other).to_bytes(4)
    return derived(shared_secret(mask, members.keys[other].mask), purpose, members.digest)


def digest_of(share: bytes) -> bytes:
    """Compute the digest by which the server knows a share.

    It tells nothing about the share, which is uniform among 2**521 numbers.
    """
    return sha256(b"fedamp share\0" + share).digest()
