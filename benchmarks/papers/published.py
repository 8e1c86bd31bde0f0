"""Published tables of private image classification by one data holder, and the shipped scenarios beside them.

Test accuracy of ``fashion-mnist-sample`` and ``mnist-sample`` at delta 1e-5, five seeds, three ways to draw batches.
Runs are stored in ``benchmarks/papers/published.jsonl``; one takes about half a minute of one core.
"""

import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import fedamp
from benchmarks.papers import charges
from benchmarks.papers.charges import Charged
from benchmarks.papers.record import RESULTS, Figure
from benchmarks.record import Kept, Row
from fedamp.accounting import Allocation, Gaussian, Mechanism, Poisson, Repeat

RUNS = RESULTS / "published.jsonl"
FASHION, DIGITS = "fashion-mnist-sample", "mnist-sample"
EPSILONS, SEEDS, DELTA = (1.0, 2.0, 3.0), (1, 2, 3, 4, 5), 1e-5
ROUNDS, TIMES = 120, 24  # of both scenarios
RATES = {FASHION: 30.0, DIGITS: 4.0}  # server's learning rate over epsilon; chosen on held-out training records

# Test accuracy in per cent on Fashion-MNIST at delta 1e-5, by epsilon, as printed, and where. Table 2 of
# Fu et al. 2024 has DP-SGD, DPSGD-HF (Tramèr, Boneh 2021), DPIS (Wei et al. 2022) and DPSUR, all run by Fu et al.
FU, TRAMER = "Fu et al. 2024, Table 2", "Tramèr, Boneh 2021, page of their code"
PUBLISHED = {
    "DP-SGD, CNN end to end": (("80.25", "82.63", "84.72"), FU),
    "DP-SGD, CNN end to end, tuned": ((None, None, "86.0"), TRAMER),
    "DP-SGD, CNN on scattering features": (("85.54", "87.96", "89.01"), FU),
    "DP-SGD, CNN on scattering features, tuned": ((None, None, "89.0"), TRAMER),
    "DP-SGD, linear on scattering features": ((None, None, "89.7"), TRAMER),
    "DPIS (importance sampling)": (("86.25", "88.24", "88.82"), FU),
    "DPSUR (selective release; its charge is doubtful)": (("88.38", "89.34", "89.71"), FU),
}
SCHEMES = {
    "check-in": "balanced",
    "poisson": "Poisson",
    "shuffled": "shuffled, charged as Poisson",
}


def run_at(scheme: str, noise_multiplier: float) -> Mechanism:
    """The charge of a whole training: 24 of 120 hidden rounds, Poisson sampling, or one round in each of 24 epochs."""
    part = Gaussian(noise_multiplier)
    if scheme == "check-in":
        return Allocation(part, TIMES, ROUNDS)
    if scheme == "poisson":
        return Repeat(Poisson(part, TIMES / ROUNDS), ROUNDS)
    return Repeat(Allocation(part, 1, ROUNDS // TIMES), TIMES)


@cache
def noise(scheme: str, epsilon: float) -> Charged:
    """The noise multiplier with which a scheme is said to keep the budget; shuffled batches have that of Poisson."""
    charged = "poisson" if scheme == "shuffled" else scheme
    return charges.noise(lambda s: run_at(charged, s), epsilon, DELTA)


def settings_of(name: str, scheme: str, epsilon: float) -> dict[str, Any]:
    """The scenario's changes."""
    drawn = {
        "check-in": {"scheme": "balanced", "k": TIMES},
        "poisson": {"scheme": "poisson", "rate": TIMES / ROUNDS},
        "shuffled": {"scheme": "stratified", "k": TIMES},
    }
    return {
        "check_in": drawn[scheme],
        "privacy.epsilon": None,
        "privacy.noise_multiplier": float(noise(scheme, epsilon)),
        "server.learning_rate": RATES[name] * epsilon,
    }


def accuracies(name: str, scheme: str, epsilon: float) -> list[float]:
    """In per cent, one a seed; missing runs are trained in this process."""

    def made(seed: int) -> dict[str, Any]:
        how = {"known_seed": True, "engine.kind": "serial", "seed": seed, "federation.evaluate_every": ROUNDS}
        wall, cpu = time.monotonic(), time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            finished = fedamp.run(fedamp.load(name, **settings_of(name, scheme, epsilon), **how), Path(folder) / "run")
        seconds = {"cpu_seconds": round(time.process_time() - cpu, 1), "seconds": round(time.monotonic() - wall, 1)}
        return {"accuracy": finished.accuracy, **seconds}

    kept = Kept(RUNS)
    asked = [{"scenario": name, "scheme": scheme, "epsilon": epsilon, "seed": seed} for seed in SEEDS]
    return [100 * kept.get(each, lambda seed=each["seed"]: made(seed))["accuracy"] for each in asked]


def published(_: Path) -> Sequence[Row]:
    """Test accuracy in per cent on Fashion-MNIST: published rows, and ours last."""
    rows: list[Row] = [
        {"test accuracy, %": words}
        | {f"ε = {epsilon:g}": value for epsilon, value in zip(EPSILONS, values, strict=True)}
        | {"source": source}
        for words, (values, source) in PUBLISHED.items()
    ]
    ours = {f"ε = {epsilon:g}": f"**{_shown(accuracies(FASHION, 'check-in', epsilon))}**" for epsilon in EPSILONS}
    return [*rows, {"test accuracy, %": f"`{FASHION}`"} | ours | {"source": "trained here"}]


def schemes(_: Path) -> Sequence[Row]:
    """Three ways to draw batches at the same budget: noise, the true cost, the cost with balanced noise, accuracy."""
    rows: list[Row] = []
    for epsilon in EPSILONS:
        for scheme, words in SCHEMES.items():
            needed, digits = noise(scheme, epsilon), accuracies(DIGITS, scheme, epsilon)
            balanced = accuracies(DIGITS, "check-in", epsilon)
            ahead = [more - less for more, less in zip(balanced, digits, strict=True)]  # with the same seed
            rows.append(
                {
                    "budget": f"ε = {epsilon:g}",
                    "batches": words,
                    "noise multiplier": needed,
                    "true ε": charges.epsilon(run_at(scheme, needed), DELTA),
                    "ε with balanced noise": charges.epsilon(run_at(scheme, noise("check-in", epsilon)), DELTA),
                    "Fashion-MNIST, %": _shown(accuracies(FASHION, scheme, epsilon)),
                    "MNIST, %": _shown(digits),
                    "balanced ahead, MNIST": None if scheme == "check-in" else _shown(ahead),
                }
            )
    return rows


def _shown(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


FIGURES: Sequence[Figure] = (published, schemes)
