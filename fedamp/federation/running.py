"""Define how a scenario is run: engine, tolerances of the server, injected faults, and trackers.

None of these sections changes what is charged, except ``federation.hosts`` with its dummies, which decide what a
registered node can see. The engines read ``engine`` and ``faults`` (:mod:`fedamp.engines`); the server reads
``federation``. A fingerprint leaves most of these keys out (:func:`fedamp.runs.ledger.fingerprint`).
"""

import math
import warnings
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from fedamp.base import devices, ids
from fedamp.base.section import Count, Positive, Rate, Section, removed
from fedamp.extension import keys
from fedamp.federation.added_keys import extend


def _without_flower(kind: Any) -> Any:
    """Read an engine that only older versions had; the engine changes no result, so their scenarios stay valid."""
    if kind != "flower":
        return kind
    warnings.warn("engine.kind: flower was removed; auto takes its place, or: flwr run .", stacklevel=2)
    return "auto"


class Engine(Section):
    """Where the clients train. Only GPUs and ``clients_per_batch`` change the result, within rounding.

    The number of workers, and the order of their answers, change nothing.
    """

    kind: Annotated[Literal["auto", "ray", "serial"], BeforeValidator(_without_flower)] = Field(
        "auto", description="auto: Ray where it is installed and worth its start, else serial; the same bits"
    )
    workers: Annotated[Count, Field(le=10_000)] | Literal["auto"] = Field(
        "auto", description="processes that train; auto: one a core, or a GPU"
    )
    device: str = Field("auto", pattern=devices.PATTERN, description="where clients train, such as cpu or cuda")
    clients_per_batch: Annotated[Count, Field(le=1 << 20)] | Literal["auto"] = Field(
        "auto",
        description="how many clients train stacked together; auto: follows from the scenario and the model. Another "
        "number may change the model within rounding",
    )
    address: str | None = Field(None, description="address of a Ray cluster; default: this machine")


def share_of_each(workers: int, units: float) -> float:
    """Compute the part of a core or GPU that a worker gets, so that all fit; at most a whole one.

    >>> share_of_each(3, 2), share_of_each(1, 2)
    (0.5, 1.0)
    """
    return 1 / math.ceil(workers / max(1, int(units)))


# YAML reads a single id as a number.
Hosted = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]


