"""DP-SGD and ModelMix for a linear model on fixed features, many trainings at a time, in closed form.

A record's gradient is the product of its error in the classes and its features. So its norm is known without it, and
the sum of clipped gradients is one matrix product, for all trainings together, some ten times faster than training
them one by one. The steps are those of fedamp's rounds (tests/papers/test_modelmix.py compares models).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Records:
    """Features of shape [records, features], the last of them 1 for the intercept; labels from 0 on."""

    features: Floats
    labels: NDArray[np.int64]

    @classmethod
    def of(cls, inputs: Floats, labels: NDArray[np.int64]) -> "Records":
        """From inputs of shape [records, ...]."""
        flat = inputs.reshape(len(inputs), -1)
        return cls(np.hstack([flat, np.ones((len(flat), 1), np.float32)]), labels.ravel())

    def part(self, records: slice) -> "Records":
        return Records(self.features[records], self.labels[records])


@dataclass(frozen=True)
class Sampling:
    """Poisson sampling of records."""

    rounds: int
    rate: float

    def cohort(self, records: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """The records of a round."""
        return np.flatnonzero(generator.random(records) < self.rate)


@dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        clip: norm to which a record's gradient is clipped.
        noise_multiplier: in clipping norms of the summed gradient; 0 trains without privacy.
        gaps: enforced distances of the mixed models in learning rates, each for as many rounds; empty: plain DP-SGD.
        truncation: the paper's p.
    """

    learning_rate: float
    clip: float
    noise_multiplier: float
    gaps: tuple[float, ...] = ()
    truncation: int = 1

    def width(self, round_: int, rounds: int) -> float:
        """The enforced distance of the mixed models in a round, from 1 on."""
        return self.gaps[(round_ - 1) * len(self.gaps) // rounds] * self.learning_rate if self.gaps else 0.0


class Models:
    """The models of several trainings, [features, classes] each, and how they take their steps."""

    def __init__(self, trainings: Sequence[Training], shape: tuple[int, int], sampling: Sampling) -> None:
        self.trainings, self.sampling = trainings, sampling
        self.values: list[Floats] = [np.zeros(shape, np.float32) for _ in trainings]
        self._before = [value.copy() for value in self.values]

    def step(self, sums: Sequence[Floats], expected: float, round_: int, generator: np.random.Generator) -> None:
        """From the sums of clipped gradients; ``expected`` is the size of the cohort over which a mean is taken."""
        for index, training in enumerate(self.trainings):
            current, gradient = self.values[index], sums[index]
            start, width = current, training.width(round_, self.sampling.rounds)
            if width:
                # As fedamp: the two models move about their midpoint to a whole multiple of the width apart.
                apart = np.maximum(np.floor(np.abs(current - self._before[index]) / width), 1)
                uniform = generator.random(current.shape, np.float32) - np.float32(0.5)
                start = (current + self._before[index]) / 2 + (width * apart).astype(np.float32) * uniform
            if training.noise_multiplier:
                noise = generator.standard_normal(gradient.shape, np.float32)
                gradient = gradient + np.float32(training.noise_multiplier * training.clip) * noise
            self._before[index] = current
            self.values[index] = start - np.float32(training.learning_rate / expected) * gradient


def train(trainings: Sequence[Training], records: Records, sampling: Sampling, seed: int) -> list[Floats]:
    """All rounds of all trainings on the same check-ins, each with noise of its own: models [features, classes]."""
    count, features = records.features.shape
    classes = int(records.labels.max()) + 1
    models = Models(trainings, (features, classes), sampling)
    norms = np.sqrt(np.einsum("rf,rf->r", records.features, records.features))
    largest = np.abs(records.features).max(1)
    clips = np.array([training.clip for training in trainings], np.float32)
    for round_ in range(1, sampling.rounds + 1):
        generator = np.random.default_rng((seed, round_))
        cohort = sampling.cohort(count, generator)
        inputs = records.features[cohort]
        errors = errors_of(inputs, records.labels[cohort], models.values)
        lengths = np.sqrt(np.einsum("rmc,rmc->rm", errors, errors)) * norms[cohort, None]
        errors *= np.minimum(1, clips / np.maximum(lengths, np.float32(1e-30)))[:, :, None]
        products = inputs.T @ errors.reshape(len(cohort), -1)
        sums = np.split(products, len(trainings), axis=1)
        for index, training in enumerate(trainings):
            if training.gaps and training.truncation > 1:
                limit = training.clip / training.truncation**0.5
                rows = np.flatnonzero(largest[cohort] * np.abs(errors[:, index]).max(1) > limit)
                sums[index] = sums[index] - excess(inputs[rows], errors[rows, index], limit)
        models.step(sums, sampling.rate * count, round_, generator)
    return models.values


def errors_of(inputs: Floats, labels: NDArray[np.int64], models: Sequence[Floats]) -> Floats:
    """Gradients of the cross-entropy by the logits, shape [records, models, classes]."""
    logits = (inputs @ np.hstack(models)).reshape(len(inputs), len(models), -1)
    chances = np.exp(logits - logits.max(2, keepdims=True))
    chances /= chances.sum(2, keepdims=True)
    chances[np.arange(len(inputs)), :, labels] -= 1
    return np.asarray(chances)


def excess(inputs: Floats, errors: Floats, limit: float) -> Floats:
    """What truncating every coordinate of every gradient at ``limit`` takes off their sum; few coordinates reach it."""
    reached = limit / np.maximum(np.abs(errors).max(1), np.float32(1e-30))
    rows, columns = np.nonzero(np.abs(inputs) > reached[:, None])
    gradients = inputs[rows, columns][:, None] * errors[rows]
    total = np.zeros((inputs.shape[1], errors.shape[1]), np.float32)
    np.add.at(total, columns, gradients - np.clip(gradients, -limit, limit))
    return total


def accuracy(model: Floats, records: Records) -> float:
    """In percent."""
    predicted = (records.features @ model).argmax(1)
    return 100 * float((predicted == records.labels).mean())
