"""Whitening by public images: the covariance of features is learned from random shapes, so it costs no privacy.

Features whose variances differ by orders of magnitude take many steps along the weak ones, and each step pays for
noise. Mehta et al. 2022 ("Differentially private image classification from features") release a noisy covariance.
Random shapes on an empty background have a similar covariance to pictures of objects, at no cost.
"""

import math
from typing import Literal

import numpy as np
import scipy  # loads its parts on first use
from numpy.typing import NDArray
from pydantic import Field

from fedamp import rng
from fedamp.base.section import Count, Positive
from fedamp.data.transform import Floats, Function, Shape, Transform, image_shape

IMAGES = 6000  # enough for a thousand components of some thousand features
_MOST_SHAPES = 8  # an image
_BLOCK = 250


class Whiten(Transform):
    """Principal components of the preceding features, as random shapes have them, each divided by its deviation."""

    slow = True
    same_everywhere = False  # linear algebra of another machine may find other components
    name: Literal["whiten"]
    components: Count = 1000
    damping: Positive = Field(1e-3, description="added to each component's variance, as a share of all variance")

    def output_shape(self, shape: Shape) -> Shape:
        features = math.prod(image_shape(self.name, shape))
        most = min(features, IMAGES)
        if self.components > most:
            raise ValueError(f"{self.components} components of {features} features; expected: at most {most}")
        return (self.components,)

    def prepared(self, before: Function, input_shape: Shape) -> Function:
        images = shapes(IMAGES, image_shape(self.name, input_shape))
        blocks = [before(images[start : start + _BLOCK]) for start in range(0, IMAGES, _BLOCK)]
        values = np.concatenate([block.reshape(len(block), -1) for block in blocks])
        mean = values.mean(0)
        values -= mean
        variances, vectors = _principal(values, self.components)
        floor = self.damping * float(np.square(values).sum(1).mean())
        directions = np.ascontiguousarray(vectors / np.sqrt(variances + floor), dtype=np.float32)
        return lambda inputs: (inputs.reshape(len(inputs), -1) - mean) @ directions


def _principal(values: Floats, components: int) -> tuple[Floats, Floats]:
    """The largest variances of centred values [records, features], and their directions [features, components]."""
    records, features = values.shape  # the smaller of the two matrices of scalar products has the same eigenvalues
    products = (values.T @ values if features <= records else values @ values.T) / np.float32(records)
    last = len(products) - 1
    variances, vectors = scipy.linalg.eigh(products, subset_by_index=[last + 1 - components, last], overwrite_a=True)
    variances, vectors = variances[::-1].clip(np.finfo(np.float32).eps * variances[-1]), vectors[:, ::-1]
    return variances, vectors if features <= records else values.T @ (vectors / np.sqrt(records * variances))


def shapes(count: int, shape: tuple[int, int, int]) -> Floats:
    """Images of up to eight ellipses and rectangles about the middle of an empty background, plain or striped.

    Always the same ones: float32 [count, channels, height, width] in [0, 1].
    """
    generator = rng.public_stream(0, "shapes", *shape)
    channels, height, width = shape
    images = np.zeros((count, *shape), dtype=np.float32)
    shown = generator.integers(1, _MOST_SHAPES + 1, count)
    for number in range(_MOST_SHAPES):
        inside, stripes = _shape(generator, count, height, width)
        grey = generator.random((count, channels, 1, 1)).astype(np.float32)
        seen = inside & (number < shown)[:, None, None]
        np.copyto(images, (grey * stripes[:, None]).clip(0, 1), where=seen[:, None])
    return images


def _shape(generator: np.random.Generator, count: int, height: int, width: int) -> tuple[NDArray[np.bool_], Floats]:
    """Which pixels are in a shape, and its stripes, both [count, height, width]."""

    def uniform(low: float, high: float) -> Floats:
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
