"""Which node may speak for which units: in a deployment as the operator wrote it, in a simulation any for all."""

from dataclasses import dataclass
from typing import Literal, Self

from flwr.serverapp import Grid

from fedamp.base.ids import Ranges, ranges
from fedamp.engines import flower
from fedamp.errors import DeploymentError
from fedamp.federation.running import Federation

Permit = Ranges | Literal["all"]
"""The units that a node may claim; ``all``: also that it can train any unit, so that the server need not know whose
records lie where."""


@dataclass(frozen=True)
class Hosts:
    """What each node may claim.

    Attributes:
        by_name: by the name under which the operator registered a node. The node cannot choose it: Flower's SuperLink
            holds every request against the public key that was registered with it.
        others: the same for nodes that are not among them.
    """

    by_name: dict[str, Permit]
    others: Permit = ()

    @classmethod
    def of(cls, federation: Federation, grid: Grid, units: int) -> Self:
        """What a scenario says of the nodes of a grid.

        Raises:
            DeploymentError: the nodes are real ones, and it says nothing of them, or names units that there are not.
        """
        if flower.is_simulated(grid):
            return cls({}, others="all")
        asked = federation.hosts
        if asked is None:
            raise DeploymentError(
                "federation.hosts is missing: a deployment must say which node may speak for which units; expected: "
                f"their ids by the names of the registered nodes, such as {{site0: 0-{units - 1}}}, or trusted, to "
                "believe whatever a registered node says"
            )
        if asked == "trusted":
            return cls({}, others=((0, units - 1),))
        by_name: dict[str, Permit] = {name: "all" if text == "all" else ranges(text) for name, text in asked.items()}
        for name, permit in by_name.items():
            for _, last in () if permit == "all" else permit:
                if last >= units:
                    raise DeploymentError(f"federation.hosts.{name}: there is no unit {last}; expected: 0-{units - 1}")
        return cls(by_name)

    def permit(self, name: str) -> Permit:
        """What the node of this name may claim; empty: nothing."""
        return self.by_name.get(name, self.others)
