"""Load federated data sets, partition them among clients, and read the records of a few clients at a time.

A section of a scenario (:mod:`fedamp.data.sections`) loads a :class:`Dataset`, in which clients are numbers from 0. The
way goes from files to a table (:mod:`fedamp.data.table`), to records and their owners (:mod:`fedamp.data.stored`), to
padded arrays for training. :mod:`fedamp.data.form` says what a task expects of records.

Nothing here knows models, rounds or privacy; but no client's records may depend on, or be lost by, another client's.
Nothing here imports torch, unless a transform runs an encoder. pyarrow and ``datasets`` are imported only where their
data are read.

>>> from pathlib import Path
>>> import numpy as np
>>> from fedamp.data.builtin import DigitsData
>>> digits = DigitsData(name="digits", clients=479).load(seed=7, folder=Path())
>>> records = digits.gather(np.array([3, 141]))
>>> records.inputs.shape, records.labels.shape, records.sizes.tolist()
((2, 3, 64), (2, 3), [3, 3])
"""

from fedamp.data.dataset import Dataset, LabelCounts, PaddedRecords

__all__ = ["Dataset", "LabelCounts", "PaddedRecords"]
