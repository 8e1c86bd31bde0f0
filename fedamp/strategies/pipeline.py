"""What happens to the replies of a round between "received" and "released", in one place.

    replies -> Aggregator -> quorum and budget -> Noise (and what mixing hides) -> ServerOptimizer -> Release

No step changes the state that it is given: whoever plays the rounds goes over to the next one when the release has been
written down.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from flwr.app import Message

from fedamp import rng
from fedamp.base.arrays import Arrays, State, Sums, is_finite
from fedamp.client.clipping import LARGEST_COHORT
from fedamp.errors import DivergedError, FederationError
from fedamp.federation.clipping import NormCounts
from fedamp.federation.mixing import Start, relative_width
from fedamp.federation.optimizers import AVERAGE
from fedamp.federation.plan import Plan
from fedamp.models.pieces import Pieces
from fedamp.noise.gaussian import Uniform
from fedamp.noise.independent import IndependentGaussian, Noise
from fedamp.strategies.aggregation import Aggregate, Aggregator, Asked, ClippedSums, Request
from fedamp.strategies.model_parts import ModelParts

log = logging.getLogger("fedamp.server")


@dataclass(frozen=True)
class ServerState:
    """Everything that a round leaves for the next one.

    Attributes:
        parameters: the global model, from which clients go on.
        round: number of the last released round; 0 before the first.
        moments: what the server optimiser remembers.
        previous: the global model before ``parameters`` (ModelMix); None elsewhere.
        clip_scale: clipping norms over the plan's; 1 where they are fixed.
        noise: what the noise mechanism remembers.
    """

    parameters: Arrays
    round: int = 0
    moments: State = field(default_factory=dict)
    previous: Arrays | None = None
    clip_scale: float = 1.0
    noise: State = field(default_factory=dict)

    @property
    def model(self) -> Arrays:
        """What a run leaves: the average of the models, where the server keeps one, else the last one."""
        return self.moments.get(AVERAGE, self.parameters)


@dataclass(frozen=True)
class Release:
    """What a round lets out. The charge covers all of it that is public.

    Attributes:
        round: its number, from 1.
        parameters: what :attr:`ServerState.model` is then. Public.
        noisy_sums: the sum of the clipped updates with its noise and, where models are mixed, what hides it besides;
            float64 by name, whole multiples of a power of two. Public.
        denominators: public expected number of contributors, by name: by what the sum is divided.
        clips: clipping norm of each part in this round. Public.
        clip_scale: the same over the plan's.
    """

    round: int
    parameters: Arrays
    noisy_sums: Sums
    denominators: Mapping[str, float]
    clips: tuple[float, ...]
    clip_scale: float


@dataclass(frozen=True)
class ReleasePipeline:
    """The steps of a plan's releases.

    Attributes:
        plan: what to do, and what it costs; mixing, clipping rule and server optimiser are the plan's.
        model: arrays and parts of the model.
        pieces: what units train: (submodel, round) -> piece of the model.
        aggregator: how replies become a sum.
        noise: what is added to the sum.
    """

    plan: Plan
    model: ModelParts
    pieces: Pieces
    aggregator: Aggregator = field(default_factory=ClippedSums)
    noise: Noise = field(default_factory=IndependentGaussian)

    def start(self, parameters: Arrays) -> ServerState:
        """The state before the first round."""
        return ServerState(parameters, moments=self.plan.optimizer.init(parameters), noise=self.noise.init(parameters))

    def clips(self, state: ServerState) -> list[float]:
        """Clipping norm of every part in the coming round."""
        return [part.clip * state.clip_scale for part in self.plan.parts]

    def aggregate(
        self, state: ServerState, round_: int, replies: Iterable[Message], requests: Mapping[int, Request]
    ) -> Aggregate:
        """The sum of a round's clipped updates. Nothing of it is released."""
        clips, linf_coordinates = self.clips(state), self.plan.mixing.linf_coordinates
        asked = Asked(requests, self.model, clips, lambda submodel: self.pieces(submodel, round_), linf_coordinates)
        return self.aggregator.aggregate(replies, asked)

    def release(
        self, state: ServerState, round_: int, aggregate: Aggregate, needs_quorum: bool = True
    ) -> tuple[ServerState, Release]:
        """The next state and what is released, if quorum and budget allow it.

        Args:
            state: after the round before; not changed.
            round_: number of the round.
            aggregate: of this round; its sums become those of the release.
            needs_quorum: False for an audit, which plays each round once, whoever reports.

        Raises:
            FederationError: out of turn, beyond the budget, below quorum, or nobody reported; nothing was released.
            DivergedError: the model is no longer finite; nothing was released.
        """
        if round_ != state.round + 1:
            raise FederationError(f"round {round_} is out of turn after round {state.round}")
        self.check_budget(round_)
        scheduled = len(self.plan.attendance.cohort(round_))
        if scheduled > LARGEST_COHORT:
            raise FederationError(
                f"round {round_}: the sum of a cohort of {scheduled} could not be exact; "
                f"expected: at most {LARGEST_COHORT}"
            )
        if needs_quorum:
            self._check_reported(round_, scheduled, aggregate)
        plan, sums = self.plan, aggregate.sums
        # A round that is tried again may have other replies. With the same noise the two releases would differ by
        # exactly what the replies differ by; so what hides a release is drawn anew for every attempt, and kept nowhere.
        seed = plan.seed if plan.known_seed else rng.seed_from_system()
        noise, start = state.noise, plan.mixing.start(state.parameters, state.previous, round_)
        if plan.is_private or start.multiples:
            noise = self.noise.update(sums, self._deviations(state), self._hidden(start), noise, seed, round_)
        denominators = {name: plan.parts[part].denominator for name, part in self.model.part_of.items()}
        frozen = {name: array for name, array in state.parameters.items() if name not in self.model.shapes}
        with np.errstate(all="ignore"):  # what is no longer finite is told below
            parameters, moments = plan.optimizer.apply(start.parameters, sums, denominators, state.moments, round_)
        parameters |= frozen  # to the bit, whatever mixing does
        if not is_finite(parameters):
            raise DivergedError(round_, "a parameter")
        counts = NormCounts(aggregate.below_clip, aggregate.reported, plan.expected_cohort)
        scale = plan.clipping.next_scale(state.clip_scale, counts, seed, round_, plan.is_private)
        following = ServerState(parameters, round_, moments, start.remembered, scale, noise)
        clips = tuple(self.clips(state))
        return following, Release(round_, following.model, sums, denominators, clips, state.clip_scale)

    def _check_reported(self, round_: int, scheduled: int, aggregate: Aggregate) -> None:
        """Raise FederationError where fewer reported than the quorum, or nobody of those who were to.

        Where nobody was to report there is nothing to miss: such a round releases its noise. So does one in which every
        unit failed, lest people's data decide whether the run goes on.
        """
        reported, quorum = aggregate.reported, self.plan.quorum
        if 0 < reported <= aggregate.failed:
            log.warning("round %d: each of %d %ss failed: the release is noise", round_, reported, self._unit)
        if scheduled == 0 or (reported > 0 and reported >= quorum * scheduled):
            return
        found = f"{reported or 'none'} of {scheduled} {self._unit}s reported"
        below = f", below federation.quorum {quorum:g}" if reported else ""
        why = f" ({aggregate.errors[0]})" if aggregate.errors else ""
        raise FederationError(f"round {round_}: {found}{below}{why}; nothing of it was released")

    @property
    def _unit(self) -> str:
        return self.plan.scenario.privacy.unit

    def check_budget(self, round_: int) -> None:
        """Raise FederationError where a round would cost more than the budget."""
        if round_ > self.plan.affordable_rounds:
            raise FederationError(f"round {round_} would exceed the budget of epsilon")

    def _hidden(self, start: Start) -> dict[str, Uniform]:
        """What hides every array of the sum beside its noise: exactly what is charged for."""
        widths = [
            Fraction(relative_width(start.width, self.plan.largest_step(part))) * Fraction(part.clip)
            for part in self.plan.parts
        ]
        return {
            name: Uniform(widths[part], start.multiples[name])
            for name, part in self.model.part_of.items()
            if start.multiples
        }

    def _deviations(self, state: ServerState) -> dict[str, float]:
        """Standard deviation of the noise on every array."""
        parts = self.plan.parts
        return {name: parts[part].noise_deviation * state.clip_scale for name, part in self.model.part_of.items()}
