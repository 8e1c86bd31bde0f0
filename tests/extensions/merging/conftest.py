"""Small finished runs to merge, and the command as a script meets it."""

from pathlib import Path

import pytest

from fedamp.server.launch import launch
from tests.federations import Silent, small

PLAIN = ("rounds=3", "check_in={scheme: all}", "privacy.noise_multiplier=3", "server.momentum=0.0")
RUNS: dict[str, tuple[bool, tuple[str, ...]]] = {
    # name: noise from the operating system or not, and what differs from the small federation
    "much": (False, ("privacy.noise_multiplier=2",)),
    "little": (False, ("privacy.noise_multiplier=1",)),
    "none": (False, ("privacy.noise_multiplier=0",)),
    "budget": (False, ("privacy.noise_multiplier=2", "privacy.epsilon=2")),
    "uncharged": (False, ("privacy.noise_multiplier=2", "privacy.amplification=false", "rounds=4")),
    "one": (True, PLAIN),
    "two": (True, (*PLAIN, "privacy.noise_multiplier=6")),
    "open": (True, (*PLAIN, "privacy.noise_multiplier=0")),
    "other-data": (False, ("rounds=1", "check_in.k=1", "data.clients=50")),
    "other-partition": (False, ("rounds=1", "check_in.k=1", "data.partition={scheme: dirichlet, alpha: 1.0}")),
    "other-seed": (False, ("rounds=1", "check_in.k=1", "seed=4")),
    "other-unit": (False, ("rounds=1", "check_in.k=1", "privacy.unit=sample", "client.steps=1")),
    "other-group": (False, ("rounds=1", "check_in.k=1", "privacy.group_size=2")),
    "other-model": (False, ("rounds=1", "check_in.k=1", "model={name: mlp, hidden: [8]}")),
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Run folders by name, each made when it is first asked for; nobody writes into them."""
    folder = tmp_path_factory.mktemp("runs")

    class Runs(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            secret, changes = RUNS[name]
            self[name] = launch(small(f"known_seed={not secret}".lower(), *changes), Silent(), folder / name)
            return self[name]

    return Runs()
