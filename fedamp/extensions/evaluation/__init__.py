"""Evaluate models on people's own held-out records, with noise and charge.

No public test set is needed: each client holds out a part of its records and scores the model on them. It contributes a
vector of norm at most 1, the sum gets Gaussian noise, and the charge is part of the run's epsilon. The intervals of a
released share follow Fieller (1954): :func:`~fedamp.extensions.evaluation.section.share_of`.

The scenario gets the section ``evaluation`` (:mod:`~fedamp.extensions.evaluation.section`), a node's policy the key
``metrics`` (:mod:`~fedamp.extensions.evaluation.policy`), and the ledger the keys of a side sum
(:mod:`~fedamp.extensions.evaluation.ledger`). Nodes compute the vectors in
:mod:`~fedamp.extensions.evaluation.evaluator`. The core draws the noise and computes the charge
(:class:`fedamp.federation.side_sums.SideSum`).

It needs clients as units, training by this package and one global model. An evaluation during the run makes rounds
release more than the model.
"""

from fedamp.extension import Extension

extension = Extension(
    name="evaluation",
    sections={"evaluation": "fedamp.extensions.evaluation.section:EVALUATED_KEY"},
    side_sums={"evaluation": "fedamp.extensions.evaluation.ledger:EVALUATION"},
    task_keys={"evaluation": "fedamp.extensions.evaluation.section:TOLD_KEY"},
    policy_keys={"metrics": "fedamp.extensions.evaluation.policy:METRICS"},
)
