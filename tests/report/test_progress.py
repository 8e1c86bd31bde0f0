"""The progress display: what it shows, that it fits, and that it is silent without a terminal."""

import io
import itertools
import re
import time
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from rich.console import Console

from fedamp.federation.plan import make_plan
from fedamp.report.progress import RunProgress, guarantee, patience
from fedamp.report.tables import run_table
from fedamp.runs.folder import read_summary
from fedamp.runs.records import RoundRecord
from tests.federations import small
from tests.tools import wait


def record(**changes) -> RoundRecord:
    facts = {"round": 3, "loss": 0.4321, "accuracy": 0.9125, "epsilon_upper": 1.5, "scheduled": 20, "reported": 20}
    return RoundRecord(**{**facts, "seconds": 0.1, "unprotected": {}, **changes})


RECORD = record()
LARGE = record(round=100_000, loss=12345.678, accuracy=1.0, epsilon_upper=123456.7, reported=2_000_000)


MANY_ROUNDS = ("rounds=100000", "check_in={scheme: all}", "privacy.noise_multiplier=0")


@pytest.fixture(autouse=True)
def _a_second_at_every_look(monkeypatch):
    monkeypatch.setattr("fedamp.report.progress.monotonic", map(float, itertools.count()).__next__)


def shown(record: RoundRecord, *overrides: str, width: int = 80, terminal: bool = True) -> list[str]:
    """The lines that a terminal shows after a round, without control sequences."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=width, height=24)
    with RunProgress(console).shown() as display:
        display.started(SimpleNamespace(plan=make_plan(small(*overrides), 60), engine="", hint=""), [])
        display.round_done(record)
    # What is redrawn in place stands behind the last movement of the cursor.
    last = re.split(r"\x1b\[\d*[AK]|\r", stream.getvalue())[-1]
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).rstrip() for line in last.splitlines()]
    return [line for line in lines if line]


def test_a_round_is_shown_with_its_facts():
    text = " ".join(shown(RECORD, "privacy.epsilon=8"))
    for fact in ("3/8", "loss 0.432", "accuracy 91.2%", "epsilon 1.50 of 8", "20 clients/s", "left"):
        assert fact in text
    assert "reported" not in text
    text = " ".join(shown(record(reported=18, unprotected={"failed": 3}), width=200))
    assert "18 of 20 reported" in text
    assert "3 failed" in text
    assert "accuracy" not in " ".join(shown(record(accuracy=None, loss=None)))
    assert "no privacy" in " ".join(shown(record(epsilon_upper=None), "privacy.noise_multiplier=0"))
    assert shown(RECORD, terminal=False) == []


def test_a_chosen_norm_that_clips_all_updates_or_none_is_mentioned(runs):
    cases = [(0.5, 1.0, "100% of the updates"), (0.5, 0.0, "0% of"), (0.5, 0.5, ""), ("auto", 1, "")]
    for clip, share, expected in cases:
        with RunProgress(Console(file=io.StringIO())).shown() as display:
            display.started(SimpleNamespace(plan=make_plan(small(f"privacy.clip={clip}"), 60), engine="", hint=""), [])
            display.round_done(record(unprotected={"clipped": share}))
        console = Console(file=io.StringIO(), width=80)
        console.print(run_table(read_summary(runs["hidden"]), display.clipped))
        assert expected in console.file.getvalue()
        assert ("privacy.clip" in console.file.getvalue()) == bool(expected)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_display_never_wraps(width):
    lines = shown(LARGE, *MANY_ROUNDS, width=width)
    assert "100000/100000" in lines[-2] or width < 50
    assert lines[-1].startswith("loss 12345.678")
    assert all(cell_len(line) <= width for line in lines)
    line = shown(LARGE, *MANY_ROUNDS, "privacy.epsilon=9999", "privacy.noise_multiplier=1000000")[-1]
    assert line.endswith("2,000,000 clients/s")  # 80 columns hold every fact


def test_the_bar_ends_at_the_budget():
    plan = make_plan(small("privacy.epsilon=3.2"), 60)
    assert 0 < plan.charge.affordable_rounds < 8
    assert f"3/{plan.charge.affordable_rounds}" in " ".join(shown(RECORD, "privacy.epsilon=3.2"))


def test_the_guarantee_names_unit_delta_and_assumptions():
    text = " ".join(guarantee(make_plan(small(), 60)))
    assert "one client of 60" in text
    assert "delta = 1e-05" in text
    assert "docs/threat-model.md" in text
    assert "any 3 clients together" in " ".join(guarantee(make_plan(small("privacy.group_size=3"), 60)))
    assert "epsilon is infinite" in " ".join(guarantee(make_plan(small("privacy.noise_multiplier=0"), 60)))


def test_without_a_terminal_there_is_a_line_in_every_interval(monkeypatch):
    """However many rounds there are, and also while none ends."""
    monkeypatch.setattr("fedamp.report.progress.HEARTBEAT", 0.2)
    stream, began = io.StringIO(), time.monotonic()
    with RunProgress(Console(file=stream, width=40)).shown() as display:
        display.started(SimpleNamespace(plan=make_plan(small(), 60), engine="", hint=""), [])
        for number in range(1, 500):
            display.round_done(record(round=number))
        wait(lambda: stream.getvalue().count("round 499/8") >= 2)
    lines = stream.getvalue().splitlines()
    assert len(lines) <= 2 + (time.monotonic() - began) / 0.2
    assert re.match(r"round 499/8 after \d+ s  loss 0\.432  accuracy 91\.2%  epsilon 1\.50  ", lines[-1])


def test_who_waits_for_the_accountant_is_told_but_not_at_once(monkeypatch):
    with patience(Console(file=(stream := io.StringIO()))):
        pass
    assert stream.getvalue() == ""
    monkeypatch.setattr("fedamp.report.progress.PATIENCE", 0.1)
    for terminal in (False, True):
        with patience(Console(file=(stream := io.StringIO()), force_terminal=terminal, width=200)):
            wait(lambda: "privacy.precision" in stream.getvalue())
        assert ("\x1b" in stream.getvalue()) == terminal
