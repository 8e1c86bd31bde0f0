"""``fedamp-accounting``: verify a released bundle, or check the numbers of somebody's code, without what trains."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args, get_type_hints

from fedamp.accounting.verify import UNCHECKED, Check, Claims, verify_bundle, worst
from fedamp.base.text import printable
from fedamp.extensions.foreign.interop import check_file


def main(arguments: Sequence[str] | None = None) -> None:
    """A line for each check; exit status 1 if one fails, else 2 if something was not understood, as a file, a call in
    it, or the question.
    """
    asked = sys.argv[1:] if arguments is None else list(arguments)
    try:
        checks = _claims(asked[1:]) if asked[:1] == ["check"] else _bundle(asked)
    except ValueError as error:
        print(f"error: {printable(error)}", file=sys.stderr)
        sys.exit(2)
    for check in checks:
        print(f"{check.verdict:8}{printable(f'{check.name}: {check.found}')}")
    sys.exit({"fail": 1, "unknown": 2}.get(worst(checks), 0))


def _bundle(asked: Sequence[str]) -> list[Check]:
    parser = argparse.ArgumentParser(
        prog="fedamp-accounting",
        description="Verify a released bundle of fedamp.",
        epilog="fedamp-accounting check --help: check the numbers of somebody's code",
    )
    parser.add_argument("bundle", type=Path, help="folder or zip that fedamp release wrote")
    parser.add_argument("--key", help="public key of the server, 64 hexadecimal digits, as it was told elsewhere")
    given = parser.parse_args(asked)
    unplanned = f"not planned again here: {UNCHECKED} were not checked; fedamp verify does"
    return [*verify_bundle(given.bundle, given.key), Check("scenario", "caution", unplanned)]


def _claims(asked: Sequence[str]) -> list[Check]:
    parser = argparse.ArgumentParser(
        prog="fedamp-accounting check",
        description="What epsilon the numbers of somebody's code are worth, and which of them contradict each other. "
        "A file of Flower, NVFlare, Opacus, opake, pfl or jax_privacy may come first; what it lacks are options. "
        "Exit status: 0 nothing is wrong, 1 something is, 2 not understood.",
        epilog=Claims.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    from_file = bool(asked) and not asked[0].startswith("-")
    if from_file:
        parser.add_argument(
            "file", type=Path, help="Python, NVFlare's JSON, or pyproject.toml: of Flower, NVFlare, ..."
        )
    types = get_type_hints(Claims)
    for each in fields(Claims):
        kind = next(iter(get_args(types[each.name])), types[each.name])
        flag = f"--{each.name.replace('_', '-')}"
        parser.add_argument(
            flag,
            type=kind,
            metavar=each.name,
            required=each.default is MISSING and not from_file,
            default=argparse.SUPPRESS,
        )
    said = vars(parser.parse_args(asked))
    return check_file(said.pop("file"), said) if from_file else Claims(**said).checks()


if __name__ == "__main__":
    main()
