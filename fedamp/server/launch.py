"""Launch one run from the command line or a notebook: scenario in, run folder out.

The engine, the folder and the observers of a run are opened and closed here; the rounds are in
:mod:`fedamp.server.loop`. Errors leave with one line that names the log, or the command that resumes. Torch and Ray are
imported late, so that bad input is told at once.
"""

import logging
import os
import shlex
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from fedamp.base.start import collect_again
from fedamp.errors import (
    DivergedError,
    FedampError,
    FederationError,
    Interrupted,
    NobodyTrainedError,
    ScenarioError,
    UnwritableError,
    one_line,
    tell,
)
from fedamp.federation.contracts import charged_openly
from fedamp.federation.kept_answers import KEPT
from fedamp.federation.losses import is_given
from fedamp.federation.plan import Plan, make_plan, privacy_units
from fedamp.federation.scenario import Scenario
from fedamp.server.observers import Observer, trackers_of, watched

if TYPE_CHECKING:  # the rest is imported where it is needed, and while Ray starts
    from flwr.serverapp import Grid

    from fedamp.runs.folder import RunFolder
    from fedamp.runs.records import RoundRecord
    from fedamp.server.setup import RunInputs

log = logging.getLogger("fedamp.server.launch")

PlayedRounds = Generator["RoundRecord", None, Path]
"""Generator of released rounds, which returns the run folder."""


def launch(scenario: Scenario, observer: Observer, out: Path | None = None, resume: bool = False) -> Path:
    """Run a scenario on its engine.

    Args:
        scenario: validated, its paths absolute.
        observer: told of every round.
        out: run folder; default: a new one under ``runs``, or the newest one to resume.
        resume: resume an interrupted run of the same scenario.

    Returns:
        The run folder.

    Raises:
        InputError: nothing was run, and no file was changed.
        FederationError: the run failed; the message names the log, and the run can be resumed.
        Interrupted: Ctrl-C twice; the message says how to resume.
    """
    with _started_run(scenario, observer, out, resume) as (inputs, grid, folder, watching):
        from fedamp.server.loop import rounds

        progress = rounds(inputs, grid, folder, watching, finish_round=True)
        next(progress, None)
        collect_again()  # what the start has made stays; from the second round on garbage is collected as usual
        for _ in progress:
            pass
    return folder.path


def launch_by_round(
    scenario: Scenario, observer: Observer, out: Path | None = None, resume: bool = False
) -> PlayedRounds:
    """Run a scenario, and yield the rounds of :func:`launch` one by one as they are released.

    After an early close the run can be resumed. Ctrl-C stops at once.

    Args:
        scenario, observer, out, resume: as of :func:`launch`.

    Yields:
        Each released round.

    Returns:
        The run folder.

    Raises:
        InputError, FederationError: as :func:`launch`.
        Interrupted: Ctrl-C; the message says how to resume.
    """
    with _started_run(scenario, observer, out, resume) as (inputs, grid, folder, watching):
        from fedamp.server.loop import rounds

        yield from rounds(inputs, grid, folder, watching)
    return folder.path


def how_to_resume(folder: Path) -> str:
    """Write the command that resumes a run; the folder's own scenario holds every override."""
    command = ["fedamp", "run", str(folder / "scenario.yaml"), "--resume", "--out", str(folder)]
    return f"resume with: {shlex.join(command)}"


@contextmanager
def _explained_errors(folder: "RunFolder") -> Iterator[None]:
    """Turn an error or Ctrl-C into one line that names the log, or says how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(how_to_resume(folder.path)) from None
    except UnwritableError as error:
        how = f"; {how_to_resume(folder.path)}" if os.path.exists(folder.ledger) else ""
        raise UnwritableError(f"{error}{how}") from None
    except (DivergedError, NobodyTrainedError) as error:  # it would end so again
        raise FederationError(f"{error}; log: {folder.log}") from error
    except FederationError as error:
        raise FederationError(f"{error}; log: {folder.log}; {how_to_resume(folder.path)}") from error
    except FedampError:
        raise
    except Exception as error:
        log.exception("unexpected failure")
        raise FederationError(f"{one_line(error)[:300]}; traceback in {folder.log}") from error


@contextmanager
def _started_run(
    scenario: Scenario, observer: Observer, out: Path | None, resume: bool
) -> "Iterator[tuple[RunInputs, Grid, RunFolder, Observer]]":
    """Open the run folder and the engine of a scenario, and load its data and model.

    Errors that can be found without torch are found before a folder is made. Ray starts in another process while torch,
    data and model are loaded here.

    Yields:
        What the round loop takes: inputs, grid, folder, observers.

    Raises:
        InputError: nothing was run; a new folder is removed again.
        FederationError, Interrupted: what the round loop raises, in a line that names the log, or says how to resume.
    """
    if scenario.federation.quorum is None and scenario.faults is None:  # every simulated unit reports
        scenario = scenario.model_copy(update={"federation": scenario.federation.model_copy(update={"quorum": 1.0})})
    plan = make_plan(scenario, privacy_units(scenario), answers=KEPT)
    plan.charge.check_budget()
    from fedamp.runs.folder import opened

    if is_given(scenario) and scenario.engine.address:
        raise ScenarioError("engine.address: Python objects cannot be sent to a cluster; use kind: auto")
    trackers = trackers_of(scenario.trackers)
    with (
        opened(scenario, out, resume) as (folder, seed),
        _explained_errors(folder),
        watched(folder.path, *trackers, observer) as watching,
    ):
        began = perf_counter()
        from fedamp.engines.engines import choose, open_grid, with_faults

        engine, why, inputs = scenario.engine, f"{scenario.engine.kind}: engine.kind says so", None
        if engine.kind == "auto":  # the amount of computation decides
            inputs = _loaded_inputs(plan, seed, watching)
            engine, why = choose(scenario, inputs.work, inputs.plan.last_round)
        log.info("engine %s", why)
        with open_grid(engine, folder.log) as grid:
            from fedamp.server.preflight import how_clients_train

            inputs = inputs or _loaded_inputs(plan, seed, watching)
            log.info(how := how_clients_train(inputs))
            inputs = replace(inputs, engine=f"{why}; {how}", began=began)
            watching.prepared(inputs)
            for line in (*charged_openly(scenario), *filter(None, [inputs.untrainable])):
                tell(line)
            yield inputs, with_faults(grid, scenario.faults), folder, watching


def _loaded_inputs(plan: Plan, seed: int | None, observer: Observer) -> "RunInputs":
    """Compute the costs of a plan, then load its data and model."""
    from fedamp.server.setup import prepare

    observer.computing(True)
    plan.charge.compute_now()
    observer.computing(False)
    return prepare(plan.scenario, seed, plan)
