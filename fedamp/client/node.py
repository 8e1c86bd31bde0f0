"""Run a lasting node: Flower's SuperNode, and a parent process that has imported everything and forks for each message.

Flower starts a new process for every message, which imports torch for seconds. The node puts a small program first on
the PATH (:mod:`fedamp.client.program`). It asks the parent, over a socket in a folder of mode 0700, for a fork. The
fork reads the message and runs Flower's own code, so :mod:`fedamp.client.app` answers as ever. The parent accepts and
forks, and reads nothing, so nothing of a message stays. A fork is safe only where no other thread runs, so the parent
counts its threads before each one.

    python -m fedamp.client.node keep ARGUMENT...       starts both, again and again: what ``fedamp node`` becomes
    python -m fedamp.client.node parent SOCKET          the parent
    python -m fedamp.client.node supernode ARGUMENT...  Flower's SuperNode, which asks for messages sooner
"""

import ctypes
import gc
import importlib.metadata
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from types import FrameType
from typing import Any, NoReturn

from fedamp.base.files import temporary_folder
from fedamp.base.log_lines import log_as_json
from fedamp.client import program
from fedamp.client.program import say_line
from fedamp.engines.direct import FLOWER, answer_directly, runtime_handlers
from fedamp.errors import DeploymentError

PAUSE = 5.0  # seconds before a process is started again
TASK_LOOK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}  # seconds until a message's process is asked for; Flower: 1
TASK_WAIT = 2.0  # seconds for which the SuperNode keeps such a request, until a message comes
LARGEST_SKEW = timedelta(seconds=3)  # of two clocks that tell the same time; dates are in whole seconds
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
# A pool of threads that is there when a process forks is broken in the fork.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
# What httpx imports with its first client, and zipfile with the first name in the file of an app.
_IMPORTED_LATE = "httpcore", "encodings.cp437"
ANSWERED_BY_FLOWER = {"-h", "--help", "-V", "--version"}  # arguments that need no parent
_STARTER = "FEDAMP_STARTER"  # in the environment: id of the process that a process must not outlive
_WRONG_ARGUMENTS = 2  # exit status of the SuperNode, which would end so again


def keep(arguments: Sequence[str]) -> int:
    """Run a node until a signal comes; its exit status is the SuperNode's.

    Args:
        arguments: of ``flower-supernode``. ``--help`` and ``--version`` are answered by Flower.

    Raises:
        DeploymentError: this system cannot fork safely.
    """
    if not sys.platform.startswith("linux"):
        raise DeploymentError("fedamp node needs Linux; expected here: flower-supernode, with the same arguments")
    if ANSWERED_BY_FLOWER.intersection(arguments):
        supernode(arguments)
    with private_folder("fedamp-node-") as folder:
        return _Node(Path(folder), list(arguments)).run()


def private_folder(prefix: str) -> TemporaryDirectory[str]:
    """Make a folder for a socket and a program: in RUNTIME_DIRECTORY, of which systemd names several with colons.

    Args:
        prefix: how its name begins.

    Raises:
        DeploymentError: no folder can be made there.
    """
    place = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    try:
        return temporary_folder(prefix, place or None)
    except OSError as error:
        where = f"RUNTIME_DIRECTORY {place}" if place else "the folder of temporary files"
        why, expected = error.strerror or error, "a folder that this user may write in"
        raise DeploymentError(f"{where}: no folder can be made there ({why}); expected: {expected}") from error


def exit_with(run: Callable[[], int | None]) -> NoReturn:
    """End this process as a program that is run here; what it refuses becomes one line.

    Args:
        run: returns the exit status.
    """
    try:
        sys.exit(run())
    except DeploymentError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def program_of(role: str, *arguments: str, module: str = "fedamp.client.node") -> list[str]:
    """Return the command of a process of a module; files in the working directory cannot replace modules (``-P``).

    Args:
        role: keep, parent or supernode; those of another module are at the top of its file.
        arguments: of the role, as the top of the file has them.
        module: its name.
    """
    return [sys.executable, "-P", "-m", module, role, *arguments]


