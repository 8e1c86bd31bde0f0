"""The leaderboard holds what its ledgers prove, and refuses what breaks a rule."""

import json
import re

import pytest

from benchmarks import leaderboard
from fedamp.server.launch import launch
from tests.federations import Silent, small


@pytest.mark.slow
def test_the_page_is_made_from_entries_that_are_verified():
    assert leaderboard.PAGE.read_text() == leaderboard.page(leaderboard.entries())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    changes = ("data={name: digits, clients: 479}", "known_seed=false", "rounds=3", "check_in={scheme: all}")
    return launch(small(*changes), Silent(), tmp_path_factory.mktemp("leaders") / "run")


def test_an_entry_is_verified_again_whenever_the_page_is_made(run, tmp_path, monkeypatch):
    monkeypatch.setattr(leaderboard, "ENTRIES", tmp_path)
    file = leaderboard.add(run, "everybody")
    (found,) = leaderboard.entries()
    assert (found["task"], found["words"], found["check_ins"]) == ("digits", "everybody", 3 * 479)
    assert f"{found['value']:.1%} | everybody | 1,437" in leaderboard.page([found])
    entry = json.loads(file.read_text())
    cheaper = re.sub(r'"guaranteed_epsilon": [\d.]+', '"guaranteed_epsilon": 0.5', entry["ledger.json"])
    assert cheaper != entry["ledger.json"]
    file.write_text(json.dumps(entry | {"ledger.json": cheaper}))
    with pytest.raises(ValueError, match=rf"{file.name}: fedamp verify: "):
        leaderboard.entries()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("known_seed=true", "the seed is known"),
        ("data={name: digits, clients: 60}", "60 units; expected: all clients"),
        ("data={name: synthetic, clients: 479}", "data.name synthetic; expected: digits"),
        ("privacy.delta=1e-4", "delta 0.0001; expected: at most 1e-05"),
    ],
)
def test_a_rule_that_is_broken_is_named(change, said, tmp_path):
    base = ["data={name: digits, clients: 479}", "known_seed=false", "rounds=1", "check_in={scheme: all}"]
    folder = launch(small(*base, change), Silent(), tmp_path / "run")
    assert said in leaderboard.refused(folder)
