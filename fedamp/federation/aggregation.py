"""How the nodes' sums become one: base of the schemes of ``aggregation``, and the core's own one."""

from typing import Literal

from fedamp.base.section import Section


class AggregationScheme(Section):
    """How the nodes' sums become the sum of a round.

    Attributes:
        scheme: its name in a scenario.
    """

    scheme: str


class PlainAggregation(AggregationScheme):
    """The server sees each node's sum before noise, and adds them up."""

    scheme: Literal["plain"] = "plain"


AGGREGATIONS: tuple[type[AggregationScheme], ...] = (PlainAggregation,)
