"""Sealed messages: what goes in comes out, sizes follow from orders alone, and nothing else is read."""

import os
import tracemalloc

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from fedamp.client.app import app
from fedamp.engines import flower, sealed
from fedamp.errors import DeploymentError

EXAMPLES = settings(max_examples=60, deadline=None)  # the first one imports what others do not
SHAPES = st.dictionaries(
    st.text(min_size=1, max_size=9), arrays_of.array_shapes(min_dims=0, max_side=4), min_size=1, max_size=4
)
FLOATS = st.floats(allow_nan=False)
COUNT = st.integers(0, 2**63 - 1)


def order_of(shapes, units=((3, True), (5, True)), room=4, frozen=(), **train_config) -> RecordDict:
    config = {
        "task": "{}",
        "round": 7,
        "clients": [unit for unit, _ in units],
        "seeds": [os.urandom(31) + b"\0" for _ in units],
        "submodels": [-1 for _ in units],
        "counted": [counted for _, counted in units],
        "clips": [0.5, 2.0],
        "extracted": -1,
    }
    model = {name: np.random.default_rng(1).random(shape).astype(np.float32) for name, shape in shapes.items()}
    content = {
        "arrays": flower.to_record(model),
        "config": ConfigRecord(config),
        "form": ConfigRecord({"units": room, "frozen": list(frozen)}),
    }
    return RecordDict(content | ({"train_config": ConfigRecord(train_config)} if train_config else {}))


def query(units=100) -> RecordDict:
    return RecordDict({"config": ConfigRecord({"task": "{}"}), "form": ConfigRecord({"units": units})})


def reply_of(order: RecordDict, reported=(3,), text="", **metrics) -> RecordDict:
    frozen = order["form"]["frozen"]
    shapes = {name: array.shape for name, array in order["arrays"].items() if name not in frozen}
    sums = {name: np.asarray(np.random.default_rng(2).random(shape)) for name, shape in shapes.items()}
    told = {"failed": 0, "clipped": 0, "below_clip": 0, "records": 0, "loss_sum": 0.0, "seconds": 0.0} | metrics
    content = {"arrays": flower.to_record(sums), "metrics": MetricRecord({"reported": list(reported), **told})}
    return RecordDict(content | ({"errors": ConfigRecord({"first": text})} if text else {}))


def same(one: RecordDict, other: RecordDict) -> bool:
    values = [{name: dict(part) for name, part in each.items() if name != "arrays"} for each in (one, other)]
    pairs = [flower.from_record(each["arrays"]) if "arrays" in each else {} for each in (one, other)]
    return (
        values[0] == values[1]
        and list(pairs[0]) == list(pairs[1])
        and all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(*map(dict.values, pairs), strict=True))
    )


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
    data = sealed.seal_order(order)
    assert same(sealed.open_order(data), order)
    assert len(data) == len(sealed.seal_order(order_of(shapes, (), room, **order["train_config"])))


@EXAMPLES
@given(
    shapes=SHAPES,
    units=st.dictionaries(st.integers(0, 2**62), st.booleans(), max_size=70),
    numbers=st.tuples(COUNT, COUNT, COUNT, COUNT, FLOATS, FLOATS),
    text=st.text(max_size=400).map(lambda text: text.replace("\0", "")),
    data=st.data(),
)
def test_a_reply_comes_out_as_it_went_in_and_has_the_promised_size(shapes, units, numbers, text, data):
    frozen = data.draw(st.sets(st.sampled_from(sorted(shapes))))
    order = order_of(shapes, units.items(), len(units) + 3, frozen)
    reported = [unit for unit, counted in units.items() if counted and data.draw(st.booleans())]
    names = ("failed", "clipped", "below_clip", "records", "loss_sum", "seconds")
    short = text.encode()[: sealed.LONGEST_TEXT].decode(errors="replace")
    content = reply_of(order, reported, short, **dict(zip(names, numbers, strict=True)))
    reply = sealed.seal_reply(reply_of(order, reported, text, **dict(zip(names, numbers, strict=True))), order)
    assert len(reply) == sealed.reply_size(order) == len(sealed.seal_reply(sealed.failure("why"), order))
    assert same(sealed.open_reply(reply, sealed.open_order(sealed.seal_order(order))), content)


@given(hosted=st.one_of(st.none(), st.sets(st.integers(0, 99))))
def test_the_answer_to_a_query(hosted):
    content = RecordDict({"hosts": ConfigRecord({"all": hosted is None, "clients": sorted(hosted or ())})})
    reply = sealed.seal_reply(content, sealed.open_order(sealed.seal_order(query())))
    assert len(reply) == sealed.reply_size(query())
    assert same(sealed.open_reply(reply, query()), content)


def test_a_node_that_hosts_units_which_do_not_exist_is_told_so():
    content = RecordDict({"hosts": ConfigRecord({"all": False, "clients": [5, 100]})})
    with pytest.raises(ValueError, match=r"units \[100\] are not those that the server asks for"):
        sealed.seal_reply(content, query())


