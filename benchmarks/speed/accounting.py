"""The accountant beside its peers: width of the bracket on epsilon, and seconds, in one run on one machine.

``python -m benchmarks.speed.accounting [--quick] [--only PART] [--out FILE]``. A peer that is not installed is left
out, with a note. Every answer has a time limit; one that runs into it counts with the limit as its time, so that the
ratio is then too small.
"""

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

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
HIGHEST_ORDER = 256
PARTS = ("questions", "allocation", "hidden_rounds", "composition", "orders", "table_1_noise")
HIDDEN_ROUNDS_LIMIT = 600.0  # plain Monte Carlo takes half a minute of two cores
TABLE_1 = {1: 3.31, 3: 2.72, 8: 2.49}
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
        "orders": lambda: compare_orders(20 if options.quick else 50, limit),
        "table_1_noise": table_1_noise,
    }
    if options.quick and options.only is None:
        del parts["hidden_rounds"], parts["questions"]  # plain Monte Carlo has no quick answer
    known = json.loads(options.out.read_text()) if options.only else {}
    figures = known | {"versions": versions(), "limit_seconds": limit}
    figures |= {name: measure() for name, measure in parts.items() if options.only in (None, name)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=2) + "\n")
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
    _print_table(
        "Random allocation, k of t hidden rounds (for k > 1: k times 1 of t / k, as the peers evaluate it)",
        ("t", "k", "sigma", "delta", "who", "lower", "upper", "relative width", "seconds"),
        rows,
    )
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
    _print_table(
        "Poisson-sampled Gaussian composition (dp-accounting on the coarsest grid that is not looser than fedamp)",
        (
            "q",
            "sigma",
            "t",
            "delta",
            "lower",
            "upper",
            "relative width",
            "seconds",
            "dp-acc. upper",
            "grid",
            "seconds",
            "ratio",
        ),
        rows,
    )
    mean = geometric_mean([figure["ratio"] for figure in figures if figure["ratio"]])
    if mean is not None:
        print(f"fedamp takes {mean:.2f} times dp-accounting's seconds (geometric mean), and gives a lower end as well")
    return {"settings": figures, "geometric_mean_ratio": mean}


def compare_orders(peer_highest: int, limit: float) -> dict[str, Any]:
    """All Rényi orders of 1 of a million rounds; the peer sums over integer partitions and gets lower orders only."""
    question = {"noise_multiplier": 1.0, "rounds": 1_000_000}
    figures: dict[str, Any] = {}
    for contender, highest in zip(accountants.ORDERS, (HIGHEST_ORDER, peer_highest), strict=True):
        with Stopwatch(contender, limit) as watch:
            figures[contender.name] = {"highest_order": highest} | asdict(watch.ask(**question, highest=highest))
    _print_table(
        f"Rényi divergences of 1 of {question['rounds']} rounds, noise multiplier 1",
        ("who", "orders", "seconds"),
        [(name, f"2 to {f['highest_order']}", f["problem"] or f"{f['seconds']:.3f}") for name, f in figures.items()],
    )
    return figures


def table_1_noise() -> dict[str, Any]:
    """The noise that Dong, Chen, Özgür 2025, Table 1 needs for (8, 1e-5): published, by their formula, and the best."""
    figures = {}
    for count, published in TABLE_1.items():
        formula = _smallest_noise(partial(_loose_epsilon, count))
        best = _smallest_noise(partial(_best_epsilon, count))
        figures[str(count)] = {"published": published, "formula": formula, "fedamp": best}
    _print_table_1(figures)
    return figures


def versions() -> dict[str, str]:
    """Of the interpreter and of every package in the comparison."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def geometric_mean(values: Sequence[float]) -> float | None:
    """None if there are no values."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _print_table_1(figures: dict[str, Any]) -> None:
    _print_table(
        "Noise multipliers of Dong, Chen, Özgür 2025, Table 1 (rate 0.1, 1000 steps, epsilon 8, delta 1e-5)",
        ("submodels", "published", "their formula", "fedamp"),
        [(count, f"{f['published']}", f"{f['formula']:.3f}", f"{f['fedamp']:.3f}") for count, f in figures.items()],
    )


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


def _best_epsilon(count: int, noise_multiplier: float) -> float:
    return accountants.table_1_epsilon(noise_multiplier, count, 1e-5)[1]


def _loose_epsilon(count: int, noise_multiplier: float) -> float:
    from fedamp.accounting import Compose, Gaussian, Poisson, Submodels, epsilon_from_rdp

    orders, part = range(2, 101), Gaussian(noise_multiplier)
    round_ = Poisson(Compose((part, Submodels(part, count))), 0.1)
    return epsilon_from_rdp(orders, 1000 * round_.rdp(orders), 1e-5, "loose")


def _smallest_noise(epsilon_of: Callable[[float], float]) -> float:
    """By bisection, to 1e-3, on the safe side of epsilon 8."""
    low, high = 1.0, 6.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(middle) > 8 else (low, middle)
    return high


def _bracket_cells(timed: Timed) -> tuple[str, str, str, str]:
    if timed.answer is None:
        return "", timed.problem, "", f"{timed.seconds:.3f}"
    lower, upper = timed.answer
    return f"{lower:.6g}", f"{upper:.6g}", f"{(upper - lower) / upper:.1e}", f"{timed.seconds:.3f}"


def _times(ratio: float | None) -> str:
    return "(no comparison)" if ratio is None else f"{ratio:.3g} times"


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n{title}")
    table = Table(box=box.SIMPLE)
    for column in columns:
        table.add_column(column, justify="left" if column == "who" else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
