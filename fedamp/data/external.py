"""Records that only a custom Flower app reads: fedamp knows the number of clients."""

from pathlib import Path
from typing import Literal, NoReturn

from pydantic import Field

from fedamp.base.section import Count
from fedamp.data.dataset import DataSection
from fedamp.data.form import CLASSIFICATION, Form
from fedamp.errors import DataError


class ExternalData(DataSection):
    """Records that a custom Flower app reads on its nodes; fedamp knows the number of clients."""

    name: Literal["external"]
    clients: Count = Field(description="number of clients, with ids 0, 1, ...: the nodes' partition-id or hosts")

    def count_clients(self, folder: Path) -> int:
        return self.clients

    def count_records(self, folder: Path) -> NoReturn:
        raise DataError(
            "data: external is read by a custom Flower app, with fedamp.server.custom_app.AppStrategy "
            "(docs/flower-app); expected here: data of another name"
        )

    def load(self, seed: int, folder: Path, form: Form = CLASSIFICATION) -> NoReturn:
        self.count_records(folder)
