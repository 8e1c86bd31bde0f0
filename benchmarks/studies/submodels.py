"""Ways to make submodels pay, each beside the cheaper ways that a device of the same bytes or memory has.

    python -m benchmarks.studies.submodels [TASK ...]    resumes; 12 minutes on one core for all of it
    python -m benchmarks.studies.submodels --show        the tables of the stored results

Rates, seeds and tests are as in ``benchmarks.studies.federations``; every run is a line of
``benchmarks/studies/submodels.jsonl``. The tables are in docs/research/papers/partitioning.md.
"""

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.record import ROOT, put_in
from benchmarks.studies import federations
from benchmarks.studies.federation_tasks import (
    CLIENTS,
    DELTA,
    FEDERATION,
    HALF,
    SHAPE,
    TASKS,
    Scheme,
    Sections,
    Task,
    features,
    folders,
)
from benchmarks.studies.federations import Bench, Cell, Run
from fedamp import rng
from fedamp.accounting import Allocation, Compose, Gaussian, Mechanism, Repeat, Submodels, calibrate
from fedamp.base.arrays import State, Sums
from fedamp.federation import reader
from fedamp.federation.losses import CrossEntropy
from fedamp.federation.plan import make_plan, privacy_units
from fedamp.models.units import Units
from fedamp.noise import Deviations, HiddenUniforms, IndependentGaussian
from fedamp.server.setup import RunInputs, prepare
from fedamp.strategies.pipeline import ServerState

RESULTS, PAGE = Path(__file__).with_suffix(".jsonl"), ROOT / "docs" / "research" / "papers" / "partitioning.md"
SEEDS = (1, 2, 3)


# --- models whose submodels are more than narrower networks -----------------------------------------------------------


def reduced(numbers: int, to: int) -> Tensor:
    """A public projection [numbers, to]: orthogonal directions, drawn from no data, that keep lengths on average."""
    drawn = torch.from_numpy(rng.public_stream(0, "projection").normal(size=(numbers, numbers)).astype(np.float32))
    return torch.linalg.qr(drawn)[0][:, :to] * math.sqrt(numbers / to)


class Rescaled(nn.Module):
    """One hidden layer, whose kept nodes count 1/p times as much in a submodel that keeps a share p of them."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, width: int = 32, scale: float = 1.0) -> None:
        super().__init__()
        self.shape, self.classes, self.width, self.scale = input_shape, num_classes, width, scale
        self.hidden, self.kept = nn.Linear(math.prod(input_shape), width), nn.ReLU()
        self.output = nn.Linear(width, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.output(self.scale * self.kept(self.hidden(inputs.flatten(1))))
        return logits

    def units_to_split(self) -> list[Units]:
        return [Units("hidden", self.width, {"hidden.weight": 0, "hidden.bias": 0, "output.weight": 1}, "kept")]

    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> nn.Module:
        width = len(kept["hidden"])
        return Rescaled(self.shape, self.classes, width, self.width / width)


class ByClass(nn.Module):
    """A linear layer whose nodes are classes, on all inputs or on a projection of them (``inputs`` numbers).

    With :class:`OneAgainstRest` no class depends on another one: a submodel trains as it does in the whole model.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, inputs: int = 0, kept: tuple[int, ...] | None = None
    ) -> None:
        super().__init__()
        self.shape, self.classes, self.inputs = input_shape, num_classes, inputs
        (numbers,) = input_shape
        self.project = reduced(numbers, inputs) if inputs else None
        kept = tuple(range(num_classes)) if kept is None else kept
        self.places = [kept.index(each) if each in kept else len(kept) for each in range(num_classes)]
        self.output = nn.Linear(inputs or numbers, len(kept))
        nn.init.zeros_(self.output.weight)
        nn.init.constant_(self.output.bias, -math.log(num_classes - 1))

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.output(inputs if self.project is None else inputs @ self.project)
        return functional.pad(logits, (0, 1))[:, self.places]

    def units_to_split(self) -> list[Units]:
        return [Units("output", self.classes, {"output.weight": 0, "output.bias": 0}, "output")]

    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> nn.Module:
        return ByClass(self.shape, self.classes, self.inputs, kept["output"])


class OneAgainstRest(CrossEntropy):
    """Binary cross-entropy of each class, added up; a class that a submodel lacks has the logit 0, and no gradient."""

    name: ClassVar[str] = "benchmarks.studies.submodels:OneAgainstRest"

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        there = functional.one_hot(labels, outputs.shape[-1]).to(outputs.dtype)
        return functional.binary_cross_entropy_with_logits(outputs, there, reduction="none").sum(-1)


# --- tasks ------------------------------------------------------------------------------------------------------------


