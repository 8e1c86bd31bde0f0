"""Nodes that do not answer, on a grid where each trains in a thread of its own.

A deadline passes there once all that it waits for is the silent node, whatever the clock says.
"""

import queue
import threading
import time

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedamp.client.app import app
from fedamp.engines import flower
from fedamp.errors import FederationError
from fedamp.server.observers import Observer
from tests.federations import small
from tests.server.plays import ledger_of, play_in, rounds_of

DEADLINE = 1000.0  # seconds, which nobody waits
HOSTS = {2**63 + 5: "0-29", 2**63 + 6: "30-44", 2**63 + 7: "45-59"}
SILENT = 2**63 + 7
ROUNDS = 8


class Machines(Grid):
    """As a SuperLink does it: messages wait for their node, replies wait to be pulled, and old messages are gone."""

    def __init__(self) -> None:
        flower.identify()
        self.asked: list[tuple[int, str]] = []
        self.of: dict[str, int] = {}  # the node that a message goes to
        self.stalled = False  # whether a deadline has passed since the last round
        self.hang = threading.Event()  # while it is set the silent node answers nothing
        self.gone = False  # whether Flower believes that the silent node is
        self.replies: dict[str, object] = {}
        self.boxes = {node: queue.Queue() for node in HOSTS}
        self.number, self.one_at_a_time = 0, threading.Lock()
        for node in HOSTS:
            threading.Thread(target=self._live, args=(node,), daemon=True).start()

    def _live(self, node: int) -> None:
        context = Context(1, node, {"hosts": HOSTS[node]}, RecordDict(), {})
        while (message := self.boxes[node].get()) is not None:
            while node == SILENT and self.hang.is_set():
                time.sleep(0.01)
            with self.one_at_a_time:  # real nodes are processes of their own
                self.replies[message.metadata.message_id] = app(flower.copy_message(message), context)
            self.boxes[node].task_done()

    def get_node_ids(self):
        return [node for node in HOSTS if node != SILENT or not self.gone]

    def get_nodes(self):
        heard = {"online_until": time.time() - 12 + 2 * 30, "heartbeat_interval": 30.0}  # 12 s ago, in Flower's terms
        return [NodeInfo(node_id=node, name=f"site{node % 8}", **heard) for node in self.get_node_ids()]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            self.number += 1
            flower.set_message_id(message, f"message-{self.number}")
            ids.append(message.metadata.message_id)
            self.of[ids[-1]] = message.metadata.dst_node_id
            self.asked.append((message.metadata.dst_node_id, message.metadata.message_type))
            self.boxes[message.metadata.dst_node_id].put(message)
        return ids

    def pull_messages(self, message_ids):
        return [self.replies.pop(id_) for id_ in message_ids if id_ in self.replies]

    def send_and_receive(self, messages, *, timeout=None):
        left, came = set(self.push_messages(messages)), []
        while left:
            came += self.pull_messages(left)
            left -= {reply.metadata.reply_to_message_id for reply in came}
            if left and self.hang.is_set() and {self.of[id_] for id_ in left} == {SILENT}:
                self.stalled = True
                break
            time.sleep(0.005)
        return came

    def set_run(self, run) -> None: ...

    @property
    def run(self):
        return flower.empty_run()

    def create_message(self, *arguments, **named):
        raise NotImplementedError

    def asked_to_train(self) -> int:
        return self.asked.count((SILENT, "train"))

    def stop(self) -> None:
        self.hang.clear()
        for box in self.boxes.values():
            box.put(None)


@pytest.fixture
def machines():
    machines = Machines()
    yield machines
    machines.stop()


