"""Table 1 of Dong, Chen, Özgür 2025 (amplification by model partitioning) on two halves of Fashion-MNIST.

The paper's protocol: half of the data is public and has 8 of the 10 classes; a residual network is trained on it
without privacy until it is right about 70 % of the time on all ten. Then it is fine-tuned on the other half, all ten
classes, with every record protected at (8, 1e-5), Poisson sampling at rate 0.1, the first and last blocks in every
submodel and the blocks in the middle split. The paper does so with ResNet-101 on CIFAR-10 for 1,000 rounds; here it is
a fully connected residual network of twelve blocks, eight of them split, on scattering features, for 50 rounds. The
paper names no learning rate; every method has its best power of two, by the accuracy of one more seed on public
records that nobody trains on, and both neighbours of it are worse.

baseline       split in 3 or 8 submodels, noise as if it were not hidden who trains which
amplification  the same training, noise for what it really costs; "balanced" is not in the paper
relaxation     nobody's computer is small: everybody trains the whole network
"""

import copy
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
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
from benchmarks.papers.record import RESULTS, Comparison, Kept
from benchmarks.training import Labelled, best_power, fashion_mnist, train
from fedamp.accounting import Compose, Gaussian, Poisson, Repeat, calibrate
from fedamp.models.masks import Masks
from fedamp.models.units import Blocks
from fedamp.plan import make_plan
from fedamp.scenario import Scenario, scenario_file

EPSILON, DELTA, RATE, ROUNDS = 8.0, 1e-5, 0.1, 50
SEEDS, TUNING = (1, 2, 3, 4, 5), 0  # the seed of the trainings that choose learning rates
CLASSES, UNKNOWN, HELD_OUT = 10, 2, 0.1  # share of the public half, to stop the first training and to tune
FEATURES = ({"name": "scattering", "scales": 3, "angles": 2}, {"name": "group_norm", "groups": 19})
WIDTH, BLOCKS, SCALE = 16, 12, 0.1
WHOLE = (0, 1, 10, 11)  # blocks that are in every submodel
SHARED = ["stem", "output", *(f"blocks.{index}" for index in WHOLE)]
FIRST_POWER, MOMENTUM, CLIP = -3, 0.9, 1.0
PAPER = "Dong, Chen, Özgür 2025"
TRAININGS = RESULTS / "partitioning-table-1.jsonl"


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


def make_folder(folder: Path, training: Labelled, test: Labelled, seed: int) -> float:
    """Private training records, test records, and a public model that knows the last 8 classes; gives its accuracy."""
    (inputs, labels), half = training, len(training[1]) // 2
    order = np.random.default_rng(seed).permutation(len(labels))
    private, checked, public = np.split(order, [half, half + round(HELD_OUT * half)])
    public = public[labels[public] >= UNKNOWN]
    records = {"train": (inputs[private], labels[private]), "test": test}
    if seed == TUNING:
        records["test"] = inputs[checked], labels[checked]
    for name, (x, y) in records.items():
        np.savez(folder / f"{name}.npz", x=x, y=y)
    parameters, accuracy = pre_train((inputs[public], labels[public]), (inputs[checked], labels[checked]), seed)
    save_file(parameters, folder / "public.safetensors")
    return accuracy


