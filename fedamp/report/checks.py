"""Checks as a person reads them."""

from collections.abc import Sequence

from rich.table import Table

from fedamp.runs.checks import Check


def checks_table(title: str, checks: Sequence[Check]) -> Table:
    """A row a check."""
    table = Table(title=title, show_header=False)
    for check in checks:
        table.add_row("[green]fine[/]" if check.fine else "[red]wrong[/]", check.name, check.found)
    return table
