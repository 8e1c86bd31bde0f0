"""What all tests share.

One torch thread: the models are tiny, and test processes share the cores.
"""

import gc
import io
import itertools
import os
import re
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# Images often forbid bytecode; each of the many processes that tests start would then compile the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import psutil
import pytest
from hypothesis import settings

from tests.tools import but_patience

sys.dont_write_bytecode = False  # here too
# jsonschema would build its grammar when it is imported, for a second in each worker; no schema here needs it.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

# How long an example takes says how busy the machine is. A clean checkout (CI) must not fail by luck: there the
# examples are the same every time; elsewhere new ones are tried.


def is_ci() -> bool:
    """Whether a clean checkout is tested, by continuous integration."""
    return os.environ.get("CI", "") not in ("", "false")


settings.register_profile("fedamp", deadline=None, derandomize=is_ci())
settings.load_profile("fedamp")


# Rooms whose tests wait for processes: they start first, so that the others fill the waits and nothing long is last.
LONGEST_FIRST = ("deployment", "engines", "server", "tests", "papers", "merging")


@pytest.hookimpl(tryfirst=True)  # before what is slow is left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the rooms; mark the cases beyond the few as slow."""
    rooms = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rooms.get(item.path.parent.name, len(rooms)))
    for item in items:
        few = item.get_closest_marker("few")
        if few and max(item.callspec.indices.values()) not in few.args:
            item.add_marker(pytest.mark.slow)


gc.disable()  # while the tests are collected: nothing is garbage then


def pytest_collection_finish() -> None:
    """What has been imported stays: to look through it at each collection takes as long as many tests."""
    gc.enable()
    gc.freeze()


MARK = "FEDAMP_TEST_SESSION"  # in the environment of all that a session starts


def pytest_configure(config: pytest.Config) -> None:
    """The mark of the session (a worker of xdist has it from its session), and Ctrl-C for the processes of tests.

    What starts the tests in the background may ignore SIGINT, and every process would inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        os.environ[MARK] = uuid.uuid4().hex


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copies of records, features, and what nodes remember stay in the tests' own folder."""
    with pytest.MonkeyPatch.context() as patch_:
        patch_.setenv("FEDAMP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


if is_ci():

    @pytest.hookimpl(tryfirst=True)  # before the fixtures of modules
    def pytest_runtest_setup(item: pytest.Item) -> None:
        """Let the seeds that this process draws follow from the test, so that no outcome is luck."""
        from fedamp import rng

        drawn = (sha256(f"{item.nodeid} {number}".encode()).digest() for number in itertools.count())
        rng.seed_from_system = lambda: int.from_bytes(next(drawn))


@pytest.fixture
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that compare no bits of unlike stacks: the smallest models are tried 100 times otherwise."""
    monkeypatch.setattr("fedamp.client.stacks._TRIES", 1)


QUICK = {"tests", "server", "runs", "tune", "audit", "merging", "population"}  # rooms


@pytest.fixture(scope="module", autouse=True)
def quickly(request: pytest.FixtureRequest) -> Iterator[None]:
    """In rooms that are about neither, few tries, and pictures that nobody looks at are empty files."""
    if request.path.parent.name not in QUICK:
        yield
        return
    from fedamp.report.style import Picture

    def save(picture: Picture, file: Path | io.BytesIO, **options: object) -> None:
        file.write_bytes(b"") if isinstance(file, Path) else super(Picture, picture).savefig(file, **options)

    with pytest.MonkeyPatch.context() as patch_:
        patch_.setattr("fedamp.client.stacks._TRIES", 1)
        patch_.setattr(Picture, "savefig", save)
        yield


def started() -> list[psutil.Process]:
    """The other processes of this session that are running."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            ours = process.environ().get(MARK) == os.environ[MARK]
            ends_with_us = "multiprocessing.resource_tracker" in " ".join(process.cmdline())
            if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE and not ends_with_us:
                found.append(process)
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """No test leaves a process behind."""
    if hasattr(session.config, "workerinput"):
        return
    _, left = psutil.wait_procs(started(), timeout=600)
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        lines = "\n".join(f"{process.pid}: {' '.join(process.cmdline())[:300]}" for process in left)
        print(f"\nFAILED: the tests left processes behind:\n{lines}")


# What may be skipped where a promise must not go untested by accident (CI): the reason that a test gives, and why.
ALLOWED_SKIPS = {
    r"SCIPY_ARRAY_API is not set": "the classifier takes arrays of numpy alone, as scikit-learn without that setting",
    r"could not import '(mlflow|wandb)": "trackers are no promise, and their packages are large",
    r"the extra docs is not installed": "`make docs` builds the site, and CI runs it every night",
    r"nobody may (mount|make network namespaces) here": "needs root and a kernel that allows it; a full disk and who "
    "reaches which port are also tested without",
    r"FEDAMP_IMAGE names no image": "to build one takes gigabytes and packages of Debian: packaging/images/build.sh",
    r"is not here: an upgrade is not tested": "needs the history of the repository, which a shallow clone lacks",
    r"there is no kubectl here": "the manifests are also validated file by file",
    r"there is no systemd-analyze here": "of machines with systemd; the units' commands are run by themselves",
    r"about the allocator of glibc|does not count the pages that it clears": "speed of one C library, no promise",
    r"about CUDA alone": "of machines with a GPU; tapes, counts and a second device stand for one elsewhere",
    r"nothing is computed in a child here": "on one core, or not on Linux, there is no child",
    r"any words of the right length are a sum": "no such case: the threat model says so",
    r"data\.name [\w-]+: (no|not on this machine)": "records of others that `make data` could not "
    "get: their readers are tested on files of the same form",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """With ``CI`` set, a skipped test that is not allowed to be is a failure."""
    return required((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """Likewise of a whole file."""
    return required((yield))


def required(report):
    reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
    if is_ci() and reason and not any(re.search(allowed, reason) for allowed in ALLOWED_SKIPS):
        report.outcome, report.longrepr = "failed", f"{reason}; see ALLOWED_SKIPS in tests/conftest.py"
    return report


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str


@pytest.fixture(scope="session")
def fedamp():
    """Call the entry point in this process, without a terminal."""
    from fedamp.cli.commands import main
    from tests.documentation import click_command

    def call(*arguments: object) -> Answer:
        with (
            patch.object(sys, "argv", ["fedamp", *map(str, arguments)]),
            patch("typer.main.get_command", click_command),
            redirect_stdout(io.StringIO()) as out,
            redirect_stderr(io.StringIO()) as err,
            pytest.raises(SystemExit) as stop,
        ):
            main()
        return Answer(stop.value.code or 0, out.getvalue(), but_patience(err.getvalue()))

    return call
