"""Federated data sets: loading, partitioning, and reading the records of a few clients at a time.

    records = scenario.data.load(seed, folder).gather(np.array([3, 141]))

Nothing here imports torch; pyarrow and ``datasets`` are used only where their data are read.
"""

from fedamp.data.dataset import Dataset, LabelCounts, PaddedRecords

__all__ = ["Dataset", "LabelCounts", "PaddedRecords"]
