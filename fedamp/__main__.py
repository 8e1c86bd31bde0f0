"""The commands, as ``fedamp`` and ``python -m fedamp``; without the extra ``train``, only ``verify`` of a bundle."""

import sys

from fedamp.base.start import leave_process, seldom_collected
from fedamp.errors import InputError, missing


def main() -> None:
    """Run the command of the command line, and exit with its status."""
    try:
        with seldom_collected():
            from fedamp.cli.commands import main as with_all_commands
    except ModuleNotFoundError as error:
        _accountant_alone(error)
    else:
        with_all_commands()


def run_process() -> None:
    """Run the command as :func:`main` does, in a process of its own, which ends sooner."""
    try:
        main()
    except SystemExit as end:
        leave_process(end)
        raise


def _accountant_alone(error: ModuleNotFoundError) -> None:
    if missing(error.name) is None:
        raise error
    from fedamp.accounting.__main__ import main as verify
    from fedamp.base.version import version

    match sys.argv[1:]:
        case ["verify", *arguments]:
            verify(arguments)
        case ["--version"]:
            print(f"fedamp {version()}")
        case arguments:
            print(f"error: {' '.join(['fedamp', *arguments[:1]])}: {missing(error.name)}", file=sys.stderr)
            sys.exit(InputError.exit_code)


if __name__ == "__main__":  # the processes of a sweep import this module too
    try:
        run_process()
    finally:
        # A Ctrl-C that came while code in a string was run, as dataclasses and numba do, is remembered until the next
        # such code; a module run with -m would end by the signal whatever its exit status.
        exec("")
