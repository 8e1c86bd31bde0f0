"""The rehearsal of a deployment: the whole of it as its operator runs it, from keys to a verified release."""

import os
import subprocess
import sysconfig
from contextlib import suppress

import psutil
import pytest

from tests.deployment.machines import DOCUMENTS, ROOT


def rehearse(*arguments: object, path: str) -> "subprocess.CompletedProcess[str]":
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("FLWR", "FEDAMP"))}
    environment |= {"PATH": path, "PYTHONPATH": str(ROOT)}
    command = ["/bin/sh", str(DOCUMENTS / "rehearse.sh"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)


def still_running(folder: object) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get("FLWR_HOME", "").startswith(str(folder)) or str(folder) in process.cmdline():
                found += [process] * (process.status() != psutil.STATUS_ZOMBIE)
    return found


def test_without_its_programs_the_rehearsal_makes_nothing(tmp_path):
    done = rehearse(tmp_path / "new", path="/nowhere")
    assert done.returncode == 2
    assert not (tmp_path / "new").exists()
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [
        "error: there is no fedamp; expected: it is on the PATH"
    ]


@pytest.mark.slow
def test_a_deployment_is_rehearsed_from_keys_to_a_verified_release(tmp_path, proxy):
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    done = rehearse(tmp_path / "rehearsal", path=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(
        "rehearsed: ran, killed and started again, revoked, released, verified"
    )
    assert not (tmp_path / "rehearsal").exists()
    assert still_running(tmp_path) == []
