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
PROGRAM = """
import json
import sys


class Hidden:
    def find_spec(name, path=None, target=None):
        if f"{name}.".startswith("fedamp.extensions."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden)
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
SHORT = ("rounds=2", "client.steps=1", "privacy.noise_multiplier=1", "privacy.epsilon=null")
SCENARIOS = {  # with what makes two rounds of each
    "digits": ("check_in.k=1",),
    "disjoint-3": (),
    "dropout": (),
    "balanced-submodels": ("check_in.k=1",),
}
EXTENSIONS = {  # a command of each, and its name in the line about it
    "audit digits": "audit",
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
