"""Define the base of all data that are stored or sent as JSON and read again: frozen, typed, without unknown keys.

Ledgers, summaries, checkpoints and the task of a client are records. What people write (scenarios) are sections
(:mod:`fedamp.base.section`). Records that are files of their own are in :mod:`fedamp.base.files`.
"""

import json
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

LONGEST_VALUE = 60  # letters of a wrong value in an error
NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]
"""Name of a node, in its files and in ``federation.hosts``: at most 63 letters, digits, ``_`` and ``-``."""
Label = Annotated[str, Field(pattern=r"^\w[\w ,.()+-]{0,99}$")]
"""Name that people give a run or a task: letters of any language, and nothing that leads to another folder."""


class OtherFormatError(ValueError):
    """The ``format`` of a record is that of another version, or of no version."""


class Record(BaseModel):
    """A JSON object whose keys and types are its fields.

    Instances are frozen, and equal ones have equal JSON. Unknown keys are refused, so that a reader of an older version
    never ignores what a newer one has written.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True, defer_build=True
    )

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a record from JSON text; types are strict, so the text ``"1"`` is no number.

        Raises:
            OtherFormatError: its ``format`` is another one.
            ValueError: one line that names the key, what is expected, and what was found.
        """
        try:
            return cls.model_validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            is_other = first["loc"] == ("format",) and first["type"] == "literal_error"
            raise (OtherFormatError if is_other else ValueError)(one_line(error)) from None

    def content(self) -> dict[str, Any]:
        """Return the JSON object as Python values, its keys in the order of the fields."""
        return self.model_dump(mode="json", by_alias=True)

    def to_json(self) -> str:
        """Write JSON in one line; equal records give equal lines."""
        return json.dumps(self.content())

    def to_text(self) -> str:
        """Write indented JSON for a file that people read; NaN and infinity raise ValueError."""
        return json.dumps(self.content(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def one_line(error: ValidationError) -> str:
    """Write the first error of a validation: its key, what is expected, and at most 60 letters of what was found."""
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
