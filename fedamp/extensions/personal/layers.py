"""Store parameters that stay with their client (``model.local``): one file of a simulation holds those of all clients.

The server never gets them, so nothing is charged for them. They follow from a client's own records and the released
models: a reader of one client's own parameters learns of other clients what the released models tell.

A node trains with them where its task has the key ``personal``; nothing else of a round knows them.
"""

import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedamp.base.reading import open_regular
from fedamp.client.stacks import ClientStack
from fedamp.client.task import ClientTask
from fedamp.client.worker import LocalParameters, TrainedClients
from fedamp.extensions.personal.places import FILE
from fedamp.models.pieces import Piece

ParameterValues = Mapping[str, NDArray[np.float32]]
_ROUND = struct.Struct("<q")


class PersonalParameters(LocalParameters):
    """Start values from what clients trained in their last round, which the task's file holds."""

    def __init__(self, task: ClientTask, piece: Piece) -> None:
        super().__init__(task, piece)
        shapes = {name: tuple(value.shape) for name, value in piece.module.named_parameters() if name in piece.local}
        told: Any = task  # with the keys of this extension
        self._layers = PersonalLayers(Path(str(told.personal)), shapes, told.checkpoint_every)

    @classmethod
    def kept_in(
        cls, folder: Path, shapes: Mapping[str, tuple[int, ...]], every: int
    ) -> "Callable[[int, int], ParameterValues | None]":
        """Return a function that reads a client's values before a round, from a run folder."""
        return PersonalLayers(folder / FILE, shapes, every).of

    def start(self, start: dict[str, Tensor], stack: ClientStack, round_: int) -> dict[str, Tensor]:
        """Return the received values, replaced by a client's own where it has trained before."""
        own = super().start(start, stack, round_)
        for slot, client in enumerate(stack.units.tolist()):
            for name, value in (self._layers.of(client, round_) or {}).items():
                own[name][slot] = torch.from_numpy(value)
        return own

    def keep(self, trained: TrainedClients) -> None:
        """Keep the values of clients that are no dummies; a client whose values are not finite keeps its old ones."""
        self._layers.keep_stack(trained, trained.own())


class PersonalLayers:
    """The file of all clients' values, which several processes may use at once.

    Each client has two places, a round and its values each: of an earlier span of rounds, and of the last one. A run
    that is resumed plays all rounds since a checkpoint again, from what each client had there. Clients write into
    places of their own, so that several processes may.

    Args:
        path: the file; made when it is written first. A place that was never written is round 0.
        shapes: of the parameters, by name.
        every: rounds from one checkpoint to the next.
    """

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], every: int = 1) -> None:
        self._path, self._shapes, self._every = path, dict(sorted(shapes.items())), every
        self._place = _ROUND.size + 4 * sum(int(np.prod(shape)) for shape in shapes.values())

    def of(self, client: int, round_: int) -> ParameterValues | None:
        """Return a client's values before a round (from 1); None for one that has not trained before."""
        before = [place for place in self._places(client) if 0 < _round_of(place) < round_]
        if not before:
            return None
        numbers = np.frombuffer(max(before, key=_round_of), np.float32, offset=_ROUND.size).copy()
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes.values()])[:-1]
        parts = zip(self._shapes.items(), np.split(numbers, ends), strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}

    def keep(self, client: int, round_: int, values: ParameterValues) -> None:
        """Write a client's values after a round, over the older place, or over that of the same span."""
        rounds = [_round_of(place) for place in self._places(client)]
        newest = int(np.argmax(rounds))
        is_of_this_span = rounds[newest] > 0 and (rounds[newest] - 1) // self._every >= (round_ - 1) // self._every
        number = newest if is_of_this_span else 1 - newest
        content = b"".join(np.ascontiguousarray(values[name], np.float32).tobytes() for name in self._shapes)
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            os.pwrite(file, _ROUND.pack(round_) + content, (2 * client + number) * self._place)
        finally:
            os.close(file)

    def keep_stack(self, trained: TrainedClients, after: Mapping[str, Tensor]) -> None:
        """Write the values [slots, *shape] of clients that trained together, as far as they are finite and count."""
        arrays = {name: value.cpu().numpy() for name, value in after.items()}
        for slot, client in enumerate(trained.stack.units.tolist()):
            values = {name: each[slot] for name, each in arrays.items()}
            if trained.counted[slot] and all(np.isfinite(value).all() for value in values.values()):
                self.keep(client, trained.round, values)

    def _places(self, client: int) -> list[bytes]:
        """Read both places of a client; zeros where nothing was written."""
        try:
            with open_regular(self._path, links=False) as file:
                found = os.pread(file.fileno(), 2 * self._place, 2 * client * self._place).ljust(2 * self._place, b"\0")
        except FileNotFoundError:
            return [bytes(self._place)] * 2
        return [found[: self._place], found[self._place :]]


def _round_of(place: bytes) -> int:
    """Read the round of a place; 0: nothing was written."""
    return int(_ROUND.unpack_from(place)[0])
