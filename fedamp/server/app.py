"""The Flower ServerApp: ``flwr run .`` plays the scenario that the run configuration names.

Run configuration: ``scenario`` (path or shipped name), ``out`` (run folder; empty: a new one under ``runs``),
``resume`` and ``rehearse`` (draw from the scenario's seed instead of the operating system's).

What it prints goes to whoever may read the run's log in Flower, so it is only what is released. Everything else, such
as which nodes were asked in which round, goes to the log in the run folder, which is the server's own.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedamp import rng
from fedamp.errors import DeploymentError, FederationError, RunFolderError
from fedamp.flower import chatter_to
from fedamp.runs.files import flush, locked
from fedamp.runs.folder import RoundRecord, RunFolder, existing_folder, new_folder
from fedamp.scenario import Scenario, scenario_file
from fedamp.server.loop import play
from fedamp.server.setup import Prepared, prepare
from fedamp.simulation.faults import with_faults

app = ServerApp()
log = logging.getLogger("fedamp.server")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the scenario of the run configuration on the connected nodes."""
    config = context.run_config
    scenario = scenario_file.load(str(config["scenario"]))
    out = Path(str(config["out"])) if config.get("out") else None
    resume, rehearse = bool(config.get("resume", False)), bool(config.get("rehearse", False))
    if scenario.faults is not None and not rehearse:
        raise DeploymentError("faults: a deployment has its own; accepted: with the run configuration rehearse=true")
    folder = existing_folder(out, scenario.name) if resume else None
    seed = None if rehearse else rng.seed_from_system() if folder is None else read_seed(folder)
    prepared = prepare(scenario, seed)
    if folder is None:
        folder = new_folder(out, scenario.name)
        folder.path.chmod(0o700)
        if seed is not None:
            keep_seed(folder, seed)
        folder.write_scenario(scenario)
    folder.log.touch()
    with chatter_to(folder.log, "fedamp"), locked(folder.path / ".server") as free:
        if not free:
            raise RunFolderError(f"{folder.path}: another process is running in it")
        wait_for_nodes(grid, scenario)
        with _kept_to_ourselves(folder, rehearse):
            summary = play(prepared, with_faults(grid, scenario.faults), folder, PrintingObserver())
    print(f"{summary.stopped_because} after round {summary.rounds_completed}: {summary.final}", flush=True)


@contextmanager
def _kept_to_ourselves(folder: RunFolder, rehearse: bool) -> Iterator[None]:
    """Why a run failed may tell who was asked; Flower shows the text of an exception to whoever reads its log."""
    try:
        yield
    except Exception:
        if rehearse:
            raise
        log.exception("the run could not go on")
        raise FederationError(f"the run could not go on; why is in {folder.log}") from None


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


def keep_seed(folder: RunFolder, seed: int) -> None:
    """Keep the secret seed of a new run in its folder, for its owner alone to resume."""
    descriptor = os.open(_seed_file(folder), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600)
    with open(descriptor, "w") as stream:
        stream.write(str(seed))
        stream.flush()
        os.fsync(descriptor)
    flush(folder.path)


def read_seed(folder: RunFolder) -> int:
    """The seed of a deployment to go on with.

    Raises:
        RunFolderError: if it is not there, as in the folder of a rehearsal.
    """
    file = _seed_file(folder)
    try:
        return int(file.read_text())
    except OSError as error:
        raise RunFolderError(f"{file}: the run's secret seed cannot be read ({error.strerror})") from None
    except ValueError:  # whose message would tell what it found
        raise RunFolderError(f"{file}: damaged: the run's secret seed is not a number") from None


def _seed_file(folder: RunFolder) -> Path:
    return folder.path / "seed.secret"


class PrintingObserver:
    """Prints a line a round, of what is released."""

    def started(self, prepared: Prepared, finished: list[RoundRecord]) -> None:
        plan = prepared.plan
        print(f"{plan.scenario.name}: {plan.scenario.rounds} rounds, {len(finished)} of them done", flush=True)

    def round_done(self, record: RoundRecord) -> None:
        print(f"round {record.round}: accuracy {record.accuracy}, epsilon {record.epsilon_upper}", flush=True)

    def stopping(self) -> None:
        print("stopping after this round", flush=True)
