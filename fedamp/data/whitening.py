"""Whitening by images of nobody: how features vary together is learned from random shapes, so it costs no privacy.

Training on features whose variances differ by orders of magnitude takes many steps along the weak ones, and each step
pays for noise. So private training gains from whitened features; Mehta et al. 2022 ("Differentially private image
classification from features") release a noisy covariance for it. Shapes with edges at all angles and places on an empty
background have a covariance much like that of pictures of objects, and it costs nothing.
"""

from collections.abc import Callable
from typing import Self

import numpy as np
import scipy  # loads its parts when they are first used
from numpy.typing import NDArray

from fedamp import rng

Floats = NDArray[np.float32]

IMAGES = 6000  # enough that a thousand components of some thousand features are known
_MOST_SHAPES = 8  # an image
_BLOCK = 250


class Whitening:
    """Centres features and turns them into principal components of variance about one.

    Args:
        mean: float32 [features].
        directions: float32 [features, components].
    """

    def __init__(self, mean: Floats, directions: Floats) -> None:
        self.mean, self.directions = mean, directions

    @classmethod
    def learned(
        cls, features: Callable[[Floats], Floats], input_shape: tuple[int, ...], components: int, damping: float
    ) -> Self:
        """From what random shapes become.

        Args:
            features: what images of shape [records, *input_shape] become before they are whitened.
            input_shape: [channels, height, width].
            components: how many to keep, those of the largest variances.
            damping: added to each variance, as a share of their sum.
        """
        images = shapes(IMAGES, (input_shape[0], input_shape[1], input_shape[2]))
        blocks = [features(images[start : start + _BLOCK]) for start in range(0, IMAGES, _BLOCK)]
        values = np.concatenate([block.reshape(len(block), -1) for block in blocks])
        mean = values.mean(0)
        values -= mean
        variances, vectors = _principal(values, components)
        floor = damping * float(np.square(values).sum(1).mean())
        return cls(mean, np.ascontiguousarray(vectors / np.sqrt(variances + floor), dtype=np.float32))

    def apply(self, features: Floats) -> Floats:
        """Components [records, components] of features [records, ...]."""
        whitened: Floats = (features.reshape(len(features), -1) - self.mean) @ self.directions
        return whitened


def _principal(values: Floats, components: int) -> tuple[Floats, Floats]:
    """The largest variances of centred values [records, features], and their directions [features, components].

    From the smaller of the two matrices of scalar products, which have the same eigenvalues.
    """
    records, features = values.shape
    products = (values.T @ values if features <= records else values @ values.T) / np.float32(records)
    last = len(products) - 1
    variances, vectors = scipy.linalg.eigh(products, subset_by_index=[last + 1 - components, last], overwrite_a=True)
    variances, vectors = variances[::-1].clip(np.finfo(np.float32).eps * variances[-1]), vectors[:, ::-1]
    return variances, vectors if features <= records else values.T @ (vectors / np.sqrt(records * variances))


def shapes(count: int, image_shape: tuple[int, int, int]) -> Floats:
    """Images of up to eight ellipses and rectangles about the middle of an empty background, plain or striped.

    Returns:
        float32 [count, channels, height, width] in [0, 1], always the same ones.
    """
    generator = rng.public_stream(0, "shapes", *image_shape)
    channels, height, width = image_shape
    images = np.zeros((count, *image_shape), dtype=np.float32)
    shown = generator.integers(1, _MOST_SHAPES + 1, count)
    for number in range(_MOST_SHAPES):
        inside, stripes = _shape(generator, count, height, width)
        grey = generator.random((count, channels, 1, 1)).astype(np.float32)
        seen = inside & (number < shown)[:, None, None]
        np.copyto(images, (grey * stripes[:, None]).clip(0, 1), where=seen[:, None])
    return images


def _shape(
    generator: np.random.Generator, count: int, height: int, width: int
) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Which pixels are in a shape, and its stripes, both [count, height, width]."""

    def uniform(low: float, high: float) -> NDArray[np.float32]:
        return generator.uniform(low, high, (count, 1, 1)).astype(np.float32)

    down, right = (generator.normal(0, share, (count, 1, 1)).astype(np.float32) for share in (5 / 28, 3 / 28))
    y, x = np.mgrid[:height, :width].astype(np.float32)
    y, x = (y + 0.5) / height - 0.5 - down, (x + 0.5) / width - 0.5 - right
    angle, length, ratio = uniform(0, np.pi), uniform(2 / 28, 11 / 28), uniform(0.2, 1)
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    u, v = along / length, across / (length * ratio)
    inside = np.where(uniform(0, 1) < 0.5, u**2 + v**2 < 1, np.maximum(np.abs(u), np.abs(v)) < 1)
    contrast, pitch = uniform(0, 0.5) * (uniform(0, 1) < 0.5), uniform(8, 84)
    return inside, 1 + contrast * np.sin(pitch * along)
