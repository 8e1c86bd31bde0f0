"""``fedamp superlink``: Flower's SuperLink, with what answers directly before it, and a parent that forks for runs."""

import os
import signal
import subprocess
import sys
from contextlib import closing

from fedamp.client.node import Forks

# Flower's SuperLink, whose HTTP server only starts the program of an app, as Flower's task starter does for a run.
STARTED = """
import subprocess, sys, uvicorn
from pathlib import Path
from fedamp.server import superlink

def run(app, port, **others):
    print(type(app).__name__, port, Path("/proc/self/comm").read_text().strip(), flush=True)
    done = subprocess.run(["flwr-serverapp", "--token", "one"])
    print("ended with", done.returncode)

uvicorn.run = run
superlink.program_of = lambda role: [sys.executable, "-c", PARENT]
superlink.superlink(sys.argv[1:])
"""
PARENT = """
import socket, sys
from fedamp.client import node
node.parent(socket.socket(fileno=int(sys.argv[1])), lambda: lambda: sys.exit(print("forked:", *sys.argv) or 3))
"""
# What a fork of the real parent has.
ASKED = """
import sys
from pathlib import Path
print(*sorted({"fedamp.server.app", "flwr.superlink.runtime.run_serverapp", "torch"} & set(sys.modules)))
"""


def test_a_run_is_played_in_a_fork_and_requests_are_answered_directly(tmp_path):
    words = "--insecure", "--port", "4321", "--database", "superlink.db"
    code = STARTED.replace("PARENT", repr(PARENT))
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True)
    ours = [line for line in done.stdout.splitlines() if line.startswith(("Direct", "forked", "ended"))]
    assert ours == [
        "DirectAnswers 4321 flower-superlin",  # Linux keeps 15 letters
        "forked: flwr-serverapp --token one",
        "ended with 3",
    ], done.stderr
    assert (tmp_path / "superlink.db").exists()


def test_without_a_parent_that_can_fork_flowers_own_program_runs(tmp_path):
    broken = STARTED.replace("PARENT", repr("raise SystemExit(1)"))
    own = tmp_path / "flwr-serverapp"
    own.write_text('#!/bin/sh\necho "forked: no, by itself: $*"\n')
    own.chmod(0o700)
    environment = os.environ | {"PATH": os.pathsep.join([str(tmp_path), os.environ["PATH"]])}
    words = [sys.executable, "-c", broken, "--insecure"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "forked: no, by itself: --token one" in done.stdout, done.stderr
    assert "fedamp superlink: a process of its own for this app, as Flower starts it (" in done.stderr


def test_the_real_parent_forks_with_all_that_a_run_imports(tmp_path):
    code = f"""
import socket, sys
from fedamp.client import node
from fedamp.server import superlink
superlink.everything()
node.parent(socket.socket(fileno=int(sys.argv[1])), lambda: lambda: exec({ASKED!r}))
"""
    forks = Forks(tmp_path, "flwr-serverapp")
    with closing(forks):
        started = forks.start_parent([sys.executable, "-c", code])
    try:
        done = subprocess.run([tmp_path / "flwr-serverapp"], capture_output=True, text=True)
        assert (done.stdout.split(), done.stderr) == (
            ["fedamp.server.app", "flwr.superlink.runtime.run_serverapp", "torch"],
            "",
        )
    finally:
        started.kill()
        started.wait()


def test_a_superlink_that_is_stopped_ends_as_flowers_and_leaves_nothing(tmp_path):
    """When uvicorn has closed all, it sends itself the signal that it was stopped by."""
    code = STARTED.replace("PARENT", repr(PARENT))
    code = code.replace("    print(type(app)", "    signal.raise_signal(signal.SIGTERM)\n    print(type(app)")
    place = os.environ | {"RUNTIME_DIRECTORY": str(tmp_path)}
    words = [sys.executable, "-c", f"import signal\n{code}", "--insecure"]
    done = subprocess.run(words, cwd=tmp_path, env=place, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("fedamp-")] == []


def test_a_question_that_flower_answers_starts_no_parent(tmp_path):
    code = STARTED.replace("PARENT", repr("open('started', 'w')"))
    words = [sys.executable, "-c", code, "--version"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Flower version: 1.")
    assert list(tmp_path.iterdir()) == []


def test_the_command_takes_the_arguments_of_flowers():
    words = [sys.executable, "-m", "fedamp", "superlink", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Flower version: 1.")
