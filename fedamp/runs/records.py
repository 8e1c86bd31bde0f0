"""The keys of every file of a run, typed.

An infinite epsilon is ``math.inf`` here and null in a file, because JSON has no infinity.
"""

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PlainSerializer,
    PlainValidator,
    PositiveInt,
    ValidationInfo,
)

from fedamp.accounting import Bounds, Mechanism, from_json
from fedamp.accounting.arithmetic import delta_left
from fedamp.accounting.sampling import PRECISION
from fedamp.accounting.verify import FROM_SYSTEM, ahead_of_rounds, before_rounds, has_left, ledger_keys
from fedamp.base.files import FileRecord
from fedamp.base.record import Record
from fedamp.base.section import Before, with_keys
from fedamp.data.transforms import Standardise
from fedamp.extension import named
from fedamp.federation.evaluation import ClientEvaluation, Evaluated
from fedamp.federation.scenario import LONGEST_RUN
from fedamp.federation.submodels import Part

KNOWN_SEED = "known: the scenario's, so everybody who knows it can subtract the noise"
EVALUATED = "Accuracy and loss are computed on a test set that is declared public."
EVALUATED_BY_APP = "What the app evaluates itself, it evaluates on public records."
NOT_EVALUATED = "No evaluation: no model was tested on anybody's records."
ON_CLIENTS = (
    "Models are evaluated on held-out records of the clients themselves. A client contributes a vector of norm at most "
    "1, and noise is added to the sum: the mechanism includes it."
)


def _mechanism(value: Any) -> Mechanism:
    mechanism = value if isinstance(value, Mechanism) else from_json(value)
    if mechanism.span > LONGEST_RUN:
        raise ValueError(f"it spans {mechanism.span} rounds; expected: at most {LONGEST_RUN}")
    return mechanism


def _finite(value: float | None, asked: ValidationInfo) -> float | None:
    if value is None or math.isfinite(value):
        return value
    if asked.mode == "json":  # no file holds one
        raise ValueError("not finite")
    return None


Epsilon = Annotated[
    float,
    Field(ge=0, allow_inf_nan=True),
    BeforeValidator(lambda value: math.inf if value is None else value),
    PlainSerializer(lambda value: value if math.isfinite(value) else None),
]
FiniteOrNone = Annotated[float | None, AfterValidator(_finite)]
Expression = Annotated[Mechanism, PlainValidator(_mechanism), PlainSerializer(lambda mechanism: mechanism.to_json())]
"""An accounting expression; in a file it is what ``fedamp.accounting.from_json`` reads."""


class Bracket(Record):
    """Both ends of an epsilon."""

    lower: Epsilon
    upper: Epsilon

    @classmethod
    def of(cls, bounds: Bounds) -> "Bracket":
        return cls(lower=bounds.lower, upper=bounds.upper)


Score = tuple[str, float]
"""Name and value of the leading metric: at most 1, and more is better."""


def measured(loss: float | None, metrics: Mapping[str, float]) -> dict[str, Any]:
    """The keys of a record that say how good a model is: ``loss``, ``accuracy``, and all other ``metrics``."""
    # A custom loss may have metrics that are not finite, which no file could hold.
    others = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return {"loss": loss, "accuracy": others.pop("accuracy", None), "metrics": others}


class Quality(Record):
    """Quality of a global model on public records; None and empty if it was not evaluated.

    Attributes:
        loss, accuracy, metrics: on the test set. Accuracy is the share of correct records (or labels, or tokens), None
            if the task has none; metrics are the task's others.
        validation_score: the leading metric on the validation records; None without such records.
    """

    accuracy: FiniteOrNone
    loss: FiniteOrNone
    metrics: dict[str, float] = Field(default_factory=dict)
    validation_score: FiniteOrNone = None

    @property
    def score(self) -> Score | None:
        """The leading metric; None if the model was not evaluated."""
        return next(iter(self.metrics.items()), None) if self.accuracy is None else ("accuracy", self.accuracy)


class RoundRecord(Quality):
    """A line of ``rounds.jsonl``, with the quality of the new global model.

    Attributes:
        round: from 1.
        epsilon_upper: upper end of the epsilon spent so far; infinite without noise.
        scheduled, reported: units in the round's cohort, and those that answered.
        noise_surplus: variance of the noise over the one that is charged, minus 1 (secure aggregation).
        impossible_sum: whether the sum could not be that of honest nodes, and zeros stand in its place.
        nodes_given_up, nodes_back: ids of nodes that are no longer waited for, and that answer again.
        evaluated: how good the model of the round before is on held-out records of the cohort, with noise.
        unprotected: numbers computed from private data without noise. For the server's owner only.
    """

    version: Literal[1] = 1
    round: PositiveInt
    epsilon_upper: Epsilon
    scheduled: NonNegativeInt
    reported: NonNegativeInt
    seconds: float
    noise_surplus: float | None = Field(None, exclude_if=lambda surplus: surplus is None)
    impossible_sum: bool = Field(False, exclude_if=lambda found: not found)
    evaluated: Evaluated | None = Field(None, exclude_if=lambda found: found is None)
    nodes_given_up: tuple[NonNegativeInt, ...] = ()
    nodes_back: tuple[NonNegativeInt, ...] = ()
    unprotected: dict[str, int | float]


