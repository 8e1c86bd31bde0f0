"""Define the commands. Each reads its arguments, calls one function, and prints.

A command imports everything heavy (torch, Flower, Ray, plots) itself, so that ``fedamp privacy`` answers at once. Its
docstring is its help, and the helps of options stand in its signature. Errors and exit statuses are not decided here:
:func:`fedamp.cli.terminal.exit_with` makes one line and a status of whatever a command raises.

``fedamp`` and ``python -m fedamp`` call :func:`main`. Extensions name their commands in ``Extension.commands``, and
each is imported when it is asked for (:class:`AllCommands`). Tables come from :mod:`fedamp.report.tables`, and each
``--json`` prints the same answer as JSON.
"""

import inspect
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from typer import Argument, Context, Exit, Option, Typer
from typer.core import TyperArgument, TyperGroup
from typer.main import get_group
from typer.utils import get_params_from_function

from fedamp.base.start import Later
from fedamp.base.text import printable
from fedamp.base.version import version
from fedamp.cli import first, terminal
from fedamp.cli.terminal import (
    AsJson,
    Format,
    Overrides,
    Pictures,
    ScenarioArgument,
    load_scenario,
    out,
    print_answer,
    print_paths,
    print_published,
)
from fedamp.errors import Interrupted, ModelError, UnwritableError, fails_alone
from fedamp.extension import extensions, named

if TYPE_CHECKING:
    from fedamp.report import tables
else:
    tables = Later("fedamp.report.tables")  # the plan and the accountant come with it

HELP = "Federated learning with differential privacy, amplified by the randomness that training has anyway."
SETTINGS = {"help_option_names": ["-h", "--help"]}
HELP_GROUPS = {  # the first hour's commands come first
    "Train": ("run", "new", "check", "explain"),
    "Account": ("privacy", "calibrate", "verify", "total"),
    "Compare": ("compare",),
    "Deploy": ("node", "superlink"),
    "People": (),
    "Project": ("scenarios",),
}
"""The core's commands in groups, in the order of the help. Those of extensions follow (``Extension.help_groups``)."""
OTHERS = "Commands of other packages"


class AllCommands(Mapping[str, click.Command]):
    """Hold the commands of the core, and those of extensions, each of which is imported when it is asked for.

    Click reads commands from a mapping, so nothing else of it is replaced. A help of one command thereby imports one
    extension, and only ``fedamp --help`` imports all.

    Args:
        core: commands by name.

    Raises:
        ValueError: two commands have one name.
    """

    def __init__(self, core: Mapping[str, click.Command]) -> None:
        self._core = core
        self._paths: dict[str, str] = {}
        for name, path in (item for each in extensions() for item in each.commands.items()):
            if name in core or name in self._paths:
                raise ValueError(f"fedamp has a command {name} already; expected: another name for an extension's")
            self._paths[name] = path
        own = {name: group for group, names in HELP_GROUPS.items() for name in names}
        told = {name: group for each in extensions() for name, group in each.help_groups.items()}
        self._groups = {name: (told | own).get(name, OTHERS) for name in (*own, *core, *self._paths)}
        order = list(dict.fromkeys([*HELP_GROUPS, *told.values(), OTHERS]))
        self._names = sorted(self._groups, key=lambda name: order.index(self._groups[name]))

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in the order of the help."""
        return iter(self._names)

    def __len__(self) -> int:
        """Count the commands."""
        return len(self._names)

    def __getitem__(self, name: str) -> click.Command:
        """Return a command; one of an extension is imported now."""
        if name in self._core:
            command = self._core[name]
        else:
            found, alone = named(self._paths[name]), Typer(rich_markup_mode="rich")
            alone.add_typer(found, name=name) if isinstance(found, Typer) else alone.command(name)(found)
            command = get_group(alone).commands[name]
        command.rich_help_panel = self._groups[name]  # type: ignore[attr-defined]
        return described(command)


def described(command: click.Command) -> click.Command:
    """Restore the helps of arguments: click from 8.4 on drops them under Typer 0.20, the newest that Flower allows.

    Args:
        command: changed in place, with all commands below it.
    """
    known = get_params_from_function(inspect.unwrap(command.callback)) if command.callback else {}
    for parameter in command.params:
        if isinstance(parameter, TyperArgument) and parameter.name in known:
            parameter.help = known[parameter.name].default.help
    for below in getattr(command, "commands", {}).values():
        described(below)
    return command


class CommandGroup(TyperGroup):
    """Group all commands under ``fedamp``; Typer makes it from the commands of the core."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Mapping[str, click.Command] = AllCommands(self.commands)  # type: ignore[assignment]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names in the order of the help."""
        return list(self.commands)


