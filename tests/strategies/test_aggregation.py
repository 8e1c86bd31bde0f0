"""What a node answers is refused or clipped before it touches the model, whatever it is."""

import math
import struct

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedamp.client.clipping import quantum
from fedamp.engines import flower
from fedamp.engines.wire import RoundAnswer, RoundOrder, rows
from fedamp.federation.norms import AdaptiveClip, NormCounts, clipping_of
from fedamp.federation.optimizers import ServerUpdate
from fedamp.models.model import Model
from fedamp.models.networks import initial_parameters
from fedamp.models.pieces import DisjointPiece
from fedamp.strategies.aggregation import ClippedSums, ModelParts, NodeOrders
from tests.models.splitting import split

SHAPES = {"w": (3, 2), "b": (2,)}
CLIP = 0.7
COUNTS = {"reported": [1, 2], "failed": 0, "clipped": 0, "below_clip": 2, "loss_sum": 1.5, "records": 4}


collect = ClippedSums().aggregate


def parts() -> ModelParts:
    return ModelParts.of({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()})


def order_for(*units: int, shapes=SHAPES, extracted: int = -1) -> RoundOrder:
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return RoundOrder("", 1, (CLIP,), rows(units, [bytes(32)] * len(units), extracted), arrays, extracted)


ORDERS = {2: order_for(1, 2), 3: order_for(3)}


def asked_for(**changes) -> NodeOrders:
    return NodeOrders(**{"orders": ORDERS, "model": parts(), "clips": [CLIP]} | changes)


def honest(size: float = 0.1) -> dict[str, np.ndarray]:
    whole = round(size / quantum(CLIP))
    return {name: np.full(shape, whole * quantum(CLIP)) for name, shape in SHAPES.items()}


def sent(content: RecordDict, node: int) -> Message:
    flower.identify()
    return Message(content, reply_to=Message(RecordDict({"config": ConfigRecord()}), node, "train"))


def reply(arrays=None, node: int = 2, order: RoundOrder | None = None, **counts) -> Message:
    """A node's reply; ``order``: the one that it answers, whatever it was asked."""
    order = order or ORDERS.get(node, ORDERS[2])
    content = RoundAnswer({}, **COUNTS | counts).content(order)
    content["arrays"] = arrays if isinstance(arrays, ArrayRecord) else flower.to_record(arrays or honest())
    return sent(content, node)


def refused(bad: Message, caplog) -> str:
    """The bad reply changes nothing, an honest one beside it is still added; the reason in the log."""
    caplog.clear()
    both = collect([bad, reply(node=3, reported=[3], below_clip=1)], asked_for())
    alone = collect([reply(node=3, reported=[3], below_clip=1)], asked_for())
    assert both.refused_nodes == 1
    assert all(np.array_equal(both.sums[name], alone.sums[name]) for name in SHAPES)
    assert (both.reported, both.loss_sum, both.records, both.below_clip) == (1, 1.5, 4, 1)
    (line,) = [record.getMessage() for record in caplog.records if "reply refused" in record.getMessage()]
    assert "\n" not in line
    assert "node 2" in line
    return line


def test_an_honest_reply_is_added_as_it_is():
    collected = collect([reply(), reply(node=3, reported=[3], below_clip=0, clipped=1)], asked_for())
    assert all(np.array_equal(collected.sums[name], 2 * honest()[name]) for name in SHAPES)
    assert (collected.reported, collected.clipped, collected.below_clip, collected.records) == (3, 1, 2, 8)
    assert collected.refused_nodes == 0


def holding(number: float) -> dict[str, np.ndarray]:
    arrays = honest()
    arrays["w"][1, 1] = number
    return arrays


ARRAYS = [
    *((holding(number), "NaN or infinity") for number in (math.nan, math.inf, -math.inf)),
    ({"w": np.zeros((3, 2))}, "; expected b, w, as"),
    (honest() | {"more": np.zeros(3)}, "; expected b, w, as"),
    (honest() | {"w": np.zeros((2, 3))}, "not float64"),
    (honest() | {"w": np.zeros(6)}, "not float64"),
    (honest() | {"w": np.zeros((3, 2), np.float32)}, "not float64"),
    (honest() | {"w": np.zeros((3, 2), np.int64)}, "not float64"),
    (honest() | {"w": np.zeros((3, 2), np.complex128)}, "not float64"),
    (ArrayRecord({"w": Array("float64", (3, 2), "numpy.ndarray", b"no array"), "b": Array(np.zeros(2))}), ""),
    (ArrayRecord({"w": Array("float64", (3, 2), "numpy.ndarray", b""), "b": Array(np.zeros(2))}), ""),
    (ArrayRecord(), "; expected b, w, as"),
]
# Of the head of an answer: status, failed, clipped, below_clip, records, loss, seconds; then a bit for each row.
LOSS, BITS = struct.calcsize("<B7x4Q"), struct.calcsize("<B7x4Q2d300s4x")


