"""One deployment for all tests of a file that can share it: what starts takes longer than what is tested."""

import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from tests.deployment.machines import Machines, deployed
from tests.tools import NGINX


@pytest.fixture(scope="session")
def proxy() -> None:
    """Skips where there is no nginx."""
    if NGINX is None:
        pytest.skip("there is no nginx here, and `make install` could get none")


@pytest.fixture(scope="module")
def superlink(tmp_path_factory, proxy) -> Iterator[Machines]:
    """SuperLink and proxy, of which no node is known. Hardly a test starts a run there: the look for one may wait."""
    with (
        patch.dict(os.environ, FLWR_SUPEREXEC_TASK_POLL_INTERVAL="2"),
        deployed(tmp_path_factory.mktemp("federation"), started=False) as machines,
    ):
        machines.start_server()
        yield machines


@pytest.fixture(scope="module")
def federation(superlink) -> Machines:
    """SuperLink and proxy, with registered nodes that are not running yet."""
    superlink.admit_nodes()
    return superlink


@pytest.fixture
def machines(tmp_path, proxy) -> Iterator[Machines]:
    """A deployment of one's own, of which nothing is running yet."""
    with deployed(tmp_path, started=False) as machines:
        yield machines
