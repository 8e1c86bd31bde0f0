"""MLflow."""

import time
from collections.abc import Mapping
from typing import Any

from fedamp.server.trackers.tracker import Tracker

STATUSES = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
LONGEST_VALUE = 500  # letters of a setting; MLflow takes a few thousand
PER_CALL = 100  # settings that MLflow takes at once


class Mlflow(Tracker):
    """A run of an MLflow experiment, on a server or in a database; MLflow's active run is left alone.

    Args:
        uri: of the server or database; left out: ``MLFLOW_TRACKING_URI``, or MLflow's own default.
        experiment: it is made where it is missing.
        unprotected: as for :class:`fedamp.server.trackers.tracker.Tracker`.
    """

    name = "mlflow"

    def __init__(self, uri: str | None = None, experiment: str = "fedamp", unprotected: bool = False) -> None:
        super().__init__(unprotected)
        self._uri, self._experiment = uri, experiment

    def begin(self, run: str | None, name: str, settings: Mapping[str, Any]) -> str:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(tracking_uri=self._uri)
        if run is not None:
            self._client.update_run(run, status="RUNNING")
            self._id = run
            return run
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
        self._id = str(self._client.create_run(experiment, run_name=name).info.run_id)
        values = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in settings.items()]
        for first in range(0, len(values), PER_CALL):
            self._client.log_batch(self._id, params=values[first : first + PER_CALL])
        return self._id

    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, round_) for name, value in numbers.items()])

    def end(self, status: str) -> None:
        self._client.set_terminated(self._id, STATUSES[status])
