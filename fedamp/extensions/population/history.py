"""Tell a person what her data was used for: each use with its purpose and cost, and what all of them mean together.

Dates are those of the operator's clock. They are told, and nothing is decided by them.
"""

import math
from typing import Any

from fedamp.accounting import Gaussian, Mechanism, trade_off
from fedamp.accounting.arithmetic import delta_left
from fedamp.accounting.search import Budget
from fedamp.extensions.population.account import fixed
from fedamp.extensions.population.store import PopulationContents, percent

FALSE_ALARMS = 0.01


def history_of(contents: PopulationContents, person: int) -> dict[str, Any]:
    """Describe all uses that a person was charged, as JSON.

    Args:
        contents: of the population.
        person: number.

    Returns:
        ``uses``, in their order: each with ``epsilon`` alone and ``epsilon_so_far``, of all uses up to it, both upper
        ends at the population's delta; None: infinite. ``adaptive_epsilon`` is the cost by the filter,
        ``fixed_epsilon`` the exact cost of the same series if it was fixed in advance
        (:func:`fedamp.extensions.population.account.fixed`). ``risk``: see :func:`risk_of`. ``left``: of the budget.
        ``lost``: the part of the budget that uses may have cost of which a lost disk knew; None: no disk was lost.
    """
    budget, uses = contents.budget(person), []
    share = lost = float(contents.lost[person]) if person < len(contents.lost) else 0.0
    for use, charge in contents.series(person):
        share += charge.share
        uses.append(
            {
                "use": use.id,
                "run": use.name,
                "date": use.date,
                "purpose": use.purpose,
                "state": use.state,
                "units": charge.units,
                "share": percent(charge.share, up=True),
                "epsilon": epsilon_alone(charge.mechanism, contents.delta),
                "epsilon_so_far": finite(budget.spent_epsilon(share)),
                "released": use.released or None,
            }
        )
    return {
        "budget_epsilon": budget.epsilon,
        "delta": contents.delta,
        "left": percent(max(1 - share, 0.0)),
        "share": finite(share),
        "lost": percent(lost, up=True) if lost else None,
        "adaptive_epsilon": finite(budget.spent_epsilon(share)),
        "fixed_epsilon": fixed(contents, person),
        "risk": risk_of(budget, share),
        "left_on": contents.left.get(person),
        "uses": uses,
    }


def epsilon_alone(mechanism: Mechanism, delta: float) -> float | None:
    """Return the upper end of epsilon of one use alone; None: infinite."""
    return finite(mechanism.epsilon(delta_left(delta)).upper)


def finite(value: float) -> float | None:
    """Return a number as JSON can hold it; None: it is infinite."""
    return value if math.isfinite(value) else None


def risk_of(budget: Budget, share: float) -> dict[str, float] | None:
    """Bound what an attacker of all releases together can find out about a person's participation.

    The releases are dominated by a Gaussian mechanism of parameter ``sqrt(share) mu``, up to a part of delta
    (docs/research/filter.md, Theorem 1). Each rate of an attack is at most that of the Gaussian plus that part, for
    which all of delta is taken here.

    Returns:
        ``found``: true positive rate at one false alarm in 100; ``right``: probability to be right where both worlds
        are equally likely. None: more than the budget is spent, and no bound is known.
    """
    if not share <= 1:
        return None
    if share == 0:
        return {"found": FALSE_ALARMS, "right": 0.5}
    curve = trade_off(Gaussian(1 / (math.sqrt(share) * budget.mu)))
    found = float(curve.true_positive_rate(FALSE_ALARMS)[1]) + budget.delta
    return {"found": min(found, 1.0), "right": min((1 + curve.advantage.upper + budget.delta) / 2, 1.0)}
