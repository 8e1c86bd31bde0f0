"""``fedamp scenarios``: the shipped ones, and the JSON schema for editors."""

from pathlib import Path

from typer import Typer

from fedamp.cli.terminal import Overrides, ScenarioArgument, load_scenario, out, print_json
from fedamp.report import tables

CLIENTS_SHOWN = 10

app = Typer(help="The shipped scenarios, and the JSON schema for editors.", no_args_is_help=True)


@app.command("list")
def list_scenarios() -> None:
    """The shipped scenarios."""
    from fedamp.federation.reader import load, shipped_files

    out.print(tables.scenarios_table(map(load, shipped_files())))


@app.command()
def show(scenario: ScenarioArgument, overrides: Overrides) -> None:
    """A scenario with every default, and the partition of its data."""
    from fedamp import rng
    from fedamp.federation.losses import form_of

    loaded = load_scenario(scenario, overrides)
    print(loaded.to_yaml())
    form = form_of(loaded.client, loaded.model)
    dataset = loaded.data.load(rng.public_seed(loaded.seed, "data"), Path(), form)
    out.print(tables.partition_table(dataset.label_counts(CLIENTS_SHOWN)))


@app.command()
def schema() -> None:
    """The JSON schema of a scenario."""
    from fedamp.federation.reader import json_schema

    print_json(json_schema())
