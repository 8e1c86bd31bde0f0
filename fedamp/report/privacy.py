"""What a scenario costs, before it runs. No torch here: the answer comes at once."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from fedamp.accounting import Group as UnitGroup
from fedamp.accounting.bounds import finite
from fedamp.numbers import at_least, at_most
from fedamp.plan import ADJACENCY, Plan, make_plan, privacy_units
from fedamp.scenario import BalancedCheckIn, PoissonCheckIn, Scenario, StratifiedCheckIn
from fedamp.scenario.scenario_file import validate

GROUP_SIZES = (1, 2, 3, 5, 10)


def privacy_answer(scenario: Scenario, groups: bool = False) -> dict[str, Any]:
    """What ``fedamp privacy --json`` prints: the cost of the whole run, of its prefixes, and of groups of units.

    Args:
        scenario: what would run.
        groups: compute groups even where it takes seconds; ``groups`` is null where it would and is not asked for.
    """
    plan = make_plan(scenario, privacy_units(scenario))
    return {
        "scenario": scenario.name,
        "delta": scenario.privacy.delta,
        "adjacency": ADJACENCY,
        "unit": scenario.privacy.unit,
        "units": plan.units,
        "group_size": scenario.privacy.group_size,
        "noise_multiplier": plan.noise_multiplier,
        "expected_cohort": plan.expected_cohort,
        "epsilon": plan.epsilon.to_json(),
        "epsilon_bound": plan.epsilon.method,
        "unamplified_epsilon": plan.unamplified_epsilon.to_json(),
        "poisson_epsilon": _by_poisson(plan),
        "budget": scenario.privacy.epsilon,
        "rounds": scenario.rounds,
        "affordable_rounds": plan.affordable_rounds,
        "mechanism": str(plan.mechanism),
        "per_round": [
            {"round": index + 1, "epsilon_upper": finite(float(amplified)), "unamplified_upper": finite(float(plain))}
            for index, (amplified, plain) in enumerate(
                zip(plan.epsilon_by_round, plan.unamplified_epsilon_by_round, strict=True)
            )
        ],
        "groups": _groups(plan, groups),
    }


def _by_poisson(plan: Plan) -> dict[str, float | None] | None:
    """What Poisson sampling with as large an expected cohort would cost; None where check-ins are not k of T."""
    asked = plan.scenario
    if not isinstance(asked.check_in, BalancedCheckIn | StratifiedCheckIn):
        return None
    rate = plan.expected_cohort / plan.units
    privacy = asked.privacy.model_copy(update={"noise_multiplier": plan.noise_multiplier})
    sampled = asked.model_copy(update={"check_in": PoissonCheckIn(scheme="poisson", rate=rate), "privacy": privacy})
    return make_plan(sampled, plan.units).epsilon.to_json()


def _groups(plan: Plan, wanted: bool) -> list[dict[str, Any]] | None:
    """What groups of units cost together; only groups with an exact law are cheap."""
    mechanisms = {size: plan.mechanism_of_group(size) for size in GROUP_SIZES}
    if not wanted and any(isinstance(mechanism, UnitGroup) for mechanism in mechanisms.values()):
        return None
    delta = plan.scenario.privacy.delta
    return [
        {"size": size, "epsilon_upper": finite(mechanism.epsilon(delta).upper)}
        for size, mechanism in mechanisms.items()
    ]


def calibration_answer(scenario: Scenario, epsilon: float, delta: float | None) -> dict[str, Any]:
    """What ``fedamp calibrate --json`` prints: the smallest noise multiplier that keeps a budget.

    Raises:
        ScenarioError: a budget that is not positive, or a delta outside (0, 1).
    """
    budget = {"epsilon": epsilon, "noise_multiplier": "auto"} | ({} if delta is None else {"delta": delta})
    raw = scenario.model_dump(mode="json")
    scenario = validate(raw | {"privacy": raw["privacy"] | budget}, f"scenario {scenario.name} with this budget")
    plan = make_plan(scenario, privacy_units(scenario))
    return {
        "scenario": scenario.name,
        "noise_multiplier": plan.noise_multiplier,
        "epsilon": plan.epsilon.to_json(),
        "epsilon_bound": plan.epsilon.method,
        "delta": scenario.privacy.delta,
        "budget": epsilon,
        "mechanism": str(plan.mechanism),
    }


def privacy_table(answer: dict[str, Any]) -> RenderableType:
    """The cost as a person reads it: amplified and not, side by side, and over the rounds."""
    facts = _facts(
        f"{answer['scenario']}: what it costs",
        {
            "protected": _protected(answer),
            "adjacency": answer["adjacency"],
            "delta": f"{answer['delta']:g}",
            "noise multiplier": f"{answer['noise_multiplier']:.5g}",
            "expected cohort": f"{answer['expected_cohort']:,.4g} of {answer['units']:,} {answer['unit']}s a round",
            "mechanism": answer["mechanism"],
            "epsilon": _bracket(answer["epsilon"]),
            **_poisson_row(answer["poisson_epsilon"]),
            "without amplification": _bracket(answer["unamplified_epsilon"]),
            "upper end from": answer["epsilon_bound"],
            "budget": _budget(answer),
        },
    )
    curve = Table("round", "epsilon", "without amplification", title="spent so far, at most")
    rounds = answer["per_round"]
    shown = sorted({max(1, round(share * len(rounds) / 10)) for share in range(1, 11)})
    for row in (rounds[number - 1] for number in shown):
        curve.add_row(str(row["round"]), at_most(row["epsilon_upper"], 4), at_most(row["unamplified_upper"], 4))
    return Group(
        facts, curve, _groups_table(answer), "Assumes a trusted server and hidden assignments: docs/threat-model.md"
    )


def _poisson_row(ends: dict[str, float | None] | None) -> dict[str, str]:
    return {} if ends is None else {"by Poisson sampling": _bracket(ends)}


def _groups_table(answer: dict[str, Any]) -> RenderableType:
    if answer["groups"] is None:
        return "What groups protected together would cost: add --groups (takes seconds)"
    table = Table(f"{answer['unit']}s together", "epsilon", title="what groups cost, at most")
    for row in answer["groups"]:
        table.add_row(str(row["size"]), at_most(row["epsilon_upper"], 4))
    return table


def calibration_table(answer: dict[str, Any]) -> RenderableType:
    """The calibrated noise as a person reads it."""
    return _facts(
        f"{answer['scenario']}: least noise for the budget",
        {
            "noise multiplier": f"{answer['noise_multiplier']:.6g}",
            "budget": f"epsilon <= {answer['budget']:g} at delta = {answer['delta']:g}",
            "epsilon": _bracket(answer["epsilon"]),
            "mechanism": answer["mechanism"],
        },
    )


def _facts(title: str, rows: dict[str, str]) -> Table:
    table = Table(title=title, show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _protected(answer: dict[str, Any]) -> str:
    group = answer["group_size"]
    return f"one {answer['unit']}" if group == 1 else f"any {group} {answer['unit']}s together"


def _budget(answer: dict[str, Any]) -> str:
    if answer["budget"] is None:
        return "none"
    paid = f"pays for {answer['affordable_rounds']} of {answer['rounds']} rounds"
    return f"epsilon <= {answer['budget']:g}, {paid}"


def _bracket(ends: dict[str, float | None]) -> str:
    return f"{at_most(ends['upper'], 4)} (at least {at_least(ends['lower'], 4)})"
