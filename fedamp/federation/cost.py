"""Answer what a scenario costs before it runs. No torch is imported here, so the answer comes at once.

``fedamp privacy``, ``fedamp calibrate`` and ``fedamp.privacy`` print these answers. They are plain JSON: lower and
upper ends, None for infinity. Nothing is computed here that a :class:`fedamp.federation.charge.Charge` has not.
"""

import math
import warnings
from contextlib import suppress
from typing import Any

from fedamp.accounting import Group, Mechanism
from fedamp.accounting.arithmetic import delta_left
from fedamp.accounting.bounds import finite_or_none
from fedamp.accounting.sampling import PRECISION
from fedamp.extension import keys
from fedamp.federation import facts, model_noise
from fedamp.federation.check_in import PoissonCheckIn
from fedamp.federation.contracts import charged_openly
from fedamp.federation.kept_answers import ANEW, KEPT, Answers
from fedamp.federation.noise import IndependentNoise
from fedamp.federation.plan import Plan, make_plan, privacy_units
from fedamp.federation.reader import validate_scenario
from fedamp.federation.scenario import Scenario

ROUNDS_LISTED = 10_000  # of a longer run: evenly spaced rounds
GROUP_SIZES = (1, 2, 3, 5, 10)
FALSE_POSITIVE_RATE = 0.01
"""Rate at which the true positive rate of the best membership test is told."""


def privacy_cost(scenario: Scenario, groups: bool = False) -> dict[str, Any]:
    """Compute the cost of a whole run, of its prefixes, and of groups, as ``fedamp privacy --json`` prints it.

    Args:
        scenario: what would run.
        groups: compute the cost of groups even if that takes seconds; otherwise ``groups`` is null in that case.

    Returns:
        A JSON object: brackets of epsilon (as planned, unamplified, towards server and nodes), the curve ``per_round``
        (at most 10,000 rounds, evenly spaced), ``groups``, ``risk``, and public numbers of the plan.

    Raises:
        ScenarioError: the budget pays for no round, or no noise multiplier keeps it.
    """
    plan = _planned(scenario)
    charge = plan.charge
    charge.check_budget()
    every = math.ceil(scenario.rounds / ROUNDS_LISTED)
    by_round = zip(charge.epsilon_by_round, charge.unamplified_epsilon_by_round, strict=True)
    charge.check_budget()  # exactly, now that the curve is known
    return {
        "scenario": scenario.name,
        "known_seed": scenario.known_seed,
        **({"rehearsal": plan.rehearsal} if plan.rehearsal else {}),
        **({"unchecked": plan.unchecked_schemes} if plan.unchecked_schemes else {}),
        "delta": scenario.privacy.delta,
        "adjacency": plan.adjacency,
        "unit": scenario.privacy.unit,
        "units": plan.units,
        "group_size": scenario.privacy.group_size,
        "noise_multiplier": plan.noise_multiplier,
        "expected_cohort": plan.expected_cohort,
        "epsilon": charge.planned_epsilon.to_json(),
        "epsilon_bound": charge.planned_epsilon.method,
        "by_capacity": {name: epsilon.to_json() for name, epsilon in charge.epsilon_by_capacity.items()},
        "unamplified_epsilon": charge.unamplified_epsilon.to_json(),
        "epsilon_server": charge.server_epsilon and charge.server_epsilon.to_json(),
        "protection": plan.protection,
        "epsilon_nodes": charge.nodes_epsilon and charge.nodes_epsilon.to_json(),
        "risk": risk(charge.mechanism, scenario.privacy.unit, scenario.privacy.group_size, plan.answers),
        "poisson_epsilon": _by_poisson(plan),
        "budget": scenario.privacy.epsilon,
        "rounds": scenario.rounds,
        "affordable_rounds": charge.affordable_rounds,
        "mechanism": str(charge.mechanism),
        **_side_sum(plan),
        "per_round": [
            {"round": round_, "epsilon_upper": finite_or_none(amplified), "unamplified_upper": finite_or_none(plain)}
            for round_, (amplified, plain) in enumerate(by_round, 1)
            if round_ % every == 0 or round_ == scenario.rounds
        ],
        "groups": _group_costs(plan, groups),
        "prefix_noise": _prefix_noise(plan),
    }


def _planned(scenario: Scenario) -> Plan:
    """Make the plan of a scenario, and say which schemes are charged without amplification though they hide choices."""
    for line in charged_openly(scenario):
        with suppress(Warning):  # also where warnings are made errors
            warnings.warn(line, stacklevel=5)  # the line of the caller, above the wrapper of the call
    return make_plan(scenario, privacy_units(scenario), answers=KEPT)


