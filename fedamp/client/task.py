"""What a node is told, and what it answers besides a sum (no torch here).

The task is constant over a run, and sent as JSON with every message; an instruction is of one round.
"""

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedamp import rng
from fedamp.base.record import Record
from fedamp.client.memory import StackSize
from fedamp.data.sections import Data
from fedamp.federation.aggregation import Terms
from fedamp.federation.submodels import AnySubmodels
from fedamp.federation.training import Client
from fedamp.models.architectures import is_import_path
from fedamp.models.section import WHOLE, Model

if TYPE_CHECKING:
    from fedamp.client.clipping import ClippedSum

log = logging.getLogger("fedamp.client")

# What a node tells the server about a unit that failed: why follows from the unit's data, and is in the node's own log.
UNTRAINABLE = "a unit's records cannot be trained on; the node's log says more"

DATA_PLACES = ("path", "dataset")  # the keys of a data section that may name a folder


class ClientTask(Record):
    """The part of a plan that clients may know; ``model``, ``client``, ``submodels``, ``data`` are its sections."""

    version: Literal[5] = 5  # of what nodes are told; a node of another fedamp refuses it
    model: Model  # with ``frozen_sha256``, so that a node with other frozen weights refuses
    input_shape: tuple[int, ...]  # of one record
    num_classes: int  # how many numbers the model answers with, for every record or token
    client: Client  # one step where the unit is a sample
    unit: Literal["client", "sample"]  # what is clipped and protected
    submodels: AnySubmodels
    split_seed: int  # public: the adversary knows the partition into submodels
    linf_coordinates: int  # coordinates are truncated at clip / sqrt(linf_coordinates) (ModelMix); 0: they are not
    normalised: bool = False  # short updates are scaled up to the clipping norm (``privacy.clip: auto``)
    terms: Terms | None = None  # of secure aggregation
    personal: str | None = None  # the file of the parameters that stay with their client
    checkpoint_every: int = 1
    answer_after: float | None = Field(None, exclude_if=lambda seconds: seconds is None)  # of a node of a deployment
    run: str = Field("", exclude_if=lambda run: not run)  # tells runs apart, also when resumed; empty: known seed
    data: Data
    data_seed: int  # decides the partition (and synthetic records)
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"  # of local training on a GPU
    stack: StackSize = StackSize()  # how many units train together at most

    @property
    def digest(self) -> str:
        """Of all that decides a unit's update, for nodes that have agreed on it."""
        return hashlib.sha256(self.model_dump_json(exclude={"terms", "stack", "personal", "run"}).encode()).hexdigest()

    def without_places(self) -> Self:
        """The task for other machines, which have nothing to look for in the server's folders.

        Such a node reads its own data folder, gets the initial model from the server, and imports a custom model from
        installed packages. It has a file of frozen weights under the same name (:func:`fedamp.models.frozen.place_of`).
        """
        named = {key: getattr(self.data, key, None) for key in DATA_PLACES}
        places = {key: "" for key, place in named.items() if place and Path(place).is_absolute()}
        frozen = is_import_path(self.model.name) and self.model.initial is not None  # it may hold frozen weights
        initial = Path(str(self.model.initial)).name if frozen else None
        model = self.model.model_copy(update={"initial": initial, "folder": None})
        return self.model_copy(update={"data": self.data.model_copy(update=places), "model": model})


