"""What nodes answered, after everything that cannot be trusted in it was refused or clipped."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray

from fedamp import flower
from fedamp.client.clipping import quantum
from fedamp.models.splits import Split
from fedamp.strategies.layout import Layout, Sums

log = logging.getLogger("fedamp.server")


@dataclass(frozen=True)
class Request:
    """What one node was asked for.

    Attributes:
        units: the units whose update it may send.
        extracted: the submodel that its sums are in the shape of; -1 for the whole model.
    """

    units: frozenset[int]
    extracted: int = -1


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


def collect(
    replies: Iterable[Message],
    requests: Mapping[int, Request],
    layout: Layout,
    clips: list[float],
    split: Split | None,
) -> Collected:
    """Add up the replies of a round.

    A reply is refused, whole, if it is an error, comes from a node that was not asked or has answered already, has
    arrays of another name, shape or type, holds a number that is not finite, or claims units that the node was not
    asked for. Its sum is clipped to (clip x units that reported), so that a faulty node cannot exceed its share.
    Coordinates are whole multiples of the quantum, so the order of replies does not matter, to the bit.
    """
    collected = Collected(layout.zeros())
    for reply in replies:
        node = reply.metadata.src_node_id
        problem = _add(reply, node, requests, layout, clips, split, collected)
        if problem:
            collected.refused_nodes += 1
            log.warning("reply of node %s left out: %s", node, problem)
    return collected


def _add(
    reply: Message,
    node: int,
    requests: Mapping[int, Request],
    layout: Layout,
    clips: list[float],
    split: Split | None,
    collected: Collected,
) -> str | None:
    """Add one reply to ``collected``; what is wrong with it instead, if anything."""
    if reply.has_error():
        return f"error {reply.error.code}: {reply.error.reason}"
    if node not in requests:
        return "nothing was asked of it"
    if node in collected.nodes:
        return "it has answered already"
    request = requests[node]
    try:
        metrics = reply.content["metrics"]
        reported = [int(unit) for unit in metrics["reported"]]  # type: ignore[union-attr]
        counts = [int(metrics[key]) for key in ("failed", "clipped", "below_clip", "records")]  # type: ignore[arg-type]
        loss_sum = float(metrics["loss_sum"])  # type: ignore[arg-type]
        record = reply.content["arrays"]
        assert isinstance(record, ArrayRecord)
        sums = flower.from_record(record)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        return f"malformed ({type(error).__name__}: {error})"
    if len(set(reported)) != len(reported) or not request.units.issuperset(reported):
        return "it claims units that it was not asked for"
    shapes = dict(layout.shapes)
    if request.extracted >= 0:
        assert split is not None
        shapes = {name: array.shape for name, array in split.extract(layout.zeros(), request.extracted).items()}
    problem = _malformed(sums, shapes)
    if problem:
        return problem
    _limit(sums, layout, clips, len(reported))
    if request.extracted >= 0:
        assert split is not None
        split.embed_add(collected.sums, sums, request.extracted)
    else:
        for name, total in collected.sums.items():
            total += sums[name]
    collected.nodes.add(node)
    collected.reported += len(reported)
    collected.failed += counts[0]
    collected.clipped += counts[1]
    collected.below_clip += min(max(counts[2], 0), len(reported))
    collected.records += counts[3]
    collected.loss_sum += loss_sum
    return None


def _malformed(sums: Mapping[str, NDArray[np.float64]], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    if set(sums) != set(shapes):
        return f"arrays {sorted(set(sums) ^ set(shapes))} are missing or unknown"
    for name, array in sums.items():
        if array.dtype != np.float64 or array.shape != tuple(shapes[name]):
            return f"array {name} is {array.dtype} {array.shape}, not float64 {tuple(shapes[name])}"
        if not np.isfinite(array).all():
            return f"array {name} holds NaN or infinity"
    return None


def _limit(sums: Sums, layout: Layout, clips: list[float], reported: int) -> None:
    """Clip every part to (clip x reported), in place, to whole quanta."""
    for part, (norm, clip) in enumerate(zip(layout.norms(sums), clips, strict=True)):
        grid = quantum(clip)
        # Honest sums are within the limit and on the grid already, so this changes nothing for them.
        scale = 1.0 if norm <= clip * reported else clip * reported / norm * (1 - 1e-9)
        for name in [name for name in sums if layout.part_of[name] == part]:
            sums[name] = np.trunc(sums[name] * (scale / grid)) * grid
