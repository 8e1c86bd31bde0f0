"""The commands as a person and a script meet them: exit status, one line for every error, JSON, run folders."""

import json
import math
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer
import yaml

from fedamp.cli import commands
from fedamp.extension import keys
from fedamp.federation import messages, reader
from fedamp.runs.folder import existing_folder
from fedamp.server.launch import how_to_resume
from tests.federations import small, write_small

COMMAND = [sys.executable, "-m", "fedamp"]
SHORT = ("rounds=2", "check_in.k=1")


@pytest.fixture(scope="module")
def finished(fedamp, tmp_path_factory):
    """A finished run, and the output of its command."""
    folder = tmp_path_factory.mktemp("finished")
    return folder / "run", fedamp("run", write_small(folder, *SHORT), "--out", folder / "run")


# --- run --------------------------------------------------------------------------------------------------------------


def test_run_leaves_what_the_run_folder_promises(finished):
    folder, printed = finished
    present = {file.name for file in folder.iterdir()}
    assert present >= {"scenario.yaml", "rounds.jsonl", "ledger.json", "summary.json", "model.safetensors"}
    assert present >= {"plots", "log.txt", "checkpoint"}
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    promised = {"round", "loss", "accuracy", "epsilon_upper", "scheduled", "reported", "seconds"}
    assert [line["round"] for line in rounds] == [1, 2]
    assert all(promised <= line.keys() for line in rounds)
    summary = json.loads((folder / "summary.json").read_text())
    promised = {"final", "epsilon", "delta", "rounds_completed", "clients_trained", "wall_seconds", "stopped_because"}
    assert promised <= summary.keys()
    assert summary["epsilon"].keys() == {"lower", "upper"}
    assert {file.suffix for file in (folder / "plots").iterdir()} == {".png"}
    assert (printed.status, printed.err) == (0, "")  # without a terminal only the table
    assert "\x1b" not in printed.out
    assert "accuracy" in printed.out
    assert printed.out.splitlines()[-1] == f"run folder: {folder}"


def test_quietly_only_the_folder_is_named_and_json_has_a_line_a_round(fedamp, finished, tmp_path):
    scenario = finished[0] / "scenario.yaml"
    quiet = fedamp("run", scenario, "--quiet", "--out", tmp_path / "a")
    assert (quiet.status, quiet.out, quiet.err) == (0, f"{tmp_path / 'a'}\n", "")
    printed = fedamp("run", scenario, "--json", "--out", tmp_path / "b")
    *rounds, summary = map(json.loads, printed.out.splitlines())
    kept = [json.loads(line) for line in (tmp_path / "b" / "rounds.jsonl").read_text().splitlines()]
    assert rounds == [{key: value for key, value in line.items() if key != "unprotected"} for line in kept]
    head = json.loads((tmp_path / "b" / "ledger.json").read_text())["head"]
    left = json.loads((tmp_path / "b" / "summary.json").read_text())
    assert summary == left | {"folder": str(tmp_path / "b"), "head": head}
    assert summary["startup_seconds"] > 0  # also where Ray had no part in it


@pytest.mark.slow
def test_without_colour_there_are_no_italics_either():
    environment = os.environ | {"NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "xterm"}
    program = "from fedamp.cli.terminal import out; from rich.table import Table; out.print(Table('a', title='b'))"
    printed = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True).stdout
    assert "b" in printed
    assert "\x1b" not in printed


def test_a_model_that_is_larger_than_the_machine_is_refused_before_it_is_made(fedamp, tmp_path):
    answer = fedamp("check", write_small(tmp_path), "--set", "model={name: mlp, hidden: [200000000]}")
    assert answer.status == 2
    assert re.fullmatch(r"error: model mlp needs 240 GB, and this machine has .*; expected: .*", one_line(answer.err))


