"""Several runs at once, in processes that are started afresh, not forked: a fork hangs beside a library at work."""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Protocol, Self

from fedamp.engines.processes import environment
from fedamp.errors import FedampError, Interrupted
from fedamp.federation.scenario import Scenario
from fedamp.server.launch import launch
from fedamp.server.observers import Observers

STOP_DEADLINE = 10.0  # seconds that a process may take to end


@dataclass(frozen=True)
class Job:
    """A run to be made or to be gone on with."""

    name: str
    scenario: Scenario
    folder: Path
    resume: bool


class Watcher(Protocol):
    """Who is told how the runs of a sweep go."""

    def begun(self, jobs: Sequence[Job]) -> None:
        """Before the first run: what there is to do."""

    def round_done(self, job: Job, round_: int) -> None:
        """After every released round of a run."""

    def run_done(self, job: Job, error: str | None) -> None:
        """After a run, with what ended it before its end, in one line."""


def play_here(jobs: Iterable[Job], watcher: Watcher) -> None:
    """Runs one after the other, in this process.

    Raises:
        Interrupted: Ctrl-C; the run in progress can be gone on with.
    """
    for job in jobs:
        ended = _Ended()
        try:
            told = Observers([lambda record, job=job: watcher.round_done(job, record.round), ended])
            launch(job.scenario, told, job.folder, job.resume)
            watcher.run_done(job, None)
        except Interrupted:
            raise
        except FedampError as error:
            watcher.run_done(job, f"{error.kind}: {error}")
        if ended.interrupted:
            raise Interrupted("")


class _Ended:
    """Remembers that Ctrl-C came: a run that it stops after a round raises nothing."""

    interrupted = False

    def stopping(self) -> None:
        self.interrupted = True


def play_apart(jobs: Iterable[Job], processes: int, watcher: Watcher) -> None:
    """Runs in so many processes at once. A process that dies takes the run that it is at with it, and no other.

    Raises:
        Interrupted: Ctrl-C; runs in progress have finished their round (the second time they have been killed).
    """
    waiting, interrupts = deque(jobs), 0
    with ExitStack() as running:
        workers = [running.enter_context(_Worker(processes)) for _ in range(min(processes, len(waiting)))]
        while waiting or any(worker.job for worker in workers):
            try:
                for worker in workers:
                    if worker.job is None and waiting:
                        worker.start(waiting.popleft())
                busy = {worker.pipe: worker for worker in workers if worker.job}
                for pipe in wait(list(busy)):
                    _hear(busy[pipe], watcher)  # type: ignore[index]
            except KeyboardInterrupt:
                interrupts += 1
                waiting.clear()
                for worker in workers:
                    worker.interrupt(kill=interrupts > 1)
    if interrupts:
        raise Interrupted("")


def _hear(worker: "_Worker", watcher: Watcher) -> None:
    job = worker.job
    assert job is not None, "only those at work are heard"
    try:
        answer = worker.pipe.recv()
    except (EOFError, OSError):
        answer = f"failed: its process ended (exit code {worker.end()})"
    if isinstance(answer, int):
        watcher.round_done(job, answer)
        return
    worker.job = None
    watcher.run_done(job, answer)


class _Worker:
    """A process of :mod:`fedamp.studies.sweeps.worker`, and what it is at; started when there is something to do."""

    pipe: Connection
    _process: subprocess.Popen[bytes] | None = None

    def __init__(self, processes: int) -> None:
        self._threads = max(1, (os.cpu_count() or 1) // processes)
        self.job: Job | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, job: Job) -> None:
        """Have it run a job; that it is no longer there is heard when it is asked."""
        if self._process is None:
            self._process = self._started()
        self.job = job
        with suppress(OSError):
            self.pipe.send((job.scenario, job.folder, job.resume))

    def interrupt(self, kill: bool) -> None:
        """Have it stop after the round, or at once."""
        if self.job and self._process:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGINT)

    def end(self) -> int | None:
        """End the process, where there is one; returns its exit code."""
        if self._process is None:
            return None
        process, self._process = self._process, None
        self.pipe.close()  # without it the process ends
        with suppress(subprocess.TimeoutExpired):
            return process.wait(STOP_DEADLINE)
        process.kill()
        return process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        self.pipe, theirs = Pipe()
        command = [sys.executable, "-P", "-m", "fedamp.studies.sweeps.worker", str(theirs.fileno())]
        with theirs:
            # In a session of its own Ctrl-C does not reach it. What it has to say is in the logs of its runs.
            return subprocess.Popen(
                command,
                env={"OMP_NUM_THREADS": str(self._threads)} | environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
