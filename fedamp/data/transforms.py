"""Transform inputs by public functions: a record's result depends on no other record, so it costs no privacy.

A step whose numbers a run releases is charged (:mod:`fedamp.federation.first_releases`). Slow features are computed
once and kept in a cache on disk, readable by their owner alone. :mod:`fedamp.data.features` applies the steps. A
further one is a class here, and its name in ``TRANSFORMS``; extensions offer theirs for the key ``data.transform``.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import scipy  # loads its parts on first use
from numpy.typing import NDArray
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from fedamp import rng
from fedamp.base.section import Count, Positive, Section

Finite = Annotated[float, Field(allow_inf_nan=False)]
SingleFloats = NDArray[np.float32]
Shape = tuple[int, ...]
Function = Callable[[SingleFloats], SingleFloats]

BLOCK = 256  # records transformed at once: the temporaries of a scattering stay in the tens of megabytes
_SMALLEST_DEVIATION = 1e-5  # of a group of equal features, as in torch's GroupNorm


class Transform(Section):
    """Base of the transforms. A further one is a class, and a name in ``TRANSFORMS``."""

    slow: ClassVar[bool] = False  # its results are kept on disk
    same_everywhere: ClassVar[bool] = True  # to the last bits, on every machine
    name: str

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape of one result for inputs of a shape; by default the same.

        Raises:
            ValueError: the step cannot take the shape.
        """
        return shape

    def identity(self) -> str:
        """Return a text of all that the step's results follow from, beside the inputs.

        It is a part of the name of features in the cache.
        """
        return self.model_dump_json()

    def apply(self, inputs: SingleFloats) -> SingleFloats:
        """Compute results [records, ...] of inputs [records, ...], float32.

        Each depends on its own record and on public constants.
        """
        raise NotImplementedError

    def prepared(self, before: Function, input_shape: Shape) -> Function:
        """Return :meth:`apply`, or a function that is learned from public images.

        Args:
            before: the preceding transforms.
            input_shape: of one input of the first of them.
        """
        return self.apply


