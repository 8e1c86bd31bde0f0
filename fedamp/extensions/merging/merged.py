"""Merged models: their files, and how the core reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from fedamp.base.files import FileRecord
from fedamp.base.reading import read_regular
from fedamp.base.record import Record
from fedamp.errors import RunFolderError
from fedamp.runs.folder import FolderReader, RunFolder, salted
from fedamp.runs.records import Bracket, Charged, Epsilon, Quality, Score
from fedamp.runs.run import ReleasedModel, Run

CERTIFICATE = "certificate.json"  # the file that a merged model has, and a run has not


class MergedSummary(FileRecord):
    """``summary.json`` of a merged model."""

    kind: ClassVar[str] = "summary"
    format: Literal["fedamp merge summary 1"] = "fedamp merge summary 1"
    name: str
    final: Quality
    epsilon: Bracket
    delta: float
    method: str
    parameters: NonNegativeInt
    stopped_because: Literal["merged"] = "merged"


class MergedInput(Record):
    """One of the models of a merger: its origin, and its cost if it is released alone."""

    name: str
    scenario: str
    scenario_sha256: str
    ledger_sha256_with_salt: str
    round: PositiveInt
    rounds_planned: PositiveInt
    mechanism_in_words: str
    epsilon_upper: Epsilon
    noise_seed: str


class ModelDraw(Record):
    """Which model a random selection released, and the seed of the draw; publishing the seed costs nothing."""

    model: str
    seed: str
    seed_source: str


class MergeCertificate(Charged):
    """``certificate.json`` of a merged model; docs/merging.md explains the keys.

    Nothing in it depends on a model that is not released, so it can be handed out.
    """

    kind: ClassVar[str] = "certificate"
    format: Literal["fedamp merge certificate 1"]
    method: Literal["random-selection", "linear-combination"]
    budget_epsilon: float
    epsilon: Bracket
    weights: tuple[float, ...] = Field(min_length=2)
    weights_chosen_by: str
    best_weights_by_accounting: dict[str, tuple[float, ...]]
    inputs: tuple[MergedInput, ...]
    draw: ModelDraw | None
    has_known_seed: bool
    model_sha256: str
    guarantees_explained_in: str = "docs/merging.md"

    @model_validator(mode="after")
    def _one_weight_each(self) -> Self:
        if len(self.inputs) != len(self.weights):
            raise ValueError(f"inputs: {len(self.inputs)} for {len(self.weights)} weights; expected: one each")
        return self


@dataclass(frozen=True)
class MergedModel(ReleasedModel):
    """A merged model, as its files say; quality is of the released model on the public test set."""

    page: ClassVar[str] = "merged.html.j2"
    templates: ClassVar[str | None] = "fedamp.extensions.merging"

    name: str
    folder: Path
    summary: MergedSummary
    certificate: MergeCertificate

    @property
    def stated(self) -> MergeCertificate:
        return self.certificate

    @property
    def score(self) -> Score | None:
        return self.summary.final.score

    @property
    def epsilon(self) -> float:
        """Upper end of what releasing this model, and nothing else of its inputs, costs; always finite."""
        return self.certificate.epsilon.upper

    @property
    def has_known_seed(self) -> bool:
        """Whether an input's noise, or the draw, follows from a seed that others may know."""
        return self.certificate.has_known_seed

    @property
    def title(self) -> str:
        return ", ".join(dict.fromkeys(each.scenario for each in self.certificate.inputs))

    @property
    def merged_by(self) -> str:
        return self.certificate.method

    def cautions(self, runs: Sequence[Run]) -> list[str]:
        """Its epsilon does not hold beside a run of which a model went into it; known only where its salt is here."""
        file = RunFolder(self.folder).salt
        inputs = {each.ledger_sha256_with_salt for each in self.certificate.inputs if file.is_file()}
        used = [run.name for run in runs if inputs and salted_digest(read_regular(file), run) in inputs]
        others = f"nothing else of {', '.join(used)} is released, such as accuracies in a report"
        return [f"the epsilon of {self.name} holds only while {others}"] if used else []


def salted_digest(salt: bytes, run: Run) -> str:
    """Compute SHA-256 of a salt and a run's ledger: only those who have both can tell by it which run it is."""
    return salted(salt, read_regular(run.files.ledger))


def read_merged(folder: Path, name: str | None = None) -> MergedModel:
    """Read the folder of a merged model (RunFolderError: missing or damaged); default name: the folder's own."""
    files = RunFolder(folder)
    summary, certificate = MergedSummary.read(files.summary), MergeCertificate.read(folder / CERTIFICATE)
    if summary.epsilon != certificate.epsilon:
        raise RunFolderError(f"{folder / CERTIFICATE}: damaged certificate: summary.json has another epsilon")
    return MergedModel(name or folder.resolve().name, folder, summary, certificate)


READER = FolderReader(read_merged, "a merged model", "the runs that this model was merged from")
