"""Evaluation of models on people's own held-out records, with noise and charge."""

from fedamp.extension import Extension

extension = Extension(
    name="evaluation",
    sections={"evaluation": "fedamp.extensions.evaluation.section:EVALUATED_KEY"},
    side_sums={"evaluation": "fedamp.extensions.evaluation.ledger:EVALUATION"},
    task_keys={"evaluation": "fedamp.extensions.evaluation.section:TOLD_KEY"},
    policy_keys={"metrics": "fedamp.extensions.evaluation.policy:METRICS"},
)
