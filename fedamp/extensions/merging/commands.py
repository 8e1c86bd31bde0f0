"""Define the command ``fedamp merge``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fedamp.cli.terminal import AsJson, print_answer, print_paths


def merge(
    models: Annotated[list[str], Argument(help="run folders; RUN@ROUND is a checkpoint of a run")],
    method: Annotated[str, Option(help="random-selection or linear-combination")],
    epsilon: Annotated[float, Option(help="budget")],
    delta: Annotated[float, Option(help="budget")],
    out_folder: Annotated[Path | None, Option("--out", help="default: a new folder under runs")] = None,
    weights: Annotated[str | None, Option(help="one for each model, e.g. 0.3,0.7; default: chosen")] = None,
    utility: Annotated[str | None, Option(help="a number for each model, to choose weights by, e.g. 0.8,0.9")] = None,
    as_json: AsJson = False,
) -> None:
    """Merge trained models for a new budget, with a certificate.

    random-selection releases one of the models, drawn by weights.
    linear-combination releases a weighted sum of models with independent noise.
    """
    from fedamp.extensions.merging.merge import merge_runs
    from fedamp.extensions.merging.tables import merge_table
    from fedamp.extensions.merging.weights import MergeRequest, numbers_of

    numbers = numbers_of("weights", weights), numbers_of("utility", utility)
    request = MergeRequest(tuple(models), method, epsilon, delta, *numbers)
    merger = merge_runs(request, out_folder)
    print_answer(merger.to_json(), as_json, merge_table)
    print_paths("run folder", merger.folder.path, unless=as_json)
