"""The audit of a scenario, from beginning to end."""

from collections.abc import Callable

import numpy as np

from fedamp.accounting import Mechanism
from fedamp.audit.attacks import attacks
from fedamp.audit.bound import Claim, Worlds, examine
from fedamp.audit.repetitions import Federation
from fedamp.audit.report import Audit
from fedamp.audit.subject import subject_of
from fedamp.errors import ScenarioError
from fedamp.scenario import Scenario

FEWEST = 20
LONGEST = 8

# Share of the repetitions on which the attack is chosen; the others are counted.
_CHOOSING = 1 / 4

_PROFILE_POINTS = 24


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
        raise ScenarioError(f"--repetitions {repetitions}: accepted: at least {FEWEST}")
    if rounds < 1:
        raise ScenarioError(f"--rounds {rounds}: accepted: at least 1")
    if not 0 < confidence < 1:
        raise ScenarioError(f"--confidence {confidence:g}: accepted: between 0 and 1")
    subject = subject_of(scenario, rounds)
    claims = _claims(subject.claim.mechanism, scenario.privacy.delta)
    federation = Federation(subject)
    evidence = federation.evidence(repetitions, scenario.seed, lambda done: progress(done, 2 * repetitions))

    def worlds(chosen: slice) -> Worlds:
        return Worlds(attacks(evidence.present[chosen], subject.claim), attacks(evidence.absent[chosen], subject.claim))

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