class Watch(Observer):
    """Lets the silent node hang after round 1, and go on after round 5.

    Args:
        heard_of: whether Flower hears from it meanwhile.
    """

    def __init__(self, machines: Machines, heard_of: bool = True) -> None:
        self.machines, self.heard_of, self.stalled = machines, heard_of, []

    def started(self, prepared, finished) -> None:
        pass

    def round_done(self, record) -> None:
        self.stalled.append(self.machines.stalled)
        self.machines.stalled = False
        if record.round == 1:
            self.machines.hang.set()
        self.machines.gone = record.round in (3, 4) and not self.heard_of
        if record.round == 5:
            self.machines.hang.clear()
            self.machines.boxes[SILENT].join()  # it works off what had come meanwhile

    def stopping(self) -> None:
        pass


def federation(*overrides: str):
    return small(
        "check_in={scheme: all}", f"federation={{round_deadline: {DEADLINE}, nodes: 3, hosts: trusted}}", *overrides
    )


def test_a_silent_node_stalls_two_rounds_and_is_back_when_it_answers(tmp_path, machines, caplog, monkeypatch):
    monkeypatch.setattr("fedamp.base.devices.busy_words", lambda: "; and this machine is")
    play_in(tmp_path, federation(), watch := Watch(machines), grid=machines)
    lines = rounds_of(tmp_path)
    # Rounds 2 and 3 wait for it; then it counts as zero and is not waited for.
    assert [line["reported"] for line in lines] == [60, 45, 45, 45, 45, 60, 60, 60]
    assert [line["scheduled"] for line in lines] == [60] * ROUNDS
    assert watch.stalled == [False, True, True, False, False, False, False, False]
    assert [line["nodes_given_up"] for line in lines] == [[], [], [SILENT], [], [], [], [], []]
    assert [line["nodes_back"] for line in lines] == [[], [], [], [], [], [SILENT], [], []]
    assert machines.asked_to_train() == 6  # not in rounds 4 and 5
    assert caplog.text.count(f"node site7 ({SILENT}) did not answer in time") == 2
    heard = f"node site7 ({SILENT}) was heard 12 s ago: busy, or round_deadline ({DEADLINE:g} s) is too short for it"
    assert caplog.text.count(f"{heard}; and this machine is") == 1
    assert f"node site7 ({SILENT}) missed 2 messages in a row" in caplog.text
    assert f"node site7 ({SILENT}) answers again" in caplog.text
    # What is charged, and by what is divided, is as planned.
    assert len(ledger_of(tmp_path)["releases"]) == ROUNDS
    assert ledger_of(tmp_path)["parts"][0]["denominator"] == 60


def test_a_silent_node_that_flower_disconnects_is_not_waited_for_when_it_is_back(tmp_path, machines, caplog):
    play_in(tmp_path, federation(), watch := Watch(machines, heard_of=False), grid=machines)
    lines = rounds_of(tmp_path)
    assert [line["reported"] for line in lines] == [60, 45, 45, 45, 45, 45, 60, 60]
    assert watch.stalled == [False, True, True, False, False, False, False, False]
    assert [line["nodes_back"] for line in lines] == [[], [], [], [], [], [], [SILENT], []]
    assert f"node site7 ({SILENT}) answers again" in caplog.text


def test_who_is_silent_counts_for_the_quorum_as_scheduled(tmp_path, machines):
    machines.hang.set()
    scenario = federation().model_copy(deep=True)
    asked = scenario.federation.model_copy(update={"quorum": 0.8})
    with pytest.raises(
        FederationError, match=rf"45 of 60 clients reported, below .* 0\.8 \(node site7 \({SILENT}\) did not"
    ):
        play_in(tmp_path, scenario.model_copy(update={"federation": asked}), grid=machines)


def test_a_node_that_never_names_its_clients_stalls_the_first_two_rounds_only(tmp_path, machines):
    machines.hang.set()
    play_in(tmp_path, federation("rounds=4"), watch := Watch(machines), grid=machines)
    lines = rounds_of(tmp_path)
    assert watch.stalled == [True, True, False, False]
    assert [line["nodes_given_up"] for line in lines] == [[], [SILENT], [], []]
    assert machines.asked_to_train() == 0
    assert np.all([line["reported"] == 45 for line in lines])
