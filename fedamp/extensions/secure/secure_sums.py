"""Aggregate securely on the server: five exchanges a round with every node, and the noisy sum of those left.

:class:`SecureSums` is the aggregator that ``aggregation: {scheme: secure}`` names. Its part of the protocol is
:mod:`fedamp.extensions.secure.collector`; messages have the layout of :mod:`fedamp.engines.wire`.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedamp import rng
from fedamp.base.arrays import Sums
from fedamp.engines import flower
from fedamp.engines.wire import SIDE_SUM, RoundAnswer, RoundOrder
from fedamp.errors import FederationError
from fedamp.extensions.secure.collector import Collector
from fedamp.extensions.secure.member import DIGEST, SHARES
from fedamp.extensions.secure.participant import Agreement, counts, length_of, sums_of
from fedamp.extensions.secure.protocol import KEYS, SHARE, SIGNATURE, MemberKeys, check_signature
from fedamp.extensions.secure.terms import STEPS, AgreedTerms
from fedamp.federation.plan import Plan
from fedamp.noise import grid_of
from fedamp.strategies.aggregation import Aggregate, ClippedSums, NodeOrders, Shapes, in_one_line

log = logging.getLogger("fedamp.server")

IMPOSSIBLE = 1e-9  # probability of a sum of honest nodes that is taken for an impossible one
ATTEMPT = 16  # bytes that no other attempt at a round has


def honest_norm(
    reach: float, deviation: float, size: int, nodes: int, terms: AgreedTerms, probability: float = IMPOSSIBLE
) -> float:
    """Compute a norm that the sum of honest nodes exceeds with at most a given probability, whatever their records are.

    The sum is X + Z + V. X are the clipped updates, with a norm of at most ``reach``; Z is Gaussian noise. V is the
    rounding of each node to its grid, at most half the grid in each coordinate. The norm of Z is a 1-Lipschitz function
    of standard Gaussian numbers times its deviation s. Its mean is at most s sqrt(size). So it exceeds s (sqrt(size) +
    t) with probability at most exp(-t**2 / 2) (Tsirelson, Ibragimov, Sudakov 1976).

    Args:
        reach: clipping norm times the units that may be in the sum.
        deviation: of the noise that is charged; each of the ``nodes`` in the sum adds its share.
        size: number of coordinates.
        nodes: in the sum.
        terms: of the run.
        probability: in (0, 1).
    """
    if not deviation:
        return reach * (1 + 1e-9)  # of the norm's own rounding
    share = terms.share(deviation)
    tail = math.sqrt(size) + math.sqrt(-2 * math.log(probability))
    return reach + share * math.sqrt(nodes) * tail + nodes * grid_of(share, STEPS) * math.sqrt(size) / 2


@dataclass
class _RoundAttempt:
    """An attempt at a round.

    Attributes:
        grid: that reaches the nodes.
        told: keys that every order tells.
        node_of: Flower's number of the node of each name.
        orders: to train, of each name.
        collector: of the attempt.
        timeout: seconds of each exchange.
        is_lost: whether too many nodes have signed the survivors of another attempt, which has not ended.
    """

    grid: Grid
    told: dict[str, Any]
    node_of: dict[str, int]
    orders: dict[str, RoundOrder]
    collector: Collector
    timeout: float
    is_lost: bool = False


class SecureSums(ClippedSums):
    """Aggregator that learns the noisy sum of the nodes that answered, and no node's.

    A node that fails in any exchange drops out of the round. With fewer than were agreed on nothing is released, and
    the round can be played again with new keys. But where more nodes have signed its survivors than may drop out, it is
    lost: nobody learns its sum any more, and zeros are released in its place. In a simulation no message of the
    protocol is sent; the release adds noise of the same law.

    Args:
        plan: of the run; its ``agreed`` are the terms.

    Raises:
        FederationError: from :meth:`agreed_orders` and :meth:`aggregate`: too few nodes are left.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._round: _RoundAttempt | None = None
        self._signed_last: dict[str, int] = {}  # the last round that each node has signed

    def plays(self, grid: Grid) -> bool:
        """Say whether the nodes of a grid play the protocol: those of a simulation do not."""
        return not flower.is_simulated(grid)

    @property
    def terms(self) -> AgreedTerms:
        """Terms of the run."""
        found: AgreedTerms = self.plan.agreed_terms
        return found

    def agreed_orders(
        self, orders: dict[int, RoundOrder], grid: Grid, names: Mapping[int, str], shapes: Shapes
    ) -> dict[int, RoundOrder]:
        """Play the exchanges before the training, and give its orders what the nodes need to mask their sums.

        Args:
            orders: to train, by node.
            grid: that reaches the nodes.
            names: of the nodes, as in the agreement.
            shapes: of the sums, by name.

        Returns:
            Orders for the nodes that have dealt shares; none if the round is lost.
        """
        self._round = None
        if not self.plays(grid):
            return orders
        terms, any_order = self.terms, next(iter(orders.values()))
        length, node_of = length_of(shapes, terms), {names[node]: node for node in orders}
        by_name = {names[node]: replace(each, answer_bytes=length * terms.bits // 8) for node, each in orders.items()}
        asked, errors = list(by_name), list[str]()
        questions = {
            name: {"question": order.digest, "last": self._signed_last.get(name, 0)} for name, order in by_name.items()
        }
        boxes: dict[str, dict[int, bytes]] = {}
        while not boxes:  # again, among fewer nodes, after one has dropped out between its keys and its shares
            attempt = rng.fresh_bytes(ATTEMPT)
            context = terms.context(any_order.round, any_order.clips, attempt)
            told: dict[str, Any] = {"attempt": attempt, "data": b"", "numbers": list[int](), "survivors": b""}
            told |= {"question": b"", "last": 0}
            collector = Collector(terms.settings, context, length, terms.bits, errors)
            deadline = self.plan.scenario.federation.round_deadline
            self._round = _RoundAttempt(grid, told, node_of, by_name, collector, deadline)
            keys = self._exchange("keys", {name: questions[name] for name in asked}, lambda name: KEYS)
            keys = self._without_spent(self._signed(keys, context), any_order)
            if self._round.is_lost:
                return {}
            lists = collector.members(keys)
            told_lists = {name: {"data": data} for name, data in lists.items()}
            sizes = {name: SHARES * collector.neighbours_of(name) + 2 * DIGEST for name in lists}
            boxes = collector.shares(self._exchange("shares", told_lists, sizes.__getitem__))
            asked = collector.sharing
        for name, box in boxes.items():
            further = told | {"exchange": "masked", "data": b"".join(box.values()), "numbers": list(box)}
            by_name[name] = replace(by_name[name], exchange=further)
        return {node_of[name]: by_name[name] for name in boxes}

    def aggregate(self, replies: Iterable[Message], asked: NodeOrders) -> Aggregate:
        """Play the exchanges after the training, and return the noisy sum of the survivors."""
        total = (
            super().aggregate(replies, asked) if self._round is None else self._unmasked(self._round, replies, asked)
        )
        if total.noisy_nodes != 0:  # else it is lost
            total.noise_surplus = (total.noisy_nodes or self.terms.nodes) / self.terms.honest - 1
        return total

    def _unmasked(self, current: _RoundAttempt, replies: Iterable[Message], asked: NodeOrders) -> Aggregate:
        """Agree with the nodes on the survivors, and take the masks off their sum."""
        collector = current.collector
        if current.is_lost:
            self._round = None
            zeros = {name: array for name, array in asked.model.zeros().items() if name != SIDE_SUM}
            return Aggregate(zeros, len(current.orders), errors=collector.errors, noisy_nodes=0, noisy_count=0.0)
        survivors = collector.masked(self._data(replies, current.orders))
        names = [collector.list.names[number] for number in sorted(collector.survivors)]
        to = {name: {"data": survivors} for name in names}
        signed = collector.agreed(self._exchange("agree", to, lambda name: SIGNATURE))
        round_ = current.orders[names[0]].round if names else 0
        self._signed_last |= {collector.list.names[number]: round_ for number in signed}
        further = {"survivors": survivors, "data": b"".join(signed.values()), "numbers": list(signed)}
        shares = self._exchange(
            "unmask", dict.fromkeys(names, further), lambda name: SHARE * (collector.neighbours_of(name) + 1)
        )
        words = collector.unmasked(shares)
        noise = self._multipliers(asked)
        multipliers = {name: noise[part] for name, part in asked.model.part_of.items()}
        clips = {name: asked.clips[part] for name, part in asked.model.part_of.items()}
        sums, count = sums_of(words, asked.model.shapes, multipliers, clips, self.terms)
        nodes = {current.node_of[name] for name in names}
        units = sum(len(asked.orders[node].counted) for node in nodes)
        for error in collector.errors:
            log.warning("secure aggregation: %s", error)
        self._round = None
        total = Aggregate(sums, len(current.orders), units, nodes=nodes, errors=collector.errors)
        total.noisy_nodes, total.noisy_count = len(names), count
        if impossible := self._impossible(sums, count, len(names), units, asked):
            total.impossible = f"round {round_}: {impossible}"
            log.warning("%s", total.impossible)
            total.sums, total.noisy_count = asked.model.zeros(), 0.0
        return total

    def _multipliers(self, asked: NodeOrders) -> list[float]:
        """Return the noise multiplier of each part of a sum; a side sum is the last one, or alone."""
        shapes, side_noise = asked.model.shapes, self.terms.evaluation_noise
        model = list(self.terms.noise_multipliers) if set(shapes) - {SIDE_SUM} else []
        return [*model, side_noise] if SIDE_SUM in shapes else model

    def _impossible(self, sums: Sums, count: float, nodes: int, units: int, asked: NodeOrders) -> str:
        """Say why the noisy sum cannot be that of honest nodes, up to a probability of 1e-9; empty: it can.

        It is a function of the noisy sum, so looking costs nothing. But the sum has been seen: the round is spent.
        """
        terms, norms = self.terms, asked.model.norms(sums)
        units = units if terms.check_in is None else terms.units  # else nobody but the nodes knows
        sizes = [0] * len(norms)
        for name, shape in asked.model.shapes.items():
            sizes[asked.model.part_of[name]] += math.prod(shape)
        parts = list(zip(norms, asked.clips, self._multipliers(asked), sizes, strict=True))
        looks = [(norm, clip * units, multiplier * clip, size) for norm, clip, multiplier, size in parts]
        if counts(asked.model.shapes, terms):
            looks.append((abs(count), units / 2, terms.count_noise, 1))
        for norm, reach, deviation, size in looks:
            most = honest_norm(reach, deviation, size, nodes, terms, IMPOSSIBLE / len(looks))
            if norm > most:
                return (
                    f"the sum has a norm of {norm:.4g}, and that of honest nodes exceeds {most:.4g} with probability "
                    f"{IMPOSSIBLE:g}: a node is faulty or malicious. The round is charged, zeros stand for its sum; "
                    "name suspects in federation.without, and go on with --resume"
                )
        return ""

    def _signed(self, keys: dict[str, bytes], context: bytes) -> dict[str, bytes]:
        """Keep the keys with a valid signature, where the server knows the nodes' agreement.

        Else the nodes find a false signature, and one in the list is reason for all of them to stay out.
        """
        assert self._round is not None
        file: str | None = getattr(self.plan.scenario.federation, "agreement")  # noqa: B009 - a key of this extension
        if file is None:
            return keys
        agreement, found = Agreement.read(Path(file)), {}
        for name, data in keys.items():
            try:
                each = MemberKeys.read(data)
                content = each.signed(agreement.digest, context, name)
                check_signature(agreement.keys[name], each.signature, content, name)
                found[name] = data
            except (KeyError, ValueError) as error:
                self._round.collector.errors.append(f"node {name}: {in_one_line(error)}")
        return found

    def _without_spent(self, keys: dict[str, bytes], order: RoundOrder) -> dict[str, bytes]:
        """Leave out the nodes that have signed the round's survivors before, and find out whether it is lost.

        Nodes of a later round are no reason for zeros: then the server's run folder is of an older state.
        """
        assert self._round is not None
        last = {name: MemberKeys.read(data).last for name, data in keys.items() if len(data) == KEYS}
        spent = {name: round_ for name, round_ in last.items() if round_ >= order.round}
        told = [f"node {name}: it has signed the survivors of round {round_} already" for name, round_ in spent.items()]
        self._round.collector.errors += told
        if list(spent.values()).count(order.round) > self.terms.settings.dropped:
            self._round.is_lost = True
            why = "nodes have signed its survivors, and that attempt has not ended"
            log.warning("round %d is lost: %d %s; it is charged, and adds zero", order.round, len(spent), why)
        return {name: data for name, data in keys.items() if name not in spent}

    def _exchange(
        self, exchange: str, to: Mapping[str, Mapping[str, Any]], size: Callable[[str], int]
    ) -> dict[str, bytes]:
        """Ask nodes, by name, for answers of so many bytes, and return the answers that came."""
        assert self._round is not None
        orders, messages = dict[str, RoundOrder](), []
        for name, told in to.items():
            whole, further = self._round.orders[name], self._round.told | {"exchange": exchange} | dict(told)
            start = RoundOrder(whole.task, whole.round, whole.clips, secret=whole.secret)
            orders[name] = replace(start, exchange=further, answer_bytes=size(name))
            messages.append(Message(orders[name].content(), self._round.node_of[name], f"train.{exchange}"))
        replies = self._round.grid.send_and_receive(messages, timeout=self._round.timeout)
        names = {node: name for name, node in self._round.node_of.items()}
        return self._data(flower.answers(messages, replies, names.__getitem__), orders)

    def _data(self, replies: Iterable[Message], orders: Mapping[str, RoundOrder]) -> dict[str, bytes]:
        """Read the bytes of replies, by the node's name; a reply that cannot be read is noted, and left out."""
        assert self._round is not None
        names, found = {node: name for name, node in self._round.node_of.items()}, {}
        for reply in replies:
            name = names[reply.metadata.src_node_id]
            try:
                if reply.has_error():
                    raise FederationError(reply.error.reason)
                found[name] = RoundAnswer.of(reply.content, orders[name]).data
            except Exception as error:  # no node may stop the round
                self._round.collector.errors.append(f"node {name}: {in_one_line(error)}")
        return found
