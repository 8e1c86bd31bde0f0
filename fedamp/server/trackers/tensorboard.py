"""TensorBoard."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedamp.server.trackers.tracker import Tracker


class TensorBoard(Tracker):
    """Event files that ``tensorboard --logdir`` shows.

    Args:
        folder: where to; left out: ``tensorboard`` in the run folder.
        unprotected: as for :class:`fedamp.server.trackers.tracker.Tracker`.
    """

    name = "tensorboard"

    def __init__(self, folder: str | Path | None = None, unprotected: bool = False) -> None:
        super().__init__(unprotected)
        self._asked = folder

    def begin(self, run: str | None, name: str, settings: Mapping[str, Any]) -> str:
        from torch.utils.tensorboard import SummaryWriter

        where = Path(self._asked) / name if self._asked else self.folder / "tensorboard"
        self._writer = SummaryWriter(run or str(where.resolve()))
        if run is None:
            self._writer.add_text("scenario", f"```\n{json.dumps(settings, indent=1)}\n```")
        return str(self._writer.log_dir)

    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round_)
        self._writer.flush()

    def end(self, status: str) -> None:
        self._writer.close()
