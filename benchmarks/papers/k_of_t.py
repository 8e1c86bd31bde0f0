"""The tables of docs/research/k-of-t.md: fedamp's brackets of hidden rounds, computed here, beside measurements of the
peers.

Draws, seconds and the peers' answers are those of ``python -m benchmarks.speed.accounting --only hidden_rounds``.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers import charges
from benchmarks.papers.bounds.partitioning import smallest_noise
from benchmarks.papers.record import Figure
from benchmarks.record import Row
from benchmarks.speed import accounting
from benchmarks.speed.k_of_t import SETTINGS, others
from fedamp.accounting import Allocation, Gaussian, Mechanism, Poisson, Repeat

DELTA = 1e-5
SPLIT = 1200  # points of the law of the split, which is not sampled


def brackets(_: Path) -> Sequence[Row]:
    """The sampled bracket, the split, Poisson sampling, and what the peers answer."""
    measured = json.loads(accounting.RESULTS.read_text())["hidden_rounds"]["settings"]
    rows: list[Row] = []
    for setting, found in zip(SETTINGS, measured, strict=True):
        run = Allocation(Gaussian(setting.noise_multiplier), setting.chosen, setting.rounds)
        sampled = Repeat(Poisson(Gaussian(setting.noise_multiplier), setting.chosen / setting.rounds), setting.rounds)
        words = f"{setting.chosen} of {setting.rounds}, {setting.noise_multiplier:g}, {_power(setting.delta)}"
        row = _bracket("k of T, s, delta", words, run, setting.delta)
        answers = found["answers"]
        rows.append(
            {
                **row,
                "Poisson": charges.epsilon(sampled, setting.delta),
                "PLD_accounting": _upper(answers, "PLD_accounting"),
                "random-allocation": _upper(answers, "random-allocation"),
                "plain, 10^7 draws": _upper(answers, "plain Monte Carlo") or "none",
                "seconds": f"{answers['fedamp, sampled']['answer']['processor_seconds']:.1f}",
            }
        )
    return rows


def compositions(_: Path) -> Sequence[Row]:
    """Prefixes, epochs, other releases, coins, caps and submodels with hidden rounds."""
    return [_bracket("at delta 1e-5", name, run, DELTA) for name, run in others().items()]


def looseness(_: Path) -> Sequence[Row]:
    """How far the split is above the sampled bracket, from little noise to much and from few rounds to many."""
    settings = [(2, 10, 0.15), (2, 10, 0.5), (2, 10, 4.0), (4, 10, 1.0), (5, 10, 0.5), (9, 10, 1.0)]
    settings += [(10, 100, 0.3), (10, 100, 0.5), (10, 100, 1.0), (50, 100, 1.0), (50, 100, 4.0), (4, 1024, 0.6)]
    return [_bracket("k of T, s", f"{k} of {t}, {s:g}", Allocation(Gaussian(s), k, t), DELTA) for k, t, s in settings]


def declining(_: Path) -> Sequence[Row]:
    """10 of 100 rounds at noise 1, with coins that leave rounds or whole runs out."""
    part = Gaussian(1.0)
    runs = {
        "nobody declines (what is charged)": Allocation(part, 10, 100),
        "each round kept by an independent coin of 0.9": Allocation(Poisson(part, 0.9), 10, 100),
        "the whole run kept by one coin of 0.8": Poisson(Allocation(part, 10, 100), 0.8),
    }
    return [_ends("10 of 100, noise 1", words, run, DELTA) for words, run in runs.items()]


def noise_for_8(_: Path) -> Sequence[Row]:
    """The noise multiplier that keeps (8, 1e-5) in 10 of 100 rounds, by sampling and by the split."""
    by_split = smallest_noise(lambda s: Allocation(Gaussian(s), 10, 100).epsilon(DELTA, points=SPLIT).upper, 8.0)
    question = charges.Question(Allocation(Gaussian(by_split), 10, 100), DELTA, 8.0, points=SPLIT)
    return [
        {
            "(8, 1e-5) in 10 of 100 rounds": "noise multiplier",
            "sampled": charges.noise(lambda s: Allocation(Gaussian(s), 10, 100), 8.0, DELTA),
            "the split": charges.Charged(by_split, question),
        }
    ]


def _bracket(heading: str, words: str, run: Mechanism, delta: float) -> Row:
    """Both ends of the bracket, and the upper end without sampling."""
    row = _ends(heading, words, run, delta)
    unsampled = charges.epsilon(run, delta, points=SPLIT)
    upper = row["upper"]
    assert isinstance(upper, float)
    return {**row, "without sampling": unsampled, "more, %": f"{100 * (unsampled / upper - 1):.1f}"}


def _ends(heading: str, words: str, run: Mechanism, delta: float) -> Row:
    lower, upper = (charges.epsilon(run, delta, end=end) for end in ("lower", "upper"))
    return {heading: words, "lower": lower, "upper": upper}


def _upper(answers: dict[str, Any], name: str) -> float | None:
    upper = answers[name]["answer"]["upper"]
    return None if upper is None else float(upper)


def _power(delta: float) -> str:
    return f"{delta:.0e}".replace("e-0", "e-")


FIGURES: Sequence[Figure] = (looseness, declining, brackets, noise_for_8, compositions)
