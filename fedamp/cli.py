"""The commands. Each reads its arguments, calls one function, and prints; there is no logic here.

Everything heavy (torch, Flower, Ray, plots) is imported by the command that needs it, so that ``fedamp privacy``
answers at once.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedamp import __version__
from fedamp.errors import FedampError, InputError

if TYPE_CHECKING:
    from fedamp.scenario import Scenario

# Before anything imports Flower or Ray.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

app = typer.Typer(
    help="Federated learning with differential privacy, amplified by the randomness that training has anyway.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
scenarios = typer.Typer(
    help="The shipped scenarios, validation, and the JSON schema for editors.", no_args_is_help=True
)
app.add_typer(scenarios, name="scenarios")

out, err = Console(), Console(stderr=True)

ScenarioArgument = Annotated[str, typer.Argument(help="a YAML file, or the name of a shipped scenario")]
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
) -> None:
    """Run a federation and leave a run folder."""
    from fedamp.launch import launch
    from fedamp.report.tables import run_table
    from fedamp.server.run_folder import read_summary
    from fedamp.terminal import ProgressDisplay

    with ProgressDisplay(err).shown() as display:
        folder = launch(_load(scenario, overrides, engine), display, out_folder, resume)
    out.print(run_table(folder))
    if read_summary(folder)["stopped_because"] == "interrupted":
        err.print(f"interrupted; go on with: fedamp run {scenario} --resume --out {folder}", highlight=False)


@app.command()
def privacy(
    scenario: ScenarioArgument,
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """What a scenario will cost, without running it; with and without amplification."""
    from fedamp.report.privacy import privacy_answer, privacy_table

    answer = privacy_answer(_load(scenario, overrides))
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
    runs: Annotated[list[Path], typer.Argument(help="run folders")],
    out_folder: Annotated[Path, typer.Option("--out", help="folder for the plots")] = Path("comparison"),
    as_json: AsJson = False,
) -> None:
    """A table and plots of several runs."""
    from fedamp.report.compare import compare_runs, comparison_table

    answer = compare_runs(runs, out_folder)
    _print_json(answer) if as_json else out.print(comparison_table(answer))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Versions, devices, Ray, and free memory."""
    from fedamp.report.doctor import doctor_table, examine

    answer = examine()
    _print_json(answer) if as_json else out.print(doctor_table(answer))


@scenarios.command("list")
def list_scenarios() -> None:
    """The shipped scenarios."""
    from fedamp.report.scenarios import scenarios_table

    out.print(scenarios_table())


@scenarios.command()
def show(scenario: ScenarioArgument, overrides: Overrides = []) -> None:  # noqa: B006
    """A scenario with every default written out, and how its data are partitioned."""
    from fedamp.report.scenarios import partition_table
    from fedamp.scenario_file import dump

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
    from fedamp.scenario_file import json_schema

    _print_json(json_schema())


def _load(path: str, overrides: list[str], engine: str | None = None) -> "Scenario":
    from fedamp.scenario_file import load

    return load(path, overrides if engine is None else [*overrides, f"engine.kind={engine}"])


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def main() -> None:
    """Entry point: one line for every error, and an exit status that tells."""
    try:
        app(standalone_mode=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except FedampError as error:
        print(f"failed: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
