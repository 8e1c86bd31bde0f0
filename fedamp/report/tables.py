"""The closing table of a run."""

import math
from pathlib import Path

from rich.table import Table

from fedamp.numbers import at_most
from fedamp.runs.folder import read_summary


def run_table(folder: Path) -> Table:
    """What a run came to: quality, cost, work, and how long it took."""
    summary = read_summary(folder)
    epsilon, plain = summary.epsilon.upper, summary.unamplified_epsilon.upper
    table = Table(title=f"{summary.name}: {_ending(summary.stopped_because)}", show_header=False)
    accuracy, loss = summary.final.accuracy, summary.final.loss
    if accuracy is not None:
        table.add_row("accuracy", f"{accuracy:.2%} on the public test set (loss {loss:.3f})")
    if math.isinf(epsilon):
        table.add_row("privacy", "none: no noise was added")
    else:
        table.add_row("epsilon", f"{at_most(epsilon, 3)} at delta = {summary.delta:g}")
        table.add_row("without amplification", f"{at_most(plain, 3)} for the whole run")
        table.add_row("noise multiplier", f"{summary.noise_multiplier:.4g}")
    clients, seconds = summary.clients_trained, summary.wall_seconds
    table.add_row("rounds", str(summary.rounds_completed))
    table.add_row("clients trained", f"{clients:,} ({clients / max(seconds, 1e-9):,.0f} a second)")
    share = summary.cost.parameters_share
    if share < 1:
        table.add_row("sent to a client", f"{share:.0%} of the model; {summary.cost.flops_share:.0%} of the work")
    start = summary.startup_seconds
    table.add_row("time", f"{seconds:.1f} s" + (f", and {start:.1f} s to start" if start >= 0.1 else ""))
    return table


def _ending(stopped_because: str) -> str:
    return {
        "finished": "finished",
        "budget": "stopped before the round that would have exceeded the budget",
        "interrupted": "interrupted",
        "failed": "failed",
    }[stopped_because]
