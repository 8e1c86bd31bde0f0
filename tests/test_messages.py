"""Lines of a log: as JSON on request, and each of them on the page that says what to do."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest

import fedamp as package
from fedamp.errors import FederationError
from tests.documentation import ROOT
from tests.federations import small


@pytest.fixture(scope="module")
def messages():
    spec = importlib.util.spec_from_file_location("site_messages", ROOT / "docs" / "site" / "messages.py")
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)  # where its dataclass looks for types
    spec.loader.exec_module(module)
    return module


def unlisted(messages, lines: list[str]) -> list[str]:
    """Those of which the page has no template."""
    listed = {template for part in messages.PARTS for template in messages.told(part)}
    page = re.compile("|".join(re.escape(template).replace("…", ".*") for template in listed))
    return [line for line in lines if not page.fullmatch(line)]


def test_the_page_is_made_from_the_sources(messages):
    assert messages.PAGE.read_text("utf-8") == messages.page(), "expected: python docs/site/messages.py"


def test_each_line_has_something_to_do_and_each_thing_to_do_a_line(messages):
    lines = [line for part in messages.PARTS for line in messages.lines(part)]
    used = {messages.cure(line) for line in lines if messages.has_words(line)}
    cures = messages.known_cures()
    assert {each["do"] for each in cures["cures"]} | set(cures["rooms"].values()) <= used


def test_words_are_found_in_all_ways_to_write_them(messages, tmp_path):
    source = """
def first(reason, much):
    words = "the disk is full" if much else f"the disk has {much} bytes"
    log.warning(words)
    log.info("%s: %d rounds", reason, 3)
    raise RunError("no " + f"place for {reason}; expected: one")

class Own(RunError):
    def __init__(self, round_):
        super().__init__(f"round {round_} is over")
"""
    tree = messages.ast.parse(source)
    words = messages.Words(tree)
    found = [words.of(each, around) for _, [each], around, _ in messages.sites(tree)]
    assert found == [
        ["the disk is full", "the disk has … bytes"],
        ["%s: %d rounds"],
        ["no place for …; expected: one"],
        ["round … is over"],
    ]


def test_lines_that_are_printed_are_on_the_page(messages, tmp_path, monkeypatch, fedamp):
    """The doctor's in two empty folders, and those of a run in which all clients fail."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDAMP_LOG", "json")
    answer = fedamp("doctor", "--site", "site0", "--server", ".")
    lines = [json.loads(line) for line in answer.out.splitlines()]
    assert answer.status == 1
    assert {line["verdict"] for line in lines} == {"pass", "caution", "fail"}
    told = [line["message"].replace(": ", "; ", 1) for line in lines]
    assert unlisted(messages, told) == []
    faults = {"faults": {"failing": 1.0}, "federation.quorum": 0.5, "known_seed": True}
    with pytest.raises(FederationError) as caught:
        package.run(package.load(small(), rounds=3, **faults), out=tmp_path / "run")
    log = [json.loads(line) for line in (tmp_path / "run" / "log.txt").read_text().splitlines()]
    assert {"time", "level", "logger", "message"} <= log[0].keys()
    ours = [line["message"] for line in log if line["logger"] in ("fedamp.server", "fedamp.client")]
    assert unlisted(messages, [*ours, str(caught.value).partition("; log: ")[0]]) == []


NODE = """
import logging, sys
from fedamp.base.log_lines import log_as_json
from fedamp.client.program import say_line
log_as_json("flwr", "fedamp")
say_line("started again")
logging.getLogger("fedamp.client").warning("client %d: \\n\\x1b[31m%s", 3, "no records")
try:
    raise ValueError("in\\ntwo lines")
except ValueError:
    logging.getLogger("flwr").exception("failed")
"""


@pytest.mark.parametrize("asked", ["json", ""])
def test_a_node_writes_json_lines_on_request(monkeypatch, asked):
    monkeypatch.setenv("FEDAMP_LOG", asked)
    done = subprocess.run([sys.executable, "-c", NODE], capture_output=True, text=True, check=True, cwd=ROOT)
    if not asked:
        assert done.stderr.startswith("fedamp node: started again\n")
        return
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["logger"] for line in lines] == ["fedamp.node", "fedamp.client", "flwr"]
    assert lines[1]["message"] == "client 3: \n\x1b[31mno records"
    assert "\x1b" not in done.stderr
    assert "ValueError: in\ntwo lines" in lines[2]["traceback"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in lines)


def test_numbers_that_json_lacks_become_null(monkeypatch):
    from fedamp.base.log_lines import line_of

    monkeypatch.setenv("FEDAMP_LOG", "json")
    assert json.loads(line_of("fedamp.server", "told", epsilon_spent=float("inf")))["epsilon_spent"] is None
