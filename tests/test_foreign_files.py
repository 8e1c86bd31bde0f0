"""Files that somebody else made: they cannot steer a terminal, run code unasked, hang a command or fill the memory."""

import json
import os
import shutil
from time import process_time
from warnings import catch_warnings

import pytest
import yaml

from fedamp.engines.engines import CLIENT_APP
from fedamp.engines.simulation import SerialGrid
from fedamp.errors import FederationError
from fedamp.runs.folder import RunFolder
from fedamp.server.loop import play
from fedamp.server.setup import prepare
from tests.federations import SMALL, Silent, small, write_small
from tests.server.plays import play_in

ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e[/][bold red]\r\n"


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign") / "run"
    scenario = small("rounds=3")
    play_in(folder, scenario)
    RunFolder(folder).write_scenario(scenario)
    return folder


@pytest.fixture
def run(played, tmp_path):
    return shutil.copytree(played, tmp_path / "run")


def refused(answer, words: str) -> None:
    """One line, and exit status 2."""
    assert (answer.status, answer.err.count("\n")) == (2, 1), answer
    assert words in answer.err


FOREIGN_WORDS = [
    {"noise_seed": ESCAPES},
    {"mechanism_in_words": ESCAPES},
    {"scenario": ESCAPES},
    {"unit": ESCAPES},
    {ESCAPES: 1},
    {"format": ESCAPES},
]


@pytest.mark.parametrize("keys", FOREIGN_WORDS, ids=lambda keys: "".join(keys)[:10])
@pytest.mark.parametrize("command", ["verify", "compare", "report"])
def test_no_command_hands_a_terminal_what_a_foreign_ledger_tells_it(fedamp, run, tmp_path, command, keys):
    ledger = json.loads((run / "ledger.json").read_text())
    (run / "ledger.json").write_text(json.dumps(ledger | keys))
    name = tmp_path / f"run {ESCAPES.strip()}".replace("/", "")
    run.rename(name)
    answer = fedamp(command, name, *([] if command == "verify" else ["--out", tmp_path / "out"]))
    shown = answer.out + answer.err
    assert all(character.isprintable() or character == "\n" for character in shown), repr(shown)
    assert "traceback" not in shown.lower()
    assert answer.status in (0, 1, 2)


DAMAGED = {
    "duplicate": lambda text: text.replace('"delta"', '"delta": 1e-9, "delta"', 1),
    "delta": lambda text: text.replace('"delta": 1e-05', '"delta": 1.0'),
    "1e-300": lambda text: text.replace('"noise_multiplier": 1.0', '"noise_multiplier": 1e-300'),
    "rounds_planned": lambda text: text.replace('"rounds_planned": 3', '"rounds_planned": 10000000'),
    "spans 10000000 rounds": lambda text: text.replace('"rounds": 3', '"rounds": 10000000'),
    "recursion limit exceeded": lambda text: text.replace('"units": 60', '"units": ' + "[" * 9999 + "]" * 9999),
}


@pytest.mark.parametrize("words", DAMAGED)
def test_a_ledger_that_cannot_be_is_one_line_at_once(fedamp, run, words):
    file = run / "ledger.json"
    text = file.read_text()
    damaged = DAMAGED[words](text)
    assert damaged != text
    file.write_text(damaged)
    since = process_time()
    answer = fedamp("verify", file)
    assert process_time() - since < 15  # it was 25 s for ten million rounds; computing nothing takes milliseconds
    refused(answer, "damaged ledger")
    assert words in answer.err


@pytest.mark.parametrize("name", ["ledger.json", "summary.json", "rounds.jsonl", "scenario.yaml"])
def test_a_pipe_or_an_enormous_file_is_refused_and_not_waited_for(fedamp, run, tmp_path, name):
    file = run / name
    for make in (lambda: os.mkfifo(file), lambda: os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), 2**40)):
        file.unlink()
        make()
        refused(fedamp("report", run, "--out", tmp_path / "report.html"), name)


