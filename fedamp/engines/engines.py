"""Turn a scenario into a Flower grid: its engine and its faults. No other module does.

Results do not depend on the engine: sums of updates are exact, and randomness is addressed. :mod:`fedamp.server.launch`
opens the grid for a run; :mod:`fedamp.engines.simulation` and :mod:`fedamp.engines.ray` have the two kinds.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedamp import rng
from fedamp.engines import flower
from fedamp.engines.simulation import LOGGER, SerialGrid, SimulationGrid
from fedamp.engines.wire import NO_UNIT, RoundOrder
from fedamp.errors import InputError, fails_alone, missing
from fedamp.federation.losses import brings_code
from fedamp.federation.running import Engine, Faults
from fedamp.federation.scenario import Scenario
from fedamp.models.custom import is_import_path

CLIENT_APP = "fedamp.client.app:app"
# Operations from which on Ray's start of 5 to 10 s pays; the shipped models take some 10 s for as many on one core.
WORTH_RAY = 1e10
# Operations in a round from which on two workers are faster than one: Ray's messages take 3 to 5 ms a round.
WORTH_MESSAGES = 1e8
LONGEST_WAIT = 0.02  # seconds from sending a round's messages to the death of a worker


def choose(asked: Scenario, work: float, rounds: int) -> tuple[Engine, str]:
    """Choose the engine for ``engine.kind: auto``; results do not depend on it.

    Custom code trains in processes of its own where Ray is installed.

    Args:
        asked: the scenario.
        work: floating-point operations of all rounds, with one record in every gradient step.
        rounds: number of rounds.

    Returns:
        The section with kind ``ray`` or ``serial``, and the reason, in words.
    """
    kind, reason = _kind_and_reason(asked, work, work / max(rounds, 1))
    return asked.engine.model_copy(update={"kind": kind}), f"{kind}: {reason}"


def _kind_and_reason(asked: Scenario, work: float, a_round: float) -> tuple[str, str]:
    """Compare the work, and that of a round (``a_round``), with what Ray's start and messages cost."""
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
    """Open the nodes of a simulation, for as long as the context lasts. No process is left running after it.

    Args:
        engine: of kind ``ray`` or ``serial`` (:func:`choose`).
        log: file for the output of Flower, Ray and the nodes.
        client_app: import path of the Flower client app, ``package.module:name``.

    Raises:
        InputError: Ray is not installed, or the device or the cluster is not there.
        ValueError: the engine's kind is still ``auto``.
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
    """Say whether Ray can be imported, without importing it."""
    try:
        return find_spec("ray") is not None
    except ValueError:  # its import is blocked
        return False


class FaultyGrid:
    """A grid between the server and the real one, with the faults that the scenario asks for.

    Every fault is drawn from its address (faults' seed, round, client), so a run with faults is reproducible and can be
    resumed. A fault depends neither on data nor on the workers. Deadlines are not waited for: a late client is left
    out.

    Args:
        grid: the real one, whose other methods and attributes this one has, too.
        faults: the section of the scenario.

    Attributes:
        simulated: whether the nodes of the real grid are simulated.
    """

    def __init__(self, grid: Grid, faults: Faults) -> None:
        self._grid, self._faults = grid, faults
        self.simulated = flower.is_simulated(grid)

    def __getattr__(self, name: str) -> Any:
        """Take everything else from the real grid."""
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages without the clients that fail, and kill a worker where one shall die.

        Args:
            messages: all of one type; only those of type ``train`` meet faults.
            timeout: seconds that the real grid waits; None: no limit.

        Returns:
            The replies of the real grid.
        """
        asked = list(messages)
        if not asked or asked[0].metadata.message_type != "train":
            return list(self._grid.send_and_receive(asked, timeout=timeout))
        reached, round_ = [], 0
        for message in asked:
            order = RoundOrder.of(message.content)
            round_ = order.round
            reached.append(only(message, ~self._failing(round_, order.rows["id"])))
        killing = rng.public_stream(self._faults.seed, "faults workers", round_)
        if killing.random() < self._faults.killed_workers and hasattr(self._grid, "kill_soon"):
            self._grid.kill_soon(int(killing.integers(self.workers)), killing.random() * LONGEST_WAIT)
        return list(self._grid.send_and_receive(reached, timeout=timeout))

    def _failing(self, round_: int, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Draw which of the clients do not answer in time: bool [clients]."""
        faults = self._faults
        fails, lags = rng.client_words(rng.client_seeds(faults.seed, "faults", round_, clients), "faults", 2).T
        return rng.happens(fails, faults.failing) | rng.happens(lags, faults.late)


def with_faults(grid: Grid, faults: Faults | None) -> Grid:
    """Return the grid with the faults that the scenario asks for, if any."""
    return grid if faults is None else cast(Grid, FaultyGrid(grid, faults))


def only(message: Message, kept: NDArray[np.bool_]) -> Message:
    """Copy a message (it gets the same id) for the units in some of its rows.

    Args:
        message: with an order.
        kept: bool [rows]. The other rows stay, without a unit, because an answer names units by their rows.
    """
    order = RoundOrder.of(message.content)
    units = order.rows.copy()  # the others stay empty, because an answer names units by their rows
    units["id"][~kept] = NO_UNIT
    return flower.with_content(message, replace(order, rows=units).content())
