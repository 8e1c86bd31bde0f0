"""Every key of what a run leaves is explained in docs/results.md, and every printed epsilon leads to its
assumptions."""

import json
import re

import numpy as np

from fedamp.federation.plan import make_plan
from fedamp.report.progress import guarantee
from fedamp.report.words import GUARANTEES
from tests.accounting.oracles import gaussian_epsilon
from tests.documentation import ROOT, text
from tests.federations import small, write_small
from tests.server.plays import play_in


def explained(title: str) -> set[str]:
    """What the lists of a section of docs/results.md explain."""
    section = text("docs/results.md").partition(f"## {title}\n")[2].partition("\n## ")[0]
    explained_ = re.findall(r"^- ((?:`[\w./]+`(?:, )?)+):", section, re.MULTILINE)
    return set(re.findall(r"`([\w./]+)`", " ".join(explained_)))


def test_every_key_of_the_ledger_is_explained(tmp_path):
    play_in(tmp_path / "run", small("rounds=3"))
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    sometimes = {"precision", "server_mechanism", "epsilon_server"}  # another one than usual; secure aggregation
    sometimes |= {"nodes_mechanism", "epsilon_nodes", "population"}  # a deployment; a budget of people
    sometimes |= {"rehearsal", "evaluation", "evaluated", "final_evaluation"}  # of few clients; on people's own records
    sometimes |= {"statistics"}  # private means and deviations
    assert explained("Keys of `ledger.json`") == {*ledger, *ledger["releases"][0], *sometimes}
    assert (ROOT / ledger["guarantees_explained_in"]).is_file()
    line = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[0])
    assert explained("Keys of a line of `rounds.jsonl`") == {*line, "noise_surplus", "impossible_sum", "evaluated"}


def test_every_file_of_a_run_folder_is_explained(fedamp, tmp_path):
    run = tmp_path / "run"
    assert (
        fedamp(
            "run", write_small(tmp_path, "rounds=3", "known_seed=false", "federation.keep_secrets=true"), "--out", run
        ).status
        == 0
    )
    files = {path.name + "/" * path.is_dir() for path in run.iterdir() if not path.name.startswith(".")}
    assert explained("Files of a run folder") == files


def test_a_printed_epsilon_leads_to_its_assumptions():
    assert (ROOT / GUARANTEES).is_file()
    lines = guarantee(make_plan(small(), 60))
    assert any("epsilon <=" in line for line in lines)
    assert any(GUARANTEES in line for line in lines)


def test_stopping_by_looking_is_covered_by_the_cost_of_all_rounds_only():
    """The privacy loss of Gaussian noise is a random walk, N(1/(2 s^2), 1/s^2) a round; it is stopped at its best."""
    rounds, noise, delta = 100, 10.0, 1e-5
    plan = make_plan(small("check_in={scheme: all}", f"rounds={rounds}", f"privacy.noise_multiplier={noise}"), 60)
    assert plan.scenario.privacy.delta == delta
    step, reach = 0.002, 10 / noise
    losses, moves = np.arange(-6, 12, step), np.arange(-reach, reach + step / 2, step)
    law = np.exp(-((moves - 1 / (2 * noise**2)) ** 2) * noise**2 / 2)
    law /= law.sum()

    def exact(round_: int) -> float:
        return gaussian_epsilon(delta, noise / np.sqrt(round_))

    def excess(epsilon_at) -> float:
        """By how much whoever stops at the best moment exceeds that round's epsilon: E (1 - exp(epsilon - loss))+."""
        worth = np.zeros_like(losses)
        for round_ in range(rounds, 0, -1):
            now = np.maximum(0, 1 - np.exp(np.minimum(epsilon_at(round_) - losses, 50)))
            worth = np.convolve(np.maximum(now, worth), law[::-1], mode="same")
        return float(worth[np.argmin(np.abs(losses))])

    assert excess(exact) > 10 * delta
    # The grid moves a loss by half a step at most, and epsilon is an upper end.
    assert excess(lambda round_: plan.charge.guaranteed_epsilon.upper) <= delta * 1.01


def test_every_attack_in_the_list_has_a_test_and_every_test_that_it_names_exists():
    listed = text("docs/research/attacks.md")
    rows = re.findall(r"^- (.*?): (`tests/.*)$", listed, re.MULTILINE)
    assert len(rows) == listed.count("\n- ") > 0
    file = ""
    for attack, tests in rows:
        named = re.findall(r"`(tests/[\w/]+\.py|)::(test_\w+)`", tests)  # without a file: of the one before
        assert named, attack
        for place, name in named:
            file = place or file
            assert re.search(rf"^def {name}\(", text(file), re.MULTILINE), f"{attack}: {file}::{name}"
