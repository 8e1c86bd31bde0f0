"""One run from the command line or a notebook: scenario in, run folder out."""

import logging
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedamp import rng
from fedamp.errors import FedampError, FederationError, InputError, Interrupted, RunFolderError
from fedamp.flower import chatter_to
from fedamp.plan import make_plan, privacy_units
from fedamp.runs.folder import RunFolder, existing_folder, locked, new_folder
from fedamp.scenario import Scenario
from fedamp.server.loop import Observer, play
from fedamp.server.setup import prepare

log = logging.getLogger("fedamp.launch")


def launch(
    scenario: Scenario, observer: Observer, out: Path | None = None, resume: bool = False, secret_seed: bool = False
) -> Path:
    """Run a scenario on the engine that it names, and draw its plots.

    Args:
        scenario: validated, its paths absolute.
        observer: told of every round.
        out: run folder; left out: a new one under ``runs``, or the newest one to resume.
        resume: go on in a folder in which the same scenario was interrupted.
        secret_seed: draw noise and assignments from the operating system, as a deployment does; the scenario's seed
            still deals the data. A run that began so is resumed so.

    Returns:
        The run folder.

    Raises:
        InputError: nothing was run, and nothing that was there is changed.
        FederationError: the run could not go on; the message names the log, and the folder can be resumed.
        Interrupted: Ctrl-C twice; the message says how to go on.
    """
    # What can be found wrong without torch is found before a folder is made.
    make_plan(scenario, privacy_units(scenario))
    folder = existing_folder(out, scenario.name) if resume else new_folder(out, scenario.name)
    with (
        _emptied_if_refused(folder, is_new=not resume),
        chatter_to(folder.log, "ray", "fedamp"),
        locked(folder.log) as free,
        _explained(folder),
    ):
        if not free:
            raise RunFolderError(f"{folder.path}: another process is running in it")
        play_it = _play_on_flower if scenario.engine.kind == "flower" else _play_here
        # The seed first: a run without its seed would resume as a rehearsal. Then the scenario, so that it can resume.
        seed = _seed(folder, secret_seed and not resume)
        if not resume:
            folder.write_scenario(scenario)
        play_it(scenario, seed, folder, observer)
        from fedamp.report.plots import plot_run

        plot_run(folder.path)
    return folder.path


def how_to_resume(folder: Path) -> str:
    """The command that goes on where a run stopped; the folder's own scenario holds every override."""
    return "go on with: " + shlex.join(
        ["fedamp", "run", str(folder / "scenario.yaml"), "--resume", "--out", str(folder)]
    )


@contextmanager
def _explained(folder: RunFolder) -> Iterator[None]:
    """Turn what ends a run early into one line that says where to read more, or how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(how_to_resume(folder.path)) from None
    except FederationError as error:
        raise FederationError(f"{error}; log: {folder.log}") from error
    except FedampError:
        raise
    except Exception as error:
        log.exception("unexpected failure")
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise FederationError(f"{reason[:300]}; traceback in {folder.log}") from error


@contextmanager
def _emptied_if_refused(folder: RunFolder, is_new: bool) -> Iterator[None]:
    """Bad input leaves no half a run behind."""
    try:
        yield
    except InputError:
        if is_new:
            shutil.rmtree(folder.path)
        raise


def _seed(folder: RunFolder, new: bool) -> int | None:
    """The secret seed of a run, a new one or the one that it began with; None for a rehearsal."""
    from fedamp.server.app import keep_seed, read_seed

    if new:
        keep_seed(folder, rng.seed_from_system())
    return read_seed(folder) if (folder.path / "seed.secret").exists() else None


def _play_here(scenario: Scenario, seed: int | None, folder: RunFolder, observer: Observer) -> None:
    from fedamp.simulation.engines import open_grid
    from fedamp.simulation.faults import with_faults

    # Ray starts in the background while data and model are loaded here.
    with open_grid(scenario.engine, folder.log) as grid:
        play(prepare(scenario, seed), with_faults(grid, scenario.faults), folder, observer)


def _play_on_flower(scenario: Scenario, seed: int | None, folder: RunFolder, observer: Observer) -> None:
    """The same server app and client app, on Flower's own simulation in processes of its own."""
    from fedamp.simulation import flower_engine

    seen = folder.read_rounds()
    observer.started(prepare(scenario, seed), seen)

    def watch() -> None:
        for record in folder.read_rounds()[len(seen) :]:
            seen.append(record)
            observer.round_done(record)

    path = folder.path.resolve()
    # The folder holds the scenario already, so the app goes on in it, from wherever it stands.
    config: dict[str, str | int | float | bool] = {
        "scenario": str(path / folder.scenario.name),
        "out": str(path),
        "resume": True,
        "rehearse": seed is None,
    }
    flower_engine.run(config, folder.log, scenario.engine, watch=watch)
    watch()
