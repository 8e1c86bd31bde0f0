"""What a run leaves, typed: the keys of every file, and the one place where they are read and written.

An infinite epsilon is ``math.inf`` here and null in a file, because JSON has no infinity.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PlainSerializer,
    PlainValidator,
    PositiveInt,
    model_validator,
)

from fedamp.accounting import Bounds, Mechanism, from_json
from fedamp.base.record import Record
from fedamp.errors import RunFolderError
from fedamp.federation.plan import ADJACENCY
from fedamp.federation.scenario import LONGEST_RUN
from fedamp.runs.files import read_regular, write_atomically

LARGEST = 1 << 29  # bytes of a file: the ledger of the longest run has three fifths of it

FROM_SYSTEM = "from the operating system"
KNOWN_SEED = "known: the scenario's, so that whoever knows it can subtract the noise"
# Words of older files that mean the same.
_SAME_WORDS = {
    "the scenario's: a rehearsal, whoever knows it can subtract the noise": KNOWN_SEED,
    "add/remove: one unit's contribution is present or replaced by zero": ADJACENCY,
}


def _mechanism(value: Any) -> Mechanism:
    return value if isinstance(value, Mechanism) else from_json(value)


def _no_longer(mechanism: Mechanism) -> Mechanism:
    if mechanism.span > LONGEST_RUN:
        raise ValueError(f"it spans {mechanism.span} rounds; expected: at most {LONGEST_RUN}")
    return mechanism


Words = Annotated[str, AfterValidator(lambda words: _SAME_WORDS.get(words, words))]
Epsilon = Annotated[
    float,
    Field(ge=0, allow_inf_nan=True),
    BeforeValidator(lambda value: math.inf if value is None else value),
    PlainSerializer(lambda value: value if math.isfinite(value) else None),
]
Finite = Annotated[float | None, AfterValidator(lambda value: value if value is None or math.isfinite(value) else None)]
Expression = Annotated[Mechanism, PlainValidator(_mechanism), PlainSerializer(lambda mechanism: mechanism.to_json())]
"""An accounting expression; in a file it is what ``fedamp.accounting.from_json`` reads."""


def _each_key_once(pairs: list[tuple[str, Any]]) -> None:
    """Readers differ in which of two values they take: a person might see one, and the verification the other."""
    if len({key for key, _ in pairs}) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice}: stands twice")


class FileRecord(Record):
    """A record that is a file of its own."""

    kind: ClassVar[str]  # what it is called in errors

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the file.

        Raises:
            RunFolderError: it is missing or damaged; one line that names the file, the key, and what is accepted.
        """
        try:
            text = read_regular(file, LARGEST)
            record = cls.from_json(text)
            json.loads(text, object_pairs_hook=_each_key_once)
            return record
        except RecursionError:
            reason: object = "nested too deeply"
        except (OSError, ValueError) as error:
            reason = error.strerror or error if isinstance(error, OSError) else error
        raise RunFolderError(f"{file}: damaged {cls.kind}: {reason}") from None

    def write(self, file: Path) -> None:
        """Replace the file by this record."""
        write_atomically(file, self.to_text().encode())


class Bracket(Record):
    """Both ends of an epsilon."""

    lower: Epsilon
    upper: Epsilon

    @classmethod
    def of(cls, bounds: Bounds) -> "Bracket":
        """The bracket without its method."""
        return cls(lower=bounds.lower, upper=bounds.upper)


# --- rounds.jsonl and summary.json ------------------------------------------------------------------------------------


Score = tuple[str, float]
"""The metric that leads, by name: at most 1, and more is better."""


def measured(loss: float | None, metrics: Mapping[str, float]) -> dict[str, Any]:
    """The keys of a record that say how good a model is: ``loss``, ``accuracy``, and all other ``metrics``."""
    # A loss of a person's own may have metrics that are not finite, which no file could hold.
    others = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return {"loss": loss, "accuracy": others.pop("accuracy", None), "metrics": others}


def _score(accuracy: float | None, metrics: Mapping[str, float]) -> Score | None:
    return next(iter(metrics.items()), None) if accuracy is None else ("accuracy", accuracy)


