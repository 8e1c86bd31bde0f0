"""Read the models to merge: final models and checkpoints of finished runs, each with the cost of its release.

Only models on the same units, protected in the same sense and of one shape, go together; all others are refused here.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedamp.accounting import Mechanism, NotPrivate
from fedamp.base.arrays import Arrays
from fedamp.base.reading import regular
from fedamp.errors import InputError, RunFolderError
from fedamp.extensions.merging.merged import CERTIFICATE
from fedamp.federation.first_releases import first_releases
from fedamp.runs.checkpoint import KEPT, checkpoints, read_checkpoint
from fedamp.runs.ledger import digest
from fedamp.runs.run import Run, read_run
from fedamp.server.setup import RunInputs, prepare


class MergeError(InputError):
    """Models cannot be merged, or not within the budget."""


@dataclass(frozen=True)
class MergeCandidate:
    """A model that may go into a merger.

    Attributes:
        name: as the user gave it.
        run: that trained the model.
        round: after which it was taken, from 1.
        mechanism: the cost of releasing this model, and nothing else of the run.
        parameters: float32 by name.
    """

    name: str
    run: Run
    round: int
    mechanism: Mechanism
    parameters: Arrays

    @property
    def place(self) -> tuple[Path, int]:
        """Folder of the run without links, and the round."""
        return self.run.folder.resolve(), self.round

    @property
    def label(self) -> str:
        """Name of the run and the round, without the path."""
        return f"{self.place[0].name}@{self.round}"


@dataclass(frozen=True)
class MergeCandidates:
    """Models of the same shape, trained on the same units.

    Attributes:
        models: at least two.
        prepared: the first one's scenario with its data: the public test set, and the shape of the model.
    """

    models: tuple[MergeCandidate, ...]
    prepared: RunInputs

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Cost of each model's release."""
        return tuple(model.mechanism for model in self.models)

    @cached_property
    def accuracies(self) -> tuple[float | None, ...]:
        """Accuracy of each model, or the task's main metric, on the public test set; None without one.

        They are of models that are not released, so they are for the owner alone.
        """
        measured = self.prepared.evaluate_every > 0
        return tuple(self.prepared.evaluate(model.parameters).score if measured else None for model in self.models)

    def combined(self, weights: Sequence[float]) -> Arrays:
        """Return the weighted sum of the models, float32 by name."""
        used = [(weight, model.parameters) for weight, model in zip(weights, self.models, strict=True) if weight > 0]
        sums = {
            name: np.sum([weight * arrays[name].astype(np.float64) for weight, arrays in used], axis=0)
            for name in self.models[0].parameters
        }
        return {name: total.astype(np.float32) for name, total in sums.items()}


def read_candidates(specifications: Sequence[str]) -> MergeCandidates:
    """Read models: ``RUN`` for a run's last model, ``RUN@ROUND`` for a checkpoint.

    Args:
        specifications: 2 to 12 of them.

    Raises:
        RunFolderError: a run folder, ledger, model or checkpoint is missing or damaged, or does not belong together.
        MergeError: the models cannot be merged; the message says why.
    """
    if not 2 <= len(specifications) <= 12:
        raise MergeError(f"{len(specifications)} models to merge; expected: 2 to 12, each RUN or RUN@ROUND")
    named = [_folder_and_round(text) for text in specifications]
    for folder, _ in named:
        if (folder / CERTIFICATE).is_file():
            raise MergeError(f"{folder}: a merged model; expected: trained models, such as its inputs")
    runs = {folder: read_run(folder) for folder, _ in named}
    first = runs[named[0][0]]
    for run in runs.values():
        _check_compatible(first, run)
    prepared = prepare(first.scenario)
    models: list[MergeCandidate] = []
    for text, (folder, round_) in zip(specifications, named, strict=True):
        model = _read_model(text, runs[folder], round_, prepared)
        if model.place in [other.place for other in models]:
            raise MergeError(f"{text}: given twice")
        models.append(model)
    return MergeCandidates(tuple(models), prepared)


def _folder_and_round(text: str) -> tuple[Path, int | None]:
    """Read ``RUN`` or ``RUN@ROUND``; a folder that has an ``@`` in its name is found, too."""
    folder, at, round_ = text.rpartition("@")
    is_checkpoint = at and round_.isdigit() and not Path(text).exists()
    return (Path(folder), int(round_)) if is_checkpoint else (Path(text), None)


