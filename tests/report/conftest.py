"""Small finished runs to report about."""

from pathlib import Path

import pytest

from fedamp.launch import launch
from fedamp.report.plots import plot_run
from tests.federations import Silent, small


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Run folders by name; nobody writes into them."""
    folder = tmp_path_factory.mktemp("runs")
    overrides = {
        "hidden": ("privacy.epsilon=12",),
        "plain": ("privacy.amplification=false", "privacy.delta=1e-4"),
        "open": ("privacy.noise_multiplier=0",),
        "budget": ("privacy.epsilon=3.2",),
    }
    runs = {name: launch(small(*changes), Silent(), folder / name) for name, changes in overrides.items()}
    for run in runs.values():
        plot_run(run)
    return runs
