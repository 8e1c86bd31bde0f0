"""Define the commands ``fedamp sweep``, ``fedamp study`` and ``fedamp tune``."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from fedamp.cli import terminal
from fedamp.cli.terminal import AsJson, Overrides, ScenarioArgument, print_answer, print_paths, print_published
from fedamp.errors import FedampError, InputError, fails_alone

if TYPE_CHECKING:
    from fedamp.extensions.tune.sweep import Sweep


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
    _fail_unfinished(swept)


def _fail_unfinished(swept: "Sweep") -> None:
    """Fail where runs have not come to their end.

    Raises:
        InputError: because each one's input is wrong.
        FedampError: for another reason.
    """
    if swept.unfinished:
        wrong = all((each.error or "").startswith(f"{InputError.kind}: ") for each in swept.unfinished)
        raise (InputError if wrong else FedampError)(
            f"{len(swept.unfinished)} of {len(swept.runs)} runs are unfinished"
        )


def study(
    study_file: Annotated[Path, Argument(help="the file of a study: scenario, variants, grid, seeds", metavar="STUDY")],
    out_folder: Annotated[Path | None, Option("--out", help="default: studies/NAME; resumed if it exists")] = None,
    jobs: Annotated[int | None, Option(help="runs at once; default: the number of cores")] = None,
    as_json: AsJson = False,
) -> None:
    """Run the variants of a study, and write its table and figure for a paper.

    Finished runs are kept, and interrupted ones resumed, by the same command.
    A study can get further variants, values and seeds in the same folder.
    """
    from fedamp.extensions.tune.progress import SweepProgress
    from fedamp.extensions.tune.study import play_study, read_study
    from fedamp.federation.reader import load

    read = read_study(study_file)
    with SweepProgress(terminal.err).shown() as progress:
        played = play_study(read, lambda changes: load(read.scenario, (), changes), out_folder, jobs, progress)
    print_answer(played.to_json(), as_json, lambda _: played.table())
    print_paths("written", *played.files, unless=as_json)
    _fail_unfinished(played)


def tune(
    scenario: ScenarioArgument,
    overrides: Overrides,
    grid: Annotated[list[str], Option(help="key.path=value,value,... to try, as often as needed")],
    out_folder: Annotated[Path | None, Option("--out", help="default: tuned/NAME; resumed if it exists")] = None,
    share: Annotated[float, Option(help="of the budget, for all trials; the rest is for the run")] = 0.2,
    trials: Annotated[int | None, Option(help="random search: so many combinations; default: all")] = None,
    halving: Annotated[int | None, Option(help="play the best 1 in so many again, in stages of less noise")] = None,
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
        tuned = tune(read, grid_of(grid), out_folder, share, jobs, progress, trials, halving)
    print_answer(tuned.record.content(), as_json, tune_table)
    print_paths("run next", tuned.folder / CHOSEN, unless=as_json)
