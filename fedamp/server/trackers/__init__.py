"""Trackers that watch a run: ``fedamp.run(scenario, callbacks=[TensorBoard()])``, or ``trackers: [tensorboard]``.

They are told what is released and what is public: accuracy and loss on public records, and epsilon so far. What is
computed from private data without noise they get with ``unprotected=True`` only. A run that is gone on with continues
where its tracker stopped.
"""

from collections.abc import Sequence

from fedamp.base.section import Section
from fedamp.server.trackers.mlflow import Mlflow
from fedamp.server.trackers.tensorboard import TensorBoard
from fedamp.server.trackers.tracker import Tracker
from fedamp.server.trackers.wandb import Wandb

__all__ = ["Mlflow", "TensorBoard", "Wandb", "trackers_of"]

_KINDS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": Mlflow, "wandb": Wandb}


def trackers_of(sections: Sequence[Section]) -> list[Tracker]:
    """The trackers that a scenario asks for.

    Raises:
        InputError: a package that one needs is not installed.
    """
    asked = [section.model_dump() for section in sections]
    return [_KINDS[each.pop("name")](**each) for each in asked]
