"""The tiny apps on stock Flower."""

import json
import sys
import time
import uuid
from contextlib import suppress

import psutil
import pytest

from fedamp.engines import flower_engine
from fedamp.errors import FederationError, InputError
from fedamp.federation.running import Engine

pytest.importorskip("ray")

APPS = ("tests.engines.tiny_app:server", "tests.engines.tiny_app:app")


@pytest.fixture
def left_running(monkeypatch):
    """The processes of this test, once those that are ending have had 15 seconds."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("FEDAMP_TEST_MARK", mark)

    def find() -> list[str]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("FEDAMP_TEST_MARK") == mark:
                    found.append(process.name())
        return found

    def wait() -> list[str]:
        deadline = time.monotonic() + 120
        while (found := find()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    return wait


def listening_addresses() -> set[str]:
    found = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            found |= {one.laddr.ip for one in child.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    return found


def test_stock_flower_reads_our_messages_and_tells_a_failed_run(tmp_path, capfd, left_running):
    log, out, heard = tmp_path / "log.txt", tmp_path / "result.json", set()
    config = {"out": str(out), "nodes": 2, "stay": False, "fail": True}
    with pytest.raises(FederationError, match=r"Flower's simulation failed .*the server app gave up"):
        flower_engine.run(config, log, Engine(workers=2), lambda: heard.update(listening_addresses()), APPS)
    result = {"total": [6, 8, 10, 12, 14], "replies": 2, "code": 2, "simulation": True}
    assert json.loads(out.read_text()) == result
    assert "clients 3 and 4 do not add up" in log.read_text()
    assert capfd.readouterr() == ("", "")
    assert heard
    assert heard <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert left_running() == []


@pytest.mark.slow
def test_nothing_is_left_running_when_interrupted(tmp_path, left_running):
    log = tmp_path / "log.txt"

    def interrupt() -> None:
        if "the nodes are there" in log.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flower_engine.run({"nodes": 2, "stay": True}, log, Engine(workers=2), interrupt, APPS)
    assert left_running() == []


@pytest.mark.parametrize("asked", [{}, {"device": "cuda"}, {"address": "auto"}])
def test_missing_ray_other_devices_and_machines_are_refused(monkeypatch, tmp_path, asked):
    said = r"engine\.kind: flower trains on this machine's cpu"
    if not asked:
        monkeypatch.setitem(sys.modules, "ray", None)
        said = r"engine\.kind: flower needs Ray, .*pip install 'fedamp\[ray\]'"
    with pytest.raises(InputError, match=said):
        flower_engine.run({}, tmp_path / "log.txt", Engine(**asked))
