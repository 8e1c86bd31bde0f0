"""What an installation holds: its version, its dependencies, its public names, and the accountant alone."""

import ast
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from typer.main import get_command

import fedamp
from fedamp.accounting.arithmetic import compiled
from fedamp.cli import commands
from fedamp.errors import EXTRAS, missing
from fedamp.extensions.deployment.doctor import FLOWER
from tests.conftest import required
from tests.documentation import ROOT, shell

FULL = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = FULL["optional-dependencies"]

# Taking a name away, or giving it another meaning, breaks the programs of others: a new version, and a line in
# CHANGELOG.md. The last two packages are used without the rest.
PROMISED = {
    "fedamp": ["StopTraining", "compare", "load", "open", "play", "privacy", "run", "study", "sweep", "tune"],
    "fedamp.accounting": [
        "FIXED_GRADIENTS",
        "JOINT_RELEASE",
        "NOTHING",
        "Allocation",
        "AllocationPrefix",
        "Approximate",
        "BallsInBins",
        "Bounds",
        "CappedPoisson",
        "Claims",
        "Compose",
        "CountField",
        "Cyclic",
        "Detail",
        "Dropout",
        "FiniteOutcomes",
        "Gaussian",
        "GaussianMixture",
        "Group",
        "GroupPoissonGaussian",
        "Hidden",
        "Laplace",
        "Law",
        "LinearCombination",
        "Mechanism",
        "MixedCoordinate",
        "ModelMix",
        "Moments",
        "NotEvaluable",
        "NotPrivate",
        "OfOne",
        "Poisson",
        "ProbabilityField",
        "RandomSelection",
        "RandomisedResponse",
        "Relation",
        "Release",
        "Repeat",
        "ScaleField",
        "Spaced",
        "Submodels",
        "SubstitutedPoissonGaussian",
        "TradeOff",
        "TruncatedPoisson",
        "WithoutReplacement",
        "calibrate",
        "calibrate_count",
        "calibrate_risk",
        "check_count",
        "composed",
        "epsilon_from_rdp",
        "epsilon_over_rounds",
        "from_json",
        "group",
        "in_words",
        "privacy_profile",
        "trade_off",
    ],
    "fedamp.strategies": ["PrivateStrategy"],
}

LONGEST_NAME = 80  # letters of a test's name


# --- version and dependencies ----------------------------------------------------------------------------------------


def test_the_version_is_the_same_everywhere():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == FULL["version"]
    released = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == FULL["version"]


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def imported(folder: Path) -> set[str]:
    """Distributions of others that the modules below a folder import."""
    modules = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add((node.module or "").partition(".")[0])
    owners = metadata.packages_distributions()
    foreign = modules - sys.stdlib_module_names - {"fedamp"}
    return {canonicalize_name(owner) for module in foreign for owner in owners.get(module, [module])}


def own_extras(requirements: list[str]) -> set[str]:
    """The extras of fedamp that an extra contains, with those that they contain."""
    direct = {extra for each in requirements if (one := Requirement(each)).name == "fedamp" for extra in one.extras}
    return direct.union(*(own_extras(OPTIONAL[extra]) for extra in direct))


def brought(*extras: str) -> set[str]:
    """The distributions of others that an installation with these extras asks for."""
    every = own_extras([f"fedamp[{','.join(extras)}]"]) if extras else set()
    return names(FULL["dependencies"] + [each for extra in every for each in OPTIONAL[extra]]) - {"fedamp"}


def test_what_is_imported_is_declared_and_nothing_else():
    beside = "interop opacus pandas peft prometheus rdata scikit-learn tensorboard testing tokenizers mlflow wandb"
    declared = brought("all", *beside.split()) | {"mlflow"}  # of mlflow-skinny
    assert imported(ROOT / "fedamp") <= declared
    assert brought("all") <= imported(ROOT / "fedamp")


def test_the_accountant_alone_needs_three_packages():
    optional = brought("signatures", "plots", "interop", "opacus") | {"flwr"}  # for flwr's protocol, where flwr is
    for room in ("accounting", "extensions/foreign"):
        assert imported(ROOT / "fedamp" / room) - optional == set()
    assert brought() == {"numba", "numpy", "scipy"}


def test_what_trains_asks_for_at_most_twelve_more():
    assert len(brought("train") - brought()) <= 12


