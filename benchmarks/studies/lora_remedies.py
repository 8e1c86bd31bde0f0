"""What published remedies against noise on both factors of LoRA are worth, on the people of the task ``factors``.

    python -m benchmarks.studies.lora_remedies [TASK[:SCHEME,SCHEME] ...]    resumes; 20 minutes on one core
    python -m benchmarks.studies.lora_remedies --show                        the table of the stored results

- ``products`` (FedPower, arXiv 2605.08443): clients train both factors, and their update is the change of the product,
  clipped over all layers as one vector. The server keeps the best model of rank 4. Noise is on the sum of the products
  (``svd``), or on both multiplications of a power iteration (``power``).
- ``own`` (SDFLoRA, arXiv 2601.11219): a second adapter stays with its person. The score is the mean over people, on a
  fourth of each one's own texts, at the rate that was best for ``factors``, whose test set has the texts of others.

All else is as in ``benchmarks.studies.federations``: every run is a line of
``benchmarks/studies/lora_remedies.jsonl``, and the table is in docs/research/federations.md.
"""

import argparse
import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

import fedamp
from benchmarks.record import ROOT, put_in
from benchmarks.studies import federations
from benchmarks.studies.adapters import NEAR, near
from benchmarks.studies.federation_tasks import TASKS, Scheme, Sections, _lora
from benchmarks.studies.federations import Bench, Cell, Run
from benchmarks.training import at_hand
from fedamp import rng
from fedamp.base.arrays import Arrays, State, Sums
from fedamp.base.files import cache_folder
from fedamp.client.stacks import StackBatches
from fedamp.client.training import StackTrainer, TrainedStack
from fedamp.data.texts import CHARACTERS
from fedamp.extensions.adapters.transformers import from_transformers
from fedamp.federation.losses import form_of
from fedamp.federation.optimizers import AVERAGE
from fedamp.federation.scenario import Scenario
from fedamp.models.model import Model
from fedamp.noise import Deviations, HiddenUniforms, IndependentGaussian, add_noise
from fedamp.server.setup import RunInputs, prepare

RESULTS, PAGE = Path(__file__).with_suffix(".jsonl"), ROOT / "docs" / "research" / "federations.md"
RANK, FACTORS, OWN = 4, TASKS["factors"], cache_folder() / "federations" / "own-texts"


# --- FedPower: clients train factors, and their products are added ----------------------------------------------------


@cache
def adapted() -> tuple[nn.Module, list[str], float]:
    """The network with adapters that start at zero behind orthonormal public factors, their layers, and their scale."""
    near()
    network = from_transformers(Model(**_lora(RANK, NEAR, factors="frozen")), CHARACTERS).requires_grad_(False)
    layers: dict[str, Any] = {name: each for name, each in network.named_modules() if hasattr(each, "lora_A")}
    return network, list(layers), next(iter(layers.values())).scaling["default"]


