"""The client app on a Flower node: messages in, messages out."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedamp.client.app import app
from fedamp.client.task import ClientTask
from fedamp.client.worker import TrainingNode
from fedamp.data.partition import NaturalPartition
from fedamp.data.sections import Data, DigitsData, NpzData
from fedamp.engines.wire import AnswerStatus, RoundAnswer, RoundOrder
from fedamp.errors import DeploymentError
from fedamp.federation.local_training import LocalTraining
from fedamp.models.model import Model
from fedamp.models.networks import initial_parameters
from tests.client import federation

MODEL = Model(name="logistic")
DATA = DigitsData(name="digits", clients=20)
DATASET = DATA.load(0, Path())
ARRAYS = initial_parameters(MODEL, DATASET.input_shape, 10, seed=1)


def task_of(unit: str = "client", section: Data = DATA) -> ClientTask:
    shape = {"input_shape": DATASET.input_shape, "num_classes": 10}
    return federation.task_of(model=MODEL, client=LocalTraining(steps=1), unit=unit, data=section, **shape)


def order_of(task: ClientTask, clients: list[int], arrays=ARRAYS, clips=(0.3,), **changes: object) -> RoundOrder:
    return federation.order_of(clients, task, arrays=arrays, clips=clips, **changes)


def send(order: RoundOrder, **node_config: str) -> RoundAnswer:
    return federation.send(app, order, **node_config)


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_a_message_is_answered_with_what_the_worker_gives(unit: str) -> None:
    task, clients = task_of(unit), [3, 7, 11]
    reply = send(order_of(task, clients))
    dataset = DATASET.by_record() if unit == "sample" else DATASET
    expected = TrainingNode(task, dataset).train(order_of(task, clients))
    for name, array in reply.sums.items():
        assert array.dtype == np.float64
        np.testing.assert_array_equal(array, expected.sums[name])
    assert reply.reported == clients
    assert reply.records == expected.records == int(dataset.sizes(np.array(clients)).sum())
    assert reply.loss_sum == expected.loss_sum
    assert reply.failed == 0
    assert reply.clipped + reply.below_clip == 3


@pytest.mark.parametrize(
    ("hosts", "expected"), [("", (AnswerStatus.ANY_UNIT, [])), ("0-3,9", (AnswerStatus.DONE, [0, 1, 2, 3, 9]))]
)
def test_a_node_says_which_clients_it_hosts(hosts: str, expected: tuple[AnswerStatus, list[int]]) -> None:
    answer = send(federation.query_of(), hosts=hosts)
    assert (answer.status, answer.reported) == expected


def test_a_node_trains_only_clients_that_it_hosts() -> None:
    with pytest.raises(DeploymentError, match=r"clients \[7\] are not among this node's hosts"):
        send(order_of(task_of(), [3, 7]), hosts="0-5")


def test_a_node_reads_its_own_folder(tmp_path: Path) -> None:
    cohort = DATASET.gather(np.arange(4))
    real = np.arange(cohort.inputs.shape[1]) < cohort.sizes[:, None]
    owners = np.repeat(np.arange(4), cohort.sizes)
    train = {"x": cohort.inputs[real], "y": cohort.labels[real], "client": owners}
    np.savez(tmp_path / "train.npz", **train)
    np.savez(tmp_path / "test.npz", x=train["x"], y=np.arange(len(owners)) % 10)
    elsewhere = NpzData(name="npz", path="/nowhere", classes=10, partition=NaturalPartition(scheme="natural"))
    reply = send(order_of(task_of(section=elsewhere), [1, 2]), data=str(tmp_path))
    expected = send(order_of(task_of(), [1, 2]))
    for name, array in reply.sums.items():
        # The order of a client's records may differ, and with it the rounding of float32 sums.
        np.testing.assert_allclose(array, expected.sums[name], atol=1e-6)


def test_what_a_node_cannot_do() -> None:
    with pytest.raises(DeploymentError, match="hosts must be ids and ranges"):
        send(federation.query_of(), hosts="first")
    with pytest.raises(DeploymentError, match="say which clients live here"):
        send(federation.query_of(), data="folder")
    with pytest.raises(DeploymentError, match="expected: data with a path or dataset"):
        send(order_of(task_of(), [1]), data="folder")


def test_what_a_plan_needs_of_clients_is_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = sys.modules['flwr'] = None; import fedamp.client.task"
    subprocess.run([sys.executable, "-c", code], check=True)
