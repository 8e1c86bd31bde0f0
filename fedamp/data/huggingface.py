"""Hugging Face data sets, from the hub through flwr-datasets or from a local folder (extra ``huggingface``)."""

import math
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp.data.sections import HuggingFaceData
from fedamp.data.source import Source, sources
from fedamp.data.stored import StoredSource
from fedamp.data.table import Table, first_line, image_scale, require
from fedamp.errors import DataError

KEPT = 256 * 2**20  # bytes; splits whose decoded inputs fit are decoded once, larger ones as they are read
_DECODED_AT_ONCE = 1024  # records


class HuggingFaceTable(Table):
    """One split. Images are handed out with channels first: [1, height, width] or [3, height, width].

    Args:
        split: a ``datasets.Dataset``, of which one record is decoded at once.

    Raises:
        DataError: a column missing, or not of images or numbers; no records.
    """

    def __init__(self, split: Any, config: HuggingFaceData, source: str) -> None:
        split = split.with_format(None)  # a saved one (numpy, torch) would hide which columns hold images
        self.source, self._split, self._config = source, split, config
        require(config.features, split.column_names, "data.features", source)
        self._labels = [config.label] if isinstance(config.label, str) else config.label
        for name in self._labels:
            require(name, split.column_names, "data.label", source)
        if len(split) == 0:
            raise DataError(f"{source}: no records; at least one is needed")
        example = self._decode(np.zeros(1, dtype=np.int64))
        holds_images = hasattr(split[0][config.features], "convert")  # of PIL
        scale = image_scale(config.scale, example.dtype) if holds_images else config.scale or 1.0
        super().__init__(source, example.shape[1:], example.dtype, config.shape, scale)

    def __len__(self) -> int:
        return len(self._split)

    def stored_labels(self) -> NDArray[Any]:
        columns = [_rectangular(self._split[name][:], f"{self.source}: column {name!r}") for name in self._labels]
        return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)

    def stored_column(self, name: str) -> NDArray[Any]:
        require(name, self._split.column_names, "data.partition.column", self.source)
        return np.asarray(self._split[name][:])

    def stored_inputs(self, records: NDArray[np.int64]) -> NDArray[Any]:
        if len(records) == 0:
            return np.zeros((0, *self.stored_shape), self.stored_type)
        fits = len(self) * math.prod(self.stored_shape) * self.stored_type.itemsize <= KEPT
        return self._decoded[records] if fits else self._decode(records)

    @cached_property
    def _decoded(self) -> NDArray[Any]:
        return self._decode(np.arange(len(self)))

    def _decode(self, records: NDArray[np.int64]) -> NDArray[Any]:
        name = self._config.features
        inputs = []
        for start in range(0, len(records), _DECODED_AT_ONCE):
            numbers = records[start : start + _DECODED_AT_ONCE]
            inputs += [_as_array(value) for value in self._split[numbers.tolist()][name]]
        shapes = sorted({each.shape for each in inputs})
        if len(shapes) > 1:
            raise DataError(
                f"{self.source}: column {name!r} holds inputs of shapes {list(shapes[0])} and {list(shapes[1])}; "
                "all must agree"
            )
        stacked: NDArray[Any] = np.stack(inputs)
        if stacked.dtype.kind not in "fiub":
            raise DataError(f"{self.source}: column {name!r} must hold images or (lists of) numbers")
        return stacked


@sources.register("huggingface")
def huggingface(config: HuggingFaceData, folder: Path) -> Source:
    """The training table, and the test table if ``data.test_split`` names one.

    Raises:
        DataError: the extra is not installed, no such data set or split, or a column is missing.
    """
    try:
        import datasets
    except ImportError:
        raise DataError(
            "data.name huggingface needs an extra; install it with: pip install 'fedamp[huggingface]'"
        ) from None
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    names = [config.train_split, *([config.test_split] if config.test_split else [])]
    local = folder / Path(config.dataset).expanduser()
    try:
        splits = _from_folder(local) if local.is_dir() else _from_hub(config.dataset, names)
    except Exception as error:  # what the library raises depends on the hub, the network and the format
        raise DataError(
            f"data.dataset {config.dataset!r}: not a folder, and not a hub data set that loads ({first_line(error)})"
        ) from None
    for name in names:
        if name not in splits:
            raise DataError(
                f"data.dataset {config.dataset!r}: no split {name!r}; it has {', '.join(splits)} "
                "(data.test_split: null keeps a part of the training split out)"
            )
    tables = [HuggingFaceTable(splits[name], config, f"{config.dataset} ({name})") for name in names]
    return StoredSource(config, tables[0], tables[1] if config.test_split else None)


def _from_folder(folder: Path) -> dict[str, Any]:
    """The splits in a folder that ``save_to_disk`` wrote, or one laid out like a repository of the hub."""
    import datasets

    if (folder / "dataset_dict.json").exists():
        return dict(datasets.load_from_disk(str(folder)))
    if (folder / "state.json").exists():
        return {"train": datasets.load_from_disk(str(folder))}
    return dict(datasets.load_dataset(str(folder)))


def _from_hub(name: str, splits: list[str]) -> dict[str, Any]:
    from flwr_datasets import FederatedDataset

    federated = FederatedDataset(dataset=name, partitioners={}, shuffle=False)
    return {split: federated.load_split(split) for split in splits}


def _rectangular(values: Any, where: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:
        raise DataError(f"{where} holds lists of different lengths; all must agree") from None


def _as_array(value: Any) -> NDArray[Any]:
    if not hasattr(value, "convert"):
        return np.asarray(value)
    if value.mode == "1":
        value = value.convert("L")
    elif value.mode not in ("L", "RGB", "I", "I;16", "F"):  # palettes, transparency, print colours
        value = value.convert("RGB")
    pixels = np.asarray(value)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