class Products(nn.Module):
    """The parameters are changes of the layers' weights, each [inputs, outputs] as GPT-2 has them; they start at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.names = [f"{layer}.base_layer.weight" for layer in adapted()[1]]
        self.changes = nn.ParameterList(torch.zeros_like(adapted()[0].get_parameter(name)) for name in self.names)

    def forward(self, inputs: Tensor) -> Tensor:
        network = adapted()[0]
        changed = {n: network.get_parameter(n) + each for n, each in zip(self.names, self.changes, strict=True)}
        logits: Tensor = functional_call(network, changed, (inputs,))
        return logits


class Factored(StackTrainer):
    """Trains the factors of the changes that a client receives, A orthonormal, and answers with changes."""

    def run(
        self, start: dict[str, Tensor], batches: StackBatches, seeds: NDArray[np.void], *others: Any, **more: Any
    ) -> TrainedStack:
        network, layers, scale = adapted()
        factors = {}
        for layer, change in zip(layers, start.values(), strict=True):
            left, values, right = torch.linalg.svd(change, full_matrices=False)
            first, last = (f"{layer}.lora_{side}.default.weight" for side in "AB")
            factors[first] = left[:, :RANK].T.contiguous() if change.any() else network.get_parameter(first)
            factors[last] = (values[:RANK, None] * right[:RANK]).T.contiguous() / scale

        def forward(own: dict[str, Tensor], inputs: Tensor) -> Tensor:
            return functional_call(network, own, (inputs,))  # type: ignore[no-any-return]

        inner = StackTrainer(forward, self.config, self.device, self.loss, self.rate)
        trained = inner.run(factors, batches, seeds)
        after = [(factors[name] + each).transpose(1, 2) for name, each in trained.updates.items()]
        products = (scale * first @ last for first, last in zip(after[::2], after[1::2], strict=True))
        updates = {name: each - start[name] for name, each in zip(start, products, strict=True)}
        return TrainedStack(updates, trained.losses, trained.records)


class PowerIteration(IndependentGaussian):
    """A sum S becomes (S Q) Q^T of rank 4: Q is an orthonormal basis of S^T P, and both products have noise.

    P, orthonormal, is of the model that the clients received. Both releases are Gaussian, and see a client through an
    orthonormal matrix that is public by then, so its share of them is no longer than its update. With noise of sqrt(2)
    deviations each they cost what S with one deviation costs.
    """

    basis: Arrays

    def update(
        self, sums: Sums, deviation_of: Deviations, hidden: HiddenUniforms, state: State, seed: int, round_: int
    ) -> State:
        larger = {name: math.sqrt(2) * each for name, each in deviation_of.items()}
        sketch = {name: np.ascontiguousarray(each.T @ self.basis[name]) for name, each in sums.items()}
        add_noise(sketch, larger, hidden, seed, 2 * round_)
        found = {name: np.linalg.qr(each)[0] for name, each in sketch.items()}
        back = {name: np.ascontiguousarray(each @ found[name]) for name, each in sums.items()}
        add_noise(back, larger, hidden, seed, 2 * round_ + 1)
        for name, each in sums.items():
            each[...] = back[name] @ found[name].T
        return state


def of_rank(changes: Arrays) -> tuple[Arrays, Arrays]:
    """The best changes of rank 4, and orthonormal bases of their inputs."""
    found, bases = {}, {}
    for name, each in changes.items():
        left, values, right = np.linalg.svd(each.astype(np.float64), full_matrices=False)
        bases[name] = left[:, :RANK]
        found[name] = ((left[:, :RANK] * values[:RANK]) @ right[:RANK]).astype(np.float32)
    return found, bases


def refactorised(prepared: RunInputs, scheme: str) -> dict[bool, tuple[float, float]]:
    """Scores as of :func:`benchmarks.studies.federations.train`, of models of rank 4."""
    noise = PowerIteration()
    if scheme == "power":
        prepared = replace(prepared, pipeline=replace(prepared.pipeline, noise=noise))
    strategy = prepared.strategy(prepared.state)
    network, layers, _ = adapted()
    given = (network.get_parameter(f"{layer}.lora_A.default.weight").T.double().numpy() for layer in layers)
    noise.basis = dict(zip(strategy.state.parameters, given, strict=True))

    def project(round_: int) -> None:
        state = strategy.state
        parameters, noise.basis = of_rank(state.parameters)
        # The average is of what clients receive.
        weight = np.float32(1 - min(prepared.plan.scenario.server.averaging, round_ / (round_ + 9)))
        average = {
            name: each + weight * (parameters[name] - state.parameters[name])
            for name, each in state.moments[AVERAGE].items()
        }
        strategy.state = replace(state, parameters=parameters, moments={**state.moments, AVERAGE: average})

    with patch("fedamp.client.worker.StackTrainer", Factored):
        federations.played(strategy, project)
    models = of_rank(strategy.state.model)[0], strategy.state.parameters
    (average, last), tested = (
        [prepared.evaluate(model, records).score for model in models]
        for records in (prepared.validation, prepared.test)
    )
    return {True: (average, last), False: (tested[0], tested[1])}


# --- SDFLoRA: an adapter that stays with its person -------------------------------------------------------------------


class Two(nn.Module):
    """A shared adapter, and one whose parameters have ``private`` in their names."""

    def __init__(self) -> None:
        super().__init__()
        self.shared: Any = from_transformers(Model(**_lora(RANK, NEAR)), CHARACTERS)
        self.shared.network.add_adapter("private", self.shared.network.peft_config["default"])
        self.shared.network.base_model.set_adapter(["default", "private"])

    def forward(self, inputs: Tensor) -> Tensor:
        return self.shared(inputs)  # type: ignore[no-any-return]


def own_texts(tuning: bool) -> Sections:
    """Data whose test records are every fourth text of each person, sixteen at most."""
    near()
    if not (OWN / "train.json").exists():
        source = at_hand("descriptions")
        seen, split = Counter[str](), {"test": list[str](), "train": list[str]()}
        for line in (source / "train.json").read_text().splitlines(keepends=True):
            seen[author := json.loads(line)["author"]] += 1
            split["test" if seen[author] % 4 == 0 and seen[author] <= 64 else "train"].append(line)
        OWN.mkdir(parents=True, exist_ok=True)
        for name, lines in split.items():
            (OWN / f"{name}.json").write_text("".join(lines))
    return {"name": "descriptions", "length": 32, "path": str(OWN), "test_is_public": True}


@cache
def own_run(scenario: str) -> Any:
    """A run, kept: it is scored as it is, and after further steps."""
    return fedamp.run(Scenario.model_validate_json(scenario), out=f"{tempfile.mkdtemp(prefix='fedamp-own-')}/run")


def own_scores(scenario: Scenario, after: bool) -> dict[bool, tuple[float, float]]:
    """Mean accuracy of people on their own texts, of those with an even number (True) and an odd one.

    ``after``: each person has trained the released model as in one more check-in, and sends nothing.
    """
    run = own_run(scenario.model_dump_json())
    found = run.by_client()
    score = np.array(list(_after(scenario, run.model(), found.clients))) if after else found.score
    means = [float(np.mean(score[found.clients % 2 == parity])) for parity in (1, 0)]
    return {even: (means[even], means[even]) for even in (False, True)}


def _after(scenario: Scenario, model: nn.Module, people: NDArray[np.int64]) -> Iterator[float]:
    prepared = prepare(scenario)
    dataset = scenario.data.load(prepared.task.data_seed, Path(), form_of(scenario.client, scenario.model))
    (inputs, labels), owners = dataset.test(), dataset.test_clients
    start = {name: value.detach() for name, value in model.named_parameters()}
    trainer = StackTrainer(prepared.pieces(0, 1).forward, scenario.client, loss=prepared.loss)
    for some in np.array_split(people, -(-len(people) // 32)):
        updates = trainer.train(start, dataset.gather(some), rng.client_seeds(scenario.seed, "after", 0, some)).updates
        for place, person in enumerate(some):
            own = {name: (value + updates[name][place]).numpy() for name, value in start.items()}
            yield prepared.evaluate(own, (inputs[owners == person], labels[owners == person])).score


# --- what is measured, and shown --------------------------------------------------------------------------------------


def _model(name: str, **sections: Any) -> Sections:
    return {"model": {"name": f"benchmarks.studies.lora_remedies:{name}", "vocabulary": CHARACTERS, **sections}}


SCHEMES = {
    "products": {
        "svd": Scheme("products, the best model of rank 4", _model("Products")),
        "power": Scheme("products, noisy power iteration", _model("Products")),
    },
    "own": {
        "shared": Scheme("own texts: both factors", {}),
        "private": Scheme("own texts: both factors, and a private adapter", _model("Two", local=["private"])),
        "after": Scheme("own texts: both factors, and two own steps after the run", {}),
    },
}
SENT = {"svd": "393 kB"}  # the others send factors of rank 4, or as many numbers


class Remedies(Bench):
    """With trainings that a scenario cannot tell."""

    def train(self, cell: Cell, rate: int, seed: int, tuning: bool, noise: float) -> dict[bool, tuple[float, float]]:
        scenario = cell.to_run(tuning, rate, seed, noise)
        if cell.task == "own":
            return own_scores(scenario, cell.scheme == "after")
        return refactorised(prepare(scenario), cell.scheme)


def table(runs: list[Run]) -> str:
    """In Markdown, with what a device receives of models, and sends."""
    found, lines = federations.tested(runs), ["| | ε = 2 | seeds | received | sent |", "| --- |" + " --- |" * 4]
    for task, schemes in SCHEMES.items():
        for name, scheme in schemes.items():
            if values := found.get(Cell(task, name, FACTORS.epsilons[0])):
                score = f"{federations._spread(values)} | {len(values)}"
                lines.append(f"| {scheme.words} | {score} | 32.8 kB | {SENT.get(name, '32.8 kB')} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, print, and put the table in its place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, schemes in SCHEMES.items():
        data = own_texts if name == "own" else FACTORS.data
        TASKS[name] = replace(FACTORS, schemes=schemes, data=data, validation=name != "own")
    parser.add_argument("cells", nargs="*", metavar="TASK[:SCHEME,SCHEME]", help="default: all")
    parser.add_argument("--show", action="store_true", help="the table of what there is; measures nothing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    bench = Remedies(RESULTS, False)
    for cell in federations.named([] if asked.show else asked.cells or SCHEMES):
        rate = 4 if cell.task == "own" else bench.best_rate(cell, 4)
        for seed in FACTORS.seeds:
            bench.run(cell, rate, seed, False)
    put_in(PAGE, "federations: remedies", table(bench.runs))


if __name__ == "__main__":
    main()
