"""Table 1 of Dong, Chen, Özgür 2025 (amplification by model partitioning) on real handwritten digits.

The paper's protocol: half of the data is public and has 8 of the 10 classes; a residual network is trained on it
without privacy until it is right about 70 % of the time on all ten. Then it is fine-tuned on the other half, all ten
classes, with every record protected at (8, 1e-5), Poisson sampling at rate 0.1, the first and last blocks in every
submodel and the blocks in the middle split. The paper does so with ResNet-101 on CIFAR-10 for 1,000 rounds; here it is
a fully connected residual network of twelve blocks, eight of them split, on digits, for 100 rounds. The paper names no
learning rate; every method has its best one of four.

baseline       split in 3 or 8 submodels, noise as if it were not hidden who trains which
amplification  the same training, noise for what it really costs; "balanced" is not in the paper
relaxation     nobody's computer is small: everybody trains the whole network
"""

import copy
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import nn

from benchmarks.accounting import TABLE_1, table_1_noise
from benchmarks.papers.drawing import make_readable, save
from benchmarks.papers.record import Comparison
from benchmarks.training import train
from fedamp.accounting import Compose, Gaussian, Poisson, Repeat, calibrate
from fedamp.data.builtin.digits import DigitsTable
from fedamp.models.masks import Masks
from fedamp.models.units import Blocks
from fedamp.plan import make_plan
from fedamp.scenario import Scenario, scenario_file

EPSILON, DELTA, RATE, ROUNDS, SEEDS = 8.0, 1e-5, 0.1, 100, 3
CLASSES, PUBLIC_CLASSES, PIXELS, TESTS = 10, 8, 64, 359
PRIVATE = (1797 - TESTS) // 2
WIDTH, BLOCKS, SCALE = 16, 12, 0.1
WHOLE = (0, 1, 10, 11)  # blocks that are in every submodel
SHARED = ["stem", "output", *(f"blocks.{index}" for index in WHOLE)]
LEARNING_RATES, MOMENTUM, CLIP = (0.02, 0.03, 0.05, 0.1), 0.9, 1.0
PAPER = "Dong, Chen, Özgür 2025"


@dataclass(frozen=True)
class Method:
    """A line of the table.

    Attributes:
        published: accuracy in percent that the paper has for it.
        balanced: the budget is divided between the shared and the split part, which the paper does not do.
    """

    name: str
    submodels: int
    published: float | None
    balanced: bool = False

    def __str__(self) -> str:
        budget = ", balanced" if self.balanced else ""
        return f"{self.name}, {self.submodels} submodel{'s' * (self.submodels > 1)}{budget}"


METHODS = [
    Method("baseline", 3, 79.80),
    Method("amplification", 3, 82.43),
    Method("amplification", 3, None, balanced=True),
    Method("baseline", 8, 76.80),
    Method("amplification", 8, 80.52),
    Method("amplification", 8, None, balanced=True),
    Method("relaxation", 1, 84.99),
]


class Residual(nn.Module):
    """A residual network on flat images: ``stem``, blocks ``x + branch(x)`` of one hidden layer, ``output``.

    Convolutions would be nearer to the paper, and take an hour of two cores where this takes minutes.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Linear(math.prod(input_shape), WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.output = nn.Linear(WIDTH, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.output(torch.relu(self.blocks(self.stem(inputs.flatten(1)))))

    def units_to_split(self) -> list[Blocks]:
        return [Blocks("blocks", tuple(f"blocks.{name}.branch" for name, _ in self.blocks.named_children()))]

    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> nn.Module:
        result = copy.deepcopy(self)
        for index in set(range(BLOCKS)) - set(kept.get("blocks", range(BLOCKS))):
            delattr(result.blocks, str(index))  # by name: the others keep theirs
        return result


class Block(nn.Module):
    """``x + branch(x)``: without its branch it is the identity."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.branch = nn.Sequential(nn.LayerNorm(WIDTH), first, nn.ReLU(), second)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + SCALE * self.branch(inputs)


# --- data and the public model ---------------------------------------------------------------------------------------


