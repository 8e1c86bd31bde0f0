"""Define ``fedamp-accounting check``: it computes epsilon from the numbers of a program.

It needs the accountant alone. :mod:`fedamp.extensions.foreign.claims` has the checks of numbers, and
:mod:`fedamp.extensions.foreign.tool_files` reads the files.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_args, get_type_hints

from fedamp.accounting.verify import Check
from fedamp.extensions.foreign.claims import Claims
from fedamp.extensions.foreign.tool_files import check_file

GROUPS = {
    "noise": ("noise_multiplier", "noise", "clip", "sensitivity", "divided_by"),
    "participation": ("rounds", "rate", "k", "cohort", "people"),
    "claim": ("epsilon", "delta", "relation"),
}
"""The options of ``check``, which are the fields of :class:`Claims`, as its help groups them."""


def check(asked: Sequence[str]) -> list[Check]:
    """Check claimed numbers, given as options or in a file of another tool.

    Args:
        asked: words of the command line after ``check``.

    Raises:
        ValueError: a number makes no sense on its own, or the file cannot be read.
    """
    parser = argparse.ArgumentParser(
        prog="fedamp-accounting check",
        description="Compute epsilon from numbers of a program, and find contradictions between them. A file of "
        "Flower, NVFlare, Opacus, opake, pfl or jax_privacy may come first; options give the numbers that it lacks.",
        epilog="Exit status: 0 no contradiction, 1 a contradiction, 2 a number or file that cannot be read.",
    )
    from_file = bool(asked) and not asked[0].startswith("-")
    if from_file or not set(asked).isdisjoint({"-h", "--help"}):
        parser.add_argument(
            "file",
            type=Path,
            nargs=None if from_file else "?",
            help="a Python file, NVFlare's JSON, or pyproject.toml; it is read, never executed",
        )
    types, helps = (
        get_type_hints(Claims),
        dict(re.findall(r"^        (\w+): (.+)$", Claims.__doc__ or "", re.MULTILINE)),
    )
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            needed = name == "rounds" and not from_file
            group.add_argument(
                f"--{name.replace('_', '-')}",
                type=next(iter(get_args(types[name])), types[name]),
                metavar="TEXT" if types[name] is str else "NUMBER",
                required=needed,
                default=argparse.SUPPRESS,
                help=helps[name].replace("``", "").replace("%", "%%") + (" (required)" if needed else ""),
            )
    said = vars(parser.parse_args(asked))
    return check_file(said.pop("file"), said) if from_file else Claims(**said).checks()
