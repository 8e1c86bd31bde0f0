"""The commands. Each reads its arguments, calls one function, and prints; there is no logic here.

Everything heavy (torch, Flower, Ray, plots) is imported by the command that needs it, so that ``fedamp privacy``
answers at once.
"""

import faulthandler
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from rich.console import Console, RenderableType
from typer import Argument, Exit, Option, Typer

from fedamp.errors import FedampError, Interrupted
from fedamp.report import tables
from fedamp.text import harmless, printable

if TYPE_CHECKING:
    from fedamp.runs.checks import Check
    from fedamp.scenario import Scenario

app = Typer(
    help="Federated learning with differential privacy, amplified by the randomness that training has anyway.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
scenarios = Typer(help="The shipped scenarios, validation, and the JSON schema for editors.", no_args_is_help=True)
app.add_typer(scenarios, name="scenarios")

# NO_COLOR: no italics nor bold either, which rich would keep.
PLAIN: Any = {"color_system": None} if os.environ.get("NO_COLOR") else {}
out, err = Console(**PLAIN), Console(stderr=True, **PLAIN)

CLIENTS_SHOWN = 10


def _shipped(incomplete: str) -> list[str]:
    from fedamp.scenario.scenario_file import shipped_files

    return [file.stem for file in shipped_files() if file.stem.startswith(incomplete)]


ScenarioArgument = Annotated[
    str, Argument(help="a YAML file, or the name of a shipped scenario", autocompletion=_shipped)
]
Overrides = Annotated[
    list[str], Option("--set", help="key.path=value, as often as needed", default_factory=list, show_default=False)
]
AsJson = Annotated[bool, Option("--json", help="one JSON object on standard output")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, Option("--version", help="print the version")] = False) -> None:
    """See ``fedamp COMMAND --help``."""
    if version:
        from fedamp import __version__

        print(f"fedamp {__version__}")
        raise Exit


@app.command()
def run(
    scenario: ScenarioArgument,
    overrides: Overrides,
    out_folder: Annotated[Path | None, Option("--out", help="run folder; left out: a new one under runs")] = None,
    resume: Annotated[bool, Option("--resume", help="go on where an interrupted run stopped")] = False,
    engine: Annotated[str | None, Option(help="auto, ray, serial or flower")] = None,
    known_seed: Annotated[
        bool | None,
        Option(
            "--known-seed/--secret-seed", help="noise and assignments from seed, which protects nobody who knows it"
        ),
    ] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="print nothing but the run folder")] = False,
    as_json: Annotated[
        bool, Option("--json", help="a JSON object a line: every round, and at last the summary")
    ] = False,
) -> None:
    """Run a federation and leave a run folder."""
    from fedamp.launch import how_to_resume, launch
    from fedamp.report.progress import JsonLines, RunProgress, Silence

    if engine is not None:
        overrides = [*overrides, f"engine.kind={engine}"]
    if known_seed is not None:
        overrides = [*overrides, f"known_seed={str(known_seed).lower()}"]
    scenario_ = _load(scenario, overrides)
    progress = JsonLines() if as_json else Silence() if quiet else RunProgress(err)
    with progress.shown():
        folder = launch(scenario_, progress, out_folder, resume)

    from fedamp.report.pictures import plot_run  # matplotlib takes a second
    from fedamp.runs.files import modes_of
    from fedamp.runs.folder import read_summary

    with modes_of(folder):
        plot_run(folder)
    summary = read_summary(folder)
    if as_json:
        print(json.dumps(summary.content() | {"folder": str(folder)}))
    elif quiet:
        print(printable(folder))
    else:
        out.print(tables.run_table(summary, progress.clipped))
        _print_path("run folder", folder)
    _caution_about(scenario_)
    if summary.stopped_because == "interrupted":
        raise Interrupted(how_to_resume(folder))


@app.command()
def privacy(
    scenario: ScenarioArgument,
    overrides: Overrides,
    groups: Annotated[bool, Option("--groups", help="what groups of units cost, even where it takes long")] = False,
    as_json: AsJson = False,
) -> None:
    """What a scenario will cost, without running it; amplified and unamplified."""
    from fedamp.cost import privacy_cost

    scenario_ = _load(scenario, overrides)
    _print(privacy_cost(scenario_, groups), as_json, tables.privacy_table)
    _caution_about(scenario_)


@app.command()
def calibrate(
    scenario: ScenarioArgument,
    overrides: Overrides,
    epsilon: Annotated[float, Option(help="budget")],
    delta: Annotated[float | None, Option(help="left out: the scenario's")] = None,
    as_json: AsJson = False,
) -> None:
    """The smallest noise multiplier that keeps a budget, landing on the safe side."""
    from fedamp.cost import calibration

    _print(calibration(_load(scenario, overrides), epsilon, delta), as_json, tables.calibration_table)