def last_quality(rounds: Iterable[RoundRecord]) -> Quality:
    """The quality of the last evaluated model."""
    each = [record.model_dump(include=set(Quality.model_fields)) for record in rounds if record.score is not None]
    return Quality(**each[-1]) if each else Quality(accuracy=None, loss=None)


def reports(rounds: Iterable[RoundRecord]) -> tuple[int, int, int]:
    """Scheduled units, units that reported, and units that failed (bad update or records), summed over rounds."""
    each = [(record.scheduled, record.reported, int(record.unprotected.get("failed", 0))) for record in rounds]
    scheduled, reported, failed = map(sum, zip((0, 0, 0), *each, strict=True))
    return scheduled, reported, failed


Ending = Literal["finished", "budget", "interrupted", "failed", "diverged"]
"""Why a run stopped; the first two were decided before it began."""


class ModelCost(Record):
    """Size and work of a unit's model in a round: mean over the submodels, and shares of the whole model."""

    parameters_per_client: float
    parameters_share: float
    flops_per_record: float
    flops_share: float

    @property
    def bytes_per_check_in(self) -> int:
        """Bytes of a model as float32 to a client and of its update as float64 back, without the envelope."""
        return round(self.parameters_per_client * (4 + 8))


class Summary(FileRecord):
    """``summary.json`` of a run that has ended; ``final`` is of the last evaluated model.

    Attributes:
        epsilon: the guarantee, however the run was stopped by somebody who saw its releases.
        released_rounds_epsilon: the cost of the released rounds if their number was fixed before.
        epsilon_server: for who runs the server, of all planned rounds; None: the server sees everything.
        epsilon_nodes: the same for a registered node, of units of other nodes; None: no nodes are named.
        clients_scheduled, clients_trained: scheduled units of the released rounds, and those that reported.
        clients_failed: units whose update was not finite, or whose records could not be read; they contribute zero.
        error: why it failed or diverged, in one line.
        evaluated: how good a model is on held-out records of the clients, with noise; the last one that was evaluated.
    """

    kind: ClassVar[str] = "summary"
    format: Literal["fedamp summary 1"] = "fedamp summary 1"
    name: str
    final: Quality
    epsilon: Bracket
    released_rounds_epsilon: Bracket
    unamplified_epsilon: Bracket
    epsilon_server: Bracket | None = None
    epsilon_nodes: Bracket | None = None
    has_known_seed: bool
    rehearsal: str = Field("", exclude_if=lambda said: not said)
    unchecked: str = Field("", exclude_if=lambda said: not said)
    delta: float
    noise_multiplier: float
    rounds_completed: NonNegativeInt
    clients_scheduled: NonNegativeInt
    clients_trained: NonNegativeInt
    clients_failed: NonNegativeInt
    wall_seconds: float
    startup_seconds: float
    stopped_because: Ending
    error: str | None
    parameters: NonNegativeInt
    cost: ModelCost
    evaluated: Evaluated | None = Field(None, exclude_if=lambda found: found is None)


class Charged(FileRecord):
    """The common keys of a ledger and of a merged model's certificate: protection and cost."""

    format: str
    written_by: Annotated[str, Field(pattern=r"^fedamp \S{1,40}$")]
    unit: Literal["client", "sample"]
    units: PositiveInt
    group_size: PositiveInt
    adjacency: str
    delta: Annotated[float, Field(gt=0, lt=1)]
    budget_epsilon: float | None
    mechanism: Expression
    mechanism_in_words: str
    epsilon_bound: str
    assumptions: tuple[str, ...]

    @property
    def promise(self) -> dict[str, Any]:
        """Delta, unit, adjacency and group size of the guarantee."""
        return {key: getattr(self, key) for key in ("delta", "unit", "adjacency", "group_size")}


class LedgerEntry(Record):
    """One released round: its number, the epsilon spent after it (infinite without noise), SHA-256 of its model.

    ``record`` is the salted digest of its line of ``rounds.jsonl``, if any; ``link`` is of :mod:`fedamp.runs.chain`.
    ``evaluated`` is the evaluation that was released with it, if any.
    """

    round: PositiveInt
    epsilon_upper: Epsilon
    digest: str
    record: str | None
    evaluated: Evaluated | None = Field(None, exclude_if=lambda found: found is None)
    link: str


def _added() -> dict[str, Any]:
    """The keys of extensions, in front of the evaluation."""
    return {
        name: Annotated[
            named(key.record) | None, Field(None, exclude_if=lambda found: found is None), Before("evaluation")
        ]
        for name, key in ledger_keys().items()
    }


