"""Federated data sets: loading, partitioning, and reading the records of a few clients at a time.

    cohort = scenario.data.load(seed, folder).gather(np.array([3, 141]))

Nothing here imports torch; pyarrow and ``datasets`` are used only where their data are read.
"""

from fedamp.data.dataset import Cohort, Dataset, LabelCounts

__all__ = ["Cohort", "Dataset", "LabelCounts"]