app = Typer(cls=CommandGroup, help=HELP, no_args_is_help=True, rich_markup_mode="rich", context_settings=SETTINGS)
app.pretty_exceptions_enable = app.suggest_commands = False  # click suggests commands itself
shipped = Typer(help="List and show the shipped scenarios; print the JSON schema for editors.", no_args_is_help=True)
app.add_typer(shipped, name="scenarios")
for command in (first.new, first.explain, first.check):
    app.command()(command)


@app.callback(invoke_without_command=True)
def root(show_version: Annotated[bool, Option("--version", help="print the version")] = False) -> None:
    """See ``fedamp COMMAND --help``."""
    if show_version:
        print(f"fedamp {version()}")
        raise Exit


@app.command()
def run(
    scenario: ScenarioArgument,
    overrides: Overrides,
    out_folder: Annotated[Path | None, Option("--out", help="run folder; default: a new one under runs")] = None,
    resume: Annotated[bool, Option("--resume", help="continue an interrupted run")] = False,
    engine: Annotated[str | None, Option(help="auto, ray or serial")] = None,
    known_seed: Annotated[
        bool | None, Option("--known-seed/--secret-seed", help="known: the noise follows from seed, for research only")
    ] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="print only the run folder")] = False,
    as_json: Annotated[bool, Option("--json", help="a line of JSON for every round, and for the summary")] = False,
    anyway: Annotated[bool, Option("--anyway", help="run even if fedamp check fails")] = False,
) -> None:
    """Run a federation and leave a run folder.

    The folder holds the model, the ledger, a line for each round, and pictures.
    Ctrl-C stops after the round. Then --resume continues the run.
    The noise is secret, unless the seed is known; a secret seed is deleted.

    Exit status: 0 at the end or at the budget, 130 after Ctrl-C, 2 if the
    scenario is wrong or cannot succeed, 1 if the run failed.
    """
    from fedamp.report.progress import JsonLines, RunProgress, Silence
    from fedamp.server.launch import how_to_resume, launch
    from fedamp.server.observers import Forewarning, Observers

    overrides += [] if engine is None else [f"engine.kind={engine}"]
    overrides += [] if known_seed is None else [f"known_seed={str(known_seed).lower()}"]
    scenario_ = load_scenario(scenario, overrides)
    progress = JsonLines() if as_json else Silence() if quiet else RunProgress(terminal.err)
    checks = Forewarning(None if resume else anyway)
    try:
        with progress.shown():
            folder = launch(scenario_, Observers([checks, progress]), out_folder, resume)
    except UnwritableError:
        if progress.summary and not (as_json or quiet):  # which may be in no file
            out.print(tables.run_table(progress.summary, progress.clipped))
        raise
    from fedamp.engines.flower import chatter_to
    from fedamp.runs.folder import RunFolder, read_summary
    from fedamp.runs.records import LedgerRecord

    with chatter_to(RunFolder(folder).log, "fedamp"):
        with fails_alone("drawing"):
            from fedamp.report.pictures import plot_run  # matplotlib takes a second

            plot_run(folder)
        summary, head = read_summary(folder), LedgerRecord.read(RunFolder(folder).ledger).head
        if as_json:
            print(json.dumps(summary.content() | {"folder": str(folder), "head": head}))
        elif quiet:
            print(printable(folder))
        else:
            with fails_alone("the table"):
                out.print(tables.run_table(summary, progress.clipped))
            if not summary.has_known_seed and not RunFolder(folder).seed.exists():
                out.print("deleted: the secret seed and the checkpoints, which only a resumption needs")
            print_paths("ledger's head", head or "none")
            print_paths("run folder", folder)
    if summary.stopped_because == "interrupted":
        raise Interrupted(how_to_resume(folder))


