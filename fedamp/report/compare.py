"""Several runs side by side: a table and pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedamp.errors import RunFolderError
from fedamp.report import style
from fedamp.report.comparison_plots import comparison_pictures
from fedamp.report.numbers import amount_of_bytes, amount_of_time, at_most
from fedamp.report.runs import Run, read_runs


def compare_runs(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """What ``fedamp compare --json`` prints; the pictures are drawn into ``out``.

    Raises:
        RunFolderError: a run folder is missing, damaged or given twice, or ``out`` cannot be written to.
    """
    runs = read_runs(folders)
    try:
        out.mkdir(parents=True, exist_ok=True)
        files = [style.save(figure, out / f"{name}.png") for name, figure in comparison_pictures(runs).items()]
    except OSError as error:
        raise RunFolderError(f"{out}: pictures cannot be written there ({error.strerror})") from None
    return {"runs": [_facts(run) for run in runs], "cautions": cautions(runs), "plots": [str(file) for file in files]}


def comparison_table(answer: dict[str, Any]) -> RenderableType:
    """The comparison as a person reads it, at 80 columns."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold")
    headings = ("accuracy", "epsilon", "not\namplified", "rounds", "bytes per\ncheck-in", "time per\ncheck-in")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for run in answer["runs"]:
        table.add_row(
            run["name"],
            "" if run["accuracy"] is None else f"{run['accuracy']:.1%}",
            at_most(run["epsilon"]["upper"]),
            at_most(run["unamplified_epsilon_upper"]),
            str(run["rounds_completed"]),
            amount_of_bytes(run["bytes_per_check_in"]),
            amount_of_time(run["seconds_per_check_in"]),
        )
    lines = [Text(f"caution: {caution}") for caution in answer["cautions"]]
    return Group(table, *lines)


def cautions(runs: Sequence[Run]) -> list[str]:
    """Why the numbers of these runs may not be held against each other; empty where they may."""
    promises = {
        "deltas": {f"{run.ledger['delta']:g}" for run in runs if run.is_private},
        "units of privacy": {str(run.ledger["unit"]) for run in runs if run.is_private},
        "group sizes": {str(run.ledger["group_size"]) for run in runs if run.is_private},
        "adjacencies": {str(run.ledger["adjacency"]) for run in runs if run.is_private},
    }
    found = [f"the runs have different {what} ({', '.join(sorted(v))})" for what, v in promises.items() if len(v) > 1]
    if len({run.scenario.data.model_dump_json() for run in runs}) > 1:
        found.append("the runs were made on different data")
    unfinished = [run.name for run in runs if run.summary["stopped_because"] in ("interrupted", "failed")]
    if unfinished:
        found.append(f"not finished: {', '.join(unfinished)}")
    return found


def _facts(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": str(run.folder),
        "scenario": run.scenario.name,
        "accuracy": run.summary["final"]["accuracy"],
        "loss": run.summary["final"]["loss"],
        "epsilon": run.summary["epsilon"],
        "unamplified_epsilon_upper": run.unamplified_epsilon,
        "delta": run.ledger["delta"],
        "unit": run.ledger["unit"],
        "adjacency": run.ledger["adjacency"],
        "amplification_charged": run.ledger["amplification_charged"],
        "noise_multiplier": run.summary["noise_multiplier"],
        "mechanism": run.ledger["mechanism_in_words"],
        "rounds_completed": run.summary["rounds_completed"],
        "stopped_because": run.summary["stopped_because"],
        "bytes_per_check_in": run.bytes_per_check_in,
        "seconds_per_check_in": run.seconds_per_check_in,
    }
