"""Define ``fedamp-accounting check``: it tells what the numbers of somebody's code are worth.

It needs the accountant alone. :mod:`fedamp.accounting.verify` has the checks of numbers, and
:mod:`fedamp.extensions.foreign.tool_files` reads the files.
"""

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args, get_type_hints

from fedamp.accounting.verify import Check, Claims
from fedamp.extensions.foreign.tool_files import check_file


def check(asked: Sequence[str]) -> list[Check]:
    """Check claimed numbers, given as options or in a file of another tool.

    Args:
        asked: words of the command line after ``check``.

    Raises:
        ValueError: a number makes no sense on its own, or the file cannot be read.
    """
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
