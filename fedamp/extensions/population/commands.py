"""Define ``fedamp population``: its commands tell what people have paid over all uses of their data."""

import csv
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option, Typer

from fedamp.base.reading import LARGEST, open_regular
from fedamp.base.start import Later
from fedamp.cli import terminal
from fedamp.cli.terminal import AsJson, load_scenario, print_answer, print_paths
from fedamp.errors import InputError, needs_extras

if TYPE_CHECKING:
    from fedamp.extensions.population.store import Population
    from fedamp.report import tables
else:
    tables = Later("fedamp.report.tables")  # the plan and the accountant come with it

app = Typer(no_args_is_help=True, help="Manage a privacy budget for each person over all runs.")
PopulationFile = Annotated[Path, Argument(metavar="FILE", help="the population's file")]
PersonId = Annotated[str, Argument(help="the person's id")]
LanguageOption = Annotated[Literal["en", "de"], Option(help="of fedamp's text")]
TemplateOption = Annotated[Path | None, Option(help="your own text; made with fedamp's text to be edited")]
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


def _show_people(population: "Population", people: list[tuple[str, str]]) -> None:
    """Say how many people there are now, and list ids among the new ones that may be one person."""
    from fedamp.extensions.population.spelling import in_short

    contents = population.read()
    terminal.out.print(f"{contents.people:,} people; head {contents.head}", soft_wrap=True)
    if found := population.alike(person for _, person in people):
        terminal.caution(in_short(found))


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

    rows = _read_people(data, people)
    _show_people(Population.new(file, rows, epsilon, delta), rows)


@app.command()
def add(
    file: PopulationFile,
    epsilon: Annotated[float, Option(help="budget of each new person")],
    data: ClientsOption = None,
    people: PeopleOption = None,
) -> None:
    """Add units and people; people who are known keep their budget."""
    from fedamp.extensions.population.store import Population

    (population := Population(file)).add(rows := _read_people(data, people), epsilon)
    _show_people(population, rows)


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
    file: PopulationFile,
    person: PersonId,
    out_folder: Annotated[Path | None, Option("--out", help="write a letter to the person into this folder")] = None,
    language: LanguageOption = "en",
    template: TemplateOption = None,
    as_json: AsJson = False,
) -> None:
    """List the uses that a person was charged, with date, purpose, models and cost.

    With --out, write the same as a letter (HTML and PDF).
    Dates are those of this machine's clock. Nothing is decided by them.
    """
    from fedamp.extensions.population.history import history_of
    from fedamp.extensions.population.store import Population

    population = Population(file)
    number, contents = population.person(person), population.read()
    answer = terminal.patiently(history_of, contents, number)
    columns = {
        name: name for name in ("date", "run", "purpose", "state", "units", "share", "epsilon", "epsilon_so_far")
    }
    title = f"{answer['left']} left" + (f"; the person left on {answer['left_on'][:10]}" if answer["left_on"] else "")
    print_answer(answer, as_json, lambda found: tables.listing(found["uses"], columns, title))
    if out_folder is not None:
        with needs_extras():
            from fedamp.extensions.population import papers
        text = papers.filled(papers.template_of("history", language, template), answer | {"person": person})
        print_paths("letter", *papers.write_both(text, out_folder, "history", language), unless=as_json)


@app.command()
def alike(
    file: PopulationFile, data: ClientsOption = None, people: PeopleOption = None, as_json: AsJson = False
) -> None:
    """List ids that may be two spellings of one person: by case, width, accents, invisible characters, zeros.

    The file holds no ids, so give them again, with --data or --people.
    """
    from fedamp.extensions.population.store import Population

    found = Population(file).alike(person for _, person in _read_people(data, people))
    shown = [{"ids": ", ".join(map(repr, group))} for group in found]
    print_answer({"alike": found}, as_json, lambda _: tables.listing(shown, {"ids": "ids"}, f"groups: {len(found)}"))


@app.command()
def join(
    file: PopulationFile, person: PersonId, other: Annotated[str, Argument(help="another id of the person")]
) -> None:
    """Make one person of two. All uses are charged as to one person who took part in both.

    The person has the smaller budget, and may have overspent it. This cannot be undone.
    """
    from fedamp.extensions.population.store import Population, percent

    population = Population(file)
    terminal.patiently(population.join, person, other)
    contents = population.read()
    left = percent(max(1 - float(contents.spent()[population.person(person)]), 0.0))
    terminal.out.print(f"one person, with {left} left; head {contents.head}", soft_wrap=True)


