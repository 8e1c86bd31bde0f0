"""The client app on a Flower node: messages in, messages out."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import RecordDict

from fedamp.client.app import app
from fedamp.client.task import ClientTask
from fedamp.client.worker import TrainingNode
from fedamp.data.partition import NaturalPartition
from fedamp.data.sections import Data, DigitsData, NpzData
from fedamp.engines import flower
from fedamp.errors import DeploymentError
from fedamp.federation.training import Client
from fedamp.models.networks import initial_parameters
from fedamp.models.section import Model
from tests.client import federation

MODEL = Model(name="logistic")
DATA = DigitsData(name="digits", clients=20)
DATASET = DATA.load(0, Path())
ARRAYS = initial_parameters(MODEL, DATASET.input_shape, 10, seed=1)


def task_of(unit: str = "client", section: Data = DATA) -> ClientTask:
    shape = {"input_shape": DATASET.input_shape, "num_classes": 10}
    return federation.task_of(model=MODEL, client=Client(steps=1), unit=unit, data=section, **shape)


def send(kind: str, config: dict[str, object], **node_config: str) -> RecordDict:
    return federation.send(app, kind, config, ARRAYS, **node_config)


def train_config(task: ClientTask, clients: list[int], **changes: object) -> dict[str, object]:
    return {"task": task.to_json()} | vars(federation.order_of(clients, task, clips=[0.3])) | changes


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_a_message_is_answered_with_what_the_worker_gives(unit: str) -> None:
    task, clients = task_of(unit), [3, 7, 11]
    reply = send("train", train_config(task, clients))
    dataset = DATASET.by_record() if unit == "sample" else DATASET
    sums, report = TrainingNode(task, dataset).train(ARRAYS, federation.order_of(clients, task, clips=[0.3]))
    for name, array in flower.from_record(reply["arrays"]).items():  # type: ignore[arg-type]
        assert array.dtype == np.float64
        np.testing.assert_array_equal(array, sums[name])
    metrics = dict(reply["metrics"])  # type: ignore[call-overload]
    assert metrics["reported"] == clients
    assert metrics["records"] == report.records == int(dataset.sizes(np.array(clients)).sum())
    assert metrics["loss_sum"] == report.loss_sum
    assert metrics["failed"] == 0
    assert metrics["clipped"] + metrics["below_clip"] == 3  # type: ignore[operator]


@pytest.mark.parametrize(("hosts", "expected"), [("", (True, [])), ("0-3,9", (False, [0, 1, 2, 3, 9]))])
def test_a_node_says_which_clients_it_hosts(hosts: str, expected: tuple[bool, list[int]]) -> None:
    answer = send("query", {}, hosts=hosts)["hosts"]
    assert (answer["all"], answer["clients"]) == expected  # type: ignore[call-overload]


def test_a_node_trains_only_clients_that_it_hosts() -> None:
    with pytest.raises(DeploymentError, match=r"clients \[7\] are not among this node's hosts"):
        send("train", train_config(task_of(), [3, 7]), hosts="0-5")


def test_a_node_reads_its_own_folder(tmp_path: Path) -> None:
    cohort = DATASET.gather(np.arange(4))
    real = np.arange(cohort.inputs.shape[1]) < cohort.sizes[:, None]
    owners = np.repeat(np.arange(4), cohort.sizes)
    train = {"x": cohort.inputs[real], "y": cohort.labels[real], "client": owners}
    np.savez(tmp_path / "train.npz", **train)
    np.savez(tmp_path / "test.npz", x=train["x"], y=np.arange(len(owners)) % 10)
    elsewhere = NpzData(name="npz", path="/nowhere", classes=10, partition=NaturalPartition(scheme="natural"))
    reply = send("train", train_config(task_of(section=elsewhere), [1, 2]), data=str(tmp_path))
    expected = send("train", train_config(task_of(), [1, 2]))
    for name, array in flower.from_record(reply["arrays"]).items():  # type: ignore[arg-type]
        # The order of a client's records may differ, and with it the rounding of float32 sums.
        np.testing.assert_allclose(array, flower.from_record(expected["arrays"])[name], atol=1e-6)  # type: ignore[arg-type]


def test_what_a_node_cannot_do() -> None:
    with pytest.raises(DeploymentError, match="hosts must be ids and ranges"):
        send("query", {}, hosts="first")
    with pytest.raises(DeploymentError, match="say which clients live here"):
        send("query", {}, data="folder")
    with pytest.raises(DeploymentError, match="expected: data with a path or dataset"):
        send("train", train_config(task_of(), [1]), data="folder")


def test_what_a_plan_needs_of_clients_is_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['flwr'] = None; import fedamp.client.task, fedamp.client.memory"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
