"""From the replies of a round to the sum of its clipped updates, and what is known about it in private."""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt

from fedamp.base.arrays import BLOCK, Sums
from fedamp.client.clipping import quantum
from fedamp.engines import flower
from fedamp.models.pieces import Piece
from fedamp.models.section import WHOLE
from fedamp.strategies.model_parts import ModelParts
from fedamp.strategies.replies import in_one_line, unexpected

log = logging.getLogger("fedamp.server")

_LARGEST_LOSS = 1e100  # of one node: sums of what nodes claim stay finite


@dataclass(frozen=True)
class Request:
    """What one node was asked for: units, and the submodel that its sums are in the shape of (-1: the whole model);
    and what the log calls it (empty: by its id).
    """

    units: frozenset[int]
    extracted: int = WHOLE
    name: str = ""


@dataclass(frozen=True)
class Asked:
    """What the replies of a round are held against: the requests by node, arrays and parts of the model, clipping norm
    of each part, the submodels' pieces (None: none is extracted), and p where a unit's coordinates are truncated at
    clip / sqrt(p) (ModelMix; 0: they are not).
    """

    requests: Mapping[int, Request]
    model: ModelParts
    clips: list[float]
    piece: Callable[[int], Piece] | None = None
    linf_coordinates: int = 0


@dataclass
class Aggregate:
    """The sum of a round's updates, and what is known about it. All of it is private and stays on the server.

    Attributes:
        sums: float64 by name, new arrays: the release adds its noise to them.
        asked_nodes: how many were asked.
        reported, failed: units whose update is in the sums; those of them that were not finite and count as zero.
        refused_nodes: replies that were left out.
        oversized_nodes: those whose sum the server had to clip to (clip x units): no honest one is.
        clipped, below_clip: units whose update was longer than the norm in some part, or within it in every part, as
            the nodes claim: a unit counts as one at most.
        loss_sum, records: of the received model, on the units' records, as the nodes claim.
        nodes: those whose reply is in the sums.
        errors: why replies were left out and units failed, each a line that names the node.
    """

    sums: Sums
    asked_nodes: int
    reported: int = 0
    failed: int = 0
    refused_nodes: int = 0
    oversized_nodes: int = 0
    clipped: int = 0
    below_clip: int = 0
    loss_sum: float = 0.0
    records: int = 0
    nodes: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    @property
    def missing_nodes(self) -> int:
        """Nodes that were asked and whose reply is not in the sums."""
        return self.asked_nodes - len(self.nodes)


class Aggregator(ABC):
    """The protocol by which nodes' replies become one sum.

    For whoever adds secure aggregation, where the server is to see the sum and nothing else:

    *What may be assumed.* Each node sends one reply a round: the sum over its units of clipped updates. Every
    coordinate of a part with clipping norm c is a whole multiple of ``quantum(c)``, a power of two of at most
    c / 2**30, and at most c times the node's units in size; so ``sum / quantum`` is an integer, a masked sum is one
    modulo 2**b, and b = 32 + log2(units of the round) bits cannot overflow. Sums in another order are equal to the bit.
    Clipping norms are the same for all nodes of a round, and are in every message.

    *What the server may see.* The sum over the nodes that are in it, which nodes these are, and in sum the counts of
    :class:`Aggregate`. Not the reply of one node: what :class:`ClippedSums` checks of it (form, finite numbers, its
    share of the norm) is then for the nodes to prove, or it is trusted to them. ``extracted`` submodels tell which one
    a node trained: ask for whole models instead.

    *Where dropouts go.* A node that is not in the sum counts as zero: denominators are public and fixed, and nobody is
    asked again. What its masks need to be taken off must come from the other nodes within the round's deadline; if it
    cannot be had, raise :class:`fedamp.errors.FederationError`: nothing has been released, and the round can be
    played again. Never return a sum that still holds a mask.

    *Where it plugs in.* :meth:`prepare` adds public keys or shares to the messages of a round before they are sent,
    :meth:`aggregate` takes the replies apart. A protocol of more than one exchange a round keeps the grid that it is
    made with, and talks to the nodes again within :meth:`aggregate`. The class is given to
    :class:`fedamp.strategies.pipeline.ReleasePipeline`; the round loop does not change.
    """

    def prepare(self, messages: list[Message]) -> list[Message]:
        """The messages of a round, with what the protocol adds to them."""
        return messages

    @abstractmethod
    def aggregate(self, replies: Iterable[Message], asked: Asked) -> Aggregate:
        """Add up the replies of a round. Must not raise for anything that a single node sends."""


class ClippedSums(Aggregator):
    """The server sees every node's sum, refuses what cannot be right and clips the rest.

    A reply is refused, whole, if it is an error, comes from a node that was not asked or has answered already, has
    arrays of another name, shape or type, holds a number that is not finite, or claims units that the node was not
    asked for. Its sum is clipped to (clip x units that reported), and its coordinates likewise where the l-infinity
    norm is clipped, so that a faulty node cannot exceed its share. Coordinates are whole multiples of the quantum, so
    the order of replies does not matter, to the bit.
    """

    def aggregate(self, replies: Iterable[Message], asked: Asked) -> Aggregate:
        total = Aggregate(asked.model.zeros(), len(asked.requests))
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                _add(total, node, reply, asked)
            except Exception as error:  # whatever a faulty or hostile node sends, it must not stop the round
                total.refused_nodes += 1
                total.errors.append(f"node {_name(node, asked)}: {in_one_line(error)}")
                log.warning("reply left out: %s", total.errors[-1])
        return total


