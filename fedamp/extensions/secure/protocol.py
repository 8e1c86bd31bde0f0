"""Compute what all parties of secure aggregation share: thresholds, the graph of neighbours, masks, and signed keys.

The protocol is SecAgg+ (Bell, Bonawitz, Gascón, Lepoint, Raykova 2020) on words modulo a power of two, with changes
against a server that lies. Nodes know each other's keys from their own files, and see the whole list of members, whose
digest enters all keys. More than half of the nodes sign the set of survivors before any gives a share.

Claim: whatever the server and the colluding nodes do, they learn at most one sum of words in a round. It is over all
honest survivors, at least nodes - dropped - colluding of them. Why: two signed sets would have an honest signer in
common, who signs once a round, so there is one list and one set. The secret of each honest node that this set does not
name stays hidden, because ``threshold`` is more than the colluding holders. So the masks between honest survivors stay;
each cancels in sums with both of its ends alone, and the honest survivors are connected
(:attr:`ProtocolSettings.neighbours`).

:mod:`fedamp.extensions.secure.member` and :mod:`fedamp.extensions.secure.collector` play the two sides.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, Self

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedamp import rng

COMPLETE = 64  # nodes up to which each is the neighbour of all others
# Probabilities of a graph without its promise, and of a round that fails by chance. Colluding nodes choose their keys
# last, so they can try graphs: with 2**60 of them, one is bad with probability 2**-40.
INSECURE, FAILING = 2.0**-100, 2.0**-20
SIGNATURE, KEY = 121, 32  # bytes
COUNTER = 4  # bytes of a round's number
KEYS = 3 * KEY + COUNTER + SIGNATURE  # bytes of a node's first message
PRIME = 2**521 - 1
SHARE = 66  # bytes of a share
_WORDS = 10  # of 64 bits, for a coefficient
_BLOCK = 1 << 16  # words of a mask that are made at a time: they stay in the cache

SigningKey = Ed25519PrivateKey | EllipticCurvePrivateKey
PublicKey = Ed25519PublicKey | EllipticCurvePublicKey
WordArray = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class ProtocolSettings:
    """Numbers of a run: its nodes, and how many of them may drop out of a round, or collude with the server.

    Up to 64 nodes all are neighbours. Beyond, node i has the ``neighbours`` nodes that are nearest to it on a circle in
    random order.

    Attributes:
        nodes: of the run.
        dropped: the most that may drop out of a round.
        colluding: the most that may tell the server all they know.
    """

    nodes: int
    dropped: int
    colluding: int

    def check(self) -> None:
        """Refuse numbers with which a round would be insecure, or would often fail.

        Raises:
            ValueError: one line that names the accepted numbers.

        >>> ProtocolSettings(nodes=10, dropped=2, colluding=1).check()
        """
        if self.nodes <= 2 * self.dropped + self.colluding or self.nodes < 2:
            raise ValueError(
                f"secure aggregation among {self.nodes} nodes, of which {self.dropped} may drop out and "
                f"{self.colluding} collude; expected: more nodes than colluding ones and twice those that drop out, "
                "and at least 2"
            )
        if self.nodes - self.colluding < 2:
            raise ValueError(f"{self.colluding} of {self.nodes} nodes collude: the sum is that of one other node")
        assert self.threshold > self.colluders, "by the choice of the neighbours"

    @property
    def survivors(self) -> int:
        """Least number of nodes in a list of members, and in a sum."""
        return self.nodes - self.dropped

    @property
    def signers(self) -> int:
        """Nodes that must sign one set of survivors: more than half of (nodes + colluding).

        Two sets would have at least 2 * signers - nodes > colluding signers in common, so an honest one.
        """
        return (self.nodes + self.colluding) // 2 + 1

    @property
    def is_complete(self) -> bool:
        """True where all nodes are neighbours of each other."""
        return self.neighbours == self.nodes - 1

    @cached_property
    def neighbours(self) -> int:
        """Neighbours of each node: all others, or the smallest even number that keeps both probabilities.

        Lemma: if each ``neighbours`` / 2 places in a row on the circle have an honest survivor, the honest survivors
        are connected, because two that follow each other are at most so far apart. Nodes check that more survive in a
        row than may collude there (:meth:`MemberList.check_survivors`).
        """
        for count in range(4, self.nodes - 1, 2) if self.nodes > COMPLETE else ():
            # A secret has the node's neighbours and itself as holders. Some must be left when others have dropped out,
            # and the colluding ones must be too few.
            left = count + 1 - self._dropped(count)
            lost = self._dropped(count // 2) + self._colluding(count // 2)
            if left > self._colluding(count + 1) and lost < count // 2:
                return count
        return self.nodes - 1

    @cached_property
    def threshold(self) -> int:
        """Shares that give a secret: more than the colluding holders have, no more than those left have."""
        return self.signers if self.is_complete else self.neighbours + 1 - self._dropped(self.neighbours)

    @cached_property
    def colluders(self) -> int:
        """Most colluding nodes among the holders of a secret."""
        return self.colluding if self.is_complete else self._colluding(self.neighbours + 1)

    @cached_property
    def honest_window(self) -> int:
        """Survivors that each ``neighbours`` / 2 places in a row on the circle must have: one more than may collude."""
        return self._colluding(self.neighbours // 2) + 1

    def _dropped(self, drawn: int) -> int:
        """Bound the nodes that drop out among some that are drawn, up to the probability of a failing round."""
        return self._most(self.dropped, drawn, self.nodes, FAILING)

    def _colluding(self, drawn: int) -> int:
        """Bound the colluding nodes among some of the smallest list that nodes accept.

        A server may leave out honest nodes only, so that list is the worst case.
        """
        return self._most(self.colluding, drawn, self.survivors, INSECURE)

    @cache  # noqa: B019 - of a handful of settings
    def _most(self, marked: int, drawn: int, among: int, probability: float) -> int:
        """Bound how many of the marked nodes are among some that are drawn, up to a probability, for any node."""
        from scipy.stats import hypergeom  # only here: the import takes long

        tails = hypergeom.sf(np.arange(drawn + 1), among, marked, min(drawn, among))
        return int(np.argmax(tails <= probability / self.nodes))


@dataclass(frozen=True)
class MemberKeys:
    """A node's first message: its public keys, a commitment, and its signature.

    Attributes:
        mask: public key of the masks, 32 bytes.
        encryption: public key of the channels, 32 bytes.
        commitment: SHA-256 of the seed of the own mask.
        signature: of all these, by the node's registered key.
        last: the last round whose survivors it remembers to have signed. A node that has seen it sign a later one knows
            that its memory was put back.
    """

    mask: bytes
    encryption: bytes
    commitment: bytes
    signature: bytes
    last: int = 0

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Read the message.

        Raises:
            ValueError: it has another length.
        """
        if len(data) != KEYS:
            raise ValueError(f"a node's keys have {KEYS} bytes, got {len(data)}")
        mask, encryption, commitment = (data[place : place + KEY] for place in range(0, 3 * KEY, KEY))
        last, signature = data[3 * KEY : 3 * KEY + COUNTER], data[3 * KEY + COUNTER :]
        return cls(mask, encryption, commitment, unpadded(signature), int.from_bytes(last))

    def write(self) -> bytes:
        """Write the message in a fixed number of bytes."""
        return self._content + padded(self.signature)

    @property
    def _content(self) -> bytes:
        """Write all but the signature."""
        return self.mask + self.encryption + self.commitment + self.last.to_bytes(COUNTER)

    def signed(self, agreement: str, context: bytes, name: str) -> bytes:
        """Return the bytes that the signature is of: the keys in one agreement, one attempt and one name."""
        return b"fedamp keys\0" + agreement.encode() + b"\0" + context + name.encode() + b"\0" + self._content