IID, LINEAR = features({"scheme": "iid"}), TASKS["sections"]
# Submodels in early rounds and whole models later: (rounds, check-ins in them, submodels).
PHASES = {"early": ((30, 2, 2), (30, 2, 1)), "early-1": ((30, 1, 2), (30, 1, 1))}
TAUGHT = {"narrow-taught": "narrow", "split-taught": "split"}


def split(count: int, **keys: Any) -> Sections:
    return {"submodels": {**HALF, "count": count, **keys}} if count > 1 else {}


def k_of_t(k: int) -> Sections:
    return {"check_in": {"scheme": "balanced", "k": k}}


def perceptron(width: int, count: int = 1, k: int = 12) -> Scheme:
    words = f"{count} submodels of width {width // count}" if count > 1 else f"width {width}"
    return Scheme(f"{words}, {k} of T", {"model": {"name": "mlp", "hidden": [width]}, **k_of_t(k), **split(count)})


def rescaled(count: int) -> Scheme:
    model = {"name": "benchmarks.studies.submodels:Rescaled", "options": {"width": 32}}
    return Scheme(f"{count} submodels of width {32 // count}, rescaled", {"model": model, **split(count)})


def by_class(count: int, inputs: int, k: int) -> Scheme:
    what = f"{count} groups of classes" if count > 1 else f"{inputs} projections" if inputs else "whole model"
    model = {"name": "benchmarks.studies.submodels:ByClass", "options": {"inputs": inputs}}
    return Scheme(f"{what}, {k} of T", {"model": model, **k_of_t(k), **split(count)})


def of_projections(to: int) -> Callable[[bool], Sections]:
    """The data section of so many projections of Fashion-MNIST's features."""
    return lambda tuning: {**IID(tuning), "path": str(_projected(to, tuning))}


@cache
def _projected(to: int, tuning: bool) -> Path:
    source = folders()[tuning]
    folder = source.with_name(f"{source.name}-{to}")
    folder.mkdir(exist_ok=True)
    for file in source.glob("*.npz"):
        with np.load(file) as loaded:
            inputs = loaded["x"].reshape(len(loaded["x"]), -1)
            np.savez(folder / file.name, x=inputs @ reduced(inputs.shape[1], to).numpy(), y=loaded["y"])
    return folder


def tasks() -> dict[str, Task]:
    """By name: uses of submodels, and cheaper ways."""
    # Twice the rounds, in which a submodel trains every other one: memories as long, counted in its own rounds.
    server = {"momentum": math.sqrt(FEDERATION["server"]["momentum"]), "averaging": 0.95}
    in_turn = {"rounds": 2 * FEDERATION["rounds"], "server": server, **k_of_t(1), **split(2, assignment="rolling")}
    iid = {
        "whole": perceptron(32, k=3),
        "narrow": perceptron(16, k=3),
        "wider": perceptron(24, k=2),
        "split": perceptron(32, 2, k=3),
        "split-4": perceptron(32, 4, k=3),
        "rescaled": rescaled(2),
        "rescaled-4": rescaled(4),
        "one-split": perceptron(32, 2, k=1),
        "one-turn": Scheme("2 submodels of width 16 in turn, 1 of 2T", in_turn),
        **{name: Scheme("2 submodels of width 16, then width 32", {}) for name in PHASES},
    }
    iid |= {name: Scheme(f"a student of {iid[of].words}", {}) for name, of in TAUGHT.items()}
    memory = {"16x1": (16, 1), "32x2": (32, 2), "64x4": (64, 4), "8x1": (8, 1), "16x2": (16, 2)}
    memory |= {"4x1": (4, 1), "8x2": (8, 2), "16x4": (16, 4)}
    found = {
        "more": Task("", CLIENTS, FEDERATION, IID, iid, (1.0,), SEEDS, shape=SHAPE),
        "memory": Task(
            "", CLIENTS, FEDERATION, IID, {n: perceptron(*s) for n, s in memory.items()}, (1.0,), SEEDS, shape=SHAPE
        ),
    }
    of_p32 = {"32x1": (32, 1), "64x2": (64, 2), "16x1": (16, 1), "32x2": (32, 2), "64x4": (64, 4)}
    smaller = {
        80: {"32x1": perceptron(32), "k3": perceptron(32, k=3)},
        32: {"k1": perceptron(16, k=1), **{name: perceptron(*sizes) for name, sizes in of_p32.items()}},
    }
    for to, schemes in smaller.items():
        schemes = {key: replace(each, words=f"{to} projections, {each.words}") for key, each in schemes.items()}
        found[f"p{to}"] = Task("", CLIENTS, FEDERATION, of_projections(to), schemes, (1.0,), SEEDS, shape=(to,))
    client = {"steps": 5, "learning_rate": 1.0, "loss": "benchmarks.studies.submodels:OneAgainstRest"}
    ways = ((1, 0, 1), (4, 0, 4), (1, 96, 4))
    linear = {f"{count}-{inputs or 384}-{k}": by_class(count, inputs, k) for count, inputs, k in ways}
    federation = {**LINEAR.federation, "client": client}
    found["classes"] = Task("", LINEAR.clients, federation, LINEAR.data, linear, (1.0,), SEEDS, shape=(384,))
    return found


