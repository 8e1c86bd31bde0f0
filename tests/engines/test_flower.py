"""Records that hold arrays without copies, and where the lines of Flower's logger go."""

import logging
import subprocess
import sys
from datetime import timedelta

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.server.utils.validator import validate_message
from flwr.supercore.date import now
from flwr.supercore.logger import FLOWER_LOGGER

from fedamp.engines import flower


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


def test_a_line_of_the_log_cannot_be_forged(tmp_path):
    """Whatever a node says, and whoever logs it."""
    said = (
        "gone\r\n2026-01-01 00:00:00,000 WARNING fedamp.server: forged\x1b[31m\u2028\x85\x0bforged\u202e" + "x" * 10**7
    )
    with flower.chatter_to(tmp_path / "log.txt", "fedamp"):
        for logger in (logging.getLogger("fedamp.server"), FLOWER_LOGGER):
            logger.warning("reply refused: %s", said)
            try:
                raise ValueError(said)
            except ValueError:
                logger.exception("the run failed")
    text = (tmp_path / "log.txt").read_text(encoding="utf-8")
    records = [line for line in text.split("\n") if line and not line.startswith("    ")]
    assert [line.split(": ", 1)[1][:12] for line in records] == ["reply refuse", "the run fail"] * 2
    assert len(text) < 500_000  # instead of 40 MB
    assert set(text) - {"\n"} == {letter for letter in text if letter.isprintable()}


@pytest.mark.parametrize("ahead", [-86_400.0, 180.0])
def test_flower_takes_a_reply_of_a_node_whose_clock_is_off(monkeypatch, ahead):
    flower.identify()
    order = Message(RecordDict(), 2**63 + 7, "query", ttl=60.0)
    flower.set_message_id(order, "order")
    with monkeypatch.context() as there:
        there.setattr(sys.modules["flwr.app.message.message"], "now", lambda: now() + timedelta(seconds=ahead))
        reply = flower.timely_reply(RecordDict(), order)
    flower.set_message_id(reply, "reply")
    assert [error for error in validate_message(reply, is_reply_message=True) if "ttl" in error.lower()] == []
    assert reply.metadata.created_at + reply.metadata.ttl == pytest.approx(order.metadata.created_at + 60.0)
