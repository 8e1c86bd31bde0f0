"""The scenario: what a person writes in YAML, validated, and how it is read (:mod:`fedamp.scenario.scenario_file`)."""

# ruff: noqa: F403
from fedamp.scenario.schema import *
from fedamp.scenario.sections.data import *
from fedamp.scenario.sections.privacy import *
from fedamp.scenario.sections.running import *
from fedamp.scenario.sections.section import *
from fedamp.scenario.sections.training import *
