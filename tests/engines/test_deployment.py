"""The grid of a deployment on Flower's real SuperLink, with nodes that send any bytes."""

import os
import re
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as futures_wait
from contextlib import closing

import numpy as np
import pytest
from flwr.app import Message

from fedamp.engines import flower
from fedamp.engines.deployment import DeploymentGrid, guarded
from fedamp.engines.wire import RoundAnswer, RoundOrder, padded, rows
from fedamp.errors import FederationError
from tests.engines.superlink import Node, Object, above, sent, superlink
from tests.orders import answer_in, order_in

UNITS = 10
DEADLINE = 100_000.0  # seconds, which nobody waits
SMALL, LARGE = 100, 2_000_000  # numbers of a model; a sum of the large one is 16 MB, in four chunks


@pytest.fixture(scope="module")
def running():
    with superlink() as link:
        nodes = [Node(link, name) for name in ("north", "south")]
        with closing(DeploymentGrid(link.grid())) as grid:
            yield link, nodes, grid


def settle(grid: DeploymentGrid) -> None:
    """Wait until the replies of earlier tests are deleted, before a test changes what time it is."""
    grid._forgetting.submit(lambda: None).result()


def order_to(node: Node, numbers: int = SMALL) -> Message:
    arrays = {"w": np.zeros(numbers, np.float32)}
    return Message(RoundOrder("", 1, (1.0,), padded(rows([3], [bytes(32)]), UNITS), arrays).content(), node.id, "train")


def honest(order: Message, value: float = 1.0) -> bytes:
    """The sealed reply of a node whose sum is this number everywhere."""
    asked = order_in(order)
    sums = {"w": np.full(asked.arrays["w"].shape, value)}
    return RoundAnswer(sums, [3], below_clip=1, records=5, loss_sum=2.0, seconds=1.0).sealed(asked)


def play(running, second, numbers: int = SMALL) -> list[Message]:
    """The replies when the first node is honest and the second one does this with its order."""
    _, nodes, grid = running
    orders = [order_to(node, numbers) for node in nodes]
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(grid.send_and_receive, orders, timeout=DEADLINE)
        received = [node.order() for node in nodes]
        second(nodes[1], received[1], orders[1])
        nodes[0].push(received[0], sent(honest(orders[0])))
        replies = coming.result()
    assert replies[0].metadata.src_node_id == nodes[0].id
    assert replies[0].metadata.reply_to_message_id == orders[0].metadata.message_id
    assert (replies[0].content["arrays"]["w"].numpy() == 1).all()
    return replies[1:]


def test_replies_come_in_the_order_of_the_messages_whatever_is_around_them(running):
    """The first reply comes last. The message around a record is no protobuf: nobody looks."""
    replies = play(running, lambda node, received, order: node.push(received, sent(honest(order, 7.0))), LARGE)
    assert replies[0].metadata.src_node_id == running[1][1].id
    assert (replies[0].content["arrays"]["w"].numpy() == 7).all()
    order = order_to(running[1][1], LARGE)
    assert answer_in(replies[0], order).reported == [3]


def test_two_nodes_get_nothing_in_common(running):
    """Equal orders have no object with the same name, so no node sees what another one is sent."""
    link, nodes, grid = running
    ids = grid.push_messages([order_to(node, LARGE) for node in nodes])
    trees = [link.state.object_store.get_object_tree(name) for name in ids]

    def names(tree) -> set[str]:
        return {tree.object_id}.union(*map(names, tree.children))

    assert len(names(trees[0])) == len(names(trees[1])) == 6
    assert not names(trees[0]) & names(trees[1])
    for node in nodes:
        node.order()


def chunk(size: int) -> Object:
    return Object("ArrayChunk", body=os.urandom(size))


