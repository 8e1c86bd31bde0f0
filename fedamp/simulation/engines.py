"""The one place that turns the scenario's ``engine`` section into a Flower grid."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from fedamp import flower, scenario
from fedamp.errors import InputError
from fedamp.simulation.grid import LOGGER, SimulationGrid
from fedamp.simulation.serial import SerialGrid

CLIENT_APP = "fedamp.client.app:app"


@contextmanager
def open_grid(engine: scenario.Engine, log: Path, client_app: str = CLIENT_APP) -> Iterator[SimulationGrid]:
    """The nodes of a simulation, for as long as the context lasts; nothing is left running after it.

    Args:
        engine: ``ray`` or ``serial``. Flower's own simulation brings its grid: :mod:`fedamp.simulation.flower_engine`.
        log: file that gets what Flower, Ray and the nodes have to say.
        client_app: import path of the Flower client app, ``package.module:name``.

    Raises:
        InputError: Ray is not installed, or the device or the cluster is not there.
    """
    grid = _grid(engine, log, client_app)
    with flower.chatter_to(log, LOGGER), grid:
        yield grid


def _grid(engine: scenario.Engine, log: Path, client_app: str) -> SimulationGrid:
    match engine.kind:
        case "serial":
            return SerialGrid(client_app, engine.device)
        case "ray":
            require_ray(engine.kind)
            from fedamp.simulation.ray import RayGrid

            return RayGrid(client_app, engine, log)
    raise ValueError(f"engine.kind must be ray or serial here, got {engine.kind}")


def require_ray(kind: str) -> None:
    """Raise InputError where Ray is not installed."""
    if find_spec("ray") is None:
        accepted = "pip install 'fedamp[ray]', or engine.kind: serial"
        raise InputError(f"engine.kind: {kind} needs Ray, which is not installed; accepted: {accepted}")