# --- trainings that a scenario cannot tell ----------------------------------------------------------------------------


class Ways(Bench):
    """With trainings that a scenario cannot tell."""

    def noise(self, cell: Cell) -> float:
        if cell.scheme not in PHASES:
            return super().noise(replace(cell, scheme=TAUGHT.get(cell.scheme, cell.scheme)))

        def charge(noise: float) -> Mechanism:
            release = Gaussian(noise)
            return Compose(
                [
                    Allocation(Submodels(release, count) if count > 1 else release, k, rounds)
                    for rounds, k, count in PHASES[cell.scheme]
                ]
            )

        return calibrate(charge, cell.epsilon, DELTA)

    def train(self, cell: Cell, rate: int, seed: int, tuning: bool, noise: float) -> dict[bool, tuple[float, float]]:
        if cell.scheme in TAUGHT:
            return {tuning: taught(replace(cell, scheme=TAUGHT[cell.scheme]), rate, seed, noise)}
        if cell.scheme == "one-turn":
            prepared = prepare(cell.to_run(tuning, rate, seed, noise))
            prepared = replace(prepared, pipeline=replace(prepared.pipeline, noise=InTurn(prepared)))
            return {tuning: trained(prepared, prepared.state)[1]}
        if cell.scheme not in PHASES:
            return super().train(cell, rate, seed, tuning, noise)
        before, score = None, (0.0, 0.0)
        for number, (rounds, k, count) in enumerate(PHASES[cell.scheme]):
            # as long a step as in one run of all rounds
            whole = replace(cell, scheme="whole").to_run(tuning, rate, seed, noise)
            raw = whole.model_dump(mode="json") | {"rounds": rounds, **k_of_t(k), **split(count)}
            scenario = reader.validate_scenario(raw, cell.scheme)
            plan = replace(make_plan(scenario, privacy_units(scenario)), seed=1000 * number + seed)
            prepared = prepare(scenario, planned=plan)  # the same people, other check-ins and noise
            state = prepared.state if before is None else prepared.pipeline.start(before)
            state, score = trained(prepared, state)
            before = state.parameters
        return {tuning: score}


class InTurn(IndependentGaussian):
    """Noise on the submodel that all units of a round train, and nothing elsewhere, where no unit has a part."""

    def __init__(self, prepared: RunInputs) -> None:
        self.pieces, self.count = prepared.pieces, prepared.plan.submodels.count

    def update(
        self, sums: Sums, deviation_of: Deviations, hidden: HiddenUniforms, state: State, seed: int, round_: int
    ) -> State:
        super().update(sums, deviation_of, hidden, state, seed, round_)
        piece = self.pieces((round_ - 1) % self.count, round_)
        own = piece.extract({name: array.copy() for name, array in sums.items()})
        for array in sums.values():
            array[...] = 0
        piece.embed_add(sums, own)
        return state


def trained(prepared: RunInputs, state: ServerState) -> tuple[ServerState, tuple[float, float]]:
    """The last state, and the scores of the averaged and of the last model."""
    strategy = prepared.strategy(state)
    federations.played(strategy)
    state = strategy.state
    return state, (prepared.evaluate(state.model).score, prepared.evaluate(state.parameters).score)


