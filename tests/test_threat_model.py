"""docs/threat-model.md explains every line of a ledger, and every epsilon that is printed leads there."""

import json
import re
from pathlib import Path

from fedamp.server.setup import prepare
from fedamp.terminal import GUARANTEES, promise
from tests.federations import small
from tests.server.plays import play_in

ROOT = Path(__file__).parents[1]


def test_every_key_of_the_ledger_is_explained(tmp_path):
    play_in(tmp_path / "run", small("rounds=3"))
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    page = (ROOT / ledger["guarantees_explained_in"]).read_text()
    rows = re.findall(r"^\| (`.*?) \|", page.partition("What each line")[2], re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(ledger)


def test_a_printed_epsilon_leads_to_its_assumptions():
    assert (ROOT / GUARANTEES).is_file()
    assert any("epsilon <=" in line for line in promise(prepare(small())))
    assert any(GUARANTEES in line for line in promise(prepare(small())))
