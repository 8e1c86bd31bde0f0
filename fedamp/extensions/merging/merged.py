"""Define the files of a merged model, and let the core read them."""

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
    """The content of ``summary.json`` of a merged model.

    Attributes:
        name: of the folder.
        final: quality on the public test set.
        epsilon, delta: what releasing this model alone costs.
        method: of the merger.
        parameters: number of the model's numbers.
        stopped_because: ``merged``, in the place where a run says how it ended.
    """

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
    """One of the models of a merger: its origin, and its cost if it is released alone.

    Attributes:
        name: of the run and the round.
        scenario: name of the run's scenario.
        scenario_sha256: fingerprint of the scenario.
        ledger_sha256_with_salt: tells an owner of the salt which ledger it is, and others nothing.
        round: after which the model was taken.
        rounds_planned: of the run.
        mechanism_in_words: what its release alone is.
        epsilon_upper: of that, at the merger's delta.
        noise_seed: origin of the noise, as the ledger says it.
    """

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
    """The draw of a random selection; publishing its seed costs nothing.

    Attributes:
        model: the one that was drawn.
        seed: in decimal digits.
        seed_source: from the operating system, or given.
    """

    model: str
    seed: str
    seed_source: str


class MergeCertificate(Charged):
    """The content of ``certificate.json`` of a merged model; docs/research/merging.md explains the keys.

    Nothing in it depends on a model that is not released, so it can be handed out.

    Attributes:
        method: ``random-selection`` or ``linear-combination``.
        budget_epsilon: that was asked for.
        epsilon: what releasing the merged model, and nothing else of its inputs, costs.
        weights: of the inputs, in their order; they sum to exactly 1 in a random selection.
        weights_chosen_by: in words.
        best_weights_by_accounting: of a random selection, by the name of the accounting.
        inputs: at least two.
        draw: of a random selection; else None.
        has_known_seed: whether an input's noise, or the draw, follows from a seed that others may know.
        model_sha256: digest of the merged model.
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
    guarantees_explained_in: str = "docs/research/merging.md"

    @model_validator(mode="after")
    def _one_weight_each(self) -> Self:
        """Refuse inputs that have not a weight each."""
        if len(self.inputs) != len(self.weights):
            raise ValueError(f"inputs: {len(self.inputs)} for {len(self.weights)} weights; expected: one each")
        return self


@dataclass(frozen=True)
class MergedModel(ReleasedModel):
    """A merged model, as its files say; quality is of the released model on the public test set.

    Attributes:
        name: for tables.
        folder: of the files.
        summary: ``summary.json``.
        certificate: ``certificate.json``.
    """

    page: ClassVar[str] = "merged.html.j2"
    templates: ClassVar[str | None] = "fedamp.extensions.merging"

    name: str
    folder: Path
    summary: MergedSummary
    certificate: MergeCertificate

    @property
    def stated(self) -> MergeCertificate:
        """Record that states the guarantee: the certificate."""
        return self.certificate

    @property
    def score(self) -> Score | None:
        """Metric and value on the public test set; None: not measured."""
        return self.summary.final.score

    @property
    def epsilon(self) -> float:
        """Upper end of what releasing this model, and nothing else of its inputs, costs; always finite."""
        return self.certificate.epsilon.upper

    @property
    def has_known_seed(self) -> bool:
        """True where an input's noise, or the draw, follows from a seed that others may know."""
        return self.certificate.has_known_seed

    @property
    def title(self) -> str:
        """Names of the inputs' scenarios."""
        return ", ".join(dict.fromkeys(each.scenario for each in self.certificate.inputs))

    @property
    def merged_by(self) -> str:
        """Method of the merger."""
        return self.certificate.method

    def cautions(self, runs: Sequence[Run]) -> list[str]:
        """Warn where a run is shown beside a model that was merged from it.

        The model's epsilon does not hold then, because more of the run is released. It is known only where the salt is
        here.
        """
        file = RunFolder(self.folder).salt
        inputs = {each.ledger_sha256_with_salt for each in self.certificate.inputs if file.is_file()}
        used = [run.name for run in runs if inputs and salted_digest(read_regular(file), run) in inputs]
        others = f"nothing else of {', '.join(used)} is released, such as accuracies in a report"
        return [f"the epsilon of {self.name} holds only while {others}"] if used else []


def salted_digest(salt: bytes, run: Run) -> str:
    """Compute SHA-256 of a salt and a run's ledger: only those who have both can tell by it which run it is."""
    return salted(salt, read_regular(run.files.ledger))


def read_merged(folder: Path, name: str | None = None) -> MergedModel:
    """Read the folder of a merged model.

    Args:
        folder: of the model.
        name: for tables; default: the folder's own.

    Raises:
        RunFolderError: a file is missing or damaged, or the two disagree.
    """
    files = RunFolder(folder)
    summary, certificate = MergedSummary.read(files.summary), MergeCertificate.read(folder / CERTIFICATE)
    if summary.epsilon != certificate.epsilon:
        raise RunFolderError(f"{folder / CERTIFICATE}: damaged certificate: summary.json has another epsilon")
    return MergedModel(name or folder.resolve().name, folder, summary, certificate)


READER = FolderReader(read_merged, "a merged model", "the runs that this model was merged from")