class RoundRecord(Record):
    """A line of ``rounds.jsonl``.

    Attributes:
        round: number, from 1.
        loss, accuracy, metrics: of the new global model on the public test set; None and empty in rounds that are not
            evaluated. Accuracy is the share of records (or labels, or tokens) that it gets right, None where the task
            has none; metrics are the others that fit the task.
        validation_score: the metric that leads, on the public records kept apart for choosing; None where none are.
        epsilon_upper: upper end of what is spent so far; infinite without noise.
        scheduled: size of the round's cohort.
        reported: units that answered.
        seconds: wall time of the round.
        nodes_given_up, nodes_back: ids of nodes that are no longer waited for, and that answer again.
        unprotected: numbers computed from private data without noise. For the server's owner only.
    """

    version: Literal[1] = 1
    round: PositiveInt
    loss: Finite
    accuracy: Finite
    metrics: dict[str, float] = Field(default_factory=dict)
    validation_score: Finite = None
    epsilon_upper: Epsilon
    scheduled: NonNegativeInt
    reported: NonNegativeInt
    seconds: float
    nodes_given_up: tuple[NonNegativeInt, ...] = ()
    nodes_back: tuple[NonNegativeInt, ...] = ()
    unprotected: dict[str, int | float]

    @property
    def score(self) -> Score | None:
        """The metric that leads; None in rounds that are not evaluated."""
        return _score(self.accuracy, self.metrics)


def reports(rounds: Iterable[RoundRecord]) -> tuple[int, int, int]:
    """Units that were to report, that did, and whose update or records were no good, over some rounds."""
    each = [(record.scheduled, record.reported, int(record.unprotected.get("failed", 0))) for record in rounds]
    scheduled, reported, failed = map(sum, zip(*each, strict=True)) if each else (0, 0, 0)
    return scheduled, reported, failed


Ending = Literal["finished", "budget", "interrupted", "failed", "diverged"]
"""Why a run stopped; the first two were decided before it began."""


class Quality(Record):
    """Of the last evaluated model, as in a round's record; None and empty where none was."""

    accuracy: Finite
    loss: Finite
    metrics: dict[str, float] = Field(default_factory=dict)
    validation_score: Finite = None

    @property
    def score(self) -> Score | None:
        """The metric that leads; None where no model was evaluated."""
        return _score(self.accuracy, self.metrics)


class Cost(Record):
    """What a unit receives and computes in a round, on average over the submodels, and as shares of the whole."""

    parameters_per_client: float
    parameters_share: float
    flops_per_record: float
    flops_share: float


class Summary(FileRecord):
    """``summary.json`` of a run; its presence says that the run ended by itself or was told to.

    Attributes:
        epsilon: what is guaranteed, however the run was stopped by somebody who saw what it released.
        released_rounds_epsilon: what the released rounds cost, had their number been fixed before; None in older files.
        has_known_seed: whether the noise follows from the scenario's seed; None in older files.
        clients_scheduled, clients_trained: units that were to report in the released rounds, and that did; None in
            older files.
        clients_failed: units whose update was not finite, or whose records could not be read; they count as zero.
        error: why it failed or diverged, in one line.
    """

    kind: ClassVar[str] = "summary"

    format: Literal["fedamp summary 1"] = "fedamp summary 1"
    name: str
    final: Quality
    epsilon: Bracket
    released_rounds_epsilon: Bracket | None = None
    unamplified_epsilon: Bracket
    has_known_seed: bool | None = None
    delta: float
    noise_multiplier: float
    rounds_completed: NonNegativeInt
    clients_scheduled: NonNegativeInt | None = None
    clients_trained: NonNegativeInt
    clients_failed: NonNegativeInt | None = None
    wall_seconds: float
    startup_seconds: float
    stopped_because: Ending
    error: str | None = None
    parameters: NonNegativeInt
    cost: Cost

    @property
    def claim(self) -> "Claim":
        """What it says of what was guaranteed; the ledger says the same."""
        shared = set(Claim.model_fields) - {"epsilon", "released_rounds_epsilon"}
        return Claim(
            epsilon=self.epsilon.upper,
            released_rounds_epsilon=self.released_rounds_epsilon and self.released_rounds_epsilon.upper,
            **self.model_dump(include=shared),
        )


# --- ledger.json ------------------------------------------------------------------------------------------------------


