"""Keep each client's control variate, and correct its gradients by it.

A client's variate is kept as ``v_i = -steps * rate * c_i``, in the unit of an update. It starts at zero. It follows
from the client's own records and from released numbers, and is never sent.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedamp.base.arrays import Arrays
from fedamp.client.stacks import ClientStack
from fedamp.client.task import ClientTask
from fedamp.client.worker import LocalParameters, TrainedClients
from fedamp.extensions.personal.layers import PersonalLayers
from fedamp.models.pieces import Piece


class ClientVariates(LocalParameters):
    """Corrections c - c_i of gradients, and the clients' variates after a round (Karimireddy et al. 2020, option II).

    ``c_i`` becomes ``c_i - c - update / (steps * rate)``, with the *clipped* update, as the server adds it up. With the
    whole update, c would not be the mean of all c_i, and the corrections would take clients' gradients away.
    """

    def __init__(self, task: ClientTask, piece: Piece) -> None:
        super().__init__(task, piece)
        shapes = {name: tuple(each.shape) for name, each in piece.module.named_parameters() if name not in piece.frozen}
        told: Any = task  # with the keys of these extensions
        self._kept = PersonalLayers(Path(str(told.variates)), shapes, told.checkpoint_every)
        self._length = (task.client.steps or 1) * task.client.learning_rate_in(1)  # of all steps

    def corrections(self, broadcast: Arrays, stack: ClientStack, round_: int) -> dict[str, Tensor]:
        """Return c - c_i, that is (v_i - v) / (steps * rate); a client that was in no round has v_i = 0."""
        slots = len(stack.seeds)
        added = {name: torch.from_numpy(-value).repeat(slots, *[1] * value.ndim) for name, value in broadcast.items()}
        for slot, client in enumerate(stack.units.tolist()):
            for name, value in (self._kept.of(client, round_) or {}).items():
                added[name][slot] += torch.from_numpy(value)
        return {name: value / self._length for name, value in added.items()}

    def keep(self, trained: TrainedClients) -> None:
        """Keep v_i - v + the clipped update; a client whose update is not finite has an update of zero."""
        clipped = trained.clipped()
        after = {name: each + self._length * trained.corrections[name] for name, each in clipped.items()}
        self._kept.keep_stack(trained, after)