@app.command()
def compare(
    runs: Annotated[list[Path], Argument(help="folders of runs, and of merged models")],
    out_folder: Annotated[Path, Option("--out", help="folder for the plots")] = Path("comparison"),
    as_json: AsJson = False,
) -> None:
    """A table and plots of several runs."""
    from fedamp.report.comparison import compare

    answer = compare(runs, out_folder)
    _print(answer, as_json, tables.comparison_table)
    for file in () if as_json else answer["plots"]:
        _print_path("picture", file)


@app.command()
def report(
    runs: Annotated[list[Path], Argument(help="folders of runs, and of merged models; several are compared")],
    out_file: Annotated[Path, Option("--out", help="the HTML file")] = Path("report.html"),
) -> None:
    """One HTML file about a run, or several, that can be sent to a colleague."""
    from fedamp.report.page import write_report

    _print_path("report", write_report(runs, out_file))


@app.command()
def merge(
    models: Annotated[list[str], Argument(help="run folders; RUN@ROUND is a checkpoint of a run")],
    method: Annotated[str, Option(help="random-selection or linear-combination")],
    epsilon: Annotated[float, Option(help="budget")],
    delta: Annotated[float, Option(help="budget")],
    out_folder: Annotated[Path | None, Option("--out", help="left out: a new folder under runs")] = None,
    weights: Annotated[str | None, Option(help="one for each model, e.g. 0.3,0.7; left out: chosen")] = None,
    utility: Annotated[
        str | None,
        Option(help="choose weights by: least-private, accuracy, most-accurate-first, or numbers e.g. 0.8,0.9"),
    ] = None,
    data_independent: Annotated[
        bool, Option("--assume-data-independent-gradients", help="linear combination: charge step by step")
    ] = False,
    public: Annotated[bool, Option("--assume-public-accuracies", help="choose weights by the accuracies")] = False,
    seed: Annotated[int | None, Option(help="of the draw, a known seed; left out: secret")] = None,
    as_json: AsJson = False,
) -> None:
    """Merge trained models for a new budget, with a certificate."""
    from fedamp.merging import MergeRequest, merge_runs, utility_of, weights_of
    from fedamp.report.weights import plot_merger

    request = MergeRequest(
        tuple(models),
        method,
        epsilon,
        delta,
        weights=weights_of(weights),
        utility=utility_of(utility),
        data_independent_gradients=data_independent,
        public_accuracies=public,
        seed=seed,
    )
    merger = merge_runs(request, out_folder)
    plot_merger(merger)
    _print(merger.to_json(), as_json, tables.merge_table)
    if not as_json:
        _print_path("run folder", merger.folder.path)


@app.command()
def audit(
    scenario: ScenarioArgument,
    overrides: Overrides,
    repetitions: Annotated[int, Option(help="how often it is played, with and without the canary each")] = 500,
    rounds: Annotated[int, Option(help="longer scenarios are shortened to so many rounds")] = 8,
    confidence: Annotated[float, Option(help="that no lower bound is too high")] = 0.99,
    as_json: AsJson = False,
) -> None:
    """A lower bound on epsilon from attacking the real code, beside the accountant's upper bound."""
    from fedamp.audit import audit
    from fedamp.report.progress import audit_progress

    with audit_progress(err) as progress:
        found = audit(_load(scenario, overrides), repetitions, rounds, confidence, progress)
    _print(found.to_json(), as_json, tables.audit_table)
    if found.refuted:
        raise FedampError(found.refutation())


@app.command()
def verify(
    run_: Annotated[Path, Argument(metavar="RUN", help="a run folder, or a ledger.json")],
    as_json: AsJson = False,
) -> None:
    """Compute every number of a ledger again: does each release cost what the ledger says?"""
    from fedamp.runs.checks import checks_json
    from fedamp.runs.verify import verify_ledger

    checks = verify_ledger(run_)
    _print(checks_json(checks), as_json, lambda answer: tables.checks_table("ledger", answer))
    _judge(checks, f"{run_}: ")


@app.command()
def doctor(
    superlink: Annotated[str | None, Option(help="HOST:PORT of a deployment's SuperLink to check as well")] = None,
    root_certificates: Annotated[Path | None, Option(help="file of the authority that its nodes trust")] = None,
    as_json: AsJson = False,
) -> None:
    """Versions, devices, Ray, and free memory; and whether a deployment can be reached and trusted."""
    from fedamp.doctor import examine_machine, examine_superlink
    from fedamp.runs.checks import checks_json

    checks = examine_superlink(superlink, root_certificates) if superlink else []
    answer = examine_machine() | ({"deployment": checks_json(checks)} if checks else {})
    _print(answer, as_json, tables.doctor_table)
    _judge(checks)


