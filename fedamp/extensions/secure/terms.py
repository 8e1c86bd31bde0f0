"""Define the section of secure aggregation, and the terms on which the nodes of a run agree.

Under secure aggregation every node answers in every round. Its answer is the sum of its units' updates, its share of
the noise, and a mask. The server sees the noisy sum of all nodes that answered. docs/research/secure-aggregation.md has
the protocol, and the proof that the nodes' shares cost what one Gaussian of their common variance costs.
"""

import hashlib
import json
import math
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.json_schema import SkipJsonSchema

from fedamp.base.record import Record
from fedamp.base.section import MOST_COUNTED, MOST_UNITS, Before, Count, NotInDigest
from fedamp.extensions.secure.protocol import ProtocolSettings
from fedamp.federation import facts
from fedamp.federation.aggregation import AggregationScheme
from fedamp.federation.choices import AnyCheckIn
from fedamp.federation.facts import AnyScenario, Stance

STEPS = 12  # log2 of the multiples of the grid in a share of the noise: few bits a word, and rounding is 1e-8 of it
MOST_NODES = 10**6  # the protocol's neighbours are searched for
_TAIL = 12  # deviations of cohort and noise for which a word has room; with more the model is wrong, not the guarantee

_Number = Annotated[int, Field(ge=0, le=MOST_COUNTED)]
_Noise = Annotated[float, Field(ge=0, le=1e50)]  # squares of more would overflow
LessThanHalf = Annotated[float, Field(ge=0, lt=0.5)]


def _without_protocol(simulate: str) -> str:
    """Accept a value of older versions with a warning: noise of the same law is charged alike."""
    if simulate == "protocol":
        told = "aggregation.simulate: protocol was removed; a simulation plays the sum, and nodes with an agreement all"
        warnings.warn(told, stacklevel=2)
    return simulate


class SecureAggregation(AggregationScheme):
    """The server sees the noisy sum of all nodes alone (SecAgg+, Bell et al. 2020; each node adds a share of noise).

    A simulation plays the sum with noise of the same law.
    """

    scheme: Literal["secure"]
    dropped: LessThanHalf = Field(
        0.2, description="share of the nodes that may drop out of a round; with more it fails"
    )
    colluding: LessThanHalf = Field(0.1, description="share of the nodes that may tell the server all they know")
    nodes: Literal["auto"] | Annotated[Count, Field(le=MOST_NODES)] = Field(
        "auto", description="number of nodes; auto: those of federation.hosts, or else one for each unit"
    )
    needs = facts.needs_facts(facts.NOISE_INDEPENDENT, facts.ONE_NODE_EACH, facts.TRAINED_HERE)
    keeps = frozenset({facts.SUM_OF_ALL})
    hides_sums = True
    aggregator = "fedamp.extensions.secure.secure_sums:SecureSums"
    simulate: Annotated[Literal["sum", "protocol"], SkipJsonSchema(), AfterValidator(_without_protocol)] = "sum"

    def check_within(self, scenario: AnyScenario) -> None:
        """Refuse another number of nodes than ``federation.hosts`` names.

        Raises:
            ValueError: the two differ.
        """
        if (hosted := len(scenario.federation.hosted_units)) and self.nodes not in ("auto", hosted):
            raise ValueError(f"aggregation.nodes is {self.nodes}, but federation.hosts names {hosted}")

    def agreed_terms(self, plan: Any) -> "AgreedTerms":
        """Make the terms of a plan.

        Args:
            plan: of the run.

        Raises:
            ValueError: too few nodes for the shares that drop out and collude.
        """
        asked, check_in, rounds, units = plan.scenario, plan.check_in, plan.scenario.rounds, plan.units
        nodes = (len(asked.federation.hosted_units) or units) if self.nodes == "auto" else self.nodes
        side = plan.side_sum
        terms = AgreedTerms(
            nodes=nodes,
            units=units,
            rounds=rounds,
            dropped=math.floor(self.dropped * nodes),
            colluding=math.floor(self.colluding * nodes),
            check_in=check_in if check_in.drawn_by == "node" else None,
            most_check_ins=check_in.most_check_ins(rounds, rounds),
            noise_multipliers=tuple(part.noise_multiplier for part in plan.parts),
            count_noise=plan.clipping.count_noise,
            evaluation_noise=0.0 if side is None else side.noise,
            evaluated_at_end=side is not None and side.at_end,
            bits=64,
        )
        if terms.honest < 1:
            raise ValueError(
                f"aggregation: of {nodes} nodes {terms.dropped} may drop out and {terms.colluding} collude"
            )
        terms.settings.check()
        cohort = check_in.expected_cohort(rounds, units)
        cohort = min(units, cohort + _TAIL * math.sqrt(cohort) + _TAIL)
        signals = [cohort / each if each else math.inf for each in terms.noise_multipliers]
        if terms.evaluation_noise:
            signals.append((units if terms.evaluated_at_end else cohort) / terms.evaluation_noise)
        signal = max(signals) + _TAIL * math.sqrt(nodes / terms.honest)
        fits = signal * math.sqrt(terms.honest) * 2 ** (STEPS + 1) < 2**30
        return terms.model_copy(update={"bits": 32 if fits else 64})

    def agreed_nodes(self, agreed: "AgreedTerms") -> int:
        """Return the number of nodes of the terms."""
        return agreed.nodes

    def trust_assumption(self, agreed: "AgreedTerms") -> str:
        """Write down who may be dishonest, and what is expected of the others, for the ledger."""
        return (
            f"The server and up to {agreed.colluding} of {agreed.nodes} nodes may be dishonest: they see noisy sums "
            "alone. The other nodes run fedamp with the terms of this run, and hold the public keys of each other."
        )

    def task_keys(self, agreed: "AgreedTerms") -> dict[str, Any]:
        """Return the terms under their key of what clients are told."""
        return {"terms": agreed}


