"""Charge a task to the people of one node, before the node answers anything of it.

A node that takes part in secure aggregation computes the charge from its own agreement. The noise that it and the other
honest nodes add hides its people from the server, too. Otherwise the server adds the noise, and the node believes what
the task says. :mod:`fedamp.extensions.population.policy` imports this only where a policy names a population, because
it brings the accountant.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedamp.accounting import Compose, Gaussian, Mechanism, NotPrivate, Repeat, from_json, group
from fedamp.base.ids import in_words
from fedamp.client.task import ClientTask, log
from fedamp.errors import DeploymentError, FedampError, one_line
from fedamp.extensions.population.account import prices
from fedamp.extensions.population.store import DataUse, Overspent, Population, PopulationError, counted
from fedamp.extensions.secure.terms import AgreedTerms, terms_of


def cost(task: ClientTask) -> Mechanism:
    """Return the cost of a task for a person with one unit in it.

    Raises:
        DeploymentError: nothing says it, or the unit is a sample.
    """
    if task.unit != "client":
        raise DeploymentError("this node's people pay by client; expected: privacy.unit: client")
    if (terms := terms_of(task)) is not None:
        return cost_of(terms)
    if task.charge is None:
        raise DeploymentError("the server does not say what its task costs; expected: noise, and federation.hosts")
    try:
        return from_json(task.charge)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DeploymentError(f"the cost of the server's task cannot be read ({one_line(error)[:100]})") from None


def cost_of(terms: AgreedTerms) -> Mechanism:
    """Return the cost of what the server and the colluding nodes learn of a unit, from the terms alone.

    Submodels hide nothing here. Without check-ins that the nodes draw, the most that a unit may take part in is
    charged.
    """
    if not all(terms.noise_multipliers):
        return NotPrivate()
    released = [Gaussian(noise) for noise in terms.noise_multipliers]
    if terms.count_noise:
        released.append(Gaussian(2 * terms.count_noise))  # a unit moves the centred count by at most one half
    evaluated = [Gaussian(terms.evaluation_noise)] if terms.evaluation_noise else []
    if not terms.evaluated_at_end:
        released += evaluated
    once = released[0] if len(released) == 1 else Compose(tuple(released))
    drawn = terms.check_in
    rounds = Repeat(once, terms.most_check_ins) if drawn is None else drawn.charge(once, terms.rounds)
    return Compose((*evaluated, rounds)) if terms.evaluated_at_end else rounds


def reserve(file: Path, task: ClientTask, use: str, units: Sequence[str], name: str, least_people: int) -> int:
    """Charge a task to the people of this node, unless it is charged already.

    A second process, or one after a ``kill -9``, finds the use in the file by its id.

    Args:
        file: of the population.
        task: that the node is asked for.
        use: the id of the use.
        units: the names of all units that live here: who is asked in a round is hidden, so all pay.
        name: of the task, for the file's history.
        least_people: with fewer the node takes no part.

    Returns:
        Number of events of the file at which nobody who lives here had left; 0: it must be read again.

    Raises:
        DeploymentError: somebody who lives here has left, or the task does not fit. The words may go to the server; the
            node's log says who it is.
    """
    try:
        population = Population(file)
        contents, owners = population.read(), population.owners(units)
        if left := [unit for unit, owner in zip(units, owners.tolist(), strict=True) if owner in contents.left]:
            log.warning(
                "the people of units %s have left; expected: hosts without these units",
                in_words([int(unit) for unit in left]),
            )
            raise DeploymentError("the list of this node's clients must change first; the node's log says why")
        counts = counted(owners)
        if (people := int(np.count_nonzero(counts))) < least_people:
            raise DeploymentError(f"this node's policy expects at least {least_people} people, and {people} live here")
        if use not in contents.uses:
            mechanism = cost(task)
            asked = prices(lambda size: group(mechanism, size), contents, counts)
            try:
                contents = population.reserve(DataUse(use, name, task.digest, asked, counts), units)
            except Overspent:
                raise
            except PopulationError:  # another process was first
                if use not in population.read().uses:
                    raise
                return 0
        return len(contents.links)
    except Overspent as error:
        log.warning("%s", error)
        raise DeploymentError(
            "this node's people have not enough of their budget left for this task; the node's log says who"
        ) from None
    except DeploymentError:
        raise
    except FedampError as error:
        log.warning("%s", error)
        raise DeploymentError("this node's population cannot be charged; the node's log says why") from None
