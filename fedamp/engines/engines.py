"""The one place that turns the scenario's ``engine`` section into a Flower grid."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from fedamp.engines import flower
from fedamp.engines.grid import LOGGER, SimulationGrid
from fedamp.engines.serial import SerialGrid
from fedamp.errors import InputError, fails_alone, missing
from fedamp.federation.losses import brings_code
from fedamp.federation.running import Engine
from fedamp.federation.scenario import Scenario
from fedamp.models.architectures import is_import_path

CLIENT_APP = "fedamp.client.app:app"
# Operations from which on Ray's start of 5 to 10 s pays; the shipped models take some 10 s for as many on one core.
WORTH_RAY = 1e10
# Operations in a round from which on two workers are faster than one: Ray's messages take 3 to 5 ms a round.
WORTH_MESSAGES = 1e8


def choose(asked: Scenario, work: float, rounds: int) -> tuple[Engine, str]:
    """The engine for ``engine.kind: auto``, ``ray`` or ``serial``, and the reason; results do not depend on it.

    ``work`` is floating-point operations of all rounds, with one record in every gradient step.
    """
    kind, reason = _kind_and_reason(asked, work, work / max(rounds, 1))
    return asked.engine.model_copy(update={"kind": kind}), f"{kind}: {reason}"


def _kind_and_reason(asked: Scenario, work: float, a_round: float) -> tuple[str, str]:
    engine = asked.engine
    if engine.address is not None:
        return "ray", "engine.address is a cluster"
    if asked.faults is not None and asked.faults.killed_workers:
        return "ray", "faults.killed_workers needs workers"
    own = brings_code(asked)
    code = asked.model.name if is_import_path(asked.model.name) else asked.client.loss
    if not _ray_is_installed():
        where = f", so the code of {code} trains in the server's process" if own else ""
        return "serial", f"Ray is not installed{where}"
    if own:
        return "ray", f"the code of {code} trains in processes of its own"
    if engine.workers not in ("auto", 1):
        return "ray", f"engine.workers is {engine.workers}"
    words = "the clients' work, {:.1e} operations{}, is {} what Ray's {} worth, {:.0e}"
    if work < WORTH_RAY:
        return "serial", words.format(work, "", "less than", "start is", WORTH_RAY)
    if a_round < WORTH_MESSAGES:
        return "serial", words.format(a_round, " a round", "less than", "messages are", WORTH_MESSAGES)
    return "ray", words.format(a_round, " a round", "at least", "messages are", WORTH_MESSAGES)


@contextmanager
def open_grid(engine: Engine, log: Path, client_app: str = CLIENT_APP) -> Iterator[SimulationGrid]:
    """The nodes of a simulation, for as long as the context lasts. No process is left running after it.

    Args:
        engine: of kind ``ray`` or ``serial`` (:func:`choose`).
        log: file for the output of Flower, Ray and the nodes.
        client_app: import path of the Flower client app, ``package.module:name``.

    Raises:
        InputError: Ray is not installed, or the device or the cluster is not there.
    """
    grid: SimulationGrid
    if engine.kind == "serial":
        grid = SerialGrid(client_app, engine.device)
    elif engine.kind == "ray":
        if not _ray_is_installed():
            raise InputError(f"engine.kind: ray needs Ray: {missing('ray')}, or engine.kind: serial")
        from fedamp.engines.ray import RayGrid

        grid = RayGrid(client_app, engine, log)
    else:
        raise ValueError(f"engine.kind must be ray or serial here, got {engine.kind}")
    with flower.chatter_to(log, LOGGER):
        grid.__enter__()
        try:
            yield grid
        finally:
            with fails_alone("closing the engine"):  # all rounds are done
                grid.__exit__(*sys.exc_info())


def _ray_is_installed() -> bool:
    try:
        return find_spec("ray") is not None
    except ValueError:  # its import is blocked
        return False
