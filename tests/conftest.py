"""One torch thread for all tests: the models are tiny, and test processes share the cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

from hypothesis import settings

# How long an example takes says how busy the machine is. A clean checkout (CI) must not fail by luck: there the
# examples are the same every time; elsewhere new ones are tried.
settings.register_profile("fedamp", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("fedamp")
