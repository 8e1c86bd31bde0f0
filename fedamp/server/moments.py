"""Release means and deviations before the first round: one round with a sum of other vectors than updates.

Its "model" is the mean over the units of :meth:`fedamp.data.transforms.Standardise.vectors`, its "update" is one unit's
vector, and its denominator is the public number of units. So clipping, exact sums, quorum, faults, noise and the
protocol of a deployment are those of training. The charge is in :mod:`fedamp.federation.private_means`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from fedamp import rng
from fedamp.client.private_means import STATISTICS
from fedamp.data.transforms import Standardise
from fedamp.errors import RunFolderError
from fedamp.federation.check_in import AllCheckIn
from fedamp.federation.losses import form_of
from fedamp.federation.noise import IndependentNoise
from fedamp.federation.optimizers import ServerUpdate
from fedamp.federation.plan import Plan
from fedamp.federation.submodels import NoSubmodels
from fedamp.runs.around import RunHooks
from fedamp.runs.records import LedgerRecord
from fedamp.server.setup import RunInputs
from fedamp.strategies.aggregation import ModelParts
from fedamp.strategies.pipeline import ReleasePipeline, undivided
from fedamp.strategies.private import PrivateStrategy


def standardised(inputs: RunInputs, grid: Grid, known: LedgerRecord | None, hooks: RunHooks) -> RunInputs:
    """Give a run the means and deviations of ``data.transform``: those of its ledger, or released now.

    Args:
        inputs: of the run.
        grid: the nodes.
        known: the ledger of a run that is resumed.
        hooks: of extensions.

    Returns:
        Inputs whose data are standardised; the same ones where the scenario asks for no private statistics.

    Raises:
        FederationError: below quorum; nothing was released.
        RunFolderError: the ledger has none.
    """
    step = inputs.plan.scenario.data.statistics
    if step is None:
        return inputs
    if known is None:
        hooks.before_question()
        return inputs.with_statistics(_release_statistics(step, inputs, grid, hooks.units_left()))
    if known.statistics is None:
        raise RunFolderError(f"ledger.json of {known.scenario}: no statistics; expected: as the run began")
    return inputs.with_statistics(known.statistics)


def _release_statistics(step: Standardise, inputs: RunInputs, grid: Grid, units_left: frozenset[int]) -> Standardise:
    """Play the round that releases means and deviations; returns the step with these numbers."""
    plan, task = _plan_of(step, inputs.plan), inputs.task
    before = plan.scenario.data.load(task.data_seed, Path(), form_of(task.client, task.model))
    parameters = {STATISTICS: np.zeros((2, before.input_shape[0]), np.float32)}
    pipeline = ReleasePipeline(plan, ModelParts.of(parameters), undivided, plan.noise)
    strategy = PrivateStrategy(pipeline, task, pipeline.start(parameters))
    strategy.units_left = units_left
    asked = strategy.order_round(1, grid)
    replies = grid.send_and_receive(asked.messages, timeout=plan.scenario.federation.round_deadline)
    release = strategy.release(1, strategy.sum_replies(asked, replies))
    return step.released(release.parameters[STATISTICS], plan.units)


def _plan_of(step: Standardise, plan: Plan) -> Plan:
    """Plan the round that releases them: all units, clipping norm 1, the step's noise. The run's own charge has it."""
    asked, noise = plan.scenario, {"noise_multiplier": step.noise_multiplier, "noise": IndependentNoise()}
    planted = {"canaries": 0} if hasattr(asked.privacy, "canaries") else {}
    changes: dict[str, Any] = {
        "data": asked.data.with_statistics(None),
        "privacy": asked.privacy.model_copy(update={"clip": 1.0, "epsilon": None, **planted, **noise}),
        "check_in": AllCheckIn(),
        "submodels": NoSubmodels(),
        "server": ServerUpdate(),
        **dict.fromkeys(asked.sections),
        "rounds": 1,
    }
    scenario = asked.model_copy(update=changes)
    return replace(plan, scenario=scenario, seed=rng.public_seed(plan.seed, STATISTICS))