@app.command()
def privacy(
    scenario: ScenarioArgument,
    overrides: Overrides,
    groups: Annotated[bool, Option("--groups", help="also compute the cost for groups (may take seconds)")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the privacy cost of a scenario before it runs, with and without amplification.

    Nothing is trained. Each epsilon is a bound from above; JSON has both ends.
    """
    from fedamp.federation.cost import privacy_cost
    from fedamp.server.traffic import traffic

    scenario_ = load_scenario(scenario, overrides)
    answer = terminal.patiently(privacy_cost, scenario_, groups) | {"traffic": traffic(scenario_)}
    print_answer(answer, as_json, tables.privacy_table)
    terminal.caution_about(scenario_)


@app.command()
def calibrate(
    scenario: ScenarioArgument,
    overrides: Overrides,
    epsilon: Annotated[float, Option(help="budget")],
    as_json: AsJson = False,
) -> None:
    """Find the smallest noise multiplier within a privacy budget (rounded up).

    privacy.noise_multiplier: auto does the same in a run.
    """
    from fedamp.federation.cost import calibration

    answer = terminal.patiently(calibration, load_scenario(scenario, overrides), epsilon)
    print_answer(answer, as_json, tables.calibration_table)


@app.command()
def compare(
    runs: Annotated[list[Path], Argument(help="folders of runs, of merged models, and of sweeps")],
    out_folder: Annotated[Path, Option("--out", help="folder for the plots")] = Path("comparison"),
    format_: Format = "table",
    pictures: Pictures = "png",
    as_json: AsJson = False,
) -> None:
    """Compare several runs, or the runs of a sweep, in a table and plots.

    A caution says why numbers cannot be compared, as where deltas differ.
    """
    from fedamp.report.comparison import compare

    compared, plots = compare(runs), list[str]()
    try:
        formats = [each for each in pictures.split(",") if each != "paper"] or ["pdf"]
        plots = compared.save_pictures(out_folder, formats, "paper" in pictures.split(","))
    finally:  # the table is all there is where no picture can be written
        print_published(compared, "json" if as_json else format_, plots)


@app.command()
def total(
    runs: Annotated[
        list[Path],
        Argument(help="run folders, released folders or zips of the same people; and those of sweeps and of tuning"),
    ],
    delta: Annotated[float | None, Option(help="default: the largest of the runs")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the total privacy cost of several runs for a person who takes part in all of them.

    It has two answers. One holds for runs that were all fixed in advance. The
    other holds for runs that were chosen after the results of earlier ones.
    """
    from fedamp.runs.folder import begun_runs
    from fedamp.runs.total import total

    print_answer(terminal.patiently(total, begun_runs(runs), delta), as_json, tables.total_table)


@app.command()
def verify(
    run_: Annotated[Path, Argument(metavar="RUN", help="a run folder, a ledger.json, or a released folder or zip")],
    head: Annotated[str | None, Option(help="the ledger's head, printed at the end of the run")] = None,
    key: Annotated[
        str | None, Option(help="the server's public key, received through a trusted channel (releases only)")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute every number of a ledger, and find every change since the run or its release.

    With --head, the ledger must end as the run printed it.
    With --key, a release must be signed by the server's key.
    Exit status: 0 if no check fails, 1 if one does.
    """
    from fedamp.accounting.verify import is_bundle
    from fedamp.runs.verification import checks_json, verify_ledger, verify_release

    checks = verify_release(run_, key, head) if is_bundle(run_) else terminal.patiently(verify_ledger, run_, head)
    print_answer(checks_json(checks), as_json, lambda answer: tables.checks_table("ledger", answer))
    terminal.judge(checks, f"{run_}: ")


@shipped.command("list")
def list_scenarios() -> None:
    """List the shipped scenarios."""
    from fedamp.federation.reader import load, shipped_files

    shown = [{key: getattr(each, key) for key in ("name", "description")} for each in map(load, shipped_files())]
    out.print(tables.listing(shown, {"scenario": "name", "description": "description"}))


@shipped.command()
def show(scenario: ScenarioArgument, overrides: Overrides) -> None:
    """Show a scenario with every default, and how many records its clients have.

    No code that the scenario names is run.
    """
    from fedamp.federation.losses import shown_records

    loaded = load_scenario(scenario, overrides)
    print(loaded.to_yaml())
    try:
        out.print(tables.partition_summary(shown_records(loaded).label_counts(0)))
    except ModelError as error:  # of a custom loss, whose code is not run here
        terminal.caution(str(error))


@shipped.command()
def schema() -> None:
    """Print the JSON schema of a scenario, for editors."""
    from fedamp.federation.reader import json_schema

    terminal.print_json(json_schema())


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def node(context: Context) -> None:
    """Run a Flower SuperNode that keeps its process alive between messages. Takes the arguments of flower-supernode.

    A message then takes seconds less. It needs Linux.
    """
    from fedamp.client.node import program_of

    command = program_of("keep", *context.args)
    os.execv(command[0], command)  # without what this process has imported


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def superlink(context: Context) -> None:
    """Run a Flower SuperLink that needs less processor time, and whose runs start sooner.

    Takes the arguments of flower-superlink.
    """
    from fedamp.server.superlink import program_of

    command = program_of("start", *context.args)
    os.execv(command[0], command)  # without what this process has imported


def main() -> None:
    """Run the command of the command line, with one line for every error, and exit with its status."""
    terminal.exit_with(app)