def head_of(message: Message) -> bytes:
    return message.content["answer"]["head"]


def with_head(head: object) -> Message:
    bad = reply()
    bad.content["answer"] = ConfigRecord({"head": head})
    return bad


def changed(place: int, data: bytes) -> Message:
    head = head_of(reply())
    return with_head(head[:place] + data + head[place + len(data) :])


def without(name: str) -> Message:
    bad = reply()
    del bad.content[name]
    return bad


def test_invalid_replies_are_refused(caplog, subtests):
    right = head_of(reply())
    replies = [(reply(arrays), reason) for arrays, reason in ARRAYS]
    replies += [(with_head(head), "the head of its answer") for head in (b"", right[:-1], right + b"x", "text", 7)]
    replies += [(changed(BITS, bytes([bits])), "claims units") for bits in (0b100, 0b111, 255)]
    replies += [(changed(BITS + 7, b"\x80"), "claims units")]
    replies += [(changed(LOSS, struct.pack("<d", loss)), "not finite") for loss in (math.nan, math.inf, -math.inf)]
    replies += [(changed(0, bytes([status])), "") for status in (2, 3, 4, 255)]
    replies += [(without(name), "as fedamp.client.app answers") for name in ("answer", "arrays")]
    replies += [(sent(RecordDict({"metrics": MetricRecord({"reported": [1]})}), 2), "it answered with metrics")]
    asked = Message(RecordDict({"config": ConfigRecord()}), 2, "train")
    replies += [(Message(Error(7, "out of\nmemory"), reply_to=asked), "out of memory")]
    for number, (bad, reason) in enumerate(replies):
        with subtests.test(str(number)):
            assert reason in refused(bad, caplog)


def test_an_answer_cannot_name_another_node_s_unit_nor_one_twice():
    for claimed in ([1, 3], [1, 99], [1, 1], [-1]):
        with pytest.raises(ValueError, match="are not those that the server asks for"):
            reply(reported=claimed)


def test_a_node_that_was_not_asked_or_answers_twice_is_refused():
    collected = collect([reply(node=9, reported=[]), reply(), reply()], asked_for())
    assert collected.refused_nodes == 2
    assert np.array_equal(collected.sums["w"], honest()["w"])


@pytest.mark.parametrize(("size", "reported"), [(1.0, []), (1.0, [1, 2]), (1e9, [1]), (1e160, [1, 2]), (1e300, [1])])
def test_an_enormous_sum_is_clipped_to_the_share_of_those_that_reported(size, reported):
    collected = collect(
        [reply({name: np.full(shape, size) for name, shape in SHAPES.items()}, reported=reported)], asked_for()
    )
    norm = math.sqrt(sum(float((array**2).sum()) for array in collected.sums.values()))
    assert norm <= CLIP * len(reported)
    if size < 1e100:  # above, squares overflow and the sum is dropped
        assert norm >= CLIP * len(reported) * (1 - 1e-6)
    for array in collected.sums.values():  # on the grid, so that sums stay exact
        assert np.array_equal(array, np.round(array / quantum(CLIP)) * quantum(CLIP))


def test_the_server_counts_and_names_the_nodes_that_it_had_to_clip(caplog):
    names = {2: "north (2)", 3: "south (3)"}
    longest = {name: np.full(shape, 2 * CLIP / math.sqrt(8) * (1 - 1e-6)) for name, shape in SHAPES.items()}
    replies = [reply(longest, clipped=0), reply(longest, node=3, reported=[3], clipped=0)]
    collected = collect(replies, asked_for(names=names))
    assert (collected.oversized_nodes, collected.clipped) == (1, 0)  # whatever the node itself claims
    assert "node south (3) sent a sum beyond" in caplog.text
    assert "north" not in caplog.text
    flat = {"w": np.zeros((3, 2)), "b": np.array([CLIP * (1 - 1e-6), 0.0])}  # short enough, but not in this coordinate
    for p, oversized in ((0, 0), (4, 0), (5, 1)):
        assert collect([reply(flat)], asked_for(linf_coordinates=p)).oversized_nodes == oversized


