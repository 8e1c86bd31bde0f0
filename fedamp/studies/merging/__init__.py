"""Merging of trained models for a new budget (Yin, Zaheer, Li 2026, "Differentially Private Model Merging")."""

from fedamp.studies.merging.decision import MergeRequest, utility_of, weights_of
from fedamp.studies.merging.merge import Merger, merge_runs

__all__ = ["MergeRequest", "Merger", "merge_runs", "utility_of", "weights_of"]
