"""``fedamp scenarios``: the shipped ones, validation, and the JSON schema for editors."""

from pathlib import Path
from typing import Annotated

from typer import Option, Typer

from fedamp.base.text import printable
from fedamp.cli.terminal import Overrides, ScenarioArgument, caution, caution_about, load_scenario, out, print_json
from fedamp.report import tables

CLIENTS_SHOWN = 10

app = Typer(help="The shipped scenarios, validation, and the JSON schema for editors.", no_args_is_help=True)


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
def validate(
    scenario: ScenarioArgument,
    overrides: Overrides,
    import_model: Annotated[bool, Option("--import", help="run the code of a custom model or loss, to try it")] = False,
) -> None:
    """Check a scenario together with its data and model, without running it."""
    from fedamp.federation.losses import brings_code
    from fedamp.federation.plan import make_plan, privacy_units

    asked = load_scenario(scenario, overrides)
    foreign = brings_code(asked) and not import_model
    plan = make_plan(asked, privacy_units(asked))
    plan.check_budget()
    from fedamp.server.setup import prepare  # torch takes a while, and nothing above needs it

    prepared = None if foreign else prepare(asked)
    print(printable(f"{scenario}: valid; {plan.units} units, {plan.scenario.rounds} rounds"))
    if prepared and prepared.hint:
        caution(prepared.hint)
    if foreign:
        named = ", ".join(name for name in (asked.model.name, asked.client.loss) if ":" in name)
        caution(f"{named} was not tried, because that runs its code; add --import to try it")
    caution_about(asked)


@app.command()
def schema() -> None:
    """The JSON schema of a scenario."""
    from fedamp.federation.reader import json_schema

    print_json(json_schema())
