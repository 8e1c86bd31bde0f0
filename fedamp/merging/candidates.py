"""The models that can be merged: final models and checkpoints of finished runs, each with what its release costs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedamp import scenario
from fedamp.accounting import Mechanism, NotPrivate, from_json
from fedamp.arrays import Arrays
from fedamp.errors import MergeError, RunFolderError
from fedamp.report.merged import CERTIFICATE
from fedamp.report.runs import Run, read_run
from fedamp.runs.checkpoint import KEPT, checkpoints, read_checkpoint
from fedamp.runs.folder import RunFolder
from fedamp.runs.ledger import digest
from fedamp.scenario import Scenario
from fedamp.server.setup import Prepared, prepare


@dataclass(frozen=True)
class Candidate:
    """A model that may go into a merger.

    Attributes:
        name: as a person named it.
        run: where it comes from.
        round: after which round of the run.
        mechanism: what releasing this model, and nothing else of the run, costs.
        parameters: the model.
    """

    name: str
    run: Run
    round: int
    mechanism: Mechanism
    parameters: Arrays

    @property
    def label(self) -> str:
        """The run's own name and the round, without where on this machine it is."""
        return f"{self.run.folder.resolve().name}@{self.round}"

    @cached_property
    def is_rehearsal(self) -> bool:
        """Whether its noise follows from the scenario's seed."""
        return bool(self.run.ledger["noise_seed"] != "from the operating system")

    def shares_noise_with(self, other: "Candidate") -> bool:
        """Whether the two models' noise is, or may be, drawn from the same seed."""
        if self.run.folder.resolve() == other.run.folder.resolve():
            return True
        if self.is_rehearsal != other.is_rehearsal:
            return False
        if self.is_rehearsal:
            return self.run.scenario.seed == other.run.scenario.seed
        first, second = _secret(self.run), _secret(other.run)
        same_release = self.run.ledger["releases"][0]["digest"] == other.run.ledger["releases"][0]["digest"]
        return same_release or (first is not None and first == second)


@dataclass(frozen=True)
class Candidates:
    """Models that were trained on the same units and have the same shape.

    Attributes:
        models: in the order in which they were named.
        prepared: the first one's scenario with its data: the public test set, and the shape of the model.
    """

    models: tuple[Candidate, ...]
    prepared: Prepared

    @property
    def ledger(self) -> dict[str, Any]:
        """The first one's ledger; adjacency, unit, their number and the group size are the others' too."""
        return self.models[0].run.ledger

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """What each model's release costs."""
        return tuple(model.mechanism for model in self.models)

    @cached_property
    def accuracies(self) -> tuple[float, ...]:
        """Each model's accuracy on the public test set."""
        return tuple(self.prepared.evaluate(model.parameters)[0] for model in self.models)

    def combined(self, weights: Sequence[float]) -> Arrays:
        """The weighted sum of the models."""
        return {
            name: np.sum(
                [
                    weight * model.parameters[name].astype(np.float64)
                    for weight, model in zip(weights, self.models, strict=True)
                    if weight > 0
                ],
                axis=0,
            ).astype(np.float32)
            for name in self.models[0].parameters
        }


def read_candidates(specifications: Sequence[str]) -> Candidates:
    """Read the models that a person names: ``RUN`` for a run's last model, ``RUN@ROUND`` for a checkpoint.

    Raises:
        RunFolderError: a run folder, ledger, model or checkpoint is missing or damaged, or does not belong together.
        MergeError: the models cannot be merged; the message says why.
    """
    if not 2 <= len(specifications) <= 12:
        raise MergeError(f"{len(specifications)} models to merge; accepted: 2 to 12, each RUN or RUN@ROUND")
    named = [_parse(text) for text in specifications]
    for folder, _ in named:
        if (folder / CERTIFICATE).is_file():
            raise MergeError(f"{folder}: a merged model; accepted: trained ones, such as those that it was merged from")
    runs = {folder: read_run(folder) for folder, _ in named}
    listed = list(runs.values())
    for run in listed:
        _check_ledger(run)
        _check_same(listed[0], run)
    prepared = prepare(listed[0].scenario)
    models = tuple(
        _read_model(text, runs[folder], round_, prepared)
        for text, (folder, round_) in zip(specifications, named, strict=True)
    )
    places = [(model.run.folder.resolve(), model.round) for model in models]
    for index, model in enumerate(models):
        if places[index] in places[:index]:
            raise MergeError(f"{model.name}: given twice")
    return Candidates(models, prepared)


def _parse(text: str) -> tuple[Path, int | None]:
    folder, at, round_ = text.rpartition("@")
    if at and round_.isdigit() and not Path(text).exists():
        return Path(folder), int(round_)
    return Path(text), None


# --- the ledger -------------------------------------------------------------------------------------------------------


def _check_ledger(run: Run) -> None:
    """The ledger's expression is what the scenario costs, so that the cost below is that of this very run."""
    try:
        charged = from_json(run.ledger["mechanism"])
        present = [run.ledger[key] for key in ("unit", "units", "group_size", "adjacency", "noise_seed")]
        planned = run.ledger["rounds_planned"]
    except (KeyError, ValueError) as error:
        raise RunFolderError(f"{run.folder / 'ledger.json'}: damaged ledger ({error})") from None
    noise = run.scenario.privacy.noise_multiplier
    same_noise = noise in ("auto", run.summary["noise_multiplier"])
    same_unit = present[0] == run.scenario.privacy.unit and planned == run.scenario.rounds
    if not (same_noise and same_unit and charged == run.plan.mechanism):
        raise RunFolderError(f"{run.folder / 'ledger.json'}: not the ledger of the scenario.yaml beside it")


