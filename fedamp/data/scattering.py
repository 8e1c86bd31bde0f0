"""The scattering transform of images: fixed wavelet features, stable to small shifts and deformations.

Bruna and Mallat 2013, "Invariant scattering convolution networks", with the Morlet wavelets of Andén et al. 2020
(kymatio), orders 0 to 2.
"""

import math
from functools import cache
from itertools import product
from typing import Annotated, Literal, NamedTuple

import numpy as np
import scipy  # loads its parts on first use
from numpy.typing import NDArray
from pydantic import Field

from fedamp.data.transform import Floats, Shape, Transform, image_shape

_WIDTH = 0.8  # standard deviation of the finest wavelet's envelope, in pixels
_FREQUENCY = 3 * math.pi / 4  # of the finest wavelet, radians a pixel


class _Wavelet(NamedTuple):
    scale: int
    transform: Floats  # Fourier transform, real, on the padded image's grid


class Scattering(Transform):
    """Scattering features of images: fixed wavelets, moduli, averages over 2^scales pixels (Tramèr and Boneh 2021).

    Averages of the image, of the moduli of its wavelet coefficients, and of the moduli of these:
    [channels * paths, height / 2^scales, width / 2^scales], sizes rounded down.
    """

    slow = True
    name: Literal["scattering"]
    scales: Annotated[int, Field(ge=1, le=6, strict=True)] = 2
    angles: Annotated[int, Field(ge=1, le=16, strict=True)] = 8

    def output_shape(self, shape: Shape) -> Shape:
        channels, height, width = image_shape(self.name, shape)
        step = 2**self.scales
        if min(height, width) < step:
            raise ValueError(f"scattering over {self.scales} scales needs images of at least {step} x {step} pixels")
        paths = 1 + self.scales * self.angles + math.comb(self.scales, 2) * self.angles**2
        return channels * paths, height // step, width // step

    def apply(self, inputs: Floats) -> Floats:
        channels, height, width = self.output_shape(inputs.shape[1:])
        step = 2**self.scales
        padding = [(step, step + -size % step) for size in inputs.shape[2:]]
        padded = np.pad(inputs, [(0, 0), (0, 0), *padding], mode="reflect")
        low, wavelets = _filters(padded.shape[2], padded.shape[3], self.scales, self.angles)
        signal = scipy.fft.fft2(padded, workers=-1)
        averages, second = [_average(signal, low, self.scales)], []
        for wavelet in wavelets:
            modulus = _modulus(signal, wavelet, 0)
            averages.append(_average(modulus, low, self.scales))
            for finer in (other for other in wavelets if other.scale > wavelet.scale):
                second.append(_average(_modulus(modulus, finer, wavelet.scale), low, self.scales))
        features = np.stack(averages + second, axis=2)[..., 1 : 1 + height, 1 : 1 + width]
        return np.ascontiguousarray(features.reshape(len(inputs), channels, height, width))


def _modulus(signal: NDArray[np.complex64], wavelet: _Wavelet, sampled: int) -> NDArray[np.complex64]:
    """Fourier transform of |signal * wavelet|, sampled every 2^scale pixels; ``signal`` is sampled every 2^sampled."""
    band = signal * _coarse(wavelet.transform, sampled)
    coefficients = scipy.fft.ifft2(_sample(band, wavelet.scale - sampled), workers=-1)
    return np.asarray(scipy.fft.fft2(np.abs(coefficients), workers=-1))


def _average(signal: NDArray[np.complex64], low: Floats, scales: int) -> Floats:
    """The signal's local mean, sampled every 2^scales pixels."""
    sampled = round(math.log2(low.shape[0] / signal.shape[-2]))
    band = _sample(signal * _coarse(low, sampled), scales - sampled)
    return np.asarray(scipy.fft.ifft2(band, workers=-1).real)


def _sample(signal: NDArray[np.complex64], octaves: int) -> NDArray[np.complex64]:
    """The Fourier transform of a signal sampled every 2^octaves pixels: the mean of its aliases."""
    if octaves == 0:
        return signal
    step = 2**octaves
    *outer, height, width = signal.shape
    return np.asarray(signal.reshape(*outer, step, height // step, step, width // step).mean(axis=(-4, -2)))


def _coarse(filter_: Floats, octaves: int) -> Floats:
    """The filter for signals sampled every 2^octaves pixels: the sum of its aliases."""
    step, (height, width) = 2**octaves, filter_.shape
    return np.asarray(filter_.reshape(step, height // step, step, width // step).sum(axis=(0, 2)))


@cache
def _filters(height: int, width: int, scales: int, angles: int) -> tuple[Floats, list[_Wavelet]]:
    """The averaging filter and the wavelets, finest first."""
    grid = height, width
    low = _gabor(grid, _WIDTH * 2 ** (scales - 1), 0.0, 0.0, 1.0)
    wavelets = []
    for scale, angle in product(range(scales), range(angles)):
        theta = (angles - angles // 2 - 1 - angle) * math.pi / angles
        width_, frequency, slant = _WIDTH * 2**scale, _FREQUENCY / 2**scale, 4 / angles
        wave, envelope = (_gabor(grid, width_, theta, f, slant) for f in (frequency, 0.0))
        # A wavelet has mean zero: subtract the mean of the modulated envelope.
        morlet = wave - wave.sum() / envelope.sum() * envelope
        wavelets.append(_Wavelet(scale, scipy.fft.fft2(morlet).real.astype(np.float32)))
    return scipy.fft.fft2(low).real.astype(np.float32), wavelets


def _gabor(grid: tuple[int, int], width: float, theta: float, frequency: float, slant: float) -> NDArray[np.complex128]:
    """A plane wave, with ``frequency`` in radians a pixel, under a Gaussian of mass one, wrapped around the grid.

    The Gaussian's standard deviation in pixels is ``width`` along the wave, and ``width / slant`` across.
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
