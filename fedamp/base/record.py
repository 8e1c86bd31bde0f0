"""The base of all data that are stored or sent as JSON and read again: frozen, typed, no unknown keys."""

import json
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

LONGEST_VALUE = 60  # letters of a wrong value in an error
NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]
"""Of a node, its files, and its place in ``federation.hosts``."""
Label = Annotated[str, Field(pattern=r"^\w[\w ,.()+-]{0,99}$")]
"""What people call a run or a task: letters of any language, and nothing that leads to another folder."""


class Record(BaseModel):
    """A JSON object whose keys and types are its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read it from JSON; a ValueError names the key and what is expected, in one line."""
        try:
            return cls.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise ValueError(one_line(error)) from None

    def content(self) -> dict[str, Any]:
        """As JSON has it, the keys in the order of the fields."""
        return self.model_dump(mode="json", by_alias=True)

    def to_json(self) -> str:
        """As JSON in one line; equal records give equal lines."""
        return json.dumps(self.content())

    def to_text(self) -> str:
        """As indented JSON."""
        return json.dumps(self.content(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def one_line(error: ValidationError) -> str:
    """The first error: its key, what is expected, and what was found."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    match first["type"]:
        case "missing":
            text = f"{key}: missing"
        case "extra_forbidden":
            text = f"{key}: no such key"
        case "json_invalid":
            text = first["msg"]
        case _:
            found = repr(first["input"])
            shown = found if len(found) <= LONGEST_VALUE else f"{found[:LONGEST_VALUE]}..."
            text = f"{f'{key}: ' if key else ''}{first['msg']}, got {shown}"
    return " ".join(text.split())