def _check_compatible(first: Run, other: Run) -> None:
    """Refuse a run that protects other units, or in another sense, or trains another model; or a foreign ledger."""
    scenario, ledger = other.scenario, other.ledger
    same_noise = scenario.privacy.noise_multiplier in ("auto", ledger.noise_multiplier)
    same_rounds = (ledger.unit, ledger.rounds_planned) == (scenario.privacy.unit, scenario.rounds)
    if not (same_noise and same_rounds and ledger.mechanism == other.plan.charge.mechanism):
        raise RunFolderError(f"{other.files.ledger}: not the ledger of the scenario.yaml beside it")
    if any(getattr(ledger, key) is not None for key in first_releases()):
        raise MergeError(f"{other.folder}: its inputs have means of its own; expected: runs with the same public means")
    compared = {key: (getattr(first.ledger, key), getattr(ledger, key)) for key in ("unit", "adjacency", "group_size")}
    compared["number of units"] = first.ledger.units, ledger.units
    compared["data"] = _data_differences(first, other)
    for key, (ours, theirs) in compared.items():
        if ours != theirs:
            raise MergeError(
                f"{other.folder}: another {key} than {first.folder}'s: {theirs}, not {ours}; only models trained on "
                "the same units, protected in the same sense, can be merged"
            )
    partition = getattr(first.scenario.data, "partition", None)  # synthetic records have none: they are drawn
    by_seed = first.ledger.unit == "sample" or partition is None or partition.scheme != "natural"
    if by_seed and first.scenario.seed != scenario.seed:
        raise MergeError(
            f"{other.folder}: other units than {first.folder}'s: their records were partitioned by seed "
            f"{scenario.seed}, not {first.scenario.seed}; expected: the same seed (without --known-seed "
            "where the noise must be independent), or a natural partition"
        )
    where = {"initial", "initial_names", "folder"}
    if first.scenario.model.model_dump(exclude=where) != scenario.model.model_dump(exclude=where):
        raise MergeError(f"{other.folder}: another model than {first.folder}'s; only models of one shape can be merged")


def _data_differences(first: Run, other: Run) -> tuple[str, str]:
    """Return the names of two data sets where these differ, else the different keys of the ``data`` sections."""
    ours, theirs = (run.scenario.data.model_dump(mode="json") for run in (first, other))
    keys = [key for key in ours if ours[key] != theirs.get(key)]
    if "name" in keys:
        return ours["name"], theirs["name"]
    one, another = (", ".join(f"{key} {json.dumps(each[key])}" for key in keys) for each in (ours, theirs))
    return one, another


def _read_model(text: str, run: Run, round_: int | None, prepared: RunInputs) -> MergeCandidate:
    """Read a model, check it against the ledger, and compute the cost of releasing it alone."""
    last = run.summary.rounds_completed
    round_ = last if round_ is None else round_
    expected = prepared.state.parameters
    if round_ == last:
        source = run.files.model
        try:
            stored = load_file(regular(source))
        except (OSError, SafetensorError) as error:
            raise RunFolderError(f"{source}: cannot be read ({' '.join(str(error).split())})") from None
        parameters = {name: stored[name] for name in expected if name in stored}
    else:
        files = {int(file.stem.removeprefix("round-")): file for file in checkpoints(run.files.checkpoints)}
        if round_ not in files:
            kept = ", ".join(f"{run.folder}@{number}" for number in sorted({*files, last}))
            raise MergeError(
                f"{run.folder}@{round_}: no such checkpoint; expected: {kept} (a run keeps its last {KEPT})"
            )
        source = files[round_]
        parameters = read_checkpoint(source, run.ledger.scenario_sha256, prepared.state)[0].model
    shapes = [{name: array.shape for name, array in model.items()} for model in (parameters, expected)]
    if shapes[0] != shapes[1]:
        raise MergeError(f"{source}: another shape than the other models'; only models of one shape can be merged")
    released = {entry.round: entry.digest for entry in run.ledger.releases}
    if released.get(round_) != digest(parameters):
        raise RunFolderError(f"{source}: not the model that ledger.json names for round {round_}")
    # A run that was stopped early costs all its rounds: the decision to stop may depend on its models.
    charged = run.plan.last_round if run.was_stopped_early else round_
    # Without amplification, a run spans only the rounds in which one unit can take part.
    cost = run.ledger.cost_after(charged) if run.ledger.mechanism.is_private else NotPrivate()
    return MergeCandidate(text, run, round_, cost, parameters)
