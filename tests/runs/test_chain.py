"""Whatever is altered in a run folder after the run: ``fedamp verify`` names it, and what would show it refuses."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedamp.errors import FederationError, Interrupted, RunFolderError
from fedamp.extensions.merging.merge import merge_runs
from fedamp.extensions.merging.weights import MergeRequest
from fedamp.extensions.pages.page import write_report
from fedamp.report.comparison import compare
from fedamp.runs.folder import RunFolder
from fedamp.runs.run import read_run
from fedamp.runs.verification import verify_ledger
from fedamp.server.launch import launch
from tests.chains import change_ledger, forge
from tests.federations import Silent, small
from tests.server.plays import Crash, Killed

FILES = ("summary.json", "rounds.jsonl", "ledger.json", "scenario.yaml", "model.safetensors")


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A run with everything that lines and summary can hold: metrics, scores for choosing, noise that nobody knows."""
    overrides = ("rounds=4", "check_in={scheme: all}", "known_seed=false", "federation.validation_share=0.2")
    return launch(small(*overrides), Silent(), tmp_path_factory.mktemp("chain") / "run")


@pytest.fixture
def run(played, tmp_path):
    return shutil.copytree(played, tmp_path / "run")


def wrong(run: Path, head: str | None = None) -> str:
    """What is wrong with a run folder: why it cannot be read, or what the checks found."""
    try:
        return "; ".join(check.found for check in verify_ledger(run, head) if check.verdict == "fail")
    except RunFolderError as error:
        return str(error)


