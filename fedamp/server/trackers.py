"""Trackers that watch a run: ``fedamp.run(scenario, callbacks=[TensorBoard()])``, or ``trackers: [tensorboard]``.

They get released and public numbers: accuracy and loss on public records, and epsilon so far. Numbers that are computed
from private data without noise they get with ``unprotected=True`` only. A resumed run is told from its first round.
"""

import json
import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedamp.base.section import Section
from fedamp.base.version import version
from fedamp.errors import InputError, missing
from fedamp.runs.folder import RunFolder, read_summary
from fedamp.runs.records import RoundRecord
from fedamp.server.observers import Observer

if TYPE_CHECKING:
    from fedamp.server.setup import Prepared

LONGEST_VALUE, PER_CALL = 500, 100  # letters of a setting, and settings at once, that MLflow takes


@dataclass
class Tracker(Observer):
    """A run in another program; InputError if its package is not installed. If it fails, the run continues without it.

    Args:
        unprotected: also send numbers that are computed from private data without noise.
    """

    name: ClassVar[str]
    unprotected: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if find_spec(self.name) is None:
            raise InputError(f"trackers: {missing(self.name)}, or without it")
        self.only_tells, self._begun = f"tracker {self.name}", False

    @abstractmethod
    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Start a new run with a name and the scenario by key path."""

    @abstractmethod
    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Show the numbers of a round."""

    @abstractmethod
    def end(self, status: str) -> None:
        """End the run: ``finished``, ``failed`` or ``interrupted``."""

    def opened(self, folder: Path) -> None:
        self.run_folder = folder

    def started(self, prepared: "Prepared", finished: list[RoundRecord]) -> None:
        scenario = prepared.plan.scenario.model_dump(mode="json", exclude={"description", "trackers"})
        self.begin(self.run_folder.name, flat(scenario) | {"fedamp": version()})
        self._begun = True
        for record in finished:
            self.round_done(record)

    def round_done(self, record: RoundRecord) -> None:
        numbers = {"accuracy": record.accuracy, "loss": record.loss, **record.metrics}
        numbers |= {"validation_score": record.validation_score, "epsilon": record.epsilon_upper}
        if self.unprotected:
            numbers |= {f"unprotected/{name}": float(value) for name, value in record.unprotected.items()}
        shown = {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}
        self.tell(record.round, shown)

    def closed(self) -> None:
        if self._begun:
            ended = RunFolder(self.run_folder).summary.exists()
            ending = read_summary(self.run_folder).stopped_because if ended else "failed"
            self.end({"budget": "finished", "diverged": "failed"}.get(ending, ending))


@dataclass
class TensorBoard(Tracker):
    """Event files for ``tensorboard --logdir`` in ``folder``; default: ``tensorboard`` in the run folder."""

    name: ClassVar[str] = "tensorboard"
    folder: str | Path | None = None

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        where = Path(self.folder) / name if self.folder else self.run_folder / "tensorboard"
        self._writer = SummaryWriter(str(where.resolve()), purge_step=0)  # drops the rounds before a resumption
        self._writer.add_text("scenario", f"```\n{json.dumps(settings, indent=1)}\n```")

    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round_)
        self._writer.flush()

    def end(self, status: str) -> None:
        self._writer.close()


@dataclass
class Mlflow(Tracker):
    """A run of an MLflow experiment, on a server or in a database; MLflow's active run is left alone.

    ``uri`` is of the server or database; default: ``MLFLOW_TRACKING_URI``, or MLflow's own default. The experiment is
    created if it does not exist.
    """

    name: ClassVar[str] = "mlflow"
    uri: str | None = None
    experiment: str = "fedamp"

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(tracking_uri=self.uri)
        found = self._client.get_experiment_by_name(self.experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self.experiment)
        self._id = self._client.create_run(experiment, run_name=name).info.run_id
        values = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in settings.items()]
        for first in range(0, len(values), PER_CALL):
            self._client.log_batch(self._id, params=values[first : first + PER_CALL])

    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, round_) for name, value in numbers.items()])

    def end(self, status: str) -> None:
        self._client.set_terminated(self._id, {"interrupted": "KILLED"}.get(status, status.upper()))


@dataclass
class Wandb(Tracker):
    """A run of a W&B project, made if there is none, without W&B's own data about machine, code and terminal.

    ``mode`` is ``online``, or ``offline`` for files in the run folder that ``wandb sync`` sends.
    """

    name: ClassVar[str] = "wandb"
    project: str = "fedamp"
    mode: str = "online"

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        import wandb

        quiet = wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True
        )
        where: dict[str, Any] = {"project": self.project, "mode": self.mode, "dir": self.run_folder}
        self._there = wandb.init(**where, name=name, reinit="create_new", config=dict(settings), settings=quiet)

    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        self._there.log(dict(numbers), step=round_)

    def end(self, status: str) -> None:
        self._there.finish(exit_code=int(status == "failed"))


def flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {above + key: value}
    return found


_KINDS: dict[str, type[Tracker]] = {kind.name: kind for kind in (TensorBoard, Mlflow, Wandb)}


def trackers_of(sections: Sequence[Section]) -> list[Tracker]:
    """The trackers of a scenario; InputError if a package that one needs is not installed."""
    asked = [section.model_dump() for section in sections]
    return [_KINDS[each.pop("name")](**each) for each in asked]
