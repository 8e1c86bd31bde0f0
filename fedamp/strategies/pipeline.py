"""Turn the replies of a round into its release, in all steps.

    replies -> Aggregator -> quorum and budget -> Noise (and uniform noise of mixing) -> ServerOptimizer -> RoundRelease

No step changes its state. The caller adopts the next state after the release is written down. Neither nodes nor files
are known here: :mod:`fedamp.strategies.private` talks to nodes, :mod:`fedamp.server.journal` writes files. The audit
plays rounds through the same pipeline.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from flwr.app import Message

from fedamp import rng
from fedamp.base.arrays import BLOCK, Arrays, State, Sums
from fedamp.client.clipping import LARGEST_COHORT
from fedamp.engines.wire import SIDE_SUM, RoundOrder
from fedamp.errors import DivergedError, FederationError, ModelError, tell
from fedamp.federation.norms import NormCounts
from fedamp.federation.optimizers import AVERAGE
from fedamp.federation.plan import Plan
from fedamp.federation.side_sums import SideRelease
from fedamp.models.pieces import Pieces
from fedamp.noise import Address, Noise, Uniform, add_gaussian
from fedamp.strategies.aggregation import Aggregate, Aggregator, ClippedSums, ModelParts, NodeOrders

DEFAULT_QUORUM = 0.5  # in a deployment, and with faults; in a simulation fedamp.server.launch requires all clients


@dataclass(frozen=True)
class ServerState:
    """The server's state after a round; the next round needs nothing else. Checkpoints hold it.

    Attributes:
        parameters: the global model, float32 by name.
        round: number of the last released round; 0 before the first.
        moments, noise: of the server optimizer; the memory of the noise mechanism, which is secret.
        previous: the global model before ``parameters``, where a section keeps it; else None.
        clip_scale: clipping norms over the plan's; 1 if they are fixed.
    """

    parameters: Arrays
    round: int = 0
    moments: State = field(default_factory=dict)
    previous: Arrays | None = None
    clip_scale: float = 1.0
    noise: State = field(default_factory=dict)

    @property
    def model(self) -> Arrays:
        """Released model: the average of the models if the server keeps one, else the last one."""
        return self.moments.get(AVERAGE, self.parameters)


@dataclass(frozen=True)
class RoundRelease:
    """The release of a round. All of it is public, and covered by the charge.

    Attributes:
        round: from 1.
        parameters: :attr:`ServerState.model` after the round.
        noisy_sums: the sum of the clipped updates with all that hides it; float64 by name, whole multiples of a power
            of two.
        clip_scale: clipping norms of this round over the plan's.
        side_release: the side sum of the cohort, over the model that it was sent; None: none was asked.
    """

    round: int
    parameters: Arrays
    noisy_sums: Sums
    clip_scale: float
    side_release: SideRelease | None = None


def undivided(submodel: int, round_: int) -> NoReturn:
    """Refuse to cut a model; it stands for the pieces of a model that has none.

    Raises:
        ModelError: always.
    """
    raise ModelError("this model is not split; expected: submodels: {scheme: none}")


@dataclass(frozen=True)
class ReleasePipeline:
    """The steps of a plan's releases.

    Attributes:
        plan: of the run.
        model: shapes and parts of the trained arrays.
        pieces: gives the piece of the model that a unit trains, by submodel and round.
        noise: draws the noise, as the plan's charge says.
        aggregator: adds up the replies.
    """

    plan: Plan
    model: ModelParts
    pieces: Pieces
    noise: Noise
    aggregator: Aggregator = field(default_factory=ClippedSums)

    def start(self, parameters: Arrays) -> ServerState:
        """Make the state before the first round."""
        return ServerState(parameters, moments=self.plan.optimizer.init(parameters), noise=self.noise.init(parameters))

    def clips(self, state: ServerState) -> list[float]:
        """Compute the clipping norm of every part in the coming round."""
        return [part.clip * state.clip_scale for part in self.plan.parts]

    def parts_of_sum(self, round_: int) -> ModelParts:
        """Return the parts of a round's sum, the same for all nodes.

        A side sum is a part of some rounds; after the last round it stands alone.
        """
        side, rounds = self.plan.side_sum, self.plan.scenario.rounds
        if side is None or not (round_ > rounds or side.is_in(round_)):
            return self.model
        return self.model.with_side_sum(side.number_of_cells, round_ <= rounds)

    def sum_replies(
        self,
        state: ServerState,
        round_: int,
        replies: Iterable[Message],
        orders: Mapping[int, RoundOrder],
        names: Mapping[int, str],
    ) -> Aggregate:
        """Add up a round's replies to the sum of its clipped updates, which is private.

        Args:
            state: after the round before; it gives the norms.
            round_: from 1; the round after the last one has a side sum alone.
            replies: in any order.
            orders: by the id of the node.
            names: of the nodes, for the log.
        """
        model, trains = self.parts_of_sum(round_), round_ <= self.plan.scenario.rounds
        clips = [*(self.clips(state) if trains else ()), *([1.0] if SIDE_SUM in model.shapes else ())]
        coordinates = self.plan.linf_coordinates if trains else 0
        asked = NodeOrders(orders, model, clips, names, lambda each: self.pieces(each, round_), coordinates)
        total = self.aggregator.aggregate(replies, asked)
        total.side_sum = total.sums.pop(SIDE_SUM, None)
        return total

    def side_release(self, state: ServerState, aggregate: Aggregate, units: float | None = None) -> SideRelease | None:
        """Add the noise to a side sum over the model of a state, and release it; None: none was asked.

        As with :meth:`release`, every attempt has noise of its own.

        Args:
            state: whose model the units had.
            aggregate: with the side sum, which becomes that of the release.
            units: expected number of units that were asked; default: a round's cohort.
        """
        plan, side, sums = self.plan, self.plan.side_sum, aggregate.side_sum
        if side is None or sums is None:
            return None
        deviation = side.noise * math.sqrt(1 + (aggregate.noise_surplus or 0))
        if aggregate.noisy_nodes is None:
            seed = plan.seed if plan.known_seed else rng.seed_from_system()
            add_gaussian(sums, deviation, Address(seed, side.key, (state.round,)))
        return side.released(state.round, sums, deviation, units or plan.expected_cohort)

    def release(
        self, state: ServerState, round_: int, aggregate: Aggregate, needs_quorum: bool = True
    ) -> tuple[ServerState, RoundRelease]:
        """Compute the next state and the release, if quorum and budget allow it.

        Args:
            state: after the round before; not changed.
            round_: the next one.
            aggregate: of this round; its sums become those of the release.
            needs_quorum: False for an audit: it plays each round once, also below the quorum.

        Raises:
            FederationError: out of turn, beyond the budget, below quorum, or nobody reported; nothing was released.
            DivergedError: the model is no longer finite; nothing was released.
        """
        if round_ != state.round + 1:
            raise FederationError(f"round {round_} is out of turn after round {state.round}")
        self.check_budget(round_)
        scheduled = len(self.plan.attendance.cohort_of(round_))
        if scheduled > LARGEST_COHORT:
            raise FederationError(
                f"round {round_}: the sum of a cohort of {scheduled} could not be exact; "
                f"expected: at most {LARGEST_COHORT}"
            )
        if needs_quorum:
            self.check_reported(f"round {round_}", scheduled, aggregate)
        plan, sums = self.plan, aggregate.sums
        # A round that is tried again may have other replies. With the same noise the difference of the two releases
        # would be the difference of the replies. So the noise is drawn anew for every attempt, and stored nowhere.
        seed = plan.seed if plan.known_seed else rng.seed_from_system()
        noise, (start, hidden) = state.noise, self._start(state, round_)
        noise_ratio = math.sqrt(1 + (aggregate.noise_surplus or 0))
        if aggregate.noisy_nodes is None and (plan.is_private or hidden):
            deviation = [each * state.clip_scale * noise_ratio for each in plan.noise_deviations]
            deviations = {name: deviation[part] for name, part in self.model.part_of.items()}
            noise = self.noise.update(sums, deviations, hidden, noise, seed, round_)
        denominators = {name: plan.parts[part].denominator for name, part in self.model.part_of.items()}
        frozen = {name: array for name, array in state.parameters.items() if name not in self.model.shapes}
        with np.errstate(all="ignore"):  # checked below
            parameters, moments = plan.optimizer.apply(start, sums, denominators, state.moments, round_)
        # Arrays without axes become numbers in NumPy's arithmetic. Frozen ones stay the same to the bit.
        parameters = {name: np.asarray(array) for name, array in parameters.items()} | frozen
        if not _is_finite(parameters):
            raise DivergedError(round_, "a parameter")
        scale = state.clip_scale
        if not plan.clipping.is_fixed:
            counts = NormCounts(
                aggregate.below_clip, aggregate.reported, plan.expected_cohort, aggregate.noisy_count, noise_ratio
            )
            scale = plan.clipping.next_scale(scale, counts, seed, round_, plan.is_private)
        previous = state.parameters if any(each.keeps_last_model for each in plan.sections.values()) else None
        following = ServerState(parameters, round_, moments, previous, scale, noise)
        side = self.side_release(state, aggregate)
        return following, RoundRelease(round_, following.model, sums, state.clip_scale, side)

    def check_reported(self, what: str, scheduled: int, aggregate: Aggregate) -> None:
        """Refuse a round below the quorum. A round in which no unit was scheduled, or all failed, is released.

        Otherwise clients' data would decide whether the run continues. A protocol with noisy sums has its own quorum.

        Args:
            what: the round or the side sum, for the error.
            scheduled: number of units in the cohort; those that have left are not counted.
            aggregate: of the round.

        Raises:
            FederationError: fewer than the quorum reported, or none.
        """
        if aggregate.noisy_nodes is not None:
            return
        scenario, reported, scheduled = self.plan.scenario, aggregate.reported, scheduled - aggregate.left_out
        unit, quorum = scenario.privacy.unit, scenario.federation.quorum
        quorum = DEFAULT_QUORUM if quorum is None else quorum
        if 0 < reported <= aggregate.failed:
            why = f" ({aggregate.errors[0]})" if aggregate.errors else ""
            tell(f"{what}: each of {reported} {unit}s failed{why}: the release is noise")
        if scheduled == 0 or (reported > 0 and reported >= quorum * scheduled):
            return
        found = f"{reported or 'none'} of {scheduled} {unit}s reported"
        below = f", below federation.quorum {quorum:g}" if reported else ""
        why = f" ({aggregate.errors[0]})" if aggregate.errors else ""
        raise FederationError(f"{what}: {found}{below}{why}; nothing of it was released")

    def check_budget(self, round_: int) -> None:
        """Refuse a round that would exceed the budget.

        Raises:
            FederationError: the budget pays for fewer rounds.
        """
        if round_ > self.plan.charge.affordable_rounds:
            raise FederationError(f"round {round_} would exceed the budget of epsilon")

    def _start(self, state: ServerState, round_: int) -> tuple[Arrays, dict[str, Uniform]]:
        """Choose the model from which the step is taken, and uniform noise for arrays of the sum.

        Without a section that mixes models these are the last model, and no uniform noise.

        Returns:
            The model, and the uniform noise by the name of the array.
        """
        start, hidden = state.parameters, dict[str, Uniform]()
        for section in self.plan.sections.values():
            start, more = section.start_of_step(self.plan, self.model.part_of, start, state.previous, round_)
            hidden |= more
        return start, hidden


def _is_finite(arrays: Arrays) -> bool:
    """Say whether no number of a model is infinite or NaN."""
    flats = [array.reshape(-1) for array in arrays.values()]
    return all(np.isfinite(flat[i : i + BLOCK]).all() for flat in flats for i in range(0, flat.size, BLOCK))
