"""One run from the command line or a notebook: scenario in, run folder out."""

from pathlib import Path

from fedamp.errors import RunFolderError
from fedamp.flower import chatter_to
from fedamp.scenario import Scenario
from fedamp.server.loop import Observer, play
from fedamp.server.run_folder import RunFolder, Summary, existing_folder, locked, new_folder
from fedamp.server.setup import Prepared, prepare


def launch(scenario: Scenario, observer: Observer, out: Path | None = None, resume: bool = False) -> Path:
    """Run a scenario on the engine that it names, and draw its plots.

    Args:
        scenario: validated, its paths absolute.
        observer: told of every round.
        out: run folder; left out: a new one under ``runs``, or the newest one to resume.
        resume: go on in a folder in which the same scenario was interrupted.

    Returns:
        The run folder.

    Raises:
        InputError: nothing was run, and nothing that was there is changed.
        FederationError: the run could not go on; the folder can be resumed.
    """
    # Everything that can be wrong is found before a folder is made.
    prepared = prepare(scenario)
    folder = existing_folder(out, scenario.name) if resume else new_folder(out, scenario.name)
    with chatter_to(folder.log, "ray", "fedamp"), locked(folder.log) as free:
        if not free:
            raise RunFolderError(f"{folder.path}: another process is running in it")
        if not resume:
            folder.write_scenario(scenario)
        if scenario.engine.kind == "flower":
            _play_on_flower(prepared, folder, resume)
        else:
            _play_here(prepared, folder, observer)
    from fedamp.report.plots import plot_run

    plot_run(folder.path)
    return folder.path


def _play_here(prepared: Prepared, folder: RunFolder, observer: Observer) -> Summary:
    from fedamp.simulation.engines import open_grid

    with open_grid(prepared.plan.scenario.engine, folder.log) as grid:
        return play(prepared, grid, folder, observer)


def _play_on_flower(prepared: Prepared, folder: RunFolder, resume: bool) -> None:
    from fedamp.simulation.stock import run_on_flower

    run_on_flower(folder.path)
