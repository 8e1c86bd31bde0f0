"""Define the command ``fedamp audit``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.progress import Progress
from typer import Argument, Option

from fedamp.cli import terminal
from fedamp.cli.terminal import AsJson, Overrides, load_scenario, print_answer
from fedamp.errors import FedampError, InputError


def audit(
    scenarios: Annotated[
        list[str],
        Argument(metavar="SCENARIO|RUN...", help="a scenario; or a run with canaries, or a series"),
    ],
    overrides: Overrides,
    repetitions: Annotated[int, Option(help="trials with the canary, and trials without it")] = 500,
    rounds: Annotated[int, Option(help="longer scenarios are shortened to this number")] = 8,
    as_json: AsJson = False,
) -> None:
    """Attack the real code to get a lower bound on epsilon; compare it with the accountant's upper bound.

    A scenario is played many times, with and without a canary.
    A run with privacy.canaries is audited once, from its released models.
    Exit status: 0 if no leak above the charge is found, 1 if one is.
    """
    from fedamp.extensions.audit.attack import audit
    from fedamp.extensions.audit.canaries import audit_runs
    from fedamp.extensions.audit.tables import audit_table

    if all(Path(each).is_dir() for each in scenarios):
        found = audit_runs([Path(each) for each in scenarios])
    elif len(scenarios) > 1:
        raise InputError(f"{scenarios[1]}: a second scenario; expected: one scenario, or folders of runs")
    else:
        with audit_progress(terminal.err) as progress:
            found = audit(load_scenario(scenarios[0], overrides), repetitions, rounds, progress)
    print_answer(found.to_json(), as_json, audit_table)
    if found.refuted:
        raise FedampError(found.refutation())


@contextmanager
def audit_progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show a bar that disappears at the end; yields what moves it: finished repetitions, and their number."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("repetitions", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
