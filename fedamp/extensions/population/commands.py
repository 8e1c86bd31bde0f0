"""Define ``fedamp population``: its commands tell what people have paid over all uses of their data."""

import csv
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from fedamp.base.reading import LARGEST, open_regular
from fedamp.base.start import Later
from fedamp.cli import terminal
from fedamp.cli.terminal import AsJson, load_scenario, print_answer
from fedamp.errors import InputError

if TYPE_CHECKING:
    from fedamp.report import tables
else:
    tables = Later("fedamp.report.tables")  # the plan and the accountant come with it

app = Typer(no_args_is_help=True, help="Manage a privacy budget for each person over all runs.")
PopulationFile = Annotated[Path, Argument(metavar="FILE", help="the population's file")]
ClientsOption = Annotated[str | None, Option("--data", help="a scenario: its clients are people")]
PeopleOption = Annotated[
    Path | None, Option("--people", help="csv: a line for each unit, and the person if it is another")
]


def _read_people(data: str | None, people: Path | None) -> list[tuple[str, str]]:
    """Read the units and their people, from a scenario's data or from a csv file."""
    if (data is None) == (people is None):
        raise InputError("whom the population has is not clear; expected: --data SCENARIO, or --people FILE")
    if people is None:
        return [(name, name) for name in load_scenario(str(data), []).data.unit_names(Path())]
    try:
        with TextIOWrapper(open_regular(people, LARGEST), "utf-8-sig", newline="") as file:  # Excel begins with a mark
            rows = list(filter(None, csv.reader(file, strict=True, skipinitialspace=True)))
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{people}: cannot be read ({error})") from None
    for number, row in enumerate(rows, start=1):
        if len(row) > 2:
            raise InputError(f"{people}: line {number} has {len(row)} columns; expected: a unit, and its person")
    return [(row[0], row[-1]) for row in rows]


@app.command()
def new(
    file: PopulationFile,
    epsilon: Annotated[float, Option(help="budget of each person")],
    delta: Annotated[float, Option(help="of the same budget")],
    data: ClientsOption = None,
    people: PeopleOption = None,
) -> None:
    """Make a population: people, and what all uses of their data may cost each of them."""
    from fedamp.extensions.population.store import Population

    made = Population.new(file, _read_people(data, people), epsilon, delta).read()
    terminal.out.print(f"{len(made.epsilons):,} people; head {made.head}", soft_wrap=True)


@app.command()
def add(
    file: PopulationFile,
    epsilon: Annotated[float, Option(help="budget of each new person")],
    data: ClientsOption = None,
    people: PeopleOption = None,
) -> None:
    """Add units and people; people who are known keep their budget."""
    from fedamp.extensions.population.store import Population

    (population := Population(file)).add(_read_people(data, people), epsilon)
    contents = population.read()
    terminal.out.print(f"{len(contents.epsilons):,} people; head {contents.head}", soft_wrap=True)


@app.command()
def show(file: PopulationFile, as_json: AsJson = False) -> None:
    """Show what is spent by the person who has spent the most, and what is left."""
    from fedamp.extensions.population.account import standing
    from fedamp.extensions.population.store import Population

    contents = Population(file).read()
    answer = terminal.patiently(standing, contents)
    states = ", ".join(f"{number} {state}" for state, number in answer["uses"].items() if number) or "none"
    shown = {
        key.removesuffix("_upper").replace("_", " "): None if value is None else tables.text(value, key)
        for key, value in (answer | {"uses": states}).items()
    }
    print_answer(answer, as_json, lambda _: tables.facts(None, shown))


@app.command()
def history(
    file: PopulationFile, person: Annotated[str, Argument(help="the person's id")], as_json: AsJson = False
) -> None:
    """List the uses that a person was charged."""
    from fedamp.extensions.population.store import Population, percent

    population = Population(file)
    number, contents = population.person(person), population.read()
    uses = [
        {
            "use": use.id,
            "run": use.name,
            "state": use.state,
            "units": charge.units,
            "share": percent(charge.share, up=True),
        }
        for use, charge in contents.series(number)
    ]
    columns = {name: name for name in ("use", "run", "state", "units", "share")}
    left = percent(max(1 - float(contents.spent()[number]), 0.0))
    answer = {"budget_epsilon": float(contents.epsilons[number]), "delta": contents.delta, "left": left, "uses": uses}
    print_answer(answer, as_json, lambda found: tables.listing(found["uses"], columns, f"{found['left']} left"))


@app.command()
def verify(
    file: PopulationFile,
    runs: Annotated[list[Path] | None, Argument(help="run folders, released folders or zips")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that the file is as fedamp left it, and knows these runs."""
    from fedamp.extensions.population.account import known_to
    from fedamp.extensions.population.store import Population
    from fedamp.runs.total import check_independent, ledger_of
    from fedamp.runs.verification import checks_json

    population = Population(file)
    contents = population.read()
    ledgers = [(run, ledger_of(run)) for run in runs or ()]
    check_independent(ledgers)
    checks = [known_to(population, run, ledger.get("population")) for run, ledger in ledgers]
    answer = checks_json(checks) | {"head": contents.head, "people": len(contents.epsilons)}
    print_answer(answer, as_json, lambda found: tables.checks_table(f"population, head {found['head']}", found))
    terminal.judge(checks, f"{file}: ")
