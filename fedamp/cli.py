"""The commands. Each reads its arguments, calls one function, and prints; there is no logic here.

Everything heavy (torch, Flower, Ray, plots) is imported by the command that needs it, so that ``fedamp privacy``
answers at once.
"""

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from rich.console import Console

from fedamp import __version__
from fedamp.errors import DeploymentError, FedampError, InputError, Interrupted, RunFolderError

if TYPE_CHECKING:
    from fedamp.scenario import Scenario

app = typer.Typer(
    help="Federated learning with differential privacy, amplified by the randomness that training has anyway.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does
    rich_markup_mode="rich",
)
scenarios = typer.Typer(
    help="The shipped scenarios, validation, and the JSON schema for editors.", no_args_is_help=True
)
app.add_typer(scenarios, name="scenarios")

out, err = Console(), Console(stderr=True)


def _shipped(incomplete: str) -> list[str]:
    from fedamp.scenario.scenario_file import shipped_files

    return [file.stem for file in shipped_files() if file.stem.startswith(incomplete)]


ScenarioArgument = Annotated[
    str, typer.Argument(help="a YAML file, or the name of a shipped scenario", autocompletion=_shipped)
]
Overrides = Annotated[list[str], typer.Option("--set", help="key.path=value, as often as needed")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON object on standard output")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    """See ``fedamp COMMAND --help``."""
    if version:
        print(f"fedamp {__version__}")
        raise typer.Exit


@app.command()
def run(
    scenario: ScenarioArgument,
    overrides: Overrides = [],  # noqa: B006 (typer reads the default once)
    out_folder: Annotated[Path | None, typer.Option("--out", help="run folder; left out: a new one under runs")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on where an interrupted run stopped")] = False,
    engine: Annotated[str | None, typer.Option(help="ray, serial or flower")] = None,
    secret_seed: Annotated[
        bool, typer.Option("--secret-seed", help="noise and assignments from the operating system, not from seed")
    ] = False,
) -> None:
    """Run a federation and leave a run folder."""
    from fedamp.launch import how_to_resume, launch
    from fedamp.report.plots import plot_run
    from fedamp.report.tables import run_table
    from fedamp.runs.folder import read_summary
    from fedamp.terminal import ProgressDisplay

    with ProgressDisplay(err).shown() as display:
        folder = launch(_load(scenario, overrides, engine), display, out_folder, resume, secret_seed)
    plot_run(folder)
    out.print(run_table(folder))
    _print_path("run folder", folder)
    if read_summary(folder)["stopped_because"] == "interrupted":
        raise Interrupted(how_to_resume(folder))


@app.command()
def privacy(
    scenario: ScenarioArgument,
    overrides: Overrides = [],  # noqa: B006
    groups: Annotated[
        bool, typer.Option("--groups", help="what groups of units cost, even where it takes long")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """What a scenario will cost, without running it; with and without amplification."""
    from fedamp.report.privacy import privacy_answer, privacy_table

    answer = privacy_answer(_load(scenario, overrides), groups)
    _print_json(answer) if as_json else out.print(privacy_table(answer))


@app.command()
def calibrate(
    scenario: ScenarioArgument,
    epsilon: Annotated[float, typer.Option(help="budget")],
    delta: Annotated[float | None, typer.Option(help="left out: the scenario's")] = None,
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """The smallest noise multiplier that keeps a budget, landing on the safe side."""
    from fedamp.report.privacy import calibration_answer, calibration_table

    answer = calibration_answer(_load(scenario, overrides), epsilon, delta)
    _print_json(answer) if as_json else out.print(calibration_table(answer))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs, and of merged models")],
    out_folder: Annotated[Path, typer.Option("--out", help="folder for the plots")] = Path("comparison"),
    as_json: AsJson = False,
) -> None:
    """A table and plots of several runs."""
    from fedamp.report.compare import compare_runs, comparison_table

    answer = compare_runs(runs, out_folder)
    if as_json:
        _print_json(answer)
        return
    out.print(comparison_table(answer))
    for file in answer["plots"]:
        _print_path("picture", file)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs, and of merged models; several are compared")],
    out_file: Annotated[Path, typer.Option("--out", help="the HTML file")] = Path("report.html"),
) -> None:
    """One HTML file about a run, or several, that can be sent to a colleague."""
    from fedamp.report.page import write_report

    _print_path("report", write_report(runs, out_file))


@app.command()
def merge(
    models: Annotated[list[str], typer.Argument(help="run folders; RUN@ROUND is a checkpoint of a run")],
    method: Annotated[str, typer.Option(help="random-selection or linear-combination")],
    epsilon: Annotated[float, typer.Option(help="budget")],
    delta: Annotated[float, typer.Option(help="budget")],
    out_folder: Annotated[Path | None, typer.Option("--out", help="left out: a new folder under runs")] = None,
    weights: Annotated[str | None, typer.Option(help="one for each model, e.g. 0.3,0.7; left out: chosen")] = None,
    utility: Annotated[
        str | None,
        typer.Option(help="choose weights by: least-private, accuracy, most-accurate-first, or numbers e.g. 0.8,0.9"),
    ] = None,
    data_independent_gradients: Annotated[
        bool, typer.Option("--assume-data-independent-gradients", help="linear combination: charge step by step")
    ] = False,
    public_accuracies: Annotated[
        bool, typer.Option("--assume-public-accuracies", help="weights may follow from the models' accuracies")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="of the draw, to rehearse it; left out: secret")] = None,
    as_json: AsJson = False,
) -> None:
    """Merge trained models for a new budget, with a certificate."""
    from fedamp.merging import MergeRequest, merge_runs, utility_of, weights_of
    from fedamp.report.merging_plots import plot_merger
    from fedamp.report.merging_table import merge_table

    request = MergeRequest(
        tuple(models),
        method,
        epsilon,
        delta,
        weights=weights_of(weights),
        utility=utility_of(utility),
        data_independent_gradients=data_independent_gradients,
        public_accuracies=public_accuracies,
        seed=seed,
    )
    merger = merge_runs(request, out_folder)
    plot_merger(merger)
    answer = merger.to_json()
    if as_json:
        _print_json(answer)
        return
    out.print(merge_table(answer))
    _print_path("run folder", merger.folder.path)


@app.command()
def audit(
    scenario: ScenarioArgument,
    overrides: Overrides = [],  # noqa: B006
    repetitions: Annotated[int, typer.Option(help="how often it is played, with and without the canary each")] = 500,
    rounds: Annotated[int, typer.Option(help="longer scenarios are shortened to so many rounds")] = 8,
    confidence: Annotated[float, typer.Option(help="that no lower bound is too high")] = 0.99,
    as_json: AsJson = False,
) -> None:
    """A lower bound on epsilon from attacking the real code, beside the accountant's upper bound."""
    from fedamp.audit import audit, audit_table, progress_bar

    with progress_bar(err) as progress:
        found = audit(_load(scenario, overrides), repetitions, rounds, confidence, progress)
    _print_json(found.to_json()) if as_json else out.print(audit_table(found))
    if found.refuted:
        raise FedampError(found.reproach())


@app.command()
def verify(
    run_: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, or a ledger.json")],
    as_json: AsJson = False,
) -> None:
    """Compute every number of a ledger again: does each release cost what the ledger says?"""
    from fedamp.report.checks import checks_table
    from fedamp.runs.checks import checks_json, complaint
    from fedamp.runs.verify import verify_ledger

    checks = verify_ledger(run_)
    _print_json(checks_json(checks)) if as_json else out.print(checks_table("ledger", checks))
    if wrong := complaint(checks):
        raise RunFolderError(f"{run_}: {wrong}")


@app.command()
def doctor(
    superlink: Annotated[
        str | None, typer.Option(help="HOST:PORT of a deployment's SuperLink to check as well")
    ] = None,
    root_certificates: Annotated[Path | None, typer.Option(help="file of the authority that its nodes trust")] = None,
    as_json: AsJson = False,
) -> None:
    """Versions, devices, Ray, and free memory; and whether a deployment can be reached and trusted."""
    from fedamp.report.checks import checks_table
    from fedamp.report.deployment import examine_superlink
    from fedamp.report.doctor import doctor_table, examine
    from fedamp.runs.checks import checks_json, complaint

    checks = None if superlink is None else examine_superlink(superlink, root_certificates)
    answer = examine()
    if as_json:
        _print_json(answer if checks is None else answer | {"deployment": checks_json(checks)})
    else:
        out.print(doctor_table(answer))
        if checks is not None:
            out.print(checks_table("deployment", checks))
    if checks is not None and (wrong := complaint(checks)):
        raise DeploymentError(wrong)


@scenarios.command("list")
def list_scenarios() -> None:
    """The shipped scenarios."""
    from fedamp.report.scenarios import scenarios_table

    out.print(scenarios_table())


@scenarios.command()
def show(scenario: ScenarioArgument, overrides: Overrides = []) -> None:  # noqa: B006
    """A scenario with every default written out, and how its data are partitioned."""
    from fedamp.report.scenarios import partition_table
    from fedamp.scenario.scenario_file import dump

    loaded = _load(scenario, overrides)
    print(dump(loaded))
    out.print(partition_table(loaded))


@scenarios.command()
def validate(scenario: ScenarioArgument, overrides: Overrides = []) -> None:  # noqa: B006
    """Check a scenario together with its data and model, without running it."""
    from fedamp.server.setup import prepare

    prepared = prepare(_load(scenario, overrides))
    print(f"{scenario}: valid; {prepared.plan.units} units, {prepared.plan.scenario.rounds} rounds")


@scenarios.command()
def schema() -> None:
    """The JSON schema of a scenario."""
    from fedamp.scenario.scenario_file import json_schema

    _print_json(json_schema())


def _load(path: str, overrides: list[str], engine: str | None = None) -> "Scenario":
    from fedamp.scenario.scenario_file import load

    return load(path, overrides if engine is None else [*overrides, f"engine.kind={engine}"])


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def _print_path(name: str, path: Path | str) -> None:
    """Unbroken at any width, so that it can be copied."""
    out.print(f"{name}: {path}", highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """Entry point: one line for every error, and an exit status that tells."""
    try:
        status = _status()
    except KeyboardInterrupt:  # a second Ctrl-C, while the first one was being answered
        status = Interrupted.exit_code
    sys.exit(status)


def _status() -> int:
    try:
        result = app(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "fedamp"
        return _say(f"error: {error.format_message().rstrip('.')}; see {command} --help", error.exit_code)
    except FedampError as error:
        kind = (
            "interrupted" if isinstance(error, Interrupted) else "error" if isinstance(error, InputError) else "failed"
        )
        return _say(f"{kind}: {error}", error.exit_code)
    except BrokenPipeError:
        # The reader of a pipe has seen enough; Python would complain once more when it closes standard output.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 1
    except Exception as error:
        return _say(f"failed: {type(error).__name__}: {_first_line(error)}; traceback in {_keep_traceback()}", 1)
    if result == Interrupted.exit_code:  # how typer says that Ctrl-C came where no run had begun
        return _say("interrupted", result)
    return result if isinstance(result, int) else 0


def _say(message: str, exit_code: int) -> int:
    print(message, file=sys.stderr)
    return exit_code


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _keep_traceback() -> str:
    with tempfile.NamedTemporaryFile("w", prefix="fedamp-", suffix=".log", delete=False) as file:
        file.write(traceback.format_exc())
    return file.name
