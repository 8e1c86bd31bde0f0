"""Read what every command reads, print what it prints, and end as it ends.

:func:`exit_with` is the entry point: every error becomes one line on standard error, with an exit status. The status is
0 for success, 1 for an unexpected failure or a failed check (:func:`judge`), 2 for wrong input, and 128 and the
signal's number after a signal. A scenario that ``fedamp check`` refuses is wrong input, too. The classes of
:mod:`fedamp.errors` carry the statuses.

Answers go to standard output, and progress and cautions to standard error, so that ``--json`` can be piped. Text of
scenarios and runs is printed without control characters.
"""

import errno
import faulthandler
import io
import json
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import click
from rich.console import Console, RenderableType
from typer import Argument, Option, Typer

from fedamp.base.start import QUIET, seldom_collected
from fedamp.base.text import harmless, printable
from fedamp.errors import FedampError, InputError, Interrupted, LoggedWarning, missing

if TYPE_CHECKING:
    from fedamp.accounting.verify import Check
    from fedamp.federation.scenario import Scenario
    from fedamp.report.comparison import Published

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
WRONG_PATH = {errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}
WRONG_PATH |= {errno.EINVAL, errno.EFBIG}  # as fedamp.base.reading refuses pipes and enormous files
# Options of older versions, and what stands in their place.
REMOVED = {
    "--canaries": "expected: --set privacy.canaries=NUMBER",
}
# NO_COLOR: no italics nor bold either; rich would keep them.
PLAIN: Any = {"color_system": None} if os.environ.get("NO_COLOR") else {}


class _Terminal(Console):
    """A console whose reader may go away."""

    def on_broken_pipe(self) -> None:
        """Go on without output where nobody reads on: the exit status still says how the command went."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2 if self.stderr else 1)


out, err = _Terminal(**PLAIN), _Terminal(stderr=True, **PLAIN)


def _shipped_names(incomplete: str) -> list[str]:
    """Complete the name of a shipped scenario."""
    from fedamp.federation.reader import shipped_files

    return [file.stem for file in shipped_files() if file.stem.startswith(incomplete)]


def complete_key(incomplete: str) -> list[tuple[str, str]]:
    """Complete the keys of a scenario, or ``key=value`` for the values of one.

    Args:
        incomplete: the begin of a key, or of ``key=value``.

    Returns:
        Each completion with the schema's words about the key.
    """
    from fedamp.federation.messages import accepted_values, described_keys

    key, equals, _ = incomplete.partition("=")
    if equals:
        return [(found, "") for each in accepted_values(key) if (found := f"{key}={each}").startswith(incomplete)]
    return [(each, does) for each, does in described_keys().items() if each.startswith(incomplete)]


T = TypeVar("T")

SCENARIO_HELP = "a YAML file, or the name of a shipped scenario"
ScenarioArgument = Annotated[str, Argument(help=SCENARIO_HELP, autocompletion=_shipped_names)]
Overrides = Annotated[
    list[str],
    Option(
        "--set",
        help="key.path=value, as often as needed",
        default_factory=list,
        show_default=False,
        autocompletion=complete_key,
    ),
]
Format = Annotated[
    Literal["table", "csv", "latex", "markdown", "json"],
    Option("--format", help="csv: a line for each run; latex: a tabular; all to standard output"),
]


def _checked_formats(text: str) -> str:
    """Check the value of ``--pictures``.

    Raises:
        InputError: another word than png, pdf, svg or paper.
    """
    if not set(text.split(",")) <= {"png", "pdf", "svg", "paper"}:
        raise InputError(f"--pictures {text}: expected: png, pdf, svg or paper, with commas between them")
    return text


Pictures = Annotated[
    str, Option(help="formats, e.g. pdf,svg; paper: for a column, without titles", callback=_checked_formats)
]
AsJson = Annotated[bool, Option("--json", help="one JSON object on standard output")]


def load_scenario(path: str, overrides: list[str]) -> "Scenario":
    """Load the scenario of a command line.

    Args:
        path: a YAML file, or the name of a shipped scenario.
        overrides: of the form ``key.path=value``.

    Raises:
        ScenarioError: it is not there, or a key or value is wrong.
    """
    from fedamp.federation.reader import load

    return load(path, overrides)


def patiently(compute: Callable[..., T], *arguments: Any) -> T:
    """Return what a function of the accountant returns, and tell a person who waits for it more than two seconds.

    Args:
        compute: the function.
        arguments: of the function.
    """
    from fedamp.report.progress import patience

    with patience(err):
        return compute(*arguments)


def print_answer(answer: dict[str, Any], as_json: bool, table: Callable[[dict[str, Any]], RenderableType]) -> None:
    """Print an answer as JSON or as its table.

    Args:
        answer: a JSON object.
        as_json: as JSON.
        table: makes the table of an answer.
    """
    print_json(answer) if as_json else out.print(table(harmless(answer)))


def print_published(found: "Published", format_: str, plots: list[str]) -> None:
    """Print several runs side by side, in one of the formats of ``--format``.

    Args:
        found: the runs.
        format_: ``table``, ``json``, or for other programs ``csv`` (a line for each run), ``latex`` (a tabular)
            and ``markdown``.
        plots: files of pictures, which are named: in the answer, or beside the text for other programs.
    """
    match format_:
        case "json":
            print_json(found.to_json() | {"plots": plots})
        case "csv" | "latex" | "markdown":
            print(getattr(found, format_)(), end="")
            print_paths("picture", *plots, to=err)  # the output is for another program
        case _:
            out.print(found.table())
            print_paths("picture", *plots)


def print_json(value: Any) -> None:
    """Print one JSON object, indented; NaN and infinity are refused, because JSON has none."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_paths(name: str, *paths: Path | str, unless: bool = False, to: Console = out) -> None:
    """Print a line for each path, unbroken at any width, so that it can be copied.

    Args:
        name: before each path.
        paths: to print, without letters that could control a terminal.
        unless: True prints nothing.
        to: the output, or the one for errors.
    """
    for path in () if unless else paths:
        to.print(f"{name}: {printable(path)}", highlight=False, markup=False, soft_wrap=True)