class Forks:
    """Stands on the PATH for Flower's program of an app, for which a parent process forks.

    Where the parent cannot serve (an untried Flower, or a folder in which no program may run), each app gets a process
    of its own, as Flower starts it.

    Args:
        folder: for this user alone; holds the socket and the program.
        name: of Flower's program.

    Attributes:
        why_not: why the parent cannot serve; empty: it can.
    """

    def __init__(self, folder: Path, name: str) -> None:
        place, file = folder / "parent", folder / name
        command = shlex.join([sys.executable, "-IS", str(program.__file__), name, str(place)])
        self._listener = socket.socket(socket.AF_UNIX)
        why_not = (
            ""
            if (ours := _flower_version()).startswith(FLOWER)
            else f"Flower {ours} is untried; expected: {FLOWER[-1]}x"
        )
        another = "expected: RUNTIME_DIRECTORY names another folder"
        try:
            file.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            file.chmod(0o700)
            self._listener.bind(str(place))
            self._listener.listen(64)  # it outlives a parent: who asks meanwhile waits for the next one
        except OSError as error:  # a full disk, or a path that is too long for a socket
            why_not = f"{folder.parent} takes no program with a socket ({error.strerror or error}); {another}"
        else:
            if not os.access(file, os.X_OK):  # the tmpfs of a container, say
                why_not = f"no program may run in {folder.parent}; {another}"
        if why_not:
            say_line(f"each app gets a process of its own, as Flower starts it: {why_not}", program.OWNERS[name])
        self.why_not = why_not
        path = [str(folder), os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")]
        self.path = os.pathsep.join(path[bool(why_not) :])

    def start_parent(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a parent.

        Args:
            command: of a process that calls :func:`parent`; the number of the socket is added to it.
        """
        number = self._listener.fileno()
        environment, words = os.environ | _ONE_THREAD | {_STARTER: str(os.getpid())}, [*command, str(number)]
        return subprocess.Popen(words, env=environment, pass_fds=[number], stdin=subprocess.DEVNULL)

    def close(self) -> None:
        """Leave the socket to the parent alone: who asks when it has ended is refused at once."""
        self._listener.close()


class _Node:
    """Keeps a SuperNode and a parent running until a signal comes.

    Args:
        folder: for this user alone.
        arguments: of ``flower-supernode``.
    """

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self._arguments, self._stopping = arguments, False
        self._parent: subprocess.Popen[bytes] | None = None
        self._supernode: subprocess.Popen[bytes] | None = None
        self._forks = Forks(folder, "flwr-clientapp")
        self._environment = TASK_LOOK | os.environ | {"PATH": self._forks.path, _STARTER: str(os.getpid())}

    def run(self) -> int:
        """Run until a signal comes, and return the exit status; signals go on to the SuperNode meanwhile."""
        before = {number: signal.signal(number, self._forward) for number in _SIGNALS}
        try:
            return self._watch()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for process in (self._supernode, self._parent):
                if process is not None and process.poll() is None:
                    process.terminate()
                    process.wait()
            self._forks.close()

    def _watch(self) -> int:
        """Start what has ended again, ``PAUSE`` seconds later, until a signal comes or the arguments are wrong."""
        while True:
            has_parent = self._parent is not None and self._parent.poll() is None
            if not (has_parent or self._forks.why_not or self._stopping):
                self._parent = self._forks.start_parent(program_of("parent"))
            if self._supernode is None:
                self._supernode = self._start_supernode()
            gone = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            ours = [each.pid for each in (self._parent, self._supernode) if each is not None]
            if gone is not None and gone.si_pid not in ours:
                os.waitpid(gone.si_pid, 0)  # an orphan: the first process of a container is given them all
                continue
            time.sleep(0.1)  # who stops a service signals each of its processes, and this one perhaps last
            ended = "the parent of its messages ended"
            if (code := self._supernode.poll()) is not None:
                if self._stopping or code == _WRONG_ARGUMENTS:
                    return code if code >= 0 else 128 - code
                self._supernode, ended = None, f"the SuperNode ended with {code}"
            if not self._stopping:
                from fedamp.base import devices  # nothing else here needs NumPy

                say_line(f"{ended}; started again in {PAUSE:g} s{devices.busy_words()}")
            until = monotonic() + PAUSE
            while not self._stopping and monotonic() < until:
                time.sleep(0.1)
            if self._stopping and self._supernode is None:
                return 0

    def _start_supernode(self) -> subprocess.Popen[bytes]:
        """Start the SuperNode; one that starts while the node stops is ended at once."""
        process = subprocess.Popen(program_of("supernode", *self._arguments), env=self._environment)
        if self._stopping:
            process.terminate()
        return process

    def _forward(self, number: int, _: FrameType | None) -> None:
        """Hand a signal on to the SuperNode, unless the terminal has sent it to the whole group."""
        self._stopping = True
        if number in (signal.SIGINT, signal.SIGQUIT) and _in_foreground():
            return  # the terminal has sent it to all of them
        if self._supernode is not None:
            self._supernode.send_signal(number)


def _in_foreground() -> bool:
    """Say whether a terminal sends Ctrl-C to this process and its children alike."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _flower_version() -> str:
    """Return the version of Flower that is installed."""
    return importlib.metadata.version("flwr")


def _end_with_the_node() -> None:
    """Have the kernel end this process when the process that started it has ended, by whatever signal."""
    parent_death_signal = 1  # of sys/prctl.h
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)
    if os.environ.pop(_STARTER, str(os.getppid())) != str(os.getppid()):  # it has ended before the kernel was asked
        signal.raise_signal(signal.SIGTERM)


def supernode(arguments: Sequence[str]) -> None:
    """Become Flower's SuperNode in this process, which answers directly, and whose waits are short at first.

    Args:
        arguments: of ``flower-supernode``.
    """
    _end_with_the_node()
    _watch_refusals()
    from flwr.supernode.cli import flower_supernode

    answer_directly("flwr.supernode.main", partial(runtime_handlers, "SuperNode"))
    if _flower_version().startswith(FLOWER):
        _leave_in_peace()
        waits = sys.modules["flwr.supernode.start_client_internal"].time = Waits()  # type: ignore[attr-defined]
        handlers: Any = import_module("flwr.supernode.servicer.runtime.runtime_handlers")
        handlers.acquire_task = waits.kept_until_a_message(handlers.acquire_task)
    log_as_json("flwr", "fedamp")
    sys.argv = ["flower-supernode", *arguments]
    try:
        flower_supernode()
    except KeyboardInterrupt:  # a second refusal, or a second Ctrl-C, while Flower leaves
        sys.exit(128 + signal.SIGINT)


def _leave_in_peace() -> None:
    """Have a second SIGTERM change nothing while Flower leaves, which tells the server that this node is gone.

    Two come where a service is stopped: its manager signals each process, and the node hands its own on. With the first
    one Flower restores the handler that it has found; its time to leave is limited.
    """
    starts: Any = import_module("flwr.supernode.start_client_internal")
    register = starts.register_signal_handlers

    def register_last(*given: Any, **named: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)
        register(*given, **named)

    starts.register_signal_handlers = register_last


def _watch_refusals() -> None:
    """Say once why the server refuses this node, and sign again where this machine's clock is the reason.

    Flower refuses a request that was signed 5 s after the server's time, or 305 s before it. Its SuperNode then says
    that it could not establish a connection. The time is there so that nobody sends an old request again. Each answer
    tells the server's time, under its certificate, so a node may sign by it.
    """
    signer: Any = import_module("flwr.supernode.node_auth_http_interceptor")
    httpx = import_module("httpx")

    def print_error(found: Any) -> None:
        if not isinstance(found.exc_value, httpx.HTTPStatusError):  # which ends this process, and is told below
            threading.__excepthook__(found)

    threading.excepthook = print_error
    intercept, own_time, tell = signer.NodeAuthHttpInterceptor.intercept, signer.now, cache(say_line)
    ahead = timedelta()  # of this clock
    signer.now = lambda: own_time() - ahead

    def watched(self: Any, context: Any, call_next: Any) -> Any:
        nonlocal ahead
        response = intercept(self, context, call_next)
        if response.status_code == httpx.codes.PRECONDITION_FAILED:
            tell("the server takes this node up to a minute after its former process has ended, unless it is revoked")
        if response.status_code != httpx.codes.UNAUTHORIZED:
            return response
        with suppress(TypeError, ValueError):  # an answer without a date
            found = own_time() - parsedate_to_datetime(response.headers.get("date"))
            if abs(found - ahead) > LARGEST_SKEW:
                ahead, side = found, "ahead of" if found > timedelta() else "behind"
                off = f"{abs(found).total_seconds():.0f} s {side}"
                say_line(f"the clock is {off} the server's; the node signs by the server's; expected: set the clock")
                for header in ("PUBLIC_KEY", "SIGNATURE"):
                    del context.request.headers[getattr(signer, f"FLEET_HTTP_{header}_HEADER")]
                del context.request.headers[signer.TIMESTAMP_HEADER]
                response = intercept(self, context, call_next)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            tell("the server refuses this node's key (is it revoked?); expected: fedamp enroll --renew")
        return response

    signer.NodeAuthHttpInterceptor.intercept = watched


class Looks:
    """Choose when to look for what comes again and again: hardly before it can be there, then ever more rarely.

    A wait ends at nine tenths of the shortest of the last times after which it came. From then on a wait is a fifth of
    the time so far, at least ``LEAST`` seconds.

    Args:
        longest: seconds of a wait.
    """

    LEAST = 0.1  # seconds
    EARLY, LATELY = 0.9, 4  # of the shortest time; of how many times
    SOONER = 0.7  # of a time after which the first look has found it: it may have been there for long

    def __init__(self, longest: float) -> None:
        self.longest, self._lately, self._is_first = longest, deque[float](maxlen=self.LATELY), True

    def wait(self, elapsed: float) -> float:
        """Return the seconds until the next look.

        Args:
            elapsed: seconds since the row of looks began.
        """
        expected = self.EARLY * min(self._lately, default=0.0)
        self._is_first = elapsed < expected
        wait = expected - elapsed if self._is_first else elapsed / 5
        return min(self.longest, max(self.LEAST, wait))

    def found(self, elapsed: float) -> None:
        """Note after how many seconds the last look has found it."""
        self._lately.append(elapsed * (self.SOONER if self._is_first else 1.0))


class Waits:
    """Stands for the module ``time`` in Flower's loop, so that a message waits less, and fewer looks are in vain.

    Flower waits for 3 s between two looks for a message, and for 0.5 s between two looks for its reply. Here a wait is
    never longer than Flower's. Orders come in the rhythm of the rounds, so :class:`Looks` for them follow it.
    """

    MESSAGE = 3.0  # seconds, by which Flower's waits for a message are known

    def __init__(self) -> None:
        self._messages, self._looked = Looks(self.MESSAGE), threading.Event()
        self._asked, self._began, self._ended = 0.0, 0.0, 0.0

    def kept_until_a_message(self, acquire: Callable[..., Any]) -> Callable[..., Any]:
        """Have Flower's task starter wait for a message within its request, in place of asking again and again.

        Each request takes a hundredth of a second of a processor. Flower's loop waits after each of its looks for a
        message, and while it waits for the reply. One request is kept at a time, for Flower has one task starter: a
        request takes a thread, and others on this machine could take them all.

        Args:
            acquire: the SuperNode's answer to the request.
        """
        place = threading.Lock()

        def kept(*request: Any) -> Any:
            if not place.acquire(blocking=False):
                return acquire(*request)
            try:
                until = monotonic() + TASK_WAIT
                while not (answer := acquire(*request)).token and self._looked.wait(max(0.0, until - monotonic())):
                    self._looked.clear()
                return answer
            finally:
                place.release()

        return kept

    def sleep(self, seconds: float) -> None:
        """Wait once in a row of equal waits; another number of seconds begins a new row."""
        if seconds != self._asked:
            if self._asked == self.MESSAGE:  # one has come
                self._messages.found(self._ended - self._began)
            self._asked, self._began = seconds, monotonic()
        self._looked.set()
        looks = self._messages if seconds == self.MESSAGE else Looks(seconds)
        time.sleep(looks.wait(monotonic() - self._began))
        self._ended = monotonic()


def parent(listener: socket.socket, prepare: Callable[[], Callable[[], None]]) -> NoReturn:
    """Fork for every program that connects, until this process is ended.

    A program that is killed takes its fork with it. The exit status of a fork goes to its program.

    Args:
        listener: the socket.
        prepare: imports what a message needs; returns what a fork runs.
    """
    _end_with_the_node()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, which the SuperNode gets as well
    run = prepare()
    gc.collect()
    gc.freeze()
    forks: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor of the fork
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        descriptor, _ = poll.poll()[0]  # one event: what it closes may have others, under a number that comes again
        if descriptor == listener.fileno():
            link, _ = listener.accept()
            process, why_not = _try_to_fork()
            if why_not:
                _send_descriptors(link, why_not.encode())
                link.close()
                continue
            if process == 0:
                for other in (listener, *(each for _, each in forks.values())):
                    other.close()
                for neighbour in forks:
                    os.close(neighbour)
                _handle_process(link, run)
            fork = os.pidfd_open(process)
            forks[fork] = process, link
            poll.register(fork, select.POLLIN)
            poll.register(link, select.POLLHUP)
            _send_descriptors(link, b"forked", [fork])
        elif descriptor in forks:
            process, link = forks.pop(descriptor)
            for each in (descriptor, link):
                with suppress(KeyError):  # the program was killed before
                    poll.unregister(each)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            _send_descriptors(link, code.to_bytes(4, "big", signed=True))
            link.close()
            os.close(descriptor)
        else:  # the program was killed: so is its fork
            poll.unregister(descriptor)
            [fork] = [fork for fork, (_, link) in forks.items() if link.fileno() == descriptor]
            signal.pidfd_send_signal(fork, signal.SIGKILL)


def everything() -> Callable[[], None]:
    """Import what a message needs, without starting a thread; return Flower's client app program, for a fork."""
    from flwr.supernode.cli import flwr_clientapp

    import_module("fedamp.client.app")
    import_module("fedamp.client.proofs").code()
    import_module("fedamp.federation.first_releases").first_releases()
    for each in _IMPORTED_LATE:
        import_module(each)

    def run() -> None:
        act_as_new_process()
        log_as_json("flwr", "fedamp")
        flwr_clientapp()

    return run


def act_as_new_process() -> None:
    """Give a fork the threads of a new process, and generators that do not start alike in all forks."""
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    threads = int(asked) if asked.isdecimal() and int(asked) else len(os.sched_getaffinity(0))
    import_module("torch").set_num_threads(threads)
    import_module("numpy.random").seed()


def _try_to_fork() -> tuple[int, str]:
    """Fork where no other thread runs; return the process, 0 in itself, or say why there is none."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return -1, f"the parent of its messages runs {threads} threads"
    try:
        return os.fork(), ""
    except OSError as error:  # no memory or no process is left
        return -1, str(error)


def _send_descriptors(link: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send bytes, and descriptors, to a program that may have ended."""
    with suppress(OSError):  # the program is gone
        socket.send_fds(link, [data], descriptors)


def _handle_process(link: socket.socket, run: Callable[[], None]) -> NoReturn:
    """Become, in a fork, the process that the program at the other end stands for, and end as it would."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        size, streams, *_ = socket.recv_fds(link, 4, 3)
        if len(streams) == 3:
            with link.makefile("rb") as file:
                arguments, environment, folder = json.loads(file.read(int.from_bytes(size, "big")))
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            link.close()
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            sys.argv = arguments
            run()
            code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "keep":
        exit_with(partial(keep, rest))
    if role == "parent":
        parent(socket.socket(fileno=int(rest[0])), everything)
    supernode(rest)
