"""The scenario: what a person writes in YAML, validated, and how it is read (:mod:`fedamp.scenario.scenario_file`)."""

from fedamp.scenario.schema import *  # noqa: F403
from fedamp.scenario.schema import __all__ as __all__