def risk(mechanism: Mechanism, unit: str, group_size: int, answers: Answers = ANEW) -> dict[str, Any]:
    """Compute the success of the best membership test against a mechanism.

    Args:
        mechanism: of the whole run.
        unit: ``client`` or ``sample``.
        group_size: number of units that are protected together.
        answers: the accountant's answers.

    Returns:
        A bracket of the true positive rate at a false positive rate of 1 %, and its interpretation in words.
    """
    whom = (
        {"client": "you", "sample": "a record of yours"}[unit]
        if group_size == 1
        else f"a group of {group_size} {unit}s"
    )
    lower, upper, words = answers.membership_risk(mechanism, FALSE_POSITIVE_RATE, whom)
    return {
        "false_positive_rate": FALSE_POSITIVE_RATE,
        "true_positive_rate": {"lower": lower, "upper": upper},
        "in_words": words,
    }


def calibration(scenario: Scenario, epsilon: float) -> dict[str, Any]:
    """Find the smallest noise multiplier that keeps a budget, as ``fedamp calibrate --json`` prints it.

    Args:
        scenario: what would run.
        epsilon: the budget, positive, at the scenario's delta.

    Raises:
        ScenarioError: the budget is out of range, or no noise multiplier keeps it.
    """
    budget = {"epsilon": epsilon, "noise_multiplier": "auto"}
    raw = scenario.model_dump(mode="json")
    scenario = validate_scenario(
        raw | {"privacy": raw["privacy"] | budget}, f"scenario {scenario.name} with this budget"
    )
    plan = _planned(scenario)
    return {
        "scenario": scenario.name,
        "known_seed": scenario.known_seed,
        "noise_multiplier": plan.noise_multiplier,
        "epsilon": plan.charge.planned_epsilon.to_json(),
        "epsilon_bound": plan.charge.planned_epsilon.method,
        "delta": scenario.privacy.delta,
        "budget": epsilon,
        "mechanism": str(plan.charge.mechanism),
    }


def _side_sum(plan: Plan) -> dict[str, Any]:
    """Compute what a side sum costs alone, with numbers about its release, by the key of its section; or None."""
    found: dict[str, Any] = dict.fromkeys(keys("side_sums"))
    if (side := plan.side_sum) is not None:
        alone = plan.answers.epsilon(side.cost(plan), delta_left(plan.scenario.privacy.delta), PRECISION)
        told = {"noise_multiplier": side.noise_multiplier, "epsilon": alone.to_json(), **side.answers(plan)}
        found |= {side.key: told}
    return found


def _by_poisson(plan: Plan) -> dict[str, float | None] | None:
    """Compute the cost of Poisson sampling with the same expected cohort; None if rounds are independent already."""
    asked = plan.full_size.scenario
    if plan.check_in.rounds_are_independent:
        return None
    plan = plan.full_size
    check_in = PoissonCheckIn(scheme="poisson", rate=plan.expected_cohort / plan.units)
    privacy = asked.privacy.model_copy(update={"noise_multiplier": plan.noise_multiplier, "noise": IndependentNoise()})
    return make_plan(
        asked.model_copy(update={"check_in": check_in, "privacy": privacy}), plan.units, answers=KEPT
    ).charge.planned_epsilon.to_json()


def _prefix_noise(plan: Plan) -> dict[str, float | None] | None:
    """Compare the noise in the server's model with that of independent noise at the same epsilon and clipping norm.

    Returns:
        ``rms``: root mean square over rounds in a coordinate; ``over_independent``: that over the one with balanced
        check-in of the same k (None for schemes without a k).
    """
    if not plan.is_private:
        return None
    other = plan.check_in.independent_scheme
    over = None if other is None else 1.0
    if other is not None and other is not plan.check_in:
        privacy = plan.scenario.privacy.model_copy(
            update={
                "noise": IndependentNoise(),
                "noise_multiplier": "auto",
                "epsilon": plan.charge.planned_epsilon.upper,
            }
        )
        update = {"check_in": other, "privacy": privacy}
        balanced = make_plan(plan.scenario.model_copy(update=update), plan.units, answers=KEPT)
        over = model_noise.per_clip(plan) / model_noise.per_clip(balanced)
    return {"rms": model_noise.root_mean_square(plan), "over_independent": over}


def _group_costs(plan: Plan, wanted: bool) -> list[dict[str, Any]] | None:
    """Compute the cost for groups of units; it is quick only where the law of the privacy loss is exact."""
    if facts.GROUPS_CHARGED not in plan.check_in.keeps:
        return None
    mechanisms = {size: plan.charge.of_group(size) for size in GROUP_SIZES}
    if not wanted and any(isinstance(mechanism, Group) for mechanism in mechanisms.values()):
        return None
    delta = delta_left(plan.scenario.privacy.delta)
    return [
        {"size": size, "epsilon_upper": finite_or_none(plan.answers.epsilon(mechanism, delta, PRECISION).upper)}
        for size, mechanism in mechanisms.items()
    ]
