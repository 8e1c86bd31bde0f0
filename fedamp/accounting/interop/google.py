"""Our accountant for code that takes a ``dp_accounting.PrivacyAccountant``. Needs the ``interop`` extra."""

from collections import Counter
from typing import Any

import dp_accounting as dp

from fedamp.accounting import interop
from fedamp.accounting.events import Mechanism, composed
from fedamp.accounting.theorems import epsilon_of_losses


class Accountant(dp.PrivacyAccountant):  # type: ignore[misc]
    """Charges what is composed with fedamp, and answers the upper ends of its brackets.

    Args:
        neighboring_relation: of all events.
        accountant: how noise multipliers are read under ``REPLACE_ONE``; see ``interop``.
        precision: of sampled answers; see ``Mechanism.epsilon``.
    """

    def __init__(
        self,
        neighboring_relation: Any = dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        accountant: interop.Accountant = "pld",
        precision: float | None = None,
    ) -> None:
        super().__init__(neighboring_relation)
        self._read_as, self._precision = accountant, precision
        self._composed: Counter[Mechanism] = Counter()

    @property
    def mechanism(self) -> Mechanism:
        """What was composed."""
        return composed(self._composed.items())

    def get_epsilon(self, target_delta: float) -> float:
        """The upper end of epsilon at a delta in [0, 1]; at 0 what bounded losses prove, else infinity."""
        if target_delta == 0 or not self.mechanism.is_private:
            return epsilon_of_losses(self.mechanism)
        if target_delta == 1:
            return 0.0
        return self.mechanism.epsilon(target_delta, precision=self._precision).upper

    def get_delta(self, target_epsilon: float) -> float:
        """The upper end of delta at an epsilon >= 0."""
        return self.mechanism.delta(target_epsilon, precision=self._precision).upper

    def _maybe_compose(self, event: dp.DpEvent, count: int, do_compose: bool) -> Any:
        if isinstance(event, dp.SelfComposedDpEvent) and isinstance(event.count, int) and event.count >= 0:
            return self._maybe_compose(event.event, event.count * count, do_compose)
        if isinstance(event, dp.ComposedDpEvent):
            return next(filter(None, (self._maybe_compose(each, count, do_compose) for each in event.events)), None)
        try:
            mechanism = interop.from_dp_accounting(event, self.neighboring_relation, self._read_as)
        except ValueError as error:
            return self.CompositionErrorDetails(event, str(error))
        if do_compose:
            self._composed[mechanism] += count
        return None
