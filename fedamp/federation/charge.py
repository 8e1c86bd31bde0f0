"""What a plan costs: the expression that the ledger charges, and its numbers.

From the noise multiplier to the charge: :meth:`Plan.parts_at` (clip, noise and denominator of each part), then
:meth:`Charge.of_a_round` (the cost of taking part in a round), then :meth:`Charge.at` (the cost of all rounds).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting import (
    Bounds,
    Compose,
    Gaussian,
    Mechanism,
    NotPrivate,
    Repeat,
    calibrate,
    epsilon_over_rounds,
    group,
)
from fedamp.accounting.arithmetic import delta_left
from fedamp.base.numbers import at_most
from fedamp.base.section import lengths
from fedamp.errors import ScenarioError

if TYPE_CHECKING:
    from fedamp.federation.plan import Plan

CURVE = "the curve over rounds: the smallest upper end of this round and all later ones"


@dataclass(frozen=True)
class Charge:
    """The cost of a plan for a unit, or for a group of units, as the scenario asks to charge it; no seed changes it."""

    plan: Plan

    @cached_property
    def mechanism(self) -> Mechanism:
        """The accounting expression of the whole run, which the ledger charges."""
        return self.of_group(self._group_size)

    def of_group(self, size: int) -> Mechanism:
        """The same for ``size`` units together, whatever group size the scenario protects."""
        return self.at(self.plan.noise_multiplier, size) if self.plan.is_private else NotPrivate()

    def at(self, noise_multiplier: float, group_size: int, capacity: str | None = None) -> Mechanism:
        """The same for another noise multiplier; for a unit of a class of devices, default: that pays the most."""
        plan, rounds = self.plan, self._rounds
        widths = plan.charged_widths or ((1, None),)
        charged = tuple(
            plan.check_in.charge(self.of_a_round(noise_multiplier, width, capacity), length)
            for (_, width), length in zip(widths, lengths(widths, rounds), strict=True)
        )
        amplified = group(charged[0] if len(charged) == 1 else Compose(charged), group_size)
        return amplified if plan.scenario.privacy.amplification else amplified.unamplified()

    def of_a_round(self, noise_multiplier: float, width: float | None, capacity: str | None = None) -> Mechanism:
        """The cost of taking part in a round, in which ModelMix is charged at this width; None: without it."""
        plan, released = self.plan, []
        for part in plan.parts_at(noise_multiplier):
            release: Mechanism = Gaussian(part.noise_multiplier)
            if width is not None and plan.mixing is not None:
                release = plan.mixing.charge(part.noise_multiplier, width, plan.largest_step(part))
            released.append(plan.submodels.charge(part, release, capacity))
        released += plan.clipping.charges()
        return released[0] if len(released) == 1 else Compose(tuple(released))

    def _unamplified(self, rounds: int, noise_multiplier: float) -> Mechanism:
        """The first rounds without amplification: a unit pays for every round that it can have taken part in."""
        smallest = min((width for _, width in self.plan.charged_widths), default=None)
        once = self.of_a_round(noise_multiplier, smallest).unamplified()
        return group(Repeat(once, self.plan.check_in.most_check_ins(rounds, self._rounds)), self._group_size)

    def _first(self, rounds: int, noise_multiplier: float) -> Mechanism:
        """The first rounds, as they are charged."""
        if not self.plan.scenario.privacy.amplification:
            return self._unamplified(rounds, noise_multiplier)
        return self.at(noise_multiplier, self._group_size).after(rounds)

    @property
    def server_mechanism(self) -> Mechanism | None:
        """The cost for who runs the server, together with the colluding nodes; None: the server sees everything.

        The server sees the noisy sums, as everybody does, and who is asked, unless the nodes draw that themselves.
        """
        terms = self.plan.terms
        return None if terms is None else self._charged_to(terms.check_in is not None)

    @property
    def nodes_mechanism(self) -> Mechanism | None:
        """The cost for a registered node, of units of other nodes; None: ``federation.hosts`` names no nodes.

        Flower tells every registered node the traffic of all nodes (``GetRun``), and so who is asked, and when.
        """
        protection = self.plan.protection
        return None if protection is None else self._charged_to(protection != "none")

    def _charged_to(self, hidden: bool) -> Mechanism:
        """The cost for somebody from whom the check-ins are hidden, or who sees them."""
        if hidden or not self.plan.is_private:
            return self.mechanism
        return self._unamplified(self._rounds, self.plan.noise_multiplier)

    # --- in numbers ---------------------------------------------------------------------------------------------------

    @cached_property
    def planned_epsilon(self) -> Bounds:
        """Of all rounds of the scenario; the guarantee of a run is :attr:`guaranteed_epsilon`."""
        return self._epsilon(self.mechanism)

    @cached_property
    def epsilon_by_capacity(self) -> dict[str, Bounds]:
        """The same for a unit of each public class of devices, the most first; empty where all pay alike."""
        noise, names = self.plan.noise_multiplier, self.plan.submodels.capacities if self.plan.is_private else ()
        return {name: self._epsilon(self.at(noise, self._group_size, name)) for name in names}

    @cached_property
    def unamplified_epsilon(self) -> Bounds:
        """Of the whole run, without amplification."""
        return self._epsilon(self.mechanism.unamplified())

    @cached_property
    def server_epsilon(self) -> Bounds | None:
        """Of :attr:`server_mechanism`, for all rounds of the scenario."""
        return self._of(self.server_mechanism)

    @cached_property
    def nodes_epsilon(self) -> Bounds | None:
        """Of :attr:`nodes_mechanism`, for all rounds of the scenario."""
        return self._of(self.nodes_mechanism)

    @cached_property
    def epsilon_by_round(self) -> NDArray[np.float64]:
        """Upper end of epsilon after each round; entry r - 1 is after round r."""
        if not self.plan.is_private or not self.plan.scenario.privacy.amplification:
            return self.unamplified_epsilon_by_round
        return epsilon_over_rounds(self.mechanism, self._delta, precision=self.plan.scenario.privacy.precision)

    @cached_property
    def unamplified_epsilon_by_round(self) -> NDArray[np.float64]:
        """Like ``epsilon_by_round``, without amplification."""
        if not self.plan.is_private:
            return np.full(self._rounds, np.inf)
        spent = epsilon_over_rounds(self._unamplified(self._rounds, self.plan.noise_multiplier), self._delta)
        most = self.plan.check_in.most_check_ins
        return np.asarray(spent[np.array([most(round_, self._rounds) for round_ in range(1, self._rounds + 1)]) - 1])

    @cached_property
    def affordable_rounds(self) -> int:
        """Number of rounds that the budget pays for; all of them without a budget."""
        budget = self.plan.scenario.privacy.epsilon
        return self._rounds if budget is None else int(np.searchsorted(self.epsilon_by_round, budget, "right"))

    @cached_property
    def guaranteed_epsilon(self) -> Bounds:
        """The cost of all rounds up to the last one. It covers a run whose stop depends on its releases.

        Such a run is a post-processing of the run that continues to its last round (Dwork, Roth 2014, Proposition 2.1).
        The cost of the released rounds alone (:meth:`spent`) covers a stop that is independent of the data.
        """
        return self._spent(self.plan.last_round)

    def spent(self, rounds: int) -> Bounds:
        """The cost of a number of rounds that was fixed beforehand; the ledger charges the upper end."""
        return self.guaranteed_epsilon if rounds == self.plan.last_round else self._spent(rounds)

    def compute(self) -> None:
        """Compute now what takes long."""
        for name in ("planned_epsilon", "unamplified_epsilon", "guaranteed_epsilon", "server_epsilon", "nodes_epsilon"):
            getattr(self, name)

    def check_budget(self) -> None:
        """Refuse (ScenarioError) a budget that pays for no round, with the smallest noise multiplier that suffices.

        The cost of the first round often decides, and it is quicker to compute than the curve over the rounds.
        """
        privacy = self.plan.scenario.privacy
        budget, noise = privacy.epsilon, privacy.noise_multiplier
        if budget is None or noise == "auto":
            return

        def once(tried: float) -> Bounds:
            return self._first(1, tried).epsilon(self._delta, points=300)

        quick = "epsilon_by_round" not in vars(self)
        cost = once(noise)
        if (quick and cost.upper <= budget) or (cost.lower <= budget and self.affordable_rounds):
            return
        least = calibrate(lambda tried: self._first(1, tried), budget, self._delta, tolerance=1e-3)
        while once(least).upper > budget:  # calibrated with more points
            least *= 1.001
        raise ScenarioError(
            f"privacy.epsilon: {budget:g} pays for no round with noise_multiplier {noise:g}: one round costs "
            f"{at_most(cost.upper)}; expected: noise_multiplier at least {at_most(least, 4)} for one round, or auto "
            f"for all {self._rounds}"
        )

    def _of(self, mechanism: Mechanism | None) -> Bounds | None:
        if mechanism is None:
            return None
        return self.planned_epsilon if mechanism is self.mechanism else self._epsilon(mechanism)

    def _spent(self, rounds: int) -> Bounds:
        if rounds == 0:
            return Bounds(0.0, 0.0, "nothing released")
        if not self.plan.is_private:
            return self.planned_epsilon
        bounds = self._epsilon(self._first(rounds, self.plan.noise_multiplier))
        upper = float(self.epsilon_by_round[rounds - 1])
        return Bounds(min(bounds.lower, upper), upper, bounds.method if upper == bounds.upper else CURVE)

    def _epsilon(self, mechanism: Mechanism) -> Bounds:
        return mechanism.epsilon(self._delta, precision=self.plan.scenario.privacy.precision)

    @property
    def _delta(self) -> float:
        """The part of the scenario's delta for the mechanism: the sampler of the noise takes the rest."""
        return delta_left(self.plan.scenario.privacy.delta)

    @property
    def _rounds(self) -> int:
        return self.plan.scenario.rounds

    @property
    def _group_size(self) -> int:
        return self.plan.scenario.privacy.group_size
