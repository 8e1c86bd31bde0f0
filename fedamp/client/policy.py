"""What the owner of a node lets it do: a file of the node, which no server can change."""

import hashlib
from pathlib import Path
from typing import Annotated, Self

import yaml
from flwr.app import ConfigRecord, Context
from pydantic import Field, ValidationError

from fedamp.base.reading import read_typed
from fedamp.base.record import Label, Record, one_line
from fedamp.base.yaml_files import UNREADABLE, Loader
from fedamp.client import configuration
from fedamp.client.task import ClientTask
from fedamp.errors import DeploymentError

KEY = "policy"  # of a node's configuration
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Policy(Record):
    """``policy.yaml``; a node without one takes every task.

    Attributes:
        tasks: digests of the tasks that it takes, under names of its owner (:attr:`ClientTask.digest`, as
            ``fedamp check`` says it); None: every task.
        least_people: that live on the node. With fewer it takes no part: the server would see the sum of few.
        metrics: that its people's records are evaluated by; None: all.
        population: the file of their budget, which each task is charged to; relative to this file's folder.
    """

    tasks: dict[Label, Digest] | None = None
    least_people: Annotated[int, Field(ge=1)] = 1
    metrics: list[str] | None = None
    population: str | None = None

    @classmethod
    def read(cls, file: Path) -> Self:
        """DeploymentError: it cannot be read, or a key is wrong; then the node takes no part."""
        try:
            return cls.model_validate(yaml.load(read_typed(file), Loader) or {}, strict=True)
        except ValidationError as error:
            reason: object = one_line(error)
        except OSError as error:
            reason = error.strerror
        except UNREADABLE as error:
            reason = " ".join(str(error).split())
        expected = "tasks, by name, least_people, metrics and population"
        raise DeploymentError(f"{file.name}: {reason}; expected: {expected}") from None

    def name_of(self, task: str) -> str | None:
        """The owner's name of a task with this digest; None: it is not allowed."""
        if self.tasks is None:
            return task[:12]
        return next((name for name, digest in self.tasks.items() if digest == task), None)

    def check(self, task: str, people: int | None) -> None:
        """DeploymentError: what is asked is not allowed.

        Args:
            task: as the order has it.
            people: that live on the node; None: it does not say whose records it has.
        """
        known, here = configuration.task_of(task) if task else None, people or 0
        if self.name_of(digest := known.digest if known else "") is None:
            allowed = ", ".join(sorted(self.tasks or ())) or "none"
            raise DeploymentError(f"this node's policy does not allow the task {digest}; expected: {allowed}")
        if here < self.least_people and self.least_people > 1:
            found = "nothing says who lives here" if people is None else f"{here} live here"
            raise DeploymentError(f"this node's policy expects at least {self.least_people} people, and {found}")
        evaluation = known.evaluation if known else None
        if evaluation and self.metrics is not None and (others := set(evaluation.metrics) - set(self.metrics)):
            allowed = ", ".join(self.metrics) or "none"
            raise DeploymentError(
                f"this node's policy does not allow the metrics {', '.join(sorted(others))}; expected: {allowed}"
            )

    def charge(self, context: Context, task: str, hosted: set[int] | None, folder: Path) -> None:
        """Charge a task to the node's people before anything of it is answered (DeploymentError: it does not fit).

        What is charged is remembered as long as this node is not started again: no later message brings the accountant.
        """
        if not self.population or not task:
            return
        known = configuration.task_of(task)
        use = use_of(known, configuration.text(context, "agreement"))
        paid = context.state.config_records.get("population")
        if paid is not None and paid["use"] == use:
            return
        if hosted is None:
            raise DeploymentError("this node's policy has a population, and nothing says who lives here")
        from fedamp.extensions.population.node import reserve

        file, units = folder / self.population, [str(unit) for unit in sorted(hosted)]
        reserve(file, known, use, units, str(self.name_of(known.digest)), self.least_people)
        context.state["population"] = ConfigRecord({"use": use})


def use_of(task: ClientTask, agreement: str) -> str:
    """The id of the use of people's data that a task is: the same in all messages of a run, and in no other run.

    Args:
        agreement: the file of the node's agreement; empty: it has none.

    Raises:
        DeploymentError: a run with a known seed looks like the next one; or the agreement is for another task.
    """
    told = f"{task.run} {task.charge}"
    if agreement:
        from fedamp.client.secure import Agreement  # it imports torch

        agreed = Agreement.read(Path(agreement))
        if task.terms != agreed.terms or task.digest != agreed.task:
            raise DeploymentError("the server's terms, or its task, are not those of this node's agreement")
        told = agreed.digest
    elif not task.run:
        raise DeploymentError("this node's people pay for no run with a known seed; expected: a secret one")
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def check(context: Context, task: str, by_partition: bool) -> None:
    """Refuse what this node's policy, if it has one, does not allow or its people cannot pay (DeploymentError)."""
    if text := configuration.text(context, KEY):
        hosted, file = configuration.hosts(context, task, by_partition), Path(text)
        policy = Policy.read(file)
        policy.check(task, None if hosted is None else len(hosted))
        policy.charge(context, task, hosted, file.parent)
