"""Records that only a Flower app of one's own can read: here there is nothing but their owners' number."""

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fedamp.data.form import Form
from fedamp.data.sections import ExternalData
from fedamp.data.source import sources
from fedamp.errors import DataError


@sources.register("external")
@dataclass(frozen=True)
class ExternalSource:
    """Counts clients; records are refused."""

    config: ExternalData
    folder: Path

    def count_clients(self) -> int:
        return self.config.clients

    def count_records(self) -> int:
        return self._refuse()

    def load(self, seed: int, form: Form) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise DataError(
            "data: external is read by a Flower app of your own, with fedamp.server.own_app.AppStrategy "
            "(docs/flower-app); expected here: data of another name"
        )
