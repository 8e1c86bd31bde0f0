"""The shape of the stacks in which units train together, and their memory (no torch here).

Both follow from the task and the kind of device, neither from who takes part nor from records.
"""

from typing import Annotated

from pydantic import Field

from fedamp.base.devices import is_gpu
from fedamp.base.record import Record

# Stacked float32 numbers a stack aims at: on a CPU a dozen clients even of a residual network (128 MB a worker); a GPU
# is slow on small stacks. And records, beyond which a CPU gains nothing.
_CPU_NUMBERS, _GPU_NUMBERS, _CPU_RECORDS = 1 << 25, 1 << 29, 1 << 12

_WAITING = 8  # records in a client's memory that take as much as one of a gradient step

# What a process takes of a GPU before its first tensor; and how many times its stacked numbers a stack holds at most:
# gradients, the optimiser's state, temporary arrays of clipping (measured in tests/client/test_device.py).
_CONTEXT_BYTES, _COPIES = 1 << 30, 4

_AtLeastOne = Annotated[int, Field(ge=1)]


class StackSize(Record):
    """The most that trains together: so many units, and so many places for records in all of them.

    ``cohort``: of a round, about. Where it is known, stacks are as small as holds it in as many; else powers of two.
    """

    units: _AtLeastOne = 32
    records: _AtLeastOne = _CPU_RECORDS
    cohort: _AtLeastOne | None = None

    def slots(self, places: int, most: int, batch: int | None = None) -> int:
        """How many of at most ``most`` units a stack has room for, with so many places for the records of each.

        ``batch``: of a step. Records that wait for another step take no activations.
        """
        at_once = places if batch is None else min(places, max(power_above(batch), places // _WAITING))
        room = max(1, min(self.units, self.records // at_once))
        if self.cohort is None:
            return min(1 << (room.bit_length() - 1), power_above(most))
        return min(-(-self.cohort // -(-self.cohort // room)), most)


def power_above(number: int) -> int:
    """The smallest power of two that is not below a number; 1 for 0."""
    return 1 << max(number - 1, 0).bit_length()


def places_for(records: int, least: int, step: int | None, batch: int | None = None) -> int:
    """The places for a unit's records: the next power of two, at least ``least``.

    ``step``: the next multiple of an eighth of it, and of ``step``. That saves arithmetic; coarse steps (None) fill
    stacks better.
    ``batch``: of each of a fixed number of steps. More records than that cost no arithmetic, so that steps are coarser.
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


def stack_size(parameters: int, per_record: int, units: int, device: str = "cpu") -> StackSize:
    """The size of stacks that fit the memory of a kind of device.

    Args:
        parameters: numbers in the model; a stack holds it and where it goes for each unit.
        per_record: numbers that a record takes: its input, and :func:`fedamp.models.inspection.kept_per_record`.
        units: the most that should train together.
    """
    gpu = is_gpu(device)
    numbers = _GPU_NUMBERS if gpu else _CPU_NUMBERS
    records = max(1, numbers // per_record)
    return StackSize(
        units=max(1, min(units, numbers // (2 * parameters + per_record))),
        records=records if gpu else min(records, max(units, _CPU_RECORDS)),
    )


def bytes_of_a_worker(numbers: int) -> int:
    """Memory of a GPU for a worker whose largest stack has so many float32 numbers: an upper estimate."""
    return _CONTEXT_BYTES + 4 * _COPIES * numbers
