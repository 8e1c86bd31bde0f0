"""Trackers show the public numbers of a run in other programs."""

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