@app.command()
def leave(file: PopulationFile, person: PersonId) -> None:
    """Let a person leave: she is never drawn again, from the next round of every run on.

    What was reserved for her stays spent, and the draws of all others stay as they are.
    """
    from fedamp.extensions.population.store import Population

    (population := Population(file)).leave(person)
    terminal.out.print(f"has left; head {population.read().head}", soft_wrap=True)


@app.command()
def certificate(
    file: PopulationFile,
    person: PersonId,
    organisation: Annotated[str, Option(help="who signs")],
    contact: Annotated[str, Option(help="an address for questions and complaints")],
    out_folder: Annotated[Path, Option("--out", help="the new folder")] = Path("certificate"),
    key: Annotated[Path | None, Option(help="file of your Ed25519 key; default: the one of fedamp release")] = None,
    language: LanguageOption = "en",
    template: TemplateOption = None,
) -> None:
    """Write a signed certificate for a person who has left (JSON, HTML and PDF).

    It names the released models and what they can reveal about the person.
    Others check it with fedamp population verify FOLDER --key KEY.
    """
    with needs_extras():
        from fedamp.extensions.population.certificate import Signatory, write_certificate
    from fedamp.extensions.population.store import Population

    given = person, Signatory(organisation, contact, key), out_folder, language, template
    public_key = terminal.patiently(write_certificate, Population(file), *given)
    print_paths("certificate", out_folder)
    print_paths("signed by the key", public_key)


@app.command()
def recover(
    file: PopulationFile,
    runs: Annotated[list[Path] | None, Argument(help="all run folders, released folders or zips of its runs")] = None,
    data: ClientsOption = None,
    people: PeopleOption = None,
    no_other_use: Annotated[
        bool, Option(help="you state that these people's data was used for nothing else; else all of it is spent")
    ] = False,
) -> None:
    """Bring a backup up to date after a disk was lost or a machine changed, from the ledgers of its runs.

    The most that may have been spent is spent. Without a backup, give the people with --data or --people.
    """
    from fedamp.extensions.population.recovery import Recovery
    from fedamp.extensions.population.store import percent
    from fedamp.runs.folder import begun_runs
    from fedamp.runs.total import check_independent, ledger_of

    ledgers = [(run, ledger_of(run)) for run in begun_runs(runs or ())]
    check_independent(ledgers)
    rows = None if data is None and people is None else _read_people(data, people)
    contents = terminal.patiently(Recovery(ledgers, no_other_use).recover, file, rows)
    left = percent(max(1 - float(contents.spent().max()), 0.0))
    terminal.out.print(f"recovered; each person has at least {left} left; head {contents.head}", soft_wrap=True)
    terminal.caution(
        "ledgers do not name who has left; expected: fedamp population leave again, for each since the backup"
    )


@app.command()
def verify(
    file: Annotated[Path, Argument(metavar="FILE", help="the population's file, or the folder of a certificate")],
    runs: Annotated[list[Path] | None, Argument(help="run folders, released folders or zips")] = None,
    key: Annotated[str | None, Option(help="the public key, received through a trusted channel (certificates)")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that the file is as fedamp left it, and knows these runs.

    Of a certificate, check the signature and every number, and that it names the models of these runs.
    """
    from fedamp.extensions.population.account import known_to
    from fedamp.extensions.population.certificate import verify_certificate
    from fedamp.extensions.population.store import Population
    from fedamp.runs.folder import begun_runs
    from fedamp.runs.total import check_independent, ledger_of
    from fedamp.runs.verification import checks_json

    ledgers = [(run, ledger_of(run)) for run in begun_runs(runs or ())]
    if file.is_dir():
        checks = terminal.patiently(verify_certificate, file, ledgers, key)
        print_answer(checks_json(checks), as_json, lambda found: tables.checks_table("certificate", found))
        terminal.judge(checks, f"{file}: ")
        return
    population = Population(file)
    contents = population.read()
    check_independent(ledgers)
    checks = [known_to(population, run, ledger.get("population")) for run, ledger in ledgers]
    answer = checks_json(checks) | {"head": contents.head, "people": contents.people}
    print_answer(answer, as_json, lambda found: tables.checks_table(f"population, head {found['head']}", found))
    terminal.judge(checks, f"{file}: ")