LARGEST = np.finfo(np.float64).max


def test_counts_that_lie_are_limited_to_what_was_asked():
    lies = {"failed": 10**9, "clipped": 10**9, "below_clip": 10**9, "records": 2**64 - 1, "loss_sum": LARGEST}
    collected = collect([reply(**lies), reply(node=3, **lies | {"reported": [3]})], asked_for())
    assert (collected.failed, collected.clipped, collected.below_clip, collected.reported) == (3, 3, 3, 3)
    assert math.isfinite(collected.loss_sum)  # two of the largest numbers would add up to infinity


@pytest.mark.parametrize("below", [0, 1, 2, 10**9])
def test_a_lie_moves_an_adaptive_norm_by_no_more_than_the_node_s_units_can(below):
    rule = clipping_of(AdaptiveClip(initial=CLIP, learning_rate=0.2), ServerUpdate(), 8, 60.0)

    def scale(claimed: int) -> float:
        collected = collect([reply(below_clip=claimed), reply(node=3, reported=[3], below_clip=1)], asked_for())
        counts = NormCounts(collected.below_clip, collected.reported, expected=10.0)
        return rule.next_scale(1.0, counts, seed=1, round_=1, private=True)

    # From one of its two units to none or both: one of the ten expected, at the learning rate; 1e-12 for rounding.
    assert abs(math.log(scale(below) / scale(1))) <= 0.2 * 1 / 10 + 1e-12


def test_coordinates_are_limited_where_the_l_infinity_norm_is():
    arrays = {"w": np.zeros((3, 2)), "b": np.array([1.9 * CLIP, 0.0])}
    collected = collect([reply(arrays)], asked_for(linf_coordinates=4))
    assert 2 * CLIP / 2 * (1 - 1e-6) <= collected.sums["b"][0] <= 2 * CLIP / 2


def test_each_part_has_its_own_limit():
    two = ModelParts.of({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}, frozenset({"b"}))
    arrays = {"w": np.full((3, 2), 100.0), "b": np.full(2, 100.0)}
    collected = collect([reply(arrays)], asked_for(model=two, clips=[0.1, 0.5]))
    norms = two.norms(collected.sums)
    assert norms == pytest.approx([0.2, 1.0], rel=1e-6)
    assert norms[0] <= 0.2
    assert norms[1] <= 1.0


def test_a_submodel_lands_in_its_own_place_and_nowhere_else():
    config = Model(name="mlp", hidden=(6,))
    whole = initial_parameters(config, (4,), 3, seed=1)
    cut = split(config, (4,), 3, count=3)
    both = ModelParts.of(whole, cut.shared)

    def piece(submodel: int) -> DisjointPiece:
        return cut.piece(submodel, known=True)

    small = {name: np.full(array.shape, 2.0**-12) for name, array in cut.piece(1).extract(both.zeros()).items()}
    order = order_for(1, 2, shapes={name: array.shape for name, array in small.items()}, extracted=1)
    collected = collect([reply(small, order=order)], NodeOrders({2: order}, both, [CLIP, CLIP], piece=piece))
    own = {name: np.zeros(array.shape) for name, array in whole.items()}
    cut.piece(1).embed_add(own, small)
    assert all(np.array_equal(collected.sums[name], own[name]) for name in whole)
    zeros = {name: np.zeros(array.shape) for name, array in whole.items()}
    full = collect([reply(zeros, order=order)], NodeOrders({2: order}, both, [1, 1], piece=piece))
    assert full.refused_nodes == 1  # the whole model, where a submodel was asked for


def test_the_order_of_replies_does_not_matter_to_the_bit():
    generator = np.random.default_rng(1)
    asked = {node: order_for(node) for node in range(2, 40)}
    replies = []
    for node in asked:
        update = {name: generator.normal(size=shape) * 10 ** generator.uniform(-6, 0) for name, shape in SHAPES.items()}
        replies.append(reply(update, node, asked[node], reported=[node], below_clip=0))
    forth, back = (collect(order, asked_for(orders=asked)).sums for order in (replies, replies[::-1]))
    assert all(np.array_equal(forth[name], back[name]) for name in SHAPES)
