"""Define what the ledger of a run says of its questions."""

from typing import Annotated

from pydantic import Field

from fedamp.base.record import Record


class QuestionsRecord(Record):
    """The questions of a run, in its ledger.

    Attributes:
        sha256: digest of the section ``questions``, in hex.
        asked: number of questions.
        cells: length of a person's vector.
    """

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    asked: Annotated[int, Field(ge=1)]
    cells: Annotated[int, Field(ge=1)]
