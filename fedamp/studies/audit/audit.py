"""The audit of a scenario: attacks on the real code, and a lower bound on epsilon."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.bounds import finite
from fedamp.errors import ScenarioError
from fedamp.federation.check_in import log_mean
from fedamp.federation.plan import ADJACENCY, Plan
from fedamp.federation.scenario import Scenario
from fedamp.studies.audit.bound import Attacks, Claim, Finding, Worlds, examine
from fedamp.studies.audit.canary import CanaryFederation, Subject, subject_of

FEWEST, LONGEST = 20, 8
_CHOOSING = 1 / 4  # share of the repetitions that choose the attack; the others are counted
_PROFILE_POINTS = 24
_SINGLE = 16  # submodels, and rounds, that have an attack of their own


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        scenario_rounds: rounds of the whole scenario.
        findings: on the claim at the scenario's delta, and on the least plausible claim.
        repetitions, counted: of each world, and those behind the findings; the others chose the attack.
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
        """Whether the code leaks more than some claim of the accountant."""
        return any(finding.refutes for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The answer of ``fedamp audit --json``."""
        claim, findings = self.subject.claim, [self._finding(finding) for finding in self.findings]
        return {
            "scenario": claim.scenario.name,
            "verdict": "refuted" if self.refuted else "consistent",
            "epsilon": findings[0]["epsilon"],
            "delta": findings[0]["delta"],
            "confidence": self.confidence,
            "repetitions": self.repetitions,
            "counted": self.counted,
            "findings": findings,
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
        """One line that names the false claim."""
        finding = max(self.findings, key=lambda found: found.lower - found.claim.epsilon)
        return (
            f"audit: epsilon {finding.claim.epsilon:.3g} at delta {finding.claim.delta:.3g} is charged, but at least "
            f"{finding.lower:.3g} leaks ({self.confidence:.4g} confidence; attack: {finding.event.attack})"
        )

    def _finding(self, finding: Finding) -> dict[str, Any]:
        claim, event = finding.claim, finding.event
        return {
            "delta": claim.delta,
            "epsilon": {"lower": finite(finding.lower), "upper": finite(claim.epsilon)},
            "attack": event.attack,
            "event": f"statistic {'>' if event.above else '<='} {event.threshold:.6g}",
            "likely_when": "present" if event.above else "absent",
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
        repetitions: trials of each world (canary present, canary absent); at least 20.
        rounds: maximum; a longer scenario is shortened, and its claim too.
        confidence: probability that no lower bound in the answer is too high; in (0, 1).
        progress: called with the number of finished trials, and of all trials of both worlds.

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
    mechanism, delta = subject.claim.mechanism, scenario.privacy.delta
    # Events with a small delta are too rare to count. A claim that is false there is usually false near the middle too.
    grid = np.linspace(0.0, mechanism.epsilon(max(delta, 1e-3)).upper, _PROFILE_POINTS).tolist()
    claims = [Claim(mechanism.epsilon(delta).upper, delta)]
    claims += [Claim(epsilon, mechanism.delta(epsilon).upper) for epsilon in grid]
    federation = CanaryFederation(subject)
    evidence = federation.evidence(repetitions, scenario.seed, lambda done: progress(done, 2 * repetitions))
    choosing = round(repetitions * _CHOOSING)
    chosen_on, counted_on = (
        Worlds(*(attacks(world[chosen], subject.claim) for world in evidence))
        for chosen in (slice(choosing), slice(choosing, None))
    )
    findings = examine(chosen_on, counted_on, claims, 1 - confidence)
    counted = repetitions - choosing
    return Audit(subject, scenario.rounds, findings, confidence, repetitions, counted, federation.strength)


def attacks(ratios: NDArray[np.float64], plan: Plan) -> Attacks:
    """Statistics by which an adversary tells whether the canary was present, by name; each of shape [repetitions].

    The first one is the likelihood ratio, the strongest against correct code (Neyman, Pearson 1933). The others look
    for mistakes: hidden choices that are drawn once for the whole run, or that are always the same, and units that take
    part more often, or in other rounds, than the schedule says.

    Args:
        ratios: [repetitions, rounds, choices], log-likelihood ratios.
        plan: the adversary knows its schedule and its kind of submodels.
    """
    rounds, choices = ratios.shape[1:]
    over_rounds = plan.check_in.log_likelihood_ratio
    hidden = log_mean(ratios, axis=2)
    found = {"likelihood ratio": over_rounds(hidden)}
    if choices > 1:
        by_choice = np.stack([over_rounds(ratios[:, :, choice]) for choice in range(choices)], axis=1)
        found["one hidden choice for the whole run"] = log_mean(by_choice, axis=1)
        found["the average choice"] = over_rounds(ratios.mean(2))
        if plan.submodels.choices_are_all:
            found |= {f"submodel {choice} always": by_choice[:, choice] for choice in range(min(choices, _SINGLE))}
    if plan.check_in.is_hidden:
        found["takes part in every round"] = hidden.sum(1)
        found |= {f"takes part in round {round_ + 1}": hidden[:, round_] for round_ in range(min(rounds, _SINGLE))}
    return found
