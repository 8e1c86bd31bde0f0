"""What the owner of a node lets it do: a file of the node, which no server can change."""

from pathlib import Path
from typing import Annotated, Self

import yaml
from flwr.app import Context
from pydantic import Field, ValidationError

from fedamp.base.record import Record, one_line
from fedamp.client import configuration
from fedamp.errors import DeploymentError

KEY = "policy"  # of a node's configuration
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Policy(Record):
    """``policy.yaml``; a node without one takes every task.

    Attributes:
        tasks: digests of the tasks that it takes, under names of its owner (:attr:`ClientTask.digest`, as
            ``fedamp check`` says it); None: every task.
        least_people: that live on the node. With fewer it takes no part: the server would see the sum of few.
    """

    tasks: dict[str, Digest] | None = None
    least_people: Annotated[int, Field(ge=1)] = 1

    @classmethod
    def read(cls, file: Path) -> Self:
        """DeploymentError: it cannot be read, or a key is wrong; then the node takes no part."""
        try:
            return cls.model_validate(yaml.safe_load(file.read_text()) or {}, strict=True)
        except ValidationError as error:
            reason: object = one_line(error)
        except OSError as error:
            reason = error.strerror
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
        raise DeploymentError(f"{file.name}: {reason}; expected: tasks, by name, and least_people") from None

    def check(self, task: str, people: int | None) -> None:
        """DeploymentError: what is asked is not allowed.

        Args:
            task: as the order has it.
            people: that live on the node; None: it does not say whose records it has.
        """
        digest, here = configuration.task_of(task).digest if task else "", people or 0
        if self.tasks is not None and digest not in self.tasks.values():
            allowed = ", ".join(sorted(self.tasks)) or "none"
            raise DeploymentError(f"this node's policy does not allow the task {digest}; expected: {allowed}")
        if here < self.least_people and self.least_people > 1:
            found = "nothing says who lives here" if people is None else f"{here} live here"
            raise DeploymentError(f"this node's policy expects at least {self.least_people} people, and {found}")


def check(context: Context, task: str, by_partition: bool) -> None:
    """Refuse what this node's policy, if it has one, does not allow (DeploymentError)."""
    if file := configuration.text(context, KEY):
        hosted = configuration.hosts(context, task, by_partition)
        Policy.read(Path(file)).check(task, None if hosted is None else len(hosted))