@dataclass(frozen=True)
class TrainInstruction:
    """What a node does in a round; ValueError where lengths do not match."""

    round: int
    clients: list[int]  # ids
    seeds: list[bytes]  # secret seed of each client, 32 bytes
    submodels: list[int]  # submodel of each client; -1: the whole model
    clips: list[float]  # clipping norm of all that is trained; or of its shared and its split part
    extracted: int = WHOLE  # the submodel that the arrays are
    counted: list[bool] = field(default_factory=list)  # False: a dummy, trained as the others, but not in the sum

    def __post_init__(self) -> None:
        if not len(self.clients) == len(self.seeds) == len(self.submodels):
            counts = f"{len(self.clients)}, {len(self.seeds)} and {len(self.submodels)}"
            raise ValueError(f"clients, seeds and submodels must agree, got {counts}")
        if any(len(seed) != rng.SEED_BYTES for seed in self.seeds):
            raise ValueError(f"seeds must have {rng.SEED_BYTES} bytes, got {sorted(set(map(len, self.seeds)))}")
        if len(self.clips) not in (1, 2):
            raise ValueError(f"clips must be [all] or [shared, split], got {len(self.clips)} numbers")
        if self.extracted != WHOLE and set(self.submodels) - {self.extracted}:
            raise ValueError(f"submodels must all be {self.extracted}, the one that was sent, got {self.submodels}")

    @property
    def dummies(self) -> frozenset[int]:
        """The clients that train so that nobody sees from outside whether a node's clients check in."""
        return frozenset(client for client, counted in zip(self.clients, self.counted, strict=False) if not counted)

    def by_submodel(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.void]]]:
        """The clients that train each submodel, and their seeds."""
        clients, submodels = np.array(self.clients, dtype=np.int64), np.array(self.submodels, dtype=np.int64)
        seeds = np.array(self.seeds, dtype=f"V{rng.SEED_BYTES}")
        for submodel in np.unique(submodels):
            yield int(submodel), clients[submodels == submodel], seeds[submodels == submodel]


@dataclass
class TrainReport:
    """What a node answers besides the sum. Computed from private data without noise: it must stay on the server.

    Clients that fail are ``reported``: failure follows from data, and must not decide whether a round has its quorum.
    ``dummies`` are in none of the numbers, and not told.
    """

    reported: list[int] = field(default_factory=list)  # clients in the sum
    failed: int = 0  # clients that add zero: records could not be read or trained, or the update was not finite
    clipped: int = 0  # clients whose update was clipped in some part
    below_clip: int = 0  # clients whose update was within the clip in every part
    loss_sum: float = 0.0  # loss of the received model over the first batches of clients that did not fail
    records: int = 0  # number of those records
    seconds: float = 0.0
    error: str = ""  # why the first client failed whose records could not be read or trained
    dummies: frozenset[int] = frozenset()

    def counted(self, clients: NDArray[np.int64], slots: int | None = None) -> NDArray[np.bool_]:
        """Which of the clients in the first slots of a stack are no dummies; False for empty slots."""
        kept = np.zeros(slots or len(clients), bool)
        kept[: len(clients)] = [client not in self.dummies for client in clients.tolist()]
        return kept

    def add(
        self,
        clients: NDArray[np.int64],
        clipped: "ClippedSum",
        losses: NDArray[Any] | None = None,
        records: NDArray[np.int64] | None = None,
    ) -> None:
        """Count clients that trained together, in the first slots of a stack, with loss and records of each slot."""
        here = np.flatnonzero(self.counted(clients))
        fine = ~clipped.failed.cpu().numpy()[here]
        self.reported += clients[here].tolist()
        self.failed += int((~fine).sum())
        self.clipped += int(clipped.clipped[:, here].any(0).sum())
        self.below_clip += int(clipped.below_clip[here].sum())
        if losses is not None and records is not None:
            self.loss_sum += float(np.where(np.isfinite(losses[here]) & fine, losses[here], 0.0).sum())
            self.records += int(records[here][fine].sum())

    def lose(self, clients: NDArray[np.int64]) -> None:
        """Count clients among those added whose records cannot be trained on: they added zero."""
        lost = int(self.counted(clients).sum())
        self.failed += lost
        self.error = self.error or UNTRAINABLE * bool(lost)

    def fail(self, client: int, why: str, there: bool = True) -> None:
        """Count a client that adds zero, and keep the first reason; one that lives elsewhere is not ``there``."""
        log.warning("client %d: %s", client, why)
        if client in self.dummies:
            return
        self.reported += [client] * there
        self.failed += 1
        self.error = self.error or f"client {client}: {why}"