def make_folder(folder: Path, seed: int) -> float:
    """Private training data, test data, and a public model that knows 8 of the 10 classes; gives its accuracy."""
    table = DigitsTable()
    order = np.random.default_rng(seed).permutation(len(table))
    test, private, public = np.split(order, [TESTS, TESTS + PRIVATE])
    public = public[table.labels()[public] < PUBLIC_CLASSES]
    for name, records in (("train", private), ("test", test)):
        np.savez(folder / f"{name}.npz", x=table.read(records), y=table.labels()[records])
    known, checked = ((table.read(part), table.labels()[part]) for part in (public, test))
    parameters, accuracy = pre_train(known, checked, seed)
    save_file(parameters, folder / "public.safetensors")
    return accuracy


def pre_train(
    public: tuple[Any, Any], test: tuple[Any, Any], seed: int
) -> tuple[dict[str, NDArray[np.float32]], float]:
    """Without privacy, until 70 % of the test set (all ten classes) are right.

    Blocks that will be split are left out at random (stochastic depth), so that the others do not rely on them.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    module = Residual((PIXELS,), CLASSES)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    records, targets = (torch.from_numpy(part) for part in public)
    masks, parameters = Masks(module), dict(module.named_parameters())
    accuracy = 0.0
    for step in range(5000):
        batch = torch.randint(len(records), (128,))
        kept = (torch.rand(BLOCKS) < torch.rand(1)).float()
        kept[list(WHOLE)] = 1
        loss = nn.functional.cross_entropy(masks.call(parameters, records[batch], kept), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            with torch.no_grad():
                accuracy = (module(torch.from_numpy(test[0])).argmax(1).numpy() == test[1]).mean()
            if accuracy >= 0.7:
                break
    return {name: value.detach().numpy() for name, value in module.named_parameters()}, float(accuracy)


# --- private fine-tuning ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FineTuning:
    """One private training of a method."""

    method: Method
    learning_rate: float = LEARNING_RATES[0]
    rounds: int = ROUNDS


def scenario_of(tuning: FineTuning, folder: Path, seed: int, noise_multiplier: float | str) -> Scenario:
    """As a scenario."""
    method = tuning.method
    whole = method.name == "relaxation"
    shared_noise = "balanced" if method.balanced else "same"
    split = {"scheme": "disjoint", "count": method.submodels, "shared": SHARED, "shared_noise_multiplier": shared_noise}
    return scenario_file.validate(
        {
            "name": "partitioning",
            "seed": seed,
            "data": {"name": "npz", "path": str(folder)},
            "model": {"name": f"{__name__}:Residual", "initial": str(folder / "public.safetensors")},
            "rounds": tuning.rounds,
            "check_in": {"scheme": "poisson", "rate": RATE},
            "submodels": {"scheme": "none"} if whole else split,
            "client": {"learning_rate": 1.0},
            "server": {"learning_rate": tuning.learning_rate, "momentum": MOMENTUM},
            # Two parts of the same norm, or both together: the same noise on every coordinate at the same cost.
            "privacy": {
                "unit": "sample",
                "clip": CLIP * (2**0.5 if whole else 1.0),
                "noise_multiplier": noise_multiplier,
            }
            | ({"epsilon": EPSILON, "delta": DELTA} if noise_multiplier == "auto" else {}),
        },
        str(method),
    )


@cache
def noise_multiplier(method: Method, rounds: int) -> float:
    """What (8, 1e-5) takes: for the baseline of both parts, each paid in full; else what the scenario's plan says."""
    if method.name == "baseline":
        return calibrate(lambda s: Repeat(Poisson(Compose((Gaussian(s), Gaussian(s))), RATE), rounds), EPSILON, DELTA)
    tuning = FineTuning(method, rounds=rounds)
    return make_plan(scenario_of(tuning, Path(), 0, "auto"), units=PRIVATE).noise_multiplier


def fine_tune(tuning: FineTuning, folder: Path, seed: int) -> tuple[float, float]:
    """Private training from the public model: accuracy in percent, and a unit's share of the whole model's work."""
    outcome = train(scenario_of(tuning, folder, seed, noise_multiplier(tuning.method, tuning.rounds)))
    return 100 * outcome.accuracy, outcome.flops_share


