"""How the nodes' sums become one: base of the schemes of ``aggregation``, and the core's own one."""

from typing import Any, ClassVar, Literal

from fedamp.federation import facts
from fedamp.federation.facts import Declared


class AggregationScheme(Declared):
    """How the nodes' sums become the sum of a round.

    Attributes:
        scheme: its name in a scenario.
        hides_sums: whether the server sees the noisy sum of all nodes alone. Then it is charged, as others are.
        aggregator: class that adds up, an :class:`fedamp.strategies.aggregation.Aggregator` that is made from a plan,
            as ``package.module:Class``; empty: the core's own.
    """

    scheme: str
    hides_sums: ClassVar[bool] = False
    aggregator: ClassVar[str] = ""
    concerns = frozenset({facts.SERVER_ADDS_NOISE, facts.SUM_OF_ALL})

    def agreed(self, plan: Any) -> Any:
        """What the nodes agree on before the run, by a :class:`fedamp.federation.plan.Plan`; None: nothing.

        Raises:
            ValueError: they cannot agree on that, in one line.
        """
        return None

    def agreed_nodes(self, agreed: Any) -> int | None:
        """The number of nodes that agree, where it decides the cost; None: it does not."""
        return None

    def assumption(self, agreed: Any) -> str:
        """Who is trusted, as the ledger says it."""
        return "The server is trusted: it sees each node's sum before noise, and keeps it to itself."

    def task_keys(self, agreed: Any) -> dict[str, Any]:
        """What clients are told beside the core's keys: values of the extension's keys of a task."""
        return {}


class PlainAggregation(AggregationScheme):
    """The server sees each node's sum before noise, and adds them up."""

    scheme: Literal["plain"] = "plain"
    keeps = frozenset({facts.SERVER_ADDS_NOISE})


AGGREGATIONS: tuple[type[AggregationScheme], ...] = (PlainAggregation,)
