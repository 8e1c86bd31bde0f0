"""Serve a custom Flower app, with its own model, records and training.

    strategy = AppStrategy("federation.yaml", arrays, "out")  # instead of FedAvg(...)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=..., train_config=...)

fedamp then decides who trains when, clips, adds noise, and keeps the ledger; the app trains and evaluates. Its clients
use :class:`fedamp.client.PrivateClientApp`. docs/flower-app shows a whole app.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedamp import rng
from fedamp.base.arrays import Arrays
from fedamp.client.task import ClientTask
from fedamp.data.dataset import ExternalData
from fedamp.engines import flower
from fedamp.engines.deployment import guarded
from fedamp.errors import ModelError, RunFolderError, ScenarioError
from fedamp.federation import reader
from fedamp.federation.choices import refuse_hooks
from fedamp.federation.kept_answers import KEPT
from fedamp.federation.plan import make_plan
from fedamp.federation.scenario import Scenario
from fedamp.runs.folder import new_folder
from fedamp.runs.ledger import Ledger
from fedamp.runs.records import EVALUATED_BY_APP
from fedamp.server.app import reasons_kept_in, wait_for_nodes
from fedamp.strategies.aggregation import Aggregate, ModelParts
from fedamp.strategies.pipeline import ReleasePipeline, RoundRelease, undivided
from fedamp.strategies.private import PrivateStrategy

LOG = "server.log"


class AppStrategy(PrivateStrategy):
    """PrivateStrategy for a custom app, with a ledger: every round is entered before its model is released.

    It writes ``scenario.yaml``, ``ledger.json``, ``model.safetensors`` of the last round, and ``server.log`` into
    ``out``. The log names the nodes that answered and must stay on the server. With a secret seed these files are for
    the owner alone. Such a run cannot be resumed.

    Args:
        scenario: or its file; with ``data: {name: external, clients: N}`` and ``model: {name: external}``.
        arrays: the first model, float32; public.
        out: a new folder, because a run is released once.

    Attributes:
        folder: of the run.
        ledger: its releases so far.

    Raises:
        RunFolderError: ``out`` exists already.
        ScenarioError: the scenario's data are not external, or its budget pays for no round.
        ModelError: arrays that are not float32, or not finite.
    """

    def __init__(self, scenario: Scenario | str | Path, arrays: ArrayRecord, out: str | Path) -> None:
        scenario = scenario if isinstance(scenario, Scenario) else reader.load(scenario)
        if not isinstance(scenario.data, ExternalData):
            raise ScenarioError(f"data.name is {scenario.data.name}; expected in a custom app: external")
        refuse_hooks(scenario)
        parameters = _read_parameters(arrays)
        seed = None if scenario.known_seed else rng.seed_from_system()
        plan = make_plan(scenario, scenario.data.clients, seed, answers=KEPT)
        plan.charge.check_budget()
        pipeline, out, made = ReleasePipeline(plan, ModelParts.of(parameters), undivided, plan.noise), Path(out), False
        if not out.exists():
            self.folder, made = new_folder(out, scenario.name, private=not scenario.known_seed)
        if not made:
            raise RunFolderError(f"{out}: exists already; expected: a new folder, because a run is released once")
        self.folder.write_scenario(scenario)
        self.ledger = Ledger(self.folder.ledger, plan, evaluation=EVALUATED_BY_APP)
        self.ledger.begin()
        unknown: dict[str, Any] = {"input_shape": (), "num_classes": 0, "split_seed": 0, "data_seed": 0}
        known = {name: getattr(scenario, name) for name in ("model", "client", "submodels", "data")}
        told: dict[str, Any] = {"linf_coordinates": plan.linf_coordinates, "normalised": plan.clipping.normalises}
        told["by_layer"] = plan.clipping.by_layer
        told["answer_after"] = scenario.federation.answer_after
        task = ClientTask(unit="client", **told, **known, **unknown)
        super().__init__(pipeline, task, pipeline.start(parameters))

    def release(self, server_round: int, aggregate: Aggregate) -> RoundRelease:
        """Enter the release of a round in the ledger, and only then adopt the state after it.

        Raises:
            FederationError, DivergedError: as :meth:`ReleasePipeline.release`; nothing was released.
            UnwritableError: the ledger cannot be written; nothing was released.
        """
        state, release = self.pipeline.release(self.state, server_round, aggregate)
        self.ledger.enter(release.round, release.parameters)
        self.state = state
        return release

    def arrays(self) -> ArrayRecord:
        """Copy the global model: an app's code may write to it."""
        return ArrayRecord({name: Array(array) for name, array in self.state.parameters.items()})

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Play Flower's loop, after ``federation.nodes`` nodes have connected.

        Args:
            initial_arrays: those that the strategy was made with; else ModelError.
            num_rounds: at most the rounds of the plan that the budget pays for, the default; else ScenarioError.
            timeout: seconds; default: ``federation.round_deadline``.
            evaluate_config: not used: clients do not evaluate.
            evaluate_fn: its metrics are in the result and in Flower's log.

        Raises:
            FederationError: a round could not be released. The reason names nodes, so it is in ``server.log``.
        """
        affordable, federation = self.plan.charge.affordable_rounds, self.plan.scenario.federation
        if num_rounds is not None and num_rounds > affordable:
            raise ScenarioError(f"num_rounds must be at most {affordable}, the scenario's rounds, got {num_rounds}")
        given, ours = _read_parameters(initial_arrays), self.state.parameters
        if list(given) != list(ours) or any(not np.array_equal(given[name], ours[name]) for name in ours):
            raise ModelError("initial_arrays must be the arrays that the strategy was made with")
        rounds, deadline = num_rounds or affordable, timeout or federation.round_deadline
        folder, secret = self.folder.path, not self.plan.known_seed
        log = folder / LOG
        with guarded(grid) as safe, flower.chatter_to(log, "fedamp"), reasons_kept_in(log, secret):
            wait_for_nodes(safe, self.plan.scenario)
            told = evaluate_fn and partial(_evaluate_and_print, evaluate_fn)
            return super().start(safe, self.arrays(), rounds, deadline, train_config, evaluate_config, evaluate_fn=told)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Release a round, entered in the ledger, and write its model.

        Args:
            server_round: from 1.
            replies: of the nodes.

        Returns:
            The next global model, and epsilon so far.

        Raises:
            FederationError, DivergedError: as :meth:`release`; nothing was released.
        """
        arrays, told = super().aggregate_train(server_round, replies)
        self.folder.write_model(self.state.model)
        print(f"round {server_round}: epsilon {self.ledger.releases[-1].epsilon_upper:.3f}", flush=True)
        return arrays, told


def _evaluate_and_print(
    evaluate: Callable[[int, ArrayRecord], MetricRecord | None], round_: int, arrays: ArrayRecord
) -> MetricRecord | None:
    """Print what an app computes from a released model in Flower's log, as every other strategy does."""
    if found := evaluate(round_, arrays):
        print(f"round {round_}: evaluated, {dict(found)}", flush=True)
    return found


def _read_parameters(arrays: ArrayRecord) -> Arrays:
    """Read a model's arrays by name; ModelError: they are not float32, not finite, or there are none."""
    parameters = flower.from_record(arrays)
    for name, array in parameters.items():
        if array.dtype != np.float32:
            raise ModelError(
                f"array {name} is {array.dtype}; expected: float32 (a batch norm counts its batches in int64: use "
                "GroupNorm, or track_running_stats=False)"
            )
        if not np.isfinite(array).all():
            raise ModelError(f"array {name} holds NaN or infinity; expected: finite numbers")
    if not parameters:
        raise ModelError("the model has no arrays; expected: at least one")
    return parameters
