"""How many workers a machine or cluster gets, and what each takes of it."""

from dataclasses import dataclass
from math import ceil

from fedamp import scenario
from fedamp.errors import InputError

WORKERS_PER_GPU = 2  # one prepares and launches while the other computes


@dataclass(frozen=True)
class WorkerResources:
    """Workers, torch's name of their device, and the part of a core and of a GPU that each reserves."""

    workers: int
    device: str
    cpus: float
    gpus: float


def worker_resources(engine: scenario.Engine, cores: float, gpus: float) -> WorkerResources:
    """Workers for the cores and GPUs that there are; more workers than cores (or GPUs) share them evenly.

    Raises:
        InputError: CUDA is asked for and there is no GPU.
    """
    device = engine.device
    if device == "auto":
        device = "cuda" if gpus and (engine.address is not None or available_device("auto") == "cuda") else "cpu"
    if device == "cpu":
        workers = max(1, int(cores)) if engine.workers == "auto" else engine.workers
        return WorkerResources(workers, device, cpus=_share(workers, cores), gpus=0)
    if not gpus:
        raise InputError(f"engine.device: {device} needs a GPU and Ray sees none; accepted here: auto, cpu")
    if device == "cuda":
        workers = int(gpus) * WORKERS_PER_GPU if engine.workers == "auto" else engine.workers
        return WorkerResources(workers, device, cpus=_share(workers, cores), gpus=_share(workers, gpus))
    workers = WORKERS_PER_GPU if engine.workers == "auto" else engine.workers
    # One named GPU, which Ray does not hide.
    return WorkerResources(workers, device, cpus=_share(workers, cores), gpus=0)


def available_device(device: str) -> str:
    """The device of this process that ``auto`` stands for, or the device itself.

    Raises:
        InputError: the device is not there.
    """
    import torch

    count = torch.cuda.device_count() if device != "cpu" else 0
    if device == "auto":
        return "cuda" if count else "cpu"
    _, _, index = device.partition(":")
    if device != "cpu" and int(index or 0) >= count:
        raise InputError(f"engine.device: {device} is not there, torch sees {count} GPU(s); accepted here: auto, cpu")
    return device


def _share(workers: int, units: float) -> float:
    """The part of a core or GPU that a worker gets, so that all find a place; at most a whole one."""
    return 1 / ceil(workers / max(1, int(units)))
