"""Describe what a node is told of a run, the same in every order; and the stacks in which its units train.

The shape and memory of stacks follow from the task and the kind of device, neither from who takes part nor from
records. Nothing here imports torch. :mod:`fedamp.server.setup` makes the task from a scenario, its digest is what a
node's policy and agreements name, and :mod:`fedamp.client.configuration` reads it on the node.
"""

import hashlib
import logging
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field

from fedamp.base.devices import is_gpu
from fedamp.base.record import Record
from fedamp.base.section import NotInDigest, with_keys
from fedamp.data.sections import Data
from fedamp.extension import by_key, keys
from fedamp.federation.choices import AnySubmodels
from fedamp.federation.local_training import LocalTraining
from fedamp.federation.side_sums import SideSum
from fedamp.models.custom import is_import_path
from fedamp.models.model import Model

log = logging.getLogger("fedamp.client")

# What a node tells the server about a unit that failed: why follows from the unit's data, and is in the node's own log.
UNTRAINABLE = "a unit's records cannot be trained on; the node's log says more"

DATA_PLACES = ("path", "dataset")  # the keys of a data section that may name a folder

# Stacked float32 numbers a stack aims at: on a CPU a dozen clients even of a residual network (128 MB a worker); a GPU
# is slow on small stacks, so they follow from its memory, if that is known. And records, beyond which a CPU gains
# nothing.
_CPU_NUMBERS, _GPU_NUMBERS, _CPU_RECORDS = 1 << 25, 1 << 29, 1 << 12
_KEPT_SHARE, _KEPT_BYTES = 16, 1 << 28  # one part in so many is for the records of all clients; of an unknown memory

_WAITING = 8  # records in a client's memory that take as much as one of a gradient step

# What a process takes of a GPU before its first tensor; and how many times its stacked numbers a stack holds at most:
# gradients, the optimiser's state, temporary arrays of clipping (measured in tests/client/test_device.py).
_CONTEXT_BYTES, _COPIES = 1 << 30, 4

_AtLeastOne = Annotated[int, Field(ge=1)]
PackageVersion = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99} [0-9][0-9A-Za-z.+!_-]{0,49}$")]
"""Name and version of a distribution, as ``mylab 0.2``."""


_ADDED = by_key("task_keys")
_NOT_IN_DIGEST = {"stack", "run", "charge", "packages"}  # they decide no unit's update
_NOT_IN_DIGEST |= {name for name, kind in _ADDED.items() if NotInDigest() in get_args(kind)}


