"""``fedamp audit`` as a person and a script meet it, and docs/audit.md."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from fedamp.cli import main
from tests.audit import planted
from tests.federations import write_small

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
COMMANDS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
STRONG = ("check_in={scheme: all}", "rounds=1", "privacy.noise_multiplier=0.4")


@pytest.fixture
def fedamp(monkeypatch, capsys):
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedamp", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return call


def test_the_table_says_both_bounds_and_what_was_attacked(fedamp, tmp_path):
    status, out, err = fedamp("audit", write_small(tmp_path, *STRONG), "--repetitions", 40)
    assert (status, err) == (0, "")
    text = " ".join(out.split())
    for words in ("consistent", "at 0.99 confidence", "accountant: at most", "likelihood ratio", "40 with and as many"):
        assert words in text


def test_a_mistake_ends_with_status_1_and_one_line(fedamp, tmp_path, monkeypatch):
    planted.no_clipping_on_the_client(monkeypatch)
    status, out, err = fedamp("audit", write_small(tmp_path, *STRONG), "--repetitions", 60, "--json")
    answer = json.loads(out)
    worst = max(answer["findings"], key=lambda found: found["epsilon"]["lower"] - found["epsilon"]["upper"])
    assert status == 1
    assert answer["verdict"] == "refuted"
    assert worst["epsilon"]["lower"] > worst["epsilon"]["upper"]
    assert re.fullmatch(r"failed: audit: epsilon \S+ at delta \S+ is charged, but at least \S+ leaks .*\n", err)


def test_what_cannot_be_audited_is_one_line(fedamp, tmp_path):
    status, out, err = fedamp("audit", write_small(tmp_path), "--set", "privacy.noise_multiplier=0")
    assert (status, out) == (2, "")
    assert re.fullmatch(r"error: privacy.noise_multiplier is 0: nothing is claimed.*\n", err)


def test_the_page_s_commands_run(fedamp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (scenario,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "audited.yaml").write_text(scenario)
    first, second = (shlex.split(command)[1:] for command in COMMANDS)
    assert "shortened from 100" in " ".join(fedamp(*first)[1].split())
    status, out, _ = fedamp(*second)
    assert status == 0
    assert json.loads(out)["mechanism"].startswith("2 times")
