"""An upgrade of all machines while a run is in flight, from older states of fedamp."""

import io
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from pathlib import Path

import pytest

from fedamp.runs.folder import read_summary
from tests.deployment.machines import NODES, ROOT, Machines
from tests.deployment.test_processes import start_nodes, wait_for_end, wait_for_round, write_scenario
from tests.server.plays import ledger_of, rounds_of
from tests.tools import wait

pytestmark = pytest.mark.slow

BEFORE = "0f9684be8356"  # the state before 0.3 began, with the ledgers of 0.3
RELEASED = "53a0ee95"  # 0.2.0, with other ledgers
ROUNDS = 4
OLD = """
name: small
data: {name: digits, clients: 20}
model: {name: mlp, hidden: [8]}
rounds: 2
check_in: {scheme: poisson, rate: 0.5}
privacy: {noise_multiplier: 1.0, clip: 0.5}
"""


def unpacked(commit: str, folder: Path) -> Path:
    """The files of an older state, which says that it is version 0.2.0; skips where the history is not at hand."""
    words = ["git", "archive", commit, "fedamp", "docs/deployment", "pyproject.toml"]
    packed = subprocess.run(words, cwd=ROOT, capture_output=True)
    if packed.returncode:
        pytest.skip(f"the commit {commit} is not here: an upgrade is not tested")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    module, function = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["scripts"]["fedamp"].split(":")
    (folder / "bin").mkdir()
    script = folder / "bin" / "fedamp"  # the command that is installed calls a function that this state may lack
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        "if sys.argv[1] == 'superlink':  # which the page starts today; that state started Flower's own\n"
        "    os.execvp('flower-superlink', ['flower-superlink', *sys.argv[2:]])\n"
        f"from {module} import {function}\n{function}()\n"
    )
    script.chmod(0o755)
    told = folder / "fedamp-0.2.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: fedamp\nVersion: 0.2.0\n")
    return folder


def files_of(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_run_in_flight_goes_on_after_an_upgrade_of_all_machines(tmp_path, proxy):
    """The services stop after a round, database and folders stay, and the new version resumes the run."""
    (tmp_path / "federation").mkdir()
    machines = Machines(tmp_path / "federation", NODES, code=unpacked(BEFORE, tmp_path / "before"))
    run = machines.server / "run"
    try:
        write_scenario(machines, rounds=ROUNDS)
        machines.start_server()
        machines.admit_nodes()
        start_nodes(machines)
        machines.start_run(known_seed=True)
        wait_for_round(machines, 1, 1200)
        [app] = machines.family("flwr-serverapp")
        app.terminate()
        wait(lambda: not machines.family("flwr-serverapp"), 600, "the app to end")
        machines.stop()
        assert read_summary(run).stopped_because == "interrupted"
        assert ledger_of(run)["written_by"] == "fedamp 0.2.0"
        assert len(before := rounds_of(run)) < ROUNDS
        (run / "summary.json").unlink()
        machines.code = ROOT
        machines.start_server()
        wait(lambda: machines.connected() == 0, 600, "Flower to miss the nodes", every=2)
        start_nodes(machines)
        machines.start_run(known_seed=True, resume=True)
        wait_for_end(machines, 1200)
        assert rounds_of(run)[: len(before)] == before
        assert len(rounds_of(run)) == ROUNDS
        assert ledger_of(run)["written_by"] != "fedamp 0.2.0"
        machines.run("fedamp verify run")
    finally:
        machines.stop()


def test_a_run_of_a_version_with_other_ledgers_is_refused_in_one_line(tmp_path):
    code = unpacked(RELEASED, tmp_path / "before")
    (tmp_path / "small.yaml").write_text(OLD)
    words, environment = (
        ["run", "small.yaml", "--out", "run", "--engine", "serial"],
        os.environ | {"OMP_NUM_THREADS": "1"},
    )
    old = [sys.executable, "-c", "from fedamp.cli import main; main()", *words]
    subprocess.run(old, cwd=tmp_path, env=environment | {"PYTHONPATH": str(code)}, check=True, capture_output=True)
    before = files_of(tmp_path / "run")
    new = [os.path.join(sysconfig.get_path("scripts"), "fedamp"), *words, "--resume"]
    done = subprocess.run(
        new, cwd=tmp_path, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == (
        "error: run/ledger.json: ledger of another version of fedamp: format: Input should be 'fedamp ledger 4', "
        "got 'fedamp ledger 2'; expected: the version that wrote it (written_by)\n"
    )
    assert files_of(tmp_path / "run") == before
