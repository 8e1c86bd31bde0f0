"""Aggregate the replies of a round into the sum of its clipped updates, with private counts.

Replies come from other people's machines: every one is checked here, and none can stop a round. No noise is added here;
:mod:`fedamp.strategies.pipeline` does that next. A protocol of one's own subclasses :class:`Aggregator`
(docs/research/additions.md has an example). Its keys in a scenario are a scheme of
:mod:`fedamp.federation.aggregation`.
"""

import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedamp.base.arrays import BLOCK, Arrays, Sums
from fedamp.base.text import printable
from fedamp.client.clipping import quantum
from fedamp.engines.wire import SIDE_SUM, RoundAnswer, RoundOrder, UpdateCounts
from fedamp.errors import FederationError
from fedamp.models.pieces import Piece

log = logging.getLogger("fedamp.server")

LONGEST, NAMES_SHOWN = 300, 8  # letters of a node's text, and names in a list of them
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class ModelParts:
    """The shapes of a model's trained arrays, and the part of the model to which each array belongs.

    Attributes:
        shapes: by name, in the model's order.
        part_of: index of the part (norm, noise, denominator) of each array: its place in ``Plan.parts``.
    """

    shapes: Mapping[str, tuple[int, ...]]
    part_of: Mapping[str, int]

    @classmethod
    def of(cls, arrays: Arrays, shared: frozenset[str] | None = None) -> "ModelParts":
        """Read the parts of a model.

        Args:
            arrays: the trained ones, by name.
            shared: names of the arrays of the shared part; None: there is one part.
        """
        part_of = {name: 0 if shared is None or name in shared else 1 for name in arrays}
        return cls({name: array.shape for name, array in arrays.items()}, part_of)

    def with_side_sum(self, cells: int, trains: bool) -> "ModelParts":
        """Add a side sum as a last part of its own.

        Args:
            cells: how many numbers a unit contributes.
            trains: whether it stands beside the model, or alone.
        """
        shapes, part_of = (self.shapes, self.part_of) if trains else ({}, {})
        return ModelParts({**shapes, SIDE_SUM: (cells,)}, {**part_of, SIDE_SUM: max(part_of.values(), default=-1) + 1})

    def zeros(self) -> Sums:
        """Make a sum of nothing: float64 zeros by name."""
        return {name: np.zeros(shape) for name, shape in self.shapes.items()}

    def norms(self, sums: Sums) -> list[float]:
        """Compute the Euclidean norm of every part of a sum; infinite where its square overflows."""
        squares = [0.0] * (max(self.part_of.values()) + 1)
        for name, array in sums.items():
            flat = array.ravel()
            with np.errstate(over="ignore"):  # an infinite norm: its sum is clipped to nothing
                squares[self.part_of[name]] += float(flat @ flat)
        return [float(np.sqrt(square)) for square in squares]


@dataclass(frozen=True)
class NodeOrders:
    """The orders of a round by node, and the public facts that their answers must fit.

    :class:`fedamp.strategies.private.AskedRound` holds the messages of these orders.

    Attributes:
        orders: by the id of the node.
        model: shapes and parts of the sum that is asked for.
        clips: clipping norm of each part.
        names: of the nodes, for the log.
        piece: gives the piece of a submodel; None: none is extracted.
        linf_coordinates: p, where a unit's coordinates are truncated at clip / sqrt(p) (ModelMix); 0: they are not.
    """

    orders: Mapping[int, RoundOrder]
    model: ModelParts
    clips: Sequence[float]
    names: Mapping[int, str] = field(default_factory=dict)
    piece: Callable[[int], Piece] | None = None
    linf_coordinates: int = 0

    def name(self, node: int) -> str:
        """Return the name of a node for a line of the log."""
        return self.names.get(node) or str(node)


