"""The core works where ``fedamp.extensions`` is hidden: its own scenarios run, are charged, and are verified.

What an extension adds is refused there in one line, which names what the core does not know.
"""

import itertools
import json
import subprocess
import sys

import pytest

from tests.documentation import ROOT
from tests.tools import but_patience

# Refuse the package, as if it was not installed; then run commands in this one process.
HIDDEN = """
import json
import sys


class Hidden:
    def find_spec(name, path=None, target=None):
        if f"{name}.".startswith("fedamp.extensions."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden)
"""
PROGRAM = (
    HIDDEN
    + """
from fedamp.__main__ import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["fedamp", *words]
    try:
        main()
    except SystemExit as end:
        for stream in (sys.stdout, sys.stderr):
            print(f"exit {end.code or 0}", file=stream, flush=True)
import fedamp

assert not hasattr(fedamp, "sweep")
assert not [name for name in sys.modules if name.startswith("fedamp.extensions")]
"""
)
# A server and two nodes, whose messages are those of a deployment.
DEPLOYED = (
    HIDDEN
    + """
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from fedamp.client import stacks
from fedamp.runs.folder import opened
from fedamp.server.loop import play
from fedamp.server.observers import Observer
from fedamp.server.setup import prepare
from tests.deployed import Deployment
from tests.federations import hosting, small

stacks._TRIES = 1  # as in the fixture few_tries
nodes = {"north": "0-29", "south": "30-59"}
scenario = small("rounds=2", "check_in={scheme: all}", "known_seed=false", hosting(nodes))
with opened(scenario, Path("run"), resume=False) as (folder, seed):
    grid = Deployment({name: {"hosts": units} for name, units in nodes.items()})
    play(prepare(scenario, seed), grid, folder, Observer())
print([len(round_) for round_ in grid.replies])
from fedamp.__main__ import main

sys.argv = ["fedamp", "verify", "run"]
try:
    main()
except SystemExit as end:
    print(f"exit {end.code or 0}")
assert not [name for name in sys.modules if name.startswith("fedamp.extensions")]
"""
)
SHORT = ("rounds=2", "client.steps=1", "privacy.noise_multiplier=1", "privacy.epsilon=null")
SCENARIOS = {  # with what makes two rounds of each
    "digits": ("check_in.k=1",),
    "disjoint-3": (),
    "dropout": (),
    "balanced-submodels": ("check_in.k=1",),
}
EXTENSIONS = {  # a command of each, and its name in the line about it
    "audit digits": "audit",
    "certify localhost": "certify",
    "doctor": "doctor",
    "release digits": "release",
    "report digits": "report",
    "watch digits": "watch",
    "sweep digits --set seed=1,2": "sweep",
    "tune digits --grid client.steps=1,2": "tune",
    "merge a b --method random-selection --epsilon 1 --delta 1e-5": "merge",
}


REFUSED = {  # keys of extensions, and words about each
    "privacy.population=people.db": "privacy.population=people.db: unknown key",
    "aggregation={scheme: secure}": "aggregation",
    "evaluation={on: clients, noise_multiplier: 5}": "noise_multiplier: 5}: unknown key",
    "model.local=[output]": "model.local: no extension keeps parameters with their client",
}


def alone(folder, *commands):
    """Run commands in one process without extensions; returns lines of output and of errors, by command."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    streams = []
    for text in (done.stdout, but_patience(done.stderr)):
        lines = text.splitlines()
        ends = [place for place, line in enumerate(lines, 1) if line.startswith("exit ")]
        assert len(ends) == len(commands)
        streams.append([lines[start:end] for start, end in itertools.pairwise([0, *ends])])
    return list(zip(*streams, strict=True))


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A folder with runs of the core's scenarios, and what each of all commands printed there, by its words."""
    folder, commands = tmp_path_factory.mktemp("alone"), []
    for name, changes in SCENARIOS.items():
        changed = [word for change in (*SHORT, *changes) for word in ("--set", change)]
        run = ["run", str(ROOT / f"scenarios/{name}.yaml"), *changed, "--engine", "serial", "--quiet", "--anyway"]
        commands += [[*run, "--out", name], ["verify", name], ["privacy", f"{name}/scenario.yaml"]]
    commands += [command.split() for command in EXTENSIONS]
    run = ["run", str(ROOT / "scenarios/digits.yaml"), "--engine", "serial", "--out", "run", "--set"]
    commands += [[*run, key] for key in REFUSED]
    done = alone(folder, *commands)
    return folder, {" ".join(words): each for words, each in zip(commands, done, strict=True)}


def test_the_scenarios_of_the_core_run_and_are_verified(played):
    folder, printed = played
    own = list(printed.values())[: 3 * len(SCENARIOS)]
    assert [errors for _, errors in own] == [["exit 0"]] * len(own)
    for name in SCENARIOS:
        summary = json.loads((folder / name / "summary.json").read_text())
        assert (summary["stopped_because"], summary["rounds_completed"]) == ("finished", 2)
        assert 0 < summary["epsilon"]["upper"] <= summary["unamplified_epsilon"]["upper"]


@pytest.mark.parametrize("command", EXTENSIONS)
def test_a_command_of_a_hidden_extension_is_one_line(played, command):
    _, printed = played
    line, end = printed[command][1]
    assert line.startswith(f"error: No such command '{EXTENSIONS[command]}'")
    assert line.endswith("; see fedamp --help")
    assert end == "exit 2"


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_of_a_hidden_extension_is_refused(played, key):
    folder, printed = played
    [(line, end)] = [errors for words, (_, errors) in printed.items() if words.endswith(f"--set {key}")]
    assert REFUSED[key] in line
    assert end == "exit 2"
    assert not (folder / "run").exists()


def test_a_server_and_two_nodes_play_a_run(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", DEPLOYED, str(ROOT)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert "[2, 2]" in told, "both nodes answered in both rounds"
    assert told[-1] == "exit 0", "the run is verified"
    summary, ledger = (json.loads((tmp_path / "run" / f"{name}.json").read_text()) for name in ("summary", "ledger"))
    assert (summary["stopped_because"], summary["rounds_completed"]) == ("finished", 2)
    assert summary["clients_trained"] == summary["clients_scheduled"] == 120
    assert ledger["epsilon_nodes"]["upper"] >= ledger["whole_run_epsilon"]["upper"]
