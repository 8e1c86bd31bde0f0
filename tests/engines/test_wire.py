"""Orders and answers: what goes in comes out, sizes follow from orders alone, and nothing else is read."""

import os
import tracemalloc
from dataclasses import fields, replace

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from fedamp.client.app import app
from fedamp.engines import flower
from fedamp.engines.wire import (
    LONGEST_TEXT,
    AnswerStatus,
    NodeFailedError,
    RoundAnswer,
    RoundOrder,
    UpdateCounts,
    message_content,
    padded,
    rows,
    sealed_bytes,
)
from fedamp.errors import DeploymentError

EXAMPLES = settings(max_examples=25, deadline=None)  # the first one imports what others do not
SHAPES = st.dictionaries(
    st.text(min_size=1, max_size=9), arrays_of.array_shapes(min_dims=0, max_side=4), min_size=1, max_size=4
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
COUNT = st.integers(0, 2**63 - 1)
COUNTS = {each.name: each.type for each in fields(UpdateCounts)} | {"seconds": float}  # a further one is tried, too


def order_of(shapes, units=((3, True), (5, True)), room=4, frozen=(), **train_config) -> RoundOrder:
    units = list(units)
    seeds = [os.urandom(31) + b"\0" for _ in units]
    asked = rows([unit for unit, _ in units], seeds, counted=[counted for _, counted in units])
    model = {name: np.random.default_rng(1).random(shape).astype(np.float32) for name, shape in shapes.items()}
    return RoundOrder("{}", 7, (0.5, 2.0), padded(asked, max(room, len(asked))), model, -1, tuple(frozen), train_config)


def query(units=100) -> RoundOrder:
    return RoundOrder("{}", below=units)


def answer_to(order: RoundOrder, reported=(3,), **numbers) -> RoundAnswer:
    shapes = {name: array.shape for name, array in order.arrays.items() if name not in order.frozen}
    sums = {name: np.asarray(np.random.default_rng(2).random(shape)) for name, shape in shapes.items()}
    return RoundAnswer(sums, list(reported), **numbers)


def failure(why: str, status: AnswerStatus = AnswerStatus.FAILED) -> RoundAnswer:
    return RoundAnswer(text=why, status=status)


def same(one, other) -> bool:
    """Of two orders, or two answers."""
    for each in fields(one):
        first, second = getattr(one, each.name), getattr(other, each.name)
        if each.name in ("arrays", "sums"):
            assert list(first) == list(second)
            pairs = zip(first.values(), second.values(), strict=True)
            assert all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)
        elif each.name in ("rows", "following"):
            assert first.tobytes() == second.tobytes()
        else:
            assert first == second, each.name
    return True


@EXAMPLES
@given(
    shapes=SHAPES,
    units=st.dictionaries(st.integers(0, 2**62), st.booleans(), max_size=5),
    spare=st.integers(0, 9),
    config=st.dictionaries(
        st.text(min_size=1, max_size=5),
        st.one_of(st.booleans(), st.text(), st.binary(), FLOATS, st.lists(st.integers(-9, 9), max_size=3)),
        min_size=1,
    ),
)
def test_an_order_comes_out_as_it_went_in_and_its_size_tells_no_unit(shapes, units, spare, config):
    room = len(units) + spare
    order = order_of(shapes, units.items(), room, **{"lr": 0.1, **{f"of {key}": each for key, each in config.items()}})
    data = order.sealed()
    assert same(RoundOrder.of(message_content(data)), order)
    assert same(RoundOrder.of(order.content()), order)
    assert RoundOrder.of(message_content(data)).digest == order.digest
    assert len(data) == len(order_of(shapes, (), room, **order.config).sealed())


def test_simulated_orders_alone_tell_the_next_round():
    order = order_of({"weight": (3,)})
    told = replace(order, following=rows([7, 9], bytes(32)))
    assert RoundOrder.of(told.content()).following.tobytes() == told.following.tobytes()
    assert len(RoundOrder.of(message_content(told.sealed())).following) == 0
    assert len(told.sealed()) == len(order.sealed())


@EXAMPLES
@given(
    shapes=SHAPES,
    units=st.dictionaries(st.integers(0, 2**62), st.booleans(), max_size=70),
    numbers=st.tuples(*(FLOATS if kind is float else COUNT for kind in COUNTS.values())),
    text=st.text(max_size=400).map(lambda text: text.replace("\0", "")),
    data=st.data(),
)
def test_a_reply_comes_out_as_it_went_in_and_has_the_promised_size(shapes, units, numbers, text, data):
    frozen = data.draw(st.sets(st.sampled_from(sorted(shapes))))
    order = order_of(shapes, units.items(), len(units) + 3, frozen)
    reported = [unit for unit, counted in units.items() if counted and data.draw(st.booleans())]
    short = text.encode()[:LONGEST_TEXT].decode(errors="replace")
    answer = answer_to(order, reported, text=text, **dict(zip(COUNTS, numbers, strict=True)))
    expected = replace(answer, text=short)
    reply = answer.sealed(order)
    assert len(reply) == order.answer_size == len(failure("why").sealed(order))
    assert same(RoundAnswer.opened(reply, RoundOrder.of(message_content(order.sealed()))), expected)
    assert same(RoundAnswer.of(answer.content(order), order), expected)


@given(hosted=st.one_of(st.none(), st.sets(st.integers(0, 99))))
def test_the_answer_to_a_query(hosted):
    status = AnswerStatus.ANY_UNIT if hosted is None else AnswerStatus.DONE
    answer = RoundAnswer(reported=sorted(hosted or ()), status=status, text="a secret")
    reply = answer.sealed(RoundOrder.of(message_content(query().sealed())))
    assert len(reply) == query().answer_size
    assert same(RoundAnswer.opened(reply, query()), answer)