def renamed(times: int) -> Object:
    """An array that names its one chunk several times."""
    part = chunk(SIZE // times)
    array = Object("Array", [part], named=[part.name] * times)
    return Object("Message", [Object("RecordDict", [Object("ArrayRecord", [array])])])


def tower(height: int) -> Object:
    return Object("RecordDict", [tower(height - 1)] if height else [], os.urandom(20))


SIZE = 16 + 8 + 360 + 8 + 8 * SMALL  # nonce, magic, numbers and a text, bits of the units, the sum
WRONG = {
    "no objects": (lambda: Object("Message", body=b"\xff"), "not one sealed record"),
    "two records": (lambda: Object("Message", [Object("RecordDict", [tower(0), tower(0)])]), "not one sealed record"),
    "a tower": (lambda: Object("Message", [tower(80)]), "20 bytes; expected"),
    "too short": (lambda: above(chunk(900)), f"900 bytes; expected: {SIZE},"),
    "too long": (lambda: above(chunk(1300)), f"1300 bytes; expected: {SIZE},"),
    "a short record": (lambda: sent(os.urandom(900)), f"916 bytes; expected: {SIZE},"),
    "a long record": (lambda: sent(os.urandom(1300)), "not a message of this version"),
    "a far too long record": (lambda: sent(os.urandom(SIZE + 1100)), "too long|longer than"),
    "far too long": (lambda: above(chunk(6 << 20)), "too long|longer than"),
    "no reply": (lambda: sent(os.urandom(SIZE)), "not a message of this version"),
    "many parts": (lambda: above(*(chunk(9) for _ in range(99))), "99 parts"),
    "no parts": (lambda: above(), "other parts"),
    "other types": (lambda: above(Object("ConfigRecord", body=os.urandom(SIZE))), "not a message"),
    "one part often": (lambda: above(*[chunk(100)] * 20), f"100 bytes; expected: {SIZE},"),
    "one part very often": (lambda: above(*[chunk(100)] * 20_000), "too long"),
    "named twice": (lambda: renamed(2), "other parts than it says"),
    "parts of parts": (lambda: above(Object("ArrayChunk", [chunk(8)], os.urandom(SIZE))), "not a message"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_reply_of_another_form_is_its_node_s_failure(running, what):
    make, words = WRONG[what]
    replies = play(running, lambda node, received, order: node.push(received, make()))
    assert [reply.metadata.src_node_id for reply in replies] == [running[1][1].id]
    assert replies[0].has_error()
    assert re.search(words, replies[0].error.reason)


def test_an_array_that_repeats_a_chunk_takes_no_memory(running):
    """1 MB of a node, told 1,600 times; Flower's own grid makes 1.6 GB of it."""
    tracemalloc.start()
    try:
        reply = above(*[chunk(1 << 20)] * 1600)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        replies = play(running, lambda node, received, order: node.push(received, reply), LARGE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "too long" in replies[0].error.reason
    assert peak - before < 12 * 8 * LARGE  # the honest reply in SuperLink, node and server, which are one process here


def test_parts_that_do_not_come_hold_nobody_and_are_late_at_the_deadline(running, monkeypatch):
    """The deadline passes as soon as the honest node's reply has been taken."""
    superlink, passed = running[2]._superlink, []
    settle(running[2])
    monkeypatch.setattr("fedamp.engines.deployment.SETTLE", 0.0)
    forget = superlink.forget
    monkeypatch.setattr(superlink, "forget", lambda *which: passed.append(DEADLINE) or forget(*which))
    monkeypatch.setattr("fedamp.engines.deployment.monotonic", lambda: time.monotonic() + sum(passed))

    def keep_one(node, received, order):
        node.push(received, sent(honest(order)), kept_back=1)

    assert play(running, keep_one) == []


def test_a_node_that_is_started_again_unseen_holds_no_round(running, monkeypatch):
    """Between two looks it was away and came back, so Flower never reports the order that the killed process had."""
    monkeypatch.setattr("fedamp.engines.deployment.LOOK", 0.5)

    def start_again(node, received, order):
        node.leave()
        assert node.state.activate_node(node.id, 1e6)

    replies = play(running, start_again)
    assert [reply.metadata.src_node_id for reply in replies] == [running[1][1].id]
    assert replies[0].error.code == flower.STARTED_AGAIN
    assert replies[0].error.reason == "it was started again, and its order is lost"


def test_parts_that_come_within_the_deadline_are_in_time(running):
    def slowly(node, received, order):
        missing = node.push(received, sent(honest(order, 3.0)), kept_back=2)
        time.sleep(1)
        node.push_objects(missing)

    replies = play(running, slowly, LARGE)
    assert (replies[0].content["arrays"]["w"].numpy() == 3).all()


def test_no_reply_is_forgotten_before_its_node_has_sent_all_of_it(running):
    """What is around the array comes last, as real nodes send it. Nobody waits for it."""
    node, taken = running[1][1], []

    def slowly(node, received, order):
        taken.append(node.push(received, sent(honest(order, 3.0)), kept_back=2, root_last=True))

    replies = play(running, slowly)
    assert (replies[0].content["arrays"]["w"].numpy() == 3).all()
    assert node.push_objects(taken.pop()) == [True] * 2


def test_no_reply_is_left_when_the_run_ends(running):
    link, [node, _], _ = running
    order = order_to(node)
    with guarded(link.grid()) as grid, ThreadPoolExecutor(1) as pool:
        coming = pool.submit(grid.send_and_receive, [order], timeout=DEADLINE)
        node.push(node.order(), reply := sent(honest(order)))
        assert len(coming.result()) == 1
    assert not any(each.name in node.state.object_store for each in reply.all())


def test_an_error_of_a_node_is_told_and_cut(running):
    long = "no data here\n\x1b[2J" + "x" * 10**6
    replies = play(running, lambda node, received, order: node.push(received, Object("Message"), error=long))
    assert replies[0].error.code == 2
    assert replies[0].error.reason == long[:10_000]
    endless = "x" * (5 << 20)
    replies = play(running, lambda node, received, order: node.push(received, Object("Message"), error=endless))
    assert "longer than" in replies[0].error.reason


def test_what_nobody_asked_for_is_not_in_the_way(running, caplog):
    """A node can send the server messages of its own. Flower hands them out with the next reply, of whomever."""

    def intrude(node, received, order):
        for _ in range(40):
            node.intrude(1 << 18)  # 10 MB; a reply's header may have 4 MiB
        time.sleep(0.5)
        for number in range(100):
            node.push(received, sent(honest(order, number)))  # the first one counts

    replies = play(running, intrude)
    assert (replies[0].content["arrays"]["w"].numpy() == 0).all()
    assert [record for record in caplog.records if record.name.startswith("fedamp")] == []


def test_a_node_that_is_gone_is_told_in_flowers_name(running):
    link, _, grid = running
    lost = Node(link, "lost")
    lost.leave()
    [reply] = grid.send_and_receive([order_to(lost)], timeout=DEADLINE)
    assert (reply.metadata.src_node_id, reply.error.code) == (flower.SERVER_NODE, flower.NODE_LOST)
    assert lost.id not in grid.get_node_ids()
    assert {node.name for node in grid.get_nodes()} == {"north", "south"}


def test_a_ping_is_answered_when_its_node_likes(running):
    _, [node, _], grid = running
    first, second = order_to(node), order_to(node)
    [ping] = grid.push_messages([first])
    assert grid.pull_messages([ping, "made up"]) == []
    received = node.order()
    assert received.metadata.message_id == ping
    node.push(received, sent(honest(first)))
    [reply] = grid.pull_messages([ping])
    assert (reply.metadata.src_node_id, reply.metadata.reply_to_message_id) == (node.id, ping)
    assert grid.pull_messages([ping]) == []
    [again] = grid.push_messages([second])
    node.push(node.order(), Object("Message", body=b"\xff"))
    assert "not one sealed record" in grid.pull_messages([again])[0].error.reason


@pytest.mark.slow  # gRPC waits a minute
def test_a_superlink_that_is_gone_ends_every_wait(monkeypatch, caplog):
    with superlink() as link, closing(DeploymentGrid(link.grid())) as grid:
        node = Node(link, "north")
        [ping] = grid.push_messages([order_to(node)])
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(grid.send_and_receive, [order_to(node)], timeout=DEADLINE)
            node.order()
            link.stop()
            monkeypatch.setattr(flower.SuperLink, "PATIENCE", 0.5)
            monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
            with pytest.raises(FederationError, match=r"^the SuperLink has not answered for 0\.5 s \(.*refused\)$"):
                waiting.result()
        for call in (
            grid.get_node_ids,
            lambda: grid.push_messages([order_to(node)]),
            lambda: grid.pull_messages([ping]),
            lambda: grid.send_and_receive([order_to(node)], timeout=DEADLINE),
        ):
            with pytest.raises(FederationError, match=r"has not answered for 0\.5 s"):
                call()
        with pytest.raises(FederationError, match=r"has not answered for 0\.5 s"):  # no node is late meanwhile
            grid.send_and_receive([order_to(node)], timeout=0.05)
    said = caplog.text.count("the SuperLink does not answer")
    assert said in (1, 2), "once more where a call is still answered while the SuperLink stops"


@pytest.mark.slow  # gRPC waits a minute
def test_no_node_is_late_while_the_superlink_is_gone(monkeypatch):
    """One node has answered, and the other could not: the deadline passed, and the other was blamed."""
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    with superlink() as link, closing(DeploymentGrid(link.grid())) as grid, ThreadPoolExecutor(1) as pool:
        nodes = [Node(link, "north"), Node(link, "south")]
        orders = [order_to(node) for node in nodes]
        waiting = pool.submit(grid.send_and_receive, orders, timeout=5)
        received = nodes[0].order()
        nodes[0].push(received, sent(honest(orders[0])))
        time.sleep(1)  # its reply is taken
        link.stop()
        with pytest.raises(FederationError, match=r"^the SuperLink has not answered for \d+ s"):
            waiting.result()


def test_a_busy_machine_is_called_busy_and_waited_for_longer(monkeypatch, caplog):
    """Load 25 on one core: deadlines fired, and the SuperLink was said to be gone."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr("fedamp.base.devices.memory", lambda: (16e9, 8e9))
    monkeypatch.setattr(flower.SuperLink, "PATIENCE", 0.1)
    with superlink() as link, closing(DeploymentGrid(link.grid())) as grid:
        link.stop()
        for load, seconds, said in (
            (0.0, "0.1", r"\)$"),
            (25.0, "0.5", r"\); this machine is busy \(load 25 on 1 cores, "),
        ):
            monkeypatch.setattr("os.getloadavg", lambda load=load: (load, load, load))
            with pytest.raises(FederationError, match=rf"^the SuperLink has not answered for {seconds} s .*{said}"):
                grid.get_node_ids()


def test_many_nodes_are_not_asked_for_as_often_as_few(running, monkeypatch):
    """Each look for a reply costs the SuperLink 10 ms of a processor: one a second took all of it at 100 nodes."""
    _, nodes, grid = running
    settle(grid)
    slept, looks = [], []
    monkeypatch.setattr("fedamp.engines.deployment.sleep", slept.append)
    monkeypatch.setattr("fedamp.engines.deployment.monotonic", lambda: time.monotonic() + sum(slept))
    monkeypatch.setattr(grid._superlink, "push", lambda *_: "an id")
    monkeypatch.setattr(grid._superlink, "nodes", lambda *_: [])
    monkeypatch.setattr(grid._superlink, "arrival", lambda *which: looks.append(which))
    for count, most in ((100, 20 / 5 + 2), (3, 32)):  # of three nodes eight, and then one an eighth of the time so far
        looks.clear()
        assert grid.send_and_receive([order_to(nodes[0])] * count, timeout=20.0) == []
        assert len(looks) <= most * (count + 1)


def test_what_one_node_keeps_back_costs_no_looks_for_the_others(running, monkeypatch):
    """It sent the ids of a reply and no more: the server looked for all five times a second, as long as the round."""
    _, nodes, grid = running
    settle(grid)
    slept, looks = [], []
    orders = [order_to(nodes[0]) for _ in range(40)]
    monkeypatch.setattr("fedamp.engines.deployment.sleep", slept.append)
    monkeypatch.setattr("fedamp.engines.deployment.monotonic", lambda: sum(slept))
    monkeypatch.setattr("fedamp.engines.deployment.wait", lambda futures, timeout: futures_wait(futures))
    monkeypatch.setattr(grid._superlink, "push", lambda *_: "an id")
    monkeypatch.setattr(grid._superlink, "nodes", lambda *_: [])
    monkeypatch.setattr(grid._superlink, "object", lambda name, *_: looks.append(name))  # it is not there

    def arrival(order, deadline):
        looks.append(order)
        return flower.ReplyArrival("its id", array="an array") if order is orders[0] else None

    monkeypatch.setattr(grid._superlink, "arrival", arrival)
    assert grid.send_and_receive(orders, timeout=60.0) == []
    assert sum(order in orders[1:] for order in looks) <= (60 / 2 + 2) * len(orders)  # every two seconds: 40 * .05
    assert 10 <= looks.count("an array") <= 50


def test_a_node_is_not_asked_before_it_can_have_answered(running, monkeypatch):
    """The first round looks all the time; later ones begin shortly before the shortest of the last times."""
    _, [node, _], grid = running
    settle(grid)
    slept, looks = [], []
    monkeypatch.setattr("fedamp.engines.deployment.sleep", slept.append)
    monkeypatch.setattr("fedamp.engines.deployment.monotonic", lambda: sum(slept))
    monkeypatch.setattr("fedamp.engines.deployment.wait", lambda futures, timeout: futures_wait(futures))
    monkeypatch.setattr(grid, "_forget", lambda *_: None)
    monkeypatch.setattr(grid._superlink, "push", lambda *_: "an id")
    monkeypatch.setattr(grid._superlink, "nodes", lambda *_: [])

    def looks_of_a_round(seconds: float) -> int:
        def arrival(order, deadline):
            looks.append(order)
            there = order is not None and sum(slept) >= seconds
            return flower.ReplyArrival("its id", flower.error_reply(order, 2, "no records")) if there else None

        looks.clear()
        slept.clear()
        monkeypatch.setattr(grid._superlink, "arrival", arrival)
        assert grid.send_and_receive([order_to(node, 7)], timeout=100.0)
        return sum(order is not None for order in looks)

    assert [looks_of_a_round(seconds) for seconds in (10.0, 10.0, 10.0)] == [24, 2, 2]
    assert looks_of_a_round(1.0) == 1  # it has answered long ago
    assert looks_of_a_round(1.0) == 1
    assert [looks_of_a_round(1.0) for _ in range(9)][-1] in (2, 3)


def test_a_run_that_was_stopped_ends_with_a_line():
    with superlink() as link, closing(DeploymentGrid(link.grid())) as grid:
        node = Node(link, "north")
        assert grid.get_node_ids() == [node.id]
        link.state.finish_task(link.task, "stopped", "by its owner")
        with pytest.raises(FederationError, match="has stopped this run"):
            grid.send_and_receive([order_to(node)], timeout=DEADLINE)
