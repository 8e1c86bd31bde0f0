"""Play the server's part of secure aggregation: pass messages on, and learn the sum of the survivors' words alone.

:mod:`fedamp.extensions.secure.secure_sums` sends the messages and gives the replies. Nothing here is trusted by the
nodes: each checks what it gets (:mod:`fedamp.extensions.secure.member`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedamp import rng
from fedamp.errors import FederationError
from fedamp.extensions.secure.member import DIGEST, SEALED, SHARES, digest_of, pair_key
from fedamp.extensions.secure.protocol import (
    KEY,
    KEYS,
    SHARE,
    SIGNATURE,
    MemberList,
    ProtocolSettings,
    WordArray,
    add_masks,
    commitment_to,
    derived,
    public_part,
    secret_of,
    set_to_bytes,
    shared_secret,
)


@dataclass
class Collector:
    """One attempt at a round. Each step takes the replies of the nodes, by name, and gives the next messages.

    A reply of another length is that node's failure: it drops out of the round, with a line in ``errors``.

    Attributes:
        settings: of the protocol.
        context: names run, round and attempt.
        words: number of words of a sum.
        bits: of each word, 32 or 64.
        errors: why nodes were dropped, a line each.
        survivors: numbers of the members whose words are in the sum.
        list: the members, after :meth:`members`.
        sharing: names of the nodes that have sent shares, after :meth:`shares`.
    """

    settings: ProtocolSettings
    context: bytes
    words: int
    bits: int
    errors: list[str] = field(default_factory=list)
    survivors: frozenset[int] = frozenset()

    def members(self, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """Turn keys into the list of members, which each of them gets.

        Raises:
            FederationError: too few nodes have sent valid keys.
        """
        found = self._of_length(replies, KEYS)
        for name, reply in list(found.items()):
            try:
                for public in (reply[:KEY], reply[KEY : 2 * KEY]):
                    shared_secret(rng.fresh_bytes(KEY), public)
            except ValueError:  # with it no node could compute its masks
                self.errors.append(f"node {name}: its public keys are not valid")
                del found[name]
        self._enough(found, "sent keys")
        self.list = MemberList.of(self.settings, self.context, found)
        return dict.fromkeys(self.list.names, self.list.write())

    def neighbours_of(self, name: str) -> int:
        """Return the number of a member's neighbours."""
        return len(self.list.neighbours(self.list.number_of[name]))

    def shares(self, replies: Mapping[str, bytes]) -> dict[str, dict[int, bytes]]:
        """Turn shares into what each member gets: encrypted shares, and their digests, by its neighbours' numbers.

        Nodes mask with all neighbours of the list, so each of them must have dealt.

        Returns:
            By name; empty if a member has sent none: the round begins again, with new keys, among those that have
            (``sharing``).

        Raises:
            FederationError: too few nodes have sent shares.
        """
        found: dict[int, bytes] = {}
        for name, reply in replies.items():
            if self._is(name, reply, SHARES * self.neighbours_of(name) + 2 * DIGEST):
                found[self.list.number_of[name]] = reply
        self.sharing = [self.list.names[number] for number in found]
        self._enough(found, "sent shares")
        if len(found) < len(self.list.names):
            return {}
        sealed = dict[tuple[int, int], bytes]()
        self._digests: dict[int, dict[int, bytes]] = {}
        for number, reply in found.items():
            neighbours = self.list.neighbours(number)
            for place, other in enumerate(neighbours):
                sealed[other, number] = reply[SEALED * place : SEALED * (place + 1)]
            start = SEALED * len(neighbours)
            self._digests[number] = {
                other: reply[start + 2 * DIGEST * place : start + 2 * DIGEST * (place + 1)]
                for place, other in enumerate([*neighbours, number])
            }
        boxes: dict[str, dict[int, bytes]] = {self.list.names[number]: {} for number in found}
        for (holder, dealer), shares in sealed.items():
            boxes[self.list.names[holder]][dealer] = shares + self._digests[dealer][holder]
        return boxes

    def masked(self, replies: Mapping[str, bytes]) -> bytes:
        """Add up the masked words, and return the set of survivors, as each of them gets it.

        Raises:
            FederationError: too few nodes are left, or too few in a row on the circle.
        """
        kind = np.dtype(f"<u{self.bits // 8}")
        self._sum: WordArray = np.zeros(self.words, kind)
        survivors = set()
        for name, reply in replies.items():
            if self._is(name, reply, self.words * kind.itemsize):
                self._sum += np.frombuffer(reply, kind)
                survivors.add(self.list.number_of[name])
        self.survivors = frozenset(survivors)
        self._enough(survivors, "sent their sums")
        try:
            self.list.check_survivors(self.survivors)
        except ValueError as error:
            raise FederationError(f"secure aggregation: {error}") from None
        return set_to_bytes(self.survivors, len(self.list.names))

    def agreed(self, replies: Mapping[str, bytes]) -> dict[int, bytes]:
        """Return signatures of the set of survivors, by the members' numbers.

        Raises:
            FederationError: too few nodes have signed.
        """
        found = self._of_length(replies, SIGNATURE)
        if len(found) < self.settings.signers:
            raise FederationError(f"secure aggregation: {len(found)} nodes signed, expected: {self.settings.signers}")
        return {self.list.number_of[name]: signature for name, signature in found.items()}

    def unmasked(self, replies: Mapping[str, bytes]) -> WordArray:
        """Take the masks off with the survivors' shares, and return the sum of their words.

        No mask is left: each key is checked against the one that its node has signed.

        Raises:
            FederationError: too few shares of some secret, or false ones.
        """
        shares: dict[int, dict[int, bytes]] = {number: {} for number in range(len(self.list.names))}
        false = dict.fromkeys(shares, 0)  # by dealer: holders who say so
        for name, reply in replies.items():
            number = self.list.number_of[name]
            holders = [*self.list.neighbours(number), number]
            if number not in self.survivors or not self._is(name, reply, SHARE * len(holders)):
                continue
            wrong = 0
            for place, dealer in enumerate(holders):
                share = reply[SHARE * place : SHARE * (place + 1)]
                part = DIGEST if dealer in self.survivors else 0
                if digest_of(share) == self._digests[dealer][number][part : part + DIGEST]:
                    shares[dealer][number] = share
                elif any(share):
                    wrong += 1
                else:  # a holder refuses on receipt a share that is not that of its digest
                    false[dealer] += 1
            if wrong:
                self.errors.append(f"node {name}: {wrong} of its shares are not those that it was given")
        for dealer, count in false.items():
            if count:
                told = f"{count} of its holders say that what it dealt them does not match its digest"
                self.errors.append(f"node {self.list.names[dealer]}: {told}")
        taken, added = list[bytes](), list[bytes]()
        for number in range(len(self.list.names)):
            secret = self._secret(number, shares[number])
            if number in self.survivors:
                taken.append(derived(secret, b"own mask", self.list.digest))
                continue
            for other in self.list.neighbours(number):
                if other in self.survivors:  # which added this mask if its number is smaller
                    (taken if other < number else added).append(pair_key(secret, self.list, number, other))
        add_masks(self._sum, added, taken)
        return self._sum

    def _secret(self, number: int, shares: Mapping[int, bytes]) -> bytes:
        """Compute a survivor's seed, or the mask key of a node that dropped out, from shares, and check it."""
        name, threshold = self.list.names[number], self.settings.threshold
        if len(shares) < threshold:
            raise FederationError(
                f"secure aggregation: {len(shares)} nodes helped to unmask {name}; expected: at least {threshold}"
            )
        try:
            secret = secret_of(dict(list(shares.items())[:threshold]))
        except ValueError:
            secret = b""
        keys, survived = self.list.keys[number], number in self.survivors
        if (commitment_to(secret) if survived else secret and public_part(secret)) != (
            keys.commitment if survived else keys.mask
        ):
            raise FederationError(f"secure aggregation: node {name} has dealt false shares of its secret")
        return secret

    def _of_length(self, replies: Mapping[str, bytes], length: int) -> dict[str, bytes]:
        """Keep the replies that have as many bytes as asked."""
        return {name: reply for name, reply in replies.items() if self._is(name, reply, length)}

    def _is(self, name: str, reply: bytes, length: int) -> bool:
        """Say whether a reply has the right length; else note it against its node."""
        if len(reply) != length:
            self.errors.append(f"node {name}: its answer has {len(reply)} bytes, expected: {length}")
        return len(reply) == length

    def _enough(self, found: object, what: str) -> None:
        """Refuse fewer nodes than a sum must have.

        Raises:
            FederationError: with the last reason why one was dropped.
        """
        count, least = len(found), self.settings.survivors  # type: ignore[arg-type]
        if count < least:
            why = f" ({self.errors[-1]})" if self.errors else ""
            raise FederationError(f"secure aggregation: {count} nodes {what}; expected: at least {least}{why}")