def test_runs_never_overwrite_a_folder_and_are_numbered_without_out(fedamp, finished, tmp_path, monkeypatch):
    folder, _ = finished
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    answer = fedamp("run", folder / "scenario.yaml", "--out", folder)
    assert answer.status == 2
    assert one_line(answer.err).startswith(f"error: {folder}: not an empty folder")
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "small").mkdir(parents=True)
    answer = fedamp("run", write_small(tmp_path, "rounds=1", "check_in.k=1"))
    assert answer.out.splitlines()[-1] == "run folder: runs/small-2"


def test_the_run_to_resume_is_the_newest_of_its_scenario(tmp_path, monkeypatch):
    """``runs/a-2`` may be the second run of ``a``, or the first of ``a-2``."""
    monkeypatch.chdir(tmp_path)
    for when, (folder, name) in enumerate({"a": "a", "a-2": "a", "a-3": "a-3", "a-more": "a-more"}.items()):
        (path := tmp_path / "runs" / folder).mkdir(parents=True)
        (path / "scenario.yaml").write_text(small(f"name={name}").to_yaml())
        os.utime(path, (when, when))
    assert existing_folder(None, "a").path == Path("runs/a-2")
    assert existing_folder(None, "a-3").path == Path("runs/a-3")


def test_an_unexpected_failure_is_one_line_and_its_traceback_is_in_a_log(fedamp, tmp_path, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the dog\nate it")

    monkeypatch.setattr("fedamp.server.loop.rounds", broken)
    monkeypatch.setattr("fedamp.federation.cost.privacy_cost", broken)
    answer = fedamp("run", write_small(tmp_path), "--out", tmp_path / "run")
    log = tmp_path / "run" / "log.txt"
    assert answer.status == 1
    assert one_line(answer.err) == f"failed: RuntimeError: the dog ate it; traceback in {log}"
    assert "in broken" in log.read_text()
    answer = fedamp("privacy", "digits")  # without a run folder
    assert answer.status == 1
    log = Path(one_line(answer.err).partition("traceback in ")[2])
    assert "in broken" in log.read_text()
    log.unlink()


@pytest.mark.slow
def test_ctrl_c_twice_stops_within_the_round(tmp_path):
    """Once: tests/server/test_resume.py."""
    folder = tmp_path / "run"
    endless = write_small(tmp_path, "client.steps=100000000", "rounds=3")
    process = subprocess.Popen(
        [*COMMAND, "run", endless, "--out", folder, "--anyway"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Shells start background processes with SIGINT ignored, and Python then keeps it so.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 300
    while not (folder / "scenario.yaml").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(1)  # mostly into the first round; before it, one Ctrl-C is enough
    process.send_signal(signal.SIGINT)
    said = process.stderr.readline()
    while said.startswith(("computing the privacy cost", "caution: local steps")):
        said = process.stderr.readline()
    if said.startswith("finishing this round"):
        process.send_signal(signal.SIGINT)
        said = process.stderr.readline()
    assert said == f"interrupted: {how_to_resume(folder)}\n"
    process.communicate()  # the round itself would take days
    assert process.returncode == 130


# --- costs ------------------------------------------------------------------------------------------------------------


def test_privacy_answers_in_json_and_as_a_table(fedamp, tmp_path):
    answer = fedamp("privacy", write_small(tmp_path), "--json")
    content = json.loads(answer.out)
    assert answer.status == 0
    assert content["delta"] == 1e-5
    assert content["unit"] == "client"
    assert content["noise_multiplier"] == 1.0
    assert content["adjacency"].startswith("zero-out")
    assert 0 < content["epsilon"]["lower"] <= content["epsilon"]["upper"]
    assert content["epsilon"]["upper"] <= content["unamplified_epsilon"]["upper"]
    assert [line["round"] for line in content["per_round"]] == list(range(1, 9))
    assert content["per_round"][-1]["epsilon_upper"] == content["epsilon"]["upper"]
    table = fedamp("privacy", write_small(tmp_path)).out
    assert f"{math.ceil(content['epsilon']['upper'] * 1e4) / 1e4:.4f}" in table
    assert max(map(len, table.splitlines())) <= 80


def test_privacy_needs_neither_torch_nor_flower_nor_ray_nor_more_than_ascii(tmp_path):
    """A terminal of ASCII shows a question mark for other letters."""
    write_small(tmp_path, "check_in={scheme: poisson, rate: 0.4}")
    code = (
        "import sys; sys.argv = ['fedamp', 'privacy', 'small.yaml']\n"
        "from fedamp.cli.commands import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "print(sorted({'torch', 'ray', 'flwr', 'matplotlib', 'sklearn'} & sys.modules.keys()))"
    )
    ascii_ = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=ascii_, capture_output=True, text=True)
    assert (done.returncode, "Unicode" in done.stderr) == (0, False), done.stderr
    assert done.stdout.isascii()
    assert done.stdout.splitlines()[-1] == "[]"


def test_calibrate_keeps_the_budget(fedamp, tmp_path):
    scenario = write_small(tmp_path)
    answer = json.loads(fedamp("calibrate", scenario, "--epsilon", 4, "--set", "privacy.delta=1e-4", "--json").out)
    assert answer["delta"] == 1e-4
    assert answer["epsilon"]["lower"] <= answer["epsilon"]["upper"] <= 4
    noise = f"privacy.noise_multiplier={answer['noise_multiplier']!r}"
    spent = json.loads(fedamp("privacy", scenario, "--set", noise, "--set", "privacy.delta=1e-4", "--json").out)
    assert spent["epsilon"] == answer["epsilon"]
    assert "noise multiplier" in fedamp("calibrate", scenario, "--epsilon", 4).out


# --- looking at runs --------------------------------------------------------------------------------------------------


def test_compare_prints_what_can_be_published_and_report_writes_one_file(fedamp, finished, tmp_path):
    folder, _ = finished

    def shown(*options):
        return fedamp("compare", folder, "--out", tmp_path / "plots", *options)

    table = shown()
    pictures = [line for line in table.out.splitlines() if line.startswith("picture: ")]
    assert max(len(line) for line in table.out.splitlines() if line not in pictures) <= 80
    printed = shown("--json")
    answer = json.loads(printed.out)
    assert [run["name"] for run in answer["runs"]] == ["run"]
    assert [f"picture: {file}" for file in answer["plots"]] == pictures
    assert all(Path(file).is_file() for file in answer["plots"])
    assert shown("--format", "json").out == printed.out
    assert shown("--format", "csv", "--pictures", "pdf,svg").out.startswith("name,folder,")
    assert {file.suffix for file in (tmp_path / "plots").iterdir()} == {".png", ".pdf", ".svg"}
    assert shown("--format", "latex").out.startswith("\\begin{tabular}{l")
    for options in (("--format", "html"), ("--pictures", "gif")):
        refused = shown(*options)
        assert (refused.status, len(refused.err.splitlines())) == (2, 1)
    answer = fedamp("report", folder, "--out", tmp_path / "a.html")
    assert (answer.status, answer.out) == (0, f"report: {tmp_path / 'a.html'}\n")
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


# --- scenarios, doctor, version, help ---------------------------------------------------------------------------------


def test_scenarios_are_listed_and_have_a_json_schema(fedamp):
    assert "digits" in fedamp("scenarios", "list").out
    schema = json.loads(fedamp("scenarios", "schema").out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "privacy" in schema["properties"]


def test_scenarios_show_prints_a_scenario_and_how_many_records_clients_have(fedamp, tmp_path):
    answer = fedamp("scenarios", "show", write_small(tmp_path), "--set", "rounds=5")
    shown, _, summary = answer.out.partition("\n1,437 training records of ")
    assert answer.status == 0
    assert yaml.safe_load(shown)["rounds"] == 5
    assert " ".join(summary.split()) == "60 clients (23 to 24 each, median 24); 360 public test records"


def test_files_that_a_scenario_names_are_looked_for(fedamp, tmp_path):
    """None of them is read, and no code is run."""
    scenario, package = write_small(tmp_path), tmp_path / "nets"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('its code was run')")
    (package / "small.py").write_text("raise SystemExit('its code was run')")
    wrong = {
        "model.name=nowhere:Net": "model.name nowhere:Net: no module nowhere; expected: installed, or a file in ",
        "model.name=nets.large:Net": "model.name nets.large:Net: no module nets.large",
        "client.loss=nowhere:Loss": "client.loss nowhere:Loss: no module nowhere",
        "model.initial=start.safetensors": "model.initial ",
        f"data={{name: npz, path: {tmp_path / 'data'}, clients: 5}}": f"data.path {tmp_path / 'data'}: no such",
    }
    for override, words in wrong.items():
        answer = fedamp("check", scenario, "--set", override)
        assert answer.status == 2
        assert one_line(answer.err).startswith(f"error: {words}")
    for there in ("nets.small:Net", "torch.nn:Linear"):
        answer = fedamp("check", scenario, "--set", f"model.name={there}")
        assert answer.status == 0, answer
        assert f"{there} was not tried" in answer.err + answer.out


def test_inputs_much_larger_than_one_get_a_hint(fedamp, tmp_path):
    generator = np.random.default_rng(0)
    income = generator.normal(1000, 200, size=(60, 4)).astype(np.float32)
    np.savez(tmp_path / "train.npz", x=income, y=np.arange(60) % 2)
    public = "test_is_public: true, test_fraction: 0.2"
    data = ["--set", f"data={{name: npz, path: {tmp_path}, classes: 2, clients: 40, {public}}}"]
    scenario = write_small(tmp_path)
    answer = fedamp("check", scenario, *data)
    assert answer.status == 0
    assert re.match(r"caution: inputs: their size is 1\.0\de\+03 .*standardise$", one_line(answer.err))
    step = "data.transform=[{name: standardise, mean: 1000, deviation: 200}]"
    assert not fedamp("check", scenario, *data, "--set", step).err


def test_doctor(fedamp):
    answer = json.loads(fedamp("doctor", "--json").out)
    assert {"python", "packages", "cores", "free_memory_bytes", "devices"} <= answer.keys()
    assert "python" in fedamp("doctor").out


def test_version_and_help(fedamp):
    assert re.fullmatch(r"fedamp \d+\.\d+\.\d+\n", fedamp("--version").out)
    for command in ("", "run", "scenarios", "scenarios show"):
        helped = fedamp(*command.split(), "--help")
        assert helped == fedamp(*command.split(), "-h")
        assert helped.status == 0
    shown = fedamp("--help").out
    places = [
        shown.index(f" {words} ") for words in ("Train", "run", "Account", "privacy", "Compare", "Deploy", "People")
    ]
    assert places == sorted(places)


def test_every_command_is_in_one_group_of_the_help_and_every_argument_is_described():
    group, theirs = typer.main.get_command(commands.app), keys("commands")
    listed = [name for names in commands.HELP_GROUPS.values() for name in names]
    assert sorted(group.commands) == sorted([*listed, *theirs])  # the core names no command of an extension
    assert {each.rich_help_panel for each in group.commands.values()} == set(commands.HELP_GROUPS)
    waiting = list(group.commands.items())
    while waiting:
        name, command = waiting.pop()
        assert all(getattr(parameter, "help", None) for parameter in command.params), name
        waiting += [(f"{name} {below}", each) for below, each in getattr(command, "commands", {}).items()]


COMPLETE = """
import json, os, sys
from fedamp.cli.commands import main
for asked in json.loads(sys.argv.pop()):
    os.environ.update(asked)
    sys.argv[0] = "fedamp"
    try:
        main()
    except SystemExit:
        print("---")
"""


def test_completion_knows_the_shipped_scenarios_the_keys_and_their_values():
    def bash(words: str) -> dict[str, str]:
        """What a shell asks to complete the last word."""
        return {"_FEDAMP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}

    zsh = {"_FEDAMP_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "fedamp run digits --set privacy.epsi"}
    asked = [bash("fedamp run dig"), bash("fedamp run digits --set check_in.scheme=bal"), zsh]
    done = subprocess.run([sys.executable, "-c", COMPLETE, json.dumps(asked)], capture_output=True, text=True)
    scenarios, values, keys, _ = done.stdout.split("---\n")
    assert "digits" in scenarios.split()
    assert values.split() == ["check_in.scheme=balanced"]
    assert '"privacy.epsilon":"budget; the run stops before' in keys


def test_every_key_is_explained(fedamp, subtests):
    keys = messages.described_keys()
    assert len(keys) > 100
    for key in keys:
        with subtests.test(key):
            said = json.loads(fedamp("explain", key, "--json").out)
            assert said.keys() >= {"does", "accepts", "default", "changes with it"}
            assert all(said.values())
            assert said["does"] != "which of the variants" or key.endswith((".name", ".scheme"))
    for roots, words in messages.CHANGES.items():
        sections = "|".join(reader.json_schema()["properties"])
        assert {*roots.split(), *re.findall(rf"\b(?:{sections})\.[a-z_]+", words)} <= keys.keys()
    said = json.loads(fedamp("explain", "privacy.unit", "--json").out)
    assert (said["accepts"], said["default"]) == ("client, sample", '"client"')
    section = messages.explain_key("client")
    assert (section["accepts"], section["default"]) == ("a section with these keys", "that of each key")
    assert section["changes with it"] == "see client.steps, client.epochs"
    assert "disjoint: The split part is cut" in messages.explain_key("submodels")["does"]
    refused = fedamp("explain", "privacy.epsilom")
    assert refused.status == 2
    assert "privacy.epsilon" in one_line(refused.err)


ANSWERS = [
    (),
    ("--data", "diabetes", "--unit", "sample"),
    ("--data", "segments", "--epsilon", 2),
]


@pytest.mark.slow
@pytest.mark.parametrize("answers", ANSWERS)
def test_a_new_scenario_has_nothing_off(fedamp, tmp_path, answers):
    file = tmp_path / "mine.yaml"
    assert fedamp("new", file, *answers).status == 0
    checked = fedamp("check", file, "--set", "privacy.precision=0.05", "--json")
    assert (checked.status, json.loads(checked.out)["verdict"]) == (0, "pass")
    before = file.read_bytes()
    refused = fedamp("new", file)
    assert (refused.status, file.read_bytes()) == (2, before)
    assert "mine.yaml: File exists; expected: the name of a new file" in one_line(refused.err)
    refused = fedamp("new", tmp_path / "other.yaml", "--unit", "family")
    assert (refused.status, (tmp_path / "other.yaml").exists()) == (2, False)
    assert "expected: client, sample" in one_line(refused.err)


def test_a_new_scenario_of_a_folder_runs_once_its_classes_are_told(fedamp, tmp_path):
    """Their number is not in the folder: people's labels must not decide it. Whose a record is stands in it."""
    (tmp_path / "own").mkdir()
    people = np.repeat(np.arange(40), 5)
    np.savez(tmp_path / "own" / "train.npz", x=np.eye(200, 4), y=people % 3, client=people)
    file = tmp_path / "mine" / "scenario.yaml"
    file.parent.mkdir()
    asked = ("new", file, "--data", tmp_path / "own")
    refused = fedamp(*asked)
    assert (refused.status, file.exists()) == (2, False)
    assert one_line(refused.err).startswith("error: --classes: people's labels must not decide it")
    assert fedamp(*asked, "--classes", "3").status == 0
    data = yaml.safe_load(file.read_text())["data"]
    told = {"name": "npz", "path": "../own", "classes": 3, "partition": {"scheme": "natural"}}
    assert data == told
    few = ("--set", "rounds=2", "--set", "check_in.k=1", "--set", "privacy.precision=0.05")
    answer = fedamp("run", file, "--anyway", "--engine", "serial", *few, "--out", tmp_path / "run")
    assert answer.status == 0, answer


def test_three_questions_at_a_terminal(tmp_path):
    """An answer of one's own, and the defaults."""
    ours, theirs = pty.openpty()
    command = [*COMMAND, "new", tmp_path / "mine.yaml"]
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    os.write(ours, b"synthetic\n\n3\n")
    _, asked = process.communicate()
    assert asked.count("]: ") == 3
    written = yaml.safe_load((tmp_path / "mine.yaml").read_text())
    assert (written["data"]["name"], written["privacy"]["epsilon"]) == ("synthetic", 3)


def one_line(text: str) -> str:
    assert len(text.splitlines()) == 1, text
    return text.strip()


@pytest.mark.slow
def test_a_model_that_crashes_this_process_is_told_by_its_line(tmp_path):
    """A model is built and evaluated where the command runs; a crash cannot be caught there."""
    (tmp_path / "crashing.py").write_text("import os\n\n\ndef model(shape, classes):\n    os.kill(os.getpid(), 11)\n")
    scenario = write_small(tmp_path, "model={name: 'crashing:model'}")
    done = subprocess.run([*COMMAND, "run", scenario, "--out", tmp_path / "run"], capture_output=True, text=True)
    assert done.returncode == -11
    assert f'File "{tmp_path / "crashing.py"}", line 5 in model' in done.stderr


@pytest.mark.filterwarnings("always:.* took")
def test_a_warning_is_a_line_of_its_own(fedamp, tmp_path, monkeypatch):
    monkeypatch.setattr("fedamp.accounting.mechanism._PATIENCE", 0.0)
    answer = fedamp("privacy", write_small(tmp_path, "privacy.noise_multiplier=1.037"), "--json")  # asked nowhere else
    assert answer.status == 0, answer.err
    lines = answer.err.splitlines()
    assert lines
    assert all(re.match(r"caution: \w+ took \d+ s, answered by: ", line) for line in lines)


@pytest.mark.slow
def test_a_command_whose_output_nobody_reads_ends_as_its_work_says() -> None:
    command = f"exec {sys.executable} -m fedamp scenarios list"
    for closed in (">&-", "> >(exit 0)"):
        done = subprocess.run(["bash", "-c", f"{command} {closed}"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_folders_with_signs_of_patterns_and_formulas_are_compared_and_reported(tmp_path: Path) -> None:
    """And nothing is written into a home that cannot be: this one is none."""
    variables = os.environ | {"HOME": "/proc/nowhere"}
    variables = {key: value for key, value in variables.items() if key not in ("FEDAMP_CACHE", "MPLCONFIGDIR")}
    names, changes = ["a $x_1 {y}", "100 %s $ {"], ["rounds=2", "check_in={scheme: all}", "engine.kind=serial"]

    def call(*command: str, closed: str = "") -> None:
        line = shlex.join([sys.executable, "-m", "fedamp", *command])
        done = subprocess.run(
            ["bash", "-c", f"exec {line} {closed}"], env=variables, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr

    sets = [word for change in changes for word in ("--set", change)]
    call("run", "digits", *sets, "--out", names[0], closed=">&-")
    shutil.copytree(tmp_path / names[0], tmp_path / names[1])
    call("compare", *names)
    call("report", *names)
    assert (tmp_path / "comparison" / "accuracy-epsilon.png").stat().st_size > 10_000
    page = (tmp_path / "report.html").read_text()
    assert all(name in page for name in names)
