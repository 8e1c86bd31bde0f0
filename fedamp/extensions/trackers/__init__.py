"""Track runs: show the public numbers of a run in other programs (docs/studies.md).

The key ``trackers`` of a scenario names them: ``tensorboard``, ``mlflow``, ``wandb`` and ``prometheus``
(:mod:`~fedamp.extensions.trackers.observers`). Each needs its own package. A tracker changes no result and costs no
privacy, unless it is asked for ``unprotected`` numbers, which are then shown without noise.
"""

from fedamp.extension import Extension

extension = Extension(
    "trackers",
    trackers={
        "tensorboard": "fedamp.extensions.trackers.observers:TensorBoard",
        "mlflow": "fedamp.extensions.trackers.observers:Mlflow",
        "wandb": "fedamp.extensions.trackers.observers:Wandb",
        "prometheus": "fedamp.extensions.trackers.observers:Prometheus",
    },
)
