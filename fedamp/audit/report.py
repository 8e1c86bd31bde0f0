"""What an audit found, for machines and for people."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.table import Table

from fedamp.accounting.bounds import finite
from fedamp.audit.bound import Finding
from fedamp.audit.subject import Subject
from fedamp.numbers import at_least, at_most, power
from fedamp.plan import ADJACENCY


@dataclass(frozen=True)
class Audit:
    """The answer of an audit.

    Attributes:
        subject: what was audited.
        scenario_rounds: rounds of the whole scenario.
        findings: of the claim at the scenario's delta, and of the claim that looked least true.
        confidence: that no lower bound in the findings is too high.
        repetitions: of each world.
        counted: those of them on which the findings rest; the others chose the attack.
        strength: length of the canary's update over the clipping norm.
    """

    subject: Subject
    scenario_rounds: int
    findings: tuple[Finding, Finding]
    confidence: float
    repetitions: int
    counted: int
    strength: float

    @property
    def refuted(self) -> bool:
        """Whether some claim of the accountant cannot be true of the code."""
        return any(finding.refutes for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """What ``fedamp audit --json`` prints."""
        claim, reported = self.subject.claim, self.findings[0]
        return {
            "scenario": claim.scenario.name,
            "verdict": "refuted" if self.refuted else "consistent",
            "epsilon": {"lower": finite(reported.lower), "upper": finite(reported.claim.epsilon)},
            "delta": reported.claim.delta,
            "confidence": self.confidence,
            "repetitions": self.repetitions,
            "counted": self.counted,
            "findings": [self._finding(finding) for finding in self.findings],
            "unit": claim.scenario.privacy.unit,
            "group_size": claim.scenario.privacy.group_size,
            "adjacency": ADJACENCY,
            "noise_multiplier": claim.noise_multiplier,
            "mechanism": str(claim.mechanism),
            "rounds": claim.scenario.rounds,
            "scenario_rounds": self.scenario_rounds,
            "canary_strength": self.strength,
        }

    def reproach(self) -> str:
        """One line that says what cannot be true."""
        finding = max(self.findings, key=lambda found: found.lower - found.claim.epsilon)
        return (
            f"audit: epsilon {finding.claim.epsilon:.3g} at delta {finding.claim.delta:.3g} is charged, but at least "
            f"{finding.lower:.3g} leaks ({self.confidence:.4g} confidence; attack: {finding.event.attack})"
        )

    def _finding(self, finding: Finding) -> dict[str, Any]:
        return {
            "delta": finding.claim.delta,
            "epsilon": {"lower": finite(finding.lower), "upper": finite(finding.claim.epsilon)},
            "attack": finding.event.attack,
            "event": f"statistic {'>' if finding.event.above else '<='} {finding.event.threshold:.6g}",
            "likely_when": "present" if finding.event.above else "absent",
            "happened": {"likely": finding.likely, "unlikely": finding.unlikely, "of": self.counted},
            "refutes": finding.refutes,
        }


def audit_table(audit: Audit) -> RenderableType:
    """The answer as a person reads it."""
    claim = audit.subject.claim
    unit, group = claim.scenario.privacy.unit, claim.scenario.privacy.group_size
    facts = Table(title=f"{claim.scenario.name}: audit", show_header=False)
    facts.add_row("verdict", _verdict(audit))
    facts.add_row("attacked", f"{claim.mechanism}")
    facts.add_row("present or absent", f"one {unit}" if group == 1 else f"{group} {unit}s together")
    facts.add_row("rounds", _rounds(audit))
    facts.add_row("repetitions", f"{audit.repetitions:,} with and as many without; {audit.counted:,} of each counted")
    facts.add_row("canary's update", f"{audit.strength:.0%} of the clipping norm")
    bounds = Table(
        "delta", "epsilon, at least", "accountant: at most", "attack", title=f"at {audit.confidence:.4g} confidence"
    )
    for finding in audit.findings:
        at_delta = f"{finding.claim.delta:.3g}"
        bounds.add_row(
            power(float(at_delta)), at_least(finding.lower, 3), at_most(finding.claim.epsilon, 3), finding.event.attack
        )
    return Group(facts, bounds, "What these numbers can show, and what they cannot: docs/audit.md")


@contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar that goes away at the end, and what moves it: finished repetitions, and how many there are."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("repetitions", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _verdict(audit: Audit) -> str:
    if audit.refuted:
        return "REFUTED: the code leaks more than the accountant charges"
    return "consistent: no leak beyond what the accountant charges was found"


def _rounds(audit: Audit) -> str:
    rounds = audit.subject.claim.scenario.rounds
    shortened = rounds < audit.scenario_rounds
    return f"{rounds}, shortened from {audit.scenario_rounds} at the same rate" if shortened else str(rounds)