@dataclass(frozen=True)
class MemberList:
    """The members of a round, sorted by name; a member's number is its place.

    Attributes:
        settings: of the protocol.
        context: names the run, the round and the attempt.
        names: of the members.
        keys: of the members, in the same order.
    """

    settings: ProtocolSettings
    context: bytes
    names: tuple[str, ...]
    keys: tuple[MemberKeys, ...]

    @classmethod
    def of(cls, settings: ProtocolSettings, context: bytes, keys: dict[str, bytes]) -> Self:
        """Make the list from the first messages, by name.

        Raises:
            ValueError: keys of another length, or fewer members than may be in a sum.
        """
        if not settings.survivors <= len(keys) <= settings.nodes:
            raise ValueError(f"{len(keys)} members; expected: {settings.survivors} to {settings.nodes}")
        names = tuple(sorted(keys))
        return cls(settings, context, names, tuple(MemberKeys.read(keys[name]) for name in names))

    @classmethod
    def read(cls, settings: ProtocolSettings, context: bytes, data: bytes) -> Self:
        """Read a list that the server sent.

        Raises:
            ValueError: it is no list of members, each once and in order.
        """
        lines = [line.split(b"\0", 1) for line in _split_records(data)]
        found = {name.decode(): keys for name, keys in lines}
        members = cls.of(settings, context, found)
        if members.write() != data:
            raise ValueError("the member list is unsorted or has duplicates")
        return members

    def write(self) -> bytes:
        """Write the list as the nodes get it."""
        lines = [name.encode() + b"\0" + keys.write() for name, keys in zip(self.names, self.keys, strict=True)]
        return b"".join(len(line).to_bytes(4) + line for line in lines)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of context and list. It is in all keys and signatures, so nodes with other lists share no mask."""
        context = len(self.context).to_bytes(4) + self.context
        return hashlib.sha256(b"fedamp members\0" + context + self.write()).digest()

    @cached_property
    def number_of(self) -> dict[str, int]:
        """Number of each member, by name."""
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def circle(self) -> list[int]:
        """Numbers of the members in their random order, which follows from the digest."""
        words = rng.stream(int.from_bytes(self.digest), "circle").words(len(self.names))
        return [int(member) for member in np.argsort(words, kind="stable")]

    @cached_property
    def _place(self) -> dict[int, int]:
        """Place of each member on the circle."""
        return {member: place for place, member in enumerate(self.circle)}

    def neighbours(self, member: int) -> list[int]:
        """Return the sorted numbers of a member's neighbours."""
        count, half = len(self.circle), self.settings.neighbours // 2
        if self.settings.is_complete or 2 * half + 1 >= count:
            return [other for other in range(count) if other != member]
        place = self._place[member]
        return sorted(self.circle[(place + step) % count] for step in range(-half, half + 1) if step)

    def check_survivors(self, survivors: frozenset[int]) -> None:
        """Refuse a set of survivors whose sum could be of few honest nodes.

        Raises:
            ValueError: too few survive, at all or in a row on the circle.
        """
        if not survivors <= set(range(len(self.names))):
            raise ValueError("a survivor is not a member")
        if len(survivors) < self.settings.survivors:
            raise ValueError(f"{len(survivors)} survivors; expected: at least {self.settings.survivors}")
        if self.settings.is_complete:
            return
        here = np.array([member in survivors for member in self.circle])
        half = self.settings.neighbours // 2
        windows = np.convolve(np.concatenate([here, here[: half - 1]]), np.ones(half, int), "valid")
        if windows.min() < self.settings.honest_window:
            raise ValueError(f"only {windows.min()} of {half} members in a row survive")

    def agreed(self, survivors: frozenset[int]) -> bytes:
        """Return the bytes that the nodes sign about a set of survivors."""
        return b"fedamp survivors\0" + self.digest + set_to_bytes(survivors, len(self.names))


