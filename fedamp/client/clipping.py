"""Clip every unit's update, and add up clipped updates so that any order gives the same sum.

After clipping, every coordinate is truncated towards zero to a whole multiple of a power of two, the *quantum*.
Truncation never increases a norm. Whole numbers below 2**53 add up in float64 without rounding, so neither the order of
units nor that of nodes changes a sum. The sum of 2**22 units at full clip still fits.

Everything that leaves a node's units as a sum goes through :func:`clip_and_sum`: updates, evaluations and statistics.
Only :mod:`fedamp.client.ghost_clipping` forms the same sum in another way. This module adds no noise; the server does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedamp.base.arrays import Floats
from fedamp.base.devices import any_order
from fedamp.base.start import compiled
from fedamp.engines import flower
from fedamp.models.embeddings import is_spare

SMALLEST_CLIP, LARGEST_CLIP = 2.0**-90, 2.0**90
LARGEST_COHORT = 1 << 22  # units whose sum float64 holds exactly, in quanta: 2**53 / 2**31
MARGIN = 1e-6  # scaled norms aim this much below the clip: float32 rounds scale and product by 2**-24 relative each
STABILITY = 0.01  # added to norms that divide updates, so that tiny ones stay small (Bu et al. 2023, gamma)
_BLOCK = 2048  # numbers of the sum handled at a time: they stay in the fastest cache while all units are added
_COMPILED = ("cpu",)  # devices with compiled kernels; the others take array operations, which tests try on a CPU


def quantum(clip: float) -> float:
    """Compute the power of two of which every coordinate of a clipped update is a whole multiple.

    Args:
        clip: clipping norm of the part, in [2**-90, 2**90].

    Returns:
        A power of two, above clip / 2**31 and at most clip / 2**30.

    Raises:
        ValueError: a clip outside [2**-90, 2**90], where float32 could not hold the scaled coordinates.

    >>> quantum(1.0) == 2.0**-30
    True
    """
    if not SMALLEST_CLIP <= clip <= LARGEST_CLIP:
        raise ValueError(f"clip must be in [2**-90, 2**90], got {clip}")
    return 2.0 ** (math.frexp(clip)[1] - 31)


@dataclass(frozen=True)
class TableRows:
    """Places the updates of some rows of an embedding table in that table.

    Attributes:
        numbers: int64 [units, places], the row of the table that each place updates. A unit may name a row several
            times; only its first place counts (:func:`fedamp.models.embeddings.is_spare`).
        table: number of rows of the table.
    """

    numbers: Tensor
    table: int


@dataclass(frozen=True)
class ClippedSum:
    """The sum of the clipped updates of some units, and which of them failed or were longer than the clip.

    ``failed`` and ``clipped`` follow from private records without noise. They must stay on the server.

    Attributes:
        sums: float64 by parameter name, in the parameter's shape, on the device of the updates.
        failed: bool [units], there, too: the update was not finite, and counts as zero in every part.
        clipped: bool [parts, units], there, too: the norm was above the clip. False where the unit failed.
    """

    sums: dict[str, Tensor]
    failed: Tensor
    clipped: Tensor


def clip_numbers(clips: Sequence[float], linf_coordinates: int = 0) -> Floats:
    """Compute what clipping needs to know of the clipping norms of a round.

    Args:
        clips: clipping norm of each part, in the range of :func:`quantum`.
        linf_coordinates: as for :func:`clip_and_sum`.

    Returns:
        float64 [3, parts]: the norms; their quanta; and the most quanta of a coordinate, a float32.

    Raises:
        ValueError: a clip outside the range of :func:`quantum`.

    >>> clip_numbers([1.0])[1:].tolist() == [[2.0**-30], [2.0**30]]
    True
    """
    columns = []
    for clip in clips:
        unit = quantum(clip)
        limit = math.floor(clip / unit / math.sqrt(linf_coordinates or 1))
        columns.append((clip, unit, _as_float32(limit)))
    return np.array(columns).reshape(-1, 3).T.copy()


def clip_and_sum(
    updates: Mapping[str, Tensor],
    parts: Sequence[Sequence[str]],
    clips: Sequence[float],
    linf_coordinates: int = 0,
    normalised: bool = False,
    counted: NDArray[np.bool_] | Tensor | None = None,
    rows: Mapping[str, TableRows] = MappingProxyType({}),
    compiled: bool = True,
    numbers: Tensor | None = None,
    by_layer: bool = False,
) -> ClippedSum:
    """Clip every unit's update part by part, quantise it, and add up. On a GPU no value is read back.

    A part's Euclidean norm is over all its parameters. Each unit's summand depends on its own update alone: one with
    NaN or infinity becomes zero in every part. As computed in float64, its norm in a part is at most the part's clip.
    So one unit changes the sum of a part by at most the clip, which is the sensitivity that the accountant charges.

    Args:
        updates: float32 of shape [units, *shape] by parameter name. Rows of a table that a unit repeats are zeroed in
            place.
        parts: the parameter names of each part; together all names, none twice.
        clips: clipping norm of each part, in the range of :func:`quantum`.
        linf_coordinates: p >= 1 truncates coordinates at clip / sqrt(p) after clipping (Xiao, Wan, Devadas 2022,
            Algorithm 1); 0 does not.
        normalised: scale short updates up, too (:func:`clip_factors`).
        counted: bool [units], which units are in the sum; default: all. The others take as much time, and add nothing.
        rows: for updates of some rows of a table, [units, places, numbers], where they belong. A row that a unit names
            twice counts once, at its first place.
        compiled: False: without compiled kernels. To load them takes longer than they save, if updates are few.
        numbers: the result of :func:`clip_numbers` on the device of the updates, where it is there already.
        by_layer: shorten each layer to its share of the clip first (:func:`_shortened_layers`).

    Returns:
        The sums, float64, and the flags of each unit. Flags also cover units that are not counted.

    Raises:
        ValueError: parts that do not match the names or the clips, or a clip outside the range of :func:`quantum`.

    >>> import torch
    >>> update = torch.tensor([[3.0, 4.0], [0.3, 0.4]])  # norms 5 and 0.5
    >>> found = clip_and_sum({"weight": update}, [["weight"]], [1.0])
    >>> found.sums["weight"].round(decimals=3).tolist(), found.clipped.tolist()
    ([0.9, 1.2], [[True, False]])
    """
    matching = sorted(name for part in parts for name in part) == sorted(updates) and all(parts)
    if not matching or len(parts) != len(clips):
        raise ValueError(
            f"parts must hold every parameter once, none be empty, and have a clip each, got {parts} and clips {clips}"
        )
    for name, each in rows.items():
        updates[name].masked_fill_(is_spare(each.numbers).to(updates[name].device)[..., None], 0.0)
    stacks = {name: update if name in rows else _as_in_memory(update) for name, update in updates.items()}
    upright = {name for name, stack in stacks.items() if stack is updates[name]}
    device, known = next(iter(updates.values())).device, clip_numbers(clips, linf_coordinates)
    limits, units, bounds = torch.from_numpy(known).to(device) if numbers is None else numbers
    flat, norms = _norms_of(stacks, parts, compiled)
    longer = norms > limits[:, None]
    if by_layer:
        stacks = _shortened_layers(stacks, parts, limits, compiled)
        flat, norms = _norms_of(stacks, parts, compiled)
    failed, scales = clip_factors(norms, limits[:, None], normalised)
    scales = scales / units[:, None]
    if counted is not None:  # then every number is below a quantum
        scales = scales * torch.where(torch.as_tensor(counted, device=device), 1.0, 2.0**-32)
    scales = scales.float()
    sums: dict[str, Tensor] = {}
    for place, part in enumerate(parts):
        of_part = _PartScales(scales[place], units[place], bounds[place].float(), known[1:, place], compiled)
        for name in part:
            if name in rows:
                sums[name] = _sum_of_rows(stacks[name], of_part, rows[name])
                continue
            total = _sum_of_quanta(flat[name], of_part).view(stacks[name].shape[1:])
            sums[name] = total if name in upright else total.mT
    return ClippedSum({name: sums[name] for name in updates}, failed, ~failed & longer)


def clipped_each(
    updates: Mapping[str, Tensor],
    parts: Sequence[Sequence[str]],
    clips: Sequence[float],
    normalised: bool = False,
    by_layer: bool = False,
) -> dict[str, Tensor]:
    """Clip every unit's update as :func:`clip_and_sum` does, without quanta and without a sum.

    It is for what stays with a unit; no guarantee rests on it.

    Args:
        updates, parts, clips, normalised, by_layer: as of :func:`clip_and_sum`.

    Returns:
        float32 [units, *shape] by parameter name; zeros for an update that is not finite.

    >>> import torch
    >>> found = clipped_each({"weight": torch.tensor([[3.0, 4.0]])}, [["weight"]], [1.0])
    >>> (10 * found["weight"]).round().tolist()
    [[6.0, 8.0]]
    """
    limits = torch.tensor(clips, dtype=torch.float64, device=next(iter(updates.values())).device)
    if by_layer:
        updates = _shortened_layers(updates, parts, limits, False)
    _, norms = _norms_of(updates, parts, False)
    scales = clip_factors(norms, limits[:, None], normalised)[1].float()
    found = {}
    for part, scale in zip(parts, scales, strict=True):
        for name in part:
            each = scale.view(-1, *[1] * (updates[name].dim() - 1))
            found[name] = torch.where(each == 0, 0.0, updates[name] * each)
    return found


@dataclass(frozen=True)
class _PartScales:
    """The factors of a part's updates.

    Attributes:
        scales: float32 [units], factor of each unit in quanta; one whose scale is zero adds nothing.
        quantum: size of a quantum, float64.
        limit: the most that a scaled number may be, float32, below 2**31.
        here: quantum and limit as NumPy's numbers.
        compiled: as for :func:`clip_and_sum`.
    """

    scales: Tensor
    quantum: Tensor
    limit: Tensor
    here: Floats
    compiled: bool


def clip_factors(norms: Tensor, clips: Tensor, normalised: bool) -> tuple[Tensor, Tensor]:
    """Compute the factors by which updates are multiplied, so that none is longer than its clip.

    They are min(1, clip / norm). With ``normalised`` they are clip / (norm + 0.01): long and short updates all come
    close to the clip (AUTO-S: Bu et al. 2023, section 4). Either way a unit adds at most the clip.

    Args:
        norms: Euclidean norms, float64 [parts, units].
        clips: of each part, float64 [parts, 1].
        normalised: whether short updates are scaled up.

    Returns:
        bool [units]: which units failed, because a norm is not finite. And the factors, float64 [parts, units], at
        least 0; all are 0 where the unit failed.

    >>> failed, factors = clip_factors(torch.tensor([[0.5, 2.0, math.nan]]), torch.tensor([[1.0]]), False)
    >>> failed.tolist(), (100 * factors).round().tolist()
    ([False, False, True], [[100.0, 50.0, 0.0]])
    """
    limits = clips * (1 - MARGIN)
    factors = limits / (norms + STABILITY) if normalised else (limits / norms).clamp(max=1.0)
    failed = ~(norms < math.inf).all(0)  # NaN, too
    return failed, factors.masked_fill_(failed, 0.0)


def _norms_of(
    stacks: Mapping[str, Tensor], parts: Sequence[Sequence[str]], compiled: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the updates [units, numbers] by name, and their norms in each part, float64 [parts, units]."""
    flat = {name: stack.view(*stack.shape, *[1] * (stack.dim() == 1)).flatten(1) for name, stack in stacks.items()}
    return flat, torch.stack([_square_norms([flat[name] for name in part], compiled) for part in parts]).sqrt()


