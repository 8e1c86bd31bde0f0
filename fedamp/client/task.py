"""What a node must know to train: constant over a run, and sent as JSON with every message."""

from pathlib import Path
from typing import Literal, Self

from fedamp.base.record import Record
from fedamp.client.memory import StackSize
from fedamp.data.sections import Data
from fedamp.federation.submodels import AnySubmodels
from fedamp.federation.training import Client
from fedamp.models.section import Model

DATA_PLACES = ("path", "dataset")  # the keys of a data section that may name a folder


class ClientTask(Record):
    """The part of a plan that clients may know.

    Attributes:
        version: of what nodes are told; a node of another fedamp refuses it.
        model, client, submodels, data: sections of the scenario (``client`` has one step where the unit is a sample;
            ``model.frozen_sha256`` is filled in, so that a node with other frozen weights refuses).
        input_shape: shape of one record.
        num_classes: how many numbers the model answers with, for every record or token.
        unit: what is clipped and protected, a client or a record.
        split_seed: public seed of the partition into submodels; it is known to the adversary.
        linf_coordinates: coordinates are truncated at clip / sqrt(linf_coordinates) (ModelMix); 0: they are not.
        normalised: short updates are scaled up to the clipping norm (``privacy.clip: auto``).
        data_seed: decides the partition (and synthetic records).
        precision: arithmetic of local training on a GPU.
        stack: how many units train together at most.
    """

    version: Literal[4] = 4
    model: Model
    input_shape: tuple[int, ...]
    num_classes: int
    client: Client
    unit: Literal["client", "sample"]
    submodels: AnySubmodels
    split_seed: int
    linf_coordinates: int
    normalised: bool = False
    data: Data
    data_seed: int
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    stack: StackSize = StackSize()

    def without_places(self) -> Self:
        """The task for machines of their own, which have nothing to look for in the server's folders.

        Such a node reads the data folder of its own configuration, gets the initial model from the server, and imports
        a model of somebody's own from what is installed there.
        """
        named = {key: getattr(self.data, key, None) for key in DATA_PLACES}
        places = {key: "" for key, place in named.items() if place and Path(place).is_absolute()}
        return self.model_copy(
            update={
                "data": self.data.model_copy(update=places),
                "model": self.model.model_copy(update={"initial": None, "folder": None}),
            }
        )
