"""The runs of a sweep: one after the other in this process, or several at once in spawned processes.

Processes are spawned, not forked: a fork can hang while a library has threads at work.
"""

import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple, Protocol

from fedamp.errors import FedampError, Interrupted
from fedamp.federation.scenario import Scenario
from fedamp.runs.folder import read_summary
from fedamp.server.launch import how_to_resume, launch
from fedamp.server.observers import Forewarning, Observers

STOP_DEADLINE = 10.0  # seconds that an idle process may take to end


class Job(NamedTuple):
    """A run to start, or to resume."""

    name: str
    scenario: Scenario
    folder: Path
    resume: bool


Tell = Callable[[Job, int], object]  # called with the number of every released round


class Watcher(Protocol):
    """Follows the runs of a sweep."""

    def begun(self, jobs: Sequence[Job]) -> None:
        """Before the first run: the jobs to do."""

    def round_done(self, job: Job, round_: int) -> None:
        """After every released round of a run."""

    def run_done(self, job: Job, error: str | None) -> None:
        """After a run, with one line that says why it stopped before its end."""


def run_job(job: Job, tell: Tell) -> str | None:
    """Run a job in this process; returns one line that says why it stopped before its end.

    Raises:
        Interrupted: Ctrl-C; the run can be resumed.
    """
    try:
        watching = Observers([Forewarning(None), lambda record: tell(job, record.round)])
        folder = launch(job.scenario, watching, job.folder, job.resume)
        if read_summary(folder).stopped_because == "interrupted":
            raise Interrupted(how_to_resume(folder))
    except Interrupted:
        raise
    except FedampError as error:
        return f"{error.kind}: {error}"
    return None


def run_apart(jobs: Sequence[Job], processes: int, tell: Tell) -> Generator[tuple[Job, str | None]]:
    """Run jobs in several processes at once; yields each job after its end, as :func:`run_job`.

    A process that dies fails its current run, and no other.

    Raises:
        Interrupted: Ctrl-C. Current runs have finished their round; a second Ctrl-C kills them.
    """
    waiting, interrupts = deque(jobs), 0
    busy, idle = dict[Connection, _Worker](), list[_Worker]()
    try:
        while waiting or busy:
            try:
                while waiting and len(busy) < processes:
                    worker = idle.pop() if idle else _Worker(max(1, (os.cpu_count() or 1) // processes))
                    worker.start(waiting.popleft())
                    busy[worker.pipe] = worker
                for pipe in wait(list(busy)):
                    worker = busy[pipe]  # type: ignore[index]
                    said = worker.receive()
                    if isinstance(said, int):
                        tell(worker.job, said)
                        continue
                    del busy[worker.pipe]
                    if worker.process.is_alive():
                        idle.append(worker)
                    yield worker.job, said
            except KeyboardInterrupt:
                interrupts += 1
                waiting.clear()
                if interrupts == 1:
                    Forewarning(None).stopping()
                for worker in busy.values():
                    if interrupts > 1:
                        worker.process.kill()
                    with suppress(OSError):
                        worker.pipe.send(None)  # it stops after its round
    finally:
        for worker in (*idle, *busy.values()):
            worker.end()
    if interrupts:
        raise Interrupted("")


class _Worker:
    """A process that runs one job after the other, so that it imports torch once.

    It receives jobs through a pipe. It answers with the number of each released round, and with the error or None.
    """

    job: Job

    def __init__(self, threads: int) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, threads))
        # The pipe interrupts it, Ctrl-C does not; the process inherits which signals are blocked.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()

    def start(self, job: Job) -> None:
        self.job = job
        with suppress(OSError):  # a dead process is noticed in receive
            self.pipe.send(job)

    def receive(self) -> int | str | None:
        with suppress(EOFError, OSError):
            said: int | str | None = self.pipe.recv()
            return said
        self.process.join(STOP_DEADLINE)
        return f"failed: its process ended (exit code {self.process.exitcode})"

    def end(self) -> None:
        self.pipe.close()
        self.process.join(STOP_DEADLINE)
        self.process.kill()


def _serve(pipe: Connection, threads: int) -> None:
    """Run the jobs that a pipe brings, until it is closed. The logs of the runs hold what they print."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))

    def tell(_: Job, round_: int) -> None:
        pipe.send(round_)
        if pipe.poll():
            raise KeyboardInterrupt

    with suppress(EOFError, OSError):
        while True:
            job = pipe.recv()
            if job is None:
                continue
            try:
                error = run_job(job, tell)
            except Interrupted as caught:
                error = f"{caught.kind}: {caught}"
            pipe.send(error)
