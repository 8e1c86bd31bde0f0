"""Rényi bounds of Gaussian noise around a random hidden shift, from the overlap of two independent draws of it.

With a shift m, in standard deviations of the noise, X = E over m of exp(<m, z> - |m|^2 / 2). Rounds, submodels,
sampling and check-in only choose which coordinates m has, so that the law of <m, m'> follows from the expression.
"""

import functools
from typing import NamedTuple

import numpy as np

from fedamp.accounting import moments
from fedamp.accounting.basic import Gaussian
from fedamp.accounting.composition import Compose, Repeat
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.moments import Array
from fedamp.accounting.sampling import Poisson, Submodels


class Shift(NamedTuple):
    """A random shift m.

    Attributes:
        square: E |m|^2.
        mean_square: \\|E m\\|^2.
        log_overlap: log E exp(a <m, m'> / 2) at orders a = 0..A, for two independent draws.
    """

    square: float
    mean_square: float
    log_overlap: Array

    def beside(self, other: "Shift") -> "Shift":
        """Both, independent, in coordinates of their own."""
        log_overlap = self.log_overlap + other.log_overlap
        return Shift(self.square + other.square, self.mean_square + other.mean_square, log_overlap)

    def remove(self) -> Array:
        """Bounds of log E[X^a], a = 0..A.

        E[X^a] is the mean of exp(sum over pairs i < j of <m_i, m_j>) over a independent draws: a geometric mean of a
        products that are each exp(a / 2 <m_i, sum of the others>), so by Hölder at most the mean of one of them. Dong,
        Chen and Özgür 2025, Corollary 3.14 (Eq. (3)), for k of d blocks.
        """
        return np.maximum(np.arange(len(self.log_overlap)) - 1.0, 0.0) * self.log_overlap

    def add(self) -> Array:
        """Bounds of log E[X^-b], b = 0..A-1: X is at least exp(<E m, z> - E |m|^2 / 2), by Jensen."""
        b = np.arange(len(self.log_overlap) - 1.0)
        return b * (self.square + b * self.mean_square) / 2


def shift_of(mechanism: Mechanism, highest: int) -> Shift | None:
    """The hidden shift of a mechanism at orders up to ``highest``; None if it is not Gaussian noise around one."""
    if isinstance(mechanism, Gaussian):
        signal = mechanism.noise_multiplier**-2
        return Shift(signal, signal, np.arange(highest + 1) / 2 * signal)
    if isinstance(mechanism, Compose):
        parts = [shift_of(part, highest) for part in mechanism.mechanisms]
        known = [part for part in parts if part is not None]
        return functools.reduce(Shift.beside, known) if len(known) == len(parts) else None
    if not isinstance(mechanism, (Repeat, Submodels, Poisson)):
        return None
    part = shift_of(mechanism.mechanism, highest)
    if part is None:
        return None
    if isinstance(mechanism, Repeat):
        times = mechanism.times
        return Shift(times * part.square, times * part.mean_square, times * part.log_overlap)
    if isinstance(mechanism, Submodels):
        return Shift(part.square, part.mean_square / mechanism.count, _chance_of(1 / mechanism.count, part.log_overlap))
    rate = mechanism.rate
    return Shift(rate * part.square, rate**2 * part.mean_square, _chance_of(rate**2, part.log_overlap))


def chosen_rounds(one: Shift, k: int, rounds: int) -> Shift:
    """The shift of a hidden choice of ``k`` of ``rounds`` rounds with the given shift each."""
    common = np.arange(max(0.0, 2.0 * k - rounds), k + 1)
    chances = moments.log_choose(k, common) + moments.log_choose(rounds - k, k - common)
    chances -= moments.log_sum(chances)
    log_overlap = moments.log_sum(chances + one.log_overlap[:, None] * common)
    return Shift(k * one.square, k * k / rounds * one.mean_square, log_overlap)


def _chance_of(chance: float, log_overlap: Array) -> Array:
    """log of the mean of exp(log_overlap), taken with a chance, and 1."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-chance), np.log(chance) + log_overlap)
