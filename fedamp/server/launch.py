"""One run from the command line or a notebook: scenario in, run folder out."""

import logging
import shlex
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fedamp.base.start import beside, collect_again
from fedamp.errors import DivergedError, FedampError, FederationError, Interrupted, one_line
from fedamp.federation.plan import make_plan, privacy_units
from fedamp.federation.scenario import Scenario
from fedamp.server.observers import Observer, watched

if TYPE_CHECKING:  # what is left to import is imported while costs are computed, and while Ray starts
    from fedamp.runs.folder import RunFolder
    from fedamp.runs.records import RoundRecord
    from fedamp.server.setup import Prepared

log = logging.getLogger("fedamp.server.launch")

Costs = Callable[[], Mapping[str, Any]]
"""What waits for :meth:`fedamp.federation.plan.Plan.costs`."""

Progress = Generator["RoundRecord", None, Path]
"""Released rounds, and at last the run folder."""


def launch(scenario: Scenario, observer: Observer, out: Path | None = None, resume: bool = False) -> Path:
    """Run a scenario on the engine that it names.

    Args:
        scenario: validated, its paths absolute.
        observer: told of every round.
        out: run folder; left out: a new one under ``runs``, or the newest one to resume.
        resume: go on in a folder in which the same scenario was interrupted.

    Returns:
        The run folder.

    Raises:
        InputError: nothing was run, and nothing that was there is changed.
        FederationError: the run could not go on; the message names the log, and the folder can be resumed.
        Interrupted: Ctrl-C twice; the message says how to go on.
    """
    progress = rounds(scenario, observer, out, resume, finish_round=True)
    while True:
        try:
            next(progress)
            collect_again()
        except StopIteration as end:
            folder: Path = end.value
            return folder


def rounds(
    scenario: Scenario, observer: Observer, out: Path | None = None, resume: bool = False, finish_round: bool = False
) -> Progress:
    """The rounds of :func:`launch`, one by one as they are released; closed early, the folder can be gone on in.

    Flower's own simulation plays all of them at once, and none is seen here.

    Args:
        scenario, observer, out, resume: as for :func:`launch`.
        finish_round: whether Ctrl-C stops after the round, also where whoever iterates is at work; else at once.
    """
    if scenario.federation.quorum is None and scenario.faults is None:  # nothing is broken on purpose
        everybody = scenario.federation.model_copy(update={"quorum": 1.0})
        scenario = scenario.model_copy(update={"federation": everybody})
    # What can be found wrong without torch is found before a folder is made.
    plan = make_plan(scenario, privacy_units(scenario))
    plan.check_budget()
    costs = beside(plan.costs)
    from fedamp.runs.folder import opened
    from fedamp.server.trackers import trackers_of

    on_flower = scenario.engine.kind == "flower"
    # Flower's own simulation plays in another process, which has them there.
    trackers = [] if on_flower else trackers_of(scenario.trackers)
    with (
        opened(scenario, out, resume, lock=not on_flower) as (folder, seed),
        _explained(folder),
        watched(folder.path, *trackers, observer) as watching,
    ):
        if on_flower:
            _play_on_flower(scenario, seed, costs, folder, watching)
        else:
            yield from _rounds_here(scenario, seed, costs, folder, watching, finish_round)
    return folder.path


def how_to_resume(folder: Path) -> str:
    """The command that goes on where a run stopped; the folder's own scenario holds every override."""
    return "go on with: " + shlex.join(
        ["fedamp", "run", str(folder / "scenario.yaml"), "--resume", "--out", str(folder)]
    )


@contextmanager
def _explained(folder: "RunFolder") -> Iterator[None]:
    """Turn what ends a run early into one line that says where to read more, or how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(how_to_resume(folder.path)) from None
    except DivergedError as error:  # it would diverge again
        raise FederationError(f"{error}; log: {folder.log}") from error
    except FederationError as error:
        raise FederationError(f"{error}; log: {folder.log}; {how_to_resume(folder.path)}") from error
    except FedampError:
        raise
    except Exception as error:
        log.exception("unexpected failure")
        raise FederationError(f"{one_line(error)[:300]}; traceback in {folder.log}") from error


def _prepare(scenario: Scenario, seed: int | None, costs: Costs) -> "Prepared":
    from fedamp.server.setup import prepare

    prepared = prepare(scenario, seed)
    prepared.plan.take(costs())
    prepared.plan.check_budget()
    return prepared


def _rounds_here(
    scenario: Scenario, seed: int | None, costs: Costs, folder: "RunFolder", observer: Observer, finish_round: bool
) -> "Iterator[RoundRecord]":
    began = perf_counter()
    from fedamp.engines.engines import choose, open_grid
    from fedamp.engines.faults import with_faults

    engine, why, prepared = scenario.engine, f"{scenario.engine.kind}: engine.kind says so", None
    if engine.kind == "auto":  # what there is to compute decides
        prepared = _prepare(scenario, seed, costs)
        engine, why = choose(scenario, prepared.work, prepared.plan.last_round)
    log.info("engine %s", why)
    # A Ray that was asked for starts in a child of its own while torch, data and model are loaded here.
    with open_grid(engine, folder.log) as grid:
        from fedamp.server.loop import rounds

        prepared = prepared or _prepare(scenario, seed, costs)
        grid.demand = prepared.demand
        if prepared.why_one_by_one:
            why += f"; clients train one by one, slower than together: {prepared.why_one_by_one}"
        prepared = replace(prepared, engine=why, began=began)
        yield from rounds(prepared, with_faults(grid, scenario.faults), folder, observer, finish_round)


def _play_on_flower(
    scenario: Scenario, seed: int | None, costs: Costs, folder: "RunFolder", observer: Observer
) -> None:
    """The same server app and client app, on Flower's own simulation."""
    from fedamp.engines import flower_engine

    seen = folder.read_rounds()
    observer.started(_prepare(scenario, seed, costs), seen)

    def watch() -> None:
        for record in folder.read_rounds()[len(seen) :]:
            seen.append(record)
            observer.round_done(record)

    path = folder.path.resolve()
    # The folder holds the scenario already, so the app resumes it, from whichever round it has reached.
    app = {"scenario": str(path / folder.scenario.name), "out": str(path)}
    config = app | {"resume": True, "known-seed": scenario.known_seed}
    flower_engine.run(config, folder.log, scenario.engine, watch)
    watch()
