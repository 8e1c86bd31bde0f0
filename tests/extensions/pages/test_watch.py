"""The live page of a run: what it says, who may read it, and when it ends."""

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from fedamp.errors import RunFolderError
from fedamp.extensions.pages import watch
from fedamp.extensions.pages.watch import progress, served
from fedamp.server.launch import launch
from fedamp.server.observers import Observers
from tests.extensions.pages.test_browser import browse
from tests.federations import small
from tests.tools import BROWSER


@contextmanager
def answer(address: str, path: str | None = None, host: str | None = None):
    """The status, the headers and the text of an answer."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
    try:
        connection.request("GET", path or parts.path, headers={"Host": host} if host else {})
        found = connection.getresponse()
        yield found.status, found.headers, found.read().decode()
    finally:
        connection.close()


def numbers(address: str) -> dict:
    with answer(address + "progress.json") as (status, _, text):
        assert status == 200
        return json.loads(text)


def test_the_page_says_what_the_run_folder_says(stopped):
    rounds = [json.loads(line) for line in (stopped / "rounds.jsonl").read_text().splitlines()]
    ledger = json.loads((stopped / "ledger.json").read_text())
    with served(stopped) as address:
        said = numbers(address)
        with answer(address) as (status, headers, page):
            assert status == 200
    assert said["round"] == "2 of 8"
    assert said["quality"] == f"{rounds[-1]['accuracy']:.1%} accuracy"
    spent, whole = rounds[-1]["epsilon_upper"], ledger["whole_run_epsilon"]["upper"]
    assert spent <= float(re.search(r"ε ≤ ([\d.]+) of", said["spent"])[1]) <= spent + 0.1  # rounded up
    assert whole - spent - 0.1 <= float(said["left"].removeprefix("ε ")) <= whole - spent  # rounded down
    scheduled, reported = (sum(record[key] for record in rounds) for key in ("scheduled", "reported"))
    assert said["reported"].endswith(f"{reported} of {scheduled} in all")
    assert said["state"].startswith("interrupted")
    assert all(said[key] in page for key in ("round", "quality", "spent", "left", "reported"))
    assert "Not protected" in page
    assert "src=" not in page  # nothing from elsewhere
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"


def test_a_budget_and_no_privacy_are_said(runs):
    with served(runs["hidden"]) as address:
        assert numbers(address)["spent"].endswith("of 12.0")
    with served(runs["open"]) as address:
        assert numbers(address)["spent"] == "no noise: no privacy"


def test_only_who_has_the_address_reads_it(stopped):
    with served(stopped) as address:
        own = urlsplit(address)
        assert own.hostname == "127.0.0.1"
        assert len(own.path) >= 2 + 32  # 128 bits
        for path in ("/", own.path[:-2] + "x/", own.path + "ledger.json", own.path + "../", "/é"):
            with answer(address, path.encode("latin-1").decode("latin-1").replace("é", "%C3%A9")) as (status, _, text):
                assert status == 404
                assert "ε" not in text
        for host in ("attacker.example", f"localhost:{own.port}", "127.0.0.1", f"attacker.example:{own.port}"):
            with answer(address, host=host) as (status, _, _):
                assert status == 404
        with served(stopped) as other:
            assert urlsplit(other).path != own.path
    with pytest.raises(ConnectionRefusedError), answer(address):
        pass


def test_a_folder_without_a_run_is_refused(fedamp, tmp_path):
    with pytest.raises(RunFolderError, match=r"not a run folder \(no scenario.yaml\)"), served(tmp_path):
        pass
    assert fedamp("watch", tmp_path).status == 2


@contextmanager
def started(*words: object) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-m", "fedamp", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def address_of(process: subprocess.Popen) -> str:
    return next(line for line in process.stderr if "live page" in line).split()[-1]


def test_watch_serves_until_ctrl_c(stopped):
    with started("watch", stopped) as process:
        address = address_of(process)
        assert numbers(address)["round"] == "2 of 8"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
        assert process.stderr.read() == ""
    with pytest.raises(ConnectionRefusedError), answer(address):
        pass


def test_a_run_is_shown_while_it_lasts(tmp_path):
    """It is watched in its midst: its second round waits."""
    said = {}

    def look(record):
        if record.round == 2:
            with served(tmp_path / "run") as address:
                said.update(numbers(address))

    launch(small(), Observers([look]), tmp_path / "run")
    assert said["round"] == "2 of 8"
    assert re.match(r"running; the last round ended \d+:\d\d:\d\d", said["state"])
    assert re.match(r"at most about \d+:\d\d:\d\d", said["time"])


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_shows_and_updates_it(stopped, tmp_path, monkeypatch):
    """The ledger comes when the page is there already: only its script can show what is in it."""
    folder, calls = tmp_path / "run", []
    folder.mkdir()
    for name in ("scenario.yaml", "rounds.jsonl"):
        (folder / name).write_bytes((stopped / name).read_bytes())

    def seen(path):
        calls.append(path)
        if len(calls) == 3:  # after the server's own check, and the page
            (folder / "ledger.json").write_bytes((stopped / "ledger.json").read_bytes())
        return progress(path)

    monkeypatch.setattr(watch, "progress", seen)
    with served(folder) as address:
        page = browse(tmp_path, "--virtual-time-budget=5000", "--dump-dom", address)
    assert len(calls) > 3
    assert '<p id="round">2 of 8</p>' in page
    assert 'id="state">interrupted' in page
