"""The example of a package with schemes of its own: it is built, installed, meets its contracts, and is charged."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedamp.accounting import Allocation, Gaussian, Repeat
from fedamp.client import configuration
from fedamp.errors import DeploymentError
from fedamp.federation.check_in import CheckIn
from fedamp.federation.submodels import SubmodelScheme
from fedamp.runs.verification import verify_ledger
from tests.documentation import ROOT


@pytest.mark.parametrize(
    ("heading", "base"),
    [("Methods of a check-in scheme", CheckIn), ("Methods of a submodel scheme", SubmodelScheme)],
)
def test_the_methods_of_a_scheme_are_those_that_its_guide_lists(heading, base):
    """A method of another name would be called by nobody, and nobody would say so."""
    guide = (ROOT / "CONTRIBUTING.md").read_text().partition(heading)[2].partition("\n**")[0]
    told = {found[1]: found[2] for found in re.finditer(r"^\| `(\w+)\((.*?)\)`", guide, re.MULTILINE)}
    assert base.__abstractmethods__ <= set(told)
    for name, words in told.items():
        known = getattr(base, name)
        arguments = [] if isinstance(known, property) else list(inspect.signature(known).parameters)[1:]
        assert [each for each in words.split(", ") if each] == arguments[: len(words.split(", "))], name


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A copy of the example, and beside it a folder where it is installed."""
    top = tmp_path_factory.mktemp("example")
    shutil.copytree(ROOT / "examples" / "blocks", top / "blocks", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", top / "installed", top / "blocks"], check=True, capture_output=True)
    return top


def called(package: Path, *command: object, cache: str = "cache") -> subprocess.CompletedProcess[str]:
    """A command of Python with the installed example, away from the source."""
    paths = {"PYTHONPATH": f"{package / 'installed'}:{ROOT}", "FEDAMP_CACHE": str(package / cache)}
    arguments = [sys.executable, *map(str, command)]
    return subprocess.run(arguments, cwd=package, env=os.environ | paths, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_its_schemes_meet_their_contracts_and_are_charged_for_them(package):
    done = called(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", package / "blocks" / "tests")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


PRICE = """
import json, sys
import fedamp
from fedamp.__main__ import main
from tests.test_example import SCENARIO

raw = SCENARIO | {"privacy": SCENARIO["privacy"] | json.loads(sys.argv[1])}
answer = fedamp.privacy(raw)
run = fedamp.run(raw, out=sys.argv[2])
print(json.dumps({
    "upper": answer["epsilon"]["upper"],
    "unamplified": answer["unamplified_epsilon"]["upper"],
    "said": answer.get("unchecked", ""),
    "ledger": run.ledger.unchecked,
    "assumptions": run.ledger.assumptions,
    "card": str(run),
    "by_round": [record.epsilon_upper for record in run.rounds],
}), flush=True)
sys.argv = ["fedamp", "verify", sys.argv[2]]
main()
"""
SCENARIO = {
    "name": "foreign",
    "data": {"name": "synthetic", "clients": 60, "records_per_client": 5},
    "model": {"name": "logistic"},
    "rounds": 5,
    "check_in": {"scheme": "alternating"},
    "privacy": {"clip": 0.5, "noise_multiplier": 1.0},
    "engine": {"kind": "serial"},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("unchecked", [False, True])
def test_a_scheme_that_has_met_no_contract_is_charged_openly_or_says_so(package, unchecked):
    """Five rounds in the open cost five; as the scheme says, three of five that one hidden coin picks."""
    settings, out = json.dumps({"unchecked": unchecked}), package / f"run-{unchecked}"
    done = called(package, "-c", PRICE, settings, out, cache="nothing-passed")
    assert done.returncode == 0, done.stderr
    told, verified = done.stdout.split("\n", 1)
    told = json.loads(told)
    open_, hidden = (Repeat(Gaussian(1.0), rounds).epsilon(1e-5).upper for rounds in (5, 3))
    if not unchecked:
        assert told["upper"] == pytest.approx(open_, rel=1e-6)
        assert told["by_round"] == pytest.approx(
            [Repeat(Gaussian(1.0), n).epsilon(1e-5).upper for n in range(1, 6)], rel=1e-3
        ), "a curve over rounds has wider brackets"
        assert "is charged without amplification" in " ".join(told["assumptions"])
        assert told["said"] == told["ledger"] == ""
    else:
        assert told["upper"] == pytest.approx(Allocation(Repeat(Gaussian(1.0), 3), 1, 2).epsilon(1e-5).upper, rel=1e-6)
        assert told["upper"] < hidden
        assert max(told["by_round"]) <= told["upper"] * (1 + 1e-9), "a prefix costs no more than the whole"
        assert "fedamp_blocks.check_in:AlternatingCheckIn of fedamp-blocks 0.1" in told["said"]
        assert told["ledger"] == told["said"]
        assert told["said"] in told["card"]
    assert ("no contract has tested" in verified) == unchecked
    found = {check.name: check for check in verify_ledger(out)}["scenario"]  # this process lacks the package
    assert found.verdict == "fail"
    assert "the ledger says: the scheme of check_in is fedamp_blocks.check_in:AlternatingCheckIn of" in found.found


NAMED = """
import json, sys
import fedamp
from tests.test_example import SCENARIO

path = "fedamp_blocks.check_in:AlternatingCheckIn"
scenario = fedamp.load(SCENARIO | {"check_in": {"scheme": path}})
again = fedamp.load(json.loads(scenario.model_dump_json()))
assert again == scenario, "a dump is read again"
assert again.check_in.scheme == "alternating"
assert fedamp.privacy(again)["mechanism"] == fedamp.privacy(SCENARIO)["mechanism"]
for wrong in ("antigravity:fly", "fedamp_blocks.no:Class", "fedamp_blocks.submodels:LayerSubmodels"):
    try:
        fedamp.load(SCENARIO | {"check_in": {"scheme": wrong}})
    except fedamp.errors.InputError as error:
        print(error)
assert "antigravity" not in sys.modules
"""


OPTIMIZED = """
import json, sys
import fedamp
from tests.test_example import SCENARIO

raw = SCENARIO | {"check_in": {"scheme": "all"}, "server": {"optimizer": "fedamp_blocks.optimizer:SignDescent"}}
for unchecked in (False, True):
    try:
        raw["privacy"] = SCENARIO["privacy"] | {"unchecked": unchecked}
        scenario = fedamp.load(raw)
    except fedamp.errors.InputError as error:
        print(error)
assert scenario.server.optimizer == "sign"
assert fedamp.load(json.loads(scenario.model_dump_json())) == scenario
run = fedamp.run(scenario, out=sys.argv[1])
assert "server.optimizer" in run.ledger.unchecked
from fedamp.server.setup import prepare
layers = raw | {"submodels": {"scheme": "layers", "count": 2}, "model": {"name": "mlp", "hidden": [4]}}
open(sys.argv[2], "w").write(prepare(fedamp.load(layers)).task.to_json())
for name in ("signs", "fedamp_blocks.submodels:LayerSubmodels"):
    try:
        fedamp.load(raw | {"server": {"optimizer": name}})
    except fedamp.errors.InputError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["privacy", "run"])
def test_who_asks_for_the_cost_is_told_that_no_contract_has_passed(package, command):
    (package / "told.yaml").write_text(json.dumps(SCENARIO))
    done = called(package, "-m", "fedamp", command, package / "told.yaml", cache="nothing-passed")
    assert done.returncode == 0, done.stderr
    said = "check_in is charged without amplification: fedamp_blocks.check_in:AlternatingCheckIn of fedamp-blocks 0.1"
    expected = "expected: its CheckInContract has passed, or privacy.unchecked: true"
    assert done.stderr.count(said) == done.stderr.count(expected) == 1


@pytest.mark.slow
def test_an_optimizer_that_has_met_no_contract_is_refused_or_said(package):
    done = called(package, "-c", OPTIMIZED, package / "signs", package / "task.json", cache="nothing-passed")
    assert done.returncode == 0, done.stderr
    with pytest.raises(DeploymentError, match="submodels") as refused_by_a_node:  # this process lacks the package
        configuration.task_of((package / "task.json").read_text())
    assert str(refused_by_a_node.value).endswith("fedamp-blocks 0.1, if you trust it: pip install fedamp-blocks==0.1")
    refused, *wrong = done.stdout.splitlines()
    assert (
        "server.optimizer: fedamp_blocks.optimizer:SignDescent of fedamp-blocks 0.1 has not met its contract" in refused
    )
    assert refused.endswith("expected: its OptimizerContract has passed, or privacy.unchecked: true")
    for line in wrong:
        assert line.endswith("expected: sgd, adam, sign")
    checked = called(package, "-m", "fedamp", "verify", package / "signs", cache="nothing-passed")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "no contract has tested" in checked.stdout


@pytest.mark.slow
def test_a_path_names_a_scheme_that_an_installed_extension_offers(package):
    done = called(package, "-W", "error::UserWarning", "-c", NAMED)
    assert done.returncode == 0, done.stderr
    stranger, missing, other = done.stdout.splitlines()
    for line in (stranger, missing, other):
        assert "check_in.scheme: no extension offers" in line
        assert line.endswith("the path of one: fedamp_blocks.check_in:AlternatingCheckIn")
