"""Which trackers a run reports to: public numbers only, unless the scenario says otherwise."""

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from fedamp.base.section import Section


def _without_password(uri: str) -> str:
    """Refuse a password: a run folder keeps its scenario. The message does not repeat it."""
    try:
        is_secret = urlsplit(uri).password is not None
    except ValueError:
        is_secret = "@" in uri
    if is_secret:
        raise ValueError(
            "holds a password, which the run folder would keep; expected: no password here, and "
            "MLFLOW_TRACKING_USERNAME with MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_URI, in the environment"
        )
    return uri


class _Tracker(Section):
    """Keys of all trackers."""

    unprotected: bool = Field(
        False, description="also what is computed from private data without noise, such as the training loss"
    )


class TensorBoardTracker(_Tracker):
    """TensorBoard's event files (extra ``tensorboard``)."""

    name: Literal["tensorboard"]
    folder: str | None = Field(None, description="default: tensorboard in the run folder")


class MlflowTracker(_Tracker):
    """An MLflow server or database (extra ``mlflow``)."""

    name: Literal["mlflow"]
    uri: Annotated[str, AfterValidator(_without_password)] | None = Field(
        None, description="e.g. sqlite:///mlflow.db or https://...; default: MLflow's own"
    )
    experiment: str = "fedamp"


class WandbTracker(_Tracker):
    """Weights & Biases (extra ``wandb``)."""

    name: Literal["wandb"]
    project: str = "fedamp"
    mode: Literal["online", "offline"] = Field("online", description="offline: into the run folder, for `wandb sync`")


def _named(value: Any) -> Any:
    """A tracker without keys of its own may be written as its name."""
    return {"name": value} if isinstance(value, str) else value


def _once(trackers: tuple[_Tracker, ...]) -> tuple[_Tracker, ...]:
    names = [getattr(tracker, "name", "") for tracker in trackers]
    if len(set(names)) < len(names):
        raise ValueError("a tracker stands twice; expected: each once")
    return trackers


Tracker = Annotated[
    Annotated[TensorBoardTracker | MlflowTracker | WandbTracker, Field(discriminator="name")], BeforeValidator(_named)
]
Trackers = Annotated[tuple[Tracker, ...], AfterValidator(_once)]