def test_the_line_about_a_missing_module_names_the_extra_that_brings_it():
    owners = metadata.packages_distributions()
    for extra, modules in EXTRAS.items():
        for module in modules.split():
            found = {canonicalize_name(owner) for owner in owners.get(module, [module])}
            assert found & (brought(extra) | {"mlflow"}), (module, extra)  # mlflow is not in every environment
    assert missing("PIL.Image") == "PIL is not installed; expected: pip install 'fedamp[data]'"
    assert missing("of_nobody") is None


def test_the_versions_of_flower_that_doctor_wants_are_those_that_are_installed():
    [flower] = [each for each in map(Requirement, OPTIONAL["train"]) if each.name == "flwr"]
    low, high = (".".join(map(str, version)) for version in FLOWER)
    assert flower.specifier == SpecifierSet(f">={low},<{high}")


def test_what_is_installed_to_develop_is_pinned_by_what_it_holds():
    """Packages by hashes, all but torch; actions by commits. (Images: tests/deployment/test_services.py.)"""
    pins = (ROOT / "requirements" / "dev.txt").read_text()
    [*pinned] = map(Requirement, re.findall(r"^(\S+==[^\\]+?) \\\n    --hash=sha256:[0-9a-f]{64}", pins, re.MULTILINE))
    assert len(pinned) == len(re.findall(r"^\S+==", pins, re.MULTILINE))
    assert brought("dev") - {each.name for each in pinned} == {"torch"}
    here = {each.name: each.specifier for each in pinned if each.marker is None or each.marker.evaluate()}
    [*constraints] = map(Requirement, re.findall(r"^\S+==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert [each for each in constraints if here.get(each.name) != each.specifier] == [Requirement("torch==2.13.0")]
    for workflow in (ROOT / ".github" / "workflows").iterdir():
        used = re.findall(r"uses: \S+@(\S+)", workflow.read_text())
        assert used
        assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in used)


@pytest.mark.few(0, 2)
@pytest.mark.parametrize(
    ("act", "large"),
    [
        ("import fedamp", "torch ray flwr numpy pydantic matplotlib importlib.metadata"),
        (
            "from fedamp.accounting import Allocation, Gaussian; Allocation(Gaussian(1), 2, 9).epsilon(0.01)",
            "torch flwr ray matplotlib pydantic",
        ),
        (
            "from pathlib import Path; from fedamp.federation.reader import load;"
            "from fedamp.federation.submodels import DisjointSubmodels;"
            "from fedamp.models.architectures import ARCHITECTURES; from fedamp.models.model import Model;"
            "assert load('scenarios/digits.yaml').data.count_clients(Path('.')) == 479;"
            "[make(Model(name=name)).units() for name, make in ARCHITECTURES.items()];"
            "DisjointSubmodels(scheme='disjoint', count=3).check_model(Model(name='mlp'))",
            "torch sklearn pyarrow datasets flwr",
        ),
        (
            "import fedamp.cli, fedamp.server.app, fedamp.client.app, fedamp.api",
            "mpmath sklearn pyarrow matplotlib datasets pandas ray",
        ),
    ],
)
def test_importing_fedamp_imports_nothing_large_and_leaves_the_environment_alone(act, large):
    program = (
        f"import os, sys; before = dict(os.environ); {act};"
        f"print({set(large.split())!r} & set(sys.modules), os.environ == before)"
    )
    free = {key: value for key, value in os.environ.items() if not key.startswith(("FLWR_", "RAY_"))}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True, env=free
    )
    assert done.stdout == "set() True\n"


def test_what_is_compiled_needs_no_place_to_be_kept(monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "ZipCacheLocator")  # as if nothing could be written to
    with pytest.raises(RuntimeError, match="no locator"):
        numba.njit(cache=True)(_twice)
    assert compiled()(_twice)(np.array([21])).tolist() == [42]


def _twice(number):
    return 2 * number


# --- what is uploaded ------------------------------------------------------------------------------------------------


def item(name: str, needs: list[str] = [], extras: list[str] = [], **about: str) -> dict:  # noqa: B006
    sums = {"archive_info": {"hashes": {"sha256": sha256(name.encode()).hexdigest()}}}
    told = {"metadata": {"name": name, "version": "1.0", "requires_dist": needs} | about, "download_info": sums}
    return told | ({"requested_extras": extras} if extras else {})


