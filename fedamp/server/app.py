"""The Flower ServerApp: ``flwr run .`` plays the scenario that the run configuration names.

Run configuration: ``scenario`` (path or shipped name), ``out`` (run folder; empty: a new one under ``runs``),
``resume`` and ``rehearse`` (draw from the scenario's seed instead of the operating system's).
"""

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedamp import rng, scenario_file
from fedamp.errors import RunFolderError
from fedamp.server.loop import play
from fedamp.server.run_folder import RoundRecord, RunFolder, existing_folder, new_folder
from fedamp.server.setup import Prepared, prepare

app = ServerApp()
log = logging.getLogger("fedamp.server")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the scenario of the run configuration on the connected nodes."""
    config = context.run_config
    scenario = scenario_file.load(str(config["scenario"]))
    out = Path(str(config["out"])) if config.get("out") else None
    resume = bool(config.get("resume", False))
    folder = existing_folder(out, scenario.name) if resume else new_folder(out, scenario.name)
    seed = None if config.get("rehearse", False) else system_seed(folder, resume)
    prepared = prepare(scenario, seed)
    folder.write_scenario(scenario)
    summary = play(prepared, grid, folder, LoggingObserver())
    log.info("%s after round %d: %s", summary.stopped_because, summary.rounds_completed, summary.final)


def system_seed(folder: RunFolder, resume: bool) -> int:
    """A deployment's seed: drawn from the operating system, kept in the run folder for its owner alone to resume."""
    file = folder.path / "seed.secret"
    if resume:
        try:
            return int(file.read_text())
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{file}: the run's secret seed cannot be read ({error})") from None
    seed = rng.seed_from_system()
    file.touch(mode=0o600)
    file.write_text(str(seed))
    return seed


class LoggingObserver:
    """Writes a line a round to the log."""

    def started(self, prepared: Prepared, finished: list[RoundRecord]) -> None:
        log.info(
            "%s: %d rounds, %s", prepared.plan.scenario.name, prepared.plan.scenario.rounds, prepared.plan.mechanism
        )

    def round_done(self, record: RoundRecord) -> None:
        log.info("round %d: accuracy %s, epsilon %s", record.round, record.accuracy, record.epsilon_upper)

    def stopping(self) -> None:
        log.warning("stopping after this round")
