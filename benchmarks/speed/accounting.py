"""The accountant beside its peers: width of the bracket on epsilon, and seconds, in one run on one machine.

``python -m benchmarks.speed.accounting [--quick] [--only PART] [--out FILE]``. A peer that is not installed is left
out, with a note. Every answer has a time limit; one that runs into it counts with the limit as its time, so that the
ratio is then too small.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.record import made, store, table
from benchmarks.speed import accountants, k_of_t, questions
from benchmarks.speed.limited import Contender, Stopwatch, Timed

RESULTS = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Allocation:
    """``chosen`` of ``rounds`` hidden rounds, with Gaussian noise."""

    rounds: int
    chosen: int
    noise_multiplier: float
    delta: float


@dataclass(frozen=True)
class Composition:
    """``rounds`` rounds of Poisson sampling at ``rate``, with Gaussian noise."""

    rate: float
    noise_multiplier: float
    rounds: int
    delta: float


ALLOCATIONS = (
    Allocation(10, 1, 1.0, 1e-5),
    Allocation(100, 10, 1.0, 1e-6),
    Allocation(1000, 1, 1.0, 1e-5),
    Allocation(10, 5, 2.0, 1e-5),
    Allocation(100, 1, 0.3, 1e-4),
    Allocation(100, 50, 4.0, 1e-8),
    Allocation(1000, 10, 0.5, 1e-10),
    Allocation(1000, 500, 4.0, 1e-6),
    Allocation(10_000, 1, 2.0, 1e-8),
    Allocation(10_000, 100, 1.0, 1e-6),
    Allocation(100_000, 1, 0.5, 1e-7),
    Allocation(1_000_000, 1, 1.0, 1e-10),
)
COMPOSITIONS = (
    Composition(0.01, 1.0, 1000, 1e-5),
    Composition(0.1, 3.0, 1000, 1e-5),
    Composition(0.001, 0.6, 10_000, 1e-6),
    Composition(1.0, 20.0, 100, 1e-8),
    Composition(0.02, 1.2, 5000, 1e-10),
)
INTERVALS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
QUICK = 3
PARTS = ("questions", "allocation", "hidden_rounds", "composition")
HIDDEN_ROUNDS_LIMIT = 600.0  # plain Monte Carlo takes half a minute of two cores
PACKAGES = ("fedamp", "numpy", "scipy", "numba", "dp-accounting", "PLD_accounting", "random-allocation")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description="The accountant beside its peers.")
    parser.add_argument("--quick", action="store_true", help="a few settings, in about a minute")
    parser.add_argument("--only", choices=PARTS, help="one part; the other figures of the file stay as they are")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the figures go (JSON)")
    options = parser.parse_args(arguments)
    some = QUICK if options.quick else None
    limit = 8.0 if options.quick else 45.0
    parts: dict[str, Callable[[], Any]] = {
        "questions": questions.measure,
        "allocation": lambda: compare_allocations(ALLOCATIONS[:some], limit),
        "hidden_rounds": lambda: k_of_t.compare(HIDDEN_ROUNDS_LIMIT),
        "composition": lambda: compare_compositions(COMPOSITIONS[:some], limit),
    }
    if options.quick and options.only is None:
        del parts["hidden_rounds"], parts["questions"]  # plain Monte Carlo has no quick answer
    known = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    figures = known | {"versions": versions(), "limit_seconds": limit}
    figures |= {name: made() | measure() for name, measure in parts.items() if options.only in (None, name)}
    store(options.out, figures)
    print(f"\nFigures: {options.out}")


def compare_allocations(settings: Sequence[Allocation], limit: float) -> dict[str, Any]:
    """Bracket and seconds of everybody on every setting, with geometric means of the ratios to fedamp."""
    answers = _ask_everybody(accountants.ALLOCATION, [asdict(setting) for setting in settings], limit)
    rows = []
    for i, setting in enumerate(settings):
        label = (f"{setting.rounds}", f"{setting.chosen}", f"{setting.noise_multiplier:g}", f"{setting.delta:.0e}")
        for name, given in answers.items():
            rows.append((*label, name, *_bracket_cells(given[i])))
            label = ("", "", "", "")
    print("\nRandom allocation, k of t hidden rounds (for k > 1: k times 1 of t / k, as the peers evaluate it)\n")
    columns = ("t", "k", "sigma", "delta", "who", "lower", "upper", "relative width", "seconds")
    print(table([dict(zip(columns, row, strict=True)) for row in rows]))
    ratios = {name: _ratios(answers["fedamp"], given) for name, given in answers.items() if name != "fedamp"}
    for name, ratio in ratios.items():
        print(
            f"Against {name} (geometric means): {_times(ratio['faster'])} faster, {_times(ratio['narrower'])} narrower"
        )
    given_answers = {name: [asdict(timed) for timed in given] for name, given in answers.items()}
    return {"settings": [asdict(setting) for setting in settings], "answers": given_answers, "ratios": ratios}


def compare_compositions(settings: Sequence[Composition], limit: float) -> dict[str, Any]:
    """fedamp beside dp-accounting at the coarsest grid at which that is not looser than fedamp's upper end."""
    ours, peer = accountants.COMPOSITION
    figures, rows = [], []
    with Stopwatch(ours, limit) as our_watch, Stopwatch(peer, limit) as their_watch:
        for setting in settings:
            question = asdict(setting)
            mine = our_watch.ask(**question)
            theirs, interval = _equally_accurate(their_watch, question, mine)
            ratio = mine.seconds / theirs.seconds if theirs.answer is not None else None
            figures.append(
                question
                | {"fedamp": asdict(mine), "dp_accounting": asdict(theirs), "interval": interval, "ratio": ratio}
            )
            label = (f"{setting.rate:g}", f"{setting.noise_multiplier:g}", f"{setting.rounds}", f"{setting.delta:.0e}")
            answer = f"{theirs.answer:.6g}" if theirs.answer is not None else theirs.problem
            beside = (answer, f"{interval:.0e}", f"{theirs.seconds:.3f}", f"{ratio:.2f}" if ratio else "")
            rows.append((*label, *_bracket_cells(mine), *beside))
    print("\nPoisson-sampled Gaussian composition (dp-accounting on the coarsest grid not looser than fedamp)\n")
    columns = ("q", "sigma", "t", "delta", "lower", "upper", "relative width", "seconds", "dp-acc. upper", "grid")
    columns = (*columns, "dp-acc. seconds", "ratio")
    print(table([dict(zip(columns, row, strict=True)) for row in rows]))
    mean = geometric_mean([figure["ratio"] for figure in figures if figure["ratio"]])
    if mean is not None:
        print(f"fedamp takes {mean:.2f} times dp-accounting's seconds (geometric mean), and gives a lower end as well")
    return {"settings": figures, "geometric_mean_ratio": mean}


