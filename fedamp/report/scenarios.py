"""The shipped scenarios, and how a scenario's records fall."""

from pathlib import Path

from rich.table import Table

from fedamp import data, rng, scenario_file
from fedamp.scenario import Scenario

CLIENTS_SHOWN = 10


def scenarios_table() -> Table:
    """Every shipped scenario with its story."""
    table = Table("scenario", "story")
    for file in scenario_file.shipped_files():
        table.add_row(file.stem, scenario_file.load(file).description)
    return table


def partition_table(scenario: Scenario) -> Table:
    """Label counts of the first clients, and a summary of all."""
    dataset = data.load(scenario.data, rng.public_seed(scenario.seed, "data"), Path())
    counts = dataset.label_counts(CLIENTS_SHOWN)
    title = (
        f"{counts.num_records:,} training records of {counts.num_clients:,} clients "
        f"({counts.smallest} to {counts.largest} each, median {counts.median:g}); {counts.test_records:,} test records"
    )
    table = Table("client", *(f"label {label}" for label in range(counts.counts.shape[1])), "records", title=title)
    for client, row in zip(counts.clients, counts.counts, strict=True):
        table.add_row(str(client), *(str(count) if count else "" for count in row), str(row.sum()))
    if counts.num_clients > len(counts.clients):
        table.add_row("...")
    return table