def _shortened_layers(
    stacks: Mapping[str, Tensor], parts: Sequence[Sequence[str]], clips: Tensor, compiled: bool
) -> dict[str, Tensor]:
    """Shorten each layer of every update to clip / sqrt(m), for the m layers of its part (McMahan et al. 2018, sec. 3).

    A layer is the parameters of one module. Together the layers are at most as long as the clip. No guarantee rests on
    that, because the whole update is clipped afterwards.
    """
    shortened = {}
    for part, clip in zip(parts, clips, strict=True):
        layers: dict[str, list[str]] = {}
        for name in part:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        for names in layers.values():
            norms = _norms_of({name: stacks[name] for name in names}, [names], compiled)[1][0]
            scales = (clip / math.sqrt(len(layers)) / norms).clamp(max=1.0).float()
            for name in names:
                shortened[name] = stacks[name] * scales.view(-1, *[1] * (stacks[name].dim() - 1))
    return shortened


def _is_compiled(stack: Tensor, compiled: bool) -> bool:
    """Say whether compiled kernels clip a stack. They do not in a SuperNode's process for one message."""
    return compiled and stack.device.type in _COMPILED and not flower.in_supernode()


def _square_norms(stacks: Sequence[Tensor], compiled: bool) -> Tensor:
    """Compute each unit's squared Euclidean norm over all of some stacks, float32 [units, numbers]; in float64."""
    if _is_compiled(stacks[0], compiled):
        squares = np.empty((len(stacks), len(stacks[0])))
        for stack, into in zip(stacks, squares, strict=True):
            _add_squares()(stack.numpy(), into)
        return torch.from_numpy(np.sum(squares, 0))
    norms = [torch.linalg.vector_norm(stack, dim=1, dtype=torch.float64) for stack in stacks]
    return torch.stack(norms).square_().sum(0)


