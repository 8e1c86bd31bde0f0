"""Reduce a scenario to what others may know."""

import re
from typing import Any

import numpy as np

from fedamp.base.section import OwnersFile
from fedamp.federation.choices import marked_keys
from fedamp.federation.plan import Plan
from fedamp.federation.scenario import Scenario

LEFT_OUT = {"description", "engine", "federation", "trackers"}  # what the plan reads of them is filled in elsewhere
_LOCAL = re.compile(r"[/~\\]|\.{1,2}([/\\]|$)|[A-Za-z]:[/\\]|file:", re.IGNORECASE)


def public_scenario(asked: Scenario, plan: Plan) -> dict[str, Any]:
    """Return what others may know of a scenario: the sections that decide a run, without the server's paths.

    The names of nodes are left out. Their number, which the plan reads, is in ``aggregation``; and ``federation`` says
    whether they see who checks in. Recomputing the charge needs no more (``fedamp verify``).

    Args:
        asked: the scenario of a run.
        plan: of the run.
    """
    content: dict[str, Any] = _without_paths(asked.model_dump(mode="json", exclude=LEFT_OUT))
    for section, key, _ in marked_keys(OwnersFile):
        content[section].pop(key, None)
    content["engine"] = asked.engine.model_dump(mode="json", include={"clients_per_batch", "precision"})
    if (nodes := asked.aggregation.agreed_nodes(plan.agreed_terms)) is not None:
        content["aggregation"]["nodes"] = nodes
    for key in ("initial", "folder"):
        content["model"][key] = content["model"].get(key) or None
    if plan.protection == "none":
        content["federation"] = {"hosts": "trusted"}
    elif plan.protection is not None:
        parts = np.array_split(np.arange(plan.units), nodes or 1)
        hosts = {f"node {number}": f"{part[0]}-{part[-1]}" for number, part in enumerate(parts)}
        content["federation"] = {"hosts": hosts, "dummies": True}
    return content


def _without_paths(value: Any) -> Any:
    """Replace each text that is a local path by an empty one."""
    if isinstance(value, dict):
        return {key: _without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_paths(inner) for inner in value]
    return "" if isinstance(value, str) and _LOCAL.match(value) else value
