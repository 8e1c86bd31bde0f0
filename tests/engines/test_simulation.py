"""How workers share cores and GPUs, which no GPU is needed to know; and a node's memory."""

import platform
import subprocess
import sys

import pytest

from fedamp.base import devices
from fedamp.client.task import stack_size
from fedamp.engines.simulation import WorkerResources, worker_resources
from fedamp.errors import InputError
from fedamp.federation.running import Engine
from fedamp.server.setup import memory_of_a_worker
from tests.documentation import ROOT

SHARES = [
    ({}, 8, 0, (8, "cpu", 1, 0)),
    ({"workers": 3}, 2, 0, (3, "cpu", 1 / 2, 0)),
    ({"device": "cpu"}, 8, 2, (8, "cpu", 1, 0)),
    ({"device": "cuda"}, 16, 2, (2, "cuda", 1, 1)),
    ({"device": "cuda", "workers": 3}, 16, 2, (3, "cuda", 1, 1 / 2)),  # 1/3 of both: the third would find no place
    ({"device": "cuda", "workers": 1}, 16, 2, (1, "cuda", 1, 1)),
    ({"device": "cuda", "workers": 2}, 16, 2, (2, "cuda", 1, 1)),  # a worker a GPU
    ({"device": "cuda", "workers": 4}, 16, 2, (4, "cuda", 1, 1 / 2)),
    ({"device": "cuda:1", "workers": 4}, 2, 1, (4, "cuda", 1 / 2, 1 / 4)),  # Ray is shown that GPU alone
    ({"device": "auto", "address": "auto"}, 16, 1, (1, "cuda", 1, 1)),
]


def test_workers_share_cores_and_gpus(subtests):
    for asked, cores, gpus, expected in SHARES:
        with subtests.test(str(asked)):
            assert worker_resources(Engine(**asked), cores, gpus) == WorkerResources(*expected)


@pytest.mark.parametrize(
    ("engine", "share"),
    [
        ({}, 1),
        ({"workers": 2}, 1),
        ({"workers": 4}, 1 / 2),
        ({"workers": 8}, 1 / 4),
        ({"workers": 4, "device": "cuda:1"}, 1 / 4),
        ({"workers": 4, "kind": "serial"}, 1),
    ],
)
def test_a_stack_is_planned_with_the_share_of_memory_that_its_worker_gets(engine, share, monkeypatch):
    """Two GPUs of 80 GiB, which are not there."""
    monkeypatch.setattr(devices, "total_memory", lambda device: 80 << 30)
    monkeypatch.setattr(devices, "names", lambda: ["a GPU"] * 2)
    asked = Engine(**{"kind": "ray", "device": "cuda"} | engine)
    memory = memory_of_a_worker(asked, asked.device)
    assert memory == share * (80 << 30)
    assert asked.kind == "serial" or worker_resources(asked, 16, 1 if ":" in asked.device else 2).gpus == share
    records = stack_size(10**5, 10**3, 10**6, "cuda", memory).records
    # A stack takes four times its float32 numbers, and as much for its graph; the rest is for records and CUDA.
    assert 0.4 * memory < 2 * 16 * records * 10**3 < memory - (1 << 30) - memory // 16


def test_cuda_without_a_gpu_is_refused():
    with pytest.raises(InputError, match=r"engine\.device: cuda needs a GPU"):
        worker_resources(Engine(device="cuda"), 2, 0)
    with pytest.raises(InputError, match=r"engine\.device: cuda:1 is one machine's; expected with engine\.address"):
        worker_resources(Engine(device="cuda:1", address="auto"), 2, 2)


def test_a_device_that_is_not_there_is_named_in_one_line():
    for asked in ("cuda:99", "mps", "cuda:first"):
        with pytest.raises(InputError, match=rf"^engine\.device: {asked} is not there, torch sees \d+ GPU"):
            devices.available(asked)
        assert devices.here(asked) == "cpu"


def test_ray_is_shown_no_other_gpu_than_the_one_that_is_named(monkeypatch):
    monkeypatch.setattr(devices, "available", lambda asked: asked)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert devices.environment_of("cuda:1") == {"CUDA_VISIBLE_DEVICES": "7"}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert devices.environment_of("cuda:1") == {"CUDA_VISIBLE_DEVICES": "1"}
    assert devices.environment_of("cuda") == devices.environment_of("cpu") == {}


MEMORY = """
import resource, sys
sys.modules["ray"] = None
sys.path.insert(0, sys.argv[1])
import torch
from fedamp.engines.simulation import SimulatedNode

def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        [torch.ones(3 << 20) for _ in range(4)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(5)
nobody = faults(20)
SimulatedNode("fedamp.client.app:app", 0, 1, "cpu")
faults(5)
print(nobody, faults(20))
"""


@pytest.mark.slow  # of speed alone
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about the allocator of glibc")
def test_a_node_needs_no_ray_and_keeps_the_memory_that_every_step_asks_for_again():
    """Four blocks of 12 MB, 20 times: 245,760 pages, cleared by the system each time or once."""
    command = [sys.executable, "-c", MEMORY, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    nobody, node = map(int, done.stdout.split())
    if nobody < 1000:
        pytest.skip("this system does not count the pages that it clears, or clears 512 of them at once")
    assert node <= nobody / 10
