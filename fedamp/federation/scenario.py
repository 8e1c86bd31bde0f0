"""The scenario: a validated YAML file. Unknown keys are refused.

How a section behaves is said by its family (:mod:`fedamp.federation.check_in`, ...). Reading is in
:mod:`fedamp.federation.reader`, error messages are in :mod:`fedamp.federation.messages`.
"""

from html import escape
from typing import Annotated

from pydantic import Field, model_validator

from fedamp.base.section import Count, Section
from fedamp.data.sections import Data, ExternalData
from fedamp.federation.check_in import AllCheckIn, AnyCheckIn
from fedamp.federation.mixing import Mixing
from fedamp.federation.optimizers import Server
from fedamp.federation.privacy import Privacy
from fedamp.federation.running import Engine, Faults, Federation
from fedamp.federation.submodels import AnySubmodels, NoSubmodels
from fedamp.federation.trackers import Trackers
from fedamp.federation.training import Client
from fedamp.models.section import Model

LONGEST_RUN = 1_000_000


class Scenario(Section):
    """One federation, from data to privacy budget."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
    description: str = ""
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    known_seed: Annotated[bool, Field(strict=True)] = False
    data: Data
    model: Model
    rounds: Annotated[Count, Field(le=LONGEST_RUN)]
    check_in: AnyCheckIn = AllCheckIn()
    submodels: AnySubmodels = NoSubmodels()
    client: Client = Client()
    server: Server = Server()
    mixing: Mixing | None = None
    privacy: Privacy
    engine: Engine = Engine()
    federation: Federation = Federation()
    faults: Faults | None = None
    trackers: Trackers = Field((), description="tensorboard, mlflow, wandb, or a section with such a name")

    def _repr_html_(self) -> str:
        from fedamp.federation.reader import dump

        return f"<pre>{escape(dump(self), quote=False)}</pre>"

    @model_validator(mode="after")
    def _possible_together(self) -> "Scenario":
        if isinstance(self.data, ExternalData):
            self.data.check(self)
        self.check_in.check(self.rounds)
        self.privacy.check(self.client)
        if self.mixing:
            self.mixing.check(self.rounds, self.server, self.privacy.clip)
        partition = getattr(self.data, "partition", None)  # synthetic data are made for so many clients
        if partition is not None:
            self._check_number_of_clients(partition.counts_clients)
        return self

    def _check_number_of_clients(self, counted: bool) -> None:
        if counted and self.data.clients is not None:
            raise ValueError(
                "data.clients must be left out with a natural partition: the column names each record's client"
            )
        if not counted and self.data.clients is None and self.privacy.unit == "client":
            raise ValueError("data.clients is required: the number of clients among which the records are partitioned")
