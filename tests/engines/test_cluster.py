"""Ray clusters by address, and docs/cluster.md."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import ExitStack, contextmanager, suppress

import psutil
import pytest

from fedamp.engines.engines import open_grid
from fedamp.errors import InputError
from fedamp.federation.running import Engine
from tests.deployment.machines import free_port, kill, running, wait
from tests.documentation import ROOT, commands, shell
from tests.tools import needs_ray

pytestmark = needs_ray

APP = "tests.engines.tiny_app:app"
PAGE = "docs/cluster.md"
SCRIPTS = sysconfig.get_path("scripts")
ENVIRONMENT = os.environ | {"PATH": os.pathsep.join([SCRIPTS, os.environ["PATH"]]), "PYTHONPATH": str(ROOT)}


@pytest.mark.slow
@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1:port"])
def test_address_without_a_cluster_is_refused_in_one_line(tmp_path, address):
    with (
        pytest.raises(InputError, match=rf"engine\.address: no Ray cluster at '{address}' .*expected: auto, or"),
        open_grid(Engine(kind="ray", address=address), tmp_path / "log.txt", APP) as grid,
    ):
        grid.get_node_ids()


def test_a_cluster_that_another_user_tells_of_is_not_asked(tmp_path, monkeypatch):
    """All users may write where Ray looks for a cluster: another one would get the token, and then the records."""
    ray_driver = pytest.importorskip("fedamp.engines.ray_driver")
    told = tmp_path / "ray" / "ray_current_cluster"
    told.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        told.write_text(f"127.0.0.1:{listener.getsockname()[1]}\n")
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        if os.geteuid() == 0:
            os.chown(told, 65534, 65534)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 65534)
        with pytest.raises(InputError, match=r"engine\.address: no Ray cluster at 'auto' .*it belongs to another user"):
            ray_driver._connect_cluster("auto")
        told.unlink()
        with pytest.raises(InputError, match=r"engine\.address: no Ray cluster at 'auto' .*No such file"):
            ray_driver._connect_cluster("auto")
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()  # nobody has come


def test_the_page_gives_ray_options_that_it_knows():
    from ray.scripts.scripts import cli

    lines = [shlex.split(line.partition(" > ")[0])[1:] for line in commands(PAGE) if line.startswith("ray ")]
    assert {name for name, *_ in lines} == {"get-auth-token", "start", "status"}
    for name, *words in lines:
        cli.commands[name].make_context(name, words)


# --- the page, as it stands there, with ports that are free -----------------------------------------------------------


# Ray's own command, whose raylet does not end where its agents take more than 15 s to start, as on a busy machine.
PATIENT_RAY = f"""#!{sys.executable}
from functools import partial
from ray._private import services
from ray.scripts.scripts import main
from fedamp.engines.ray_driver import _start_raylet
services.start_raylet = partial(_start_raylet, services.start_raylet)
main()
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """For the token."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ray").write_text(PATIENT_RAY)
    (tmp_path / "bin" / "ray").chmod(0o700)
    monkeypatch.setitem(ENVIRONMENT, "PATH", os.pathsep.join([str(tmp_path / "bin"), ENVIRONMENT["PATH"]]))
    monkeypatch.setitem(ENVIRONMENT, "HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@contextmanager
def ray_node(commands_: str, log):
    for _ in range(20):  # Ray gives a node 30 s to start, which a busy machine does not always do
        with running(commands_, log, ENVIRONMENT) as process:

            def started() -> bool:
                return "Ray runtime started" in log.read_text()

            wait(lambda: started() or process.poll() is not None, 90, "a Ray node")
            if started():
                yield process
                return
    pytest.fail(log.read_text())


@pytest.fixture
def ray_folder():
    with tempfile.TemporaryDirectory(prefix="fedamp-") as folder:  # pytest's own are too deep for Ray's sockets
        yield folder


@pytest.mark.slow
def test_a_cluster_that_lets_everybody_in_is_refused(home, ray_folder):
    port = str(free_port())
    head = shell(PAGE, "the head").replace("6379", port).replace("/tmp/ray-try", ray_folder)
    commands_ = shell(PAGE, "the token") + head.replace("RAY_AUTH_MODE=token", "RAY_AUTH_MODE=disabled")
    with (
        ray_node(commands_, home / "head.log"),
        pytest.raises(
            InputError, match=rf"anyone who reaches the Ray cluster at .*:{port} can run programs there; expected"
        ),
        open_grid(Engine(kind="ray", address=f"127.0.0.1:{port}"), home / "log.txt", APP) as grid,
    ):
        grid.get_node_ids()
    assert (home / ".ray" / "auth_token").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_the_page_and_machines_that_are_lost_and_added(tmp_path, home, ray_folder):
    port = str(free_port())

    def block(title: str) -> str:
        return shell(PAGE, title).replace("6379", port).replace("/tmp/ray-try", ray_folder)

    def run(command: str) -> None:
        done = subprocess.run(["sh", "-euc", command], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    longer = "fedamp run digits --known-seed --set rounds=300 --set check_in.k=30 --set privacy.epsilon=null"
    longer += " --set privacy.noise_multiplier=1"
    run(block("the token"))
    with ExitStack() as cluster:

        def add(title: str, name: str) -> subprocess.Popen:
            return cluster.enter_context(ray_node(block(title), tmp_path / f"{name}.log"))

        head, second = add("the head", "head"), add("a second node", "second")
        run(block("the run"))  # which compares the models
        assert "2 worker(s) on cpu" in (tmp_path / "runs/cluster/log.txt").read_text()
        third = add("a second node", "third")
        lost = shlex.split(f"{longer} --set engine.address=127.0.0.1:{port} --out lost")
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(lost, cwd=tmp_path, env=ENVIRONMENT, **pipes) as process:
            rounds = tmp_path / "lost" / "rounds.jsonl"

            def more_rounds(why: str) -> None:
                before = rounds.read_text().count("\n") if rounds.exists() else 0
                wait(lambda: rounds.exists() and rounds.read_text().count("\n") > before + 20, 120, why)

            def lose(node: subprocess.Popen, losses: int) -> None:
                family = psutil.Process(node.pid).children(recursive=True)
                kill(node)
                for each in family:  # also what Ray started in sessions of their own: it would answer for seconds more
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
                told = tmp_path / "lost" / "log.txt"
                wait(lambda: told.read_text().count("its worker died") >= losses, 120, "the line about a loss")

            more_rounds("some rounds")
            lose(second, 1)
            more_rounds("the rounds after a loss")
            process.send_signal(signal.SIGSTOP)  # a node may take as long to start as all rounds
            add("a second node", "fourth")
            process.send_signal(signal.SIGCONT)
            lose(third, 2)
            more_rounds("the rounds on the head and the one that was added")
            kill(head)
            [line] = [line for line in process.stderr.read().splitlines() if line.startswith("failed: ")]
            assert process.wait() == 1
    assert f"the head of the cluster at 127.0.0.1:{port} is lost, or the network to it" in line
    assert "resume with: fedamp run lost/scenario.yaml --resume --out lost" in line
    assert "3 worker(s) on cpu" in (tmp_path / "lost" / "log.txt").read_text()
    run("fedamp run lost/scenario.yaml --resume --out lost --engine serial")
    run(f"{longer} --engine serial --out undisturbed")
    run("cmp lost/model.safetensors undisturbed/model.safetensors")