def set_to_bytes(numbers: Iterable[int], count: int) -> bytes:
    """Write a set of numbers below ``count``, a bit each."""
    bits = np.zeros(count, bool)
    bits[list(numbers)] = True
    return np.packbits(bits).tobytes()


def bytes_to_set(data: bytes, count: int) -> frozenset[int]:
    """Read a set of numbers below ``count``.

    Raises:
        ValueError: it is no such set.

    >>> sorted(bytes_to_set(set_to_bytes({0, 9}, 10), 10))
    [0, 9]
    """
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    if len(data) != -(-count // 8) or bits[count:].any():
        raise ValueError("no set of members")
    return frozenset(np.flatnonzero(bits).tolist())


def sign(key: SigningKey, content: bytes) -> bytes:
    """Sign by Ed25519 or ECDSA with SHA-384 (the keys of Flower's nodes)."""
    return key.sign(content) if isinstance(key, Ed25519PrivateKey) else key.sign(content, ECDSA(hashes.SHA384()))


def check_signature(key: PublicKey, signature: bytes, content: bytes, who: str) -> None:
    """Refuse a signature that is not that of a node.

    Args:
        key: public, of the node.
        signature: to check.
        content: that was signed.
        who: name of the node, for the error.

    Raises:
        ValueError: it is of another key or content.
    """
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, content)
        else:
            key.verify(signature, content, ECDSA(hashes.SHA384()))
    except InvalidSignature:
        raise ValueError(f"a signature in the name of {who} is not of its key") from None


def padded(signature: bytes) -> bytes:
    """Write a signature of any kind in ``SIGNATURE`` bytes."""
    return bytes([len(signature)]) + signature.ljust(SIGNATURE - 1, b"\0")


def unpadded(data: bytes) -> bytes:
    """Read a signature that :func:`padded` has written."""
    return data[1 : 1 + data[0]]