class _Answer(BaseModel):
    """What a node says beside its sums; nothing of it is believed yet."""

    model_config = ConfigDict(strict=True)

    reported: list[NonNegativeInt]
    failed: NonNegativeInt
    clipped: NonNegativeInt
    below_clip: NonNegativeInt
    records: NonNegativeInt
    loss_sum: FiniteFloat


def _add(total: Aggregate, node: int, reply: Message, asked: Asked) -> None:
    """Add one reply, or raise and leave ``total`` as it was."""
    if reply.has_error():
        raise ValueError(reply.error.reason)
    if node not in asked.requests:
        raise ValueError("nothing was asked of it")
    if node in total.nodes:
        raise ValueError("it has answered already")
    arrays, metrics = reply.content.get("arrays"), reply.content.get("metrics")
    if not isinstance(arrays, ArrayRecord) or not isinstance(metrics, MetricRecord):
        raise TypeError(unexpected("records", reply.content, ("arrays", "metrics")))
    if missing := set(_Answer.model_fields) - set(metrics):
        raise ValueError(unexpected("metrics", metrics, missing))
    request, claimed = asked.requests[node], metrics["reported"]
    if isinstance(claimed, list) and len(claimed) > len(request.units):  # before millions are looked at
        raise ValueError("it claims more units than it was asked for")
    answer = _Answer.model_validate(dict(metrics))
    units = len(answer.reported)
    if len(set(answer.reported)) != units or not request.units.issuperset(answer.reported):
        raise ValueError("it claims units that it was not asked for")
    if _add_sums(total.sums, flower.from_record(arrays), units, request.extracted, asked):
        total.oversized_nodes += 1
        log.warning(
            "node %s sent a sum beyond (clip x units), which was clipped: it is no honest one", _name(node, asked)
        )
    total.nodes.add(node)
    total.reported += units
    total.failed += min(answer.failed, len(request.units))
    total.clipped += min(answer.clipped, units)
    total.below_clip += min(answer.below_clip, units)
    total.records += answer.records
    total.loss_sum += min(max(answer.loss_sum, -_LARGEST_LOSS), _LARGEST_LOSS)
    if "errors" in reply.content:
        total.errors.append(f"node {_name(node, asked)}: {in_one_line(reply.content['errors']['first'])}")


def _name(node: int, asked: Asked) -> str:
    return (asked.requests[node].name if node in asked.requests else "") or str(node)


def _add_sums(totals: Sums, sums: Sums, units: int, extracted: int, asked: Asked) -> bool:
    """Returns whether they had to be clipped."""
    piece, part = asked.piece(extracted) if asked.piece and extracted >= 0 else None, totals
    if piece:
        nothing = {name: np.broadcast_to(0.0, shape) for name, shape in asked.model.shapes.items()}  # takes no memory
        part = {name: np.zeros(array.shape) for name, array in piece.extract(nothing).items()}
    _check_form(sums, {name: array.shape for name, array in part.items()})
    clipped = _add_limited(part, sums, asked, units)
    if piece:
        piece.embed_add(totals, part)
    return clipped


def _check_form(sums: Sums, shapes: Mapping[str, tuple[int, ...]]) -> None:
    if set(sums) != set(shapes):
        raise ValueError(unexpected("arrays", sums, shapes))
    for name, array in sums.items():
        if array.dtype != np.float64 or array.shape != tuple(shapes[name]):
            raise ValueError(f"array {name} is {array.dtype} {array.shape}, not float64 {tuple(shapes[name])}")
        with np.errstate(over="ignore", invalid="ignore"):
            square = np.vdot(array, array)  # one pass tells, for all arrays but huge ones
        if not np.isfinite(square) and not np.isfinite(array).all():
            raise ValueError(f"array {name} holds NaN or infinity")


def _add_limited(totals: Sums, sums: Sums, asked: Asked, units: int) -> bool:
    """Add every part, clipped to (clip x units), in whole quanta. Returns whether that took anything away."""
    norms = asked.model.norms(sums)
    clipped = any(norm > clip * units for norm, clip in zip(norms, asked.clips, strict=True))
    for name, total in totals.items():
        part = asked.model.part_of[name]
        clip, norm = asked.clips[part], norms[part]
        grid = quantum(clip)
        # Honest sums are within the limit and on the grid already, so this changes nothing for them.
        scale = 1.0 if norm <= clip * units else clip * units / norm * (1 - 1e-9)
        p = asked.linf_coordinates
        most = np.floor(clip / grid / math.sqrt(p)) * units if p else np.inf
        into, array = total.view(), sums[name].reshape(-1)
        into.shape = (-1,)  # totals that are not contiguous would be an error, not a copy that gets the sum instead
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
