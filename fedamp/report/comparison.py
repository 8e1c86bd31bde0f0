"""Several runs, and models merged from runs, side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedamp.report import style
from fedamp.report.pictures import comparison_pictures
from fedamp.report.study_pictures import draw_sweep
from fedamp.report.words import KNOWN_SEED
from fedamp.runs.merged import Merged, Model, read_models
from fedamp.runs.run import Run
from fedamp.studies.sweeps.results import is_sweep, read_sweep, run_folders


def compare(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """The answer of ``fedamp compare --json``; the pictures are drawn into ``out``.

    One sweep is shown by its settings. Beside other folders it is replaced by its finished runs. Raises RunFolderError
    for a folder that is missing, damaged or given twice, or if ``out`` cannot be written to.
    """
    if len(folders) == 1 and is_sweep(folders[0]):
        sweep = read_sweep(folders[0])
        return sweep.to_json() | {"plots": draw_sweep(sweep, out)}
    models = read_models(run_folders(folders))
    plots = style.save_all(comparison_pictures(models), out)
    return {"runs": list(map(facts, models)), "cautions": cautions(models), "plots": [str(file) for file in plots]}


def facts(model: Model) -> dict[str, Any]:
    """A row of the comparison; keys that only a run has are None for a merged model."""
    run, merged = (model, None) if isinstance(model, Run) else (None, model.certificate)
    stated = model.ledger if isinstance(model, Run) else model.certificate
    inputs = merged.inputs if merged else []
    return {
        "name": model.name,
        "folder": str(model.folder),
        "scenario": run.scenario.name if run else ", ".join(dict.fromkeys(each.scenario for each in inputs)),
        "merged_by": merged and merged.method,
        **model.summary.final.content(),
        "score": list(model.score) if model.score else None,
        "epsilon": {"lower": model.summary.epsilon.content()["lower"], "upper": model.epsilon},
        "released_rounds_epsilon_upper": run and run.released_rounds_epsilon,
        "has_known_seed": model.has_known_seed,
        "unamplified_epsilon_upper": run and run.unamplified_epsilon,
        **{key: model.promise[key] for key in ("delta", "unit", "adjacency")},
        "amplification_charged": run and run.ledger.amplification_charged,
        "noise_multiplier": run and run.ledger.noise_multiplier,
        "mechanism": stated.mechanism_in_words,
        "rounds_completed": run and run.summary.rounds_completed,
        "stopped_because": model.summary.stopped_because,
        "bytes_per_check_in": run and run.bytes_per_check_in,
        "seconds_per_check_in": run and run.seconds_per_check_in,
    }


def cautions(models: Sequence[Model]) -> list[str]:
    """Reasons why the numbers of these models cannot be compared, or do not hold together."""
    runs = [model for model in models if isinstance(model, Run)]
    private = [model.promise for model in models if model.is_private]
    found = []
    names = {"delta": "deltas", "unit": "units of privacy", "group_size": "group sizes", "adjacency": "adjacencies"}
    for key, what in names.items():
        values = {f"{promise[key]:g}" if key == "delta" else str(promise[key]) for promise in private}
        if len(values) > 1:
            found.append(f"the runs have different {what} ({', '.join(sorted(values))})")
    if len({run.scenario.data.model_dump_json() for run in runs}) > 1:
        found.append("the runs have different data")
    for run in runs:
        if run.reported_share < 1:
            found.append(f"{run.name}: {run.reported_share:.1%} of the scheduled {run.ledger.unit}s reported")
    if unfinished := [run.name for run in runs if run.was_stopped_early]:
        found.append(f"not finished: {', '.join(unfinished)}; epsilon is the cost of all their rounds")
    if known := [model.name for model in models if model.is_private and model.has_known_seed]:
        found.append(f"the seed of {', '.join(known)} is known: {KNOWN_SEED}")
    for merged in (model for model in models if isinstance(model, Merged)):
        if inputs := [run.name for run in runs if merged.is_made_of(run)]:
            others = f"nothing else of {', '.join(inputs)} is released, such as accuracies in a report"
            found.append(f"the epsilon of {merged.name} holds only while {others}")
    return found
