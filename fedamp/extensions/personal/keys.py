"""Define the keys of what clients are told about parameters that stay with their client."""

from typing import Annotated

from pydantic import Field

from fedamp.base.section import Before, NotInDigest

PERSONAL = Annotated[str | None, Field(None), Before("answer_after"), NotInDigest()]
"""The key ``personal``: the file of the parameters."""

CHECKPOINT_EVERY = Annotated[int, Field(1), Before("answer_after")]
"""The key ``checkpoint_every``: rounds from one checkpoint to the next, where a run that is resumed goes on."""