def test_a_node_that_hosts_units_which_do_not_exist_is_told_so():
    with pytest.raises(ValueError, match=r"units \[100\] are not those that the server asks for"):
        RoundAnswer(reported=[5, 100]).sealed(query())


@pytest.mark.parametrize("status", [AnswerStatus.FAILED, AnswerStatus.STARTED_AGAIN])
def test_the_reason_of_a_failed_node_is_its_reply(status):
    order = order_of({"w": (3,)})
    with pytest.raises(NodeFailedError, match=r"^no data here$") as caught:
        RoundAnswer.opened(failure("no data here", status).sealed(order), order)
    assert caught.value.status == status


def test_what_is_no_reply_is_refused_before_it_takes_memory():
    order = order_of({"w": (1000, 1000)})  # a reply of 8 MB
    right = answer_to(order).sealed(order)
    others = [right[:-1], right + b"x", b"", right[:16], os.urandom(len(right)), b"x" + right[1:], bytes(len(right))]
    for data in others:
        tracemalloc.start()
        with pytest.raises(ValueError, match=r"its answer has|its bytes are not a message"):
            RoundAnswer.opened(data, order)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000
    RoundAnswer.opened(right, order)


@pytest.mark.parametrize(
    ("units", "claimed"),
    [(((3, True),), 5), (((3, True), (5, False)), 5), ((), 3)],
    ids=["of nobody", "of a dummy", "though nothing counts"],
)
def test_a_reply_cannot_claim_units_that_were_not_asked_for(units, claimed):
    asked, believed = order_of({"w": (3,)}, units), order_of({"w": (3,)}, ((3, True), (5, True)))
    answer = answer_to(believed, [claimed])
    with pytest.raises(ValueError, match="claims units that it was not asked to train"):
        RoundAnswer.opened(answer.sealed(believed), asked)
    with pytest.raises(ValueError, match="claims units that it was not asked to train"):
        RoundAnswer.of(answer.content(believed), asked)


def test_no_two_stored_objects_and_no_two_blocks_are_equal():
    zeros = {"w": np.zeros((1500, 1000), np.float32)}  # 6 MB: Flower cuts it in two chunks
    messages = [replace(order_of({}), arrays=zeros).sealed() for _ in range(2)]
    blocks = [data[i : i + 16] for data in messages for i in range(0, len(data) - 15, 16)]
    assert len(set(blocks)) == len(blocks)
    stored = [name for data in messages for name in get_all_nested_objects(message_content(data))]
    assert len(stored) == len(set(stored)) == 10  # records, record, array, two chunks
    few = message_content(order_of({"w": (1000,)}).sealed())
    assert len(get_all_nested_objects(few)) == 2  # records, record: each object takes four requests


@pytest.mark.parametrize("data", [b"", b"x" * 5000, os.urandom(5000)])
def test_a_node_does_not_read_what_its_server_did_not_seal(data):
    with pytest.raises(DeploymentError, match="expected: one of a server with the same version of fedamp"):
        RoundOrder.of(message_content(data))


@pytest.mark.parametrize("field", ["round", "below", "answer_bytes", "cells"])
@pytest.mark.parametrize("number", [-1, 2**62])
def test_an_order_cannot_ask_for_more_memory_than_there_is(field, number):
    order = query()
    object.__setattr__(order, field, number)  # as a hostile server would send it
    with pytest.raises(DeploymentError, match=f"{field} must be from 0 to"):
        RoundOrder.of(message_content(order.sealed()))


def test_a_damaged_order_is_one_line():
    data = order_of({"w": (1000,)}).sealed()
    with pytest.raises(DeploymentError, match="the message cannot be read"):
        RoundOrder.of(message_content(data[:-4]))


def told(order: RoundOrder, context: Context) -> RoundAnswer:
    """A node's answer, sealed on its way."""
    message = Message(message_content(order.sealed()), 2, "train" if order.arrays else "query")
    flower.set_message_id(message, "1")
    data = sealed_bytes(app(message, context).content)
    assert len(data) == order.answer_size
    return RoundAnswer.opened(data, order)


def test_a_node_that_cannot_do_what_it_was_asked_answers_alike(caplog):
    flower.identify()
    context = Context(1, 2, {"hosts": "nobody"}, RecordDict(), {})
    with pytest.raises(ValueError, match="hosts must be ids and ranges such as 0-9,12, got 'nobody'"):
        told(query(), context)
    order = replace(order_of({"w": (3,)}), secret=context.state["fedamp"]["secret"])
    with pytest.raises(ValueError, match="this node cannot read the task of the run: model: missing"):
        told(order, context)
    assert "refused: DeploymentError: hosts must be ids" in caplog.text


def test_an_order_in_the_servers_name_is_refused_without_the_nodes_secret():
    """A registered node can send it to another one. It cannot read the answer to a query, which holds the secret."""
    flower.identify()
    context = Context(1, 2, {"hosts": "0-9"}, RecordDict(), {})
    order = order_of({"w": (3,)})
    with pytest.raises(NodeFailedError, match="does not know this server") as caught:  # the server has not asked yet
        told(order, context)
    assert caught.value.status == AnswerStatus.STARTED_AGAIN
    secrets = {told(query(), context).text for _ in range(2)}
    assert len(secrets) == 1  # whoever asks first: it stays the same
    for guess in ("", 32 * "0", "f" * 32):
        with pytest.raises(ValueError, match="does not know this server"):
            told(replace(order, secret=guess), context)
    with pytest.raises(ValueError, match="cannot read the task of the run") as caught:  # it has none
        told(replace(order, secret=secrets.pop()), context)
    assert caught.value.status == AnswerStatus.FAILED
