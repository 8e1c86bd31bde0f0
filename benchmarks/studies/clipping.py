"""``clip: auto`` beside the best of a grid of fixed norms, on fourteen small tasks.

``python -m benchmarks.studies.clipping`` takes about ten minutes on one core. A task's row goes to
``benchmarks/studies/clipping.jsonl`` when it is measured, so that a cut loses no row, and all of them go to the table
of ``docs/research/schemes.md``. One seed decides little: a test set of 360 digits has a standard error of two points.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

import fedamp
from benchmarks.record import ROOT, Kept, put_in, table
from fedamp.federation import reader
from fedamp.federation.plan import make_plan, privacy_units
from fedamp.federation.scenario import Scenario

RESULTS, PAGE = Path(__file__).with_suffix(".jsonl"), ROOT / "docs" / "research" / "schemes.md"
NORMS, SEEDS = (0.25, 0.5, 1.0, 2.0, 4.0), (0, 1, 2)
QUICK = (15, 3, {"steps": 5, "learning_rate": 0.5})
SLOW = (15, 3, {"steps": 5, "learning_rate": 0.1})


class Convolution(nn.Module):
    """A convolution and two layers, 725 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.hidden, self.output = nn.Conv2d(1, 4, 3, 2, 1), nn.Linear(64, 9), nn.Linear(9, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        seen = self.seen(inputs.reshape(-1, 1, 8, 8)).relu()
        return self.output(self.hidden(seen.flatten(1)).tanh())  # type: ignore[no-any-return]


class Normed(nn.Module):
    """A hidden layer with LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.output = nn.Linear(64, 32), nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.norm(self.hidden(inputs.flatten(1))).relu())  # type: ignore[no-any-return]


def digits(
    model: dict[str, Any], how: tuple[int, int, dict[str, Any]], server: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A federation of 250 people with digits, at epsilon 8."""
    rounds, k, client = how
    return {
        "name": "clipping",
        "data": {"name": "digits", "clients": 250, "shape": [1, 8, 8]},
        "model": model,
        "rounds": rounds,
        "check_in": {"scheme": "balanced", "k": k},
        "client": client,
        "server": server or {},
        "privacy": {"clip": "auto", "epsilon": 8, "delta": 1e-5, "precision": 0.05},
    }


CNN, OWN = {"name": "cnn", "channels": [4, 8]}, {"name": "benchmarks.studies.clipping:Convolution"}
TASKS: dict[str, dict[str, Any]] = {
    "digits": {},
    "baseline": {},
    "disjoint-3": {},
    "dropout": {},
    "cnn, rate 0.5": digits(CNN, QUICK),
    "cnn, rate 0.1": digits(CNN, SLOW),
    "cnn, server rate 2": digits(CNN, QUICK, {"learning_rate": 2.0}),
    "cnn, momentum 0.8": digits(CNN, QUICK, {"momentum": 0.8}),
    "cnn, momentum 0.9": digits(CNN, QUICK, {"momentum": 0.9}),
    "cnn, one step of 0.1": digits(CNN, (15, 3, {"steps": 1, "learning_rate": 0.1})),
    "custom convolution, rate 0.5": digits(OWN, QUICK),
    "custom convolution, rate 0.1": digits(OWN, SLOW),
    "custom LayerNorm": digits(
        {"name": "benchmarks.studies.clipping:Normed"}, (20, 4, {"steps": 3, "learning_rate": 0.2})
    ),
    "logistic": digits({"name": "logistic"}, (10, 3, {"steps": 3, "learning_rate": 0.2})),
}


def scenario(name: str, clip: str | float, seed: int) -> Scenario:
    """A task with another norm and seed, evaluated after its last round."""
    raw = TASKS[name] or reader.load(name).model_dump(mode="json")
    raw = {**raw, "seed": seed, "known_seed": True, "engine": {"kind": "serial"}}
    raw |= {"privacy": {**raw["privacy"], "clip": clip}, "federation": {"evaluate_every": raw["rounds"]}}
    return reader.validate_scenario(raw, name)


def accuracy(name: str, clip: str | float) -> float:
    """Mean accuracy over the seeds in percent."""
    found = []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            run = fedamp.run(scenario(name, clip, seed), out=Path(folder) / "run", anyway=True)
            found.append(100 * float(run.rounds[-1].accuracy or 0.0))
    return float(np.mean(found))


def row(kept: Kept, name: str) -> dict[str, Any]:
    """A task's row of the table; it is measured again if ``auto`` chooses another norm than the stored row has."""
    asked = scenario(name, "auto", SEEDS[0])
    norm = make_plan(asked, privacy_units(asked)).parts[-1].clip

    def measured() -> dict[str, Any]:
        auto = accuracy(name, "auto")
        best, fixed = max((accuracy(name, clip), clip) for clip in NORMS)
        return {"auto": f"{auto:.1f}", "best fixed": f"{best:.1f}", "that norm": fixed, "gain": f"{auto - best:+.1f}"}

    found = kept.get({"task": name, "seeds": len(SEEDS), "norm": norm}, measured)
    return {"task": name, "auto": found["auto"], "its norm": norm, **found}


def main() -> None:
    """Measure every task that is not stored, and write the table."""
    kept = Kept(RESULTS)
    put_in(PAGE, "numbers: clipping", table([row(kept, name) for name in TASKS]))


if __name__ == "__main__":
    main()
