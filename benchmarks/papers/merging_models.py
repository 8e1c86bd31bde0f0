"""Models to merge, trained by real runs of ``scenarios/merging.yaml`` on its digits or on other data."""

import itertools
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.papers.merging_portfolio import Array
from fedamp import rng
from fedamp.data.builtin.scikit_learn import DigitsData
from fedamp.federation import reader
from fedamp.server.launch import launch
from fedamp.server.observers import Observer
from fedamp.studies.merging.candidates import Candidates

SEED = 42  # the paper's


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        folder: where it leaves its model and ledger.
        scenario: the name of a shipped one.
        overrides: what differs from the scenario.
        noise_seed: stands for the operating system's, so that runs of one scenario have noise of their own and still
            come out the same again; None: the scenario's.
    """

    folder: Path
    scenario: str
    overrides: tuple[str, ...]
    noise_seed: int | None = None


class _Nobody(Observer):
    """Watches in silence."""

    def started(self, *_: object) -> None: ...
    def round_done(self, *_: object) -> None: ...
    def stopping(self) -> None: ...


def train(job: Job) -> Path:
    """Train one model, in this process and on one thread."""
    torch.set_num_threads(1)
    known = f"known_seed={job.noise_seed is None}".lower()
    scenario = reader.load(job.scenario, (*job.overrides, f"seed={SEED}", known, "engine.kind=serial"))
    seeds = itertools.count((job.noise_seed or 0) << 64)
    with patch.object(rng, "seed_from_system", lambda: next(seeds)):
        return launch(scenario, _Nobody(), job.folder)


def train_all(jobs: Sequence[Job]) -> list[Path]:
    """Train several models, two at a time."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(train, jobs))


def write_halves(folder: Path) -> tuple[Path, Path]:
    """The training digits cut at random into two halves, to train on first without and then with privacy.

    Both come with the public test set that all the figures use.
    """
    digits = DigitsData(name="digits").load(rng.public_seed(SEED, "data"), Path())
    records = digits.by_record().gather(np.arange(digits.num_clients))
    inputs, labels = digits.test()
    order = rng.public_stream(SEED, "halves").permutation(digits.num_clients)
    halves = []
    for name, numbers in zip(("first", "second"), np.array_split(order, 2), strict=True):
        half = folder / name
        half.mkdir()
        np.savez(half / "train.npz", x=records.inputs[numbers, 0], y=records.labels[numbers, 0])
        np.savez(half / "test.npz", x=inputs, y=labels)
        halves.append(half)
    return halves[0], halves[1]


def alone(groups: Sequence[Candidates]) -> Array:
    """Accuracy of every model on the public test set, the mean over groups of the same models; shape (models,)."""
    return np.mean([group.accuracies for group in groups], axis=0)


def combined(groups: Sequence[Candidates], weights: Array) -> Array:
    """Accuracy of their weighted sums, the mean over groups; shape (rows,)."""
    return np.mean(
        [[group.prepared.evaluate(group.combined(row)).score for row in weights] for group in groups], axis=0
    )
