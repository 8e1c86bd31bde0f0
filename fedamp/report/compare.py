"""Several runs, and models merged from runs, side by side: a table and pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedamp.errors import RunFolderError
from fedamp.numbers import amount_of_bytes, amount_of_time, at_most
from fedamp.report import style
from fedamp.report.comparison_plots import comparison_pictures
from fedamp.runs.merged import Merged, Model, read_models
from fedamp.runs.run import Run


def compare_runs(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """What ``fedamp compare --json`` prints; the pictures are drawn into ``out``.

    Raises:
        RunFolderError: a folder is missing, damaged or given twice, or ``out`` cannot be written to.
    """
    models = read_models(folders)
    try:
        out.mkdir(parents=True, exist_ok=True)
        files = [style.save(figure, out / f"{name}.png") for name, figure in comparison_pictures(models).items()]
    except OSError as error:
        raise RunFolderError(f"{out}: pictures cannot be written there ({error.strerror})") from None
    facts = [_facts(model) if isinstance(model, Run) else _facts_of_merged(model) for model in models]
    return {"runs": facts, "cautions": cautions(models), "plots": [str(file) for file in files]}


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
            *_work(run),
        )
    lines = [Text(f"caution: {caution}") for caution in answer["cautions"]]
    return Group(table, *lines)


def cautions(models: Sequence[Model]) -> list[str]:
    """Why the numbers of these models may not be held against each other, or hold together; empty where they may."""
    runs = [model for model in models if isinstance(model, Run)]
    private = [model.promise for model in models if model.is_private]
    promises = {
        "deltas": {f"{promise['delta']:g}" for promise in private},
        "units of privacy": {str(promise["unit"]) for promise in private},
        "group sizes": {str(promise["group_size"]) for promise in private},
        "adjacencies": {str(promise["adjacency"]) for promise in private},
    }
    found = [f"the runs have different {what} ({', '.join(sorted(v))})" for what, v in promises.items() if len(v) > 1]
    if len({run.scenario.data.model_dump_json() for run in runs}) > 1:
        found.append("the runs were made on different data")
    unfinished = [run.name for run in runs if run.summary.stopped_because in ("interrupted", "failed")]
    if unfinished:
        found.append(f"not finished: {', '.join(unfinished)}")
    for merged in (model for model in models if isinstance(model, Merged)):
        inputs = [run.name for run in runs if merged.is_made_of(run)]
        if inputs:
            found.append(
                f"the epsilon of {merged.name} holds only while nothing else of {', '.join(inputs)} is released, "
                "such as accuracies in a report"
            )
    return found


def _facts(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": str(run.folder),
        "scenario": run.scenario.name,
        "merged_by": None,
        "accuracy": run.summary.final.accuracy,
        "loss": run.summary.final.loss,
        "epsilon": run.summary.epsilon.content(),
        "unamplified_epsilon_upper": run.unamplified_epsilon,
        "delta": run.ledger.delta,
        "unit": run.ledger.unit,
        "adjacency": run.ledger.adjacency,
        "amplification_charged": run.ledger.amplification_charged,
        "noise_multiplier": run.summary.noise_multiplier,
        "mechanism": run.ledger.mechanism_in_words,
        "rounds_completed": run.summary.rounds_completed,
        "stopped_because": run.summary.stopped_because,
        "bytes_per_check_in": run.bytes_per_check_in,
        "seconds_per_check_in": run.seconds_per_check_in,
    }


def _facts_of_merged(model: Merged) -> dict[str, Any]:
    """The same keys; None for what only a run has."""
    certificate = model.certificate
    return {
        "name": model.name,
        "folder": str(model.folder),
        "scenario": ", ".join(dict.fromkeys(part.scenario for part in certificate.inputs)),
        "merged_by": certificate.method,
        "accuracy": model.accuracy,
        "loss": model.summary.final.loss,
        "epsilon": certificate.epsilon.content(),
        "unamplified_epsilon_upper": None,
        "delta": certificate.delta,
        "unit": certificate.unit,
        "adjacency": certificate.adjacency,
        "amplification_charged": None,
        "noise_multiplier": None,
        "mechanism": certificate.mechanism_in_words,
        "rounds_completed": None,
        "stopped_because": "merged",
        "bytes_per_check_in": None,
        "seconds_per_check_in": None,
    }


def _work(facts: dict[str, Any]) -> list[str]:
    """The columns that only a run has."""
    if facts["merged_by"]:
        return ["", "merged", "", ""]
    return [
        at_most(facts["unamplified_epsilon_upper"]),
        str(facts["rounds_completed"]),
        amount_of_bytes(facts["bytes_per_check_in"]),
        amount_of_time(facts["seconds_per_check_in"]),
    ]
