"""A scenario as ``fedamp.load`` returns it, which shows how its records are partitioned; and as others may know it."""

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from fedamp.base.section import OwnersFile
from fedamp.errors import needs_extras
from fedamp.federation import scenario
from fedamp.federation.choices import marked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedamp.federation.plan import Plan


PUBLIC = ("diabetes", "digits", "fashion-mnist", "mnist", "segments", "shakespeare", "synthetic")
LEFT_OUT = {"description", "engine", "federation", "trackers"}  # what the plan reads of them is filled in elsewhere
_LOCAL = re.compile(r"[/~\\]|\.{1,2}([/\\]|$)|[A-Za-z]:[/\\]|file:", re.IGNORECASE)


class LoadedScenario(scenario.Scenario):
    """A scenario with a picture of its partition."""

    @classmethod
    def of(cls, loaded: scenario.Scenario) -> "LoadedScenario":
        """Return the same scenario as an object of this class."""
        if isinstance(loaded, LoadedScenario):
            return loaded
        return cls.model_construct(loaded.model_fields_set, **dict(loaded))

    def plot_partition(self, clients: int = 30) -> "Figure":
        """Records of every label that the first clients hold; it says so where they are private.

        InputError: the records are not there, or only the code of a custom loss knows what their labels are.
        """
        from fedamp.federation.losses import shown_records

        with needs_extras():
            from fedamp.report.pictures import partition_picture

        is_public = self.data.name in PUBLIC and not getattr(self.data, "path", None)
        return partition_picture(shown_records(self).label_counts(clients), self.name, is_public)


def public(asked: scenario.Scenario, plan: "Plan") -> dict[str, Any]:
    """What others may know of a scenario: the sections that decide a run, without paths of the server's machines.

    The names of nodes are left out. Their number, which the plan reads, stands in ``aggregation``; and ``federation``
    says whether they see who checks in.
    """
    content: dict[str, Any] = _without_paths(asked.model_dump(mode="json", exclude=LEFT_OUT))
    for section, key, _ in marked(OwnersFile):
        content[section].pop(key, None)
    content["engine"] = asked.engine.model_dump(mode="json", include={"clients_per_batch", "precision"})
    if (nodes := asked.aggregation.agreed_nodes(plan.agreed)) is not None:
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
    if isinstance(value, dict):
        return {key: _without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_paths(inner) for inner in value]
    return "" if isinstance(value, str) and _LOCAL.match(value) else value