@dataclass
class Aggregate(UpdateCounts):
    """The sum of a round's updates with counts. All of it is private and stays on the server.

    Attributes:
        sums: float64 by name, new arrays: the release adds its noise to them.
        reported: units whose update is in the sums; those that failed are among them, and add zero.
        asked_nodes, refused_nodes: how many were asked, and how many replies were refused.
        left_out: units of the cohort that were not asked, because their people have left.
        oversized_nodes: how many sums the server clipped to (clip x units): their nodes are faulty or malicious.
        noisy_nodes: nodes in the sum, each with its share of the noise (secure aggregation); None: no noise is in it.
        noise_surplus: variance of the noise over the one that is charged, minus 1; None: the server adds exactly that.
        noisy_count: ``below_clip`` less half of ``reported``, with its noise (secure aggregation).
        side_sum: of the units' vectors, with noise only if ``sums`` have it; None: none was asked.
        impossible: why the sum cannot be that of honest nodes (secure aggregation). It is then replaced by zeros.
        nodes: ids of those whose reply is in the sums.
        errors: why replies were refused and units failed; each line names the node.
    """

    sums: Sums
    asked_nodes: int
    reported: int = 0
    refused_nodes: int = 0
    left_out: int = 0
    oversized_nodes: int = 0
    noisy_nodes: int | None = None
    noise_surplus: float | None = None
    noisy_count: float | None = None
    side_sum: NDArray[np.float64] | None = None
    impossible: str = ""
    nodes: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    @property
    def missing_nodes(self) -> int:
        """Number of the asked nodes that are not in the sum."""
        return self.asked_nodes - len(self.nodes)

    @property
    def unprotected(self) -> dict[str, int | float]:
        """Numbers that the run's owner may see, by their keys in a line of ``rounds.jsonl``. They have no noise."""
        found: dict[str, int | float] = {"failed": self.failed, "refused_nodes": self.refused_nodes}
        found |= {"oversized_nodes": self.oversized_nodes, "missing_nodes": self.missing_nodes}
        if self.noisy_nodes is None:  # else nobody knows
            found["training_loss"] = self.loss_sum / max(self.records, 1)
            found["clipped"] = self.clipped / max(self.reported, 1)
        return found

    def check_possible(self) -> None:
        """Raise FederationError if the sum was impossible; call it after the release, because the round is spent."""
        if self.impossible:
            raise FederationError(self.impossible)


class Aggregator(ABC):
    """The protocol that turns the nodes' replies into one sum; secure aggregation is another class.

    *Input.* Each node sends one reply a round: the sum over its units of clipped updates. Every coordinate of a part
    with clipping norm c is a whole multiple of ``quantum(c)``, a power of two of at most c / 2**30, and at most c times
    the node's units in size. So ``sum / quantum`` is an integer, and b = 32 + log2(units of the round) bits cannot
    overflow: a masked sum is one modulo 2**b. Sums in another order are equal to the bit.

    *The server may see* the sum, its nodes, and the sums of the counts of :class:`Aggregate`, but no reply of one node.
    The checks of :class:`ClippedSums` are then for the nodes to prove, or the nodes are trusted. Ask for whole models:
    ``extracted`` shows which submodel a node trained.

    *Dropouts.* A node that is not in the sum counts as zero, and no node is asked again. The other nodes help to remove
    its masks within the round's deadline; else raise :class:`fedamp.errors.FederationError`: nothing has been released,
    and the round can be played again. Never return a sum that still holds a mask.

    *Use.* Give the class to :class:`fedamp.strategies.pipeline.ReleasePipeline`. A protocol with more exchanges a round
    keeps its grid, and talks to the nodes within :meth:`aggregate`.
    """

    def plays(self, grid: Grid) -> bool:
        """Say whether every node answers in every round, and not with its sum."""
        return False

    def agreed_orders(
        self, orders: dict[int, RoundOrder], grid: Grid, names: Mapping[int, str], shapes: Shapes
    ) -> dict[int, RoundOrder]:
        """Change the orders of a round, after the exchanges that come before the training.

        Args:
            orders: by the id of the node.
            grid: the nodes.
            names: of the nodes.
            shapes: of the sum that is asked for.
        """
        return orders

    @abstractmethod
    def aggregate(self, replies: Iterable[Message], asked: NodeOrders) -> Aggregate:
        """Add up the replies of a round. No reply of a single node may raise.

        Args:
            replies: answers to the orders, errors among them, in any order.
            asked: the orders, and the public facts that answers must fit.
        """


class ClippedSums(Aggregator):
    """The server sees every node's sum, refuses invalid replies, and clips the rest.

    Refused are errors, replies of nodes that were not asked or have answered already, arrays of another name, shape or
    type, numbers that are not finite, and claims of units that the node was not asked for. A sum is clipped to
    (clip x units that reported), and so are its coordinates if the l-infinity norm is clipped: a faulty node cannot
    exceed its share. The order of replies does not matter, to the bit.
    """

    def aggregate(self, replies: Iterable[Message], asked: NodeOrders) -> Aggregate:
        total = Aggregate(asked.model.zeros(), len(asked.orders))
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                _add_reply(total, node, reply, asked)
            except Exception as error:  # no faulty or hostile node may stop the round
                total.refused_nodes += 1
                total.errors.append(f"node {asked.name(node)}: {in_one_line(error)}")
                log.warning("reply refused: %s", total.errors[-1])
        return total


