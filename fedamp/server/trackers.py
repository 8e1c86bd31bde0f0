"""Trackers that watch a run: ``fedamp.run(scenario, callbacks=[TensorBoard()])``, or ``trackers: [tensorboard]``.

They get released and public numbers: accuracy and loss on public records, and epsilon so far. Numbers that are computed
from private data without noise they get with ``unprotected=True`` only. A resumed run is told from its first round.
"""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedamp.base.version import version
from fedamp.errors import InputError, missing
from fedamp.runs.folder import RunFolder, read_summary
from fedamp.runs.records import RoundRecord
from fedamp.server.observers import Observer

if TYPE_CHECKING:
    from fedamp.server.setup import RunInputs


class Tracker(Observer):
    """A run in another program. If it fails, the run continues without it. InputError: its package is not installed.

    ``unprotected`` sends numbers that are computed from private data without noise, too.
    """

    name, _begun = "", False

    def __init__(self, *, unprotected: bool = False) -> None:
        if find_spec(self.name) is None:
            raise InputError(f"trackers: {missing(self.name)}, or without it")
        self.only_tells, self._unprotected = f"tracker {self.name}", unprotected

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Start a new run in ``self.folder``, with the scenario."""

    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Show the numbers of a round."""

    def end(self, status: str) -> None:
        """End the run: ``finished``, ``failed`` or ``interrupted``."""

    def opened(self, folder: Path) -> None:
        self.folder = folder

    def started(self, prepared: "RunInputs", finished: list[RoundRecord]) -> None:
        scenario = prepared.plan.scenario.model_dump(mode="json", exclude={"description", "trackers"})
        self.begin(scenario | {"fedamp": version()})
        self._begun = True
        for record in finished:
            self.round_done(record)

    def round_done(self, record: RoundRecord) -> None:
        numbers = {"accuracy": record.accuracy, "loss": record.loss, **record.metrics}
        numbers |= {"validation_score": record.validation_score, "epsilon": record.epsilon_upper}
        if self._unprotected:
            numbers |= {f"unprotected/{name}": float(value) for name, value in record.unprotected.items()}
        known = {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}
        self.tell(record.round, known)

    def closed(self) -> None:
        if self._begun:
            ended = RunFolder(self.folder).summary.exists()
            ending = read_summary(self.folder).stopped_because if ended else "failed"
            self.end({"budget": "finished", "diverged": "failed"}.get(ending, ending))


class TensorBoard(Tracker):
    """Event files for ``tensorboard --logdir``, in ``tensorboard`` in the run folder."""

    name = "tensorboard"

    def begin(self, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        where = str((self.folder / "tensorboard").resolve())
        self._writer = SummaryWriter(where, purge_step=0)  # drops the rounds before a resumption
        self._writer.add_text("scenario", f"```\n{json.dumps(settings, indent=1)}\n```")

    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round_)
        self._writer.flush()

    def end(self, status: str) -> None:
        self._writer.close()


class Mlflow(Tracker):
    """A run of the experiment ``MLFLOW_EXPERIMENT_NAME`` (fedamp) at ``MLFLOW_TRACKING_URI``; no other is touched."""

    name = "mlflow"

    def begin(self, settings: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client, experiment = MlflowClient(), os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedamp")
        found = self._client.get_experiment_by_name(experiment)
        where = found.experiment_id if found else self._client.create_experiment(experiment)
        self._id = self._client.create_run(where, run_name=self.folder.name).info.run_id
        values = [Param(key, str(value)[:500]) for key, value in _flat(settings)]
        for first in range(0, len(values), 100):  # MLflow takes no more, and no longer ones
            self._client.log_batch(self._id, params=values[first : first + 100])

    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, round_) for name, value in numbers.items()])

    def end(self, status: str) -> None:
        self._client.set_terminated(self._id, {"interrupted": "KILLED"}.get(status, status.upper()))


class Wandb(Tracker):
    """A run of the project ``WANDB_PROJECT`` (fedamp), without W&B's own data about machine, code and terminal."""

    name = "wandb"

    def begin(self, settings: Mapping[str, Any]) -> None:
        import wandb

        quiet = wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True
        )
        where: dict[str, Any] = {"project": os.environ.get("WANDB_PROJECT", "fedamp"), "dir": self.folder}
        self._there = wandb.init(
            **where, name=self.folder.name, reinit="create_new", config=dict(_flat(settings)), settings=quiet
        )

    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        self._there.log(dict(numbers), step=round_)

    def end(self, status: str) -> None:
        self._there.finish(exit_code=int(status == "failed"))


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        yield from _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else [(above + key, value)]


def trackers_of(names: Sequence[str]) -> list[Tracker]:
    """The trackers of a scenario; InputError if a package that one needs is not installed."""
    kinds = {kind.name: kind for kind in (TensorBoard, Mlflow, Wandb)}
    return [kinds[name]() for name in names]
