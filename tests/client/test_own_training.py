"""Custom training loops and Flower apps: clipped, added up and answered as by fedamp's client."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedamp.client.app import app
from fedamp.client.task import ClientTask
from fedamp.data.sections import Data, DigitsData, ExternalData
from fedamp.engines import flower
from fedamp.engines.wire import AnswerStatus, RoundOrder
from fedamp.errors import DeploymentError
from fedamp.federation.local_training import LocalTraining
from fedamp.models.model import Model
from fedamp.models.networks import initial_parameters
from tests.client import federation, own_apps
from tests.client.federation import query_of, send
from tests.client.test_app import order_of

CLIP = 0.3
DIGITS = DigitsData(name="digits", clients=20)
DATASET = DIGITS.load(0, Path())
LOGISTIC = Model(name="logistic")
EXTERNAL = ExternalData(name="external", clients=10)
ARRAYS = {"weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "scale": np.array(0.5, dtype=np.float32)}
BOTH = pytest.mark.parametrize("foreign", [own_apps.hostile_app, own_apps.hostile_flower_app])


def task_of(section: Data = EXTERNAL) -> ClientTask:
    shape = {"input_shape": () if section is EXTERNAL else DATASET.input_shape, "num_classes": 10}
    model = Model(name="external") if section is EXTERNAL else LOGISTIC
    return federation.task_of(model=model, client=LocalTraining(steps=3, learning_rate=0.2), data=section, **shape)


def order_for(task: ClientTask, clients: list[int], arrays=ARRAYS, **changes: object) -> RoundOrder:
    return order_of(task, clients, arrays, **({"clips": (CLIP,)} | changes))


def contribution(foreign, client):
    """What one client adds, flat, and the reply."""
    reply = send(foreign, order_for(task_of(), [client]), hosts="0-9")
    sums = reply.sums
    assert {name: array.shape for name, array in sums.items()} == {name: array.shape for name, array in ARRAYS.items()}
    return np.concatenate([sums[name].ravel() for name in ARRAYS]), reply


@BOTH
@pytest.mark.parametrize("client", range(10))
def test_no_client_adds_more_than_its_clip_whatever_it_trains(foreign, client):
    added, reply = contribution(foreign, client)
    assert np.linalg.norm(added) <= CLIP  # exactly: updates are truncated towards zero
    assert reply.failed == (client not in own_apps.GOOD)
    if client in own_apps.GOOD:
        assert np.any(added)
        assert reply.text == ""
        assert reply.clipped + reply.below_clip == 1
    else:
        assert not np.any(added)
        assert reply.text.startswith(f"client {client}: ")
    assert reply.reported == [client], "whether it fails follows from its data"


@BOTH
def test_neighbouring_data_sets_differ_by_one_clip_at_most(foreign):
    """All clients, and all without one: whatever that one does, the others' sum is the same to the bit."""
    everybody = list(range(10))
    whole = send(foreign, order_for(task_of(), everybody), hosts="0-9").sums
    for left_out in everybody:
        rest = [client for client in everybody if client != left_out]
        sums = send(foreign, order_for(task_of(), rest), hosts="0-9").sums
        difference = np.concatenate([(whole[name] - sums[name]).ravel() for name in ARRAYS])
        np.testing.assert_array_equal(difference, contribution(foreign, left_out)[0])
        assert np.linalg.norm(difference) <= CLIP


def test_what_a_small_update_is_arrives_as_it_is():
    added, _ = contribution(own_apps.hostile_app, 0)
    np.testing.assert_allclose(added, 1e-4, atol=2**-24)  # float32 numbers around 1 are 2**-24 apart


def test_nothing_that_a_handler_measures_leaves_the_node():
    _, reply = contribution(own_apps.hostile_flower_app, 0)
    assert (reply.loss_sum, reply.records, reply.text) == (0, 0, "")


def test_the_same_loop_gives_the_same_sums_as_fedamps_client():
    arrays = initial_parameters(LOGISTIC, DATASET.input_shape, 10, seed=1)
    own, expected = (send(each, order_for(task_of(DIGITS), [3, 7, 11], arrays)) for each in (own_apps.descent_app, app))
    for name, array in expected.sums.items():
        # float32 gradients, once stacked and once one by one, in three steps of numbers below 0.3
        np.testing.assert_allclose(own.sums[name], array, atol=1e-6)
    assert own.reported == [3, 7, 11]


def test_a_loop_on_fedamps_data_hosts_what_fedamps_client_hosts():
    for hosts in ("", "0-3,9"):
        own, expected = (send(to, query_of(task_of(DIGITS)), hosts=hosts) for to in (own_apps.descent_app, app))
        assert (own.status, own.reported) == (expected.status, expected.reported)


@BOTH
@pytest.mark.parametrize(("node", "clients"), [({"partition-id": 3}, [3]), ({"hosts": "0-1,5"}, [0, 1, 5])])
def test_a_node_speaks_for_its_partition_or_its_hosts(foreign, node, clients):
    answer = send(foreign, query_of(task_of()), **node)
    assert (answer.status, answer.reported) == (AnswerStatus.DONE, clients)
    with pytest.raises(DeploymentError, match=r"clients \[9\] are not among this node's hosts"):
        send(foreign, order_for(task_of(), [clients[0], 9]), **node)


@BOTH
def test_what_is_refused(foreign):
    with pytest.raises(DeploymentError, match="names no client; add partition-id"):
        send(foreign, query_of(task_of()))
    with pytest.raises(DeploymentError, match=r"expected: submodels: \{scheme: none\}"):
        send(foreign, order_for(task_of(), [0], submodels=[1]), hosts="0-9")
    with pytest.raises(DeploymentError, match=r"expected: submodels: \{scheme: none\}"):
        send(foreign, order_for(task_of(), [0], clips=(0.1, 0.2)), hosts="0-9")


@pytest.mark.parametrize(
    ("kind", "why"),
    [("train", "of a server with the same version"), ("evaluate", "evaluate messages are not answered")],
)
def test_a_message_of_another_server_and_an_evaluation_are_refused(kind, why):
    flower.identify()
    message = Message(RecordDict({"config": ConfigRecord({"lr": 0.1}), "arrays": flower.to_record(ARRAYS)}), 2, kind)
    with pytest.raises(DeploymentError, match=why):
        own_apps.hostile_flower_app(message, Context(1, 2, {"hosts": "0-9"}, RecordDict(), {}))


def test_state_is_kept_for_a_node_of_one_client_and_shared_by_no_two():
    def added(state, clients, **node):
        order = order_for(task_of(), clients, clips=(100.0,))
        reply = send(own_apps.remembering_app, order, state=state, **node)
        return reply.sums["scale"]

    state = RecordDict()
    alone = {"partition-id": 4}
    assert [round(float(added(state, [4], **alone))) for _ in range(3)] == [1, 2, 3]
    assert round(float(added(RecordDict(), [3, 4, 5], hosts="3-5"))) == 3  # each one for the first time
