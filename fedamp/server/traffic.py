"""What a node of a deployment sends and receives. No torch here before a scenario names its nodes."""

from typing import Any

from fedamp.federation.scenario import Scenario


def traffic(scenario: Scenario) -> dict[str, Any] | None:
    """Bytes that a node sends and receives in a run, and whether there are dummies; None without ``federation.hosts``.

    Beside them are Flower's own framing, and 5 kB for a query. The data folder must hold what the server needs. None
    also for a custom app, whose model is not known here, and for secure aggregation, which adds exchanges.
    """
    hosted = scenario.federation.hosted
    if not hosted or scenario.data.name == "external" or scenario.aggregation.scheme == "secure":
        return None
    from fedamp.server.setup import prepare

    prepared = prepare(scenario)
    plan, strategy = prepared.plan, prepared.strategy(prepared.state)
    sizes = [strategy.round_bytes(units or plan.units) for units in hosted.values()]
    least = min(sizes) if strategy.wants_dummies else 0  # else a node is asked in the rounds of its units
    bytes_ = {"lower": plan.last_round * least, "upper": plan.last_round * max(sizes)}
    return {"bytes_per_node": bytes_, "dummies": strategy.wants_dummies}
