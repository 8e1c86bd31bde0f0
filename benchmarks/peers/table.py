"""The table of the peers, beside fedamp's rows of the same federation."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.peers.bench import FEDERATIONS, PEERS, Run
from benchmarks.record import ROOT, put_in, rows_of
from benchmarks.studies import federations
from fedamp.base.numbers import amount_of_bytes

PAGE = ROOT / "docs" / "research" / "federations.md"
OURS = ("poisson", "balanced", "banded")
COSTS = ("ε = 1, its accountant", "ε = 1, fedamp's", "noise", "bytes", "seconds")
"""The last columns, all of them at epsilon 1."""


def rows(runs: list[Run], task: str = "iid") -> list[str]:
    """A line for each peer that was tested, then fedamp's."""
    about, lines = FEDERATIONS[task], []
    for name, peer in PEERS.items():
        found = [run for run in runs if (run.task, run.peer, run.tuning) == (task, name, False)]
        if at_one := [run for run in found if run.epsilon == 1]:
            bands = " or ".join(map(str, sorted({run.bands for run in found})))
            what = peer.words.format(bands=bands, cohort=about.cohort, clients=about.task.clients)
            accuracies = [[run.accuracy for run in found if run.epsilon == epsilon] for epsilon in about.epsilons]
            spent = f"{at_one[0].own_epsilon:.3g} | {at_one[0].charged_epsilon:.3g}"
            lines.append(_row(f"{peer.tool} {at_one[0].version} | {what}", accuracies, spent, at_one[0].bytes, at_one))
    return lines + ours(task)


def ours(task: str, file: Path = federations.RESULTS) -> list[str]:
    """fedamp's lines, from the results of benchmarks/studies/federations.py."""
    stored = [federations.Run(**row) for row in rows_of(file)]
    tested, lines = federations.tested(stored), []
    for scheme in OURS:
        wanted = (task, scheme, 1, False)
        if at_one := [run for run in stored if (run.task, run.scheme, run.epsilon, run.tuning) == wanted]:
            cells = (federations.Cell(task, scheme, epsilon) for epsilon in FEDERATIONS[task].epsilons)
            accuracies = [[score / 100 for score in tested.get(cell, ())] for cell in cells]
            sent = federations.on_made_up_records(task, scheme).cost.bytes_per_check_in
            lines.append(_row(f"fedamp | {federations.SCHEMES[scheme].words}", accuracies, " | 1", sent, at_one))
    return lines


def _row(
    what: str, accuracies: list[list[float]], spent: str, sent: int, at_one: Sequence[Run | federations.Run]
) -> str:
    seconds = np.median([run.seconds for run in at_one])
    costs = f"{spent} | {at_one[0].noise_multiplier:.3g} | {amount_of_bytes(sent)} | {seconds:.1f}"
    return f"| {what} | {' | '.join(map(spread, accuracies))} | {costs} |"


def spread(accuracies: list[float]) -> str:
    """Mean and standard deviation in per cent, and of how many seeds where it is not all of them."""
    if not accuracies:
        return ""
    values = 100 * np.array(accuracies)
    deviation = f" ± {values.std(ddof=1):.1f}" if len(values) > 1 else ""
    seeds = "" if len(values) == len(federations.TASKS["iid"].seeds) else f" (seeds: {len(values)})"
    return f"{values.mean():.1f}{deviation}{seeds}"


def put_table(runs: list[Run], task: str) -> None:
    """Print it, and put it in its place of the page."""
    heads = ("tool", "what", *(f"ε = {epsilon:g}" for epsilon in FEDERATIONS[task].epsilons), *COSTS)
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads), *rows(runs, task)]
    put_in(PAGE, f"federations: peers, {task}", "\n".join(lines))
