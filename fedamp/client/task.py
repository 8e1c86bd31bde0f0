"""What a node must know to train: constant over a run, and sent as JSON with every message."""

from typing import Literal

from fedamp import scenario
from fedamp.record import Record


class ClientTask(Record):
    """The part of a plan that clients may know.

    Attributes:
        version: of what nodes are told; a node of another fedamp refuses it.
        model, client, submodels, data: sections of the scenario (``client`` has one step where the unit is a sample; a
            deployment node reads the folder of its own configuration instead of the one that ``data`` names).
        input_shape: shape of one record.
        num_classes: number of labels.
        unit: what is clipped and protected, a client or a record.
        split_seed: public seed of the partition into submodels; it is known to the adversary.
        linf_coordinates: coordinates are truncated at clip / sqrt(linf_coordinates) (ModelMix); 0: they are not.
        data_seed: decides the partition (and synthetic records).
        folder: where relative paths of ``data`` start.
        precision: arithmetic of local training on a GPU.
    """

    version: Literal[1] = 1
    model: scenario.Model
    input_shape: tuple[int, ...]
    num_classes: int
    client: scenario.Client
    unit: Literal["client", "sample"]
    submodels: scenario.Submodels
    split_seed: int
    linf_coordinates: int
    data: scenario.Data
    data_seed: int
    folder: str
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