class StackSize(Record):
    """The most that trains together: a number of units, and of places for records in all of them.

    Attributes:
        units: at least 1.
        records: places for records of all units together, at least 1.
        cohort: units of a round, about. Where it is known, the cohort is divided into stacks of about equal size; else
            slots are powers of two.
    """

    units: _AtLeastOne = 32
    records: _AtLeastOne = _CPU_RECORDS
    cohort: _AtLeastOne | None = None

    def slots(self, places: int, most: int, batch: int | None = None) -> int:
        """Count the units that a stack has room for.

        Args:
            places: for the records of each unit.
            most: units that the node can be asked for.
            batch: records of a step; None: all of a unit's. Records that wait for another step take no activations.

        Returns:
            At least 1. It depends on public numbers alone, so a stack's shape tells nothing about records.
        """
        at_once = places if batch is None else min(places, max(power_above(batch), places // _WAITING))
        room = max(1, min(self.units, self.records // at_once))
        if self.cohort is None:
            return min(1 << (room.bit_length() - 1), power_above(most))
        return min(-(-self.cohort // -(-self.cohort // room)), most)


@partial(with_keys, added=_ADDED)
class ClientTask(Record):
    """The part of a plan that clients may know.

    Attributes:
        version: of what nodes are told; a node of another fedamp refuses it.
        model: the section, with ``frozen_sha256``, so that a node with other frozen weights refuses.
        input_shape: of one record.
        num_classes: how many numbers the model answers with, for every record or token.
        client: the section; one step where the unit is a sample.
        unit: what is clipped and protected.
        submodels: the section.
        split_seed: of the partition into submodels. It is public: the adversary knows the partition.
        linf_coordinates: coordinates are truncated at clip / sqrt(linf_coordinates) (ModelMix); 0: they are not.
        normalised: whether short updates are scaled up to the clipping norm (``privacy.clip: auto``).
        by_layer: whether each layer is clipped to its share of the norm first (``privacy.clip: {per_layer: ..}``).
        answer_after: seconds after which a node of a deployment answers; None: at once.
        run: tells runs apart, also when resumed; empty: a known seed.
        charge: of a unit in the whole run, as told to its node; None: not told.
        data: the section.
        data_seed: decides the partition (and synthetic records).
        stack: how many units train together at most.
        packages: packages beside fedamp that a node needs, in the versions of the server, as ``mylab 0.2``.
    """

    version: Literal[5] = 5
    model: Model
    input_shape: tuple[int, ...]
    num_classes: int
    client: LocalTraining
    unit: Literal["client", "sample"]
    submodels: AnySubmodels
    split_seed: int
    linf_coordinates: int
    normalised: bool = False
    by_layer: bool = Field(False, exclude_if=lambda by_layer: not by_layer)
    answer_after: float | None = Field(None, exclude_if=lambda seconds: seconds is None)
    run: str = Field("", exclude_if=lambda run: not run)
    charge: dict[str, Any] | None = Field(None, exclude_if=lambda cost: cost is None)
    data: Data
    data_seed: int
    stack: StackSize = StackSize()
    packages: tuple[PackageVersion, ...] = Field((), exclude_if=lambda names: not names)

    @property
    def side_sum(self) -> SideSum | None:
        """The side sum that the units add to; None: there is none."""
        return next(filter(None, (getattr(self, key) for key in keys("side_sums"))), None)

    @property
    def digest(self) -> str:
        """Return the SHA-256, in hex, of all that decides a unit's update, for nodes that have agreed on it."""
        return hashlib.sha256(self.model_dump_json(exclude=_NOT_IN_DIGEST).encode()).hexdigest()

    def without_places(self) -> Self:
        """Copy the task for other machines, which have nothing to look for in the server's folders.

        Such a node reads its own data folder, gets the initial model from the server, and imports a custom model from
        installed packages. It has a file of frozen weights of that name (:func:`fedamp.models.pretrained.place_of`).
        """
        named = {key: getattr(self.data, key, None) for key in DATA_PLACES}
        places = {key: "" for key, place in named.items() if place and Path(place).is_absolute()}
        frozen = is_import_path(self.model.name) and self.model.initial is not None  # it may hold frozen weights
        initial = Path(str(self.model.initial)).name if frozen else None
        model = self.model.model_copy(update={"initial": initial, "folder": None})
        return self.model_copy(update={"data": self.data.model_copy(update=places), "model": model})


def power_above(number: int) -> int:
    """Return the smallest power of two that is not below a number; 1 for 0.

    >>> power_above(5), power_above(8)
    (8, 8)
    """
    return 1 << max(number - 1, 0).bit_length()


def places_for(records: int, least: int, step: int | None, batch: int | None = None) -> int:
    """Return the places for a unit's records in a stack: the next power of two, or a finer step of it.

    Args:
        records: of the unit.
        least: fewest places.
        step: places are multiples of it, and of an eighth of the next power of two. That saves arithmetic. None: powers
            of two, which fill stacks better.
        batch: of each of a fixed number of steps; None: all records in each step. More records than a batch cost no
            arithmetic, so steps are coarser then.

    >>> places_for(9, least=2, step=None), places_for(9, least=2, step=2)
    (16, 10)
    """
    if records <= least:
        return least
    if batch is not None and records > (places := power_above(batch)):
        while places < records:
            places *= _WAITING
        return places
    most = power_above(records)
    step = most if step is None else min(most, max(step, most // 8))
    return -(-records // step) * step


def stack_size(
    parameters: int, per_record: int, units: int, device: str = "cpu", memory: int | None = None
) -> StackSize:
    """Choose the size of stacks that fit the memory of a kind of device.

    Args:
        parameters: numbers in the model; a stack holds it and where it goes for each unit.
        per_record: numbers that a record takes: its input, and :func:`fedamp.models.inspection.kept_per_record`.
        units: the most that should train together.
        device: torch's name of the device; only whether it is a GPU counts.
        memory: bytes of the GPU for a worker; None: not known. Stacks are the same for all between two powers of two.
    """
    gpu = is_gpu(device)
    numbers = _GPU_NUMBERS if gpu else _CPU_NUMBERS
    if gpu and memory is not None:
        free = max(0, memory - _CONTEXT_BYTES - kept_bytes(memory))
        numbers = power_above(free // 2 // (4 * _COPIES) + 1) // 2  # a recorded program keeps as much as another takes
    records = max(1, numbers // per_record)
    return StackSize(
        units=max(1, min(units, numbers // (2 * parameters + per_record))),
        records=records if gpu else min(records, max(units, _CPU_RECORDS)),
    )


def kept_bytes(memory: int | None) -> int:
    """Return the most bytes of records that stay on a GPU; it is independent of the records.

    Args:
        memory: bytes of the GPU for a worker; None: not known.

    >>> kept_bytes(80 << 30) >> 30
    5
    """
    return _KEPT_BYTES if memory is None else memory // _KEPT_SHARE


def bytes_of_a_worker(numbers: int) -> int:
    """Estimate the GPU memory of a worker from above, in bytes, without the records that stay there.

    Args:
        numbers: float32 numbers in its largest stack.
    """
    return _CONTEXT_BYTES + 4 * _COPIES * numbers
