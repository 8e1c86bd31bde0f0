"""What systemd does with the unit files of docs/deployment/systemd, as far as their being started again goes."""

import os
import re
import shlex
import signal
import subprocess
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tests.deployment.machines import DOCUMENTS, start


def settings(file: str) -> dict[str, list[str]]:
    """The settings of a unit file, each with its values; continued lines are joined."""
    text = (DOCUMENTS / "systemd" / file).read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


class Unit:
    """A service, started again as its unit file says, until :meth:`stop`.

    When its main process is gone, all that it started is killed before the next start (``KillMode=control-group``).

    Args:
        file: the unit file.
        places: what stands for the paths and specifiers of the unit file on this machine.
        folder: the working directory.
        environment: of its processes.
        log: where they write.
    """

    def __init__(
        self, file: str, places: Mapping[str, str], folder: Path, environment: Mapping[str, str], log: Path
    ) -> None:
        unit = settings(file)
        [command], [delay] = unit["ExecStart"], unit["RestartSec"]
        assert unit["Restart"] == ["always"]
        for name, place in places.items():
            command = command.replace(name, place)
        self.command, self.delay, self.folder, self.log = shlex.split(command), float(delay), folder, log
        self.mark = uuid.uuid4().hex  # inherited by all of its processes, as a control group is
        self.environment = dict(environment) | {"FEDAMP_TEST_UNIT": self.mark}
        self.ends: list[int] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep_running)
        self._thread.start()

    def kill(self) -> None:
        """``kill -9`` of the main process."""
        assert self.process is not None
        self.process.kill()

    def stop(self) -> None:
        self._stopping.set()
        self._kill_group()
        self._thread.join(timeout=60)
        self._kill_group()

    def _keep_running(self) -> None:
        while not self._stopping.is_set():
            self.process = start(self.command, self.log, self.folder, self.environment)
            self.ends.append(self.process.wait())
            self._kill_group()
            self._stopping.wait(self.delay)

    def _kill_group(self) -> None:
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # for nginx, whose workers keep no environment
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get("FEDAMP_TEST_UNIT") == self.mark:
                    process.kill()
