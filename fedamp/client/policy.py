"""Let the owner of a node decide what it does: a file of the node, ``policy.yaml``, which no server can change.

:mod:`fedamp.client.app` calls :func:`check` before it answers any message. Extensions add keys for the seam
``policy_keys``; ``fedamp doctor`` examines them. A policy refuses messages; it never changes what a node does in a run.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

import yaml
from flwr.app import Context
from pydantic import Field, ValidationError

from fedamp.base.reading import read_typed
from fedamp.base.record import Label, Record, one_line
from fedamp.base.section import with_keys
from fedamp.base.yaml_files import UNREADABLE, Loader
from fedamp.client import configuration
from fedamp.errors import DeploymentError
from fedamp.extension import by_key, keys, offered

KEY = "policy"  # of a node's configuration
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class NodeMessage:
    """A message to a node, before anything of it is answered.

    Attributes:
        context: of the node, as Flower gives it.
        task: the :class:`fedamp.client.task.ClientTask` as JSON; empty: the message has none.
        hosted: ids of the units that live on the node; None: it does not say whose records it has.
        folder: of its ``policy.yaml``; relative paths in the policy begin there.
    """

    context: Context
    task: str
    hosted: set[int] | None
    folder: Path


class PolicyKey(ABC):
    """A key that an extension adds to ``policy.yaml``.

    Its module imports nothing heavy: a node imports it for each message.

    Attributes:
        kind: the type of its value.
    """

    kind: ClassVar[Any] = str

    @abstractmethod
    def before_answer(self, value: Any, policy: "Policy", message: NodeMessage) -> None:
        """Refuse a message that the node may not answer, or write down that it is answered.

        Args:
            value: of the key.
            policy: that has the key.
            message: before anything of it is answered.

        Raises:
            DeploymentError: the node does not answer.
        """

    @abstractmethod
    def examine(self, value: Any, folder: Path) -> tuple[bool, str]:
        """Say whether the node can keep to the key, for ``fedamp doctor``.

        Args:
            value: of the key.
            folder: of ``policy.yaml``; relative paths begin there, as in :meth:`before_answer`.

        Returns:
            Whether it can, and the finding in words.
        """


class Policy(Record):
    """The content of ``policy.yaml``; a node without one takes every task.

    Extensions add keys of their own (:class:`PolicyKey`), when it is read.

    Attributes:
        tasks: digests of the tasks that it takes, under names of its owner
            (:attr:`fedamp.client.task.ClientTask.digest`, as ``fedamp check`` says it); None: every task.
        least_people: how many must live on the node, at least 1. With fewer it takes no part: the server would see the
            sum of few.
    """

    tasks: dict[Label, Digest] | None = None
    least_people: Annotated[int, Field(ge=1)] = 1

    @classmethod
    def read(cls, file: Path) -> "Policy":
        """Read a policy.

        Raises:
            DeploymentError: it cannot be read, or a key is wrong; then the node takes no part.
        """
        try:
            return _with_added_keys().model_validate(yaml.load(read_typed(file), Loader) or {}, strict=True)
        except ValidationError as error:
            reason: object = one_line(error)
        except OSError as error:
            reason = error.strerror
        except UNREADABLE as error:
            reason = " ".join(str(error).split())
        *others, last = "tasks, by name", "least_people", *keys("policy_keys")
        expected = f"{', '.join(others)} and {last}"
        raise DeploymentError(f"{file.name}: {reason}; expected: {expected}") from None

    @property
    def added(self) -> dict[str, Any]:
        """Return the values of keys of extensions, by the keys; without those left out."""
        told = {name: getattr(self, name) for name in keys("policy_keys")}
        return {name: value for name, value in told.items() if value is not None}

    def name_of(self, task: str) -> str | None:
        """Return the owner's name of a task with this digest; None: it is not allowed.

        Without ``tasks``, each task is allowed, and the name is the start of the digest.
        """
        if self.tasks is None:
            return task[:12]
        return next((name for name, digest in self.tasks.items() if digest == task), None)

    def check(self, task: str, people: int | None) -> None:
        """Refuse a task, or an evaluation, that the policy does not allow, and a node with too few people.

        Args:
            task: the :class:`fedamp.client.task.ClientTask` as JSON; empty: the message has none.
            people: number of units that live on the node; None: it does not say whose records it has.

        Raises:
            DeploymentError: what is asked is not allowed.
        """
        known, here = configuration.task_of(task) if task else None, people or 0
        if self.name_of(digest := known.digest if known else "") is None:
            allowed = ", ".join(sorted(self.tasks or ())) or "none"
            raise DeploymentError(f"this node's policy does not allow the task {digest}; expected: {allowed}")
        if here < self.least_people and self.least_people > 1:
            found = "the node's clients are not listed" if people is None else f"{here} live here"
            raise DeploymentError(f"this node's policy expects at least {self.least_people} people, and {found}")


@cache
def _with_added_keys() -> type[Policy]:
    """The class with the keys of extensions, whose modules import this one."""
    return with_keys(
        Policy, {name: Annotated[key.kind | None, Field(None)] for name, key in by_key("policy_keys").items()}
    )


def policy_key(name: str) -> PolicyKey:
    """Return the key of an extension by its name."""
    found: PolicyKey = next(offered("policy_keys", name))
    return found


def check(context: Context, task: str, by_partition: bool) -> None:
    """Refuse what the policy of this node does not allow, or its people cannot pay.

    Args:
        context: of the node; its configuration names the file under ``policy``.
        task: the :class:`fedamp.client.task.ClientTask` as JSON; empty: the message has none.
        by_partition: as for :func:`fedamp.client.configuration.named_hosts`.

    Raises:
        DeploymentError: the policy refuses it, or cannot be read.
    """
    hosted, file = configuration.hosts(context, task, by_partition), Path(configuration.text(context, KEY))
    policy = Policy.read(file)
    policy.check(task, None if hosted is None else len(hosted))
    message = NodeMessage(context, task, hosted, file.parent)
    for name, value in policy.added.items():
        policy_key(name).before_answer(value, policy, message)
