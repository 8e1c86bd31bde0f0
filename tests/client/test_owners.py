"""A node that is started again in a run trains no records of other owners: a person has the rounds of one unit."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from fedamp.client import configuration
from fedamp.client.app import app, node_of
from fedamp.errors import DataError, FederationError
from fedamp.federation import reader
from fedamp.models.networks import initial_parameters
from fedamp.server.setup import prepare
from tests.client.federation import (
    LOGISTIC,
    UNITS,
    order_of,
    query_of,
    records_in_a_folder,
    send,
    task_of_a_folder,
    write_folder,
)
from tests.extensions.secure.consortium import PLAIN_NOISE, Consortium
from tests.federations import SMALL


def write(folder: Path, swapped: bool = False, changed: bool = False) -> None:
    arrays = records_in_a_folder()
    arrays["x"] += changed
    arrays["client"] = np.where(swapped & (arrays["client"] < 2), 1 - arrays["client"], arrays["client"])
    write_folder(folder, arrays)
    configuration.divided.cache_clear()  # as in the process that Flower starts for the next message
    node_of.cache_clear()


def ask(kind: str, folder: Path, run: str) -> None:
    task = task_of_a_folder(run=run)
    arrays = initial_parameters(LOGISTIC, (5,), 3, seed=1)
    order = order_of(list(range(UNITS)), task, clips=(1.0,), arrays=arrays) if kind == "train" else query_of(task)
    send(app, order, data=str(folder))


@pytest.mark.parametrize("kind", ["query", "train"])
def test_a_node_started_again_refuses_records_of_other_owners(kind, tmp_path):
    write(tmp_path / "data")
    ask("query", tmp_path / "data", "the run")
    write(tmp_path / "data", changed=True)
    ask(kind, tmp_path / "data", "the run")
    write(tmp_path / "data", swapped=True)
    for _ in range(2):
        with pytest.raises(DataError, match=r"data: the records have other owners, or another order, than when this"):
            ask(kind, tmp_path / "data", "the run")
    ask(kind, tmp_path / "data", "another run")
    ask(kind, tmp_path / "data", "")
    write(tmp_path / "data")
    ask(kind, tmp_path / "data", "the run")


def test_a_node_tells_its_owner_how_many_records_are_nobodys(tmp_path, caplog):
    arrays = records_in_a_folder()
    arrays["client"] = np.array([f"{client:02d}" if client < 2 else str(client) for client in arrays["client"]])
    write_folder(tmp_path, arrays)
    ask("query", tmp_path, "the run")
    [told] = [record.getMessage() for record in caplog.records if "of no client" in record.msg]
    assert told.startswith(f"{np.char.startswith(arrays['client'], '0').sum()} records in {tmp_path} are of no client")


def test_runs_with_secret_seeds_are_told_apart_and_resumed_ones_are_the_same():
    raw = yaml.safe_load(SMALL)
    asked = reader.validate_scenario(raw | {"known_seed": False}, "small")
    runs = [prepare(asked, seed).task for seed in (2**200 + 1, 2**200 + 1, 2**200 + 2)]
    assert runs[0].run == runs[1].run != runs[2].run
    assert len({task.digest for task in runs}) == 1, "nodes agree on a task before there is a run"
    assert prepare(reader.validate_scenario(raw | {"known_seed": True}, "small")).task.run == ""


def test_secure_nodes_remember_owners_beside_their_units(tmp_path, monkeypatch):
    """Their memory is a file that a server cannot have forgotten, nor a cache that is emptied."""
    folder = tmp_path / "data"
    write(folder)
    (folder / "federation.json").unlink()
    data = f"data={{name: npz, path: {folder}, classes: 3, partition: {{scheme: natural}}}}"
    hosts = {"one": "0-1", "two": "2-3", "three": "4-5"}
    terms = "aggregation={scheme: secure, dropped: 0.0, colluding: 0.0}"
    consortium = Consortium(tmp_path, PLAIN_NOISE, "check_in={scheme: all}", terms, data, hosts=hosts)
    for context in consortium.contexts.values():
        context.node_config["data"] = str(folder)
    consortium.play()
    assert consortium.strategy.collected.errors == []
    write(folder, swapped=True)
    (folder / "federation.json").unlink()
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path / "emptied"))
    with pytest.raises(FederationError, match="this node's units or record owners changed since it joined"):
        consortium.play()
