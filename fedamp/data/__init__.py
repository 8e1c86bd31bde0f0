"""Federated data sets: loading, partitioning, and reading the records of a few clients at a time.

    dataset = load(scenario.data, seed, folder)
    cohort = dataset.gather(np.array([3, 141]))

Nothing here imports torch; scikit-learn, pyarrow and ``datasets`` are imported where their data are read.
"""

from fedamp.data.dataset import Cohort, Dataset, LabelCounts
from fedamp.data.source import count_clients, count_records, load

__all__ = ["Cohort", "Dataset", "LabelCounts", "count_clients", "count_records", "load"]