def leaves(content: object, *path: object) -> Iterator[tuple[object, ...]]:
    """The paths to everything in some JSON that is neither an object nor a list with something in it."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    if not content or not inner:
        yield path
    for key, value in inner:
        yield from leaves(value, *path, key)


def altered(value: object) -> object:
    """Another value of the same type, where there is one."""
    if isinstance(value, bool):
        return not value
    match value:
        case int():
            return value + 1
        case float():
            return value * 1.01 + 1e-9
        case str():
            return value[:-1] + ("0" if value[-1:] != "0" else "1")
        case None:
            return 0.5
    return [1] if value == [] else {"a": 1.0}


def change(content: dict, path: tuple) -> None:
    *above, last = path
    for key in above:
        content = content[key]
    content[last] = altered(content[last])


def refused(run: Path, file: str, *path: object) -> None:
    """Verification names the file, and readers refuse the folder."""
    assert file in wrong(run), path
    with pytest.raises(RunFolderError, match=file.replace(".", r"\.")):
        read_run(run)


def test_every_key_of_the_summary_and_the_ledger(played, run):
    for name, some in (
        ("summary.json", {"epsilon", "noise_multiplier", "final", "clients_trained", "wall_seconds", "cost"}),
        ("ledger.json", {"assumptions", "guaranteed_epsilon", "files", "head", "releases"}),
    ):
        text = (played / name).read_text()
        paths = list(leaves(json.loads(text)))
        assert some <= {path[0] for path in paths}
        for path in paths:
            content = json.loads(text)
            change(content, path)
            (run / name).write_text(json.dumps(content))
            refused(run, name, path)
        for key in json.loads(text) if name == "ledger.json" else ():
            content = json.loads(text)
            del content[key]
            (run / name).write_text(json.dumps(content))
            assert name in wrong(run), key
        (run / name).write_text(text)


def test_every_key_of_every_line_of_rounds(played, run):
    lines = (played / "rounds.jsonl").read_text().splitlines()
    for number, line in ((0, lines[0]), (3, lines[3])):  # the others have the same keys
        paths = list(leaves(json.loads(line)))
        assert {"accuracy", "validation_score", "seconds", "reported", "unprotected"} <= {path[0] for path in paths}
        for path in paths:
            content = json.loads(line)
            change(content, path)
            changed = [*lines[:number], json.dumps(content), *lines[number + 1 :], ""]
            (run / "rounds.jsonl").write_text("\n".join(changed))
            refused(run, "rounds.jsonl", path)
            assert f"line {number + 1}" in wrong(run)


def test_the_release_that_was_altered_is_named(played, run):
    for number in range(4):
        content = json.loads((played / "ledger.json").read_text())
        change(content, ("releases", number, "digest"))
        (run / "ledger.json").write_text(json.dumps(content))
        assert f"ledger.json: releases: round {number + 1}" in wrong(run)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_byte_of_what_is_not_the_ledger(played, run, data):
    name = data.draw(st.sampled_from([name for name in FILES if name != "ledger.json"]))
    content = bytearray((played / name).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (run / name).write_bytes(content)
    try:
        assert name in wrong(run)
    finally:
        shutil.copy(played / name, run / name)


def renumbered(lines: list) -> None:
    """Two releases, or lines, exchanged but for their numbers and costs."""
    json_lines = [json.loads(line) if isinstance(line, str) else line for line in lines]
    swap = {key: (json_lines[1][key], json_lines[2][key]) for key in json_lines[1] if key in ("digest", "accuracy")}
    for key, (one, other) in swap.items():
        json_lines[1][key], json_lines[2][key] = other, one
    lines[:] = [
        json.dumps(line) if isinstance(before, str) else line for line, before in zip(json_lines, lines, strict=True)
    ]


REARRANGED = {
    "removed": lambda lines: lines.pop(1),
    "swapped": lambda lines: lines.insert(2, lines.pop(1)),
    "added": lambda lines: lines.append(lines[-1]),
    "cut": lambda lines: lines.pop(),
    "renumbered": renumbered,
}


@pytest.mark.parametrize("rearranged", REARRANGED.values(), ids=REARRANGED)
def test_lines_or_releases_that_are_removed_added_or_swapped(played, run, rearranged):
    lines = (played / "rounds.jsonl").read_text().splitlines()
    rearranged(lines)
    (run / "rounds.jsonl").write_text("\n".join([*lines, ""]))
    refused(run, "rounds.jsonl")
    shutil.copy(played / "rounds.jsonl", run)
    content = json.loads((played / "ledger.json").read_text())
    rearranged(content["releases"])
    (run / "ledger.json").write_text(json.dumps(content))
    refused(run, "ledger.json")


@pytest.mark.parametrize("name", ["summary.json", "rounds.jsonl", "salt.secret"])
def test_a_file_of_the_owner_s_that_is_gone(run, name):
    (run / name).unlink()
    assert f"{name}: missing" in wrong(run)


def test_a_copy_to_hand_out_is_checked_without_the_owner_s_files(fedamp, run):
    for name in ("summary.json", "rounds.jsonl", "salt.secret"):
        (run / name).unlink()
    assert wrong(run) == ""
    assert fedamp("verify", run / "ledger.json").status == 0
    (run / "scenario.yaml").write_text((run / "scenario.yaml").read_text().replace("description: ''", "description: x"))
    assert wrong(run) == "scenario.yaml: not as the run left it"


def test_every_reader_refuses_a_summary_that_the_ledger_contradicts(fedamp, played, run, tmp_path):
    summary = json.loads((run / "summary.json").read_text())
    summary["epsilon"]["upper"], summary["noise_multiplier"] = 0.1, 50.0
    (run / "summary.json").write_text(json.dumps(summary))
    for shown in (
        lambda: read_run(run),
        lambda: write_report([run], tmp_path / "report.html"),
        lambda: compare([run, played]),
        lambda: merge_runs(MergeRequest((str(run), str(played)), "random-selection", 20.0, 1e-5), tmp_path / "merged"),
    ):
        with pytest.raises(RunFolderError, match=r"summary\.json: "):
            shown()
    answer = fedamp("verify", run)
    assert answer.status == 1
    failed = [line for line in answer.err.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 1
    assert "summary.json: epsilon: 0.1, but ledger.json says " in failed[0]


def test_a_file_and_the_chain_made_anew_are_found_by_the_head_alone(fedamp, played, run):
    head = json.loads((played / "ledger.json").read_text())["head"]
    answer = fedamp("verify", run, "--head", head)
    assert answer.status == 0
    assert head in re.sub(r"[^0-9a-f]", "", answer.out)  # all of it, over two lines of a table
    for name in ("rounds.jsonl", "summary.json"):
        (run / name).write_text(re.sub(r'"accuracy": 0\.\d+', '"accuracy": 0.99', (run / name).read_text()))
    forge(run)
    assert fedamp("verify", run).status == 0
    answer = fedamp("verify", run, "--head", head)
    assert answer.status == 1
    assert f"but {head} was written down" in answer.err


def test_a_forged_chain_cannot_lower_an_epsilon(run, tmp_path):
    """It is computed again from the mechanism, and a report is about a ledger that was verified."""
    summary = json.loads((run / "summary.json").read_text())
    for bracket in ("epsilon", "released_rounds_epsilon"):
        summary[bracket] = {"lower": 0.0, "upper": summary[bracket]["upper"] / 2}
    (run / "summary.json").write_text(json.dumps(summary))

    def halved(ledger: dict) -> None:
        ledger["guaranteed_epsilon"] /= 2
        ledger["whole_run_epsilon"] = {"lower": 0.0, "upper": ledger["whole_run_epsilon"]["upper"] / 2}
        for release in ledger["releases"]:
            release["epsilon_upper"] /= 2

    change_ledger(run, halved)
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    halves = [json.dumps(line | {"epsilon_upper": line["epsilon_upper"] / 2}) + "\n" for line in lines]
    (run / "rounds.jsonl").write_text("".join(halves))
    forge(run)
    assert "computed again it is" in wrong(run)
    with pytest.raises(RunFolderError, match="computed again it is"):
        write_report([run], tmp_path / "report.html")


def test_a_round_that_is_played_again_takes_its_place_in_the_chain(tmp_path):
    """With a known seed a crash may take rounds whose lines were written down. Played again they take another time."""
    scenario = small("rounds=4", "check_in.k=2", "federation.checkpoint_every=4")

    with pytest.raises(Killed):
        launch(scenario, Crash(3), tmp_path / "run")
    before = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert wrong(tmp_path / "run") == ""
    launch(scenario, Silent(), tmp_path / "run", resume=True)
    after = json.loads((tmp_path / "run" / "ledger.json").read_text())
    digests, records = (
        [[entry[key] for entry in each["releases"][:3]] for each in (before, after)] for key in ("digest", "record")
    )
    assert digests[0] == digests[1]
    assert records[0] != records[1]
    assert wrong(tmp_path / "run") == ""


def test_the_head_stays_where_nothing_is_left_to_play(run):
    head = json.loads((run / "ledger.json").read_text())["head"]
    launch(read_run(run).scenario, Silent(), run, resume=True)
    assert wrong(run, head) == ""


def test_the_ledger_tells_nothing_of_what_is_the_owner_s(run):
    """A plain digest of numbers without noise would let who guesses them check the guess."""
    ledger = (run / "ledger.json").read_text()
    for content in ((run / "summary.json").read_bytes(), *(run / "rounds.jsonl").read_bytes().splitlines()):
        assert hashlib.sha256(content).hexdigest() not in ledger
    assert (run / "salt.secret").read_text() not in ledger
    assert (run / "salt.secret").stat().st_mode & 0o777 == 0o600


def test_a_run_that_goes_on_has_no_summary_until_it_ends_again(tmp_path):
    """One of an earlier end would say less than was released since."""
    scenario, folder = small("rounds=6", "check_in.k=2", "known_seed=false"), tmp_path / "run"
    with pytest.raises(Interrupted):
        launch(scenario, Crash(2, KeyboardInterrupt), folder)
    head = json.loads((folder / "ledger.json").read_text())["head"]
    assert wrong(folder, head) == ""
    with pytest.raises(Killed):
        launch(scenario, Crash(4), folder, resume=True)
    assert not (folder / "summary.json").exists()
    assert wrong(folder) == ""
    launch(scenario, Silent(), folder, resume=True)
    assert wrong(folder) == ""
    assert head in wrong(folder, head)


@pytest.mark.parametrize("seed", ["known_seed=false", "known_seed=true"])
def test_a_resumed_run_refuses_an_altered_line_and_changes_nothing(tmp_path, seed):
    """Resuming took an altered line over and chained it anew, so that no later check found it."""
    scenario, folder = small("rounds=6", "check_in.k=2", seed), tmp_path / "run"
    with pytest.raises(Interrupted):
        launch(scenario, Crash(4, KeyboardInterrupt), folder)
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    content = json.loads(lines[1])
    lines[1] = json.dumps(content | {"accuracy": content["accuracy"] / 2 + 0.4}) + "\n"
    (folder / "rounds.jsonl").write_text("".join(lines))
    before = {name: (folder / name).read_bytes() for name in FILES}
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl: line 2: not as it was written down"):
        launch(scenario, Silent(), folder, resume=True)
    assert {name: (folder / name).read_bytes() for name in FILES} == before
    assert "line 2" in wrong(folder)


def test_each_line_is_compared_also_where_the_digest_of_the_file_fits(run):
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace('"reported": ', '"reported": 1')
    (run / "rounds.jsonl").write_text("".join(lines))
    salt = (run / "salt.secret").read_bytes()

    def digest_of_the_file(ledger: dict) -> None:
        ledger["files"]["rounds.jsonl"] = hashlib.sha256(salt + (run / "rounds.jsonl").read_bytes()).hexdigest()

    change_ledger(run, digest_of_the_file)
    assert "rounds.jsonl: line 2: not as it was written down" in wrong(run)


def test_a_line_from_an_altered_checkpoint_is_refused(tmp_path):
    """The last line is written again from the checkpoint where a crash took it."""
    scenario, folder = small("rounds=6", "check_in.k=2", "known_seed=false"), tmp_path / "run"
    with pytest.raises(Killed):
        launch(scenario, Crash(3), folder)
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:-1]))
    file = max((folder / "checkpoint").iterdir())
    content = file.read_bytes()
    accuracy = json.loads(lines[-1])["accuracy"]
    told = f'accuracy\\": {accuracy}'.encode()
    assert content.count(told) == 1
    place = told.index(b".") + 1  # the first digit: a change of the seventeenth may be none
    digit = b"1" if told[place : place + 1] != b"1" else b"2"
    file.write_bytes(content.replace(told, told[:place] + digit + told[place + 1 :]))
    with pytest.raises(RunFolderError, match=r"another line of rounds\.jsonl"):
        launch(scenario, Silent(), folder, resume=True)


def test_a_run_killed_while_it_drops_lines_can_be_resumed(tmp_path, monkeypatch):
    """A failed run keeps lines after its checkpoint, which are played again."""
    scenario, folder = small("rounds=6", "check_in.k=2", "federation.checkpoint_every=4"), tmp_path / "run"
    with pytest.raises(FederationError):
        launch(scenario, Crash(3, FederationError("the grid failed")), folder)
    dropped = RunFolder.forget_rounds_after

    def killed(self: RunFolder, round_: int) -> None:
        dropped(self, round_)
        raise Killed

    monkeypatch.setattr(RunFolder, "forget_rounds_after", killed)
    with pytest.raises(Killed):
        launch(scenario, Silent(), folder, resume=True)
    monkeypatch.undo()
    assert wrong(folder) == ""
    launch(scenario, Silent(), folder, resume=True)
    assert wrong(folder) == ""


@pytest.mark.parametrize("lost", ["salt.secret", "rounds.jsonl"])
def test_a_run_whose_chain_is_incomplete_is_not_resumed(tmp_path, lost):
    scenario, folder = small("rounds=6", "check_in.k=2", "known_seed=false"), tmp_path / "run"
    with pytest.raises(Killed):
        launch(scenario, Crash(3), folder)
    (folder / lost).unlink()
    with pytest.raises(RunFolderError, match=lost):
        launch(scenario, Silent(), folder, resume=True)


def test_a_line_whose_end_a_crash_took_is_a_line(tmp_path):
    scenario, folder = small("rounds=6", "check_in.k=2", "known_seed=false"), tmp_path / "run"
    with pytest.raises(Killed):
        launch(scenario, Crash(3), folder)
    (folder / "rounds.jsonl").write_bytes((folder / "rounds.jsonl").read_bytes()[:-1])
    assert wrong(folder) == ""
    launch(scenario, Silent(), folder, resume=True)
    assert wrong(folder) == ""
