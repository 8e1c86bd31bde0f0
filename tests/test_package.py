"""What an installation holds: its version, its dependencies, its public names, and the accountant alone."""

import ast
import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numba
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command

import fedamp
from fedamp import cli
from fedamp.accounting.compiled import compiled
from tests.documentation import ROOT

FULL = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ALONE = tomllib.loads((ROOT / "packaging" / "accounting" / "pyproject.toml").read_text())["project"]

# Taking a name away, or giving it another meaning, breaks the programs of others: a new version, and a line in
# CHANGELOG.md. The last two packages are used without the rest.
PROMISED = {
    "fedamp": ["StopTraining", "compare", "load", "open", "play", "privacy", "run", "sweep"],
    "fedamp.accounting": [
        "FIXED_GRADIENTS",
        "JOINT_RELEASE",
        "Allocation",
        "AllocationPrefix",
        "Approximate",
        "Bounds",
        "CappedPoisson",
        "Claims",
        "Compose",
        "Cyclic",
        "Dropout",
        "FiniteOutcomes",
        "Gaussian",
        "GaussianMixture",
        "Group",
        "GroupPoissonGaussian",
        "Laplace",
        "LinearCombination",
        "Mechanism",
        "MixedCoordinate",
        "ModelMix",
        "NotPrivate",
        "Poisson",
        "RandomSelection",
        "RandomisedResponse",
        "Relation",
        "Repeat",
        "Spaced",
        "Submodels",
        "SubstitutedPoissonGaussian",
        "TradeOff",
        "WithoutReplacement",
        "calibrate",
        "calibrate_count",
        "calibrate_risk",
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
LONG_NAMES_LEFT = {  # to be shortened; nothing may be added
    "test_the_boundary_by_renyi_is_the_papers_at_the_budget_that_the_tight_conversion_leaves",
    "test_residual_networks_share_the_stem_the_blocks_that_change_shape_and_the_output",
    "test_calibration_of_hidden_rounds_at_little_noise_keeps_and_nearly_uses_the_budget",
    "test_modelmix_costs_less_with_width_and_coordinates_and_never_more_than_its_noise",
    "test_the_scenario_of_the_simulation_runs_on_three_machines_one_of_which_claims_everybodys_clients",
    "test_a_node_that_is_stopped_is_given_up_within_two_rounds_and_back_when_it_goes_on",
    "test_a_run_with_a_known_seed_does_not_go_on_with_a_secret_one_nor_the_other_way_round",
    "test_whatever_was_trained_what_is_not_owned_is_plus_zero_and_the_rest_is_as_it_was",
}


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


def test_what_is_imported_is_declared_and_nothing_else():
    optional = FULL["optional-dependencies"]
    extras = names(
        optional["ray"]
        + optional["interop"]
        + optional["opacus"]
        + optional["peft"]
        + optional["rdata"]
        + optional["pandas"]
        + optional["tokenizers"]
        + [each for name in ("tensorboard", "mlflow", "wandb") for each in optional[name]]
    ) | {"mlflow"}  # of mlflow-skinny
    only_read = {"scikit-learn"}  # for the digits that it ships
    assert imported(ROOT / "fedamp") - extras == names(FULL["dependencies"]) - only_read


def test_the_accountant_alone_declares_what_it_imports():
    optional = names([each for extra in ALONE["optional-dependencies"].values() for each in extra])
    assert imported(ROOT / "fedamp" / "accounting") - optional == names(ALONE["dependencies"])
    assert set(ALONE["dependencies"]) <= set(FULL["dependencies"])
    assert ALONE["optional-dependencies"]["interop"] == FULL["optional-dependencies"]["interop"]


def test_the_accountant_imports_nothing_of_what_trains():
    program = (
        "import sys; from fedamp.accounting import Allocation, Gaussian; Allocation(Gaussian(1), 2, 9).epsilon(0.01);"
        "print({'torch', 'flwr', 'ray', 'matplotlib', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("module", ["fedamp.cli", "fedamp.server.app", "fedamp.client.app"])
def test_what_is_large_is_imported_where_it_is_used(module):
    large = {"mpmath", "sklearn", "pyarrow", "matplotlib", "datasets", "pandas", "ray"}
    program = f"import sys, {module}; print({large!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "set()\n"


def test_what_is_compiled_needs_no_place_to_be_kept(monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "ZipCacheLocator")  # as if nothing could be written to
    with pytest.raises(RuntimeError, match="no locator"):
        numba.njit(cache=True)(_twice)
    assert compiled()(_twice)(21) == 42


def _twice(number):
    return 2 * number


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
    assert {name for name in names_ if len(name) > LONGEST_NAME} <= LONG_NAMES_LEFT


# --- in a fresh environment ------------------------------------------------------------------------------------------


class Environment:
    """A new virtual environment, and the commands in it. They run in a folder of their own, far from the source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)

    def __call__(self, program: str, *arguments: object) -> str:
        command = [self.folder / "venv" / "bin" / program, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def python(self, program: str) -> str:
        return self("python", "-I", "-c", program).strip()

    def install(self, project: Path, *options: str) -> None:
        """Build the wheel, and install it."""
        self("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "wheels", project)
        [wheel] = (self.folder / "wheels").iterdir()
        self("pip", "install", "--quiet", *options, wheel)


@pytest.mark.slow
def test_the_accountant_installs_alone(tmp_path):
    environment = Environment(tmp_path / "alone")
    environment.install(ROOT / "packaging" / "accounting", "--constraint", str(ROOT / "constraints.txt"))
    environment("pip", "check")
    installed = {line.partition("==")[0].lower() for line in environment("pip", "freeze").split()}
    assert not {"torch", "flwr", "ray", "matplotlib", "pydantic", "fedamp"} & installed
    assert environment.python("import fedamp; print(fedamp.__version__)") == FULL["version"]
    spent = environment.python("from fedamp.accounting import *; print(Repeat(Gaussian(4.0), 4).epsilon(1e-5).upper)")
    # Four rounds of multiplier 4 are one of multiplier 2: epsilon 1.9931 at delta 1e-5 (Balle, Wang 2018, Theorem 8).
    assert float(spent) == pytest.approx(1.9931, rel=1e-3)  # the width that a bracket may have
    environment.python("import importlib.resources as r; assert (r.files('fedamp') / 'py.typed').is_file()")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_whole_tool_installs_and_runs_elsewhere(tmp_path):
    """What it depends on is borrowed from this environment (torch alone is gigabytes); the wheel is the real one."""
    environment = Environment(tmp_path / "full")
    environment.install(ROOT, "--no-deps")
    [libraries] = (tmp_path / "full" / "venv" / "lib").glob("python3*/site-packages")
    borrowed = Path(metadata.distribution("numpy").locate_file(""))
    (libraries / "borrowed.pth").write_text(f"{borrowed}\n")  # comes after what is installed here
    where = environment.python("import fedamp; print(fedamp.__file__)")
    assert Path(where).is_relative_to(libraries)
    assert environment("fedamp", "--version").split() == ["fedamp", FULL["version"]]
    elsewhere = {re.match(COMMAND, line)[0] for line in ELSEWHERE}
    assert {" ".join(words) for words in every_command()} == elsewhere | {"watch"}  # which serves until Ctrl-C
    printed = {line: environment("fedamp", *line.split()) for line in ELSEWHERE}
    assert "R²" in printed[ELSEWHERE[0]]
    assert "perplexity" in printed[ELSEWHERE[1]]
    assert json.loads(printed["scenarios schema"])["title"] == "Scenario"
    here = tmp_path / "full"
    assert (here / "a" / "model.safetensors").is_file()
    assert "<h1>" in (here / "page.html").read_text()
    assert (here / "comparison" / "rounds.png").is_file()
    assert (here / "merged" / "certificate.json").is_file()


def every_command():
    """The words of every command."""
    group = get_command(cli.app)
    for name, command in group.commands.items():
        below = getattr(command, "commands", None)
        yield from ((name, each) for each in below) if below else [(name,)]


COMMAND = r"(scenarios )?\w+"
SHORT = "--set rounds=2 --set check_in.k=1 --set privacy.noise_multiplier=1 --set privacy.epsilon=null"
ELSEWHERE = [
    f"run regression {SHORT} --out a",
    f"run characters {SHORT} --set data.clients=200 --out characters",
    f"run regression {SHORT} --out b",
    f"privacy regression {SHORT}",
    f"calibrate regression {SHORT} --epsilon 4",
    f"sweep regression {SHORT} --set seed=1,2 --jobs 1 --out swept",
    f"audit regression {SHORT} --repetitions 20 --rounds 1",
    "compare a b",
    "report a --out page.html",
    "merge a b --method random-selection --epsilon 50 --delta 1e-4 --out merged",
    "verify a",
    "doctor",
    "scenarios list",
    "scenarios show multi-label",
    "scenarios validate digits",
    "scenarios schema",
]
