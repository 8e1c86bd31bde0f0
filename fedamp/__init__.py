"""fedamp: federated learning with differential privacy, amplified by the randomness that training has anyway."""

__version__ = "0.1.0"
