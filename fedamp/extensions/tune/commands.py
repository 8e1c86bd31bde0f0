"""Define the commands ``fedamp sweep`` and ``fedamp tune``."""

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Option

from fedamp.cli import terminal
from fedamp.cli.terminal import AsJson, Overrides, ScenarioArgument, print_answer, print_paths, print_published
from fedamp.errors import FedampError, InputError, fails_alone


def sweep(
    scenario: ScenarioArgument,
    overrides: Annotated[
        list[str], Option("--set", help="key.path=value,value,... or seed=1..5, as often as needed", show_default=False)
    ],
    out_folder: Annotated[Path | None, Option("--out", help="default: sweeps/NAME; resumed if it exists")] = None,
    jobs: Annotated[int | None, Option(help="runs at once; default: the number of cores")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a scenario with every combination of some values, several runs at once.

    Each run's ledger charges that run alone. Finished runs are kept, and
    interrupted ones resumed, by the same command.
    """
    from fedamp.extensions.tune.progress import SweepProgress
    from fedamp.extensions.tune.results import SweepResults
    from fedamp.extensions.tune.sweep import grid_of, sweep
    from fedamp.federation.reader import load

    with SweepProgress(terminal.err).shown() as progress:
        read = partial(load, scenario, ())
        swept = SweepResults.of(sweep(read, grid_of(overrides), out_folder, jobs, progress))
    plots: list[str] = []
    with fails_alone("drawing"):
        plots = swept.save_pictures(swept.folder / "plots")
    print_published(swept, "json" if as_json else "table", plots)
    if swept.unfinished:
        wrong = all((each.error or "").startswith(f"{InputError.kind}: ") for each in swept.unfinished)
        raise (InputError if wrong else FedampError)(
            f"{len(swept.unfinished)} of {len(swept.runs)} runs are unfinished"
        )


def tune(
    scenario: ScenarioArgument,
    overrides: Overrides,
    grid: Annotated[list[str], Option(help="key.path=value,value,... to try, as often as needed")],
    out_folder: Annotated[Path | None, Option("--out", help="default: tuned/NAME; resumed if it exists")] = None,
    share: Annotated[float, Option(help="of the budget, for all trials; the rest is for the run")] = 0.2,
    jobs: Annotated[int | None, Option(help="trials at once; default: the number of cores")] = None,
    as_json: AsJson = False,
) -> None:
    """Tune hyperparameters privately. One budget covers the trials and the final run.

    Each trial is judged by its charged evaluation. The chosen settings are
    written as chosen.yaml, with the noise that is left for the final run.
    """
    from fedamp.extensions.tune.progress import SweepProgress
    from fedamp.extensions.tune.sweep import grid_of
    from fedamp.extensions.tune.tables import tune_table
    from fedamp.extensions.tune.tune import CHOSEN, tune
    from fedamp.federation.reader import load

    with SweepProgress(terminal.err).shown() as progress:
        read = partial(load, scenario, overrides)
        tuned = tune(read, grid_of(grid), out_folder, share, jobs, progress)
    print_answer(tuned.record.content(), as_json, tune_table)
    print_paths("run next", tuned.folder / CHOSEN, unless=as_json)
