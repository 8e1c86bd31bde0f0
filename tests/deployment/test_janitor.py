"""A killed session of tests leaves no process of Flower or nginx behind."""

import subprocess
import sys
from contextlib import suppress

import psutil

from tests.deployment.machines import wait
from tests.documentation import ROOT

# A process in a session of its own, as Flower's, and one that keeps no environment, as nginx.
STARTER = """
import sys, time
from pathlib import Path
from tests.deployment.janitor import start
print(start(["sh", "-c", "setsid sleep 600 & echo $! >&2; exec env -i sleep 600"], Path(sys.argv[1])).pid, flush=True)
time.sleep(600)
"""


def runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def test_what_a_killed_session_has_started_ends_with_it(tmp_path):
    log = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, str(log)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as session:
        started = [psutil.Process(int(session.stdout.readline()))]
        while not (found := log.read_text()).endswith("\n"):
            assert session.poll() is None
        started.append(psutil.Process(int(found)))
        assert all(map(runs, started))
        session.kill()
    wait(lambda: not any(map(runs, started)), 60, "their end")
