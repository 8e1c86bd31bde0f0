"""What a node is told of a run, the same in every order (no torch here)."""

import hashlib
import logging
from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from fedamp.base.record import Record
from fedamp.client.memory import StackSize
from fedamp.data.sections import Data
from fedamp.federation.aggregation import Terms
from fedamp.federation.submodels import AnySubmodels
from fedamp.federation.training import LocalTraining
from fedamp.models.custom import is_import_path
from fedamp.models.model import Model

log = logging.getLogger("fedamp.client")

# What a node tells the server about a unit that failed: why follows from the unit's data, and is in the node's own log.
UNTRAINABLE = "a unit's records cannot be trained on; the node's log says more"

DATA_PLACES = ("path", "dataset")  # the keys of a data section that may name a folder


class ClientTask(Record):
    """The part of a plan that clients may know; ``model``, ``client``, ``submodels``, ``data`` are its sections."""

    version: Literal[5] = 5  # of what nodes are told; a node of another fedamp refuses it
    model: Model  # with ``frozen_sha256``, so that a node with other frozen weights refuses
    input_shape: tuple[int, ...]  # of one record
    num_classes: int  # how many numbers the model answers with, for every record or token
    client: LocalTraining  # one step where the unit is a sample
    unit: Literal["client", "sample"]  # what is clipped and protected
    submodels: AnySubmodels
    split_seed: int  # public: the adversary knows the partition into submodels
    linf_coordinates: int  # coordinates are truncated at clip / sqrt(linf_coordinates) (ModelMix); 0: they are not
    normalised: bool = False  # short updates are scaled up to the clipping norm (``privacy.clip: auto``)
    terms: Terms | None = None  # of secure aggregation
    personal: str | None = None  # the file of the parameters that stay with their client
    checkpoint_every: int = 1
    answer_after: float | None = Field(None, exclude_if=lambda seconds: seconds is None)  # of a node of a deployment
    run: str = Field("", exclude_if=lambda run: not run)  # tells runs apart, also when resumed; empty: known seed
    data: Data
    data_seed: int  # decides the partition (and synthetic records)
    stack: StackSize = StackSize()  # how many units train together at most

    @property
    def digest(self) -> str:
        """Of all that decides a unit's update, for nodes that have agreed on it."""
        return hashlib.sha256(self.model_dump_json(exclude={"terms", "stack", "personal", "run"}).encode()).hexdigest()

    def without_places(self) -> Self:
        """The task for other machines, which have nothing to look for in the server's folders.

        Such a node reads its own data folder, gets the initial model from the server, and imports a custom model from
        installed packages. It has a file of frozen weights of that name (:func:`fedamp.models.pretrained.place_of`).
        """
        named = {key: getattr(self.data, key, None) for key in DATA_PLACES}
        places = {key: "" for key, place in named.items() if place and Path(place).is_absolute()}
        frozen = is_import_path(self.model.name) and self.model.initial is not None  # it may hold frozen weights
        initial = Path(str(self.model.initial)).name if frozen else None
        model = self.model.model_copy(update={"initial": initial, "folder": None})
        return self.model_copy(update={"data": self.data.model_copy(update=places), "model": model})
