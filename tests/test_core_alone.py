"""The core works where ``fedamp.extensions`` is hidden: its own scenarios run, are charged, and are verified.

What an extension adds is refused there in one line, which names what the core does not know.
"""

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
        print(f"exit {end.code or 0}", flush=True)
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


def alone(folder, *commands):
    """Run commands without extensions; returns the last lines that each printed, and the lines of errors."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n"), but_patience(done.stderr).splitlines()


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """What the commands of the core print about its scenarios, and where the runs are."""
    folder, commands = tmp_path_factory.mktemp("alone"), []
    for name, changes in SCENARIOS.items():
        changed = [word for change in (*SHORT, *changes) for word in ("--set", change)]
        run = ["run", str(ROOT / f"scenarios/{name}.yaml"), *changed, "--engine", "serial", "--quiet", "--anyway"]
        commands += [[*run, "--out", name], ["verify", name], ["privacy", f"{name}/scenario.yaml"]]
    return folder, *alone(folder, *commands)


def test_the_scenarios_of_the_core_run_and_are_verified(played):
    folder, printed, errors = played
    assert errors == []
    assert [line for line in printed if line.startswith("exit")] == ["exit 0"] * 3 * len(SCENARIOS)
    for name in SCENARIOS:
        summary = json.loads((folder / name / "summary.json").read_text())
        assert (summary["stopped_because"], summary["rounds_completed"]) == ("finished", 2)
        assert 0 < summary["epsilon"]["upper"] <= summary["unamplified_epsilon"]["upper"]


def test_a_command_of_a_hidden_extension_is_one_line(tmp_path):
    _, errors = alone(tmp_path, *(command.split() for command in EXTENSIONS))
    assert len(errors) == len(EXTENSIONS)
    for line, name in zip(errors, EXTENSIONS.values(), strict=True):
        assert line.startswith(f"error: No such command '{name}'")
        assert line.endswith("; see fedamp --help")


def test_a_server_and_two_nodes_play_a_run(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", DEPLOYED, str(ROOT)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[2, 2]", "both nodes answered in both rounds"
    summary, ledger = (json.loads((tmp_path / "run" / f"{name}.json").read_text()) for name in ("summary", "ledger"))
    assert (summary["stopped_because"], summary["rounds_completed"]) == ("finished", 2)
    assert summary["clients_trained"] == summary["clients_scheduled"] == 120
    assert ledger["epsilon_nodes"]["upper"] >= ledger["whole_run_epsilon"]["upper"]
    [*printed, _], errors = alone(tmp_path, ["verify", "run"])
    assert errors == []
    assert printed[-1] == "exit 0"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("privacy.population=people.db", "privacy.population=people.db: unknown key"),
        ("aggregation={scheme: secure}", "aggregation"),
        ("evaluation={on: clients, noise_multiplier: 5}", "noise_multiplier: 5}: unknown key"),
        ("model.local=[output]", "model.local: no extension keeps parameters with their client"),
    ],
)
def test_a_key_of_a_hidden_extension_is_refused(tmp_path, key, words):
    run = ["run", str(ROOT / "scenarios/digits.yaml"), "--set", key, "--engine", "serial", "--out", "run"]
    _, errors = alone(tmp_path, run)
    assert len(errors) == 1
    assert words in errors[0]
    assert not (tmp_path / "run").exists()