def cost_of_model(run: Run, round_: int) -> Mechanism:
    """What releasing the model after a round costs, if nothing else of the run is released: its first rounds."""
    mechanism = from_json(run.ledger["mechanism"])
    if not mechanism.is_private:
        return NotPrivate()
    if mechanism.span == run.ledger["rounds_planned"]:
        return mechanism.after(round_)
    # Charged without amplification, a run spans the rounds in which one unit can have taken part.
    return mechanism.after(min(round_, mechanism.span))


# --- what must agree --------------------------------------------------------------------------------------------------


def _check_same(first: Run, other: Run) -> None:
    """Refuse runs that do not protect the same units in the same sense, or train another model."""
    same_people: list[tuple[str, Callable[[Run], Any]]] = [
        ("unit", lambda run: run.ledger["unit"]),
        ("adjacency", lambda run: run.ledger["adjacency"]),
        ("group_size", lambda run: run.ledger["group_size"]),
        ("number of units", lambda run: run.ledger["units"]),
        ("data", lambda run: run.scenario.data),
    ]
    for key, value in same_people:
        if value(first) != value(other):
            values = f"{_short(value(other), value(first))}, not {_short(value(first), value(other))}"
            raise MergeError(
                f"{other.folder}: another {key} than {first.folder}'s: {values}; "
                "only models trained on the same units, protected in the same sense, can be merged"
            )
    if first.scenario.seed != other.scenario.seed and _dealt_by_seed(first.scenario):
        raise MergeError(
            f"{other.folder}: other units than {first.folder}'s: their records were dealt from seed "
            f"{other.scenario.seed}, not {first.scenario.seed}; accepted: the same seed (with fedamp run --secret-seed "
            "where the noise must be independent), or a natural partition"
        )
    if _shape_of_model(first.scenario) != _shape_of_model(other.scenario):
        raise MergeError(f"{other.folder}: another model than {first.folder}'s; only models of one shape can be merged")


def _dealt_by_seed(scenario_: Scenario) -> bool:
    """Whether the seed decides which records a unit has."""
    if isinstance(scenario_.data, scenario.SyntheticData) or scenario_.privacy.unit == "sample":
        return True
    return not isinstance(scenario_.data.partition, scenario.NaturalPartition)


def _shape_of_model(scenario_: Scenario) -> dict[str, Any]:
    return scenario_.model.model_dump(exclude={"initial", "folder"})


def _short(value: Any, other: Any) -> str:
    """A value in few words; of a section, only what differs from another one."""
    if not isinstance(value, scenario.Section) or type(value) is not type(other):
        return str(getattr(value, "name", value))
    mine, theirs = value.model_dump(mode="json"), other.model_dump(mode="json")
    return ", ".join(f"{key} {json.dumps(mine[key])}" for key in mine if mine[key] != theirs[key])


def _secret(run: Run) -> str | None:
    file = run.folder / "seed.secret"
    return file.read_text().strip() if file.is_file() else None


# --- the model --------------------------------------------------------------------------------------------------------


def _read_model(text: str, run: Run, round_: int | None, prepared: Prepared) -> Candidate:
    last = int(run.summary["rounds_completed"])
    if round_ is None or round_ == last:
        parameters, source = _final(run, prepared), RunFolder(run.folder).model
        round_ = last
    else:
        parameters, source = _checkpoint(run, round_, prepared)
    shapes = {name: array.shape for name, array in parameters.items()}
    if shapes != {name: array.shape for name, array in prepared.state.parameters.items()}:
        raise MergeError(f"{source}: another shape than the other models'; only models of one shape can be merged")
    released = {entry["round"]: entry["digest"] for entry in run.ledger["releases"]}
    if released.get(round_) != digest(parameters):
        raise RunFolderError(f"{source}: not the model that ledger.json names for round {round_}")
    return Candidate(text, run, round_, cost_of_model(run, round_), parameters)


def _final(run: Run, prepared: Prepared) -> Arrays:
    file = RunFolder(run.folder).model
    try:
        stored = load_file(file)
        # The model's own order: the ledger's digest is of the arrays in it.
        return {name: stored[name] for name in prepared.state.parameters if name in stored}
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{file}: cannot be read ({' '.join(str(error).split())})") from None


def _checkpoint(run: Run, round_: int, prepared: Prepared) -> tuple[Arrays, Path]:
    folder = RunFolder(run.folder).checkpoints
    files = {int(file.stem.removeprefix("round-")): file for file in checkpoints(folder)}
    if round_ not in files:
        kept = ", ".join(f"{run.folder}@{number}" for number in sorted({*files, run.summary["rounds_completed"]}))
        raise MergeError(f"{run.folder}@{round_}: no such checkpoint; accepted: {kept} (a run keeps its last {KEPT})")
    checkpoint = read_checkpoint(files[round_], run.ledger["scenario_sha256"], prepared.state)
    return checkpoint.state.parameters, files[round_]
