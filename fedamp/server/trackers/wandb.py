"""Weights & Biases."""

import secrets
from collections.abc import Mapping
from typing import Any

from fedamp.server.trackers.tracker import Tracker


class Wandb(Tracker):
    """A run of a W&B project; what W&B collects of the machine, the code and the terminal by itself is switched off.

    Args:
        project: it is made where it is missing.
        mode: ``online``, or ``offline`` for files in the run folder that ``wandb sync`` sends.
        unprotected: as for :class:`fedamp.server.trackers.tracker.Tracker`.
    """

    name = "wandb"

    def __init__(self, project: str = "fedamp", mode: str = "online", unprotected: bool = False) -> None:
        super().__init__(unprotected)
        self._project, self._mode = project, mode

    def begin(self, run: str | None, name: str, settings: Mapping[str, Any]) -> str:
        import wandb

        id_ = run or secrets.token_hex(6)
        quiet = wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True
        )
        self._there = wandb.init(
            project=self._project,
            id=id_,
            name=name,
            resume="allow",
            reinit="create_new",
            mode=self._mode,
            dir=self.folder,
            config=dict(settings),
            settings=quiet,
        )
        return id_

    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        self._there.log(dict(numbers), step=round_)

    def end(self, status: str) -> None:
        self._there.finish(exit_code=int(status == "failed"))