def test_the_reason_of_a_failed_node_is_its_reply():
    order = order_of({"w": (3,)})
    with pytest.raises(ValueError, match=r"^no data here$"):
        sealed.open_reply(sealed.seal_reply(sealed.failure("no data here"), order), order)


def test_what_is_no_reply_is_refused_before_it_takes_memory():
    order = order_of({"w": (1000, 1000)})  # a reply of 8 MB
    right = sealed.seal_reply(reply_of(order), order)
    others = [right[:-1], right + b"x", b"", right[:16], os.urandom(len(right)), b"x" + right[1:], bytes(len(right))]
    for data in others:
        tracemalloc.start()
        with pytest.raises(ValueError, match=r"its answer has|its bytes are no message"):
            sealed.open_reply(data, order)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000
    sealed.open_reply(right, order)


@pytest.mark.parametrize(
    ("units", "claimed"),
    [(((3, True),), 5), (((3, True), (5, False)), 5), ((), 3)],
    ids=["of nobody", "of a dummy", "though nothing counts"],
)
def test_a_reply_cannot_claim_units_that_were_not_asked_for(units, claimed):
    asked, believed = order_of({"w": (3,)}, units), order_of({"w": (3,)}, ((3, True), (5, True)))
    reply = sealed.seal_reply(reply_of(believed, [claimed]), believed)
    with pytest.raises(ValueError, match="claims units that it was not asked for"):
        sealed.open_reply(reply, asked)


def test_no_two_stored_objects_and_no_two_blocks_are_equal():
    zeros = {"w": np.zeros((1500, 1000), np.float32)}  # 6 MB: Flower cuts it in two chunks
    order = order_of({})
    order["arrays"] = flower.to_record(zeros)
    messages = [sealed.seal_order(order) for _ in range(2)]
    blocks = [data[i : i + 16] for data in messages for i in range(0, len(data) - 15, 16)]
    assert len(set(blocks)) == len(blocks)
    stored = [name for data in messages for name in get_all_nested_objects(sealed.record(data))]
    assert len(stored) == len(set(stored)) == 10  # records, record, array, two chunks


@pytest.mark.parametrize("data", [b"", b"x" * 5000, os.urandom(5000)])
def test_a_node_does_not_read_what_its_server_did_not_seal(data):
    with pytest.raises(DeploymentError, match="expected: one of a server with the same version of fedamp"):
        sealed.open_order(data)


def test_a_damaged_order_is_one_line():
    data = sealed.seal_order(order_of({"w": (1000,)}))
    with pytest.raises(DeploymentError, match="the message cannot be read"):
        sealed.open_order(data[:-4])


def sent(content: RecordDict, context: Context) -> bytes:
    """A node's sealed answer."""
    message = Message(sealed.record(sealed.seal_order(content)), 2, "train" if "arrays" in content else "query")
    flower.set_message_id(message, "1")
    data = sealed.data_of(app(message, context).content)
    assert len(data) == sealed.reply_size(content)
    return data


def test_a_node_that_cannot_do_what_it_was_asked_answers_alike(caplog):
    flower.identify()
    context = Context(1, 2, {"hosts": "nobody"}, RecordDict(), {})
    with pytest.raises(ValueError, match="hosts must be ids and ranges such as 0-9,12, got 'nobody'"):
        sealed.open_reply(sent(query(), context), query())
    order = order_of({"w": (3,)})
    order["form"]["secret"] = context.state["fedamp"]["secret"]
    with pytest.raises(ValueError, match="hosts must be ids and ranges such as 0-9,12, got 'nobody'"):
        sealed.open_reply(sent(order, context), order)
    assert "could not do what it was asked" in caplog.text


def test_an_order_in_the_servers_name_is_refused_without_the_nodes_secret():
    """A registered node can send it to another one. It cannot read the answer to a query, which holds the secret."""
    flower.identify()
    context = Context(1, 2, {"hosts": "0-3"}, RecordDict(), {})
    order = order_of({"w": (3,)})
    with pytest.raises(ValueError, match="does not know this server"):  # the server has not asked yet
        sealed.open_reply(sent(order, context), order)
    secrets = {sealed.open_reply(sent(query(), context), query())["hosts"]["secret"] for _ in range(2)}
    assert len(secrets) == 1  # whoever asks first: it stays the same
    for guess in ("", 32 * "0", "f" * 32):
        order["form"]["secret"] = guess
        with pytest.raises(ValueError, match="does not know this server"):
            sealed.open_reply(sent(order, context), order)
    order["form"]["secret"] = secrets.pop()
    with pytest.raises(ValueError, match="Error") as caught:  # it goes on to the task, which is none
        sealed.open_reply(sent(order, context), order)
    assert "does not know this server" not in str(caught.value)