@partial(extend, path="federation")
class Federation(Section):
    """Deadlines, quorum and hosts: what the server tolerates.

    Hosts, dummies and answer_after decide what a registered node can see.
    """

    round_deadline: Positive = Field(600.0, description="seconds after which missing clients count as zero")
    quorum: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="share of a round's cohort that must report; otherwise the run stops and can be resumed. Default: "
        "all clients in a simulation, where a missing client is a mistake; half of them in a deployment, and in a "
        "simulation with faults",
    )
    nodes: Count = Field(1, description="deployment: how many nodes to wait for before the first round")
    hosts: Literal["trusted"] | dict[str, Hosted] | None = Field(
        None,
        description="deployment: the units that each node hosts, by the node's registered name: ids such as 0-9,12, or "
        "all; trusted: each node names its own units",
    )
    dummies: Literal["auto"] | bool = Field(
        "auto",
        description="deployment: every node is asked in every round and trains all its units, so that no other node, "
        "and nobody on the way, sees who checks in; what is trained beyond the cohort is thrown away. auto: where "
        "hosts names the units, and each node has a single one, or all are at most ten times the expected cohort, or "
        "answer_after is given. Otherwise registered nodes are charged without amplification",
    )
    answer_after: Positive | None = Field(
        None,
        description="deployment: seconds after which every node answers, whatever it trained; dummies then cost bytes, "
        "and no training. A node that needs longer counts as zero",
    )
    without: tuple[str, ...] = Field(
        (),
        description="deployment: names in federation.hosts of nodes that are asked nothing more, such as suspects "
        "after an impossible sum; their units count as zero",
    )
    checkpoint_every: Count = Field(10, description="rounds between checkpoints")
    keep_secrets: bool = Field(
        False, description="keep seed.secret and the checkpoints of a run that has ended, instead of deleting them"
    )
    evaluate_every: Annotated[int, Field(ge=0, strict=True)] | Literal["auto"] = Field(
        "auto",
        description="rounds between evaluations on the public test set; 0: none; auto: each round, or less often "
        "(down to ten times a run) where they would cost more than the training",
    )
    validation_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="share of the public test records that is kept apart for choosing between settings (fedamp sweep); "
        "accuracy and loss are those of the others",
    )

    @model_validator(mode="after")
    def _one_host_each(self) -> "Federation":
        """Refuse a unit with two nodes, unknown names, and keys that contradict each other."""
        claims: list[tuple[int, int, str]] = []
        for name, text in self.hosts.items() if isinstance(self.hosts, dict) else ():
            try:
                claims += [(*pair, name) for pair in ids.ranges(text)] if text != "all" else []
            except ValueError as error:
                raise ValueError(f"federation.hosts.{name} {error}, or all") from None
        for (_, last, one), (first, _, other) in pairwise(sorted(claims)):
            if first <= last:
                raise ValueError(f"federation.hosts: unit {first} stands for {one} and for {other}; expected: one node")
        if isinstance(self.hosts, dict) and (strangers := sorted(set(self.without) - set(self.hosts))):
            raise ValueError(f"federation.without names {', '.join(strangers)}; expected: names in federation.hosts")
        if self.dummies is True and 0 in self.hosted_units.values():
            raise ValueError("federation.dummies needs to know each node's units; expected in federation.hosts: no all")
        if self.answer_after is not None and self.answer_after >= self.round_deadline:
            raise ValueError(
                f"federation.answer_after {self.answer_after:g} must be below round_deadline {self.round_deadline:g}"
            )
        return self

    @property
    def hosted_units(self) -> dict[str, int]:
        """Number of units of each node in ``hosts``; 0: it can train all of them."""
        named = self.hosts if isinstance(self.hosts, dict) else {}
        pairs = {name: () if text == "all" else ids.ranges(text) for name, text in named.items()}
        return {name: sum(last - first + 1 for first, last in found) for name, found in pairs.items()}

    @property
    def names_units(self) -> bool:
        """Say whether the operator names for every unit the single node on which it lives."""
        return bool(self.hosted_units) and 0 not in self.hosted_units.values()


class Faults(Section):
    """Injected faults of a simulation, the same in every run with the same seed.

    Units that fail count as zero and are charged; no unit is rescheduled.
    """

    seed: Annotated[int, Field(ge=0, strict=True)] = Field(0, description="decides who fails when")
    failing: Rate = Field(0.0, description="probability that a client never answers in a round")
    late: Annotated[Rate, SkipJsonSchema()] = 0.0  # of older versions: a late answer counts as none
    repeating: Annotated[Any, *removed(0.0, "0; a node's second answer is refused in every run")] = 0.0
    vanishing: Annotated[Any, *removed(None, "null, and faults.failing instead")] = None
    killed_workers: Rate = Field(0.0, description="probability that a worker is killed in a round (engine.kind: ray)")


def _name_alone(tracker: Any) -> Any:
    """Read a tracker's section of older versions as its name; environment variables replace its settings."""
    if not isinstance(tracker, dict) or "name" not in tracker:
        return tracker
    asked = sorted(key for key, value in tracker.items() if key != "name" and value not in _OLD_DEFAULTS)
    if asked:
        warnings.warn(
            f"trackers: {', '.join(asked)} was removed and does nothing; expected: names, and the trackers' own "
            "environment variables, such as MLFLOW_TRACKING_URI (docs/studies.md)",
            stacklevel=2,
        )
    return tracker["name"]


def _each_once(trackers: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a tracker that is named more than once."""
    if len(set(trackers)) < len(trackers):
        raise ValueError("duplicate tracker; expected: each at most once")
    return trackers


_OLD_DEFAULTS = (None, False, "fedamp", "online")
_NAMES = tuple(keys("trackers"))
if TYPE_CHECKING:
    TrackerName = str
else:  # without any extension there is no name that is accepted
    TrackerName = Annotated[Literal[_NAMES] if _NAMES else str, BeforeValidator(_name_alone)]
Trackers = Annotated[tuple[TrackerName, ...], Field(max_length=None if _NAMES else 0), AfterValidator(_each_once)]
