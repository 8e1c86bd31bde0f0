"""The strategy that plays a plan: private federated averaging with hidden check-in and hidden submodels.

McMahan et al. 2018 (DP-FedAvg) with the plan's schedule, and, where the scenario says so, disjoint or dropout
submodels (Dong, Chen, Özgür 2025, Algorithms 1 and 2) and ModelMix (Xiao, Wan, Devadas 2022, Algorithm 1).
"""

import logging
from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedamp.client.task import ClientTask
from fedamp.engines import flower
from fedamp.federation.plan import Plan
from fedamp.models.section import WHOLE
from fedamp.strategies.aggregation import Aggregate, Request
from fedamp.strategies.assignment import Assignment, Batch
from fedamp.strategies.pipeline import Release, ReleasePipeline, ServerState
from fedamp.strategies.roster import Roster

log = logging.getLogger("fedamp.server")


class PrivateStrategy(Strategy):
    """Plays a plan over a Flower ``Grid``.

    The noisy sum is divided by a public, fixed denominator. Units that fail, are late or are hosted nowhere count as
    zero and are not rescheduled; an empty cohort still releases its noise. A round that the budget does not pay for is
    refused before anything is asked of a client.

    Flower's own loop calls :meth:`configure_train` and :meth:`aggregate_train`. fedamp's takes the second one apart,
    to write a round down between :meth:`release` and :attr:`state`.

    Attributes:
        pipeline: the steps of a release, and the plan.
        task: what clients are told, constant over the run.
        state: after the last round that was released.
        collected: what the last round's replies came to; None before the first and while clients train. It must stay on
            the server.
    """

    def __init__(self, pipeline: ReleasePipeline, task: ClientTask, state: ServerState) -> None:
        self.pipeline, self.task, self.state = pipeline, task, state
        self.roster = Roster(self.plan.scenario.federation, self.plan.units)
        self.collected: Aggregate | None = None
        self._requests: dict[int, Request] = {}
        self._messages: list[Message] = []
        self._task_json = task.to_json()
        self._assignment = Assignment(0, [], {})

    @property
    def plan(self) -> Plan:
        """What to do, and what it costs."""
        return self.pipeline.plan

    # --- one round ----------------------------------------------------------------------------------------------------

    def prepare(self, server_round: int) -> None:
        """Work out who trains what in a round, ahead of it if there is time."""
        if self._assignment.round != server_round:
            self._assignment = Assignment.of(self.plan, server_round, self.task.stack.units)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of a round: one to every node that hosts a unit of the cohort."""
        self.pipeline.check_budget(server_round)
        self.roster.refresh(grid, self.plan.scenario.federation.round_deadline, self._task_json)
        self.prepare(server_round)
        self._requests, self.collected = {}, None  # its sums would be in memory while clients train
        messages = []
        for node, batches in self.roster.assign(self._assignment.batches).items():
            extracted = _extracted(batches) if node not in self.roster.everywhere else WHOLE
            content = self._content(server_round, arrays, batches, extracted)
            if config:  # what the app gives its training loop; fedamp's own client has no use for it
                content["train_config"] = config.copy()
            messages.append(Message(content, node, "train"))
            units = frozenset(unit for batch in batches for unit in batch.units.tolist())
            self._requests[node] = Request(units, extracted, self.roster.name(node))
        self._messages = list(self.pipeline.aggregator.prepare(messages))
        return self._messages

    def aggregate(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Add up the replies to the messages of a round."""
        came = list(replies)
        honest = flower.answers(self._messages, came)
        answered = {reply.metadata.src_node_id for reply in honest}
        self.roster.note(self._requests, answered)
        self.collected = self.pipeline.aggregate(self.state, server_round, honest, self._requests)
        self.collected.refused_nodes += len(came) - len(honest)
        late = [
            f"node {self.roster.name(node)} did not answer in time" for node in sorted(set(self._requests) - answered)
        ]
        nobody = [] if self._requests else ["no connected node hosts any of them"]
        self.collected.errors += [*self.roster.errors.values(), *late, *nobody]
        return self.collected

    def release(self, server_round: int, aggregate: Aggregate) -> tuple[ServerState, Release]:
        """What a round comes to, and the state after it; :attr:`state` is still the one before.

        Raises:
            FederationError: out of turn, beyond the budget, below quorum, or nobody reported; nothing was released.
            DivergedError: the model is no longer finite; nothing was released.
        """
        return self.pipeline.release(self.state, server_round, aggregate)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next global model."""
        aggregate = self.aggregate(server_round, replies)
        self.state, _ = self.release(server_round, aggregate)
        scheduled = len(self.plan.attendance.cohort(server_round))
        return self.arrays(), MetricRecord({"scheduled": scheduled, "reported": aggregate.reported})

    def arrays(self) -> ArrayRecord:
        """The global model as clients receive it."""
        return flower.to_record(self.state.parameters)

    def _content(self, round_: int, arrays: ArrayRecord, batches: list[Batch], extracted: int) -> RecordDict:
        if extracted != WHOLE:
            arrays = flower.to_record(self.pipeline.pieces(extracted, round_).extract(self.state.parameters))
        units = [unit for batch in batches for unit in batch.units.tolist()]
        config = ConfigRecord(
            {
                "task": self._task_json,
                "round": round_,
                "clients": units,
                "seeds": [self._assignment.seed_of[unit] for unit in units],
                "submodels": [batch.submodel for batch in batches for _ in batch.units],
                "clips": self.pipeline.clips(self.state),
                "extracted": extracted,
            }
        )
        return RecordDict({"arrays": arrays, "config": config})

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
        log.info("%s: %s", self.plan.mechanism, self.plan.planned_epsilon)


def _extracted(batches: list[Batch]) -> int:
    """The submodel to send instead of the model: where a node of its own trains one only, that is all it needs."""
    submodels = {batch.submodel for batch in batches}
    return submodels.pop() if len(submodels) == 1 else WHOLE
