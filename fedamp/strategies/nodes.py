"""Nodes of a federation: the units that each may claim, and their replies as text."""

import re
from collections.abc import Callable, Iterable
from typing import Literal

from flwr.serverapp import Grid
from pydantic import ValidationError

from fedamp.base.ids import Ranges, ranges
from fedamp.base.text import printable
from fedamp.engines import flower
from fedamp.errors import DeploymentError
from fedamp.federation.running import Federation

LONGEST, NAMES_SHOWN = 300, 8  # letters of a node's text, and names in a list of them

Permit = Ranges | Literal["all"]
"""The units that a node may claim. With ``all`` it may also say that it can train any unit."""


def permits(federation: Federation, grid: Grid, units: int) -> Callable[[str], Permit]:
    """The permit of a node by its name: given by the operator in a deployment, ``all`` in a simulation; empty: none.

    A node cannot choose its name: Flower's SuperLink checks every request against the public key that the operator
    registered with it. DeploymentError: ``federation.hosts`` is missing, or names units that do not exist.
    """
    if flower.is_simulated(grid):
        return lambda name: "all"
    asked = federation.hosts
    if asked is None:
        raise DeploymentError(
            "federation.hosts is missing: a deployment must say which node may speak for which units; expected: "
            f"their ids by the names of the registered nodes, such as {{site0: 0-{units - 1}}}, or trusted, to "
            "believe all that a registered node says"
        )
    if asked == "trusted":
        return lambda name: ((0, units - 1),)
    by_name: dict[str, Permit] = {name: "all" if text == "all" else ranges(text) for name, text in asked.items()}
    for name, permit in by_name.items():
        for _, last in () if permit == "all" else permit:
            if last >= units:
                raise DeploymentError(f"federation.hosts.{name}: there is no unit {last}; expected: 0-{units - 1}")
    return lambda name: by_name.get(name, ())


def in_one_line(said: object) -> str:
    """An error, or a node's text, as one printable line.

    Of a traceback the last error; Flower's ``<class 'ValueError'>:<'words'>`` becomes ``ValueError: words``.
    """
    if isinstance(said, ValidationError):
        first = said.errors()[0]
        said = f"{first['loc'][0]}: {first['msg']}, got {first['input']!r:.80}"
    text = str(said)
    errors = list(re.finditer(r"^(?:\w+\.)*\w*(?:Error|Exception): ", text, re.MULTILINE))
    if errors:  # Flower's own message is on the next line
        text = text[errors[-1].start() :].rstrip().removesuffix("'>")
    text = " ".join(text.split())
    text = re.sub(r"<class '(?:[^']*\.)?(\w+)'>:<'(.*)'>", r"\1: \2", text)
    return printable(text)[:LONGEST] or type(said).__name__


def unexpected(what: str, found: Iterable[str], expected: Iterable[str]) -> str:
    """The error for a reply with other names than expected, most likely from another client app."""
    answered, wanted = map(_listed, (found, expected))
    return f"it answered with {what} {answered}; expected {wanted}, as fedamp.client.app answers"


def _listed(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    return ", ".join(found[:NAMES_SHOWN]) + more if found else "(none)"
