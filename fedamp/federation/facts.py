"""Name the facts on which keys of a scenario rest. One key needs a fact, and another one may break it.

Each key says this for itself, so a new key needs no list of all others. What a plug-in does not say that it keeps, it
breaks. Schemes and sections declare their stance as class attributes of :class:`Declared`.
:mod:`fedamp.federation.refusals` compares them; docs/matrix.md shows all facts in a table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from fedamp.base.section import Section

AnyScenario = Any
"""Scenario as in :mod:`fedamp.federation.scenario`, which imports this module."""


@dataclass(frozen=True)
class ScenarioFact:
    """A fact about a scenario.

    Attributes:
        sentence: the fact in words, as it stands in a refusal; two facts differ in it.
    """

    sentence: str


# about the data and the units
RECORDS_DEALT = ScenarioFact("records are dealt among clients, and no column names their clients")
RECORDS_HAVE_CLIENTS = ScenarioFact("each record has a client: data.clients is given, or a column names it")
UNIT_IS_CLIENT = ScenarioFact("the unit is a client with records of its own")
ONE_GRADIENT = ScenarioFact("a unit contributes one gradient a round")
TRAINED_HERE = ScenarioFact("fedamp reads the records and trains the model itself")
SCORED = ScenarioFact("the loss tells whether a record is right")
CLASS_SHARES = ScenarioFact("the loss is cross-entropy, with a share for each class")
# about the model
WHOLE_MODEL = ScenarioFact("every unit trains the whole model")
GLOBAL_MODEL = ScenarioFact("all parameters are the server's, and none stays with a client")
# about check-in
ROUNDS_APART = ScenarioFact("a unit's rounds are at least a known number of rounds apart")
ANY_ROUNDS_APART = ScenarioFact("a unit's rounds are any set of rounds that are at least a number of rounds apart")
UNITS_INDEPENDENT = ScenarioFact("a unit's check-ins tell nothing about those of other units")
UNITS_ALIKE = ScenarioFact("every round takes each unit with the same probability")
GROUPS_CHARGED = ScenarioFact("the cost of a group of units is known")
# about noise and clipping
NOISE_ADDED = ScenarioFact("rounds have noise")
NOISE_INDEPENDENT = ScenarioFact("the noise of each round is independent of that of other rounds")
NOISE_HAS_BANDS = ScenarioFact("the noise of a round is correlated over a number of rounds")
NOISE_FOLLOWS = ScenarioFact("the noise multiplier follows from the budget, so that noise is compared at one epsilon")
NOISE_ALONE = ScenarioFact("noise alone hides the sum of a round")
SERVER_ADDS_NOISE = ScenarioFact("the server adds the noise, and no node does")
CLIP_FIXED = ScenarioFact("the clipping norm is fixed before the run")
CLIPS_APART = ScenarioFact("each part of the model may have a clipping norm of its own")
# about what leaves the server
SUM_OF_ALL = ScenarioFact("the server sees the sum of all nodes alone")
MODEL_ALONE = ScenarioFact("a round releases nothing but the sum of the model's updates")
ROUNDS_ALONE = ScenarioFact("nothing but the rounds is released")
SHOWN_ONCE = ScenarioFact("the noise of a round shows in the next model alone, because the server has no memory of it")
LINEAR_STEP = ScenarioFact("the server's step is linear in the sum")
# about how it runs
SIMULATED = ScenarioFact("the units live in a simulation")
ONE_MACHINE = ScenarioFact("the workers are processes of one machine")
ONE_NODE_EACH = ScenarioFact("each unit lives on one node, by its id")
OWN_NOISE = ScenarioFact("noise and charge are those of this run, not of another federation")
SEED_PUBLIC = ScenarioFact("the seed is public, because a rehearsal protects nobody")
NOBODY_PAYS = ScenarioFact("the run stands alone, and no population pays for it")

FACTS = frozenset(value for value in vars().values() if isinstance(value, ScenarioFact))


def always_holds(scenario: AnyScenario) -> bool:
    """Accept every scenario: the claim holds whenever its key is there."""
    return True


@dataclass(frozen=True)
class Claim:
    """The statement that a key needs a fact, or breaks it.

    Attributes:
        fact: the fact.
        key: the path of the key below its section; empty: the section itself. In the core's table: from the top.
        accepted: values of the key for which the claim does not hold; empty: schemes of the family for which it does
            not, or that the key is left out.
        when: whether the claim holds in a scenario that has the key.
    """

    fact: ScenarioFact
    key: str = ""
    accepted: str = ""
    when: Callable[[AnyScenario], bool] = always_holds


@dataclass(frozen=True)
class Stance:
    """The facts that a key needs, breaks and keeps; it annotates the type of a key that is no section.

    Attributes:
        needs, breaks: claims.
        keeps: facts that it does not break. It breaks all others.
        concerns: facts that it can break at all; None: any.
    """

    needs: tuple[Claim, ...] = ()
    breaks: tuple[Claim, ...] = ()
    keeps: frozenset[ScenarioFact] = frozenset()
    concerns: frozenset[ScenarioFact] | None = None


class Declared(Section):
    """Base of sections with a stance, as in :class:`Stance`; by default a section breaks every fact.

    Attributes:
        needs, breaks, keeps, concerns: as in :class:`Stance`, for all instances of the class.
        before: the scheme in front of which this scheme of an extension is listed; empty: it is among the last.
    """

    needs: ClassVar[tuple[Claim, ...]] = ()
    breaks: ClassVar[tuple[Claim, ...]] = ()
    keeps: ClassVar[frozenset[ScenarioFact]] = frozenset()
    concerns: ClassVar[frozenset[ScenarioFact] | None] = None
    before: ClassVar[str] = ""

    def check_within(self, scenario: AnyScenario) -> None:
        """Refuse keys that do not fit numbers elsewhere in the scenario.

        Raises:
            ValueError: one line with the path of the key.
        """


def needs_facts(*facts: ScenarioFact) -> tuple[Claim, ...]:
    """Make claims that a section needs these facts, whatever its keys are."""
    return tuple(map(Claim, facts))
