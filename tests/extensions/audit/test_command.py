"""``fedamp audit`` as a person and a script meet it, and docs/audit.md."""

import json
import re
import shlex

import pytest

from tests.documentation import commands, write_files
from tests.extensions.audit import planted
from tests.federations import write_small

PAGE = "docs/audit.md"
STRONG = ("check_in={scheme: all}", "rounds=1", "privacy.noise_multiplier=1")


def test_the_table_says_the_bounds_and_what_was_attacked(fedamp, tmp_path):
    answer = fedamp("audit", write_small(tmp_path, *STRONG), "--repetitions", 40)
    assert (answer.status, answer.err) == (0, "")
    words = ["consistent", "at 0.95 confidence", "accountant: at most", "likelihood ratio", "40 with and as many"]
    assert [each for each in words if each not in " ".join(answer.out.split())] == []


def test_a_mistake_ends_with_status_1_and_one_line(fedamp, tmp_path, monkeypatch):
    planted.no_clipping_on_the_client(monkeypatch)
    answer = fedamp("audit", write_small(tmp_path, *STRONG), "--repetitions", 120, "--json")
    found = json.loads(answer.out)
    worst = max(found["findings"], key=lambda finding: finding["epsilon"]["lower"] - finding["epsilon"]["upper"])
    assert answer.status == 1
    assert found["verdict"] == "refuted"
    assert worst["epsilon"]["lower"] > worst["epsilon"]["upper"]
    assert re.fullmatch(
        r"failed: audit: epsilon \S+ at delta \S+ is charged, but \d+ of \d+ guesses were right .*\n", answer.err
    )


@pytest.mark.slow
def test_the_page_s_commands_run(fedamp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert write_files(PAGE, tmp_path) == ["audited.yaml"]
    run, attack, first, second = (shlex.split(command)[1:] for command in commands(PAGE))
    assert fedamp(*run).status == 0
    assert "200, each in or out" in " ".join(fedamp(*attack).out.split())
    assert "shortened from 100" in " ".join(fedamp(*first).out.split())
    answer = fedamp(*second)
    assert answer.status == 0
    assert json.loads(answer.out)["mechanism"].startswith("2 times")
