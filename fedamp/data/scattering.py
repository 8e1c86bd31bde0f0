"""The scattering transform of images: fixed wavelet features, stable to small shifts and deformations.

Bruna and Mallat 2013, "Invariant scattering convolution networks", with the Morlet wavelets of Andén et al. 2020
(kymatio), orders 0 to 2. What Tramèr and Boneh 2021 train private linear models on.
"""

import math
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import scipy  # loads its parts when they are first used, which takes longer than to read most data
from numpy.typing import NDArray

_WIDTH = 0.8  # standard deviation of the finest wavelet's envelope, in pixels
_FREQUENCY = 3 * math.pi / 4  # of the finest wavelet, radians a pixel


class _Wavelet(NamedTuple):
    scale: int
    transform: NDArray[np.float32]  # Fourier transform, real, on the padded image's grid


def output_shape(input_shape: tuple[int, int, int], scales: int, angles: int) -> tuple[int, int, int]:
    """(channels * paths, height / 2^scales, width / 2^scales), sizes rounded down.

    Raises:
        ValueError: images smaller than 2^scales.
    """
    channels, height, width = input_shape
    step = 2**scales
    if min(height, width) < step:
        raise ValueError(f"scattering over {scales} scales needs images of at least {step} x {step} pixels")
    paths = 1 + scales * angles + math.comb(scales, 2) * angles**2
    return channels * paths, height // step, width // step


def scattering(images: NDArray[np.float32], scales: int, angles: int) -> NDArray[np.float32]:
    """Averages of the images, of the moduli of their wavelet coefficients, and of the moduli of these.

    Args:
        images: float32 [records, channels, height, width].
        scales: J; features are averaged over, and sampled every, 2^J pixels.
        angles: L, orientations of the wavelets.

    Returns:
        float32 of shape [records, *output_shape].
    """
    records, *shape = images.shape
    channels, height, width = output_shape((shape[0], shape[1], shape[2]), scales, angles)
    step = 2**scales
    padding = [(step, step + -size % step) for size in images.shape[2:]]
    padded = np.pad(images, [(0, 0), (0, 0), *padding], mode="reflect")
    low, wavelets = _filters(padded.shape[2], padded.shape[3], scales, angles)
    signal = scipy.fft.fft2(padded, workers=-1)
    averages = [_average(signal, low, scales)]
    second: list[NDArray[np.float32]] = []
    for wavelet in wavelets:
        modulus = _modulus(signal, wavelet, 0)
        averages.append(_average(modulus, low, scales))
        for finer in (other for other in wavelets if other.scale > wavelet.scale):
            second.append(_average(_modulus(modulus, finer, wavelet.scale), low, scales))
    features = np.stack(averages + second, axis=2)[..., 1 : 1 + height, 1 : 1 + width]
    return np.ascontiguousarray(features.reshape(records, channels, height, width))


def _modulus(signal: NDArray[np.complex64], wavelet: _Wavelet, sampled: int) -> NDArray[np.complex64]:
    """Fourier transform of |signal * wavelet|, sampled every 2^scale pixels; ``signal`` is so every 2^sampled."""
    band = signal * _coarse(wavelet.transform, sampled)
    coefficients = scipy.fft.ifft2(_sample(band, wavelet.scale - sampled), workers=-1)
    moduli: NDArray[np.complex64] = scipy.fft.fft2(np.abs(coefficients), workers=-1)
    return moduli


def _average(signal: NDArray[np.complex64], low: NDArray[np.float32], scales: int) -> NDArray[np.float32]:
    """The signal's local mean, sampled every 2^scales pixels."""
    sampled = round(math.log2(low.shape[0] / signal.shape[-2]))
    band = _sample(signal * _coarse(low, sampled), scales - sampled)
    mean: NDArray[np.float32] = scipy.fft.ifft2(band, workers=-1).real
    return mean


def _sample(signal: NDArray[np.complex64], octaves: int) -> NDArray[np.complex64]:
    """The Fourier transform of a signal of which one pixel in 2^octaves is kept: the mean of its aliases."""
    if octaves == 0:
        return signal
    step = 2**octaves
    *outer, height, width = signal.shape
    aliases = signal.reshape(*outer, step, height // step, step, width // step)
    mean: NDArray[np.complex64] = aliases.mean(axis=(-4, -2))
    return mean


def _coarse(filter_: NDArray[np.float32], octaves: int) -> NDArray[np.float32]:
    """The filter for signals of which one pixel in 2^octaves is kept: the sum of its aliases, which keeps its mass."""
    step = 2**octaves
    height, width = filter_.shape
    total: NDArray[np.float32] = filter_.reshape(step, height // step, step, width // step).sum(axis=(0, 2))
    return total


@cache
def _filters(height: int, width: int, scales: int, angles: int) -> tuple[NDArray[np.float32], list[_Wavelet]]:
    """The averaging filter and the wavelets, finest first."""
    grid = height, width
    low = _gabor(grid, _WIDTH * 2 ** (scales - 1), 0.0, 0.0, 1.0)
    wavelets = []
    for scale, angle in product(range(scales), range(angles)):
        theta = (angles - angles // 2 - 1 - angle) * math.pi / angles
        width_, frequency, slant = _WIDTH * 2**scale, _FREQUENCY / 2**scale, 4 / angles
        wave, envelope = (_gabor(grid, width_, theta, f, slant) for f in (frequency, 0.0))
        # A wavelet has mean zero: what the modulated envelope has of it is taken off.
        morlet = wave - wave.sum() / envelope.sum() * envelope
        wavelets.append(_Wavelet(scale, scipy.fft.fft2(morlet).real.astype(np.float32)))
    return scipy.fft.fft2(low).real.astype(np.float32), wavelets


def _gabor(grid: tuple[int, int], width: float, theta: float, frequency: float, slant: float) -> NDArray[np.complex128]:
    """A plane wave under a Gaussian of mass one, wrapped around the grid.

    Args:
        width: standard deviation along the wave, in pixels; across it is ``width / slant``.
        theta: the wave's direction, in radians.
        frequency: in radians a pixel.
    """
    height, width_ = grid
    rotation = np.array([[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]])
    curvature = rotation @ np.diag([1.0, slant**2]) @ rotation.T / (2 * width**2)
    total = np.zeros(grid, dtype=np.complex128)
    for down, right in product(range(-2, 3), repeat=2):
        y, x = np.mgrid[down * height : (down + 1) * height, right * width_ : (right + 1) * width_]
        exponent = -(curvature[0, 0] * y**2 + 2 * curvature[0, 1] * y * x + curvature[1, 1] * x**2)
        total += np.exp(exponent + 1j * frequency * (y * math.cos(theta) + x * math.sin(theta)))
    normaliser: float = 2 * math.pi * width**2 / slant
    return total / normaliser
