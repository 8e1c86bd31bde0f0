"""How workers share cores and GPUs; no GPU is needed to know."""

import pytest

from fedamp.errors import InputError
from fedamp.scenario import Engine
from fedamp.simulation.resources import WorkerResources, worker_resources

SHARES = [
    ({}, 8, 0, (8, "cpu", 1, 0)),
    ({"workers": 3}, 2, 0, (3, "cpu", 1 / 2, 0)),
    ({"device": "cpu"}, 8, 2, (8, "cpu", 1, 0)),
    ({"device": "cuda"}, 16, 2, (4, "cuda", 1, 1 / 2)),
    ({"device": "cuda", "workers": 3}, 16, 2, (3, "cuda", 1, 1 / 2)),  # 1/3 of both: the third would find no place
    ({"device": "cuda", "workers": 1}, 16, 2, (1, "cuda", 1, 1)),
    ({"device": "cuda:1", "workers": 4}, 2, 2, (4, "cuda:1", 1 / 2, 0)),
]


def test_workers_share_cores_and_gpus(subtests):
    for asked, cores, gpus, expected in SHARES:
        with subtests.test(str(asked)):
            assert worker_resources(Engine(**asked), cores, gpus) == WorkerResources(*expected)


def test_cuda_without_a_gpu_is_refused():
    with pytest.raises(InputError, match=r"engine\.device: cuda needs a GPU"):
        worker_resources(Engine(device="cuda"), 2, 0)
