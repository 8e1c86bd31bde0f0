"""The subject of an audit: a short form of the scenario, and the worst case for a canary in it.

Everything that the accountant charges for stays: clipping norms, noise multipliers, check-in, submodels, mixing. The
worst case changes the records and the other units, which an adversary may choose, and the server's optimiser, which is
post-processing.
"""

from typing import Any, NamedTuple

from fedamp.errors import ScenarioError
from fedamp.federation.optimizers import Server
from fedamp.federation.plan import Plan, make_plan, privacy_units
from fedamp.federation.running import Engine
from fedamp.federation.scenario import Scenario
from fedamp.federation.training import Client

BYSTANDERS = 3  # units beside the canaries, with updates of zero: the server must handle a cohort

# How far the noise of a round may move a coordinate of the model. The canary's gradient must stay that of the initial
# model, and float32 must show the noise to four digits.
_DRIFT = 1e-3
_STRETCH = 1e6  # length of the canary's step for a gradient of norm 1, in clipping norms


class Subject(NamedTuple):
    """A federation to repeat, and the claim to test.

    Attributes:
        claim: the plan whose charge is tested: the scenario, for the audited rounds.
        played: the scenario to play; its charge equals the claim.
        canaries: number of units that are present or absent together; their ids are 0, 1, ...
        units: of the played scenario.
    """

    claim: Plan
    played: Scenario
    canaries: int
    units: int


def subject_of(scenario: Scenario, rounds: int) -> Subject:
    """The subject of an audit; a longer scenario is shortened to these rounds, at the same rate of check-ins.

    Raises:
        ScenarioError: a scenario without noise: it has no claim to test.
    """
    full = make_plan(scenario, privacy_units(scenario))
    if not full.is_private:
        raise ScenarioError(
            "privacy.noise_multiplier is 0: nothing is claimed, so nothing can be audited; expected: > 0"
        )
    claim = Plan(_shortened(full, min(rounds, scenario.rounds)), full.units, full.seed)
    canaries = scenario.privacy.group_size
    units = canaries + BYSTANDERS
    return Subject(claim, _worst_case(claim, Plan(claim.scenario, units, full.seed)), canaries, units)


def _shortened(full: Plan, rounds: int) -> Scenario:
    """The first rounds of a plan as a scenario, with the noise of the whole plan, and without a budget."""
    whole = full.scenario
    noise: dict[str, Any] = {"noise_multiplier": full.noise_multiplier, "epsilon": None}
    if whole.privacy.clip == "auto":  # it depends on the number of rounds; the canary's updates are longer anyway
        noise["clip"] = full.clipping.norm(full.noise_multiplier)
    update: dict[str, Any] = {
        "rounds": rounds,
        "check_in": whole.check_in.shortened(whole.rounds, rounds),
        "privacy": whole.privacy.model_copy(update=noise),
    }
    if whole.mixing is not None:
        width = tuple(step for step in whole.mixing.steps if step[0] <= rounds)
        update["mixing"] = whole.mixing.model_copy(update={"width": width})
    return whole.model_copy(update=update)


def _worst_case(claim: Plan, played: Plan) -> Scenario:
    """The claim's scenario with one huge step of every unit, so that updates are clipped, and a very slow server."""
    before, clips = claim.scenario, max(part.clip for part in played.parts)
    rate = _DRIFT / max(part.noise_deviation / part.denominator for part in played.parts)
    update: dict[str, Any] = {
        "client": Client(loss=before.client.loss, steps=1, learning_rate=_STRETCH * max(1.0, clips)),
        "server": Server(learning_rate=rate),
        "engine": Engine(kind="serial", device="cpu"),
    }
    if before.mixing is not None:
        # The protection by mixing depends only on the width over the largest step of one unit.
        steps = before.server.learning_rate / claim.expected_cohort, rate / played.expected_cohort
        widths = tuple((first, width * steps[1] / steps[0]) for first, width in before.mixing.steps)
        update["mixing"] = before.mixing.model_copy(update={"width": widths})
    return before.model_copy(update=update)
