"""Things that were looked at one by one, each fine, a reason for caution, or wrong: as JSON, and as one line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["fine", "caution", "wrong"]
VERDICTS: tuple[Verdict, ...] = ("fine", "caution", "wrong")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what it is.
        verdict: fine: as it should be; caution: nothing is wrong, but there is something that whoever relies on it must
            know; wrong: not as it should be.
        found: what was found; where it is wrong, also what is accepted.
    """

    name: str
    verdict: Verdict
    found: str

    @property
    def fine(self) -> bool:
        """Whether there is nothing to know about it."""
        return self.verdict == "fine"


def checks_json(checks: Sequence[Check]) -> dict[str, Any]:
    """For scripts; the verdict of all is the worst of them."""
    worst = max((check.verdict for check in checks), key=VERDICTS.index, default="fine")
    each = [
        {"name": check.name, "verdict": check.verdict, "fine": check.fine, "found": check.found} for check in checks
    ]
    return {"verdict": worst, "fine": worst == "fine", "checks": each}


def complaint(checks: Sequence[Check], verdict: Verdict = "wrong") -> str | None:
    """One line about what has a verdict; None where nothing has."""
    return "; ".join(f"{check.name}: {check.found}" for check in checks if check.verdict == verdict) or None
