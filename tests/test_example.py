"""The example of a package with schemes of its own: it is built, installed, meets its contracts, and is charged."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation import ROOT


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


def test_its_schemes_meet_their_contracts_and_are_charged_for_them(package):
    done = called(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", package / "blocks" / "tests")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