def versions() -> dict[str, str]:
    """The versions of every package in the comparison."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def geometric_mean(values: Sequence[float]) -> float | None:
    """None if there are no values."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _ask_everybody(
    contenders: Sequence[Contender], questions: Sequence[dict[str, Any]], limit: float
) -> dict[str, list[Timed]]:
    answers = {}
    for contender in contenders:
        if not contender.installed:
            print(f"{contender.name} is not installed and left out")
            continue
        print(f"Asking {contender.name} ...", file=sys.stderr)
        with Stopwatch(contender, limit) as watch:
            answers[contender.name] = [watch.ask(**question) for question in questions]
    return answers


def _ratios(ours: Sequence[Timed], theirs: Sequence[Timed]) -> dict[str, float | None]:
    """Geometric means of their seconds and widths over ours; widths only where both have two ends."""
    pairs = list(zip(ours, theirs, strict=True))
    brackets = [(o.answer, t.answer) for o, t in pairs if o.answer and t.answer and t.answer[0] > 0]
    return {
        "faster": geometric_mean([t.seconds / o.seconds for o, t in pairs]),
        "narrower": geometric_mean([(t[1] - t[0]) / (o[1] - o[0]) for o, t in brackets]),
    }


def _equally_accurate(watch: Stopwatch, question: dict[str, Any], ours: Timed) -> tuple[Timed, float]:
    """The peer's answer on the coarsest grid on which it is not looser than ours, or its last one."""
    timed, interval = Timed(None, 0.0, "no answer"), math.nan
    for interval in INTERVALS:
        timed = watch.ask(**question, interval=interval)
        if timed.answer is None or (ours.answer is not None and timed.answer <= ours.answer[1]):
            break
    return timed, interval


def _bracket_cells(timed: Timed) -> tuple[str, str, str, str]:
    if timed.answer is None:
        return "", timed.problem, "", f"{timed.seconds:.3f}"
    lower, upper = timed.answer
    return f"{lower:.6g}", f"{upper:.6g}", f"{(upper - lower) / upper:.1e}", f"{timed.seconds:.3f}"


def _times(ratio: float | None) -> str:
    return "(no comparison)" if ratio is None else f"{ratio:.3g} times"


if __name__ == "__main__":
    main()
