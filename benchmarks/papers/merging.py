"""Yin, Zaheer, Li 2026: Differentially Private Model Merging."""

from collections.abc import Sequence

from benchmarks.papers.record import Figure

FIGURES: Sequence[Figure] = ()
