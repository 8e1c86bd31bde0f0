"""Small federations for tests: real data, real client code, seconds to run."""

from pathlib import Path

import yaml

from fedamp.federation import reader
from fedamp.federation.scenario import Scenario
from fedamp.server.observers import Observer

SMALL = """
name: small
seed: 3
known_seed: true
data: {name: digits, clients: 60}
model: {name: logistic}
rounds: 8
check_in: {scheme: balanced, k: 3}
client: {steps: 2, learning_rate: 0.5}
server: {learning_rate: 0.5, momentum: 0.5}
privacy: {clip: 0.5, noise_multiplier: 1.0, precision: 0.05}
engine: {kind: serial}
federation: {checkpoint_every: 3}
"""


def small(*overrides: str) -> Scenario:
    """The small federation with ``key.path=value`` overrides."""
    raw = yaml.safe_load(SMALL)
    for override in overrides:
        reader.apply_override(raw, override)
    raw["privacy"].setdefault("precision", 0.05)  # also in a section that an override has replaced: it is quicker
    return reader.validate_scenario(raw, "small")


def write_small(folder: Path, *overrides: str) -> Path:
    """The small federation as a file."""
    file = folder / "small.yaml"
    file.write_text(small(*overrides).to_yaml())
    return file


def hosting(hosts: dict[str, str]) -> str:
    """The override that names the units of each node."""
    return "federation.hosts={" + ", ".join(f"{name}: '{units}'" for name, units in hosts.items()) + "}"


class Silent(Observer):
    """An observer that remembers what it was told."""

    def __init__(self) -> None:
        self.records = []

    def started(self, prepared, finished) -> None:
        self.prepared, self.finished = prepared, finished

    def round_done(self, record) -> None:
        self.records.append(record)