class AgreedTerms(Record):
    """Terms of a run; a node that has agreed to them takes part in nothing else.

    Attributes:
        nodes, units, rounds: of the run.
        dropped: nodes of a round that may drop out.
        colluding: nodes that may tell the server all they know.
        check_in: by which nodes draw their units' rounds, from randomness of their own; None: the server names them.
        most_check_ins: of a unit, in all rounds.
        noise_multipliers: of each part of the model, for the sum of all honest nodes; 0: no noise.
        count_noise: deviation of the noise on the count of short updates, in counts; 0: no count is sent.
        evaluation_noise: over a unit's largest contribution to a side sum, such as an evaluation; 0: there is none.
        evaluated_at_end: whether all units contribute to it once, after the last round.
        bits: of a word, 32 or 64: sums are modulo 2**bits.
    """

    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    units: Annotated[int, Field(ge=1, le=MOST_UNITS)]
    rounds: Annotated[int, Field(ge=1, le=MOST_COUNTED)]
    dropped: _Number
    colluding: _Number
    check_in: AnyCheckIn | None
    most_check_ins: _Number
    noise_multipliers: Annotated[tuple[_Noise, ...], Field(max_length=2)]
    count_noise: _Noise
    evaluation_noise: _Noise = Field(0.0, exclude_if=lambda noise: noise == 0)
    evaluated_at_end: bool = Field(False, exclude_if=lambda asked: not asked)
    bits: Literal[32, 64]

    def context(self, round_: int, clips: Sequence[float], attempt: bytes) -> bytes:
        """Return the bytes that enter all keys of an attempt at a round.

        So nodes that are told other numbers share no mask. A node's noise is in proportion to its clipping norm: a
        larger norm for one node alone would hide it less.

        Args:
            round_: from 1.
            clips: clipping norms of the round.
            attempt: bytes that no other attempt has.
        """
        numbers = json.dumps([self.content(), round_, list(map(float, clips))], sort_keys=True)
        return hashlib.sha256(numbers.encode()).digest() + attempt

    @property
    def settings(self) -> ProtocolSettings:
        """Settings of the protocol."""
        return ProtocolSettings(self.nodes, self.dropped, self.colluding)

    @property
    def last_round(self) -> int:
        """Number of the last sum: that of the side sum at the end, if there is one, or of the last round."""
        return self.rounds + self.evaluated_at_end

    @property
    def honest(self) -> int:
        """Least number of honest nodes in a sum: their noise together is what is charged."""
        return self.nodes - self.dropped - self.colluding

    def share(self, deviation: float) -> float:
        """Return the deviation of one node's share of noise, if all honest nodes together add ``deviation``."""
        return deviation / math.sqrt(self.honest)


def terms_of(task: Any) -> AgreedTerms | None:
    """Return the terms in what clients are told (:class:`fedamp.client.task.ClientTask`); None: it has none."""
    found: AgreedTerms | None = task.terms
    return found


TERMS = Annotated[AgreedTerms | None, Field(None), Before("answer_after"), NotInDigest()]
"""The key ``terms`` of what clients are told."""

AGREEMENT = Annotated[
    str | None,
    Field(
        None,
        description="deployment: the nodes' agreement.json (aggregation: {scheme: secure}), by which the server leaves "
        "out a node with a false signature",
    ),
    Before("checkpoint_every"),
    Stance(keeps=facts.FACTS),
]
"""The key ``federation.agreement`` of a scenario."""