@scenarios.command("list")
def list_scenarios() -> None:
    """The shipped scenarios."""
    from fedamp.scenario.scenario_file import load, shipped_files

    out.print(tables.scenarios_table(map(load, shipped_files())))


@scenarios.command()
def show(scenario: ScenarioArgument, overrides: Overrides) -> None:
    """A scenario with every default written out, and how its data are partitioned."""
    from fedamp import data, rng
    from fedamp.losses import form_of
    from fedamp.scenario.scenario_file import dump

    loaded = _load(scenario, overrides)
    print(dump(loaded))
    form = form_of(loaded.client, loaded.model)
    dataset = data.load(loaded.data, rng.public_seed(loaded.seed, "data"), Path(), form)
    out.print(tables.partition_table(dataset.label_counts(CLIENTS_SHOWN)))


@scenarios.command()
def validate(
    scenario: ScenarioArgument,
    overrides: Overrides,
    import_model: Annotated[
        bool, Option("--import", help="run the code of a model or loss of your own, to try it")
    ] = False,
) -> None:
    """Check a scenario together with its data and model, without running it."""
    from fedamp.losses import brings_code
    from fedamp.plan import make_plan, privacy_units
    from fedamp.server.setup import prepare

    asked = _load(scenario, overrides)
    foreign = brings_code(asked) and not import_model
    prepared = None if foreign else prepare(asked)
    plan = prepared.plan if prepared else make_plan(asked, privacy_units(asked))
    print(printable(f"{scenario}: valid; {plan.units} units, {plan.scenario.rounds} rounds"))
    if prepared and prepared.hint:
        _caution(prepared.hint)
    if foreign:
        named = ", ".join(name for name in (asked.model.name, asked.client.loss) if ":" in name)
        _caution(f"{named} was not tried, because that runs its code; to do so add --import")
    _caution_about(asked)


@scenarios.command()
def schema() -> None:
    """The JSON schema of a scenario."""
    from fedamp.scenario.scenario_file import json_schema

    _print_json(json_schema())


def _load(path: str, overrides: list[str]) -> "Scenario":
    from fedamp.scenario.scenario_file import load

    return load(path, overrides)


def _print(answer: dict[str, Any], as_json: bool, table: Callable[[dict[str, Any]], RenderableType]) -> None:
    _print_json(answer) if as_json else out.print(table(harmless(answer)))


def _judge(checks: "Sequence[Check]", about: str = "") -> None:
    """Say on a line of its own what calls for caution; end with exit status 1 where anything is wrong."""
    from fedamp.runs.checks import complaint

    if caution := complaint(checks, "caution"):
        _caution(f"{about}{caution}")
    if wrong := complaint(checks):
        raise FedampError(f"{about}{wrong}")


def _caution(words: str) -> None:
    print(f"caution: {printable(words)}", file=sys.stderr)


def _caution_about(scenario: "Scenario") -> None:
    from fedamp.plan import privacy_units, weakness

    if words := weakness(scenario.privacy.delta, privacy_units(scenario)):
        _caution(words)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def _print_path(name: str, path: Path | str) -> None:
    """Unbroken at any width, so that it can be copied."""
    out.print(f"{name}: {printable(path)}", highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """Entry point: one line for every error, and an exit status that tells."""
    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        # A model of a person's own may crash this process where it is built or evaluated: say where.
        faulthandler.enable(sys.__stderr__, all_threads=False)
    try:
        status = _status()
    except KeyboardInterrupt:  # a second Ctrl-C, while the first one was being handled
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
        return _fail(f"error: {error.format_message().rstrip('.')}; see {command} --help", error.exit_code)
    except FedampError as error:
        return _fail(f"{error.kind}: {error}", error.exit_code)
    except BrokenPipeError:
        # The reader of a pipe has seen enough; Python would complain once more when it closes standard output.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 1
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        return _fail(f"failed: {type(error).__name__}: {reason}; traceback in {_keep_traceback()}", 1)
    if result == Interrupted.exit_code:  # how typer says that Ctrl-C came where no run had begun
        return _fail("interrupted", result)
    return result if isinstance(result, int) else 0


def _fail(message: str, exit_code: int) -> int:
    print(printable(message), file=sys.stderr)
    return exit_code


def _keep_traceback() -> str:
    with tempfile.NamedTemporaryFile("w", prefix="fedamp-", suffix=".log", delete=False) as file:
        file.write(traceback.format_exc())
    return file.name
