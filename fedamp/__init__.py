"""fedamp: federated learning with differential privacy, amplified by the randomness that training has anyway."""

import os

__version__ = "0.1.0"

# Flower and Ray read these when they are imported, and nothing of fedamp is imported before this.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
