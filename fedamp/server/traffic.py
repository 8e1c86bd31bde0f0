"""Compute the traffic of a node of a deployment, and the cost of hiding check-ins from it.

Bytes follow from the scenario and the model, because the orders and answers of a node are padded. ``fedamp privacy``
and the preflight check show them. Torch is imported only when a model must be built.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedamp.base.numbers import amount_of_bytes
from fedamp.federation.losses import brings_code
from fedamp.federation.scenario import Scenario

if TYPE_CHECKING:
    from fedamp.server.setup import RunInputs


def traffic(scenario: Scenario) -> dict[str, Any] | None:
    """Compute :func:`traffic_of` a scenario; None without ``federation.hosts``.

    It is None also for a custom app or model, whose code is not run here, and for an aggregation with more
    exchanges. The data folder must hold the server's part of the data.

    Args:
        scenario: of a deployment.

    Raises:
        InputError: data or model cannot be loaded.
    """
    if not scenario.federation.hosted_units or scenario.data.name == "external" or scenario.aggregation.hides_sums:
        return None
    if brings_code(scenario):
        return None
    from fedamp.server.setup import prepare

    return traffic_of(prepare(scenario))


def in_words(each_round: Mapping[str, Mapping[str, float]]) -> str:
    """Write one line about what a round costs a node with each choice.

    Args:
        each_round: of :func:`traffic_of`.
    """
    told = (f"{name} {amount_of_bytes(each['bytes'])}, work x {each['work']:.3g}" for name, each in each_round.items())
    return "; ".join(told)


def traffic_of(inputs: "RunInputs") -> dict[str, Any]:
    """Count the bytes that a node sends and receives in a run, and what a round costs with and without dummies.

    Beside the bytes are Flower's own framing, and 5 kB for a query.

    Args:
        inputs: of a run whose scenario has ``federation.hosts``.

    Returns:
        ``bytes_per_node``: lower and upper end for the whole run. ``dummies``: whether the plan has them.
            ``each_round``:
        two numbers for each choice of protection. ``bytes`` are the most of a node, or their expectation where it is
        not asked in every round. ``work`` is the number of units that train over the expected cohort.
    """
    plan, strategy = inputs.plan, inputs.strategy(inputs.state)
    hosted = [units or plan.units for units in plan.scenario.federation.hosted_units.values()]
    sizes = [strategy.round_bytes(units) for units in hosted]
    rate, most = plan.expected_cohort / plan.units, max(sizes)
    sparse = max(size * min(1.0, units * rate) for size, units in zip(sizes, hosted, strict=True))
    least = min(sizes) if plan.asks_every_node else 0  # else a node is asked in the rounds of its units
    choices = {"dummies": (most, 1 / rate), "answer_after": (most, 1.0), "none": (round(sparse), 1.0)}
    return {
        "bytes_per_node": {"lower": plan.last_round * least, "upper": plan.last_round * most},
        "dummies": plan.asks_every_node,
        "each_round": {name: {"bytes": size, "work": work} for name, (size, work) in choices.items()},
    }