@pytest.mark.slow
def test_the_bill_of_materials_is_cyclonedx_and_has_every_package(tmp_path):
    validation, schema = map(pytest.importorskip, ("cyclonedx.validation.json", "cyclonedx.schema"))
    wheel, report = tmp_path / "fedamp-1.0-py3-none-any.whl", tmp_path / "report.json"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(zipfile.ZipInfo("fedamp/__init__.py", (2020, 2, 2, 0, 0, 0)), "")
    needs = ["NumPy>=2", 'torch; extra == "train"', 'ray; extra == "ray"', 'of-another-system; sys_platform == "none"']
    items = [
        item("fedamp", needs, ["train"], license="Apache License"),
        item("numpy", license_expression="BSD-3-Clause"),
    ]
    items += [item("Torch", ["typing_extensions"], license="UNKNOWN"), item("typing_extensions", license="PSF")]
    report.write_text(json.dumps({"install": items}))
    command = [sys.executable, ROOT / "packaging" / "sbom.py", wheel, report]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    text = (tmp_path / "sbom.cdx.json").read_text()
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(text) is None
    told = json.loads(text)
    found = {
        each["purl"]: each["hashes"][0]["content"] for each in [*told["components"], told["metadata"]["component"]]
    }
    assert found == {
        f"pkg:pypi/{canonicalize_name(name)}@1.0": sha256(name.encode()).hexdigest()
        for name in ("fedamp", "numpy", "Torch", "typing_extensions")
    }
    needed = {each["ref"]: each.get("dependsOn", []) for each in told["dependencies"]}
    assert needed["fedamp@1.0"] == ["numpy@1.0", "torch@1.0"]
    assert needed["torch@1.0"] == ["typing-extensions@1.0"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "sbom.cdx.json").read_text() == text  # of no clock, and of no chance


def verified(folder: Path) -> bool:
    """By the page's commands."""
    commands = shell("docs/operations.md", "any machine: verify the wheel")
    return subprocess.run(["sh", "-euc", commands], cwd=folder, capture_output=True).returncode == 0


def test_the_sums_of_what_is_uploaded_are_signed_and_verified_offline(tmp_path):
    for name in ("right", "wrong"):
        subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    (folder := tmp_path / "wheels").mkdir()
    (folder / "fedamp-1.0-py3-none-any.whl").write_bytes(b"wheel")
    (folder / "sbom.cdx.json").write_bytes(b"bill")
    for key in ("wrong", "right"):  # the second time in place of the first
        subprocess.run(["sh", ROOT / "packaging" / "sign.sh", folder, tmp_path / key], check=True)
    assert sorted(line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()) == [
        "fedamp-1.0-py3-none-any.whl",
        "sbom.cdx.json",
    ]
    signers = folder / "allowed_signers"
    signers.write_text("fedamp " + (tmp_path / "wrong.pub").read_text())
    assert not verified(folder)
    signers.write_text("fedamp " + (tmp_path / "right.pub").read_text())
    assert verified(folder)
    (folder / "fedamp-1.0-py3-none-any.whl").write_bytes(b"another wheel")
    assert not verified(folder)
    subprocess.run(["sh", ROOT / "packaging" / "sign.sh", folder], check=True)  # sums alone
    assert not verified(folder)


@pytest.mark.slow
def test_make_wheel_builds_what_operators_verify(tmp_path):
    """The commands of a release: build, check, bill of materials, sums, signature, and a try in a fresh environment."""
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    folder = tmp_path / "wheels"
    command = ["sh", ROOT / "packaging" / "wheel.sh", sys.executable, folder, tmp_path / "key"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"fedamp {FULL['version']}" in done.stdout
    (folder / "allowed_signers").write_text("fedamp " + (tmp_path / "key.pub").read_text())
    assert verified(folder)
    assert {line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()} == {
        f"fedamp-{FULL['version']}-py3-none-any.whl",
        f"fedamp-{FULL['version']}.tar.gz",
        "sbom.cdx.json",
    }


# --- public names ----------------------------------------------------------------------------------------------------


def packages_with_names() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(fedamp.__path__, "fedamp.") if module.ispkg]
    return [name for name in found if hasattr(importlib.import_module(name), "__all__")]


@pytest.mark.parametrize("package", packages_with_names())
def test_public_names_are_there_once_and_not_private(package):
    module = importlib.import_module(package)
    assert len(module.__all__) == len(set(module.__all__))  # ruff (RUF022) keeps them in order
    assert not [name for name in module.__all__ if name.startswith("_") or not hasattr(module, name)]