class Claim(Record):
    """What a ledger says that was guaranteed, in short. Summary, pages, tables and mergers say what the ledger says.

    Attributes:
        epsilon: upper end of what is guaranteed, however the run was stopped by somebody who saw what it released.
        released_rounds_epsilon: upper end of what the released rounds cost, had their number been fixed before.
        noise_multiplier: of the whole update, or of its split part.

    What an older file does not say is None.
    """

    epsilon: Epsilon
    released_rounds_epsilon: Epsilon | None
    delta: float
    noise_multiplier: float
    has_known_seed: bool | None
    stopped_because: Ending | None


class LedgerEntry(Record):
    """One released round: its number, what is spent after it (infinite without noise), SHA-256 of its model.

    ``record`` is the salted digest of its line of ``rounds.jsonl``, None where there is none; ``link`` is that of
    :mod:`fedamp.runs.chain`, None in older files.
    """

    round: PositiveInt
    epsilon_upper: Epsilon
    digest: str
    record: str | None = None
    link: str | None = None


class PartRecord(Record):
    """A part of the model with its clipping norm, noise and public denominator."""

    name: str
    clip: float
    noise_multiplier: float
    denominator: float


class LedgerRecord(FileRecord):
    """``ledger.json``: what was planned, what that costs, and what was released; docs/ledger.md explains the keys."""

    kind: ClassVar[str] = "ledger"

    # 2: noise was drawn in float64, from another generator. Such a run can be read, not gone on with. 3: has no chain.
    format: Literal["fedamp ledger 2", "fedamp ledger 3", "fedamp ledger 4"]
    written_by: str
    scenario: str
    scenario_sha256: str
    frozen_sha256: str | None = None  # of a model of one's own; not in older files
    unit: Literal["client", "sample"]
    units: PositiveInt
    group_size: PositiveInt
    adjacency: Words
    delta: Annotated[float, Field(gt=0, lt=1)]
    budget_epsilon: float | None
    amplification_charged: bool
    parts: tuple[PartRecord, ...] = Field(min_length=1)
    rounds_planned: Annotated[PositiveInt, Field(le=LONGEST_RUN)]
    mechanism: Annotated[Expression, AfterValidator(_no_longer)]
    mechanism_in_words: str
    whole_run_epsilon: Bracket
    epsilon_bound: str
    guaranteed_epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None  # in older files
    noise_seed: Words
    assumptions: tuple[str, ...]
    guarantees_explained_in: str = "docs/threat-model.md"
    stopped_because: Ending | None = None
    files: dict[str, str] | None = None
    releases: tuple[LedgerEntry, ...]
    head: str | None = None

    @model_validator(mode="after")
    def _has_its_chain(self) -> Self:
        if self.format == "fedamp ledger 4" and None in (self.head, *(entry.link for entry in self.releases)):
            raise ValueError("head, or the link of a release: missing")
        return self

    @property
    def claim(self) -> Claim:
        """What was guaranteed; of an older file, which does not say it, what was spent."""
        spent = self.releases[-1].epsilon_upper if self.releases else 0.0
        return Claim(
            epsilon=spent if not self.releases or self.guaranteed_epsilon is None else self.guaranteed_epsilon,
            released_rounds_epsilon=spent,
            delta=self.delta,
            noise_multiplier=self.parts[-1].noise_multiplier,
            has_known_seed=self.has_known_seed,
            stopped_because=self.stopped_because,
        )

    @property
    def has_known_seed(self) -> bool:
        """Whether the noise follows from the scenario's seed."""
        return self.noise_seed != FROM_SYSTEM

    @property
    def epsilon_follows(self) -> bool:
        """Whether what is spent after each round follows from the mechanism alone.

        Charged without amplification, it may span only the rounds in which one unit can have taken part; which these
        are is in the scenario.
        """
        return not self.mechanism.is_private or self.mechanism.span == self.rounds_planned

    def check_rounds(self, most: int) -> None:
        """Check that rounds 1, 2, 3, ... are each released once.

        Raises:
            ValueError: they are not, or there are more than ``most``.
        """
        rounds = [entry.round for entry in self.releases]
        if rounds != list(range(1, len(rounds) + 1)) or len(rounds) > most:
            raise ValueError(f"its rounds are not 1, 2, 3, ... each once, up to at most {most}")