def taught(cell: Cell, rate: int, seed: int, noise: float) -> tuple[float, float]:
    """Scores of a wide student and of its teacher: half of the test images teach, without labels, and half test."""
    prepared = prepare(cell.to_run(False, rate, seed, noise))
    state, _ = trained(prepared, prepared.state)
    inputs, labels = prepared.test
    public, half = torch.from_numpy(inputs[::2]), (inputs[1::2], labels[1::2])
    module = prepared.module
    module.load_state_dict({name: torch.from_numpy(array) for name, array in state.model.items()})
    with torch.no_grad():
        wanted = module(public).softmax(1)
    torch.manual_seed(seed)
    student = nn.Sequential(nn.Flatten(), nn.Linear(public[0].numel(), 128), nn.ReLU(), nn.Linear(128, wanted.shape[1]))
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    for _ in range(30):
        for batch in torch.randperm(len(public)).split(100):
            optimizer.zero_grad()
            functional.cross_entropy(student(public[batch]), wanted[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        found = student(torch.from_numpy(half[0])).argmax(1).numpy()
    return float((found == half[1]).mean()), prepared.evaluate(state.model, half).score


# --- what is shown ----------------------------------------------------------------------------------------------------


# What is tried, what limits a device, the cells with submodels, and those of cheaper ways: TASK:SCHEME.
_HALF = "more:narrow more:wider p80:k3"
_ONE = "frontier:k1-width16-split1"
ROWS = (
    ("kept nodes rescaled by 1/p in training", "35 kB sent", "more:rescaled more:split", _HALF),
    ("the same", "17.6 kB sent", "more:rescaled-4 more:split-4", _ONE),
    ("submodels in 30 rounds, then whole models in 30", "35 kB sent", "more:early-1", _HALF),
    ("the same", "70 kB sent", "more:early", "more:whole"),
    ("a wide student of the model, by 5,000 public images", "35 kB sent", "more:split-taught", "more:narrow-taught"),
    ("submodels in turn, in rounds of their own", "11.7 kB sent", "more:one-turn more:one-split", _ONE),
    ("no device can train the whole model", "2,922 numbers", "memory:32x2 memory:64x4", "memory:16x1 p80:32x1"),
    ("the same", "1,466 numbers", "memory:16x2 p32:64x2", "memory:8x1 p32:32x1"),
    ("the same", "738 numbers", "memory:8x2 memory:16x4 p32:32x2 p32:64x4", "memory:4x1 p32:16x1"),
    ("one check-in", "3 kB sent", "frontier:k1-width8-split2", "frontier:k1-width4-split1 p32:k1"),
    ("nodes that need no other: a class each", "30.8 kB sent", "classes:4-384-4", "classes:1-384-1 classes:1-96-4"),
    ("ranks of LoRA", "32.8 kB sent", "adapters:split-2", "adapters:narrow"),
)  # fmt: skip


def table(runs: list[Run]) -> str:
    """In Markdown: a row each with the best submodels, and the best cheaper way, by their mean test score."""
    found = federations.tested(runs)

    def best(cells: str) -> str:
        scored = []
        for each in cells.split():
            task, _, scheme = each.partition(":")
            values = found[Cell(task, scheme, TASKS[task].epsilons[0])]
            words = TASKS[task].schemes[scheme].words
            scored.append((np.mean(values), f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}: {words}"))
        return max(scored)[1]

    lines = ["| what is tried | limit of a device | submodels | cheaper way |", "| --- |" + " --- |" * 3]
    return "\n".join(
        [*lines, *(f"| {what} | {limit} | {best(one)} | {best(other)} |" for what, limit, one, other in ROWS)]
    )


def signals(epsilon: float = 1.0) -> str:
    """In Markdown: signal over noise of a coordinate at equal bytes, in per cent of everybody's in each round.

    Of k of T rounds, d submodels and noise multiplier s it is proportional to k / (s sqrt(T d)).
    """
    rounds = FEDERATION["rounds"]

    def signal(k: float, count: int) -> float:
        def charge(noise: float) -> Mechanism:
            release: Mechanism = Submodels(Gaussian(noise), count) if count > 1 else Gaussian(noise)
            return Allocation(release, int(k), rounds) if k < rounds else Repeat(release, rounds)

        return k / math.sqrt(rounds * count) / calibrate(charge, epsilon, DELTA)

    most, sent = signal(rounds, 1), (0.25, 0.5, 1, 2, 4)
    lines = [f"| models sent | {' | '.join(f'{each:g}' for each in sent)} |", "| --- |" + " --- |" * len(sent)]
    for count, words in federations.FAMILIES.items():
        values = [f"{signal(each * count, count) / most:.0%}" if each * count >= 1 else "" for each in sent]
        lines.append(f"| {words} | {' | '.join(values)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, print, and put the tables in their place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    TASKS.update(tasks())
    parser.add_argument("cells", nargs="*", metavar="TASK[:SCHEME,SCHEME]", help="default: all")
    parser.add_argument("--show", action="store_true", help="the tables of what there is; measures nothing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    bench = Ways(RESULTS, False)
    for cell in federations.named([] if asked.show else asked.cells or tasks()):
        measure(bench, cell)
    put_in(PAGE, "federations: signals", signals())
    put_in(PAGE, "federations: submodels", table(bench.runs + Bench(federations.RESULTS, False).runs))


def measure(bench: Ways, cell: Cell) -> None:
    """Tune, or take a teacher's rate, and test with every seed."""
    tuned = replace(cell, scheme=TAUGHT.get(cell.scheme, cell.scheme))
    rate = bench.best_rate(tuned, 9 if cell.task == "classes" else 8)
    for seed in SEEDS:
        bench.run(cell, rate, seed, False)


if __name__ == "__main__":
    main()
