"""What an audit found."""

from dataclasses import dataclass
from typing import Any

from fedamp.accounting.bounds import finite
from fedamp.audit.bound import Finding
from fedamp.audit.subject import Subject
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

    def refutation(self) -> str:
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
