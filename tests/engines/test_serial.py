"""The serial grid, as a Flower server app sees it."""

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedamp.engines import flower
from fedamp.engines.serial import SerialGrid

ROOT = Path(__file__).parents[2]


def message(node: int, action: str = "train", **config) -> Message:
    arrays = flower.to_record({"w": np.arange(4, dtype=np.float32), "b": np.ones((), np.float32)})
    return Message(RecordDict({"arrays": arrays, "config": ConfigRecord({"seeds": [1, 2], **config})}), node, action)


@pytest.fixture
def grid() -> SerialGrid:
    return SerialGrid("tests.engines.tiny_app:app")


def test_replies_with_the_client_apps_sum(grid):
    [node] = grid.get_node_ids()
    [reply] = grid.send_and_receive([message(node)], timeout=60)
    np.testing.assert_array_equal(reply.content["arrays"]["w"].numpy(), [3, 4, 5, 6])
    assert reply.content["metrics"]["count"] == 2


def test_replies_come_in_send_order_and_once(grid):
    [node] = grid.get_node_ids()
    ids = grid.push_messages([message(node), message(node, "train.fail"), message(node)])
    replies = grid.pull_messages(ids)
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids
    assert grid.pull_messages(ids) == []


def test_exception_becomes_an_error_reply(grid, caplog):
    [node] = grid.get_node_ids()
    [reply] = grid.send_and_receive([message(node, "train.fail")], timeout=60)
    assert reply.error.code == 2
    assert reply.error.reason == "ArithmeticError: clients 3 and 4 do not add up"
    assert "tiny_app.py" in caplog.text  # the traceback is kept for the log


def test_what_is_late_is_absent_and_named(grid, caplog):
    [node] = grid.get_node_ids()
    late = [message(node, "train.sleep", seconds=0.2), message(node)]
    assert grid.send_and_receive(late, timeout=0.1) == []
    assert caplog.text.count(f"node {node} did not answer") == 2
    assert len(grid.send_and_receive([message(node)], timeout=60)) == 1


def test_node_trains_with_one_thread_and_cannot_change_the_global_model(grid):
    import torch

    torch.set_num_threads(2)
    [reply] = grid.send_and_receive([message(grid.get_node_ids()[0], "query")])
    assert reply.content["node"]["threads"] == 1
    assert not reply.content["node"]["writeable"]
    assert torch.get_num_threads() == 2


def test_unknown_node_is_refused(grid):
    with pytest.raises(ValueError, match="dst_node_id must be one of"):
        grid.push_messages([message(99)])


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_records_hold_arrays_without_copies_and_look_stock_on_the_wire(shape):
    original = np.random.default_rng(0).normal(size=shape)
    record = flower.to_record({"w": original})
    assert np.shares_memory(record["w"].numpy(), original) or original.size == 0
    stock = ArrayRecord({"w": Array(original)})
    assert record.object_id == stock.object_id
    content = record["w"].deflate()
    children = record["w"].children
    np.testing.assert_array_equal(Array.inflate(content, children).numpy(), original)
    assert Array.inflate(content, children).shape == shape


def test_strided_arrays_keep_their_values():
    original = np.arange(6, dtype=np.float32).reshape(2, 3).T
    np.testing.assert_array_equal(flower.from_record(flower.to_record({"w": original}))["w"], original)


def test_chatter_goes_to_the_file_only(tmp_path):
    code = (
        "import pathlib, sys\nfrom fedamp.engines import flower\nfrom flwr.supercore import log\n"
        "with flower.chatter_to(pathlib.Path(sys.argv[1])): log(40, 'noise')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "log.txt"], capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""
    assert "noise" in (tmp_path / "log.txt").read_text()


MEMORY = """
import resource, sys
sys.modules["ray"] = None
sys.path.insert(0, sys.argv[1])
import torch
from fedamp.engines.node import Node

def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        [torch.ones(3 << 20) for _ in range(4)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(5)
nobody = faults(20)
Node("fedamp.client.app:app", 0, 1, "cpu")
faults(5)
print(nobody, faults(20))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about the allocator of glibc")
def test_a_node_needs_no_ray_and_keeps_the_memory_that_every_step_asks_for_again():
    """Four blocks of 12 MB, 20 times: 245,760 pages, cleared by the system each time or once."""
    command = [sys.executable, "-c", MEMORY, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    nobody, node = map(int, done.stdout.split())
    if nobody < 1000:
        pytest.skip("this system does not count the pages that it clears, or clears 512 of them at once")
    assert node <= nobody / 10
