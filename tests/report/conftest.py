"""Small finished runs to report about, and a model merged from two of them."""

from pathlib import Path

import pytest
from rich.console import Console

from fedamp.errors import Interrupted
from fedamp.extensions.merging.merge import merge_runs
from fedamp.extensions.merging.weights import MergeRequest
from fedamp.report.pictures import plot_run
from fedamp.server.launch import launch
from tests.federations import Silent, small

DELTA = 1e-5


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
    folders = {
        name: launch(small("known_seed=false", *changes), Silent(), folder / name)
        for name, changes in overrides.items()
    }
    for run in folders.values():
        plot_run(run)
    return folders


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Where the key of releases is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDAMP_HOME", str(folder := tmp_path_factory.mktemp("home")))
        yield folder


class StopsAfterTwo(Silent):
    def round_done(self, record) -> None:
        if record.round == 2:
            raise KeyboardInterrupt


@pytest.fixture(scope="session")
def stopped(tmp_path_factory) -> Path:
    """A run with a known seed that was stopped after round 2 of 8."""
    run = tmp_path_factory.mktemp("stopped") / "stopped"
    with pytest.raises(Interrupted):
        launch(small(), StopsAfterTwo(), run)
    plot_run(run)
    return run


@pytest.fixture(scope="session")
def merged(runs, tmp_path_factory) -> Path:
    """One of two runs, drawn: one with privacy, and one without that may come out with half of delta."""
    folder = tmp_path_factory.mktemp("merged") / "selected"
    models = (str(runs["hidden"]), str(runs["open"]))
    request = MergeRequest(models, "random-selection", 20.0, DELTA, weights=(1 - DELTA / 2, DELTA / 2), seed=1)
    merge_runs(request, folder)
    return folder


@pytest.fixture
def printed():
    """What a table looks like on a terminal of 80 columns, which it must fit."""

    def lines(table) -> list[str]:
        console = Console(width=80, force_terminal=False)
        with console.capture() as captured:
            console.print(table)
        text = captured.get()
        assert "…" not in text
        assert all(len(line) <= 80 for line in text.splitlines())
        return text.splitlines()

    return lines
