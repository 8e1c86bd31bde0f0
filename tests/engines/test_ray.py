"""The Ray grid, as a Flower server app sees it: the serial grid's replies, whatever happens to the workers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedamp.engines import flower
from fedamp.engines.engines import open_grid
from fedamp.engines.resources import Demand
from fedamp.errors import FederationError, InputError
from fedamp.federation.running import Engine

pytest.importorskip("ray")

APP = "tests.engines.tiny_app:app"


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "log.txt"


@pytest.fixture(scope="module")
def grid(log):
    with open_grid(Engine(kind="ray", workers=2), log, APP) as grid:
        yield grid


def message(node: int, action: str = "train", size: int = 5, record=None, **config) -> Message:
    arrays = record or flower.to_record({"w": np.arange(size, dtype=np.float32)})
    return Message(RecordDict({"arrays": arrays, "config": ConfigRecord({"seeds": [1, 2], **config})}), node, action)


def round_of(grid, clients: int, size: int) -> np.ndarray:
    """Total over all clients, dealt to the nodes that there are."""
    nodes = grid.get_node_ids()
    record = flower.to_record({"w": np.linspace(0, 1, size, dtype=np.float32)})
    shares = [list(range(clients))[i :: len(nodes)] for i in range(len(nodes))]
    sent = [message(node, record=record, seeds=share) for node, share in zip(nodes, shares, strict=True)]
    replies = grid.send_and_receive(sent, timeout=60)
    assert [reply.metadata.src_node_id for reply in replies] == nodes
    assert sum(reply.content["metrics"]["count"] for reply in replies) == clients
    ones = sum(reply.content["arrays"]["w"].numpy() for reply in replies)
    return ones - (len(nodes) - 1) * record["w"].numpy().astype(np.float64)  # each node adds the global model once


def tell(grid) -> list[dict]:
    record = flower.to_record({"w": np.zeros(100_000, np.float32)})
    replies = grid.send_and_receive([message(node, "query", record=record) for node in grid.get_node_ids()], timeout=60)
    return [reply.content["node"] for reply in replies]


def test_same_replies_as_the_serial_grid(grid, tmp_path):
    with open_grid(Engine(kind="serial"), tmp_path / "a.txt", APP) as serial:
        expected = {size: round_of(serial, clients=7, size=size) for size in (5, 50_000, 1_000_000)}
    for size, total in expected.items():  # inside the call, and through shared memory
        np.testing.assert_allclose(round_of(grid, clients=7, size=size), total, rtol=1e-12)


def test_one_message_gives_bit_identical_replies(grid, tmp_path):
    with open_grid(Engine(kind="serial"), tmp_path / "a.txt", APP) as serial:
        [expected] = serial.send_and_receive([message(serial.get_node_ids()[0])])
    for reply in grid.send_and_receive([message(node) for node in grid.get_node_ids()], timeout=60):
        assert reply.content["arrays"]["w"].numpy().tobytes() == expected.content["arrays"]["w"].numpy().tobytes()


def test_workers_are_processes_with_one_thread_and_a_read_only_model(grid):
    told = tell(grid)
    assert len({node["pid"] for node in told} | {os.getpid()}) == 3
    assert [node["threads"] for node in told] == [1, 1]
    assert not any(node["writeable"] for node in told)
    assert [(node["partition"], node["partitions"], node["device"]) for node in told] == [(0, 2, "cpu"), (1, 2, "cpu")]
    assert grid.workers == 2
    assert grid.startup_seconds > 0


def test_replies_come_in_send_order_and_once(grid):
    first, second = grid.get_node_ids()
    sent = [message(first, "train.sleep", seconds=0.3), message(second), message(first), message(second)]
    ids = grid.push_messages(sent)
    pulled = []
    while len(pulled) < 4:
        pulled += grid.pull_messages(ids)
        time.sleep(0.01)
    assert sorted(reply.metadata.reply_to_message_id for reply in pulled) == sorted(ids)
    assert grid.pull_messages(ids) == []
    replies = grid.send_and_receive([message(first, "train.sleep", seconds=0.3), message(second)], timeout=60)
    assert [reply.metadata.src_node_id for reply in replies] == [first, second]


def test_exception_becomes_an_error_reply_and_the_traceback_is_logged(grid, log):
    failing, fine = grid.get_node_ids()
    bad, good = grid.send_and_receive([message(failing, "train.fail"), message(fine)], timeout=60)
    assert (bad.error.code, bad.error.reason) == (2, "ArithmeticError: clients 3 and 4 do not add up")
    assert good.has_content()
    assert "tiny_app.py" in log.read_text()


def test_killed_worker_is_started_again_with_the_same_message(grid, tmp_path, log, capfd):
    nodes = grid.get_node_ids()
    expected = grid.send_and_receive([message(node) for node in nodes], timeout=60)
    before = {node["pid"] for node in tell(grid)}
    mark = str(tmp_path / "mark")
    sent = [message(nodes[0], "train.die_once", mark=mark), message(nodes[1])]
    replies = grid.send_and_receive(sent, timeout=60)
    for reply, wanted in zip(replies, expected, strict=True):
        assert reply.content["arrays"]["w"] == wanted.content["arrays"]["w"]
    assert len({node["pid"] for node in tell(grid)} - before) == 1
    assert f"node {nodes[0]}: its worker died" in log.read_text()
    assert capfd.readouterr() == ("", "")


def test_worker_killed_from_outside_between_rounds_is_started_again(grid):
    os.kill(tell(grid)[1]["pid"], signal.SIGKILL)
    assert all(reply.has_content() for reply in grid.send_and_receive([message(node) for node in grid.get_node_ids()]))


@pytest.mark.slow
def test_message_that_kills_every_worker_ends_in_an_error_reply(grid, log):
    nodes = grid.get_node_ids()
    bad, good = grid.send_and_receive([message(nodes[0], "train.die"), message(nodes[1])], timeout=100)
    assert bad.error.code == 8
    assert bad.error.reason == "the worker died 3 times; its clients count as zero"
    assert bad.metadata.src_node_id == nodes[0]
    assert good.has_content()
    assert len(tell(grid)) == 2  # the node is back


def test_worker_that_dies_is_not_taken_for_a_slow_one(grid):
    """A worker takes seconds to be back, so it dies fewer than three times before the deadline."""
    nodes = grid.get_node_ids()
    bad, good = grid.send_and_receive([message(nodes[0], "train.die"), message(nodes[1])], timeout=3)
    assert bad.error.reason.startswith("the worker died")
    assert good.has_content()


def test_what_is_late_is_absent_and_does_not_hold_up_the_next_round(grid, log):
    nodes = grid.get_node_ids()
    start = time.monotonic()
    sent = [message(nodes[0], "train.sleep", seconds=500), message(nodes[1])]
    replies = grid.send_and_receive(sent, timeout=0.5)
    assert time.monotonic() - start < 5
    assert [reply.metadata.src_node_id for reply in replies] == [nodes[1]]
    assert f"node {nodes[0]} did not answer the train.sleep message" in log.read_text()
    again = grid.send_and_receive([message(node) for node in nodes], timeout=60)
    assert [reply.metadata.src_node_id for reply in again] == nodes


@pytest.mark.slow
def test_client_app_that_cannot_be_imported_is_named_at_once(tmp_path):
    with (
        pytest.raises(FederationError, match=r"could not load nowhere:app: .*No module named 'nowhere'"),
        open_grid(Engine(kind="ray", workers=1), tmp_path / "log.txt", "nowhere:app") as grid,
    ):
        grid.get_node_ids()


def test_missing_ray_is_answered_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(InputError, match=r"pip install 'fedamp\[ray\]', or engine.kind: serial") as caught,
        open_grid(Engine(kind="ray"), tmp_path / "log.txt"),
    ):
        pass
    assert "\n" not in str(caught.value)


PROGRAM = """
import os, pathlib, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background processes with it ignored
sys.path.insert(0, sys.argv[1])
from fedamp.federation.running import Engine
from fedamp.engines.engines import open_grid
from flwr.app import ConfigRecord, Message, RecordDict
engine = Engine(kind="ray", workers=1)
with open_grid(engine, pathlib.Path(sys.argv[2]), "tests.engines.tiny_app:app") as grid:
    grid.wait()
    [node] = grid.get_node_ids()
    [reply] = grid.send_and_receive([Message(RecordDict(), node, "query")])
    print(reply.content["node"]["pid"], flush=True)
    grid.send_and_receive([Message(RecordDict({"config": ConfigRecord({"seconds": 500})}), node, "train.sleep")])
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_running(tmp_path, end):
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[2]), str(tmp_path / "log.txt")]
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    worker = int(program.stdout.readline())
    time.sleep(0.5)
    os.killpg(program.pid, end) if end == signal.SIGINT else program.kill()
    _, errors = program.communicate(timeout=60)
    assert [line for line in errors.splitlines() if not line.startswith((" ", "Traceback", "KeyboardInterrupt"))] == []
    assert program.returncode == -end
    deadline = time.monotonic() + 30
    while _alive(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive(worker)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_workers_share_gpus_as_their_memory_allows(tmp_path, monkeypatch, grid):
    """All of it but the GPUs, of which Ray is told, and which the app makes torch believe in."""
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", '{"CPU": 8, "GPU": 2}')
    engine = Engine(kind="ray", device="cuda")
    with open_grid(engine, tmp_path / "log.txt", "tests.engines.gpu_app:app") as gpus:
        gpus.demand = Demand(worker_bytes=1 << 30, free_bytes=4 << 30, batches=100)
        told = tell(gpus)
        assert [node["device"] for node in told] == ["cuda"] * 6
        assert sorted(node["gpus"] for node in told) == ["0"] * 3 + ["1"] * 3
        np.testing.assert_array_equal(round_of(gpus, 9, size=5), round_of(grid, 9, size=5))
        node = gpus.get_node_ids()[0]
        [reply] = gpus.send_and_receive([message(node, "train.die_once", mark=str(tmp_path / "mark"))], timeout=60)
        assert reply.has_content()  # another worker found a place
        assert tell(gpus)[0]["gpus"] in ("0", "1")
    with open_grid(engine, tmp_path / "log.txt", APP) as none, pytest.raises(InputError, match="torch sees 0 GPU"):
        none.wait()
