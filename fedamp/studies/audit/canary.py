"""Canaries: units with real records and real training, present or absent in many repetitions of a federation.

The adversary knows everything about them but their hidden choices, and reads every released model.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.client.worker import TrainInstruction
from fedamp.engines import flower
from fedamp.errors import DataError
from fedamp.studies.audit.federation import PlantedFederation
from fedamp.studies.audit.neighbours import records_of
from fedamp.studies.audit.subject import Subject

Vector = NDArray[np.float64]

WEAKEST = 0.5  # shortest useful update of a canary, over the clipping norm
_CANDIDATES = 1000  # clients to search for one with records
_MASKS = 64  # random masks that stand for all of them (dropout): the adversary averages over these


class _Updates(NamedTuple):
    """The possible updates of a canary in a round: clipped, one for every hidden submodel, or for some masks.

    Attributes:
        whitened: [choices, coordinates], each coordinate over the variance of the noise that hides it.
        energies: [choices], half the squared length of each update in standard deviations of the noise.
        strength: length of the updates over the clipping norm, in the part where it is smallest on average; at most 1.
    """

    whitened: Vector
    energies: Vector
    strength: float


class CanaryFederation:
    """The audited federation, to be played again and again with and without its canaries.

    All canaries hold the records of the first client that has any: units of a group may be alike.

    Raises:
        DataError: no client has records, or the canary's update is too short for an audit to see a leak.
    """

    def __init__(self, subject: Subject) -> None:
        self._rounds, self._canaries = subject.played.rounds, np.arange(subject.canaries)
        self._federation = PlantedFederation(subject.played, subject.units, subject.canaries)
        self._plan, dataset = self._federation.prepared.plan, self._federation.dataset
        filled = np.flatnonzero(dataset.sizes(np.arange(min(_CANDIDATES, dataset.num_clients))))
        if not len(filled):
            raise DataError(f"data: none of the first {_CANDIDATES} clients has records, so none can be a canary")
        self._records = records_of(dataset, int(filled[0]))
        self._updates: dict[tuple[int, float], _Updates] = {}
        self.strength = self._updates_in(1).strength
        if self.strength < WEAKEST:
            raise DataError(
                f"data: the update of client {filled[0]}, the canary, is {self.strength:.2g} of the clipping "
                f"norm in some part of the model; expected: at least {WEAKEST:g} (records and a model with a gradient)"
            )

    def evidence(
        self, repetitions: int, seed: int, progress: Callable[[int], None] = lambda done: None
    ) -> tuple[Vector, Vector]:
        """The evidence of the adversary with the canaries present, and absent; ``seed`` decides all repetitions.

        Returns:
            Two arrays of shape [repetitions, rounds, choices]: log-likelihood ratios of the release of a round, with
            the canary in it under this hidden choice (submodel, mask) against without it.

        Raises:
            FederationError: the client app failed.
        """
        worlds: list[Vector] = []
        with flower.chatter_to(Path(os.devnull), "fedamp"):  # thousands of rounds need no log
            for present in (True, False):
                world = []
                for number in range(repetitions):
                    self._federation.restart(rng.public_seed(seed, f"audit {present} {number}"))
                    with self._federation.planted(self._canaries, self._records if present else None):
                        world.append(np.stack([self._round(round_) for round_ in range(1, self._rounds + 1)]))
                    progress(len(worlds) * repetitions + number + 1)
                worlds.append(np.array(world))
        return worlds[0], worlds[1]

    def _round(self, round_: int) -> Vector:
        """Play a round, and read its release: log-likelihood ratios of shape [choices]."""
        release = self._federation.release(round_, self._federation.collect(round_))
        updates = self._updates_in(round_)
        with np.errstate(all="ignore"):  # infinite values are evidence of a defect too
            noisy_sum = _flat(release.noisy_sums) / release.clip_scale
            return np.nan_to_num(updates.whitened @ noisy_sum - updates.energies, nan=np.inf)

    def _updates_in(self, round_: int) -> _Updates:
        """The possible updates in a round at the initial model, by the client's own code."""
        plan, mixing = self._plan, self._plan.mixing.variance(round_)
        key = plan.submodels.cut_index(round_), mixing
        if key in self._updates:
            return self._updates[key]
        with self._federation.planted(self._canaries, self._records):
            sent = np.stack([self._update(round_, *choice) for choice in plan.submodels.choices(_MASKS)])
        model = self._federation.prepared.pipeline.model
        sizes = [int(np.prod(shape)) for shape in model.shapes.values()]
        part_of = np.repeat([model.part_of[name] for name in model.shapes], sizes)  # by coordinate
        lengths = [np.linalg.norm(sent[:, part_of == i], axis=1) / part.clip for i, part in enumerate(plan.parts)]
        for index, length in enumerate(lengths):  # the adversary assumes correct clipping
            sent[:, part_of == index] /= np.maximum(length, 1.0)[:, None]
        rate = plan.optimizer.learning_rate
        # Each coordinate of the sum is hidden by noise, and by the least that mixing adds.
        variances = [part.noise_deviation**2 + mixing / (rate / part.denominator) ** 2 for part in plan.parts]
        whitened = sent / np.array(variances)[part_of]
        strength = float(min(np.mean(length) for length in lengths))
        self._updates[key] = _Updates(whitened, (whitened * sent).sum(1) / 2, strength)
        return self._updates[key]

    def _update(self, round_: int, seed: bytes, submodel: int) -> Vector:
        instruction = TrainInstruction(round_, [0], [seed], [submodel], [part.clip for part in self._plan.parts])
        sums, _ = self._federation.node.train(self._federation.prepared.state.parameters, instruction)
        return _flat(sums)


def _flat(arrays: Mapping[str, NDArray[Any]]) -> Vector:
    """A model's arrays as one vector."""
    return np.concatenate([array.ravel() for array in arrays.values()], dtype=np.float64)
