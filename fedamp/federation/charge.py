"""Compute the cost of a plan: for a unit or a group, for all rounds and for the first ones, in expressions and numbers.

From the noise multiplier to the charge: :meth:`fedamp.federation.plan.Plan.parts_at` (clip, noise and denominator of
each part), then :meth:`Charge.of_a_round` (the cost of taking part in a round), then :meth:`Charge.with_noise` (the
cost of all rounds).

Schemes and optional sections say what each of them costs; this module composes that, and knows none by name. How an
expression becomes an epsilon is in :mod:`fedamp.accounting`. Ledger, budget check, reports and ``fedamp privacy`` read
their numbers here.

===================================  =================================================  ==============================
expression                           it charges                                         its epsilon
===================================  =================================================  ==============================
:attr:`Charge.mechanism`             all rounds of the scenario                         :attr:`Charge.planned_epsilon`
its ``unamplified()``                the same, for who knows all hidden choices         ``unamplified_epsilon``
:meth:`Charge.of_group`              the same, for another number of units
:meth:`Charge.for_person`            all rounds that the budget pays for, for a person  the population charges it
:meth:`Charge.beginning`             the first rounds of any of these                   ``spent``, ``epsilon_by_round``
:attr:`Charge.server_mechanism`      what the operator of the server sees               ``server_epsilon``
:attr:`Charge.nodes_mechanism`       what a registered node sees                        ``nodes_epsilon``
===================================  =================================================  ==============================
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

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
    group,
)
from fedamp.accounting.arithmetic import delta_left
from fedamp.accounting.bounds import Method, Origin
from fedamp.accounting.verify import ahead_of_rounds, before_rounds
from fedamp.base.numbers import at_most
from fedamp.errors import ScenarioError
from fedamp.federation.optional import AnyPlan, RoundKind

RoundKinds = Mapping[str, RoundKind]
"""Kind of rounds by the key of the section that tells it apart."""


@dataclass(frozen=True)
class Charge:
    """The cost of a plan for a unit, or for a group of units, as the scenario asks to charge it.

    Expressions come first, numbers follow. Every epsilon is a bracket at the scenario's delta, less what the noise's
    sampler takes of it. No seed changes a cost.

    Attributes:
        plan: the plan; for a rehearsal, that of its full size.
    """

    plan: AnyPlan

    @cached_property
    def mechanism(self) -> Mechanism:
        """Accounting expression of the whole run, which the ledger charges."""
        return self.of_group(self._group_size)

    def of_group(self, size: int) -> Mechanism:
        """Make the expression of the whole run for ``size`` units together, whatever group size the scenario protects.

        Without noise it is :class:`fedamp.accounting.NotPrivate`.
        """
        return self.with_noise(self.plan.noise_multiplier, size) if self.plan.is_private else NotPrivate()

    def with_noise(self, noise_multiplier: float, group_size: int, capacity: str | None = None) -> Mechanism:
        """Make the expression of the whole run for another noise multiplier.

        Args:
            noise_multiplier: above 0; calibration tries many of them.
            group_size: number of units that are protected together.
            capacity: a public class of devices (``submodels.capacities``); default: the one that pays the most.
        """
        plan = self.plan
        charged = [
            plan.check_in.charge(self.of_a_round(noise_multiplier, kinds, capacity), rounds)
            for kinds, rounds in self._rounds_by_kind
        ]
        amplified = group(_one_mechanism([*self._releases_beside, *charged]), group_size)
        assert amplified.relation == plan.check_in.relation, "the ledger names the relation that is charged"
        return amplified if plan.scenario.privacy.amplification else amplified.unamplified()

    @property
    def _rounds_by_kind(self) -> list[tuple[RoundKinds, int]]:
        """Kinds of rounds by section, and how many rounds each has, in the order in which they are charged.

        Raises:
            ScenarioError: two sections tell rounds apart, and nobody knows which of their kinds meet.
        """
        sections, rounds = self.plan.sections, self._number_of_rounds
        found = {key: section.round_kinds(self.plan) for key, section in sections.items()}
        several = [key for key, kinds in found.items() if len(kinds) > 1]
        if len(several) > 1:
            raise ScenarioError(f"{several[0]} and {several[1]}: both tell rounds apart; expected: one of them")
        alike = {key: kinds[0][0] for key, kinds in found.items()}
        return [(alike | {key: kind}, number) for key in several for kind, number in found[key]] or [(alike, rounds)]

    @property
    def _releases_beside(self) -> list[Mechanism]:
        """Releases of all units beside the rounds: each cost includes them from the first round on."""
        return [release for section in self.plan.sections.values() for release in section.releases_beside(self.plan)]

    def of_a_round(self, noise_multiplier: float, kinds: RoundKinds, capacity: str | None = None) -> Mechanism:
        """Make the cost of taking part in one round.

        Args:
            noise_multiplier: that of the whole update, or of its split part.
            kinds: the kind of the round for each optional section.
            capacity: as in :meth:`with_noise`.

        Returns:
            The composition of the parts' releases, the clipping rule's and the sections', without check-in.
        """
        plan, released = self.plan, []
        for part in plan.parts_at(noise_multiplier):
            release: Mechanism = Gaussian(part.noise_multiplier)
            for key, section in plan.sections.items():
                release = section.charge_part(plan, part, release, kinds[key])
            released.append(plan.submodels.charge(part, release, capacity))
        released += plan.clipping.additional_releases()
        for key, section in plan.sections.items():
            released += section.beside_model(plan, kinds[key])
        return _one_mechanism(released)

    def _unamplified_rounds(self, rounds: int, noise_multiplier: float) -> Mechanism:
        """Charge the first rounds without amplification: a unit pays for every round that it can have taken part in."""
        dearest = {key: section.dearest_kind(self.plan) for key, section in self.plan.sections.items()}
        check_in, round_ = self.plan.check_in, self.of_a_round(noise_multiplier, dearest)
        known: Mechanism = Repeat(check_in.known_cost(round_), check_in.most_check_ins(rounds, self._number_of_rounds))
        if not self.plan.scenario.privacy.noise.costs_add_up:
            known = check_in.charge(round_, self._number_of_rounds).after(rounds).unamplified()
        return group(_one_mechanism([*self._releases_beside, known]), self._group_size)

    def _first_rounds(self, rounds: int, noise_multiplier: float) -> Mechanism:
        """Charge the first rounds as the scenario asks: amplified or not."""
        if not self.plan.scenario.privacy.amplification:
            return self._unamplified_rounds(rounds, noise_multiplier)
        return self.beginning(self.with_noise(noise_multiplier, self._group_size), rounds)

    def beginning(self, whole: Mechanism, rounds: int) -> Mechanism:
        """Cut an expression of :meth:`with_noise` to the first rounds, with what is released beside them.

        Args:
            whole: of all rounds.
            rounds: how many are kept.

        Returns:
            The expression of the first rounds; ``whole`` itself where its steps are no rounds, which costs more.
        """
        ahead = ahead_of_rounds(whole, len(self._releases_beside))
        return whole.after(rounds + ahead) if whole.span == self._number_of_rounds + ahead else whole

    def for_person(self, units: int, noise_multiplier: float | None = None) -> Mechanism:
        """Make the cost for a person with several units, of all rounds that the run may come to.

        Args:
            units: how many units are the person's.
            noise_multiplier: another one than the plan's; then the cost is of all rounds of the scenario.
        """
        if noise_multiplier is not None:
            return self.beginning(self.with_noise(noise_multiplier, units), self._number_of_rounds)
        return self.beginning(self.with_noise(self.plan.noise_multiplier, units), self.plan.last_round)

    @property
    def server_mechanism(self) -> Mechanism | None:
        """Cost towards the operator of the server, together with the colluding nodes; None: the server sees everything.

        The server sees the noisy sums, as everybody does, and who is asked, unless the nodes draw that themselves.
        """
        hides_sums = self.plan.scenario.aggregation.hides_sums
        return self._charged_to(self.plan.nodes_draw) if hides_sums else None

    @property
    def nodes_mechanism(self) -> Mechanism | None:
        """Cost towards a registered node, for units of other nodes; None: ``federation.hosts`` names no nodes.

        Flower tells every registered node the traffic of all nodes (``GetRun``), and so who is asked, and when.
        """
        protection = self.plan.protection
        return None if protection is None else self._charged_to(protection != "none")

    def _charged_to(self, hidden: bool) -> Mechanism:
        """Charge the run towards an observer from whom the check-ins are hidden, or who sees them."""
        if hidden or not self.plan.is_private:
            return self.mechanism
        return self._unamplified_rounds(self._number_of_rounds, self.plan.noise_multiplier)

    # --- in numbers ---------------------------------------------------------------------------------------------------

    @cached_property
    def planned_epsilon(self) -> Bounds:
        """Epsilon of all rounds of the scenario. The guarantee of a run is :attr:`guaranteed_epsilon`."""
        return self._epsilon_of(self.mechanism)

    @cached_property
    def epsilon_by_capacity(self) -> dict[str, Bounds]:
        """Epsilon of all rounds for each public class of devices, the most first; empty where all units pay alike."""
        noise, names = self.plan.noise_multiplier, self.plan.submodels.capacities if self.plan.is_private else ()
        return {name: self._epsilon_of(self.with_noise(noise, self._group_size, name)) for name in names}

    @cached_property
    def unamplified_epsilon(self) -> Bounds:
        """Epsilon of all rounds against an attacker who knows all hidden choices."""
        return self._epsilon_of(self.mechanism.unamplified())

    @cached_property
    def server_epsilon(self) -> Bounds | None:
        """Epsilon of :attr:`server_mechanism`, for all rounds of the scenario."""
        return self._epsilon_or_none(self.server_mechanism)

    @cached_property
    def nodes_epsilon(self) -> Bounds | None:
        """Epsilon of :attr:`nodes_mechanism`, for all rounds of the scenario."""
        return self._epsilon_or_none(self.nodes_mechanism)

    @cached_property
    def epsilon_by_round(self) -> NDArray[np.float64]:
        """Upper end of epsilon after each round, shape [rounds]; the ledger charges entry r - 1 after round r."""
        if not self.plan.is_private or not self.plan.scenario.privacy.amplification:
            return self.unamplified_epsilon_by_round
        if (steps := self._steps) is None:
            return np.minimum(self.planned_epsilon.upper, self.unamplified_epsilon_by_round)
        precision = self.plan.scenario.privacy.precision
        return np.asarray(self.plan.answers.over_rounds(self.mechanism, self._mechanism_delta, steps, precision))

    @cached_property
    def _steps(self) -> range | None:
        """Steps of the mechanism that are the rounds; None: its steps are no rounds, and the first round pays for all.

        Epsilon after the last of them is :attr:`planned_epsilon`, which needs no curve.
        """
        ahead = ahead_of_rounds(self.mechanism, len(self._releases_beside))
        same = self.plan.scenario.privacy.amplification and self.mechanism.span == self._number_of_rounds + ahead
        return range(1 + ahead, self._number_of_rounds + ahead + 1) if same else None

    @cached_property
    def unamplified_epsilon_by_round(self) -> NDArray[np.float64]:
        """Upper end of epsilon after each round without amplification, shape [rounds]; infinite without noise."""
        if not self.plan.is_private:
            return np.full(self._number_of_rounds, np.inf)
        noise = self.plan.noise_multiplier
        if not self.plan.scenario.privacy.noise.costs_add_up:
            known_at = (self._unamplified_rounds(round_, noise) for round_ in range(1, self._number_of_rounds + 1))
            return np.array([each.epsilon(self._mechanism_delta).upper for each in known_at])
        known = self._unamplified_rounds(self._number_of_rounds, noise)
        most = [
            self.plan.check_in.most_check_ins(round_, self._number_of_rounds)
            for round_ in range(1, self._number_of_rounds + 1)
        ]
        ahead = ahead_of_rounds(known, len(self._releases_beside))
        rounds = range(1 + ahead, most[-1] + ahead + 1)
        spent = self.plan.answers.over_rounds(known, self._mechanism_delta, rounds)
        return np.asarray(spent[np.array(most) - 1])

    @cached_property
    def affordable_rounds(self) -> int:
        """Number of rounds that the budget pays for: all without a budget, 0 if the first one costs too much."""
        budget = self.plan.scenario.privacy.epsilon
        if budget is None or (self._steps is not None and self.planned_epsilon.upper <= budget):
            return self._number_of_rounds
        return int(np.searchsorted(self.epsilon_by_round, budget, "right"))

    @cached_property
    def guaranteed_epsilon(self) -> Bounds:
        """Epsilon of all rounds up to the last one. It covers a run whose stop depends on its releases.

        Such a run is a post-processing of the run that continues to its last round (Dwork, Roth 2014, Proposition 2.1).
        The cost of the released rounds alone (:meth:`spent_epsilon`) covers a stop that is independent of the data.
        """
        return self._spent_epsilon(self.plan.last_round)

    def spent_epsilon(self, rounds: int) -> Bounds:
        """Compute the epsilon of a number of rounds that was fixed beforehand.

        Args:
            rounds: from 0, for what leaves the server before the first round, to the scenario's rounds.
        """
        return self.guaranteed_epsilon if rounds == self.plan.last_round else self._spent_epsilon(rounds)

    def compute_now(self) -> None:
        """Compute what takes long now, so that a progress display can say so."""
        for name in ("planned_epsilon", "unamplified_epsilon", "guaranteed_epsilon", "server_epsilon", "nodes_epsilon"):
            getattr(self, name)

    def keys_beyond(self, budget: float, rounds: int) -> str | None:
        """Name the keys that cost more than a budget with any noise multiplier, alone and together.

        Args:
            budget: epsilon.
            rounds: how many rounds are charged.

        Returns:
            A part of an error's line; None if no key does.
        """
        asked = self.plan.scenario

        def cost_of(*left_out: Mapping[str, Any]) -> float:
            scenario = asked.model_copy(update={key: value for each in left_out for key, value in each.items()})
            charge = replace(self.plan, scenario=scenario).charge
            return float(charge._first_rounds(rounds, 1e18).epsilon(self._mechanism_delta, points=300).upper)

        if (together := cost_of()) <= budget:
            return None
        without: dict[str, Mapping[str, Any]] = {
            key: changes
            for section in reversed(self.plan.sections.values())
            for key, changes in section.costs_without(asked).items()
        }
        without |= {
            "privacy.clip.noise_multiplier": {"privacy": asked.privacy.model_copy(update={"clip": 1.0})},
            "submodels.shared_noise_multiplier": {
                "submodels": asked.submodels.model_copy(update={"shared_noise_multiplier": "same"})
            },
        }
        alone = {key: cost_of(*(each for other, each in without.items() if other != key)) for key in without}
        least = cost_of(*without.values()) + budget / 100  # noise without bands costs something at any multiplier
        words = [f"{key} costs {at_most(each)}" for key, each in alone.items() if each > least]
        joint = f"; together they cost {at_most(together)}" if len(words) > 1 else ""
        return (
            f"{', '.join(words)}{joint}; expected: more noise there, or privacy.epsilon above that" if words else None
        )

    def check_budget(self) -> None:
        """Refuse a budget that pays for no round.

        The cost of the first round often decides, and it is quicker to compute than the curve over the rounds.

        Raises:
            ScenarioError: one line with the smallest noise multiplier that suffices.
        """
        privacy = self.plan.scenario.privacy
        budget, noise = privacy.epsilon, privacy.noise_multiplier
        if budget is None or noise == "auto":
            return

        def one_round(tried: float) -> Bounds:
            found: Bounds = self.plan.answers.epsilon(self._first_rounds(1, tried), self._mechanism_delta, points=300)
            return found

        quick = "epsilon_by_round" not in vars(self)
        cost = one_round(noise)
        if (quick and cost.upper <= budget) or (cost.lower <= budget and self.affordable_rounds):
            return
        try:
            least = calibrate(lambda tried: self._first_rounds(1, tried), budget, self._mechanism_delta, tolerance=1e-3)
        except ValueError:
            why = self.keys_beyond(budget, 1) or "other releases cost more"
            raise ScenarioError(
                f"privacy.epsilon: {budget:g} pays for no round with any noise_multiplier: {why}"
            ) from None
        while one_round(least).upper > budget:  # calibrated with more points
            least *= 1.001
        raise ScenarioError(
            f"privacy.epsilon: {budget:g} pays for no round with noise_multiplier {noise:g}: one round costs "
            f"{at_most(cost.upper)}; expected: noise_multiplier at least {at_most(least, 4)} for one round, or auto "
            f"for all {self._number_of_rounds}"
        )

    def _epsilon_or_none(self, mechanism: Mechanism | None) -> Bounds | None:
        """Compute the epsilon of an expression, which is often that of the whole run."""
        if mechanism is None:
            return None
        return self.planned_epsilon if mechanism is self.mechanism else self._epsilon_of(mechanism)

    def _spent_epsilon(self, rounds: int) -> Bounds:
        """Compute the epsilon of the first rounds, with the upper end that the ledger charges."""
        if not self.plan.is_private:
            return self.planned_epsilon
        if rounds == self._number_of_rounds and self._steps is not None:
            return self.planned_epsilon
        if rounds == 0:
            return self._epsilon_of(before_rounds(self.mechanism, len(self._releases_beside)))
        bounds = self._epsilon_of(self._first_rounds(rounds, self.plan.noise_multiplier))
        upper = float(self.epsilon_by_round[rounds - 1])
        # Where a step of the charge is no round, no lower end of the first rounds is known.
        of_all = self.mechanism.span < self._number_of_rounds and rounds < self._number_of_rounds
        return Bounds(
            0.0 if of_all else min(bounds.lower, upper),
            upper,
            bounds.origin if upper == bounds.upper else Origin(Method.CURVE),
        )

    def _epsilon_of(self, mechanism: Mechanism) -> Bounds:
        """Ask the accountant at the scenario's delta and precision."""
        found: Bounds = self.plan.answers.epsilon(
            mechanism, self._mechanism_delta, self.plan.scenario.privacy.precision
        )
        return found

    @property
    def _mechanism_delta(self) -> float:
        """Part of the scenario's delta that is left for the mechanism: the sampler of the noise takes the rest."""
        return delta_left(self.plan.scenario.privacy.delta)

    @property
    def _number_of_rounds(self) -> int:
        """Number of rounds of the scenario, also of those beyond the budget."""
        return int(self.plan.scenario.rounds)

    @property
    def _group_size(self) -> int:
        """Number of units that the scenario protects together."""
        return int(self.plan.scenario.privacy.group_size)


def _one_mechanism(releases: Sequence[Mechanism]) -> Mechanism:
    """Compose releases; a single one stays as it is, so that its expression is the plain one."""
    return releases[0] if len(releases) == 1 else Compose(tuple(releases))
