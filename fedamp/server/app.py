"""The Flower ServerApp: ``flwr run .`` plays the scenario that the run configuration names.

Run configuration: ``scenario`` (path or shipped name), ``out`` (run folder; empty: a new one under ``runs``),
``resume`` and ``known-seed`` (draw from the scenario's seed, as its key ``known_seed`` asks for, too).

What it prints goes to whoever may read the run's log in Flower, so it is only what is released. Everything else, such
as which nodes were asked in which round, goes to the log in the run folder, which is the server's own.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, perf_counter, sleep

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedamp.engines.faults import with_faults
from fedamp.engines.flower import is_simulated
from fedamp.errors import DeploymentError, FederationError, fails_alone
from fedamp.federation import reader
from fedamp.federation.plan import privacy_units
from fedamp.federation.scenario import Scenario
from fedamp.runs.folder import opened
from fedamp.runs.records import RoundRecord, Score
from fedamp.server.loop import play
from fedamp.server.observers import Observer, watched
from fedamp.server.setup import Prepared, prepare
from fedamp.server.trackers import trackers_of
from fedamp.strategies.hosts import Hosts

app = ServerApp()
log = logging.getLogger("fedamp.server")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the scenario of the run configuration on the connected nodes."""
    began, config = perf_counter(), context.run_config
    scenario = reader.load(str(config["scenario"]))
    out = Path(str(config["out"])) if config.get("out") else None
    if config.get("known-seed", False):
        scenario = scenario.model_copy(update={"known_seed": True})
    known_seed = scenario.known_seed
    if scenario.faults is not None and not known_seed:
        raise DeploymentError("faults: a deployment has its own; expected: with the run configuration known-seed=true")
    Hosts.of(scenario.federation, grid, privacy_units(scenario))  # what it lacks is said before anything is made
    trackers = trackers_of(scenario.trackers)
    with opened(scenario, out, bool(config.get("resume", False))) as (folder, seed):
        prepared = replace(prepare(scenario, seed), began=began)
        prepared.plan.check_budget()
        if not is_simulated(grid):
            prepared = replace(prepared, task=prepared.task.without_places())
        wait_for_nodes(grid, scenario)
        with (
            reasons_kept_in(folder.log, secret=not known_seed),
            watched(folder.path, *trackers, PrintingObserver()) as watching,
        ):
            summary = play(prepared, with_faults(grid, scenario.faults), folder, watching)
    with fails_alone("the display"):
        quality = _words(summary.final.score)
        print(f"{summary.stopped_because} after round {summary.rounds_completed}: {quality}", flush=True)


@contextmanager
def reasons_kept_in(file: Path, secret: bool) -> Iterator[None]:
    """Why a run failed may tell who was asked; Flower shows the text of an exception to whoever reads its log."""
    try:
        yield
    except Exception:
        if not secret:
            raise
        log.exception("the run could not go on")
        raise FederationError(f"the run could not go on; why is in {file}") from None


def wait_for_nodes(grid: Grid, scenario: Scenario) -> None:
    """Wait until ``federation.nodes`` nodes are connected, or until the deadline of a round has passed.

    Raises:
        FederationError: if there is no node at all by then.
    """
    federation = scenario.federation
    deadline = monotonic() + federation.round_deadline
    while (connected := len(list(grid.get_node_ids()))) < federation.nodes and monotonic() < deadline:
        sleep(0.5)
    if connected == 0:
        raise FederationError(f"no node was connected within federation.round_deadline {federation.round_deadline:g} s")
    if connected < federation.nodes:
        log.warning("%d of federation.nodes %d are connected; the others count as zero", connected, federation.nodes)


def _words(score: Score | None) -> str:
    return "not evaluated" if score is None else f"{score[0]} {score[1]}"


class PrintingObserver(Observer):
    """Prints a line a round, of what is released."""

    only_tells = "the display"

    def started(self, prepared: Prepared, finished: list[RoundRecord]) -> None:
        plan = prepared.plan
        self._note = " (known seed: no protection from anybody who knows it)" if plan.known_seed else ""
        print(f"{plan.scenario.name}: {plan.scenario.rounds} rounds, {len(finished)} of them done", flush=True)

    def round_done(self, record: RoundRecord) -> None:
        spent = f"epsilon {record.epsilon_upper}{self._note}"
        print(f"round {record.round}: {_words(record.score)}, {spent}", flush=True)

    def stopping(self) -> None:
        print("stopping after this round", flush=True)
