"""The tiny apps on stock Flower."""

import json
import os
import sys
import tempfile
import time
from contextlib import suppress

import psutil
import pytest

from fedamp.engines import flower_engine
from fedamp.errors import FederationError, InputError
from fedamp.federation.running import Engine

pytest.importorskip("ray")

APPS = {"server_app": "tests.engines.tiny_server:app", "client_app": "tests.engines.tiny_app:app"}


def processes_naming(text: str) -> list[str]:
    """Processes with a text in their environment, once those that are ending have had 15 seconds."""
    deadline = time.monotonic() + 15
    while (found := _processes_naming(text)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _processes_naming(text: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ") as environment:
                if text in environment.read():
                    found.append(pid)
        except OSError:
            continue
    return found


def listening_addresses() -> set[str]:
    found = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            found |= {one.laddr.ip for one in child.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    return found


def test_messages_mean_the_same_to_stock_flower_and_a_failed_run_is_told_apart(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # and so this test's processes are told from others
    log, out, heard = tmp_path / "log.txt", tmp_path / "result.json", set()
    config = {"out": str(out), "nodes": 2, "stay": False, "fail": True}
    with pytest.raises(FederationError, match=r"'finished:failed' \(.*the server app gave up\)"):
        flower_engine.run(config, log, Engine(workers=2), watch=lambda: heard.update(listening_addresses()), **APPS)
    result = {"total": [6, 8, 10, 12, 14], "replies": 2, "code": 2, "simulation": True}
    assert json.loads(out.read_text()) == result
    assert "clients 3 and 4 do not add up" in log.read_text()
    assert capfd.readouterr() == ("", "")
    assert heard
    assert heard <= {"127.0.0.1", "::ffff:127.0.0.1"}  # of Flower's processes and of its Ray's
    assert processes_naming(str(tmp_path)) == []


@pytest.mark.slow
def test_nothing_is_left_running_when_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    log = tmp_path / "log.txt"

    def interrupt() -> None:
        if "the nodes are there" in log.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flower_engine.run({"nodes": 2, "stay": True}, log, Engine(workers=2), watch=interrupt, **APPS)
    assert processes_naming(str(tmp_path)) == []


def test_missing_ray_is_answered_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"engine\.kind: flower needs Ray, .*pip install 'fedamp\[ray\]'"):
        flower_engine.run({}, tmp_path / "log.txt", Engine())


@pytest.mark.parametrize("asked", [{"device": "cuda"}, {"address": "auto"}])
def test_other_devices_and_machines_are_refused(tmp_path, asked):
    with pytest.raises(InputError, match=r"engine\.kind: flower trains on this machine's cpu"):
        flower_engine.run({}, tmp_path / "log.txt", Engine(**asked))
