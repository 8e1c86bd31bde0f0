"""The key ``metrics`` of a node's policy: by which metrics its people's records may be evaluated."""

from typing import Any

from fedamp.client import configuration
from fedamp.client.policy import NodeMessage, Policy, PolicyKey
from fedamp.errors import DeploymentError


class MetricsPolicy(PolicyKey):
    """The list of the metrics; without the key all are allowed."""

    kind = list[str]

    def before_answer(self, value: list[str], policy: Policy, message: NodeMessage) -> None:
        """Refuse (DeploymentError) a task that asks for another metric."""
        told: Any = configuration.task_of(message.task) if message.task else None
        evaluation = told.evaluation if told else None
        if evaluation and (others := set(evaluation.metrics) - set(value)):
            allowed = ", ".join(value) or "none"
            raise DeploymentError(
                f"this node's policy does not allow the metrics {', '.join(sorted(others))}; expected: {allowed}"
            )

    def examine(self, value: list[str]) -> tuple[bool, str]:
        """Name the metrics that are allowed."""
        return True, ", ".join(value) or "none"


METRICS = MetricsPolicy()