def test_what_a_foreign_folder_links_to_is_not_written(fedamp, run, tmp_path):
    """A name that fedamp writes under, there already as a link to something else of its user's."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (run / "summary.json").unlink()  # else nothing is left to write
    (run / ".summary.json.writing").symlink_to(victim)
    play_in(run, small("rounds=3"))
    assert not (run / ".summary.json.writing").exists()
    for name in ("log.txt", "plots", "rounds.jsonl"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(victim)
        refused(fedamp("run", run / "scenario.yaml", "--resume", "--out", run), f"{name}: a link")
        (run / name).unlink()
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["log.txt", ".lock", "rounds.jsonl"])
def test_a_new_run_follows_no_link(fedamp, tmp_path, name):
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_text("mine")
    out.mkdir()
    (out / name).symlink_to(victim)
    refused(fedamp("run", write_small(tmp_path), "--out", out), f"{name}: a link")
    assert [path.name for path in out.iterdir()] == [name]
    (out / name).unlink()
    (out / name).symlink_to(tmp_path / "nothing")  # one that leads nowhere yet
    refused(fedamp("run", write_small(tmp_path), "--out", out), f"{name}: a link")
    assert not (tmp_path / "nothing").exists()
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["log.txt", ".lock", "rounds.jsonl", ".x.writing"])
def test_a_new_run_waits_for_no_pipe(fedamp, tmp_path, name):
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / name)
    refused(fedamp("run", write_small(tmp_path), "--out", tmp_path / "out"), f"{tmp_path / 'out'}")


@pytest.mark.parametrize("command", ["verify", "report", "compare", "run"])
def test_no_command_waits_for_a_pipe_in_a_run_folder(fedamp, run, tmp_path, command):
    """A folder that was handed out, or that others may write to: each file in turn is a pipe."""
    options = {"verify": [], "run": ["--resume", "--out", run]}.get(command, ["--out", tmp_path / "made"])
    first = run / "scenario.yaml" if command == "run" else run
    for file in sorted(each for each in run.rglob("*") if each.is_file()):
        aside = tmp_path / "aside"
        file.rename(aside)
        os.mkfifo(file)
        answer = fedamp(command, first, *options)
        assert "Traceback" not in answer.err, answer
        assert answer.status in (0, 1, 2), answer
        assert answer.status == 0 or answer.err.splitlines()[-1].startswith(("error: ", "failed: ")), answer
        assert "failed: OSError" not in answer.err, answer
        if file.exists() and not file.is_file():
            file.unlink()
        if not file.exists():
            aside.rename(file)


@pytest.mark.parametrize("place", [0, -30])
def test_a_byte_that_is_no_text_in_the_rounds_is_one_line_on_resume(fedamp, run, place):
    file = run / "rounds.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0][:place] + b"\xff\xc3" + lines[0][place:] + b"".join(lines[1:]))
    refused(fedamp("run", run / "scenario.yaml", "--resume", "--out", run), "rounds.jsonl: damaged rounds: line 1")


def doubled(times: int) -> str:
    lines = [f"    a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]" for n in range(times)]
    return "\n".join(["  options:", "    a0: &a0 [x]", *lines])


MODELS = {
    "when its aliases are written out": doubled(9),
    "values when its aliases": "  options: {a: &a [*a]}",
    "not valid YAML": "  options: {a: " + "[" * 9999 + "]" * 9999 + "}",
    "valid; 60 units": doubled(2),
}


@pytest.mark.parametrize("words", MODELS)
def test_a_scenario_is_refused_before_it_unfolds_and_its_code_is_not_run_unasked(fedamp, tmp_path, words):
    """Ten lines of aliases would be a billion values; a model that lies beside the scenario is a stranger's code."""
    ran = tmp_path / "ran"
    own = f"from pathlib import Path\nfrom torch import nn\nPath({str(ran)!r}).touch()\n"
    own += "def make(input_shape, num_classes, **options):\n"
    own += "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
    (tmp_path / "a_strangers_model.py").write_text(own)
    raw = yaml.safe_load(SMALL) | {"model": {"name": "a_strangers_model:make"}}
    text = yaml.safe_dump(raw).replace(
        "  name: a_strangers_model:make", f"  name: a_strangers_model:make\n{MODELS[words]}"
    )
    (tmp_path / "theirs.yaml").write_text(text)
    answer = fedamp("check", tmp_path / "theirs.yaml")
    assert words in answer.out + answer.err
    assert not ran.exists()
    if answer.status == 0:
        assert "caution: code: a_strangers_model:make was not tried" in answer.err
        assert fedamp("check", tmp_path / "theirs.yaml", "--import").err == ""
        assert ran.exists()


OUT_OF_RANGE = {
    "privacy.noise_multiplier=1e-300": "expected: auto or 0 or a number >= 1e-06",
    "privacy.noise_multiplier=off": "expected: auto or 0 or a number >= 1e-06",
    "client.learning_rate=yes": "got 'yes'; expected: a number > 0",
    "rounds=100000000": "<= 1e+06",
    "federation.hosts={a: 0-9, b: 9}": "unit 9 stands for a and for b",
    "federation.hosts={a: 9-0}": "federation.hosts.a must be ids and ranges such as 0-9,12, got the range 9-0, or all",
    "federation.hosts={a: 1-2-3}": "got '1-2-3', or all",
    "federation.hosts=believed": "expected: trusted or a section of names",
}


@pytest.mark.parametrize("override", OUT_OF_RANGE)
def test_what_no_accountant_could_answer_is_refused(fedamp, tmp_path, override):
    refused(fedamp("privacy", write_small(tmp_path), "--set", override), OUT_OF_RANGE[override])


@pytest.mark.slow
def test_the_cost_of_the_longest_run_is_answered_in_seconds(fedamp, tmp_path):
    scenario = write_small(tmp_path, "rounds=1000000", "check_in={scheme: all}", "privacy.noise_multiplier=3000")
    since = process_time()
    answer = json.loads(fedamp("privacy", scenario, "--json").out)
    assert process_time() - since < 60  # it takes 4; that of 10^8 rounds was 100
    assert len(answer["per_round"]) == 10_000
    assert answer["per_round"][-1] == {
        "round": 10**6,
        "epsilon_upper": answer["epsilon"]["upper"],
        "unamplified_upper": answer["unamplified_epsilon"]["upper"],
    }


@pytest.mark.parametrize(("delta", "weak"), [(0.5, True), (0.016, False)])
def test_a_delta_above_one_in_all_units_calls_for_caution(fedamp, tmp_path, delta, weak):
    scenario = write_small(tmp_path, "rounds=2", "check_in.k=1", f"privacy.delta={delta}")
    run = tmp_path / "run"
    commands = (("check", scenario), ("privacy", scenario), ("run", scenario, "--out", run))
    for command in (*commands, ("verify", run)):
        with catch_warnings(action="always"):  # as outside of tests, where no warning is an error
            answer = fedamp(*command)
        assert answer.status == 0, answer
        assert ("caution: " in answer.err and f"delta {delta} is above 1/units, 0.0167" in answer.err) == weak, answer


def test_a_summary_that_cannot_be_written_does_not_hide_why_the_run_ended(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "write_summary", full)
    (tmp_path / "run").mkdir()
    grid = SerialGrid(CLIENT_APP, "cpu")
    grid.send_and_receive = lambda messages, timeout: []
    with pytest.raises(FederationError, match="none of 25 clients reported"):
        play(prepare(small("federation.quorum=1")), grid, RunFolder(tmp_path / "run"), Silent())