def caution(words: str) -> None:
    """Print a caution on standard error."""
    print(f"caution: {printable(words)}", file=sys.stderr)


def caution_about(scenario: "Scenario") -> None:
    """Print a caution about a delta that is too large for the number of units.

    Args:
        scenario: whose units are counted; that may read a column of its data.
    """
    from fedamp.federation.plan import privacy_units, weak_delta

    if words := weak_delta(scenario.privacy.delta, privacy_units(scenario)):
        caution(words)


def print_cautions(checks: "Sequence[Check]", about: str = "") -> None:
    """Print a line about checks that call for caution, if there are any.

    Args:
        checks: with their verdicts.
        about: begins the line.
    """
    from fedamp.runs.verification import complaint

    if words := complaint(checks, "caution"):
        caution(f"{about}{words}")


def judge(checks: "Sequence[Check]", about: str = "") -> None:
    """Print a line about checks that call for caution, and fail if a check has failed.

    Args:
        checks: with their verdicts.
        about: begins the lines.

    Raises:
        FedampError: a check has failed; the exit status is then 1.
    """
    from fedamp.runs.verification import complaint

    print_cautions(checks, about)
    if wrong := complaint(checks):
        raise FedampError(f"{about}{wrong}")


def exit_with(app: Typer) -> NoReturn:
    """Run the command of the command line, and exit with its status.

    Args:
        app: with all commands.
    """
    os.environ |= QUIET | os.environ
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show a letter shows a question mark
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        # A custom model may crash this process where it is built or evaluated: name the line.
        faulthandler.enable(sys.__stderr__, all_threads=False)
    with warnings.catch_warnings(), seldom_collected(), _ended_by_sigterm():
        warnings.showwarning = _show_warning
        try:
            status = _status_of(app)
        except KeyboardInterrupt:  # a second Ctrl-C, while the first one was handled
            status = Interrupted.exit_code
    sys.exit(status)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Have SIGTERM end a command as Ctrl-C does, with its own status: nothing is left half, whenever it comes.

    While rounds are played, :mod:`fedamp.server.loop` has a handler of its own.
    """

    def handle(number: int, _: FrameType | None) -> None:
        Interrupted.exit_code = 128 + number
        raise KeyboardInterrupt

    Interrupted.exit_code = 128 + signal.SIGINT
    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _status_of(app: Typer) -> int:
    """Run a command, print one line if it fails, and return its exit status.

    The traceback of an unexpected error goes to a file, whose name is in the line. A full disk, a wrong path and a
    missing package are the user's to mend, so their status is 2.

    Args:
        app: with all commands.
    """
    try:
        result = app(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "fedamp"
        instead = REMOVED.get(getattr(error, "option_name", ""), f"see {command} --help")
        return _print_failure(f"error: {error.format_message().rstrip('.')}; {instead}", error.exit_code)
    except FedampError as error:
        return _print_failure(f"{error.kind}: {error}", error.exit_code)
    except BrokenPipeError:  # Python would complain again when it closes standard output
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 1
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (words := missing(error.name)):
            return _print_failure(f"error: {words}", InputError.exit_code)
        if isinstance(error, OSError) and (error.errno in FULL or (error.filename and error.errno in WRONG_PATH)):
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (as above)
            return _print_failure(
                f"error: {error.filename or 'standard output'}: {error.strerror}", InputError.exit_code
            )
        reason = next(iter(str(error).splitlines()), "")
        with tempfile.NamedTemporaryFile("w", prefix="fedamp-", suffix=".log", delete=False) as file:
            file.write(traceback.format_exc())
        return _print_failure(f"failed: {type(error).__name__}: {reason}; traceback in {file.name}", 1)
    if result == 128 + signal.SIGINT:  # typer's answer to a KeyboardInterrupt before a run begins
        return _print_failure("interrupted", Interrupted.exit_code)
    return result if isinstance(result, int) else 0


def _print_failure(message: str, exit_code: int) -> int:
    """Print a line on standard error, without control characters, and return the exit status."""
    print(printable(message), file=sys.stderr)
    return exit_code


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    """Print a warning as one line; for warnings of other packages, with their place."""
    caution(
        str(message)
        if category in (UserWarning, LoggedWarning)
        else f"{message} ({category.__name__}, {filename}:{lineno})"
    )
