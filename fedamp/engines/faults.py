"""Faults on purpose: clients that fail or answer late, sites that vanish, answers that come twice, workers that die."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedamp import rng
from fedamp.engines import flower
from fedamp.federation.running import Faults

LONGEST_WAIT = 0.02  # seconds from sending a round's messages to the death of a worker


class FaultyGrid:
    """A grid between the server and the real one, which spoils what the scenario asks to spoil.

    Every fault is drawn from the address (faults' seed, round, client or site), so that a run with faults is as
    reproducible, and as resumable, as one without. What a client or a site does depends neither on its data nor on
    the workers. Deadlines are not waited for: a late client trains, and its answer comes with those of the next round.

    Args:
        grid: the real one.
        faults: what to spoil.
    """

    def __init__(self, grid: Grid, faults: Faults) -> None:
        self._grid, self._faults = grid, faults
        self.simulated = flower.is_simulated(grid)
        self._late: list[Message] = []

    def __getattr__(self, name: str) -> Any:
        """All else is as of the real grid."""
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies that come in time, some of them twice, and the late ones of the round before."""
        asked = list(messages)
        if not asked or asked[0].metadata.message_type != "train":
            return list(self._grid.send_and_receive(asked, timeout=timeout))
        round_ = int(asked[0].content["config"]["round"])  # type: ignore[arg-type]
        prompt, late = [], []
        for message in asked:
            fails, lags = self._failing_and_late(round_, _clients(message))
            prompt.append(only(message, ~fails & ~lags))
            if (lags & ~fails).any():
                late.append(_another(only(message, lags & ~fails)))
        with self._worker_killed(round_):
            replies = list(self._grid.send_and_receive([*prompt, *late], timeout=timeout))
        in_time = {message.metadata.message_id for message in prompt}
        came = [reply for reply in replies if reply.metadata.reply_to_message_id in in_time]
        before = self._late
        self._late = [reply for reply in replies if reply.metadata.reply_to_message_id not in in_time]
        generator = rng.public_stream(self._faults.seed, "faults repeating", round_)
        twice = generator.random(len(came)) < self._faults.repeating
        return [*before, *came, *(reply for reply, again in zip(came, twice, strict=True) if again)]

    def _failing_and_late(self, round_: int, clients: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which of the clients never answer, and which do so too late."""
        faults = self._faults
        seeds = rng.client_seeds(faults.seed, "faults", round_, clients)
        fails, lags = rng.client_words(seeds, "faults", 2).T
        return rng.happens(fails, faults.failing) | self._vanished(round_, clients), rng.happens(lags, faults.late)

    def _vanished(self, round_: int, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        vanishing = self._faults.vanishing
        if vanishing is None:
            return np.zeros(len(clients), dtype=bool)
        away = np.zeros(vanishing.sites, dtype=bool)
        for left in range(max(1, round_ - vanishing.rounds + 1), round_ + 1):
            generator = rng.public_stream(self._faults.seed, "faults vanishing", left)
            away |= generator.random(vanishing.sites) < vanishing.rate
        vanished: NDArray[np.bool_] = away[clients % vanishing.sites]
        return vanished

    @contextmanager
    def _worker_killed(self, round_: int) -> Iterator[None]:
        generator = rng.public_stream(self._faults.seed, "faults workers", round_)
        prepare_kill = getattr(self._grid, "prepare_kill", None)
        if prepare_kill is None or generator.random() >= self._faults.killed_workers:
            yield
            return
        kill = prepare_kill(int(generator.integers(self.workers)))
        timer = Timer(generator.random() * LONGEST_WAIT, kill)
        timer.start()
        try:
            yield
        finally:
            timer.join()


def with_faults(grid: Grid, faults: Faults | None) -> Grid:
    """The grid, with what the scenario asks to go wrong; None: nothing."""
    return grid if faults is None else cast(Grid, FaultyGrid(grid, faults))


def _clients(message: Message) -> NDArray[np.int64]:
    return np.array(message.content["config"]["clients"], dtype=np.int64)


def only(message: Message, kept: NDArray[np.bool_]) -> Message:
    """The same message (it gets the same id), for some of its clients."""
    config: dict[str, Any] = dict(message.content["config"])
    for key in ("clients", "seeds", "submodels"):
        config[key] = [value for value, keep in zip(config[key], kept, strict=True) if keep]
    return flower.with_content(message, RecordDict({**message.content, "config": ConfigRecord(config)}))


def _another(message: Message) -> Message:
    return Message(message.content, message.metadata.dst_node_id, message.metadata.message_type)
