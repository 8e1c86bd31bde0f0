"""What nodes answered, after everything that cannot be trusted in it was refused or clipped."""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from fedamp import flower
from fedamp.client.clipping import quantum
from fedamp.models.splits import Split
from fedamp.strategies.layout import Layout, Sums

log = logging.getLogger("fedamp.server")

_BLOCK = 1 << 16  # numbers handled at a time: they stay in the cache from one operation to the next


@dataclass(frozen=True)
class Request:
    """What one node was asked for.

    Attributes:
        units: the units whose update it may send.
        extracted: the submodel that its sums are in the shape of; -1 for the whole model.
    """

    units: frozenset[int]
    extracted: int = -1


@dataclass(frozen=True)
class Limits:
    """What the replies of a round are held against.

    Attributes:
        requests: what was asked, by node.
        layout: arrays and parts of the model.
        clips: clipping norm of each part.
        split: how the model is cut; None where no submodel is extracted.
        linf_coordinates: p, where a unit's coordinates are truncated at clip / sqrt(p) (ModelMix); 0: they are not.
    """

    requests: Mapping[int, Request]
    layout: Layout
    clips: list[float]
    split: Split | None = None
    linf_coordinates: int = 0


@dataclass
class Collected:
    """The sum of a round's updates, and what is known about it.

    All but ``sums`` are computed from private data without noise: they stay on the server.
    """

    sums: Sums
    reported: int = 0
    failed: int = 0
    refused_nodes: int = 0
    clipped: int = 0
    below_clip: int = 0
    loss_sum: float = 0.0
    records: int = 0
    nodes: set[int] = field(default_factory=set)


def collect(replies: Iterable[Message], limits: Limits) -> Collected:
    """Add up the replies of a round.

    A reply is refused, whole, if it is an error, comes from a node that was not asked or has answered already, has
    arrays of another name, shape or type, holds a number that is not finite, or claims units that the node was not
    asked for. Its sum is clipped to (clip x units that reported), and its coordinates likewise where the l-infinity
    norm is clipped, so that a faulty node cannot exceed its share. Coordinates are whole multiples of the quantum, so
    the order of replies does not matter, to the bit.
    """
    collected = Collected(limits.layout.zeros())
    for reply in replies:
        node = reply.metadata.src_node_id
        try:
            _add(collected, node, reply, limits)
        except Exception as error:  # whatever a faulty or hostile node sends, it must not stop the round
            collected.refused_nodes += 1
            log.warning("reply of node %s left out: %s", node, " ".join(str(error).split()) or type(error).__name__)
    return collected


def _add(collected: Collected, node: int, reply: Message, limits: Limits) -> None:
    """Add one reply, or raise and leave ``collected`` as it was."""
    if reply.has_error():
        raise ValueError(f"error {reply.error.code}: {reply.error.reason}")
    if node not in limits.requests:
        raise ValueError("nothing was asked of it")
    if node in collected.nodes:
        raise ValueError("it has answered already")
    request, answer = limits.requests[node], _Answer.of(reply)
    units = len(answer.reported)
    if len(set(answer.reported)) != units or not request.units.issuperset(answer.reported):
        raise ValueError("it claims units that it was not asked for")
    _add_sums(collected.sums, answer, request.extracted, limits)
    collected.nodes.add(node)
    collected.reported += units
    collected.failed += min(answer.failed, len(request.units))
    collected.clipped += min(answer.clipped, units)
    collected.below_clip += min(answer.below_clip, units)
    collected.records += answer.records
    collected.loss_sum += answer.loss_sum


def _add_sums(totals: Sums, answer: "_Answer", extracted: int, limits: Limits) -> None:
    split = limits.split if extracted >= 0 else None
    expected = split.extract(limits.layout.zeros(), extracted) if split else totals
    _check_form(answer.sums, {name: array.shape for name, array in expected.items()})
    if split is None:
        _add_limited(totals, answer.sums, limits, len(answer.reported))
        return
    part = {name: np.zeros(array.shape) for name, array in expected.items()}
    _add_limited(part, answer.sums, limits, len(answer.reported))
    split.embed_add(totals, part, extracted)


@dataclass(frozen=True)
class _Answer:
    """What a node says, taken apart; nothing of it is believed yet."""

    sums: dict[str, NDArray[np.float64]]
    reported: list[int]
    failed: int
    clipped: int
    below_clip: int
    records: int
    loss_sum: float

    @classmethod
    def of(cls, reply: Message) -> "_Answer":
        metrics, arrays = reply.content["metrics"], reply.content["arrays"]
        if not isinstance(arrays, ArrayRecord) or not isinstance(metrics, MetricRecord):
            raise TypeError("arrays and metrics are records of another kind")
        reported, loss_sum = metrics["reported"], metrics["loss_sum"]
        if not isinstance(reported, list):
            raise TypeError(f"reported must be a list of ids, got {reported!r}")
        if not isinstance(loss_sum, float) or not math.isfinite(loss_sum):
            raise ValueError(f"loss_sum must be a finite number, got {loss_sum!r}")
        counts = {key: _count(key, metrics[key]) for key in ("failed", "clipped", "below_clip", "records")}
        units = [_count("reported", unit) for unit in reported]
        return cls(flower.from_record(arrays), units, loss_sum=loss_sum, **counts)


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be whole numbers >= 0, got {value!r}")
    return value


def _check_form(sums: Mapping[str, NDArray[np.float64]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    if set(sums) != set(shapes):
        raise ValueError(f"arrays {sorted(set(sums) ^ set(shapes))} are missing or unknown")
    for name, array in sums.items():
        if array.dtype != np.float64 or array.shape != tuple(shapes[name]):
            raise ValueError(f"array {name} is {array.dtype} {array.shape}, not float64 {tuple(shapes[name])}")
        with np.errstate(over="ignore", invalid="ignore"):
            square = np.vdot(array, array)  # one pass tells, for all arrays but huge ones
        if not np.isfinite(square) and not np.isfinite(array).all():
            raise ValueError(f"array {name} holds NaN or infinity")


def _add_limited(totals: Sums, sums: Sums, limits: Limits, units: int) -> None:
    """Add every part, clipped to (clip x units), in whole quanta."""
    norms = limits.layout.norms(sums)
    for name, total in totals.items():
        part = limits.layout.part_of[name]
        clip, norm = limits.clips[part], norms[part]
        grid = quantum(clip)
        # Honest sums are within the limit and on the grid already, so this changes nothing for them.
        scale = 1.0 if norm <= clip * units else clip * units / norm * (1 - 1e-9)
        p = limits.linf_coordinates
        most = np.floor(clip / grid / math.sqrt(p)) * units if p else np.inf
        into, array = total.view(), sums[name].reshape(-1)
        into.shape = (-1,)  # totals that are not contiguous would be an error, not a copy that gets the sum instead
        for start in range(0, into.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            quanta = array[block] * (scale / grid)
            np.trunc(quanta, out=quanta)
            if p:
                np.clip(quanta, -most, most, out=quanta)
            quanta *= grid
            into[block] += quanta
