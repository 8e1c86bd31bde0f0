"""The Flower ServerApp: ``flwr run .`` plays the scenario of the run configuration.

Run configuration: ``scenario`` (path or shipped name), ``out`` (run folder; empty: a new one under ``runs``),
``resume``, and ``known-seed`` (draw from the scenario's seed; its key ``known_seed`` asks for the same).
Everybody who may read Flower's log of the run sees what the app prints, so it prints released numbers only. All else,
such as the nodes of a round, goes to the log in the server's run folder.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedamp.base import devices
from fedamp.base.log_lines import line_of
from fedamp.engines.deployment import guarded
from fedamp.engines.engines import with_faults
from fedamp.engines.flower import is_simulated
from fedamp.errors import (
    OF_FLOWER,
    DeploymentError,
    FederationError,
    LoggedWarning,
    UnwritableError,
    fails_alone,
    in_words_of,
)
from fedamp.federation import reader
from fedamp.federation.plan import privacy_units
from fedamp.federation.scenario import Scenario
from fedamp.federation.side_sums import SideRelease
from fedamp.runs.folder import opened
from fedamp.runs.records import RoundRecord, Score
from fedamp.server.loop import play
from fedamp.server.observers import Forewarning, Observer, trackers_of, watched
from fedamp.server.setup import RunInputs, prepare
from fedamp.strategies.roster import permits

app = ServerApp()
log = logging.getLogger("fedamp.server")


@app.main()
@in_words_of(OF_FLOWER)
def main(grid: Grid, context: Context) -> None:
    """Play the scenario of the run configuration on the connected nodes.

    Args:
        grid: Flower's, of a deployment or a simulation.
        context: Flower's, with the run configuration.

    Raises:
        InputError: nothing was run.
        FederationError: no node is connected, or the run failed; the reason is in the run folder's log.
    """
    with guarded(grid) as safe:
        _play_configured(safe, context)


def _play_configured(grid: Grid, context: Context) -> None:
    """Play the scenario of the run configuration on a grid that trusts no reply."""
    began, config = perf_counter(), context.run_config
    scenario = reader.load(str(config["scenario"]))
    out = Path(str(config["out"])) if config.get("out") else None
    if config.get("known-seed", False):
        scenario = scenario.model_copy(update={"known_seed": True})
    known_seed = scenario.known_seed
    if scenario.faults is not None and not known_seed:
        raise DeploymentError("faults: a deployment has its own; expected: with the run configuration known-seed=true")
    permits(scenario.federation, grid, privacy_units(scenario))  # raises before any file is made
    trackers = trackers_of(scenario.trackers)
    with opened(scenario, out, bool(config.get("resume", False))) as (folder, seed):
        inputs = replace(prepare(scenario, seed), began=began)
        inputs.plan.charge.check_budget()
        if not is_simulated(grid):
            inputs = replace(inputs, task=inputs.task.without_places())
        wait_for_nodes(grid, scenario)
        with (
            reasons_kept_in(folder.log, secret=not known_seed),
            watched(folder.path, Forewarning(None), *trackers, PrintingObserver()) as watching,
        ):
            watching.prepared(inputs)
            summary = play(inputs, with_faults(grid, scenario.faults), folder, watching)
    with fails_alone("the display"):
        quality = _quality_in_words(summary.final.score, summary.side_release)
        _print_line(f"{summary.stopped_because} after round {summary.rounds_completed}: {quality}")


@contextmanager
def reasons_kept_in(file: Path, secret: bool) -> Iterator[None]:
    """Keep in a file why a run or its units failed: readers of Flower's log see all exceptions and warnings.

    Args:
        file: the log of the run.
        secret: whether the seed is secret; a known one protects nothing, and errors go on as they are.

    Raises:
        UnwritableError: a file cannot be written; the log may lack room for that line.
        FederationError: the run failed; the line names the file.
    """
    try:
        with warnings.catch_warnings():
            if secret:
                warnings.simplefilter("ignore", LoggedWarning)
            yield
    except Exception as error:
        if not secret or isinstance(error, UnwritableError):  # a full disk tells nothing of records
            raise
        log.exception("the run failed")
        raise FederationError(f"the run failed; the reason is in {file}") from None


def wait_for_nodes(grid: Grid, scenario: Scenario) -> None:
    """Wait for ``federation.nodes`` nodes until the deadline of a round, or longer on a busy machine.

    With fewer nodes then, the log says so, and the units of the others count as zero.

    Raises:
        FederationError: no node is connected.
    """
    federation, began = scenario.federation, monotonic()
    seconds = federation.round_deadline * devices.patience_factor()
    while (connected := len(list(grid.get_node_ids()))) < federation.nodes and monotonic() < began + seconds:
        sleep(0.5)
    if connected == 0:
        busy = devices.busy_words()
        raise FederationError(
            f"no node was connected within federation.round_deadline {federation.round_deadline:g} s{busy}"
        )
    if connected < federation.nodes:
        told = connected, federation.nodes, devices.busy_words()
        log.warning("%d of federation.nodes %d are connected; the others count as zero%s", *told)


def _quality_in_words(score: Score | None, side: SideRelease | None) -> str:
    """Say how good a model is: on public records, or else as a released side sum says."""
    return f"{score[0]} {score[1]}" if score else (side.in_short if side else "not evaluated")


def _print_line(message: str, **facts: Any) -> None:
    """Print a line for everybody who reads Flower's log."""
    print(line_of("fedamp.server", message, **facts), flush=True)


class PrintingObserver(Observer):
    """Observer that prints the released numbers, a line a round: everybody who reads Flower's log may see them."""

    only_tells = "the display"

    def started(self, inputs: RunInputs, finished: list[RoundRecord]) -> None:
        plan = inputs.plan
        said = plan.rehearsal or "known seed: no protection from anyone who knows it"
        self._note = f" ({said})" if plan.known_seed else ""
        _print_line(f"{plan.scenario.name}: {plan.scenario.rounds} rounds, {len(finished)} of them done")

    def round_done(self, record: RoundRecord) -> None:
        spent = f"epsilon {record.epsilon_upper}{self._note}"
        told = f"round {record.round}: {_quality_in_words(record.score, record.side_release)}, {spent}"
        _print_line(told, round=record.round, epsilon_spent=record.epsilon_upper)
