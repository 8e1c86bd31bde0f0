"""One run from the command line or a notebook: scenario in, run folder out."""

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedamp.errors import FedampError, FederationError, Interrupted
from fedamp.plan import make_plan, privacy_units
from fedamp.runs.folder import RunFolder, opened
from fedamp.scenario import Scenario

if TYPE_CHECKING:  # what imports torch is imported while Ray starts
    from fedamp.server.loop import Observer

log = logging.getLogger("fedamp.launch")


def launch(
    scenario: Scenario, observer: "Observer", out: Path | None = None, resume: bool = False, secret_seed: bool = False
) -> Path:
    """Run a scenario on the engine that it names.

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
    on_flower = scenario.engine.kind == "flower"
    secret = True if secret_seed else None if resume else False
    with opened(scenario, out, resume, secret, lock=not on_flower) as (folder, seed), _explained(folder):
        play_it = _play_on_flower if on_flower else _play_here
        play_it(scenario, seed, folder, observer)
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
        raise FederationError(f"{error}; log: {folder.log}; {how_to_resume(folder.path)}") from error
    except FedampError:
        raise
    except Exception as error:
        log.exception("unexpected failure")
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise FederationError(f"{reason[:300]}; traceback in {folder.log}") from error


def _play_here(scenario: Scenario, seed: int | None, folder: RunFolder, observer: "Observer") -> None:
    from fedamp.simulation.engines import open_grid
    from fedamp.simulation.faults import with_faults

    # Ray starts in a child of its own while torch, data and model are loaded here.
    with open_grid(scenario.engine, folder.log) as grid:
        from fedamp.server.loop import play
        from fedamp.server.setup import prepare

        play(prepare(scenario, seed), with_faults(grid, scenario.faults), folder, observer)


def _play_on_flower(scenario: Scenario, seed: int | None, folder: RunFolder, observer: "Observer") -> None:
    """The same server app and client app, on Flower's own simulation in processes of its own."""
    from fedamp.server.setup import prepare
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
        "known-seed": seed is None,
    }
    flower_engine.run(config, folder.log, scenario.engine, watch=watch)
    watch()
