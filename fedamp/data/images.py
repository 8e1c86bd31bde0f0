"""Images: in a folder for each class, and their pixels in [0, 1] by each image's own type."""

import io
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedamp.errors import DataError, needs_extras

if TYPE_CHECKING:
    import datasets

KEPT = 256 * 2**20  # bytes; splits with at most so many decoded inputs are decoded once, larger ones as they are read
NUMBERS = "numbers or equally long lists of numbers (inputs: or images)"
_TYPE_LARGEST = {"I;16": 2.0**16 - 1, "I": 2.0**16 - 1, "F": 1.0}  # by PIL's mode; I is of 16 bits except in TIFF
_BITS, _SIGN = 258, 339  # tags of TIFF


def in_folders(folder: Path, classes: Sequence[str]) -> "datasets.Dataset":
    """Columns ``image`` and ``label`` of the images of a split, which have a folder for each class (none given: any).

    No other name in a path says anything. DataError: an image without a class, or a table that would give others.
    """
    with needs_extras():
        import datasets
        from PIL import Image

    Image.init()
    classes = classes or sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    paths, labels = list[str](), list[int]()
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if path.name.startswith("metadata."):
            raise DataError(f"{path}: is not read; expected: images in a folder for each class, or parquet files")
        if path.suffix.lower() in Image.EXTENSION and not any(part[0] == "." for part in inside):
            if len(inside) == 1:
                raise DataError(f"{path}: expected: a folder for each class, {folder.name}/CLASS/{path.name}")
            paths.append(str(path))
            labels.append(classes.index(inside[0]) if inside[0] in classes else -1)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(classes))})
    return datasets.Dataset.from_dict({"image": paths, "label": labels}, features=features)


def spread(records: int) -> NDArray[np.int64]:
    """Some records, evenly spread, of which most have the shape that all need: no single person's decides it."""
    return np.unique(np.linspace(0, records - 1, 101 if records else 0).astype(np.int64))


class Images:
    """Inputs [records, channels, height, width] from a column of images.

    An image of another shape, or that cannot be read, is NaN. ``shape`` None: that of the first one, for public images.
    """

    dtype = np.dtype(np.float32)

    def __init__(
        self, rows: "datasets.Dataset", name: str, source: str, shape: tuple[int, ...] | None, scale: float | None
    ) -> None:
        from datasets import Image

        self._mode = rows.features[name].mode
        self._rows = rows.select_columns([name]).cast_column(name, Image(decode=False)).with_format(None)
        self._name, self._scale = name, scale
        found = [image for number in spread(len(rows)) if (image := self._image(number)) is not None]
        if shape is None and not found:
            raise DataError(f"{source}: column {name!r} must hold {NUMBERS}")
        self.shape = (len(rows), *(shape or found[0][0].shape))
        self._fits = math.prod(self.shape) * max((pixels.itemsize for pixels, _ in found), default=4) <= KEPT

    def __getitem__(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        pixels, divisors = (each[records] for each in self._all) if self._fits else self._decoded(records)
        return np.asarray(pixels.astype(np.float32) / divisors[:, None, None, None])

    @cached_property
    def _all(self) -> tuple[NDArray[Any], NDArray[np.float32]]:
        return self._decoded(np.arange(self.shape[0]))

    def _decoded(self, records: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Pixels as stored, and the divisor of each image: NaN for one that cannot be used."""
        found = [self._image(number) for number in records]
        fits = [image if image is not None and image[0].shape == self.shape[1:] else None for image in found]
        nothing = np.zeros(self.shape[1:], np.uint8), np.nan
        pixels, divisors = zip(*(image or nothing for image in [*fits, None]), strict=True)  # one at least, to stack
        return np.stack(pixels)[:-1], np.array(divisors[:-1], np.float32)

    def _image(self, number: np.int64) -> tuple[NDArray[Any], float] | None:
        try:
            pixels, largest = _pixels(self._rows[int(number)][self._name], self._mode)
        except Exception:  # of foreign code
            return None
        if self._scale is not None:
            return pixels, self._scale
        return (pixels, largest) if pixels.min() >= 0 and pixels.max() <= largest else None


def _pixels(stored: Any, asked: str | None) -> tuple[NDArray[Any], float]:
    """An image with channels first, in the mode that is asked for, and the largest value of its type."""
    from PIL import Image, ImageOps

    with Image.open(stored["path"] if stored["bytes"] is None else io.BytesIO(stored["bytes"])) as opened:
        image: Image.Image = ImageOps.exif_transpose(opened)
        if asked is not None:
            image = image.convert(asked)
        mode, tags = image.mode, getattr(opened, "tag_v2", {})
        if mode == "1":
            image = image.convert("L")
        elif mode not in ("L", "RGB", "I", "F") and not mode.startswith(
            "I;16"
        ):  # palettes, transparency, print colours
            image = image.convert("RGB")
        pixels, largest = np.asarray(image), _TYPE_LARGEST.get(mode[:4], 255.0)
    if mode == "I" and opened.format == "TIFF":
        bits, signed = tags.get(_BITS, (32,))[0], tags.get(_SIGN, (1,))[0] == 2
        pixels, largest = pixels if signed or bits < 32 else pixels.view(np.uint32), 2.0 ** (bits - signed) - 1
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1), largest