# --- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """Of a fine-tuning: accuracies in percent, shape (seeds,), and a unit's share of the whole model's work."""

    accuracies: NDArray[np.float64]
    work: float


def table_1(path: Path) -> Sequence[Comparison]:
    """Noise and accuracy of fine-tuning with 3 and 8 submodels at (8, 1e-5)."""
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(os.cpu_count()) as pool:
        folders = [Path(name) / str(seed) for seed in range(SEEDS)]
        for folder in folders:
            folder.mkdir()
        public = 100 * np.mean(list(pool.map(make_folder, folders, range(SEEDS))))
        tunings = [FineTuning(method, rate) for method, rate in product(METHODS, LEARNING_RATES)]
        asked = [(tuning, folders[seed], seed) for tuning, seed in product(tunings, range(SEEDS))]
        done = np.array(list(pool.map(fine_tune, *zip(*asked, strict=True)))).reshape(len(tunings), SEEDS, 2)
    results = {
        tuning: Result(accuracies, shares[0])
        for tuning, accuracies, shares in zip(tunings, done[..., 0], done[..., 1], strict=True)
    }
    best = {
        method: max((t for t in tunings if t.method == method), key=lambda t: results[t].accuracies.mean())
        for method in METHODS
    }
    _draw({method: results[tuning].accuracies for method, tuning in best.items()}, float(public), path)
    return [*_noise_numbers(), *(_accuracy(tuning, results[tuning]) for tuning in best.values())]


def _noise_numbers() -> list[Comparison]:
    """At the paper's own 1,000 rounds."""
    users = {1: "baselines and relaxation", 3: "amplification, 3 submodels", 8: "amplification, 8 submodels"}
    noise = table_1_noise()
    return [
        Comparison(
            f"noise of 1,000 rounds, {users[count]}",
            printed,
            noise[str(count)]["formula"],
            f"by the paper's formula; fedamp's law needs {noise[str(count)]['fedamp']:.2f}",
        )
        for count, printed in TABLE_1.items()
    ]


def _accuracy(tuning: FineTuning, result: Result) -> Comparison:
    method = tuning.method
    # The relaxation's clipping norm is that of both parts together.
    noise = noise_multiplier(method, ROUNDS) * (2**0.5 if method.name == "relaxation" else 1)
    seeds = ", ".join(f"{accuracy:.1f}" for accuracy in result.accuracies)
    remark = f"seeds {seeds}; noise {noise:.2f}, learning rate {tuning.learning_rate:g}, {result.work:.0%} of the work"
    return Comparison(f"accuracy, {method}, %", method.published, float(result.accuracies.mean()), remark)


def _draw(accuracies: dict[Method, NDArray[np.float64]], public: float, path: Path) -> None:
    """The mean of every method with its seeds; the paper's accuracies, of other data, on an axis of their own."""
    figure, (axes, theirs) = plt.subplots(
        1, 2, figsize=(12, 4.6), layout="constrained", sharey=True, width_ratios=(3, 2)
    )
    figure.suptitle(f"{PAPER}, Table 1", fontsize=11)
    for row, (method, values) in enumerate(accuracies.items()):
        axes.plot(values, [row] * len(values), color="0.5", linestyle="none", marker="|", markersize=12)
        axes.plot(values.mean(), row, color="black", linestyle="none", marker="o", markersize=9)
        theirs.plot(method.published or math.nan, row, color="0.5", linestyle="none", marker="x", markersize=9)
    axes.axvline(public, color="0.5", linestyle=":")
    axes.set(yticks=range(len(accuracies)), yticklabels=[str(method) for method in accuracies], title="here: digits")
    theirs.set(title="paper: CIFAR-10, ResNet-101")
    axes.invert_yaxis()
    for each in (axes, theirs):
        each.set_xlabel("accuracy, %")
        make_readable(each)
    handles = [*axes.lines[:2], axes.lines[-1], theirs.lines[0]]
    labels = ["fedamp, each seed", "fedamp, mean", "public model, before", "paper"]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9)
    save(figure, path)