@pytest.mark.parametrize("package", PROMISED)
def test_what_is_promised_to_others_stays(package):
    assert list(importlib.import_module(package).__all__) == PROMISED[package]


# --- tests -----------------------------------------------------------------------------------------------------------


def test_names_of_tests_are_short():
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    names_ = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert not {name for name in names_ if len(name) > LONGEST_NAME}


@pytest.mark.parametrize(
    ("reason", "ci", "outcome"),
    [
        ("no Chromium is installed", "true", "failed"),
        ("could not import 'ray': No module named 'ray'", "true", "failed"),
        ("could not import 'wandb': No module named 'wandb'", "true", "skipped"),
        ("no Chromium is installed", "", "skipped"),
    ],
)
def test_what_may_be_skipped_in_ci_is_listed(monkeypatch, reason, ci, outcome):
    monkeypatch.setenv("CI", ci)
    report = SimpleNamespace(skipped=True, outcome="skipped", longrepr=("test_x.py", 3, f"Skipped: {reason}"))
    assert required(report).outcome == outcome


# --- in a fresh environment ------------------------------------------------------------------------------------------


class Environment:
    """A new virtual environment, and the commands in it. They run in a folder of their own, far from the source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)

    def _run(self, program: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
        command = [self.folder / "venv" / "bin" / program, *map(str, arguments)]
        hidden = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return subprocess.run(command, capture_output=True, text=True, cwd=self.folder, env=hidden, check=False)

    def __call__(self, program: str, *arguments: object) -> str:
        done = self._run(program, *arguments)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def fails(self, program: str, *arguments: object) -> str:
        """The errors of a command that refuses: bad input, in one line, without a traceback."""
        done = self._run(program, *arguments)
        assert done.returncode == 2, f"{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stderr

    def python(self, program: str) -> str:
        return self("python", "-I", "-c", program).strip()

    def install(self, what: object, *options: object) -> None:
        self("pip", "install", "--quiet", *options, what)

    def installed(self) -> set[str]:
        return {canonicalize_name(each["name"]) for each in json.loads(self("pip", "list", "--format", "json"))} - {
            "setuptools"
        }

    def megabytes(self) -> float:
        """Of the packages: what pip itself has is not counted."""
        [libraries] = (self.folder / "venv" / "lib").glob("python3*/site-packages")
        files = [file for file in libraries.rglob("*") if not file.is_relative_to(libraries / "pip")]
        return sum(file.lstat().st_size for file in files) / 1e6

    def check_accountant(self) -> None:
        self("pip", "check")
        assert self.python("import fedamp; print(fedamp.__version__)") == FULL["version"]
        assert self("fedamp", "--version").split() == ["fedamp", FULL["version"]]
        spent = self.python("from fedamp.accounting import *; print(Repeat(Gaussian(4.0), 4).epsilon(1e-5).upper)")
        # Four rounds of multiplier 4 are one of multiplier 2: epsilon 1.9931 at delta 1e-5 (Balle, Wang 2018, Th. 8).
        assert float(spent) == pytest.approx(1.9931, rel=1e-3)  # the width that a bracket may have
        claims = self("fedamp-accounting", "check", "--help")
        assert "--noise" in claims


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run(build, check=True)
    [built] = folder.iterdir()
    return built


@pytest.mark.slow
def test_the_accountant_installs_alone_and_stays_when_others_come_and_go(tmp_path, wheel):
    environment = Environment(tmp_path / "alone")
    environment.install(wheel, "--constraint", ROOT / "constraints.txt")
    environment.check_accountant()
    assert environment.installed() == {"fedamp", "llvmlite", "numba", "numpy", "pip", "scipy"}
    assert environment.megabytes() < 500
    environment.python("import importlib.resources as r; assert (r.files('fedamp') / 'py.typed').is_file()")
    for line in ("run digits", "privacy digits", "--help"):
        failed = environment.fails("fedamp", *line.split())
        assert re.fullmatch(r"error: .* is not installed; expected: pip install 'fedamp\[train\]'\n", failed)
    run, key = tmp_path / "run", tmp_path / "release.key"
    for command in (f"run digits {SHORT} --out {run}", f"release {run} --key {key}"):
        subprocess.run([sys.executable, "-m", "fedamp", *command.split()], cwd=ROOT, check=True)
    for verify in (("fedamp-accounting",), ("fedamp", "verify")):
        said = environment(*verify, tmp_path / "run-release.zip")
        assert "not checked: cryptography is not installed (pip install 'fedamp[signatures]')" in said
        assert "fail" not in said
    refused = (
        environment.fails("fedamp", "verify", ROOT / "README.md"),
        environment.fails("fedamp-accounting", "nothing"),
    )
    assert all(len(said.splitlines()) == 1 for said in refused)
    for module in ("fedamp.run", "fedamp.load"):
        with_line = f"try:\n    import fedamp; {module}\nexcept ImportError as error:\n    print(error)"
        assert environment.python(with_line).endswith("expected: pip install 'fedamp[train]'")
    # Packages of the extras come and go, in any order; so does fedamp. Nothing else owns one of its files.
    for step in ("install click pyyaml", "uninstall pyyaml", "uninstall numba", f"install {wheel}"):
        verb, *what = step.split()
        environment("pip", verb, "--quiet", *(["--yes"] if verb == "uninstall" else []), *what)
    environment.check_accountant()
    environment("pip", "uninstall", "--quiet", "--yes", "fedamp")
    # What numba compiled may stay, in folders without a file that can be imported.
    assert (
        environment.python("import importlib.util as i; print(getattr(i.find_spec('fedamp'), 'origin', None))")
        == "None"
    )
    environment.install(wheel)
    environment.check_accountant()


ROWS = """
name: rows
data: {name: csv, path: rows, features: x, label: label, classes: 2, clients: 2}
model: {name: logistic}
rounds: 2
client: {steps: 1, learning_rate: 0.1}
privacy: {clip: 1.0, noise_multiplier: 1.0}
"""


@pytest.mark.slow
def test_a_federation_trains_with_what_trains_alone(tmp_path, wheel):
    """No pyarrow, datasets, matplotlib or Ray: each is asked for in one line, by the extra that brings it."""
    environment = Environment(tmp_path / "train")
    environment.install(f"fedamp[train] @ {wheel.as_uri()}", "--constraint", ROOT / "constraints.txt")
    elsewhere = {"ray", "datasets", "matplotlib", "scikit-learn", "pyarrow", "psutil", "pandas"}
    assert not elsewhere & environment.installed()
    said = environment("fedamp", *f"run digits {SHORT} --out run".split())
    assert "epsilon" in said
    environment("fedamp", "verify", "run")
    (environment.folder / "rows").mkdir()
    (environment.folder / "rows" / "train.csv").write_text("x,label\n1,0\n2,1\n")
    (environment.folder / "rows.yaml").write_text(ROWS)
    for line, extra in {
        "run digits --engine ray": "ray",
        "run rows.yaml": "data",
        "report run": "report",
        "compare run run": "report",
        "release run": "report",
    }.items():
        said = environment.fails("fedamp", *line.split()).splitlines()
        assert said[-1].startswith("error: "), said
        assert f"pip install 'fedamp[{extra}]'" in said[-1], said
    assert not [*environment.folder.glob("*-release*")]


@pytest.mark.slow
def test_the_whole_tool_installs_and_runs_elsewhere(tmp_path, wheel, monkeypatch):
    """What it depends on is borrowed from this environment (torch alone is gigabytes); the wheel is the real one."""
    environment = Environment(tmp_path / "full")
    environment.install(wheel, "--no-deps")
    [libraries] = (tmp_path / "full" / "venv" / "lib").glob("python3*/site-packages")
    borrowed = Path(metadata.distribution("numpy").locate_file(""))
    (libraries / "borrowed.pth").write_text(f"{borrowed}\n")  # comes after what is installed here
    where = environment.python("import fedamp; print(fedamp.__file__)")
    assert Path(where).is_relative_to(libraries)
    assert environment("fedamp", "--version").split() == ["fedamp", FULL["version"]]
    monkeypatch.setenv("FEDAMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    (tmp_path / "full" / "more.csv").write_text("one more\n")
    (tmp_path / "full" / "ward.yaml").write_text(WARD)
    (tmp_path / "full" / "ward").mkdir()
    (tmp_path / "full" / "ward" / "train.csv").write_text("patient,age\nann,30\nbob,60\n")
    (tmp_path / "full" / "study.yaml").write_text(STUDY)
    elsewhere = {re.match(COMMAND, line)[0] for line in ELSEWHERE}
    # `watch` serves until Ctrl-C, `admit` speaks to a SuperLink, and `recover` needs the runs of a lost population.
    refused = {"watch", "admit", "population recover"}
    assert {" ".join(words) for words in every_command()} == elsewhere | refused
    assert (unanswered := environment.fails("fedamp", "admit")).startswith("error: flwr supernode list: ")
    assert "not found in the Flower configuration file" in unanswered
    assert "no ledger names the lost population" in environment.fails("fedamp", *RECOVERED.split())
    printed = {line: environment("fedamp", *line.split()) for line in ELSEWHERE}
    assert "R²" in printed[ELSEWHERE[0]]
    assert "perplexity" in printed[ELSEWHERE[1]]
    assert json.loads(printed["scenarios schema"])["title"] == "Scenario"
    here = tmp_path / "full"
    assert (here / "a" / "model.safetensors").is_file()
    assert "<h1>" in (here / "page.html").read_text()
    assert (here / "comparison" / "rounds.png").is_file()
    assert (here / "merged" / "certificate.json").is_file()
    assert (here / "a-release.zip").is_file()
    assert (here / "state").is_dir()
    assert "480 people" in printed[ADDED]
    assert (here / "certificate" / "certificate.json").is_file()
    assert (here / "studied" / "table.tex").is_file()
    assert (here / "statistics" / "ward.html").is_file()
    assert FLOWERS in printed["node --version"]


def every_command():
    """The words of every command."""
    group = get_command(commands.app)
    for name, command in group.commands.items():
        below = getattr(command, "commands", None)
        yield from ((name, each) for each in below) if below else [(name,)]


COMMAND = r"((scenarios|population) )?\w+"
RECOVERED = "population recover again.db --people more.csv"
STUDY = """
scenario: regression
variants: {short: {rounds: 2, check_in.k: 1, privacy.noise_multiplier: 1, privacy.epsilon: null}}
seeds: 1
"""
WARD = """
name: ward
data: {name: csv, path: ward, partition: {scheme: natural, column: patient}}
privacy: {epsilon: 1, delta: 1.0e-6}
questions: {ask: {patients: {ask: count}}}
"""
ADDED = "population add people.db --people more.csv --epsilon 4"
FLOWERS = f"Flower version: {metadata.version('flwr')}"
SHORT = "--set rounds=2 --set check_in.k=1 --set privacy.noise_multiplier=1 --set privacy.epsilon=null"
HOSTS = "--set data.clients=40 --set aggregation.scheme=secure --set federation.hosts=" + json.dumps(
    {f"site{number}": f"{10 * number}-{10 * number + 9}" for number in range(4)}, separators=(",", ":")
).replace('"', "'")
ELSEWHERE = [
    f"run regression {SHORT} --out a",
    f"run characters {SHORT} --set data.clients=200 --out characters",
    f"run regression {SHORT} --out b",
    f"privacy regression {SHORT}",
    f"calibrate regression {SHORT} --epsilon 4",
    f"sweep regression {SHORT} --set seed=1,2 --jobs 1 --out swept",
    "tune digits --set rounds=2 --set check_in.k=1 --set evaluation.on=clients --set evaluation.noise_multiplier=5 "
    "--grid client.steps=1,2 --jobs 1 --out tuned",
    "study study.yaml --jobs 1 --out studied",
    "statistics ward.yaml",
    f"audit regression {SHORT} --repetitions 20 --rounds 1",
    "compare a b",
    "report a --out page.html",
    "merge a b --method random-selection --epsilon 50 --delta 1e-4 --out merged",
    "verify a",
    "release a",
    "total a b",
    "doctor",
    "certify 127.0.0.1",
    *(f"enroll site{number}" for number in range(4)),
    f"agreement digits {SHORT} {HOSTS} --run first site0.request site1.request site2.request site3.request",
    "join agreement.json --state state",
    "node --version",
    "superlink --version",
    "explain privacy.clip",
    "new scenario.yaml --data digits",
    "population new people.db --data digits --epsilon 8 --delta 1e-6",
    ADDED,
    "population show people.db",
    "population history people.db 0",
    "population verify people.db",
    "population alike people.db --people more.csv",
    "population join people.db 0 1",
    "population leave people.db 2",
    "population certificate people.db 2 --organisation Clinic --contact clinic@example.org",
    "scenarios list",
    "scenarios show multi-label",
    "check digits",
    "scenarios schema",
]
