"""What every command reads and prints."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console, RenderableType
from typer import Argument, Option

from fedamp.base.text import harmless, printable
from fedamp.errors import FedampError

if TYPE_CHECKING:
    from fedamp.federation.scenario import Scenario
    from fedamp.runs.checks import Check

# NO_COLOR: no italics nor bold either, which rich would keep.
PLAIN: Any = {"color_system": None} if os.environ.get("NO_COLOR") else {}
out, err = Console(**PLAIN), Console(stderr=True, **PLAIN)


def _shipped(incomplete: str) -> list[str]:
    from fedamp.federation.reader import shipped_files

    return [file.stem for file in shipped_files() if file.stem.startswith(incomplete)]


ScenarioArgument = Annotated[
    str, Argument(help="a YAML file, or the name of a shipped scenario", autocompletion=_shipped)
]
Overrides = Annotated[
    list[str], Option("--set", help="key.path=value, as often as needed", default_factory=list, show_default=False)
]
AsJson = Annotated[bool, Option("--json", help="one JSON object on standard output")]


def load_scenario(path: str, overrides: list[str]) -> "Scenario":
    """The scenario that a person named."""
    from fedamp.federation.reader import load

    return load(path, overrides)


def print_answer(answer: dict[str, Any], as_json: bool, table: Callable[[dict[str, Any]], RenderableType]) -> None:
    """An answer as JSON or as its table."""
    print_json(answer) if as_json else out.print(table(harmless(answer)))


def judge(checks: "Sequence[Check]", about: str = "") -> None:
    """Say on a line of its own what calls for caution; end with exit status 1 where anything is wrong."""
    from fedamp.runs.checks import complaint

    if words := complaint(checks, "caution"):
        caution(f"{about}{words}")
    if wrong := complaint(checks):
        raise FedampError(f"{about}{wrong}")


def caution(words: str) -> None:
    """A line of its own, beside the answer."""
    print(f"caution: {printable(words)}", file=sys.stderr)


def caution_as_warned(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    """What Python does with a warning: one line, and for those of others where it comes from."""
    caution(str(message) if category is UserWarning else f"{message} ({category.__name__}, {filename}:{lineno})")


def caution_about(scenario: "Scenario") -> None:
    """Say what is weak about a scenario's delta."""
    from fedamp.federation.plan import privacy_units, weakness

    if words := weakness(scenario.privacy.delta, privacy_units(scenario)):
        caution(words)


def print_json(value: Any) -> None:
    """One object, indented."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_line(value: Any) -> None:
    """One object on a line of its own, for what reads line by line."""
    print(json.dumps(value))


def print_path(name: str, path: Path | str) -> None:
    """Unbroken at any width, so that it can be copied."""
    out.print(f"{name}: {printable(path)}", highlight=False, markup=False, soft_wrap=True)
