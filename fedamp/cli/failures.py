"""One line for every error, and an exit status that tells."""

import os
import sys
import tempfile
import traceback

import click
from typer import Typer

from fedamp.base.text import printable
from fedamp.errors import FedampError, Interrupted


def status_of(app: Typer) -> int:
    """Run the command that was asked for; returns the exit status."""
    try:
        result = app(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "fedamp"
        return _fail(f"error: {error.format_message().rstrip('.')}; see {command} --help", error.exit_code)
    except FedampError as error:
        return _fail(f"{error.kind}: {error}", error.exit_code)
    except BrokenPipeError:
        # The reader of a pipe has seen enough; Python would complain once more when it closes standard output.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 1
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        return _fail(f"failed: {type(error).__name__}: {reason}; traceback in {_keep_traceback()}", 1)
    if result == Interrupted.exit_code:  # how typer says that Ctrl-C came where no run had begun
        return _fail("interrupted", result)
    return result if isinstance(result, int) else 0


def _fail(message: str, exit_code: int) -> int:
    print(printable(message), file=sys.stderr)
    return exit_code


def _keep_traceback() -> str:
    with tempfile.NamedTemporaryFile("w", prefix="fedamp-", suffix=".log", delete=False) as file:
        file.write(traceback.format_exc())
    return file.name
