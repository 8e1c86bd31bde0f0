"""The strategy that plays a plan: private federated averaging with hidden check-in and hidden submodels.

McMahan et al. 2018 (DP-FedAvg) with the plan's schedule, and, where the scenario says so, disjoint or dropout
submodels (Dong, Chen, Özgür 2025, Algorithms 1 and 2) and ModelMix (Xiao et al. 2023, Algorithm 1).
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedamp import flower, scenario
from fedamp.client.task import ClientTask
from fedamp.errors import FederationError
from fedamp.plan import Batch, Plan
from fedamp.strategies.adaptive import adapt
from fedamp.strategies.collect import Collected, Limits, Request, collect
from fedamp.strategies.layout import Arrays, Layout
from fedamp.strategies.mixing import mix
from fedamp.strategies.noise import add_noise
from fedamp.strategies.optimizers import Moments, step
from fedamp.strategies.roster import Roster
from fedamp.strategies.submodels import Partition

log = logging.getLogger("fedamp.server")


@dataclass
class ServerState:
    """Everything that a round leaves for the next one.

    Attributes:
        round: number of the last finished round; 0 before the first.
        parameters: the global model.
        moments: what the server optimiser remembers.
        previous: the global model before ``parameters`` (ModelMix); None elsewhere.
        clip_scale: adaptive clipping norm over the plan's; 1 where the norm is fixed.
    """

    parameters: Arrays
    round: int = 0
    moments: Moments = field(default_factory=dict)
    previous: Arrays | None = None
    clip_scale: float = 1.0


@dataclass(frozen=True)
class _Upcoming:
    """A round's batches, and the seed of every unit in them."""

    round: int
    batches: list[Batch]
    seed_of: dict[int, int]


class PrivateStrategy(Strategy):
    """Plays a plan over a Flower ``Grid``.

    The noisy sum is divided by a public, fixed denominator. Units that fail, are late or are hosted nowhere count as
    zero and are not rescheduled; a round whose cohort happens to be empty still releases its noise. A round that the
    budget does not pay for is refused before anything is asked of a client.

    Args:
        plan: what to do, and what it costs.
        task: what clients are told, constant over the run.
        state: where to start; changed in place.
        units_per_batch: how many units train stacked together, about.
        partition: how the model is cut into a shared and a split part; None where it is whole.
    """

    def __init__(
        self, plan: Plan, task: ClientTask, state: ServerState, units_per_batch: int, partition: Partition | None = None
    ) -> None:
        self.plan, self.task, self.state = plan, task, state
        self.units_per_batch = units_per_batch
        self.partition = partition
        self.layout = Layout.of(state.parameters, partition.shared if partition else None)
        self.roster = Roster()
        self.collected: Collected | None = None
        self._requests: dict[int, Request] = {}
        self._task_json = task.to_json()
        self._upcoming = _Upcoming(0, [], {})

    # --- one round ----------------------------------------------------------------------------------------------------

    def prepare(self, server_round: int) -> None:
        """Work out who trains what in a round, ahead of it if there is time: it follows from the plan alone."""
        if self._upcoming.round != server_round:
            batches = self.plan.batches(server_round, self.units_per_batch)
            units = self.plan.attendance.cohort(server_round)
            seeds = self.plan.unit_seeds(server_round, units)
            self._upcoming = _Upcoming(server_round, batches, dict(zip(units.tolist(), seeds.tolist(), strict=True)))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of a round: one to every node that hosts a unit of the cohort."""
        if server_round > self.plan.affordable_rounds:
            raise FederationError(f"round {server_round} would exceed the budget of epsilon")
        self.roster.refresh(grid, self.plan.scenario.federation.round_deadline, self._task_json)
        self.prepare(server_round)
        assigned = self.roster.assign(self._upcoming.batches)
        self._requests = {}
        messages = []
        for node, batches in assigned.items():
            alone = node not in self.roster.everywhere
            messages.append(Message(self._content(server_round, arrays, batches, alone), node, "train"))
            units = frozenset(unit for batch in batches for unit in batch.units.tolist())
            self._requests[node] = Request(units, self._extracted(batches, alone))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next global model: noise on the sum, public denominator, optimiser."""
        plan, state = self.plan, self.state
        split = self.partition.at(server_round) if self.partition else None
        limits = Limits(self._requests, self.layout, self.clips, split, self.task.linf_coordinates)
        self.collected = collect(replies, limits)
        update = self.collected.sums
        if plan.is_private:
            add_noise(update, self._deviations(), plan.seed, server_round)
        for name, array in update.items():
            array /= plan.parts[self.layout.part_of[name]].denominator
        if plan.scenario.mixing is not None:
            previous = state.previous or state.parameters
            state.previous = state.parameters
            state.parameters = mix(state.parameters, previous, plan.mixing_at(server_round), plan.seed, server_round)
        step(plan.scenario.server, state.parameters, update, state.moments, server_round)
        if isinstance(plan.scenario.privacy.clip, scenario.AdaptiveClip):
            below, reported = self.collected.below_clip, self.collected.reported
            state.clip_scale = adapt(state.clip_scale, plan, plan.scenario.privacy.clip, below, reported, server_round)
        state.round = server_round
        return self.arrays(), self._metrics(server_round)

    def arrays(self) -> ArrayRecord:
        """The global model as clients receive it."""
        return flower.to_record(self.state.parameters)

    @property
    def clips(self) -> list[float]:
        """Clipping norm of every part in the coming round."""
        return [part.clip * self.state.clip_scale for part in self.plan.parts]

    def _deviations(self) -> dict[str, float]:
        return {
            name: self.plan.parts[part].noise_deviation * self.state.clip_scale
            for name, part in self.layout.part_of.items()
        }

    def _content(self, round_: int, arrays: ArrayRecord, batches: list[Batch], alone: bool) -> RecordDict:
        extracted = self._extracted(batches, alone)
        if extracted >= 0:
            split = self.partition.at(round_) if self.partition else None
            assert split is not None, "only a disjoint submodel is extracted"
            small = split.extract(self.state.parameters, extracted)
            arrays = flower.to_record(small)
        units = [unit for batch in batches for unit in batch.units.tolist()]
        config = ConfigRecord(
            {
                "task": self._task_json,
                "round": round_,
                "clients": units,
                "seeds": [self._upcoming.seed_of[unit] for unit in units],
                "submodels": [batch.submodel for batch in batches for _ in batch.units],
                "batches": [len(batch.units) for batch in batches],
                "clips": self.clips,
                "extracted": extracted,
            }
        )
        return RecordDict({"arrays": arrays, "config": config})

    @staticmethod
    def _extracted(batches: list[Batch], alone: bool) -> int:
        """The submodel to send instead of the model: where a node of its own trains one only, that is all it needs."""
        submodels = {batch.submodel for batch in batches}
        return submodels.pop() if alone and len(submodels) == 1 else -1

    def _metrics(self, round_: int) -> MetricRecord:
        assert self.collected is not None
        scheduled = len(self.plan.attendance.cohort(round_))
        return MetricRecord({"scheduled": scheduled, "reported": self.collected.reported})

    # --- what Flower asks of a strategy beyond training ---------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: accuracy comes from a public test set on the server, not from clients' data."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing, see ``configure_evaluate``."""
        return None

    def summary(self) -> None:
        """Say in the log what will be charged."""
        log.info("%s: %s", self.plan.mechanism, self.plan.epsilon)
