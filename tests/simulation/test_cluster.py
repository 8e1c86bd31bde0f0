"""Ray clusters by address."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedamp import flower
from fedamp.errors import InputError
from fedamp.scenario import Engine
from fedamp.simulation.engines import open_grid

pytest.importorskip("ray")

APP = "tests.simulation.tiny_app:app"


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1:port"])
def test_address_without_a_cluster_is_refused_in_one_line(tmp_path, address):
    with (
        pytest.raises(InputError, match=rf"engine\.address: no Ray cluster at '{address}' .*accepted: auto, or"),
        open_grid(Engine(address=address), tmp_path / "log.txt", APP) as grid,
    ):
        grid.get_node_ids()


@pytest.mark.slow
def test_two_machines_give_the_same_replies(tmp_path):
    from ray.cluster_utils import Cluster

    machine = {"num_cpus": 1, "object_store_memory": 200_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=machine)
    try:
        cluster.add_node(**machine)
        arrays = flower.to_record({"w": np.arange(50_000, dtype=np.float32)})
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({"seeds": [1, 2]})})
        with open_grid(Engine(address=cluster.address), tmp_path / "log.txt", APP) as grid:
            sent = [Message(content, node, "train") for node in grid.get_node_ids()]
            replies = grid.send_and_receive(sent, timeout=60)
        assert len(replies) == 2
        for reply in replies:
            np.testing.assert_array_equal(reply.content["arrays"]["w"].numpy(), np.arange(50_000) + 3.0)
    finally:
        cluster.shutdown()
