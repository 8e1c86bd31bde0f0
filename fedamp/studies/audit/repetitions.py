"""The same federation many times, each with randomness of its own, and what an adversary reads from its models."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedamp import rng
from fedamp.engines import flower
from fedamp.engines.faults import with_faults
from fedamp.errors import DataError
from fedamp.federation.plan import Plan
from fedamp.server.loop import ask
from fedamp.server.setup import Prepared, prepare
from fedamp.strategies.private import PrivateStrategy
from fedamp.studies.audit.canary import Canary, CanaryGrid, Updates, Vector, flat
from fedamp.studies.audit.subject import Subject

# Shortest update of a canary, over the clipping norm, with which an audit is worth its time.
WEAKEST = 0.5

Progress = Callable[[int], None]


class Federation:
    """The federation that is audited, ready to be played again and again.

    Raises:
        DataError: the canary's update is far from the clipping norm, so that an audit would see little of a leak.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        prepared = prepare(subject.played)
        self._prepared = self._of(prepared, subject.played.seed)
        self._canary = Canary(self._prepared)
        self._grid = CanaryGrid(self._canary.client, subject.canaries)
        self._updates: dict[tuple[int, float], Updates] = {}
        if self.strength < WEAKEST:
            raise DataError(
                f"data: the update of client {self._canary.client}, the canary, is {self.strength:.2g} of the clipping "
                f"norm in some part of the model; expected: at least {WEAKEST:g} (records and a model with a gradient)"
            )

    def evidence(self, repetitions: int, seed: int, progress: Progress = lambda done: None) -> tuple[Vector, Vector]:
        """What the adversary reads with the canary present, and absent, ``repetitions`` times each.

        Args:
            seed: decides the seeds of all repetitions.
            progress: called with the number of finished repetitions.

        Returns:
            Two arrays of shape [repetitions, rounds, choices]: log-likelihood ratios of what a round released, the
            canary taking part in it with this hidden choice (submodel, mask) against not.

        Raises:
            FederationError: the client app failed.
        """
        worlds: list[NDArray[np.float64]] = []
        with flower.chatter_to(Path(os.devnull), "fedamp"):  # thousands of rounds have nothing to say
            for present in (True, False):
                self._grid.present = present
                world = []
                for number in range(repetitions):
                    world.append(self._play(rng.public_seed(seed, f"audit {present} {number}")))
                    progress(len(worlds) * repetitions + number + 1)
                worlds.append(np.array(world))
        return worlds[0], worlds[1]

    @property
    def strength(self) -> float:
        """Length of the canary's update over the clipping norm; 1 where it is as loud as a unit can be."""
        return self._updates_at(1).strength

    def _play(self, seed: int) -> NDArray[np.float64]:
        """One repetition: log-likelihood ratios of shape [rounds, choices]."""
        played = self.subject.played
        strategy = self._of(self._prepared, seed).strategy(self._prepared.state)
        grid = with_faults(self._grid, played.faults)
        return np.stack([self._round(strategy, grid, round_) for round_ in range(1, played.rounds + 1)])

    def _round(self, strategy: PrivateStrategy, grid: Grid, round_: int) -> Vector:
        """Play one round as the server does, without its files, and read what it released."""
        aggregate = ask(strategy, grid, round_)
        release_ = strategy.pipeline.release  # a round below quorum would only be played again
        strategy.state, release = release_(strategy.state, round_, aggregate, needs_quorum=False)
        with np.errstate(all="ignore"):  # what a defect makes infinite is evidence too
            noisy_sum = flat(release.noisy_sums) / release.clip_scale
            return np.nan_to_num(self._updates_at(round_).log_ratios(noisy_sum), nan=np.inf)

    def _updates_at(self, round_: int) -> Updates:
        """The canary's updates, which are the same wherever model, cut and mixing are."""
        plan = self._prepared.plan
        key = plan.submodels.cut_index(round_), plan.mixing.variance(round_)
        if key not in self._updates:
            self._updates[key] = self._canary.updates(round_)
        return self._updates[key]

    def _of(self, prepared: Prepared, seed: int) -> Prepared:
        return replace(prepared, plan=Plan(self.subject.played, self.subject.units, seed))
