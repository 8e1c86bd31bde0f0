"""Bad input in bulk, through the command line: one line that says what is wrong, exit code 2, nothing changed."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.chains import change_ledger
from tests.federations import small
from tests.server.plays import play_in

# What is run, resumed, or asked about where a case does not say otherwise.
ROUNDS = "rounds=6"


@pytest.fixture
def refusal(fedamp):
    """The one line that a wrong command line gets."""

    def call(*arguments: object) -> str:
        answer = fedamp(*arguments)
        assert answer.status == 2, answer
        assert answer.out == ""
        assert answer.err.startswith("error: ")
        assert len(answer.err.splitlines()) == 1
        return answer.err

    return call


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- command lines ----------------------------------------------------------------------------------------------------

AT_ONCE = "--engine serial --set privacy.noise_multiplier=1"  # nothing is calibrated before it is refused
CHEAP = f"{AT_ONCE} --set check_in={{{{scheme: all}}}}"  # and hardly anything is charged
COMMANDS = {
    "nonsense": "No such command 'nonsense'",
    "privcy": "Did you mean 'privacy'?",
    "run": "Missing argument 'SCENARIO'",
    "run digits --sett rounds=1": "--set",
    "run digits --resum": "--resume",
    "run digits --canaries 9": "No such option '--canaries'; expected: --set privacy.canaries=NUMBER",
    "run digits --set": "--set",
    "run digits --set rounds": "--set rounds: expected: key.path=value",
    "run digits --set rounds=-3": "--set rounds=-3",
    "run digits --set nonsense=1": "unknown key",
    "run digits --set rounds.x=3": "rounds is not a section",
    "run digits --engine gpu": "ray, serial",
    "run nothing.yaml": "no such file",
    "run .": "a folder",
    "run digits --resume --out {empty}": "not a run folder",
    "run digits --out {full}": "not an empty folder",
    "run digits --out {file}": "not an empty folder",
    "run digits --out {file}/below": "cannot be made",
    "run digits extra": "unexpected extra argument",
    "run digits --set engine.device=cuda:99 --engine serial": "engine.device",
    f"run digits {CHEAP} --set model.name=nowhere:Nothing": "nowhere",
    f"run digits {CHEAP} --set model.name=lenet": "lenet",
    f"run digits {CHEAP} --set model.initial={{file}}": "model.initial",
    "run digits --set data={{name: npz, path: /nowhere, clients: 3}}": "not a folder",
    "run digits --set data.clients=100000": "100000",
    "run digits --set check_in={{scheme: poisson, rate: 0.0001}}": "expected cohort",
    "privacy": "Missing argument 'SCENARIO'",
    "privacy digts": "did you mean digits?",
    "privacy digits --set privacy.delta=1": "privacy.delta",
    "calibrate digits": "Missing option '--epsilon'",
    "calibrate digits --epsilon": "--epsilon",
    "calibrate digits --epsilon none": "not a valid float",
    "calibrate digits --epsilon inf": "epsilon",
    "calibrate digits --epsilon 1 --set privacy.delta=2": "delta",
    "compare": "Missing argument",
    "compare {empty}": "no summary.json",
    "compare {empty}/nowhere": "{empty}/nowhere: no such run folder",
    "compare {full}": "summary.json",
    "report {full} --out {empty}/page.html": "summary.json",
    "scenarios show /nowhere.yaml": "/nowhere.yaml",
    "check nothing": "no such file",
    "scenarios validate nothing": "No such command 'validate'",
    "doctor --superlink nowhere:99999": "expected: HOST:PORT",
    "doctor --superlink 127.0.0.1:1 --root-certificates {empty}/ca.crt": "No such file",
    "doctor --superlink 127.0.0.1:1 --root-certificates {file}": "holds no certificate",
}


def test_a_wrong_command_line_is_refused(monkeypatch, refusal, tmp_path_factory, subtests):
    for command in COMMANDS:
        with subtests.test(command):
            tmp_path = tmp_path_factory.mktemp("here")
            monkeypatch.chdir(tmp_path)
            (tmp_path / "empty").mkdir()
            (tmp_path / "full").mkdir()
            (tmp_path / "full" / "summary.json").write_text("{")
            (tmp_path / "file").write_text("text")
            before = contents(tmp_path)
            names = {name: str(tmp_path / name) for name in ("empty", "full", "file")}
            # Blanks inside braces belong to a value.
            words = command.replace(": ", ":\0").replace(", ", ",\0").split(" ")
            said = refusal(*(word.replace("\0", " ").format(**names) for word in words))
            assert COMMANDS[command].format(**names) in said
            assert contents(tmp_path) == before


# --- data folders, as the command line refuses them; tests/data has all damages ---------------------------------------

X, Y, OWNERS = np.ones((8, 4), np.float32), np.array([0, 1] * 4), np.repeat(np.arange(4), 2)


def beside(name: str, content: str):
    """A good folder with another file in it."""

    def write(folder: Path) -> None:
        np.savez(folder / "train.npz", x=X, y=Y, client=OWNERS)
        (folder / name).write_text(content)

    return write


FOLDERS = {
    "nothing": (lambda folder: None, "no train.npz; the folder holds nothing"),
    "something else": (lambda folder: (folder / "notes.txt").write_text("x"), "the folder holds notes.txt"),
    "no zip": (beside("train.npz", "no zip"), "train.npz"),
    "federation is no JSON": (beside("federation.json", "{"), "federation.json"),
}


def test_a_wrong_data_folder_is_refused(refusal, tmp_path_factory, subtests):
    for name in FOLDERS:
        with subtests.test(name):
            tmp_path = tmp_path_factory.mktemp("here")
            write, expected = FOLDERS[name]
            folder = tmp_path / "records"
            folder.mkdir()
            write(folder)
            before = contents(tmp_path)
            overrides = (
                f"data={{name: npz, path: {folder}, classes: 10, partition: {{scheme: natural}}}}",
                "model={name: logistic}",
                "submodels={scheme: none}",
                "engine.kind=serial",
                "check_in={scheme: all}",
            )
            arguments = [word for override in overrides for word in ("--set", override)]
            assert expected in refusal("run", "digits", *arguments, "--out", tmp_path / "run")
            assert contents(tmp_path) == before


def trained_with(fedamp, folder: Path, wrong: slice):
    """What a run of two rounds says, of records of which some are not finite."""
    x = X.copy()
    x[wrong] = np.nan
    np.savez(folder / "train.npz", x=x, y=Y, client=OWNERS)
    data = f"data={{name: npz, path: {folder}, classes: 10, partition: {{scheme: natural}}}}"
    overrides = (data, "model={name: logistic}", "submodels={scheme: none}", "check_in={scheme: all}", "rounds=2")
    words = [word for override in overrides for word in ("--set", override)]
    command = f"run digits {AT_ONCE}"
    return fedamp(*command.split(), *words, "--out", folder / "run")


@pytest.mark.filterwarnings("default::UserWarning")  # the terminal shows them as cautions
def test_one_record_that_is_not_finite_takes_one_unit_away(fedamp, tmp_path):
    answer = trained_with(fedamp, tmp_path, slice(2, 3))
    assert answer.status == 0, answer.err
    found = f"{tmp_path / 'train.npz'}: column 'x': the inputs of record 2 are others than finite numbers"
    assert f"1 of 4 clients cannot train, and count as zero: {found}" in answer.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["clients_failed"] == 2, "in each of two rounds"


@pytest.mark.filterwarnings("default::UserWarning")  # the terminal shows them as cautions
def test_records_of_which_none_is_finite_train_nobody_and_the_run_says_so(fedamp, tmp_path):
    answer = trained_with(fedamp, tmp_path, slice(None))
    assert answer.status == 1
    said = re.search(r"4 of 4 clients cannot train, and count as zero: (.*)", answer.err)
    assert said
    assert re.findall(r"record (\d+)", said[1]) == ["0", "2", "4"], "of the first few clients"
    assert said[1].endswith("; and 1 more")
    for round_ in (1, 2):
        assert f"round {round_}: each of 4 clients failed" in answer.err
    assert answer.err.count("the release is noise") == 2
    [failed] = [line for line in answer.err.splitlines() if line.startswith("failed: ")]
    assert failed.startswith("failed: no client could train in any of 2 rounds: the model is noise; expected: ")


# --- run folders ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of six rounds with checkpoints of rounds 3 and 6."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    play_in(folder, small(ROUNDS))
    (folder / "scenario.yaml").write_text(small(ROUNDS).to_yaml())
    return folder


def newest(folder: Path) -> Path:
    return sorted((folder / "checkpoint").iterdir())[-1]


def checkpoint(change):
    """A checkpoint that is written anew with other facts or arrays."""

    def write(folder: Path) -> None:
        file = newest(folder)
        with safe_open(file, framework="numpy") as content:
            metadata, arrays = content.metadata(), {key: content.get_tensor(key) for key in content.keys()}  # noqa: SIM118
        facts = json.loads(metadata["fedamp"])
        change(facts, arrays)
        save_file(arrays, file, metadata | {"fedamp": json.dumps(facts)})

    return write


def flipped(folder: Path) -> None:
    """One bit of the last tensor."""
    file = newest(folder)
    content = bytearray(file.read_bytes())
    content[-7] ^= 16
    file.write_bytes(bytes(content))


def replaced(name: str, content: bytes | str | None):
    """A file with another content, or a folder in its place."""

    def write(folder: Path) -> None:
        file = newest(folder) if name == "checkpoint" else folder / name
        if content is None:
            file.unlink()
            file.mkdir()
        else:
            file.write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def ledger(change):
    def write(folder: Path) -> None:
        file = folder / "ledger.json"
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))

    return write


def line(change):
    def write(folder: Path) -> None:
        file = folder / "rounds.jsonl"
        lines = file.read_text().splitlines()
        change(lines)
        file.write_text("\n".join(lines) + "\n")

    return write


def of(*overrides: str):
    """The folder's scenario is another one."""
    return lambda folder: (folder / "scenario.yaml").write_text(small(ROUNDS, *overrides).to_yaml())