def _add_reply(total: Aggregate, node: int, reply: Message, asked: NodeOrders) -> None:
    """Add one reply, or raise without a change of ``total``."""
    if reply.has_error():
        raise ValueError(reply.error.reason)
    if node not in asked.orders:
        raise ValueError("nothing was asked of it")
    if node in total.nodes:
        raise ValueError("it has answered already")
    order = asked.orders[node]
    answer = RoundAnswer.of(reply.content, order)
    units = len(answer.reported)
    if _add_sums(total.sums, answer.sums, units, order.extracted, asked):
        total.oversized_nodes += 1
        what = "sent a sum beyond (clip x units), now clipped: it is faulty or malicious"
        log.warning("node %s %s", asked.name(node), what)
    total.nodes.add(node)
    total.reported += units
    total.add_claimed(answer, units, len(order.counted))
    if answer.text:
        total.errors.append(f"node {asked.name(node)}: {in_one_line(answer.text)}")


def _add_sums(totals: Sums, sums: Sums, units: int, extracted: int, asked: NodeOrders) -> bool:
    """Check a node's sums and add them in their place; returns whether they had to be clipped."""
    piece, part = asked.piece(extracted) if asked.piece and extracted >= 0 else None, totals
    if piece:
        nothing = {name: np.broadcast_to(0.0, shape) for name, shape in asked.model.shapes.items()}  # takes no memory
        part = {name: np.zeros(array.shape) for name, array in piece.extract(nothing).items()}
    if set(sums) != set(part):
        raise ValueError(unexpected("arrays", sums, part))
    for name, array in sums.items():
        if array.dtype != np.float64 or array.shape != part[name].shape:
            raise ValueError(f"array {name} is {array.dtype} {array.shape}, not float64 {part[name].shape}")
        with np.errstate(over="ignore", invalid="ignore"):
            square = np.vdot(array, array)  # one pass is enough for all arrays but huge ones
        if not np.isfinite(square) and not np.isfinite(array).all():
            raise ValueError(f"array {name} holds NaN or infinity")
    clipped = _add_limited(part, sums, asked, units)
    if piece:
        piece.embed_add(totals, part)
    return clipped


def _add_limited(totals: Sums, sums: Sums, asked: NodeOrders, units: int) -> bool:
    """Add every part, clipped to (clip x units), in whole quanta; returns whether that changed it."""
    norms = asked.model.norms(sums)
    clipped = any(norm > clip * units for norm, clip in zip(norms, asked.clips, strict=True))
    for name, total in totals.items():
        part = asked.model.part_of[name]
        clip, norm = asked.clips[part], norms[part]
        grid = quantum(clip)
        # Honest sums are within the limit and on the grid already: no change.
        scale = 1.0 if norm <= clip * units else clip * units / norm * (1 - 1e-9)
        p = asked.linf_coordinates
        most = np.floor(clip / grid / math.sqrt(p)) * units if p else np.inf
        # For totals that are not contiguous this raises; a copy would get the sum instead.
        into, array = np.reshape(total, (-1,), copy=False), sums[name].reshape(-1)
        for start in range(0, into.size, BLOCK):
            block = slice(start, start + BLOCK)
            quanta = array[block] * (scale / grid)
            np.trunc(quanta, out=quanta)
            if p:
                clipped = clipped or bool(np.abs(quanta).max() > most)
                np.clip(quanta, -most, most, out=quanta)
            quanta *= grid
            into[block] += quanta
    return clipped


def in_one_line(said: object) -> str:
    """Write an error, or a node's text, as one printable line.

    Of a traceback it takes the last error; Flower's ``<class 'ValueError'>:<'words'>`` becomes ``ValueError: words``.
    """
    text = str(said)
    errors = list(re.finditer(r"^(?:\w+\.)*\w*(?:Error|Exception): ", text, re.MULTILINE))
    if errors:  # Flower's own message is on the next line
        text = text[errors[-1].start() :].rstrip().removesuffix("'>")
    text = " ".join(text.split())
    text = re.sub(r"<class '(?:[^']*\.)?(\w+)'>:<'(.*)'>", r"\1: \2", text)
    return printable(text)[:LONGEST] or type(said).__name__


def unexpected(what: str, found: Iterable[str], expected: Iterable[str]) -> str:
    """Write the error for a reply with other names than expected, most likely from another client app."""
    return (
        f"it answered with {what} {_names_in_words(found)}; expected {_names_in_words(expected)}, "
        "as fedamp.client.app answers"
    )


def _names_in_words(names: Iterable[str]) -> str:
    """Join the first few names, in order, and say how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    return ", ".join(found[:NAMES_SHOWN]) + more if found else "(none)"
