"""What a node must know to train: constant over a run, and sent as JSON with every message."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError


@dataclass(frozen=True)
class ClientTask:
    """The part of a plan that clients may know.

    Attributes:
        model: the scenario's model section, as JSON.
        input_shape: shape of one record.
        num_classes: number of labels.
        client: the scenario's client section, as JSON (one step where the unit is a sample).
        unit: what is clipped and protected, a client or a record.
        submodels: the scenario's submodels section, as JSON.
        split_seed: public seed of the partition into submodels; it is known to the adversary.
        linf_coordinates: coordinates are truncated at clip / sqrt(linf_coordinates) (ModelMix); 0: they are not.
        data: the scenario's data section, as JSON; a deployment node reads the folder of its own configuration instead.
        data_seed: decides the partition (and synthetic records).
        folder: where relative paths of ``data`` start.
        precision: arithmetic of local training on a GPU.
    """

    model: dict[str, Any]
    input_shape: tuple[int, ...]
    num_classes: int
    client: dict[str, Any]
    unit: Literal["client", "sample"]
    submodels: dict[str, Any]
    split_seed: int
    linf_coordinates: int
    data: dict[str, Any]
    data_seed: int
    folder: str
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"

    def to_json(self) -> str:
        """The task in one line; equal tasks give equal lines."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "ClientTask":
        """The task of a message.

        Raises:
            ValueError: text that is no JSON object, a key that is missing or unknown, or a value of the wrong type.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"task must be JSON: {error}") from error
        if not isinstance(values, dict):
            raise ValueError(f"task must be a JSON object, got {type(values).__name__}")
        names = {field.name for field in fields(cls)}
        if values.keys() != names:
            raise ValueError(f"task: missing or unknown keys {sorted(names ^ values.keys())}")
        try:
            return _adapter.validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"task: {where}: {first['msg']}, got {first['input']!r}") from error


_adapter = TypeAdapter(ClientTask)
