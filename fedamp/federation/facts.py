"""Facts on which keys of a scenario rest. One key needs a fact, and another one may break it.

Each key says this for itself, so a new key needs no list of all others. What a plug-in does not say that it keeps, it
breaks. :mod:`fedamp.federation.refusals` compares.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from fedamp.base.section import Section

AnyScenario = Any
"""A scenario, in :mod:`fedamp.federation.scenario`, which imports this module."""


@dataclass(frozen=True)
class Fact:
    """A fact about a scenario, as a sentence."""

    sentence: str


# about the data and the units
RECORDS_DEALT = Fact("records are dealt among clients, and no column names their clients")
RECORDS_HAVE_CLIENTS = Fact("each record has a client: data.clients is given, or a column names it")
UNIT_IS_CLIENT = Fact("the unit is a client with records of its own")
ONE_GRADIENT = Fact("a unit contributes one gradient a round")
TRAINED_HERE = Fact("fedamp reads the records and trains the model itself")
SCORED = Fact("the loss tells whether a record is right")
CLASS_SHARES = Fact("the loss is cross-entropy, with a share for each class")
# about the model
WHOLE_MODEL = Fact("every unit trains the whole model")
GLOBAL_MODEL = Fact("all parameters are the server's, and none stays with a client")
# about check-in
ROUNDS_APART = Fact("a unit's rounds are at least a known number of rounds apart")
ANY_ROUNDS_APART = Fact("a unit's rounds are any set of rounds that are at least a number of rounds apart")
UNITS_INDEPENDENT = Fact("a unit's check-ins tell nothing about those of other units")
UNITS_ALIKE = Fact("every round takes each unit with the same probability")
GROUPS_CHARGED = Fact("the cost of a group of units is known")
# about noise and clipping
NOISE_ADDED = Fact("rounds have noise")
NOISE_INDEPENDENT = Fact("the noise of each round is independent of that of other rounds")
NOISE_HAS_BANDS = Fact("the noise of a round is correlated over a number of rounds")
NOISE_FOLLOWS = Fact("the noise multiplier follows from the budget, so that noise is compared at one epsilon")
NOISE_ALONE = Fact("noise alone hides the sum of a round")
SERVER_ADDS_NOISE = Fact("the server adds the noise, and no node does")
CLIP_FIXED = Fact("the clipping norm is fixed before the run")
CLIPS_APART = Fact("each part of the model may have a clipping norm of its own")
# about what leaves the server
SUM_OF_ALL = Fact("the server sees the sum of all nodes alone")
MODEL_ALONE = Fact("a round releases nothing but the sum of the model's updates")
ROUNDS_ALONE = Fact("nothing but the rounds is released")
SHOWN_ONCE = Fact("the noise of a round shows in the next model alone, because the server has no memory of it")
LINEAR_STEP = Fact("the server's step is linear in the sum")
# about how it runs
SIMULATED = Fact("the units live in a simulation")
ONE_MACHINE = Fact("the workers are processes of one machine")
ONE_NODE_EACH = Fact("each unit lives on one node, by its id")
OWN_NOISE = Fact("noise and charge are those of this run, not of another federation")
SEED_PUBLIC = Fact("the seed is public, because a rehearsal protects nobody")
NOBODY_PAYS = Fact("the run stands alone, and no population pays for it")

FACTS = frozenset(value for value in vars().values() if isinstance(value, Fact))


def always(scenario: AnyScenario) -> bool:
    """Whether a claim holds of a key that is there: yes."""
    return True


@dataclass(frozen=True)
class Claim:
    """A key needs a fact, or breaks it.

    Attributes:
        fact: which one.
        key: the path of the key below its section; empty: the section itself. In the core's table: from the top.
        accepted: values of the key for which the claim does not hold; empty: schemes of the family for which it does
            not, or that the key is left out.
        when: whether the claim holds of a scenario that has the key.
    """

    fact: Fact
    key: str = ""
    accepted: str = ""
    when: Callable[[AnyScenario], bool] = always


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
    keeps: frozenset[Fact] = frozenset()
    concerns: frozenset[Fact] | None = None


class Declared(Section):
    """Base of sections with a stance, which is that of :class:`Stance`; by default it breaks every fact.

    Attributes:
        before: the scheme in front of which this scheme of an extension is listed; empty: it is among the last.
    """

    needs: ClassVar[tuple[Claim, ...]] = ()
    breaks: ClassVar[tuple[Claim, ...]] = ()
    keeps: ClassVar[frozenset[Fact]] = frozenset()
    concerns: ClassVar[frozenset[Fact] | None] = None
    before: ClassVar[str] = ""

    def check_within(self, scenario: AnyScenario) -> None:
        """Refuse keys that do not fit numbers elsewhere in the scenario (ValueError, one line)."""


def needing(*facts: Fact) -> tuple[Claim, ...]:
    """Claims that a section needs facts, whatever its keys are."""
    return tuple(map(Claim, facts))
