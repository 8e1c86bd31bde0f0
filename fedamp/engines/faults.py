"""The faults that a scenario asks for: clients fail or are late, and workers die."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedamp import rng
from fedamp.engines import flower
from fedamp.engines.wire import NO_UNIT, RoundOrder
from fedamp.federation.running import Faults

LONGEST_WAIT = 0.02  # seconds from sending a round's messages to the death of a worker


class FaultyGrid:
    """A grid between the server and the real one, with the faults that the scenario asks for.

    Every fault is drawn from its address (faults' seed, round, client), so a run with faults is reproducible and can be
    resumed. A fault depends neither on data nor on the workers. Deadlines are not waited for: a late client trains, and
    its answer comes with those of the next round.
    """

    def __init__(self, grid: Grid, faults: Faults) -> None:
        self._grid, self._faults = grid, faults
        self.simulated = flower.is_simulated(grid)
        self._late: list[Message] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies that come in time, and the late ones of the round before."""
        asked = list(messages)
        if not asked or asked[0].metadata.message_type != "train":
            return list(self._grid.send_and_receive(asked, timeout=timeout))
        round_ = RoundOrder.of(asked[0].content).round
        prompt, late = [], []
        for message in asked:
            fails, lags = self._failing_and_late(round_, RoundOrder.of(message.content).rows["id"])
            prompt.append(only(message, ~fails & ~lags))
            if (lags & ~fails).any():
                rest = only(message, lags & ~fails)
                late.append(Message(rest.content, rest.metadata.dst_node_id, "train"))
        killing = rng.public_stream(self._faults.seed, "faults workers", round_)
        if killing.random() < self._faults.killed_workers and hasattr(self._grid, "kill_soon"):
            self._grid.kill_soon(int(killing.integers(self.workers)), killing.random() * LONGEST_WAIT)
        replies = list(self._grid.send_and_receive([*prompt, *late], timeout=timeout))
        in_time = {message.metadata.message_id for message in prompt}
        came = [reply for reply in replies if reply.metadata.reply_to_message_id in in_time]
        before = self._late
        self._late = [reply for reply in replies if reply.metadata.reply_to_message_id not in in_time]
        return [*before, *came]

    def _failing_and_late(self, round_: int, clients: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which of the clients never answer, and which do so too late."""
        faults = self._faults
        fails, lags = rng.client_words(rng.client_seeds(faults.seed, "faults", round_, clients), "faults", 2).T
        return rng.happens(fails, faults.failing), rng.happens(lags, faults.late)


def with_faults(grid: Grid, faults: Faults | None) -> Grid:
    """The grid with the faults that the scenario asks for, if any."""
    return grid if faults is None else cast(Grid, FaultyGrid(grid, faults))


def only(message: Message, kept: NDArray[np.bool_]) -> Message:
    """The same message (it gets the same id), for the units in some of its rows."""
    order = RoundOrder.of(message.content)
    units = order.rows.copy()  # the others stay empty, because an answer names units by their rows
    units["id"][~kept] = NO_UNIT
    return flower.with_content(message, replace(order, rows=units).content())
