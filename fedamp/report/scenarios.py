"""The shipped scenarios, and how a scenario's records fall."""

from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedamp import data, rng
from fedamp.scenario import Scenario, scenario_file

CLIENTS_SHOWN = 10
LABELS_SHOWN = 10  # as many as fit 80 columns


def scenarios_table() -> Table:
    """Every shipped scenario with its story."""
    table = Table("scenario", "story")
    for file in scenario_file.shipped_files():
        table.add_row(file.stem, scenario_file.load(file).description)
    return table


def partition_table(scenario: Scenario) -> RenderableType:
    """Label counts of the first clients, and a summary of all."""
    dataset = data.load(scenario.data, rng.public_seed(scenario.seed, "data"), Path())
    counts = dataset.label_counts(CLIENTS_SHOWN)
    summary = (
        f"{counts.num_records:,} training records of {counts.num_clients:,} clients "
        f"({counts.smallest} to {counts.largest} each, median {counts.median:g}); "
        f"{counts.test_records:,} public test records"
    )
    shown = min(counts.counts.shape[1], LABELS_SHOWN)
    more = counts.counts.shape[1] > shown
    labels = [str(label) for label in range(shown)] + ["others"] * more
    table = Table(box=box.SIMPLE)
    for heading in ("client", *labels, "records"):
        table.add_column(heading, justify="right", no_wrap=True)
    for client, row in zip(counts.clients, counts.counts, strict=True):
        cells = [*row[:shown], row[shown:].sum()] if more else row
        table.add_row(str(client), *(str(cell) if cell else "" for cell in cells), str(row.sum()))
    if counts.num_clients > len(counts.clients):
        table.add_row("...")
    return Group(Text(summary), Text("Records of every label, for the first clients:"), table)
