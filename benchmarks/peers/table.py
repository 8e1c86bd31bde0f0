"""The table of the peers, beside fedamp's rows of the same federation."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks import federations
from benchmarks.peers.bench import PEERS, Run
from fedamp.base.numbers import amount_of_bytes

PAGE = Path("docs/federations.md")
SHOWN = (1.0,)
"""Target epsilons of the table; the others are in the results."""
OURS = ("poisson", "balanced", "banded")
HEAD = "| tool | what | accuracy | ε, its accountant | ε, fedamp's | noise | bytes | seconds |"


def rows(runs: Iterable[Run]) -> list[str]:
    """A line for each peer and budget that was tested."""
    tested = [run for run in runs if not run.tuning]
    lines = []
    for epsilon in SHOWN:
        for name, peer in PEERS.items():
            found = [run for run in tested if (run.peer, run.epsilon) == (name, epsilon)]
            if found:
                one = found[0]
                what = peer.words.format(bands=one.bands)
                cost = f"{one.own_epsilon:.3g} | {one.charged_epsilon:.3g} | {one.noise_multiplier:.3g}"
                seconds = np.median([run.seconds for run in found])
                lines.append(
                    f"| {peer.tool} {one.version} | {what} | {spread([run.accuracy for run in found])} | {cost} | "
                    f"{amount_of_bytes(one.bytes)} | {seconds:.1f} |"
                )
        lines += ours(epsilon)
    return lines


def ours(epsilon: float, file: Path = federations.RESULTS) -> list[str]:
    """fedamp's lines at a budget, from the results of benchmarks/federations.py."""
    stored = [federations.Run(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    lines = []
    for scheme in OURS:
        wanted = ("iid", scheme, epsilon, False)
        found = [run for run in stored if (run.task, run.scheme, run.epsilon, run.tuning) == wanted]
        if found:
            words = federations.SCHEMES[scheme].words
            sent = amount_of_bytes(federations.on_made_up_records("iid", scheme).cost.bytes_per_check_in)
            seconds = np.median([run.seconds for run in found])
            lines.append(
                f"| fedamp | {words} | {spread([run.score for run in found])} | | {epsilon:.3g} | "
                f"{found[0].noise_multiplier:.3g} | {sent} | {seconds:.1f} |"
            )
    return lines


def spread(accuracies: list[float]) -> str:
    """Mean and standard deviation in per cent, and of how many seeds where it is not all of them."""
    values = 100 * np.array(accuracies)
    deviation = f" ± {values.std(ddof=1):.1f}" if len(values) > 1 else ""
    seeds = "" if len(values) == len(federations.TASKS["iid"].seeds) else f" (seeds: {len(values)})"
    return f"{values.mean():.1f}{deviation}{seeds}"


def table(runs: list[Run]) -> str:
    """In Markdown."""
    rule = "| --- | --- | --- | --- | --- | --- | --- | --- |"
    return "\n".join([HEAD, rule, *rows(runs)])


def put_table(runs: list[Run], page: Path = PAGE) -> None:
    """Print it, and put it in its place of the page."""
    found = table(runs)
    print(found)
    place = re.compile("(<!-- peers -->\n).*?(<!-- end -->)", re.DOTALL)
    page.write_text(place.sub(lambda marks: f"{marks[1]}{found}\n{marks[2]}", page.read_text()))