def _sum_of_quanta(stack: Tensor, part: _PartScales) -> Tensor:
    """Add up units, scaled, in whole quanta.

    Args:
        stack: float32 [units, numbers].
        part: its factors.

    Returns:
        float64 [numbers], each a whole multiple of the quantum.
    """
    if _is_compiled(stack, part.compiled):
        total, (unit, limit) = np.zeros(stack.shape[1], np.int64), part.here
        _add_quanta()(stack.numpy(), part.scales.numpy(), np.float32(limit), total)
        return torch.from_numpy(total * unit)
    return _whole_quanta(stack, part).sum(0).double() * part.quantum


def _sum_of_rows(stack: Tensor, part: _PartScales, rows: TableRows) -> Tensor:
    """Add up units [units, places, numbers] as :func:`_sum_of_quanta`, into the rows of a table.

    Returns:
        float64 [rows, numbers].
    """
    quanta = _whole_quanta(stack, part).long()
    total = torch.zeros(rows.table, stack.shape[2], dtype=torch.int64, device=stack.device)
    with any_order():  # sums of integers
        total.index_add_(0, rows.numbers.to(stack.device).flatten(), quanta.flatten(0, 1))
    return total.double() * part.quantum


def _whole_quanta(stack: Tensor, part: _PartScales) -> Tensor:
    """Compute the whole quanta of units [units, ...], int32; zeros for a scale of zero."""
    scale = part.scales.view(-1, *[1] * (stack.dim() - 1))
    scaled = torch.where(scale == 0, 0.0, stack * scale).clamp_(-part.limit, part.limit)
    return scaled.to(torch.int32)  # conversion to integers truncates towards zero


