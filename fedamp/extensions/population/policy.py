"""Define the key ``population`` of a node's policy: each task is charged to the node's people before the node answers.

Nothing here imports the accountant: a node imports this module for each message.
"""

import hashlib
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from flwr.app import ConfigRecord

from fedamp.client import configuration
from fedamp.client.policy import NodeMessage, Policy, PolicyKey
from fedamp.client.task import ClientTask
from fedamp.errors import DeploymentError, FedampError


class PopulationPolicy(PolicyKey):
    """The key's value is the file of the people's budget, relative to the folder of ``policy.yaml``."""

    def before_answer(self, value: str, policy: Policy, message: NodeMessage) -> None:
        """Charge a task to the node's people.

        The charge is remembered until the file changes or this node is started again, so that few messages bring the
        accountant. A person who has left changes the file.

        Raises:
            DeploymentError: it does not fit, somebody who lives here has left, or the node's clients are not listed.
        """
        if not message.task:
            return
        context, known = message.context, configuration.task_of(message.task)
        use = use_of(known, configuration.text(context, "agreement"))
        file, paid = message.folder / value, context.state.config_records.get("population")
        if paid is not None and paid["use"] == use and paid.get("events") == (_number_of_events(file) or None):
            return
        if message.hosted is None:
            raise DeploymentError("this node's policy has a population, and the node's clients are not listed")
        from fedamp.extensions.population.node import reserve

        units = [str(unit) for unit in sorted(message.hosted)]
        events = reserve(file, known, use, units, str(policy.name_of(known.digest)), policy.least_people)
        context.state["population"] = ConfigRecord({"use": use, "events": events})

    def examine(self, value: str, folder: Path) -> tuple[bool, str]:
        """Say whether the budget of the node's people can be charged, and how much each has left at least."""
        from fedamp.extensions.population.store import Population, percent

        try:
            spent = Population(folder / value).read().spent()
        except FedampError as error:
            return False, str(error)
        return True, f"{len(spent)} people; each has at least {percent(max(1 - float(spent.max()), 0.0))} left"


POPULATION = PopulationPolicy()


def _number_of_events(file: Path) -> int:
    """Count the events of a population, without the accountant; 0: it cannot be read, and the charge will say why."""
    if file.is_file():
        with suppress(sqlite3.Error), closing(sqlite3.connect(file, timeout=60)) as database:
            return int(database.execute("SELECT count(*) FROM events").fetchone()[0])
    return 0


def use_of(task: ClientTask, agreement: str) -> str:
    """Compute the id of the use of people's data that a task is.

    It is the same in all messages of a run, and in no other run.

    Args:
        task: of the run.
        agreement: the file of the node's agreement; empty: it has none.

    Raises:
        DeploymentError: a run with a known seed looks like the next one; or the agreement is for another task.
    """
    told = f"{task.run} {task.charge}"
    if agreement:
        from fedamp.extensions.secure.participant import Agreement  # it imports torch
        from fedamp.extensions.secure.terms import terms_of

        agreed = Agreement.read(Path(agreement))
        if terms_of(task) != agreed.terms or task.digest != agreed.task:
            raise DeploymentError("the server's terms, or its task, are not those of this node's agreement")
        told = agreed.digest
    elif not task.run:
        raise DeploymentError("runs with a known seed cannot be charged to this node's people; use a secret seed")
    return hashlib.sha256(told.encode()).hexdigest()[:32]
