"""Clipping of every unit's update, and sums that come out the same in any order.

After clipping, every coordinate is truncated towards zero to a whole multiple of a power of two, the *quantum*. That
never increases a norm; and whole numbers add up without rounding (in float64 too, below 2**53), so neither the order
of units nor that of nodes changes a sum (2**22 units at full clip fit).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]

SMALLEST_CLIP = 2.0**-90
LARGEST_CLIP = 2.0**90

# Units whose sum float64 holds exactly, in quanta: 2**53 / 2**31.
LARGEST_COHORT = 1 << 22

# Scaled norms aim this much below the clip: float32 rounds the scale and each product, by 2**-24 relative each.
MARGIN = 1e-6

# Added to the norms by which updates are divided, so that tiny ones stay small (Bu et al. 2023, gamma).
STABILITY = 0.01

# Numbers handled at a time: on a CPU few enough to stay in the cache, however large the stack.
_BLOCK = {"cpu": 1 << 18, "cuda": 1 << 26}


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
    updates: Mapping[str, Tensor],
    parts: Sequence[Sequence[str]],
    clips: Sequence[float],
    linf_coordinates: int = 0,
    normalised: bool = False,
) -> ClippedSum:
    """Clip every unit's update part by part, quantise it, and add up.

    A part's Euclidean norm is over all its parameters. The result of a unit depends on nothing but its own update: one
    that holds NaN or infinity becomes zero in every part, and a zero update stays zero. As computed in float64, the
    norm of what a unit adds to a part is at most the part's clip.

    Args:
        updates: float32 of shape [units, *shape] by parameter name.
        parts: the parameter names of each part; together all names, none twice.
        clips: the clipping norm of each part.
        linf_coordinates: p >= 1 truncates coordinates at clip / sqrt(p) after clipping (Xiao, Wan, Devadas 2022,
            Algorithm 1); 0 does not.
        normalised: scale short updates up, too (:func:`scales_of`).

    Raises:
        ValueError: parts that do not match the names or the clips, or a clip that is not accepted.
    """
    matching = sorted(name for part in parts for name in part) == sorted(updates) and all(parts)
    if not matching or len(parts) != len(clips):
        raise ValueError(
            f"parts must hold every parameter once, none be empty, and have a clip each, got {parts} and clips {clips}"
        )
    steps = [_Step(clip, quantum(clip), linf_coordinates, normalised) for clip in clips]
    stacks = {name: _as_in_memory(update) for name, update in updates.items()}
    totals = [
        torch.zeros(sum(stacks[name].shape[1:].numel() for name in part), dtype=torch.int64, device=_device(stacks))
        for part in parts
    ]
    norms = []
    for units in _blocks(stacks):
        flat = [torch.cat([stacks[name][units].flatten(1) for name in part], 1) for part in parts]
        norms.append(_norms(flat))
        for total, step, block, norm in zip(totals, steps, flat, norms[-1], strict=True):
            total += step.sum(block, norm, ~np.isfinite(norms[-1]).all(0))
    sums: dict[str, Tensor] = {}
    for part, step, total in zip(parts, steps, totals, strict=True):
        sums |= _unflatten(total.double() * step.quantum, part, updates, stacks)
    all_norms = np.concatenate(norms, 1)
    failed = ~np.isfinite(all_norms).all(0)
    clipped = ~failed & (all_norms > np.array(clips)[:, None])
    return ClippedSum({name: sums[name] for name in updates}, torch.from_numpy(failed), torch.from_numpy(clipped))


def scales_of(norms: Floats, clips: Floats | float, normalised: bool) -> Floats:
    """What updates of these norms are multiplied by, so that none is longer than its clip.

    min(1, clip / norm); or, ``normalised``, clip / (norm + gamma), which makes all of them about as long as the clip
    (AUTO-S: Bu et al. 2023, section 4). Either way a unit adds at most the clip.
    """
    limits = np.asarray(clips) * (1 - MARGIN)
    with np.errstate(divide="ignore", invalid="ignore"):  # what is zero or not finite is the caller's
        return np.asarray(limits / (norms + STABILITY) if normalised else np.minimum(limits / norms, 1.0))


@dataclass(frozen=True)
class _Step:
    """How one part is clipped."""

    clip: float
    quantum: float
    linf_coordinates: int
    normalised: bool

    def sum(self, block: Tensor, norms: Floats, failed: NDArray[np.bool_]) -> Tensor:
        """Sum over units, in quanta: int64. Overwrites the block."""
        if failed.any():
            block[torch.from_numpy(failed).to(block.device)] = 0.0
        scales = np.where(failed, 0.0, scales_of(norms, self.clip, self.normalised) / self.quantum)
        block.mul_(torch.from_numpy(scales.astype(np.float32)).to(block.device)[:, None])
        if self.linf_coordinates:
            limit = _as_float32(math.floor(self.clip / self.quantum / math.sqrt(self.linf_coordinates)))
            block.clamp_(-limit, limit)
        # Below 2**31, as the scaled norm is; conversion to integers truncates towards zero.
        quanta = block.to(torch.int32)
        # Torch's sum over an axis of length one takes as long as all the rest of this.
        return quanta[0].long() if len(quanta) == 1 else quanta.sum(0)


def _norms(flat: Sequence[Tensor]) -> Floats:
    """Euclidean norms of units by part, of shape [parts, units]."""
    return np.stack([torch.linalg.vector_norm(block.double(), dim=1).cpu().numpy() for block in flat])


def _device(stacks: Mapping[str, Tensor]) -> torch.device:
    return next(iter(stacks.values())).device


def _blocks(stacks: Mapping[str, Tensor]) -> Iterator[slice]:
    """Consecutive units, some at a time (one empty block where there are none)."""
    numbers = sum(stack.shape[1:].numel() for stack in stacks.values())
    size = max(1, _BLOCK.get(_device(stacks).type, 1 << 26) // numbers)
    for start in range(0, max(1, len(next(iter(stacks.values())))), size):
        yield slice(start, start + size)


def _unflatten(
    total: Tensor, part: Sequence[str], updates: Mapping[str, Tensor], stacks: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    shapes = [stacks[name].shape[1:] for name in part]
    pieces = torch.split(total, [shape.numel() for shape in shapes])
    return {
        name: piece.view(shape) if stacks[name] is updates[name] else piece.view(shape).mT
        for name, shape, piece in zip(part, shapes, pieces, strict=True)
    }


def _as_in_memory(stack: Tensor) -> Tensor:
    """The stack in the order in which it lies in memory (weights of linear layers are trained transposed)."""
    return stack.mT if stack.dim() == 3 and not stack.is_contiguous() and stack.mT.is_contiguous() else stack


def _as_float32(number: int) -> float:
    """The largest float32 that is not above a positive number."""
    rounded = np.float32(number)
    return float(rounded if float(rounded) <= number else np.nextafter(rounded, np.float32(0)))
