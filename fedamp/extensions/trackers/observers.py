"""Watch a run with trackers: ``fedamp.run(scenario, callbacks=[TensorBoard()])``, or ``trackers: [tensorboard]``.

They get released and public numbers: accuracy and loss on public records, and epsilon so far. Numbers that are computed
from private data without noise they get with ``unprotected=True`` only. A resumed run is told from its first round.

:class:`fedamp.server.observers.Observer` says when each method is called.
"""

import ipaddress
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedamp.base.files import make_folder
from fedamp.base.version import version
from fedamp.errors import InputError, missing
from fedamp.runs.folder import RunFolder, read_summary
from fedamp.runs.records import RoundRecord
from fedamp.server.observers import Observer

if TYPE_CHECKING:
    from fedamp.server.setup import RunInputs


class Tracker(Observer):
    """A run in another program. If it fails, the run continues without it.

    A further tracker overrides :meth:`begin`, :meth:`tell` and :meth:`end`.

    Args:
        unprotected: send numbers that are computed from private data without noise, too.

    Attributes:
        name: in a scenario.
        module: that must be installed; default: that of the name.
        folder: of the run.

    Raises:
        InputError: the package is not installed.
    """

    name, module, _begun = "", "", False

    def __init__(self, *, unprotected: bool = False) -> None:
        if find_spec(module := self.module or self.name) is None:
            raise InputError(f"trackers: {missing(module)}, or without it")
        self.only_tells, self._unprotected = f"tracker {self.name}", unprotected

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Start a new run in ``self.folder``, with the scenario.

        Args:
            settings: of the scenario, with fedamp's version.
        """

    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Show the numbers of a round.

        Args:
            round_: from 1.
            numbers: finite ones alone, by name.
        """

    def end(self, status: str) -> None:
        """End the run.

        Args:
            status: ``finished``, ``failed`` or ``interrupted``.
        """

    def opened(self, folder: Path) -> None:
        """Keep the run's folder."""
        self.folder = folder

    def started(self, inputs: "RunInputs", finished: list[RoundRecord]) -> None:
        """Begin, and tell the rounds that a resumed run has finished."""
        scenario = inputs.plan.scenario.model_dump(mode="json", exclude={"description", "trackers"})
        self.begin(scenario | {"fedamp": version()})
        self._begun = True
        for record in finished:
            self.round_done(record)

    def round_done(self, record: RoundRecord) -> None:
        """Tell the numbers of a released round."""
        numbers = {"accuracy": record.accuracy, "loss": record.loss, **record.metrics}
        numbers |= {"validation_score": record.validation_score, "epsilon": record.epsilon_upper}
        if self._unprotected:
            numbers |= {f"unprotected/{name}": float(value) for name, value in record.unprotected.items()}
        known = {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}
        self.tell(record.round, known)

    def closed(self) -> None:
        """End with the status of the run, if it has begun."""
        if self._begun:
            ended = RunFolder(self.folder).summary.exists()
            ending = read_summary(self.folder).stopped_because if ended else "failed"
            self.end({"budget": "finished", "diverged": "failed"}.get(ending, ending))


