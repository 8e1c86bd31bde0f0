"""How the nodes' sums become one: base of the schemes of ``aggregation``, and the core's own one."""

from typing import Literal

from fedamp.federation import facts
from fedamp.federation.facts import Declared


class AggregationScheme(Declared):
    """How the nodes' sums become the sum of a round.

    Attributes:
        scheme: its name in a scenario.
    """

    scheme: str
    concerns = frozenset({facts.SERVER_ADDS_NOISE, facts.SUM_OF_ALL})


class PlainAggregation(AggregationScheme):
    """The server sees each node's sum before noise, and adds them up."""

    scheme: Literal["plain"] = "plain"
    keeps = frozenset({facts.SERVER_ADDS_NOISE})


AGGREGATIONS: tuple[type[AggregationScheme], ...] = (PlainAggregation,)
