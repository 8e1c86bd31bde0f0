"""Clipping of every unit's update, and sums that come out the same in any order.

After clipping, every coordinate is truncated towards zero to a whole multiple of a power of two, the *quantum*. That
never increases a norm; and float64 adds whole numbers below 2**53 without rounding, so neither the order of units nor
that of nodes changes a sum (2**22 units at full clip fit).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_CLIP = 2.0**-90
LARGEST_CLIP = 2.0**90

# Scaled norms aim this much below the clip: float32 rounds the scale and each product, by 2**-24 relative each.
_MARGIN = 1e-6

# Rows (one unit's update of one tensor) from this size on are added one at a time: no float64 copy of the stack.
_LONG_ROW = 1 << 16


def quantum(clip: float) -> float:
    """The power of two of which every coordinate of a clipped update is a whole multiple, at most clip / 2**30.

    Raises:
        ValueError: a clip outside [2**-90, 2**90], where float32 could not hold the scaled coordinates.
    """
    if not SMALLEST_CLIP <= clip <= LARGEST_CLIP:
        raise ValueError(f"clip must be in [2**-90, 2**90], got {clip}")
    return 2.0 ** (math.frexp(clip)[1] - 31)


@dataclass(frozen=True)
class ClippedSum:
    """The sum of the clipped updates of some units, and what clipping did.

    Attributes:
        sums: float64 by parameter name, in the parameter's shape.
        failed: bool of shape [units]; an update that was not finite, and counted as zero in every part.
        clipped: bool of shape [parts, units]; norm above the clip.
    """

    sums: dict[str, Tensor]
    failed: Tensor
    clipped: Tensor

    @property
    def below_clip(self) -> Tensor:
        """Bool of shape [units]: the norm was within the clip in every part (a failed unit is not)."""
        return ~self.failed & ~self.clipped.any(0)


def clip_and_sum(
    updates: dict[str, Tensor], parts: Sequence[Sequence[str]], clips: Sequence[float], linf_coordinates: int = 0
) -> ClippedSum:
    """Clip every unit's update part by part, quantise it, and add up. Overwrites ``updates``.

    A part's Euclidean norm is over all its parameters. The result of a unit depends on nothing but its own update: one
    that holds NaN or infinity becomes zero in every part, and a zero update stays zero. As computed in float64, the
    norm of what a unit adds to a part is at most the part's clip.

    Args:
        updates: float32 of shape [units, *shape] by parameter name.
        parts: the parameter names of each part; together all names, none twice.
        clips: the clipping norm of each part.
        linf_coordinates: p >= 1 truncates coordinates at clip / sqrt(p) after clipping (Xiao et al. 2023, Algorithm 1);
            0 does not.

    Raises:
        ValueError: parts that do not match the names or the clips, or a clip that is not accepted.
    """
    if sorted(name for part in parts for name in part) != sorted(updates) or len(parts) != len(clips):
        raise ValueError(f"parts must hold every parameter once and have a clip each, got {parts} and clips {clips}")
    quanta = [quantum(clip) for clip in clips]
    norms = torch.stack([_norms([updates[name] for name in part], updates) for part in parts])
    failed = ~torch.isfinite(norms).all(0)
    clipped = ~failed & (norms > torch.tensor(clips, dtype=torch.float64, device=norms.device)[:, None])
    some_failed = bool(failed.any())
    sums = {}
    for part, clip, grid, norm in zip(parts, clips, quanta, norms, strict=True):
        scales = ((clip * (1 - _MARGIN) / norm).clamp(max=1.0) / grid).float()
        limit = _linf_limit(clip / grid, linf_coordinates)
        for name in part:
            rows = _dense(updates[name])
            if some_failed:
                rows[failed] = 0.0
                scales = scales.masked_fill(failed, 0.0)
            rows.mul_(scales.view(-1, *[1] * (rows.dim() - 1))).trunc_()
            if limit is not None:
                rows.clamp_(-limit, limit)
            total = _sum(rows).mul_(grid)
            sums[name] = total if rows is updates[name] else total.mT
    return ClippedSum({name: sums[name] for name in updates}, failed, clipped)


def _norms(tensors: Sequence[Tensor], updates: Mapping[str, Tensor]) -> Tensor:
    """Euclidean norm of every unit over some parameters: float64 of shape [units]."""
    if not tensors:
        any_update = next(iter(updates.values()))
        return torch.zeros(len(any_update), dtype=torch.float64, device=any_update.device)
    norms = [_row_norms(_dense(tensor)) for tensor in tensors]
    return torch.linalg.vector_norm(torch.stack(norms), dim=0)


def _row_norms(rows: Tensor) -> Tensor:
    rows = rows.flatten(1)
    if rows.shape[1] < _LONG_ROW:
        return torch.linalg.vector_norm(rows.double(), dim=1)
    norms = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
    for unit, row in enumerate(rows):
        norms[unit] = torch.linalg.vector_norm(row.double())
    return norms


def _sum(rows: Tensor) -> Tensor:
    if rows.shape[1:].numel() < _LONG_ROW:
        return rows.double().sum(0)
    total = torch.zeros(rows.shape[1:], dtype=torch.float64, device=rows.device)
    for row in rows:
        total.add_(row)
    return total


def _dense(stack: Tensor) -> Tensor:
    """The stack in the order in which it lies in memory (weights of linear layers are trained transposed)."""
    return stack.mT if stack.dim() == 3 and not stack.is_contiguous() and stack.mT.is_contiguous() else stack


def _linf_limit(clip_in_quanta: float, coordinates: int) -> float | None:
    """The largest whole number within clip / sqrt(coordinates) that float32 holds."""
    if coordinates == 0:
        return None
    limit = torch.tensor(math.floor(clip_in_quanta / math.sqrt(coordinates)), dtype=torch.float64)
    as_float = limit.float()
    return float(as_float if as_float.double() <= limit else torch.nextafter(as_float, torch.tensor(0.0)))
