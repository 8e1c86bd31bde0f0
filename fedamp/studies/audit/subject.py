"""What is audited: the scenario, short enough to be repeated, and around it the worst case for the canary.

Nothing that the accountant charges for is changed: clipping norms, noise multipliers, check-in, submodels, mixing. What
is changed is free for an adversary to choose (the records and the other units), or only post-processes what is released
(the server's optimiser).
"""

from dataclasses import dataclass
from typing import Any

from fedamp.errors import ScenarioError
from fedamp.federation.optimizers import Server
from fedamp.federation.plan import Plan, make_plan, privacy_units
from fedamp.federation.running import Engine
from fedamp.federation.scenario import Scenario
from fedamp.federation.training import Client

# Units beside the canaries. They answer with an update of zero, so that the server has a cohort to be confused by.
BYSTANDERS = 3

# How far the noise of a round may move a coordinate of the model: so little that the canary's gradient stays what it
# was at the initial model, and so much that float32 still shows the noise to four digits.
_DRIFT = 1e-3

# Times the clipping norm: the canary's step is this long for a gradient of norm 1.
_STRETCH = 1e6


@dataclass(frozen=True)
class Subject:
    """A federation to be repeated, and the claim that it is held against.

    Attributes:
        claim: the plan whose charge is tested; the scenario's, for the rounds that are audited.
        played: the scenario that is played, with a charge equal to the claim's.
        canaries: how many units are present or absent together; their ids are 0, 1, ...
        units: of the played scenario.
    """

    claim: Plan
    played: Scenario
    canaries: int
    units: int


def subject_of(asked: Scenario, rounds: int) -> Subject:
    """What an audit of the scenario plays.

    Args:
        asked: the scenario as a run would take it.
        rounds: at most so many are played; a scenario with more is shortened, at the same rate of check-ins.

    Raises:
        ScenarioError: a scenario without noise, which has no claim to test.
    """
    full = make_plan(asked, privacy_units(asked))
    if not full.is_private:
        raise ScenarioError(
            "privacy.noise_multiplier is 0: nothing is claimed, so nothing can be audited; expected: > 0"
        )
    claim = Plan(_shortened(full, min(rounds, asked.rounds)), full.units, full.seed)
    canaries = asked.privacy.group_size
    units = canaries + BYSTANDERS
    return Subject(claim, _worst_case(claim, Plan(claim.scenario, units, full.seed)), canaries, units)


def _shortened(full: Plan, rounds: int) -> Scenario:
    """The first rounds of a plan as a scenario of their own, with the noise of the whole, and without a budget."""
    whole = full.scenario
    mixing = whole.mixing
    if mixing is not None:
        mixing = mixing.model_copy(update={"width": tuple(step for step in mixing.steps if step[0] <= rounds)})
    noise: dict[str, Any] = {"noise_multiplier": full.noise_multiplier, "epsilon": None}
    if whole.privacy.clip == "auto":  # it would follow the number of rounds; the canary's updates are longer anyway
        noise["clip"] = full.clipping.norm(full.noise_multiplier)
    return whole.model_copy(
        update={
            "rounds": rounds,
            "check_in": whole.check_in.shortened(whole.rounds, rounds),
            "mixing": mixing,
            "privacy": whole.privacy.model_copy(update=noise),
        }
    )


def _worst_case(claim: Plan, played: Plan) -> Scenario:
    """One huge step of every unit, so that every update is clipped; and a server that hardly moves the model."""
    largest = max(part.noise_deviation / part.denominator for part in played.parts)
    rate = _DRIFT / largest
    clips = max(part.clip for part in played.parts)
    before, mixing = claim.scenario, claim.scenario.mixing
    if mixing is not None:
        # What mixing hides depends on the width over the largest step of one unit, and on nothing else.
        steps = before.server.learning_rate / claim.expected_cohort, rate / played.expected_cohort
        widths = tuple((first, width * steps[1] / steps[0]) for first, width in mixing.steps)
        mixing = mixing.model_copy(update={"width": widths})
    return before.model_copy(
        update={
            "client": Client(loss=before.client.loss, steps=1, learning_rate=_STRETCH * max(1.0, clips)),
            "server": Server(learning_rate=rate),
            "mixing": mixing,
            "engine": Engine(kind="serial", device="cpu"),
        }
    )
