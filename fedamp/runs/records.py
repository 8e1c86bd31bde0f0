"""Define the keys of every file of a run, typed: ``rounds.jsonl``, ``summary.json`` and ``ledger.json``.

An infinite epsilon is ``math.inf`` here and null in a file, because JSON has no infinity. Files are contracts: a key
keeps its name and meaning. Which check computes each key again is in :mod:`fedamp.accounting.verify`; docs/results.md
explains the keys to users.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
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
from fedamp.accounting.verify import (
    FROM_SYSTEM,
    SideSumKeys,
    ahead_of_rounds,
    before_rounds,
    first_release_words,
    has_left,
    ledger_keys,
    side_sums,
)
from fedamp.base.files import FileRecord
from fedamp.base.record import Record
from fedamp.base.section import Before, with_keys
from fedamp.extension import named
from fedamp.federation.scenario import LONGEST_RUN
from fedamp.federation.side_sums import SideRelease, SideSum
from fedamp.federation.submodels import Part

KNOWN_SEED = "known: the scenario's, so everybody who knows it can subtract the noise"
EVALUATED = "Accuracy and loss are computed on a test set that is declared public."
EVALUATED_BY_APP = "What the app evaluates itself, it evaluates on public records."
NOT_EVALUATED = "No evaluation: no model was tested on anybody's records."


def _mechanism_of(value: Any) -> Mechanism:
    """Read an expression, and refuse one that spans more rounds than a run can have."""
    mechanism = value if isinstance(value, Mechanism) else from_json(value)
    if mechanism.span > LONGEST_RUN:
        raise ValueError(f"it spans {mechanism.span} rounds; expected: at most {LONGEST_RUN}")
    return mechanism


def _finite_or_none(value: float | None, asked: ValidationInfo) -> float | None:
    """Turn a number that is not finite into None; a file with one is refused."""
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
FiniteOrNone = Annotated[float | None, AfterValidator(_finite_or_none)]
Expression = Annotated[Mechanism, PlainValidator(_mechanism_of), PlainSerializer(lambda mechanism: mechanism.to_json())]
"""Accounting expression; in a file it is what ``fedamp.accounting.from_json`` reads."""


class Bracket(Record):
    """Both ends of an epsilon.

    Attributes:
        lower, upper: at least 0, perhaps infinite; the true value lies between them.
    """

    lower: Epsilon
    upper: Epsilon

    @classmethod
    def of(cls, bounds: Bounds) -> "Bracket":
        """Make the record of an accountant's bracket."""
        return cls(lower=bounds.lower, upper=bounds.upper)


Score = tuple[str, float]
"""Name and value of the leading metric: at most 1, and more is better."""


def measured(loss: float | None, metrics: Mapping[str, float]) -> dict[str, Any]:
    """Make the keys of a record that say how good a model is: ``loss``, ``accuracy``, and all other ``metrics``.

    A custom loss may have metrics that are not finite; they are left out, because no file could hold them.

    Args:
        loss: mean loss on the public test set; None: the model was not evaluated.
        metrics: by name.
    """
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


def _or_left_out(path: str, *place: Before) -> Any:
    """Annotate a key whose class an extension names; a file without a value has no such key."""
    optional = (named(path) | None, Field(None, exclude_if=lambda found: found is None), *place)
    return Annotated[optional]


def _side_releases(*place: Before) -> dict[str, Any]:
    """List the keys of released side sums, in a record of a round or of a run."""
    return {each.in_round: _or_left_out(each.release, *place) for each in side_sums().values()}


def side_key(side: SideSum | None, found: SideRelease | Mapping[str, Any] | None) -> dict[str, Any]:
    """Make the key of a side sum's release in a record of a round or of a run.

    Args:
        side: the section; None: no side sum was asked for.
        found: its release, if there is one yet.

    Returns:
        The key with its value; empty without a side sum.
    """
    return {} if side is None else {side_sums()[side.key].in_round: found}


def last_side_release(side: SideSumKeys, at_end: Any, releases: "Sequence[LedgerEntry]") -> Any:
    """Return the last release of a side sum: the one after the last round, or that of a round; None: there is none.

    Args:
        side: its keys.
        at_end: its release after the last round, if there is one.
        releases: rounds of the ledger, in order.
    """
    return at_end or next(filter(None, (getattr(entry, side.in_round) for entry in reversed(releases))), None)


class SideReleased(Record):
    """Base of records that may hold a released side sum, under a key of its extension."""

    @property
    def side_release(self) -> SideRelease | None:
        """Released side sum; None: the record has none."""
        return next(filter(None, (getattr(self, each.in_round) for each in side_sums().values())), None)