def _as_in_memory(stack: Tensor) -> Tensor:
    """View a stack in the order in which it lies in memory (weights of linear layers are trained transposed)."""
    return stack.mT if stack.dim() == 3 and not stack.is_contiguous() and stack.mT.is_contiguous() else stack


def _as_float32(number: int) -> float:
    """Round a positive number down to a float32."""
    rounded = np.float32(number)
    return float(rounded if float(rounded) <= number else np.nextafter(rounded, np.float32(0)))


# What a CPU does to every number, compiled: few passes over memory in place of a dozen. Results go to the caller's
# arrays: making them here would take several times as long to compile.


@compiled(nogil=True, fastmath={"reassoc", "contract"})
def _add_squares(stack: Any, squares: Any) -> None:
    """Sums of squares, float64 [units], of float32 [units, numbers], in an order that is the same for every unit."""
    for unit in range(len(stack)):
        row, total = stack[unit], np.float64(0)
        for place in range(row.size):
            number = np.float64(row[place])
            total += number * number
        squares[unit] = total


@compiled(nogil=True)
def _add_quanta(stack: Any, scales: Any, limit: Any, total: Any) -> None:
    """Add to ``total``, int64 [numbers], every unit's scaled numbers, truncated towards zero.

    ``limit`` < 2**31 bounds their size. A unit whose scale is zero adds nothing, finite or not.
    """
    for first in range(0, stack.shape[1], _BLOCK):
        into = total[first : first + _BLOCK]
        for unit in range(len(stack)):
            scale, row = scales[unit], stack[unit, first : first + _BLOCK]
            if scale != 0:
                for place in range(into.size):
                    into[place] += np.int32(min(max(row[place] * scale, -limit), limit))
