"""``fedamp-accounting``: verify a released bundle without the packages that train; extensions add commands to it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedamp.accounting.verify import UNCHECKED, Check, verify_bundle, worst_verdict
from fedamp.base.text import printable
from fedamp.extension import keys, offered


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each check, and exit.

    The exit status is 0 if all checks pass, some perhaps with caution, and 1 if a check fails. It is 2 if something was
    not understood, such as a file, a call in it, or the question.

    Args:
        arguments: those of the command line; default: of this process.

    Raises:
        SystemExit: always.
    """
    asked = sys.argv[1:] if arguments is None else list(arguments)
    try:
        command = next(offered("accountant_commands", asked[0]), None) if asked else None
        checks = command(asked[1:]) if command else _checks_of_bundle(asked)
    except ValueError as error:
        print(f"error: {printable(error)}", file=sys.stderr)
        sys.exit(2)
    for check in checks:
        print(f"{check.verdict:8}{printable(f'{check.name}: {check.found}')}")
    sys.exit({"fail": 1, "unknown": 2}.get(worst_verdict(checks), 0))


def _checks_of_bundle(asked: Sequence[str]) -> list[Check]:
    """Read the arguments of a bundle, and verify it."""
    parser = argparse.ArgumentParser(
        prog="fedamp-accounting",
        description="Verify released bundles, and check numbers of other programs, without torch and Flower.",
        epilog="Exit status: 0 all checks pass, 1 a check fails, 2 a file or an option that cannot be read.",
    )
    verify = parser.add_argument_group("verify a release", "fedamp-accounting BUNDLE [--key KEY]")
    verify.add_argument("bundle", metavar="BUNDLE", type=Path, help="folder or zip that fedamp release wrote")
    verify.add_argument(
        "--key", help="the server's public key (64 hexadecimal digits), received through a trusted channel"
    )
    for name in keys("accountant_commands"):
        parser.add_argument_group(f"{name} numbers", f"fedamp-accounting {name} [FILE] [OPTIONS]; {name} --help")
    given = parser.parse_args(asked)
    unplanned = f"not planned again here: {UNCHECKED} were not checked; fedamp verify does"
    return [*verify_bundle(given.bundle, given.key), Check("scenario", "caution", unplanned)]


if __name__ == "__main__":
    main()