@partial(with_keys, added=_side_releases(Before("nodes_given_up")))
class RoundRecord(Quality, SideReleased):
    """A line of ``rounds.jsonl``, with the quality of the new global model.

    It is for the owner of the run: ``scheduled``, ``reported`` and ``unprotected`` have no noise.
    Extensions add the side sum of the cohort, over the model of the round before.

    Attributes:
        round: from 1.
        epsilon_upper: upper end of the epsilon spent so far; infinite without noise.
        scheduled, reported: units in the round's cohort, and those that answered.
        seconds: wall time of the round.
        noise_surplus: variance of the noise over the one that is charged, minus 1 (secure aggregation).
        impossible_sum: whether the sum could not be that of honest nodes; zeros were then released in its place.
        nodes_given_up, nodes_back: ids of nodes that are no longer waited for, and that answer again.
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
    nodes_given_up: tuple[NonNegativeInt, ...] = ()
    nodes_back: tuple[NonNegativeInt, ...] = ()
    unprotected: dict[str, int | float]


def last_quality(rounds: Iterable[RoundRecord]) -> Quality:
    """Return the quality of the last evaluated model; an empty one if none was evaluated."""
    each = [record.model_dump(include=set(Quality.model_fields)) for record in rounds if record.score is not None]
    return Quality(**each[-1]) if each else Quality(accuracy=None, loss=None)


def reports(rounds: Iterable[RoundRecord]) -> tuple[int, int, int]:
    """Count scheduled units, units that reported, and units that failed (bad update or records), summed over rounds."""
    each = [(record.scheduled, record.reported, int(record.unprotected.get("failed", 0))) for record in rounds]
    scheduled, reported, failed = map(sum, zip((0, 0, 0), *each, strict=True))
    return scheduled, reported, failed


Ending = Literal["finished", "budget", "interrupted", "failed", "diverged"]
"""Reason why a run stopped; ``finished`` and ``budget`` were decided before it began."""


class ModelCost(Record):
    """Size and work of a unit's model in a round: mean over the submodels, and shares of the whole model.

    Attributes:
        parameters_per_client: number of parameters that a client trains.
        parameters_share: the same over the whole model's, in (0, 1].
        flops_per_record: floating-point operations of a forward and a backward pass of one record.
        flops_share: the same over the whole model's, in (0, 1].
    """

    parameters_per_client: float
    parameters_share: float
    flops_per_record: float
    flops_share: float

    @property
    def bytes_per_check_in(self) -> int:
        """Bytes of a model as float32 to a client and of its update as float64 back, without the envelope."""
        return round(self.parameters_per_client * (4 + 8))


@partial(with_keys, added=_side_releases())
class Summary(FileRecord, SideReleased):
    """The file ``summary.json`` of a run that has stopped. It is for the owner: its counts have no noise.

    Extensions add the last side sum that was released.

    Attributes:
        final: quality of the last evaluated model.
        epsilon: the guarantee, also if a person who saw its releases stopped the run.
        released_rounds_epsilon: the cost of the released rounds if their number was fixed before.
        unamplified_epsilon: the cost of all planned rounds without amplification.
        epsilon_server: towards the operator of the server, of all planned rounds; None: the server sees everything.
        epsilon_nodes: towards a registered node, for units of other nodes; None: no nodes are named.
        clients_scheduled, clients_trained: scheduled units of the released rounds, and those that reported.
        clients_failed: units whose update was not finite, or whose records could not be read; they contribute zero.
        wall_seconds, startup_seconds: time of all rounds, and time before the first one.
        error: why it failed or diverged, in one line.
        parameters: number of the model's parameters.
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


class Charged(FileRecord):
    """The common keys of a ledger and of a merged model's certificate: protection and cost.

    Attributes:
        written_by: name and version, as ``fedamp 2.1``.
        unit, units, group_size: what is protected, how many there are, and how many together.
        adjacency: the neighbouring relation in words.
        delta: in (0, 1).
        budget_epsilon: the budget; None: there was none.
        mechanism, mechanism_in_words: the expression that is charged.
        epsilon_bound: how the bracket was computed, in words.
        assumptions: sentences on which the guarantee rests.
    """

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


@partial(with_keys, added=_side_releases(Before("link")))
class LedgerEntry(SideReleased):
    """One released round.

    Extensions add the side sum that was released with it.

    Attributes:
        round: from 1.
        epsilon_upper: upper end of the epsilon spent after it; infinite without noise.
        digest: SHA-256 of its model (:func:`fedamp.runs.ledger.digest`).
        record: salted digest of its line of ``rounds.jsonl``; None: there is no line.
        link: of the chain: digest of this entry and the link before (:mod:`fedamp.accounting.verify`).
    """

    round: PositiveInt
    epsilon_upper: Epsilon
    digest: str
    record: str | None
    link: str


def _extension_keys() -> dict[str, Any]:
    """List the keys of extensions, each with its place."""
    records = {name: key.record for name, key in ledger_keys().items()}
    records |= {name: each.section for name, each in side_sums().items()}
    last = sorted(records, key=first_release_words().__contains__)
    added = {name: _or_left_out(records[name], Before("noise_seed")) for name in last}
    return added | {each.at_end: _or_left_out(each.release, Before("releases")) for each in side_sums().values()}


