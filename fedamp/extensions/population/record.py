"""Define what a ledger holds of a population."""

from typing import Annotated

from pydantic import Field

from fedamp.base.record import Record
from fedamp.base.section import NotNegative


class PopulationRecord(Record):
    """State of the person who has spent the most of a population, with this run.

    Attributes:
        id: of the population.
        head: of the population's chain after this use was reserved.
        use: the id of this use.
        budget_epsilon, delta: what all uses together keep, however they are chosen.
        share: of the budget, spent with this run, in [0, 1].
        adaptive_epsilon: the budget that would have been enough so far, for uses that are chosen one after the other.
        fixed_epsilon: upper end for the same uses, if fixed in advance; None: too many to compute, or no bound is
            known.
        uses: their number, with this run.
    """

    id: str
    head: str
    use: str
    budget_epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    share: Annotated[float, Field(ge=0, le=1)]
    adaptive_epsilon: NotNegative
    fixed_epsilon: NotNegative | None
    uses: Annotated[int, Field(ge=1)]
