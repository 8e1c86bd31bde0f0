"""The audit of a scenario, from beginning to end."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedamp.accounting import Mechanism
from fedamp.errors import ScenarioError
from fedamp.federation.plan import ADJACENCY
from fedamp.federation.scenario import Scenario
from fedamp.studies.audit.attacks import attacks
from fedamp.studies.audit.bound import Claim, Finding, Worlds, examine
from fedamp.studies.audit.repetitions import Federation
from fedamp.studies.audit.subject import Subject, subject_of

FEWEST = 20
LONGEST = 8

# Share of the repetitions on which the attack is chosen; the others are counted.
_CHOOSING = 1 / 4

_PROFILE_POINTS = 24


@dataclass(frozen=True)
class Audit:
    """The answer of an audit.

    Attributes:
        subject: what was audited.
        scenario_rounds: rounds of the whole scenario.
        findings: of the claim at the scenario's delta, and of the claim that looked least true.
        confidence: that no lower bound in the findings is too high.
        repetitions, counted: of each world, and those on which the findings rest; the others chose the attack.
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
            "epsilon": _bracket(reported),
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
            "epsilon": _bracket(finding),
            "attack": finding.event.attack,
            "event": f"statistic {'>' if finding.event.above else '<='} {finding.event.threshold:.6g}",
            "likely_when": "present" if finding.event.above else "absent",
            "happened": {"likely": finding.likely, "unlikely": finding.unlikely, "of": self.counted},
            "refutes": finding.refutes,
        }


def audit(
    scenario: Scenario,
    repetitions: int = 500,
    rounds: int = LONGEST,
    confidence: float = 0.99,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Audit:
    """Attack a scenario through the real server and client code.

    Args:
        scenario: validated, its paths absolute. Its seed decides everything.
        repetitions: how often each world (canary present, canary absent) is played; at least 20.
        rounds: at most so many are played; a scenario with more is shortened, and so is its claim.
        confidence: that no lower bound in the answer is too high; in (0, 1).
        progress: called with the number of finished repetitions, and of all of both worlds.

    Raises:
        InputError: a scenario that cannot be prepared or has no noise, or an argument out of range.
    """
    if repetitions < FEWEST:
        raise ScenarioError(f"--repetitions {repetitions}: expected: at least {FEWEST}")
    if rounds < 1:
        raise ScenarioError(f"--rounds {rounds}: expected: at least 1")
    if not 0 < confidence < 1:
        raise ScenarioError(f"--confidence {confidence:g}: expected: between 0 and 1")
    subject = subject_of(scenario, rounds)
    claims = _claims(subject.claim.mechanism, scenario.privacy.delta)
    federation = Federation(subject)
    evidence = federation.evidence(repetitions, scenario.seed, lambda done: progress(done, 2 * repetitions))

    def worlds(chosen: slice) -> Worlds:
        return Worlds(*(attacks(world[chosen], subject.claim) for world in evidence))

    choosing = round(repetitions * _CHOOSING)
    findings = examine(worlds(slice(choosing)), worlds(slice(choosing, None)), claims, 1 - confidence)
    return Audit(
        subject, scenario.rounds, findings, confidence, repetitions, repetitions - choosing, federation.strength
    )


def _claims(mechanism: Mechanism, delta: float) -> list[Claim]:
    """Points of the accountant's privacy profile; the one at ``delta`` first.

    Far out in the tail, where deltas are small, events are too rare to be counted; a claim that is false there is
    usually false near the middle too, where they are not.
    """
    reported = Claim(mechanism.epsilon(delta).upper, delta)
    grid = np.linspace(0.0, mechanism.epsilon(max(delta, 1e-3)).upper, _PROFILE_POINTS)
    return [reported] + [Claim(float(epsilon), mechanism.delta(float(epsilon)).upper) for epsilon in grid]


def _bracket(finding: Finding) -> dict[str, float | None]:
    """Both ends of epsilon; null for infinite, which JSON does not have."""
    ends = {"lower": finding.lower, "upper": finding.claim.epsilon}
    return {end: float(value) if math.isfinite(value) else None for end, value in ends.items()}