@partial(with_keys, added=_added())
class LedgerRecord(Charged):
    """``ledger.json``: the plan, its cost, and the releases; docs/results.md explains the keys.

    Extensions add keys of their own (:class:`fedamp.accounting.verify.LedgerKey`).

    ``frozen_sha256`` is of a custom model's frozen weights, ``noise_coefficients`` are c_1, c_2, .. of banded noise.
    ``server_mechanism`` and ``epsilon_server`` are for who runs the server; without them the server sees everything.
    ``nodes_mechanism`` and ``epsilon_nodes`` are for a registered node of a deployment, of units of other nodes.
    ``run`` is :attr:`fedamp.federation.plan.Plan.run`; None: of an earlier version.
    ``rehearsal`` is the sentence of :attr:`fedamp.federation.plan.Plan.rehearsal`, ``unchecked`` that of
    :attr:`fedamp.federation.plan.Plan.unchecked`.
    ``evaluation`` is the scenario's, with its noise, and ``final_evaluation`` what was released after the last round.
    ``statistics`` are the released numbers of ``data.transform`` with ``mean: private``, as a scenario takes them.
    Without noise ``guaranteed_epsilon`` is None, and while the run is played ``files`` is.
    """

    kind: ClassVar[str] = "ledger"
    format: Literal["fedamp ledger 4"]
    scenario: str
    scenario_sha256: str
    frozen_sha256: str | None
    amplification_charged: bool
    precision: float = Field(PRECISION, ge=1e-4, le=0.1, exclude_if=lambda width: width == PRECISION)
    parts: tuple[Part, ...] = Field(min_length=1)
    noise_coefficients: tuple[float, ...] = ()
    rounds_planned: Annotated[PositiveInt, Field(le=LONGEST_RUN)]
    whole_run_epsilon: Bracket
    server_mechanism: Expression | None = Field(None, exclude_if=lambda found: found is None)
    epsilon_server: Bracket | None = Field(None, exclude_if=lambda found: found is None)
    nodes_mechanism: Expression | None = Field(None, exclude_if=lambda found: found is None)
    epsilon_nodes: Bracket | None = Field(None, exclude_if=lambda found: found is None)
    guaranteed_epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    evaluation: ClientEvaluation | None = Field(None, exclude_if=lambda found: found is None)
    statistics: Standardise | None = Field(None, exclude_if=lambda found: found is None)
    noise_seed: str
    run: str | None = Field(None, exclude_if=lambda digest: digest is None)
    rehearsal: str = Field("", exclude_if=lambda said: not said)
    unchecked: str = Field("", exclude_if=lambda said: not said)
    guarantees_explained_in: Literal["docs/threat-model.md"] = "docs/threat-model.md"
    stopped_because: Ending | None
    files: dict[str, str] | None
    final_evaluation: Evaluated | None = Field(None, exclude_if=lambda found: found is None)
    releases: tuple[LedgerEntry, ...]
    head: str

    @property
    def released_rounds_epsilon(self) -> float:
        """Upper end of the cost of what has left the server, if the number of rounds was fixed before."""
        if self.releases or not self.has_left:
            return self.releases[-1].epsilon_upper if self.releases else 0.0
        cost = before_rounds(self.mechanism, self._beside)
        return cost.epsilon(delta_left(self.delta), precision=self.precision).upper

    @property
    def has_left(self) -> list[str]:
        """What has left the server, in words."""
        return has_left(vars(self))

    @property
    def epsilon(self) -> float:
        """Upper end of the guarantee, however the run was stopped by somebody who saw its releases."""
        planned = self.guaranteed_epsilon if self.has_left else 0.0
        return self.released_rounds_epsilon if planned is None else planned

    @property
    def is_evaluated(self) -> bool:
        """Whether models are evaluated, on public records."""
        return NOT_EVALUATED not in self.assumptions and (self.evaluation is None or EVALUATED in self.assumptions)

    @property
    def evaluated(self) -> Evaluated | None:
        """The last evaluation on held-out records of the clients."""
        each = [entry.evaluated for entry in self.releases if entry.evaluated]
        return self.final_evaluation or (each[-1] if each else None)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the whole update, or of its split part."""
        return self.parts[-1].noise_multiplier

    @property
    def has_known_seed(self) -> bool:
        """Whether the noise follows from the scenario's seed."""
        return self.noise_seed != FROM_SYSTEM

    @property
    def epsilon_follows(self) -> bool:
        """Whether the cost after each round follows from the mechanism alone.

        Without amplification it may span only the rounds in which one unit can take part; the scenario names them.
        """
        return not self.mechanism.is_private or self.mechanism.span == self.rounds_planned + self._ahead

    @property
    def _beside(self) -> int:
        at_end = self.evaluation is not None and self.evaluation.at_end
        return at_end + (self.statistics is not None)

    @property
    def _ahead(self) -> int:
        return ahead_of_rounds(self.mechanism, self._beside)

    def cost_after(self, rounds: int) -> Mechanism:
        """What the first rounds release, with the evaluation at the end; all of it where it spans no rounds."""
        return self.mechanism.after(min(rounds + self._ahead, self.mechanism.span))

    def check_rounds(self, most: int) -> None:
        """Check that rounds 1, 2, 3, ... are released once each, and at most ``most`` of them; else ValueError."""
        rounds = [entry.round for entry in self.releases]
        if rounds != list(range(1, len(rounds) + 1)) or len(rounds) > most:
            raise ValueError(f"its rounds are not 1, 2, 3, ... each once, up to at most {most}")
