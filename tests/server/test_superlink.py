"""``fedamp superlink``: Flower's SuperLink, with what answers directly before it."""

import subprocess
import sys

STARTED = """
import sys, uvicorn
from pathlib import Path
from fedamp.server.superlink import superlink

def run(app, port, **others):
    print(type(app).__name__, port, Path("/proc/self/comm").read_text().strip())

uvicorn.run = run
superlink(sys.argv[1:])
"""


def test_flowers_command_runs_with_direct_answers_under_its_own_name(tmp_path):
    words = "--insecure", "--port", "4321", "--database", "superlink.db"
    done = subprocess.run(
        [sys.executable, "-c", STARTED, *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "DirectAnswers 4321 flower-superlin" in done.stdout.splitlines()
    assert (tmp_path / "superlink.db").exists()


def test_the_command_takes_the_arguments_of_flowers():
    words = [sys.executable, "-m", "fedamp", "superlink", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Flower version: 1.")