def pre_train(public: Labelled, checked: Labelled, seed: int) -> tuple[dict[str, NDArray[np.float32]], float]:
    """Without privacy, until 70 % of the records to check it on (all ten classes) are right.

    Blocks that will be split are left out at random (stochastic depth), so that the others do not rely on them.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    module = Residual(public[0].shape[1:], CLASSES)
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
                accuracy = (module(torch.from_numpy(checked[0])).argmax(1).numpy() == checked[1]).mean()
            if accuracy >= 0.7:
                break
    return {name: value.detach().numpy() for name, value in module.named_parameters()}, float(accuracy)


# --- private fine-tuning ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FineTuning:
    """One private training of a method, at a learning rate of 2^power."""

    method: Method
    power: int = FIRST_POWER
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
            "engine": {"clients_per_batch": 600},
            "client": {"learning_rate": 1.0},
            "server": {"learning_rate": 2.0**tuning.power, "momentum": MOMENTUM},
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
    return make_plan(scenario_of(tuning, Path(), 0, "auto"), units=30_000).noise_multiplier


def fine_tune(tuning: FineTuning, folder: Path, seed: int) -> tuple[float, float]:
    """Private training from the public model: accuracy in percent, and a unit's share of the whole model's work."""
    outcome = train(scenario_of(tuning, folder, seed, noise_multiplier(tuning.method, tuning.rounds)))
    return 100 * outcome.accuracy, outcome.flops_share


# --- the table -------------------------------------------------------------------------------------------------------


class Halves:
    """The trainings so far, and those that are made when they are asked for; data are read only then."""

    def __init__(self, scratch: Path) -> None:
        self._scratch, self._kept = scratch, Kept(TRAININGS)

    def result(self, method: Method, power: int, seed: int) -> dict[str, Any]:
        """Accuracies in percent before and after, and a unit's share of the whole model's work."""
        tuning = FineTuning(method, power)

        def made() -> dict[str, Any]:
            folder, before = self._folder(seed)
            after, work = fine_tune(tuning, folder, seed)
            noise = noise_multiplier(method, tuning.rounds)
            return {"noise_multiplier": noise, "before": before, "accuracy": after, "work": work}

        return self._kept.get({**asdict(tuning), "seed": seed}, made)

    def best(self, method: Method, start: int) -> int:
        """Of the rates, by the trainings on records to tune with."""
        return best_power(lambda power: self.result(method, power, TUNING)["accuracy"], start)

    @cache  # noqa: B019  lives as long as the table is made
    def _folder(self, seed: int) -> tuple[Path, float]:
        folder = self._scratch / str(seed)
        folder.mkdir()
        return folder, 100 * make_folder(folder, *fashion_mnist(FEATURES), seed)


def table_1(path: Path) -> Sequence[Comparison]:
    """Noise and accuracy of fine-tuning with 3 and 8 submodels at (8, 1e-5), on two halves of Fashion-MNIST."""
    with tempfile.TemporaryDirectory() as scratch:
        halves, power = Halves(Path(scratch)), FIRST_POWER
        best = {method: (power := halves.best(method, power)) for method in METHODS}
        runs: dict[Method, list[dict[str, Any]]] = {method: [] for method in METHODS}
        for seed in SEEDS:  # seed after seed: what is stopped early has all methods
            for method in METHODS:
                runs[method].append(halves.result(method, best[method], seed))
    _draw(runs, path)
    before = float(np.mean([run["before"] for run in runs[METHODS[0]]]))
    public = Comparison("accuracy before, public model, %", 70.0, before, "on public records; 8 of 10 classes known")
    return [*_noise_numbers(), public, *(_accuracy(method, best[method], runs[method]) for method in METHODS)]


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


def _accuracy(method: Method, power: int, runs: list[dict[str, Any]]) -> Comparison:
    # The relaxation's clipping norm is that of both parts together.
    noise = runs[0]["noise_multiplier"] * (2**0.5 if method.name == "relaxation" else 1)
    values = [run["accuracy"] for run in runs]
    spread = f"± {np.std(values, ddof=1):.2f}, {len(values)} seeds"
    remark = f"{spread}; noise {noise:.2f}, learning rate {2.0**power:g}, {runs[0]['work']:.0%} of the work"
    return Comparison(f"accuracy, {method}, %", method.published, float(np.mean(values)), remark)


def _draw(runs: dict[Method, list[dict[str, Any]]], path: Path) -> None:
    """The mean of every method with its seeds; the paper's accuracies, of other data, on an axis of their own."""
    figure, (axes, theirs) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained", sharey=True)
    figure.suptitle(f"{PAPER}, Table 1", fontsize=11)
    for row, (method, each) in enumerate(runs.items()):
        values = [run["accuracy"] for run in each]
        axes.plot(values, [row] * len(values), color="0.5", linestyle="none", marker="|", markersize=12)
        axes.plot(np.mean(values), row, color="black", linestyle="none", marker="o", markersize=9)
        theirs.plot(method.published or math.nan, row, color="0.5", linestyle="none", marker="x", markersize=9)
    axes.set(yticks=range(len(runs)), yticklabels=[str(method) for method in runs], title="here: Fashion-MNIST")
    theirs.set(title="paper: CIFAR-10, ResNet-101")
    axes.invert_yaxis()
    for panel in (axes, theirs):
        panel.set_xlabel("accuracy, %")
        make_readable(panel)
    labels = ["fedamp, each seed", "fedamp, mean", "paper"]
    figure.legend([*axes.lines[:2], theirs.lines[0]], labels, loc="outside lower center", ncols=3, fontsize=9)
    save(figure, path)
