"""Checks, of a ledger or a deployment: each passes, calls for caution, or fails; as JSON, and as one line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["pass", "caution", "fail"]
VERDICTS: tuple[Verdict, ...] = ("pass", "caution", "fail")


@dataclass(frozen=True)
class Check:
    """One check: its subject, its verdict, and its finding; of a failure also the expectation.

    ``caution``: nothing is wrong, but a person who relies on the result must know the finding.
    """

    name: str
    verdict: Verdict
    found: str

    @classmethod
    def of(cls, name: str, passed: str, caution: str | None = None, fail: str | None = None) -> "Check":
        """The failure or caution, if it has a text; else it passes."""
        return cls(name, "fail" if fail else "caution" if caution else "pass", fail or caution or passed)

    @property
    def passed(self) -> bool:
        """Whether it passes without caution."""
        return self.verdict == "pass"


def checks_json(checks: Sequence[Check]) -> dict[str, Any]:
    """As JSON; the verdict of all checks is the worst one."""
    worst = max((check.verdict for check in checks), key=VERDICTS.index, default="pass")
    each = [
        {"name": check.name, "verdict": check.verdict, "fine": check.passed, "found": check.found} for check in checks
    ]
    return {"verdict": worst, "fine": worst == "pass", "checks": each}


def complaint(checks: Sequence[Check], verdict: Verdict = "fail") -> str | None:
    """One line about the checks with a verdict; None if no check has it."""
    return "; ".join(f"{check.name}: {check.found}" for check in checks if check.verdict == verdict) or None