GOOD = "round-00000003.safetensors is good: delete round-00000006.safetensors"
DAMAGED = {
    "checkpoint is empty": (replaced("checkpoint", b""), GOOD),
    "checkpoint is text": (replaced("checkpoint", "hello"), GOOD),
    "checkpoint is zeros": (replaced("checkpoint", bytes(5000)), GOOD),
    "checkpoint is a folder": (replaced("checkpoint", None), GOOD),
    "checkpoint has a flipped bit": (flipped, GOOD),
    "checkpoint of another version": (checkpoint(lambda facts, arrays: facts.update(format="2")), GOOD),
    "checkpoint of another scenario": (checkpoint(lambda facts, arrays: facts.update(scenario="0" * 64)), GOOD),
    "checkpoint without a record": (checkpoint(lambda facts, arrays: facts.pop("record")), GOOD),
    "checkpoint with an odd record": (checkpoint(lambda facts, arrays: facts.update(record={"x": 1})), GOOD),
    "checkpoint with an odd round": (checkpoint(lambda facts, arrays: facts.update(round="six")), GOOD),
    "checkpoint with an odd scale": (checkpoint(lambda facts, arrays: facts.update(clip_scale="wide")), GOOD),
    "checkpoint without an array": (checkpoint(lambda facts, arrays: arrays.popitem()), GOOD),
    "checkpoint with another array": (
        checkpoint(lambda facts, arrays: arrays.update({name: array * 2 for name, array in arrays.items()})),
        GOOD,
    ),
    "checkpoints are damaged, all of them": (
        lambda folder: [file.write_bytes(b"x") for file in (folder / "checkpoint").iterdir()],
        "there is no older one that is good",
    ),
    "ledger is empty": (replaced("ledger.json", b""), "damaged ledger"),
    "ledger is deep": (replaced("ledger.json", "[" * 100_000), "damaged ledger"),
    "ledger is a folder": (replaced("ledger.json", None), "damaged ledger"),
    "ledger with a round twice": (ledger(lambda c: c["releases"].insert(2, c["releases"][2])), "each once"),
    "ledger that lacks a round": (ledger(lambda c: c["releases"].pop(2)), "each once"),
    "ledger out of order": (ledger(lambda c: c["releases"].reverse()), "each once"),
    "ledger with a round too many": (
        ledger(lambda c: c["releases"].append(c["releases"][-1] | {"round": 7})),
        "at most 6",
    ),
    "ledger that is behind": (
        lambda folder: change_ledger(folder, lambda c: c.update(releases=c["releases"][:2])),
        "before the checkpoint of round 6",
    ),
    "ledger with a cheaper round": (
        ledger(lambda c: c["releases"][3].update(epsilon_upper=0.001)),
        "round 4 cannot have left epsilon at 0.001",
    ),
    "ledger with an infinite round": (
        ledger(lambda c: c["releases"][3].update(epsilon_upper=None)),
        "round 4 cannot have left epsilon at inf",
    ),
    "ledger with another budget": (ledger(lambda c: c.update(budget_epsilon=1)), "budget_epsilon"),
    "ledger with another delta": (ledger(lambda c: c.update(delta=0.5)), "delta"),
    "ledger with other units": (ledger(lambda c: c.update(units=10**6)), "units"),
    "ledger with less noise": (ledger(lambda c: c["parts"][0].update(noise_multiplier=0)), "parts"),
    "ledger of another model": (ledger(lambda c: c["releases"][-1].update(digest="0" * 64)), "ledger"),
    "scenario with less noise": (of("privacy.noise_multiplier=0.5"), "differs in scenario_sha256"),
    "scenario with another seed": (of("seed=4"), "differs in scenario_sha256"),
    "scenario is gone": (lambda folder: (folder / "scenario.yaml").unlink(), "no such file"),
    "scenario is damaged": (replaced("scenario.yaml", "name: ["), "not valid YAML"),
    "rounds lack one": (line(lambda lines: lines.pop(2)), "rounds.jsonl: damaged"),
    "rounds are damaged": (line(lambda lines: lines.insert(2, "{")), "rounds.jsonl: damaged"),
}


@pytest.mark.parametrize("what", sorted({name.split()[0] for name in DAMAGED}))
def test_a_damaged_run_folder_is_refused_and_left_as_it_is(what, finished, tmp_path, refusal, subtests):
    cases = {name: case for name, case in DAMAGED.items() if name.split()[0] == what}
    for number, (name, (damage, expected)) in enumerate(cases.items()):
        with subtests.test(name):
            folder = tmp_path / str(number)
            shutil.copytree(finished, folder)
            damage(folder)
            before = contents(folder)
            assert expected in refusal("run", folder / "scenario.yaml", "--resume", "--out", folder)
            after = contents(folder)
            for written in ("log.txt", ".lock"):
                after.pop(written, None), before.pop(written, None)
            assert after == before
