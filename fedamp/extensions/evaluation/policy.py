"""Add the key ``metrics`` to a node's policy: the metrics by which its people's records may be scored.

docs/deployment.md has the policy's other keys.
"""

from pathlib import Path
from typing import Any

from fedamp.client import configuration
from fedamp.client.policy import NodeMessage, Policy, PolicyKey
from fedamp.errors import DeploymentError


class MetricsPolicy(PolicyKey):
    """List the metrics that the node allows; an empty list allows none, and without the key all are allowed."""

    kind = list[str]

    def before_answer(self, value: list[str], policy: Policy, message: NodeMessage) -> None:
        """Refuse a task that evaluates by a metric outside the list.

        Raises:
            DeploymentError: it names these metrics and the allowed ones.
        """
        told: Any = configuration.task_of(message.task) if message.task else None
        evaluation = told.evaluation if told else None
        if evaluation and (others := set(evaluation.metrics) - set(value)):
            allowed = ", ".join(value) or "none"
            raise DeploymentError(
                f"this node's policy does not allow the metrics {', '.join(sorted(others))}; expected: {allowed}"
            )

    def examine(self, value: list[str], folder: Path) -> tuple[bool, str]:
        """Name the allowed metrics; a node can always keep to them."""
        return True, ", ".join(value) or "none"


METRICS = MetricsPolicy()
