"""Calls with a time limit: each in a process of its own that can be stopped without a trace."""

import importlib.util
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any


@dataclass(frozen=True)
class Contender:
    """Somebody who answers questions, in a process of its own.

    Attributes:
        name: for the tables.
        package: what has to be installed.
        answer: a top-level function, question -> answer (anything that can be pickled).
        warm_up: a small question, asked before the first one, so that imports and compilation are not timed.
    """

    name: str
    package: str
    answer: Callable[..., Any]
    warm_up: dict[str, Any]

    @property
    def installed(self) -> bool:
        """Whether its package can be imported here."""
        return importlib.util.find_spec(self.package) is not None


@dataclass(frozen=True)
class Timed:
    """An answer, None if there was none, and how long it took: the limit if it ran into that.

    Attributes:
        problem: why there is no answer, otherwise empty.
    """

    answer: Any
    seconds: float
    problem: str = ""


@dataclass
class Stopwatch:
    """Asks one contender, one question after the other; use as a context manager.

    Attributes:
        limit: seconds a question may take.
        start_limit: seconds that starting the process and its warm-up may take.
    """

    contender: Contender
    limit: float
    start_limit: float = 120.0
    _process: BaseProcess | None = field(default=None, init=False)
    _pipe: Connection | None = field(default=None, init=False)

    def __enter__(self) -> "Stopwatch":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def ask(self, **question: Any) -> Timed:
        """The contender's answer, timed inside its process."""
        if not self.contender.installed:
            return Timed(None, 0.0, "not installed")
        if self._pipe is None:
            started = self._start()
            if started.problem:
                return started
        return self._exchange(question, self.limit)

    def _start(self) -> Timed:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.contender.answer), daemon=True)
        self._process.start()
        theirs.close()
        return self._exchange(self.contender.warm_up, self.start_limit)

    def _exchange(self, question: dict[str, Any], limit: float) -> Timed:
        assert self._pipe is not None
        try:
            self._pipe.send(question)
            if self._pipe.poll(limit):
                return self._pipe.recv()
        except (EOFError, OSError):
            self._stop()
            return Timed(None, 0.0, "its process ended")
        self._stop()
        return Timed(None, limit, f"more than {limit:g} s")

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None


def _serve(pipe: Connection, answer: Callable[..., Any]) -> None:
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        start = time.perf_counter()
        try:
            pipe.send(Timed(answer(**question), time.perf_counter() - start))
        except Exception as error:
            pipe.send(Timed(None, time.perf_counter() - start, f"{type(error).__name__}: {error}"))
