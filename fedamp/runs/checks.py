"""Checks, of a ledger or a deployment: each passes, calls for caution, or fails; as JSON, and as one line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["fine", "caution", "wrong"]
VERDICTS: tuple[Verdict, ...] = ("fine", "caution", "wrong")


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: its subject.
        verdict: of caution, nothing is wrong, but a person who relies on the result must know it.
        found: the finding; where it fails, also the expectation.
    """

    name: str
    verdict: Verdict
    found: str

    @property
    def fine(self) -> bool:
        """Whether it passes without caution."""
        return self.verdict == "fine"


def checks_json(checks: Sequence[Check]) -> dict[str, Any]:
    """As JSON; the verdict of all checks is the worst one."""
    worst = max((check.verdict for check in checks), key=VERDICTS.index, default="fine")
    each = [
        {"name": check.name, "verdict": check.verdict, "fine": check.fine, "found": check.found} for check in checks
    ]
    return {"verdict": worst, "fine": worst == "fine", "checks": each}


def complaint(checks: Sequence[Check], verdict: Verdict = "wrong") -> str | None:
    """One line about the checks with a verdict; None if no check has it."""
    return "; ".join(f"{check.name}: {check.found}" for check in checks if check.verdict == verdict) or None
