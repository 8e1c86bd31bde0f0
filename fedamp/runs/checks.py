"""Things that were looked at one by one, each fine or wrong: as JSON, and as one line."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what it is.
        fine: whether it is as it should be.
        found: what was found; where it is not fine, also what is accepted.
    """

    name: str
    fine: bool
    found: str


def checks_json(checks: Sequence[Check]) -> dict[str, Any]:
    """For scripts."""
    return {"fine": all(check.fine for check in checks), "checks": [asdict(check) for check in checks]}


def complaint(checks: Sequence[Check]) -> str | None:
    """One line about what is wrong; None where everything is fine."""
    wrong = [f"{check.name}: {check.found}" for check in checks if not check.fine]
    return "; ".join(wrong) or None