def derived(secret: bytes, purpose: bytes, digest: bytes) -> bytes:
    """Derive a key of 32 bytes from a secret, for one purpose (HKDF, RFC 5869)."""
    return HKDF(hashes.SHA256(), KEY, salt=digest, info=b"fedamp " + purpose).derive(secret)


def shared_secret(private: bytes, public: bytes) -> bytes:
    """Compute the secret that two X25519 keys share.

    Raises:
        ValueError: the public one is not valid.
    """
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def public_part(private: bytes) -> bytes:
    """Compute the public key of a private X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def commitment_to(seed: bytes) -> bytes:
    """Commit to a seed: its SHA-256, which hides 32 random bytes."""
    return hashlib.sha256(b"fedamp seed\0" + seed).digest()


def add_masks(words: WordArray, added: Sequence[bytes], taken: Sequence[bytes]) -> None:
    """Add the masks of some keys of 32 bytes, and take those of others, in place.

    A mask is the keystream of AES-256 in counter mode as little-endian words. Each key is used for one mask.

    Args:
        words: unsigned, 32 or 64 bits; sums wrap around.
        added, taken: keys.
    """
    keys = [*((key, np.add) for key in added), *((key, np.subtract) for key in taken)]
    streams = [(Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor(), operation) for key, operation in keys]
    zeros, room = bytes(_BLOCK * words.itemsize), bytearray(_BLOCK * words.itemsize + 15)
    kind = words.dtype.newbyteorder("<")
    for start in range(0, len(words), _BLOCK):
        block = words[start : start + _BLOCK]
        for stream, operation in streams:
            stream.update_into(zeros[: block.nbytes], room)
            operation(block, np.frombuffer(room, kind, len(block)), out=block)


# Shamir's secret sharing (1979) of 32 bytes, over the integers modulo PRIME. The maintained library, PyCryptodome,
# takes 80 ms to combine 40 shares of 16 bytes, a minute for a thousand nodes; Python's integers take 1 ms.


def shares_of(secret: bytes, holders: list[int], threshold: int, seed: int) -> dict[int, bytes]:
    """Share a secret of 32 bytes (Shamir 1979): fewer than ``threshold`` shares tell nothing.

    The polynomial follows from the secret ``seed``, so that one question, asked twice, is answered by one dealing.

    Args:
        secret: 32 bytes.
        holders: numbers from 0, distinct.
        threshold: shares that give the secret, from 1 to the number of holders.
        seed: secret, of the polynomial.

    Returns:
        The share of each holder, 66 bytes.
    """
    if not 1 <= threshold <= len(holders):
        raise ValueError(f"threshold must be in 1..{len(holders)}, got {threshold}")
    # 119 bits more than the prime has: the remainder is uniform up to 2**-119.
    words = rng.stream(seed, "polynomial").words(_WORDS * (threshold - 1)).reshape(-1, _WORDS)
    further = [int.from_bytes(each.tobytes()) % PRIME for each in words]
    coefficients = [*further, int.from_bytes(secret)]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in coefficients:
            value = (value * (holder + 1) + coefficient) % PRIME
        shares[holder] = value.to_bytes(SHARE)
    return shares


def secret_of(shares: Mapping[int, bytes]) -> bytes:
    """Compute the secret of exactly ``threshold`` shares, by holder.

    Lagrange's formula at 0: the sum over i of share_i * (product of the other x) / (product of x_j - x_i). The
    denominators have one inverse in common, which is most of the time.

    Raises:
        ValueError: they are not shares of 32 bytes.

    >>> shares = shares_of(bytes(32), [0, 1, 2], threshold=2, seed=1)
    >>> secret_of({0: shares[0], 2: shares[2]}) == bytes(32)
    True
    """
    points = [holder + 1 for holder in shares]
    product = math.prod(points)
    below = [point * math.prod(other - point for other in points if other != point) % PRIME for point in points]
    before = list(accumulate(below, lambda left, right: left * right % PRIME, initial=1))
    inverse, secret = pow(before.pop(), -1, PRIME), 0
    for share, first, own in zip(reversed(list(shares.values())), reversed(before), reversed(below), strict=True):
        secret += int.from_bytes(share) * (first * inverse % PRIME)
        inverse = inverse * own % PRIME
    secret = secret * product % PRIME
    if secret >= 1 << 256:
        raise ValueError("the shares do not fit together")
    return secret.to_bytes(32)


def _split_records(data: bytes) -> list[bytes]:
    """Cut a list of members into its lines."""
    found, place = [], 0
    while place < len(data):
        length = int.from_bytes(data[place : place + 4])
        found.append(data[place + 4 : place + 4 + length])
        place += 4 + length
    return found