class TensorBoard(Tracker):
    """Writes event files for ``tensorboard --logdir``, in ``tensorboard`` in the run folder."""

    name = "tensorboard"

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Open the event file, without the rounds before a resumption."""
        from torch.utils.tensorboard import SummaryWriter

        make_folder(where := self.folder / "tensorboard")
        self._writer = SummaryWriter(str(where.resolve()), purge_step=0)  # drops the rounds before a resumption
        self._writer.add_text("scenario", f"```\n{json.dumps(settings, indent=1)}\n```")

    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a round, and flush them."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round_)
        self._writer.flush()

    def end(self, status: str) -> None:
        """Close the event file."""
        self._writer.close()


class Mlflow(Tracker):
    """Writes a run to MLflow: experiment ``MLFLOW_EXPERIMENT_NAME`` (fedamp) at ``MLFLOW_TRACKING_URI``.

    No other run or experiment is touched.
    """

    name = "mlflow"

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Create a run, and log the settings as parameters of at most 500 letters."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client, experiment = MlflowClient(), os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedamp")
        found = self._client.get_experiment_by_name(experiment)
        where = found.experiment_id if found else self._client.create_experiment(experiment)
        self._id = self._client.create_run(where, run_name=self.folder.name).info.run_id
        values = [Param(key, str(value)[:500]) for key, value in _flat_settings(settings)]
        for first in range(0, len(values), 100):  # MLflow takes no more, and no longer ones
            self._client.log_batch(self._id, params=values[first : first + 100])

    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of a round."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, round_) for name, value in numbers.items()])

    def end(self, status: str) -> None:
        """End the run."""
        self._client.set_terminated(self._id, {"interrupted": "KILLED"}.get(status, status.upper()))


class Wandb(Tracker):
    """Writes a run to Weights & Biases: project ``WANDB_PROJECT`` (fedamp).

    Its own data about machine, code and terminal are not sent.
    """

    name = "wandb"

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Create a run with the settings."""
        import wandb

        make_folder(self.folder / "wandb")  # its place in ``dir``
        quiet = wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True
        )
        where: dict[str, Any] = {"project": os.environ.get("WANDB_PROJECT", "fedamp"), "dir": self.folder}
        self._there = wandb.init(
            **where, name=self.folder.name, reinit="create_new", config=dict(_flat_settings(settings)), settings=quiet
        )

    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of a round."""
        self._there.log(dict(numbers), step=round_)

    def end(self, status: str) -> None:
        """End the run, as failed if it has failed."""
        self._there.finish(exit_code=int(status == "failed"))


# What Prometheus gets, by name; ``_total`` ends those that only grow. Wall clocks are here alone.
METRICS = {
    "fedamp_rounds_planned": "planned rounds",
    "fedamp_rounds_total": "released rounds",
    "fedamp_epsilon_spent": "upper end of epsilon after the last release, as in the ledger",
    "fedamp_epsilon_left": "the budget, or epsilon of all planned rounds, minus what is spent",
    "fedamp_nodes": "nodes that the scenario names or waits for",
    "fedamp_nodes_answering": "the same without those that are given up",
    "fedamp_round_seconds": "duration of the last released round",
    "fedamp_seconds_total": "duration of all released rounds",
    "fedamp_loss": "loss of the last evaluated model, on public records",
    "fedamp_score": "main metric of that model",
    "fedamp_told_timestamp_seconds": "time of the last release",
}


class Prometheus(Tracker):
    """Serves ``http://127.0.0.1:9464/metrics`` while the run lasts (``FEDAMP_METRICS``: another loopback HOST:PORT).

    Any user of this machine may ask: it tells no ``unprotected`` numbers, nor how many units check in.

    Raises:
        InputError: the address is not a loopback one, or the package is not installed.
    """

    name, module = "prometheus", "prometheus_client"

    def __init__(self) -> None:
        super().__init__()
        asked = os.environ.get("FEDAMP_METRICS", "127.0.0.1:9464")
        self._host, _, port = asked.replace("[", "").replace("]", "").rpartition(":")
        fine = port.isdecimal() and 0 < int(port) < 65536
        try:
            fine &= ipaddress.ip_address(self._host).is_loopback
        except ValueError:
            fine = False
        if not fine:
            raise InputError(f"FEDAMP_METRICS {asked}: expected: a loopback address and a port, as 127.0.0.1:9464")
        self._port, self._lost = int(port), set[int]()
        self._numbers: dict[str, float] = {}

    def started(self, inputs: "RunInputs", finished: list[RoundRecord]) -> None:
        """Count the rounds that a resumed run has finished, and serve the numbers."""
        from prometheus_client import CollectorRegistry, start_http_server

        plan, federation = inputs.plan, inputs.plan.scenario.federation
        self._budget = plan.scenario.privacy.epsilon or plan.charge.planned_epsilon.upper
        self._nodes = len(federation.hosted_units) or federation.nodes
        sums = [name for name in METRICS if name.endswith("_total")]
        self._numbers = dict.fromkeys(sums, 0.0) | {"fedamp_rounds_planned": plan.last_round}
        for record in finished:
            self.round_done(record)
        registry = CollectorRegistry()
        registry.register(self)
        self._server, self._thread = start_http_server(self._port, self._host, registry)
        self._begun = True

    def round_done(self, record: RoundRecord) -> None:
        """Replace the numbers by those after a release, all at once, because another thread reads them."""
        self._lost = (self._lost | set(record.nodes_given_up)) - set(record.nodes_back)
        now = dict(self._numbers)
        now["fedamp_rounds_total"] += 1
        now["fedamp_seconds_total"] += record.seconds
        now |= {
            "fedamp_epsilon_spent": record.epsilon_upper,
            "fedamp_epsilon_left": self._budget - record.epsilon_upper,
            "fedamp_nodes": self._nodes,
            "fedamp_nodes_answering": self._nodes - len(self._lost),
            "fedamp_round_seconds": record.seconds,
            "fedamp_told_timestamp_seconds": time.time(),
        }
        if record.score is not None and record.loss is not None:
            now |= {"fedamp_loss": record.loss, "fedamp_score": record.score[1]}
        self._numbers = now  # at once: another thread reads it

    def collect(self) -> Iterator[Any]:
        """Yield the numbers of the last release, for the server's thread."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, number in self._numbers.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(name, METRICS[name], number)

    def end(self, status: str) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _flat_settings(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings by keys with dots."""
    for key, value in settings.items():
        yield from _flat_settings(value, f"{above}{key}.") if isinstance(value, Mapping) else [(above + key, value)]
