"""Define how the nodes' sums become one: the base of the schemes of ``aggregation``, and the core's own one.

A scheme here is public words and the facts that it keeps. The protocol that adds up is an
:class:`fedamp.strategies.aggregation.Aggregator`, which a scheme names. Secure aggregation is an extension
(``fedamp/extensions/secure``).
"""

from typing import Any, ClassVar, Literal

from fedamp.federation import facts
from fedamp.federation.facts import Declared


class AggregationScheme(Declared):
    """Base of the schemes that turn the nodes' sums into the sum of a round.

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

    def agreed_terms(self, plan: Any) -> Any:
        """Make the terms on which the nodes agree before the run; None: they agree on nothing.

        Args:
            plan: a :class:`fedamp.federation.plan.Plan`.

        Raises:
            ValueError: the nodes cannot agree on such terms, in one line.
        """
        return None

    def agreed_nodes(self, agreed: Any) -> int | None:
        """Return the number of nodes that agree, where it decides the cost; None: it does not.

        Args:
            agreed: the terms, from :meth:`agreed_terms`.
        """
        return None

    def trust_assumption(self, agreed: Any) -> str:
        """Write which parties are trusted, as the ledger says it."""
        return "The server is trusted: it sees each node's sum before noise, and keeps it to itself."

    def task_keys(self, agreed: Any) -> dict[str, Any]:
        """Return what clients are told beside the core's keys: values of the extension's keys of a task."""
        return {}


class PlainAggregation(AggregationScheme):
    """The server sees each node's sum before noise, and adds them up."""

    scheme: Literal["plain"] = "plain"
    keeps = frozenset({facts.SERVER_ADDS_NOISE})


AGGREGATIONS: tuple[type[AggregationScheme], ...] = (PlainAggregation,)
