"""How many workers a machine or cluster gets, and the part of it that each reserves."""

from dataclasses import dataclass
from math import ceil

from fedamp.base import devices
from fedamp.errors import InputError
from fedamp.federation.running import Engine

FEW, MOST = 2, 4  # workers of a GPU: it computes for one at a time while another one prepares; more hardly help
USED = 0.9  # share of a GPU's free memory that the plan uses


@dataclass(frozen=True)
class Demand:
    """Memory of a worker and free memory on a GPU like this machine's, in bytes, and the batches of a round."""

    worker_bytes: int
    free_bytes: int
    batches: int


@dataclass(frozen=True)
class WorkerResources:
    """Workers, torch's name of their device, and the part of a core and of a GPU that each reserves."""

    workers: int
    device: str
    cpus: float
    gpus: float


def worker_resources(engine: Engine, cores: float, gpus: float, demand: Demand | None = None) -> WorkerResources:
    """Workers for the cores and GPUs that there are; more workers than cores (or GPUs) share them evenly.

    On a GPU there are as many as fit into its memory, at most ``MOST``, with a core and a batch each; ``FEW`` where the
    run's demand is unknown.

    Args:
        cores, gpus: as Ray counts them; a GPU that is named by its number is the only one that it sees.

    Raises:
        InputError: CUDA is asked for and there is no GPU.
    """
    device = engine.device
    if device == "auto":
        device = "cuda" if gpus and (engine.address is not None or devices.here("auto") == "cuda") else "cpu"
    if not devices.is_gpu(device):
        workers = max(1, int(cores)) if engine.workers == "auto" else engine.workers
        return WorkerResources(workers, device, cpus=_share(workers, cores), gpus=0)
    if not gpus:
        raise InputError(f"engine.device: {device} needs a GPU and Ray sees none; expected here: auto, cpu")
    if engine.address is not None and device != "cuda":
        raise InputError(f"engine.device: {device} is one machine's; expected with engine.address: auto, cpu, cuda")
    sharing = FEW
    if demand is not None:
        fitting = int(demand.free_bytes * USED / demand.worker_bytes)
        sharing = max(1, min(fitting, int(cores / gpus), ceil(demand.batches / gpus), MOST))
    workers = int(gpus) * sharing if engine.workers == "auto" else engine.workers
    return WorkerResources(workers, "cuda", cpus=_share(workers, cores), gpus=_share(workers, gpus))


def _share(workers: int, units: float) -> float:
    """The part of a core or GPU that a worker gets, so that all fit; at most a whole one."""
    return 1 / ceil(workers / max(1, int(units)))
