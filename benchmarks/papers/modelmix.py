"""Xiao, Wan, Devadas 2022: Differentially Private Deep Learning with ModelMix."""

from collections.abc import Sequence

from benchmarks.papers.record import Figure

FIGURES: Sequence[Figure] = ()