class Standardise(Transform):
    """(input - mean) / deviation, with public constants: one each, or one for each column or channel."""

    name: Literal["standardise"]
    mean: Finite | tuple[Finite, ...]
    deviation: Positive | tuple[Positive, ...]

    @property
    def constants(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and deviation, float64 [columns] or [1] each."""
        return np.atleast_1d(self.mean).astype(float), np.atleast_1d(self.deviation).astype(float)

    @property
    def given_constants(self) -> dict[str, object]:
        """Constants as they are given, by their keys: numbers, or tuples with one for each column or channel."""
        return {"mean": self.mean, "deviation": self.deviation}

    def output_shape(self, shape: Shape) -> Shape:
        """Return the same shape, if there is one constant or one for each column (or channel)."""
        for key, numbers in self.given_constants.items():
            if isinstance(numbers, tuple) and len(numbers) != shape[0]:
                raise ValueError(f"{len(numbers)} numbers in {key}, for {shape[0]} columns (or channels)")
        return shape

    def apply(self, inputs: SingleFloats) -> SingleFloats:
        """Compute (input - mean) / deviation.

        >>> step = Standardise(name="standardise", mean=2.0, deviation=4.0)
        >>> step.apply(np.array([[10.0, -2.0]], np.float32)).tolist()
        [[2.0, -1.0]]
        """
        each = [-1, *[1] * (inputs.ndim - 2)]
        mean, deviation = (constant.astype(np.float32).reshape(each) for constant in self.constants)
        return np.asarray((inputs - mean) / deviation)


class GroupNorm(Transform):
    """Mean zero and variance one within each group of a record's own channels."""

    name: Literal["group_norm"]
    groups: Count

    def output_shape(self, shape: Shape) -> Shape:
        """Return the same shape, if the groups divide the channels."""
        if shape[0] % self.groups:
            raise ValueError(f"{self.groups} groups do not divide {shape[0]} channels")
        return shape

    def apply(self, inputs: SingleFloats) -> SingleFloats:
        """Subtract each group's mean, and divide by its standard deviation; a group of equal numbers becomes zeros."""
        grouped = inputs.reshape(len(inputs), self.groups, math.prod(inputs.shape[1:]) // self.groups)
        centred = grouped - grouped.mean(axis=2, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(axis=2, keepdims=True) + np.float32(_SMALLEST_DEVIATION))
        return np.asarray((centred / deviation).reshape(inputs.shape))


def image_shape(name: str, shape: Shape) -> tuple[int, int, int]:
    """Return a shape as [channels, height, width].

    Raises:
        ValueError: it has not three axes; ``name`` is that of the step.
    """
    if len(shape) != 3:
        raise ValueError(f"{name} takes images of shape [channels, height, width]")
    return shape[0], shape[1], shape[2]


_WIDTH = 0.8  # standard deviation of the finest wavelet's envelope, in pixels
_FREQUENCY = 3 * math.pi / 4  # of the finest wavelet, radians a pixel
_IMAGES_A_THREAD = 64


class _Wavelet(NamedTuple):
    """A wavelet of the scattering transform.

    Attributes:
        scale: octaves below the finest one.
        transform: Fourier transform, real, float32, on the padded image's grid.
    """

    scale: int
    transform: SingleFloats


class Scattering(Transform):
    """Scattering features of images: fixed wavelets, moduli, averages over 2^scales pixels (Tramèr and Boneh 2021).

    Averages of the image, of the moduli of its wavelet coefficients, and of the moduli of these:
    [channels * paths, height / 2^scales, width / 2^scales], sizes rounded down. Features are stable to small shifts and
    deformations (Bruna and Mallat 2013); the Morlet wavelets are those of Andén et al. 2020 (kymatio), orders 0 to 2.
    """

    slow = True
    name: Literal["scattering"]
    scales: Annotated[int, Field(ge=1, le=6, strict=True)] = 2
    angles: Annotated[int, Field(ge=1, le=16, strict=True)] = 8

    def output_shape(self, shape: Shape) -> Shape:
        """Return [channels * paths, height / 2^scales, width / 2^scales], sizes rounded down."""
        channels, height, width = image_shape(self.name, shape)
        step = 2**self.scales
        if min(height, width) < step:
            raise ValueError(f"scattering over {self.scales} scales needs images of at least {step} x {step} pixels")
        paths = 1 + self.scales * self.angles + math.comb(self.scales, 2) * self.angles**2
        return channels * paths, height // step, width // step

    def apply(self, inputs: SingleFloats) -> SingleFloats:
        """Compute the averages of orders 0, 1 and 2 of each image, by fast Fourier transforms, some images a thread.

        SciPy's own threads (``workers``) would stay in this process, which may then hang when it forks.
        """
        some = [inputs[first : first + _IMAGES_A_THREAD] for first in range(0, len(inputs), _IMAGES_A_THREAD)]
        if len(some) <= 1:
            return self._averages(inputs)
        with ThreadPoolExecutor() as pool:
            return np.concatenate(list(pool.map(self._averages, some)))

    def _averages(self, inputs: SingleFloats) -> SingleFloats:
        """Compute the averages in this thread."""
        channels, height, width = self.output_shape(inputs.shape[1:])
        step = 2**self.scales
        padding = [(step, step + -size % step) for size in inputs.shape[2:]]
        padded = np.pad(inputs, [(0, 0), (0, 0), *padding], mode="reflect")
        low, wavelets = _scattering_filters(padded.shape[2], padded.shape[3], self.scales, self.angles)
        signal = scipy.fft.fft2(padded)
        averages, second = [_local_mean(signal, low, self.scales)], []
        for wavelet in wavelets:
            modulus = _wavelet_modulus(signal, wavelet, 0)
            averages.append(_local_mean(modulus, low, self.scales))
            for finer in (other for other in wavelets if other.scale > wavelet.scale):
                second.append(_local_mean(_wavelet_modulus(modulus, finer, wavelet.scale), low, self.scales))
        features = np.stack(averages + second, axis=2)[..., 1 : 1 + height, 1 : 1 + width]
        return np.ascontiguousarray(features.reshape(len(inputs), channels, height, width))


def _wavelet_modulus(signal: NDArray[np.complex64], wavelet: _Wavelet, sampled: int) -> NDArray[np.complex64]:
    """Compute the Fourier transform of |signal * wavelet|, sampled every 2^scale pixels.

    Args:
        signal: Fourier transform of an image that is sampled every 2^sampled pixels.
        wavelet: with its scale.
        sampled: octaves.
    """
    band = signal * _coarse_filter(wavelet.transform, sampled)
    coefficients = scipy.fft.ifft2(_downsample_spectrum(band, wavelet.scale - sampled))
    return np.asarray(scipy.fft.fft2(np.abs(coefficients)))


def _local_mean(signal: NDArray[np.complex64], low: SingleFloats, scales: int) -> SingleFloats:
    """Compute the signal's local mean, sampled every 2^scales pixels."""
    sampled = round(math.log2(low.shape[0] / signal.shape[-2]))
    band = _downsample_spectrum(signal * _coarse_filter(low, sampled), scales - sampled)
    return np.asarray(scipy.fft.ifft2(band).real)


def _downsample_spectrum(signal: NDArray[np.complex64], octaves: int) -> NDArray[np.complex64]:
    """Compute the Fourier transform of a signal sampled every 2^octaves pixels: the mean of its aliases."""
    if octaves == 0:
        return signal
    step = 2**octaves
    *outer, height, width = signal.shape
    return np.asarray(signal.reshape(*outer, step, height // step, step, width // step).mean(axis=(-4, -2)))


def _coarse_filter(filter_: SingleFloats, octaves: int) -> SingleFloats:
    """Compute the filter for signals sampled every 2^octaves pixels: the sum of its aliases."""
    step, (height, width) = 2**octaves, filter_.shape
    return np.asarray(filter_.reshape(step, height // step, step, width // step).sum(axis=(0, 2)))


@cache
def _scattering_filters(height: int, width: int, scales: int, angles: int) -> tuple[SingleFloats, list[_Wavelet]]:
    """Compute the averaging filter and the wavelets, finest first, for padded images of a size."""
    grid = height, width
    low = _gabor_wavelet(grid, _WIDTH * 2 ** (scales - 1), 0.0, 0.0, 1.0)
    wavelets = []
    for scale, angle in product(range(scales), range(angles)):
        theta = (angles - angles // 2 - 1 - angle) * math.pi / angles
        width_, frequency, slant = _WIDTH * 2**scale, _FREQUENCY / 2**scale, 4 / angles
        wave, envelope = (_gabor_wavelet(grid, width_, theta, f, slant) for f in (frequency, 0.0))
        # A wavelet has mean zero: subtract the mean of the modulated envelope.
        morlet = wave - wave.sum() / envelope.sum() * envelope
        wavelets.append(_Wavelet(scale, scipy.fft.fft2(morlet).real.astype(np.float32)))
    return scipy.fft.fft2(low).real.astype(np.float32), wavelets


def _gabor_wavelet(
    grid: tuple[int, int], width: float, theta: float, frequency: float, slant: float
) -> NDArray[np.complex128]:
    """Compute a plane wave under a Gaussian of mass one, wrapped around the grid, complex128 [height, width].

    Args:
        grid: height and width, in pixels.
        width: standard deviation of the Gaussian along the wave, in pixels; across it is ``width / slant``.
        theta: direction of the wave, in radians.
        frequency: of the wave, in radians a pixel.
        slant: ratio of the two deviations.
    """
    height, width_ = grid
    rotation = np.array([[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]])
    curvature = rotation @ np.diag([1.0, slant**2]) @ rotation.T / (2 * width**2)
    total = np.zeros(grid, dtype=np.complex128)
    for down, right in product(range(-2, 3), repeat=2):
        y, x = np.mgrid[down * height : (down + 1) * height, right * width_ : (right + 1) * width_]
        exponent = -(curvature[0, 0] * y**2 + 2 * curvature[0, 1] * y * x + curvature[1, 1] * x**2)
        total += np.exp(exponent + 1j * frequency * (y * math.cos(theta) + x * math.sin(theta)))
    return np.asarray(total / (2 * math.pi * width**2 / slant))


IMAGES = 6000  # enough for a thousand components of some thousand features
_MOST_SHAPES = 8  # an image


class Whiten(Transform):
    """Principal components of the preceding features, as random shapes have them, each divided by its deviation.

    Features whose variances differ by orders of magnitude take many steps along the weak ones, and each step pays for
    noise. Mehta et al. 2022 ("Differentially private image classification from features") release a noisy covariance.
    Random shapes on an empty background have a similar covariance to pictures of objects, at no cost.
    """

    slow = True
    same_everywhere = False  # linear algebra of another machine may find other components
    name: Literal["whiten"]
    components: Count = 1000
    # Added to each component's variance, as a share of all variance; another number: of older versions.
    damping: Annotated[Positive, SkipJsonSchema()] = 1e-3

    def output_shape(self, shape: Shape) -> Shape:
        """Return [components], if images have at least so many features."""
        features = math.prod(image_shape(self.name, shape))
        most = min(features, IMAGES)
        if self.components > most:
            raise ValueError(f"{self.components} components of {features} features; expected: at most {most}")
        return (self.components,)

    def prepared(self, before: Function, input_shape: Shape) -> Function:
        """Find the components of the preceding features of random shapes, and return the projection on them.

        The projection is a matrix product of blocks of one size, so a record's result depends on no other record.
        """
        images = shapes(IMAGES, image_shape(self.name, input_shape))
        step = 250
        blocks = [before(images[start : start + step]) for start in range(0, IMAGES, step)]
        values = np.concatenate([block.reshape(len(block), -1) for block in blocks])
        mean = values.mean(0)
        values -= mean
        variances, vectors = _principal_components(values, self.components)
        floor = self.damping * float(np.square(values).sum(1).mean())
        directions = np.ascontiguousarray(vectors / np.sqrt(variances + floor), dtype=np.float32)

        def whitened(inputs: SingleFloats) -> SingleFloats:
            rows = inputs.reshape(len(inputs), len(mean)) - mean
            # A matrix product rounds by its shape: that of a last block would tell how many records others have.
            whole = np.resize(rows, (max(len(rows), BLOCK), len(mean)))
            return np.asarray((whole @ directions)[: len(rows)])

        return whitened


def _principal_components(values: SingleFloats, components: int) -> tuple[SingleFloats, SingleFloats]:
    """Compute the largest variances of centred values, and their directions.

    Args:
        values: float32 [records, features], of mean zero.
        components: how many.

    Returns:
        Variances [components], descending; and directions [features, components].
    """
    records, features = values.shape  # the smaller of the two matrices of scalar products has the same eigenvalues
    products = (values.T @ values if features <= records else values @ values.T) / np.float32(records)
    last = len(products) - 1
    variances, vectors = scipy.linalg.eigh(products, subset_by_index=[last + 1 - components, last], overwrite_a=True)
    variances, vectors = variances[::-1].clip(np.finfo(np.float32).eps * variances[-1]), vectors[:, ::-1]
    return variances, vectors if features <= records else values.T @ (vectors / np.sqrt(records * variances))


def shapes(count: int, shape: tuple[int, int, int]) -> SingleFloats:
    """Draw images of up to eight ellipses and rectangles about the middle of an empty background, plain or striped.

    They are always the same ones: float32 [count, channels, height, width] in [0, 1].
    """
    generator = rng.public_stream(0, "shapes", *shape)
    channels, height, width = shape
    images = np.zeros((count, *shape), dtype=np.float32)
    shown = generator.integers(1, _MOST_SHAPES + 1, count)
    for number in range(_MOST_SHAPES):
        inside, stripes = _draw_shape(generator, count, height, width)
        grey = generator.random((count, channels, 1, 1)).astype(np.float32)
        seen = inside & (number < shown)[:, None, None]
        np.copyto(images, (grey * stripes[:, None]).clip(0, 1), where=seen[:, None])
    return images


def _draw_shape(
    generator: np.random.Generator, count: int, height: int, width: int
) -> tuple[NDArray[np.bool_], SingleFloats]:
    """Draw which pixels are in a shape, and its stripes, both [count, height, width]."""

    def uniform(low: float, high: float) -> SingleFloats:
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


TRANSFORMS: tuple[type[Transform], ...] = (Standardise, Scattering, GroupNorm, Whiten)
"""The core's own transforms, in the order of messages."""
