"""Schuchardt, Stoian, Kosmala, Günnemann 2024: Group Privacy Amplification and Unified Amplification by Subsampling."""

from collections.abc import Sequence

from benchmarks.papers.record import Figure

FIGURES: Sequence[Figure] = ()
