"""What happens to a run on Ray: strangers call, its processes are killed, it starts beside busy BLAS threads."""

import os
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest

from fedamp.engines.ray import private_ray

pytest.importorskip("ray")

ROOT = str(Path(__file__).parents[2])
FEDAMP = [sys.executable, "-m", "fedamp"]
ENVIRONMENT = os.environ | {"PYTHONPATH": ROOT}
RUN = ["run", "digits", "--engine=ray", "--set=rounds=100", "--set=privacy.epsilon=null"]
RUN += ["--set=check_in={scheme: poisson, rate: 0.1}"]  # whose cost is known soonest
RUN += ["--set=privacy.noise_multiplier=1", "--set=federation.round_deadline=30", "--known-seed"]


def fedamp(*words: object) -> None:
    subprocess.run([*FEDAMP, *map(str, words)], env=ENVIRONMENT, check=True, capture_output=True, timeout=800)


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


WORKERS = """
import pathlib, sys
from fedamp.engines.engines import open_grid
from fedamp.federation.running import Engine
with open_grid(Engine(kind="ray", workers=2), pathlib.Path(sys.argv[1]), "tests.engines.tiny_app:app") as grid:
    print(len(grid.get_node_ids()), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The processes of a run, which wait for their first message."""
    command = [sys.executable, "-c", WORKERS, tmp_path_factory.mktemp("run") / "log.txt"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout.readline() == "2\n"
        yield psutil.Process(program.pid)


def listeners(process: psutil.Process) -> list[tuple[str, int]]:
    return [
        tuple(connection.laddr)
        for one in (process, *process.children(recursive=True))
        for connection in one.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


def descendant(process: psutil.Process, name: str) -> psutil.Process:
    [found] = [child for child in process.children(recursive=True) if child.name() == name]
    return found


def test_nothing_of_a_run_listens_beyond_this_machine(run):
    found = listeners(run)
    assert len(found) >= 5  # head, raylet, its object manager, driver, two workers, runtime environments
    assert {address for address, _ in found} <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_ray_answers_nobody_without_the_token(run):
    """The head, the raylet, the driver and the workers, each asked what a stranger would ask it first."""
    questions = ["NodeInfoGcsService/CheckAlive", "NodeManagerService/RequestWorkerLease", "CoreWorkerService/PushTask"]
    questions += ["ObjectManagerService/Pull", "JobInfoGcsService/AddJob", "ActorInfoGcsService/RegisterActor"]
    refused = set()
    for _, port in listeners(run):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for question in questions:
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary(f"/ray.rpc.{question}")(b"", timeout=60)
                if caught.value.code() == grpc.StatusCode.UNAUTHENTICATED:
                    refused.add(question)
    assert refused == set(questions)


def test_a_program_with_another_token_cannot_run_anything(run):
    """One with none is refused at the first question, as all are above."""
    [port] = {port for _, port in listeners(descendant(run, "gcs_server"))}
    code = "import ray, sys; ray.init(sys.argv[1]); print(ray.get(ray.remote(lambda: 'it ran').remote()))"
    without = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("RAY_AUTH")}
    without |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_NUM_REDIS_GET_RETRIES": "2"}
    guess = without | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    command = [sys.executable, "-c", code, f"127.0.0.1:{port}"]
    stranger = subprocess.run(command, env=guess, capture_output=True, text=True, timeout=100)
    assert stranger.returncode != 0
    assert "it ran" not in stranger.stdout
    assert "Unauthenticated" in stranger.stderr


def test_the_folder_of_rays_sockets_and_logs_is_the_owners(run):
    arguments = descendant(run, "raylet").cmdline()
    [socket_] = [word.partition("=")[2] for word in arguments if word.startswith("--raylet_socket_name=")]
    folder = next(parent for parent in Path(socket_).parents if parent.name.startswith("fedamp-"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_token_is_fresh_and_stands_in_no_command_line(run):
    assert len({private_ray()["RAY_AUTH_TOKEN"] for _ in range(10)}) == 10
    token = descendant(run, "raylet").environ()["RAY_AUTH_TOKEN"]
    assert len(token) == 64
    assert not any(token in word for child in run.children(recursive=True) for word in child.cmdline())


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["gcs_server", "raylet"])
def test_ray_killed_ends_the_run_in_one_line_from_which_it_goes_on(tmp_path, victim):
    out = tmp_path / "run"
    with running(out) as (process, program):
        descendant(process, victim).kill()
        told, errors = program.communicate(timeout=60)
    [line] = filter(None, errors.splitlines())
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
    done = subprocess.run(command, env=threads, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "1 []\n"), done.stderr
