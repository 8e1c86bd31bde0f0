"""The strategy that plays a plan: private federated averaging with hidden check-in and hidden submodels.

McMahan et al. 2018 (DP-FedAvg) with the plan's schedule and, if the scenario asks for them, disjoint or dropout
submodels (Dong, Chen, Özgür 2025, Algorithms 1 and 2) and ModelMix (Xiao, Wan, Devadas 2022, Algorithm 1).
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedamp import rng
from fedamp.client.task import ClientTask
from fedamp.engines import flower, sealed
from fedamp.federation.plan import Plan
from fedamp.models.section import WHOLE
from fedamp.strategies.aggregation import Aggregate, Request
from fedamp.strategies.pipeline import Release, ReleasePipeline, ServerState
from fedamp.strategies.roster import Batch, Roster

log = logging.getLogger("fedamp.server")

NO_SECRET = 32 * "0"  # as long as the secret of a node

WriteDown = Callable[[ServerState, Release, Aggregate], object]
"""Stores a release and the state after it; called before the release leaves the strategy."""


@dataclass(frozen=True)
class Assignment:
    """A round's cohort in batches, and each unit's seed (data order, dropout mask): all of it follows from the plan.

    With dummies, all other units are in batches that do not count; their draws come from a seed of their own.
    """

    round: int
    batches: list[Batch]
    seed_of: dict[int, bytes]

    @classmethod
    def of(cls, plan: Plan, round_: int, units_per_batch: int, dummies: bool = False) -> Self:
        """A round's cohort in batches of about ``units_per_batch``. Their sizes change no result.

        Their number follows from the *expected* cohort. It is even, so two workers share the work equally.
        """
        cohort = plan.attendance.cohort(round_)
        submodels = plan.submodels.draw(cohort, plan.seed, round_)
        trained = np.unique(submodels)
        wanted = plan.expected_cohort / units_per_batch
        pieces = 1 if wanted <= 1 else 2 * math.ceil(wanted / 2)
        pieces = math.ceil(pieces / max(1, len(trained)))
        batches = [
            Batch(units, int(submodel))
            for submodel in trained
            for units in np.array_split(cohort[submodels == submodel], pieces)
            if len(units)
        ]
        seeds = rng.client_seeds(plan.seed, "units", round_, cohort)
        seed_of = dict(zip(cohort.tolist(), seeds.tolist(), strict=True))
        if dummies:
            others = np.setdiff1d(np.arange(plan.units), cohort)
            seed = int.from_bytes(rng.stream(plan.seed, "dummies").words(4).tobytes(), "little")
            seeds = rng.client_seeds(seed, "units", round_, others)
            seed_of |= dict(zip(others.tolist(), seeds.tolist(), strict=True))
            drawn = plan.submodels.draw(others, seed, round_)
            batches += [Batch(others[drawn == each], int(each), counted=False) for each in np.unique(drawn)]
        return cls(round_, batches, seed_of)


class PrivateStrategy(Strategy):
    """Plays a plan over a Flower ``Grid``.

    A round is :meth:`configure_train`, the nodes' replies, and :meth:`aggregate_train` (:meth:`aggregate`, then
    :meth:`release`). The noisy sum is divided by a public, fixed denominator. Units that fail, are late or have no host
    count as zero and are not rescheduled; an empty cohort still releases its noise. A round beyond the budget is
    refused before any client is asked.

    Args:
        state: after the last released round.
        write_down: stores each release before the strategy adopts it; default: nothing is stored.

    Attributes:
        collected: the private sum of the last round, None while clients train. It must stay on the server.
    """

    def __init__(
        self, pipeline: ReleasePipeline, task: ClientTask, state: ServerState, write_down: WriteDown | None = None
    ) -> None:
        self.pipeline, self.task, self.state, self.write_down = pipeline, task, state, write_down
        self.roster = Roster(self.plan.scenario.federation, self.plan.units)
        self.collected: Aggregate | None = None
        self._requests: dict[int, Request] = {}
        self._messages: list[Message] = []
        self._task_json = task.to_json()
        self._assignment = Assignment(0, [], {})
        self.dummies = False

    @property
    def plan(self) -> Plan:
        return self.pipeline.plan

    def round_bytes(self, units: int) -> int:
        """Bytes of an order with the whole model and its reply, for a node that hosts so many units."""
        content = self._content(1, self.arrays(), [], WHOLE, units)
        return len(sealed.seal_order(content)) + sealed.reply_size(content)

    def prepare(self, server_round: int) -> None:
        """Assign a round's cohort, before the round if there is time."""
        if self._assignment.round != server_round:
            trained = self.dummies and self.task.answer_after is None
            self._assignment = Assignment.of(self.plan, server_round, self.task.stack.units, trained)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message to every node that hosts a unit of the cohort; ``config`` is for a custom app.

        A node gets a submodel instead of the model if its units train only that one. With dummies every node of the
        roster gets the model, also one without a unit to train (``federation.answer_after``).
        """
        self.pipeline.check_budget(server_round)
        self.roster.refresh(grid, self.plan.scenario.federation.round_deadline, self._task_json)
        self.dummies = self.plan.dummies and not flower.is_simulated(grid)
        self.prepare(server_round)
        self._requests, self.collected = {}, None  # its sums would be in memory while clients train
        messages, hosted, aggregator = [], Counter(self.roster.host_of.values()), self.pipeline.aggregator
        assigned, masked = self.roster.assign(self._assignment.batches), aggregator.plays(grid)
        if masked or self.dummies:  # every node answers in every round
            none = masked and (self.plan.terms is None or self.plan.terms.check_in is not None)  # nodes draw it
            assigned = {node: [] if none else assigned.get(node, []) for node in sorted(hosted)}
        for node, batches in assigned.items():
            submodels = {batch.submodel for batch in batches}
            one = len(submodels) == 1 and node not in self.roster.everywhere and not (self.dummies or masked)
            extracted = submodels.pop() if one else WHOLE
            content = self._content(server_round, arrays, batches, extracted, hosted[node] or self.plan.units)
            if masked:
                content.config_records["form"]["bytes"] = aggregator.answer_bytes(self.pipeline.model.shapes)
            content.config_records["form"]["secret"] = self.roster.secrets.get(node, NO_SECRET)
            if config:
                content["train_config"] = config.copy()
            messages.append(Message(content, node, "train"))
            units = frozenset(unit for batch in batches if batch.counted for unit in batch.units.tolist())
            self._requests[node] = Request(units, extracted, self.roster.name(node))
        names = {node: self.roster.registered(node) for node in self._requests}
        self._messages = aggregator.prepare(messages, grid, names, self.pipeline.model.shapes)
        return self._messages

    def aggregate(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Add up the replies to the messages of a round."""
        came, roster = list(replies), self.roster
        honest = flower.answers(self._messages, came)
        answered = {reply.metadata.src_node_id for reply in honest}
        roster.note(self._requests, answered)
        self.collected = self.pipeline.aggregate(self.state, server_round, honest, self._requests)
        self.collected.refused_nodes += len(came) - len(honest)
        failed = [reply for reply in honest if reply.has_error()]
        again = [reply for reply in failed if sealed.STARTED_AGAIN in (reply.error.reason or "")]
        roster.forget({reply.metadata.src_node_id for reply in again})
        late = sorted(set(self._requests) - answered)
        errors = [*roster.errors.values(), *(f"node {roster.name(node)} did not answer in time" for node in late)]
        hosted = any(request.units for request in self._requests.values())
        self.collected.errors += errors if hosted else [*errors, "no connected node hosts any of them"]
        return self.collected

    def release(self, server_round: int, aggregate: Aggregate) -> Release:
        """Check budget and quorum, add the noise, write the release down, and adopt the state after it.

        Raises as :meth:`ReleasePipeline.release`, and then nothing was released.
        """
        state, release = self.pipeline.release(self.state, server_round, aggregate)
        if self.write_down is not None:
            self.write_down(state, release, aggregate)
        self.state = state
        return release

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next global model."""
        aggregate = self.aggregate(server_round, replies)
        self.release(server_round, aggregate)
        aggregate.check_possible()
        scheduled = len(self.plan.attendance.cohort(server_round))
        return self.arrays(), MetricRecord({"scheduled": scheduled, "reported": aggregate.reported})

    def arrays(self) -> ArrayRecord:
        """The global model as clients receive it."""
        return flower.to_record(self.state.parameters)

    def _content(self, round_: int, arrays: ArrayRecord, batches: list[Batch], extracted: int, room: int) -> RecordDict:
        if extracted != WHOLE:
            arrays = flower.to_record(self.pipeline.pieces(extracted, round_).extract(self.state.parameters))
        units = [unit for batch in batches for unit in batch.units.tolist()]
        orders: dict[str, Any] = {
            "task": self._task_json,
            "round": round_,
            "clients": units,
            "seeds": [self._assignment.seed_of[unit] for unit in units],
            "submodels": [batch.submodel for batch in batches for _ in batch.units],
            "counted": [batch.counted for batch in batches for _ in batch.units],
            "clips": self.pipeline.clips(self.state),
            "extracted": extracted,
        }
        frozen = [name for name in self.state.parameters if name not in self.pipeline.model.shapes]
        form = ConfigRecord({"units": room, "frozen": frozen, "secret": NO_SECRET})
        return RecordDict({"arrays": arrays, "config": ConfigRecord(orders), "form": form})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: accuracy comes from a public test set on the server, not from clients' data."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing (see ``configure_evaluate``)."""
        return None

    def summary(self) -> None:
        """Log the mechanism and its cost."""
        log.info("%s: %s", self.plan.mechanism, self.plan.planned_epsilon)
