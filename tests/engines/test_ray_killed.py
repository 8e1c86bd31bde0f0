"""What happens to a run on Ray: its processes are killed, it starts beside busy BLAS threads."""

import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.tools import needs_ray

pytestmark = needs_ray

ROOT = str(Path(__file__).parents[2])
FEDAMP = [sys.executable, "-m", "fedamp"]
ENVIRONMENT = os.environ | {"PYTHONPATH": ROOT}
RUN = ["run", "digits", "--engine=ray", "--set=rounds=100", "--set=privacy.epsilon=null"]
RUN += ["--set=check_in={scheme: poisson, rate: 0.1}"]  # whose cost is known soonest
RUN += ["--set=privacy.noise_multiplier=1", "--set=federation.round_deadline=30", "--known-seed"]


def fedamp(*words: object) -> None:
    subprocess.run([*FEDAMP, *map(str, words)], env=ENVIRONMENT, check=True, capture_output=True)


@contextmanager
def running(out: Path):
    """A run that has released a round."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*FEDAMP, *RUN, "--out", out], env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True) as run:
        try:
            rounds = out / "rounds.jsonl"
            deadline = time.monotonic() + 600
            while not (rounds.exists() and rounds.read_text().count("\n") > 0):
                assert run.poll() is None, run.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield psutil.Process(run.pid), run
        finally:
            run.kill()


def descendant(process: psutil.Process, name: str) -> psutil.Process:
    [found] = [child for child in process.children(recursive=True) if child.name() == name]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["gcs_server", "raylet"])
def test_ray_killed_ends_the_run_in_one_line_from_which_it_goes_on(tmp_path, victim):
    out = tmp_path / "run"
    with running(out) as (process, program):
        descendant(process, victim).kill()
        told, errors = program.communicate()
    *before, line = filter(None, errors.splitlines())
    assert all(each.startswith(("engine ray: ", "round ")) for each in before), "how far it is"
    assert (program.returncode, told) == (1, "")
    assert line.startswith("failed: Ray")
    assert f"resume with: fedamp run {out / 'scenario.yaml'} --resume --out {out}" in line
    fedamp("run", out / "scenario.yaml", "--resume", "--out", out, "--engine", "serial")
    fedamp(*RUN, "--engine", "serial", "--out", tmp_path / "undisturbed")
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "undisturbed/model.safetensors").read_bytes()


BESIDE_BLAS = """
import pathlib, subprocess, sys, threading
sys.path.insert(0, sys.argv[1])
import numpy as np
from fedamp.federation.running import Engine
from fedamp.engines.engines import open_grid

forks = []
start = subprocess.Popen.__init__

def noting(self, *arguments, preexec_fn=None, **options):
    if preexec_fn is not None:
        forks.append(arguments)
    start(self, *arguments, preexec_fn=preexec_fn, **options)

subprocess.Popen.__init__ = noting
engine, matrix = Engine(kind="ray", workers=1), np.ones((1000, 1000))
with open_grid(engine, pathlib.Path(sys.argv[2]), "tests.engines.tiny_app:app") as grid:
    ready = threading.Thread(target=grid.get_node_ids, daemon=True)
    ready.start()
    while ready.is_alive():
        matrix @ matrix
    print(len(grid.get_node_ids()), forks, flush=True)
"""


@pytest.mark.slow
def test_ray_starts_while_this_process_multiplies_matrices(tmp_path):
    """A fork beside OpenBLAS's threads hangs both: ``a @ b`` here, ``Popen(["true"], preexec_fn=...)`` in a thread."""
    threads = {name: value for name, value in ENVIRONMENT.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", BESIDE_BLAS, ROOT, tmp_path / "log.txt"]
    done = subprocess.run(command, env=threads, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1 []\n"), done.stderr


@pytest.mark.slow
def test_ray_that_starts_slowly_is_waited_for(tmp_path):
    """Ray itself gives its node 30 s. Here it takes 40 at least, by Ray's own delay for tests."""
    slow = ENVIRONMENT | {"RAY_testing_asio_delay_us": "NodeInfoGcsService.grpc_server.RegisterNode=40000000:40000000"}
    out = tmp_path / "run"
    subprocess.run([*FEDAMP, *RUN, "--set=rounds=1", "--out", out], env=slow, check=True, capture_output=True)
    started = re.search(r"ready after ([\d.]+) s", (out / "log.txt").read_text())
    assert float(started[1]) > 40


@pytest.mark.slow
def test_a_driver_of_ray_that_stands_still_ends_the_run_in_one_line(tmp_path):
    """That is half a minute after the round's deadline; the line says it where the machine is busy."""
    with running(tmp_path / "run") as (process, program):
        [driver] = [child for child in process.children() if "fedamp.engines.ray_driver" in child.cmdline()]
        daemons = driver.children(recursive=True)
        driver.suspend()
        _, errors = program.communicate()
    [line] = [each for each in errors.splitlines() if each.startswith("failed: ")]
    assert re.match(r"failed: Ray did not answer within 60\.0 s(; this machine is busy \(load|;|$)", line)
    assert not psutil.wait_procs(daemons, timeout=600)[1]
