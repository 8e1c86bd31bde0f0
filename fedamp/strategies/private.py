"""Play a plan: private federated averaging with hidden check-in and hidden submodels, as a Flower strategy.

McMahan et al. 2018 (DP-FedAvg) with the plan's schedule and, if the scenario asks for them, disjoint or dropout
submodels (Dong, Chen, Özgür 2025, Algorithms 1 and 2) and ModelMix (Xiao, Wan, Devadas 2022, Algorithm 1).

The strategy turns a round into orders and replies into a sum. It computes no cost and writes no file; what a node does
with an order is in :mod:`fedamp.client.app`.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fedamp import rng
from fedamp.base import devices
from fedamp.client.task import ClientTask
from fedamp.engines import flower
from fedamp.engines.deployment import guarded
from fedamp.engines.wire import NO_SECRET, NO_UNIT, SIDE_SUM, UNIT, RoundOrder, Rows, padded, rows
from fedamp.federation.choices import refuse_hooks
from fedamp.federation.plan import Plan
from fedamp.models.model import WHOLE
from fedamp.strategies.aggregation import Aggregate
from fedamp.strategies.pipeline import ReleasePipeline, RoundRelease, ServerState
from fedamp.strategies.roster import NodeRoster

log = logging.getLogger("fedamp.server")

SIDE_BATCHES = 64  # of all units, for the workers of a simulation: no result depends on it


def batches_of(plan: Plan, round_: int, units_per_batch: int, dummies: bool = False) -> list[Rows]:
    """Cut a round's cohort into batches of about ``units_per_batch``, each of one submodel. Sizes change no result.

    The seed of a unit (data order, dropout mask) follows from the plan. With dummies, all other units are in further
    batches; their draws come from a seed of their own. The number of batches follows from the *expected* cohort. It is
    even, so two workers share the work equally.

    Args:
        plan: with the check-ins.
        round_: from 1.
        units_per_batch: the most units of a batch, about.
        dummies: whether all units train.

    Returns:
        Rows of units (:data:`fedamp.engines.wire.Rows`), those of the cohort first.
    """
    cohort = plan.attendance.cohort_of(round_)
    submodels = plan.submodels.draw(cohort, plan.seed, round_)
    units = rows(cohort, rng.client_seeds(plan.seed, "units", round_, cohort), submodels)
    trained = np.unique(submodels)
    wanted = plan.expected_cohort / units_per_batch
    pieces = 1 if wanted <= 1 else 2 * math.ceil(wanted / 2)
    pieces = math.ceil(pieces / max(1, len(trained)))
    batches = [
        batch for submodel in trained for batch in np.array_split(units[submodels == submodel], pieces) if len(batch)
    ]
    if dummies:
        others = np.setdiff1d(np.arange(plan.units), cohort)
        seed = int.from_bytes(rng.stream(plan.seed, "dummies").words(4).tobytes(), "little")
        drawn = plan.submodels.draw(others, seed, round_)
        idle = rows(others, rng.client_seeds(seed, "units", round_, others), drawn, False)
        batches += [idle[drawn == submodel] for submodel in np.unique(drawn)]
    return batches


@dataclass(frozen=True)
class AskedRound:
    """The messages of a round, and the orders that their replies must answer.

    Attributes:
        round: number of the round, from 1; the one after the last round has a side sum alone.
        orders: by the id of the node.
        messages: of the orders, to be sent.
        left_out: number of units of the cohort that got no order, because their people have left.
    """

    round: int
    orders: Mapping[int, RoundOrder] = field(default_factory=dict)
    messages: Sequence[Message] = ()
    left_out: int = 0


class PrivateStrategy(Strategy):
    """Strategy that plays a plan over a Flower ``Grid``.

    A round is :meth:`order_round`, the nodes' replies, :meth:`sum_replies` and :meth:`release`. Flower's own loop calls
    :meth:`configure_train` and :meth:`aggregate_train`, which do the same. The noisy sum is divided by a public, fixed
    denominator. Units that fail, are late or have no host contribute zero and are not rescheduled; an empty cohort
    still releases its noise. A round beyond the budget is refused before any client is asked.

    Args:
        pipeline: the plan, and the steps of a release.
        task: what nodes are told of the run.
        state: after the last released round.

    Attributes:
        state: after the last released round; the caller sets it once a release is written down.
        roster: the nodes and their units.
        collected: the private sum of the last round, None while clients train. It must stay on the server.
        dummies: whether every node trains all its units in this round, so that check-ins stay hidden from nodes.
    """

    def __init__(self, pipeline: ReleasePipeline, task: ClientTask, state: ServerState) -> None:
        self.pipeline, self.task, self.state = pipeline, task, state
        self.plan: Plan = pipeline.plan
        self.roster = NodeRoster(self.plan.scenario.federation, self.plan.units)
        self.collected: Aggregate | None = None
        self._asked = AskedRound(0)  # for Flower's loop alone
        self._task_json = task.to_json()
        self._batches: dict[int, list[Rows]] = {}  # by round
        self._draws_ahead = False  # whether nodes are told of the next round
        self.dummies = False

    def round_bytes(self, units: int) -> int:
        """Count the bytes of an order with the whole model and of its answer, for a node that hosts so many units."""
        order = self._order(1, padded(np.zeros(0, UNIT), units), WHOLE)
        return len(order.sealed()) + order.answer_size

    def start(self, grid: Grid, *arguments: Any, **named: Any) -> Result:
        """Play Flower's loop, for an app that has no other; a deployment's messages are sealed, as its nodes demand.

        Args:
            grid: Flower's.
            arguments, named: as of ``flwr.serverapp.strategy.Strategy.start``.

        Raises:
            ScenarioError: an extension would have to do something around the run, and nothing calls it here.
        """
        refuse_hooks(self.plan.scenario)
        with guarded(grid) as safe:
            return super().start(safe, *arguments, **named)

    def draw_round(self, server_round: int) -> None:
        """Draw a round's cohort and its batches, before the round if there is time; for GPUs also the round after."""
        trained = self.dummies and self.task.answer_after is None
        last = min(server_round + self._draws_ahead, self.plan.last_round)
        self._batches = {
            each: self._batches.get(each) or batches_of(self.plan, each, self.task.stack.units, trained)
            for each in range(server_round, max(server_round, last) + 1)
        }

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Make the messages of a round, as Flower's loop asks for them.

        Args:
            server_round, config, grid: as of :meth:`order_round`.
            arrays: not used; the strategy sends the model of its own state.

        Raises:
            FederationError, DeploymentError: as :meth:`order_round`.
        """
        self._asked = self.order_round(server_round, grid, config)
        return self._asked.messages

    def order_round(
        self, round_: int, grid: Grid, config: ConfigRecord | None = None, units_left: frozenset[int] = frozenset()
    ) -> AskedRound:
        """Make an order for every node that hosts a unit of the cohort.

        A node gets a submodel instead of the model if its units train only that one. With dummies every node of the
        roster gets the model, also one without a unit to train (``federation.answer_after``).

        Args:
            round_: from 1.
            grid: the nodes.
            config: for a custom app.
            units_left: ids of units that get no order any more (:meth:`fedamp.server.observers.RunHooks.units_left`).

        Raises:
            FederationError: the round would exceed the budget.
            DeploymentError: the nodes are real, and the scenario does not permit them any units.
        """
        self.pipeline.check_budget(round_)
        plan, masked = self.plan, self.pipeline.aggregator.plays(grid)
        self.dummies = plan.asks_every_node and not flower.is_simulated(grid)
        if flower.is_simulated(grid) and not masked:
            device = plan.scenario.engine.device
            self._draws_ahead = devices.is_gpu(devices.here(device) if device == "auto" else device)
        self.draw_round(round_)
        self.collected = None  # its sums would be in memory while clients train
        batches, all_answer = None if masked and plan.nodes_draw else self._batches[round_], masked or self.dummies
        cells = math.prod(self.pipeline.parts_of_sum(round_).shapes.get(SIDE_SUM, (0,)))
        assigned, left_out = self._assigned(grid, batches, all_answer, units_left)
        orders = dict[int, RoundOrder]()
        for node, units in assigned.items():
            submodels = set(units["submodel"][units["id"] != NO_UNIT].tolist())
            one = len(submodels) == 1 and node not in self.roster.everywhere and not (all_answer or cells)
            extracted = submodels.pop() if one else WHOLE
            orders[node] = self._order(round_, units, extracted, cells=cells, config=dict(config or {}))
        if self._draws_ahead:
            ahead = self.roster.assign(self._batches.get(round_ + 1, ()))
            orders = {node: replace(each, following=ahead.get(node, each.following)) for node, each in orders.items()}
        return self._with_messages(grid, AskedRound(round_, orders, left_out=left_out))

    def order_side_sum(
        self, grid: Grid, units: NDArray[np.int64] | None = None, units_left: frozenset[int] = frozenset()
    ) -> AskedRound:
        """Make an order for every node that hosts some units, to ask for their side sum over the released model.

        The replies go to :meth:`sum_replies`, whose sum goes to :meth:`ReleasePipeline.side_release`: one use of the
        units' data, which costs :meth:`fedamp.federation.side_sums.SideSum.cost`. It trains nobody.

        Args:
            grid: the nodes.
            units: ids, int64; default: all.
            units_left: as of :meth:`order_round`.
        """
        side, plan = self.plan.side_sum, self.plan
        assert side is not None, "the scenario has a side sum"
        units, round_ = np.arange(plan.units) if units is None else units, plan.scenario.rounds + 1
        each = rows(units, rng.client_seeds(plan.seed, side.key, self.state.round, units))
        batches = np.array_split(each, min(len(each), SIDE_BATCHES))
        order = RoundOrder(
            self._task_json, round_, (1.0,), arrays=self.state.model, cells=side.number_of_cells, trains=False
        )
        assigned, left_out = self._assigned(grid, batches, self.pipeline.aggregator.plays(grid), units_left)
        orders = {node: replace(order, rows=own) for node, own in assigned.items()}
        return self._with_messages(grid, AskedRound(round_, orders, left_out=left_out))

    def _assigned(
        self, grid: Grid, batches: Iterable[Rows] | None, all_answer: bool, units_left: frozenset[int]
    ) -> tuple[dict[int, Rows], int]:
        """Assign units to nodes; in a deployment there are rows for all units that a node hosts.

        Args:
            grid: the nodes; those that are new are asked first which units they host.
            batches: rows of units that may train together; None: the nodes draw who trains, and each is told which of
                its units have left.
            all_answer: whether nodes without any of them are asked, too, so that all nodes do the same.
            units_left: as of :meth:`order_round`.

        Returns:
            The rows of each node, by its id; and how many units of the batches are left out.
        """
        self.roster.refresh(grid, self.plan.scenario.federation.round_deadline, self._task_json)
        left, left_out = sorted(units_left), 0
        if batches is None:
            batches = [rows(left, bytes(rng.SEED_BYTES), counted=False)] if left else []
        elif left:
            each = [(batch, np.isin(batch["id"], left)) for batch in batches]
            left_out = sum(int(np.count_nonzero(batch["counted"] & out)) for batch, out in each)
            batches = [batch[~out] for batch, out in each if not out.all()]
        hosted, assigned = Counter(self.roster.host_of.values()), self.roster.assign(batches)
        if all_answer:
            assigned = {node: assigned.get(node, np.zeros(0, UNIT)) for node in sorted(hosted)}
        if flower.is_simulated(grid):
            return assigned, left_out
        most = {node: hosted[node] or self.plan.units for node in assigned}
        return {node: padded(own, max(len(own), most[node])) for node, own in assigned.items()}, left_out

    def _with_messages(self, grid: Grid, asked: AskedRound) -> AskedRound:
        """Make the messages of the orders, with each node's secret, after the exchanges that come before."""
        roster, pipeline, secrets = self.roster, self.pipeline, self.roster.secrets
        orders = {node: replace(order, secret=secrets.get(node, NO_SECRET)) for node, order in asked.orders.items()}
        names = {node: roster.registered(node) for node in orders}
        orders = pipeline.aggregator.agreed_orders(orders, grid, names, pipeline.parts_of_sum(asked.round).shapes)
        messages = [Message(order.content(), node, "train") for node, order in orders.items()]
        return replace(asked, orders=orders, messages=messages)

    def sum_replies(self, asked: AskedRound, replies: Iterable[Message]) -> Aggregate:
        """Add up the replies to the messages of a round.

        Args:
            asked: the round, as :meth:`order_round` or :meth:`order_side_sum` returned it.
            replies: in any order; those that answer nothing, or are no valid answers, are refused.

        Returns:
            The sum of the clipped updates with its counts. It is private.

        Raises:
            FederationError: a protocol of secure aggregation has too few nodes left.
        """
        came, roster = list(replies), self.roster
        honest = flower.answers(asked.messages, came, roster.name)
        answered = {reply.metadata.src_node_id for reply in honest}
        roster.note(asked.orders, answered)
        names = {node: roster.name(node) for node in asked.orders}
        self.collected = self.pipeline.sum_replies(self.state, asked.round, honest, asked.orders, names)
        self.collected.refused_nodes += len(came) - len(honest)
        self.collected.left_out = asked.left_out
        failed = [reply for reply in honest if reply.has_error()]
        again = [reply for reply in failed if reply.error.code == flower.STARTED_AGAIN]
        roster.forget({reply.metadata.src_node_id for reply in again})
        late = sorted(set(asked.orders) - answered)
        errors = [*roster.errors.values(), *(f"node {roster.name(node)} did not answer in time" for node in late)]
        hosted = any(order.counted for order in asked.orders.values())
        self.collected.errors += errors if hosted else [*errors, "no connected node hosts any of them"]
        return self.collected

    def release(self, server_round: int, aggregate: Aggregate) -> RoundRelease:
        """Check budget and quorum, add the noise, and adopt the state after the release.

        It is written down nowhere: a caller with a ledger takes :meth:`ReleasePipeline.release`, writes down what it
        returns, and only then sets ``state``.

        Raises:
            FederationError, DivergedError: as :meth:`ReleasePipeline.release`; nothing was released.
        """
        self.state, release = self.pipeline.release(self.state, server_round, aggregate)
        return release

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Release a round, as Flower's loop asks for it.

        Returns:
            The next global model, and epsilon so far. Flower logs that record, so it must not tell who checks in.

        Raises:
            FederationError, DivergedError: as :meth:`release`; nothing was released.
        """
        aggregate = self.sum_replies(self._asked, replies)
        self.release(server_round, aggregate)
        aggregate.check_possible()
        return self.arrays(), MetricRecord({"epsilon": float(self.plan.charge.epsilon_by_round[server_round - 1])})

    def arrays(self) -> ArrayRecord:
        """Return the global model as clients receive it."""
        return flower.to_record(self.state.parameters)

    def _order(self, round_: int, units: Rows, extracted: int, **told: Any) -> RoundOrder:
        """Make an order to train.

        Args:
            round_: from 1.
            units: rows of the node's units.
            extracted: the submodel that is sent in place of the model.
            told: further fields of the order.
        """
        arrays = self.state.parameters
        if extracted != WHOLE:
            arrays = self.pipeline.pieces(extracted, round_).extract(arrays)
        frozen = tuple(name for name in self.state.parameters if name not in self.pipeline.model.shapes)
        clips = tuple(self.pipeline.clips(self.state))
        told["broadcast"] = self.state.moments.get(self.plan.optimizer.broadcast, {})
        return RoundOrder(self._task_json, round_, clips, units, arrays, extracted, frozen, **told)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send no messages: the server scores models on public records, and a side sum on those of clients."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing (see ``configure_evaluate``)."""
        return None

    def summary(self) -> None:
        """Log the mechanism and its cost."""
        log.info("%s: %s", self.plan.charge.mechanism, self.plan.charge.planned_epsilon)