@partial(with_keys, added=_extension_keys())
class LedgerRecord(Charged):
    """The file ``ledger.json``: the plan, its cost, and the releases; docs/results.md explains the keys.

    Extensions add keys of their own (:class:`fedamp.accounting.verify.LedgerKey`), and side sums: the scenario's
    section with its noise, and what was released after the last round (:class:`fedamp.accounting.verify.SideSumKeys`).

    Attributes:
        scenario, scenario_sha256: name and fingerprint of the scenario.
        frozen_sha256: digest of a custom model's frozen weights; None: a built-in model.
        parts: of the model, each with norm, noise multiplier and denominator; at least one.
        noise_coefficients: c_1, c_2, .. of correlated noise; empty: it is independent.
        rounds_planned: the scenario's rounds.
        whole_run_epsilon: of all planned rounds.
        guaranteed_epsilon: upper end of the rounds up to the last one that the budget pays for; None without noise.
        server_mechanism, epsilon_server: towards the operator of the server; without them the server sees everything.
        nodes_mechanism, epsilon_nodes: towards a registered node of a deployment, for units of other nodes.
        noise_seed: words for where the seed came from.
        run: :attr:`fedamp.federation.plan.Plan.run_digest`; None: an earlier version wrote the ledger.
        rehearsal, unchecked: sentences of the :class:`fedamp.federation.plan.Plan`; mostly empty.
        stopped_because, files: why the run stopped, and digests of its files; None while it is played.
        releases: in order of the rounds.
        head: digest of the last link, the reason for the stop and the files' digests.
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
    noise_seed: str
    run: str | None = Field(None, exclude_if=lambda digest: digest is None)
    rehearsal: str = Field("", exclude_if=lambda said: not said)
    unchecked: str = Field("", exclude_if=lambda said: not said)
    guarantees_explained_in: Literal["docs/threat-model.md"] = "docs/threat-model.md"
    stopped_because: Ending | None
    files: dict[str, str] | None
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
        """List what has left the server, in words; empty: the run costs nothing."""
        return has_left(vars(self))

    @property
    def epsilon(self) -> float:
        """Upper end of the guarantee, also if a person who saw its releases stopped the run."""
        planned = self.guaranteed_epsilon if self.has_left else 0.0
        return self.released_rounds_epsilon if planned is None else planned

    @property
    def is_evaluated(self) -> bool:
        """Say whether models are evaluated on public records."""
        return NOT_EVALUATED not in self.assumptions and (self.side_sum is None or EVALUATED in self.assumptions)

    @property
    def side_sum(self) -> SideSum | None:
        """Section of the side sum, with its noise; None: there is none."""
        return next(filter(None, (getattr(self, key) for key in side_sums())), None)

    @property
    def side_release(self) -> SideRelease | None:
        """Last side sum that was released; None: there is none yet."""
        return next(filter(None, map(self.last_of, side_sums().values())), None)

    def last_of(self, side: SideSumKeys) -> SideRelease | None:
        """Return the last release of a side sum, by its keys; None: there is none yet."""
        found: SideRelease | None = last_side_release(side, getattr(self, side.at_end), self.releases)
        return found

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of the whole update, or of its split part."""
        return self.parts[-1].noise_multiplier

    @property
    def has_known_seed(self) -> bool:
        """Say whether the noise follows from the scenario's seed."""
        return self.noise_seed != FROM_SYSTEM

    @property
    def epsilon_follows(self) -> bool:
        """Say whether the cost after each round follows from the mechanism alone.

        Without amplification it may span only the rounds in which one unit can take part; the scenario names them.
        """
        return not self.mechanism.is_private or self.mechanism.span == self.rounds_planned + self._ahead

    @property
    def _beside(self) -> int:
        """Number of releases beside the rounds, as the charge counts them."""
        at_end = self.side_sum is not None and self.side_sum.at_end
        return at_end + sum(getattr(self, key) is not None for key in first_release_words())

    @property
    def _ahead(self) -> int:
        """Number of the mechanism's steps ahead of the first round."""
        return ahead_of_rounds(self.mechanism, self._beside)

    def cost_after(self, rounds: int) -> Mechanism:
        """Cut the mechanism to the first rounds and what is released beside them; it stays where it spans no rounds."""
        return self.mechanism.after(min(rounds + self._ahead, self.mechanism.span))

    def check_rounds(self, most: int) -> None:
        """Check that rounds 1, 2, 3, ... are released once each.

        Args:
            most: the largest number of them.

        Raises:
            ValueError: another order, a round twice, or more than ``most``.
        """
        rounds = [entry.round for entry in self.releases]
        if rounds != list(range(1, len(rounds) + 1)) or len(rounds) > most:
            raise ValueError(f"its rounds are not 1, 2, 3, ... each once, up to at most {most}")
