"""Find the device that a process computes on, and make processes compute alike.

Devices have torch's names: ``cuda`` is the first GPU that a process sees (Ray shows each worker one), ``cuda:1`` the
second one. ``auto`` is a GPU where torch sees one, else ``cpu``. Clipping and evaluation need float64, so ``mps`` is
not supported.

This is the only module that looks for a GPU, or at memory. It does not decide how many workers share a device: the
engines do (:mod:`fedamp.engines.engines`). Engines, nodes and the evaluation on the server call it.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from fedamp.errors import InputError

BUSY_LOAD, SCARCE_MEMORY = 2.0, 0.03  # processes a core; share of the memory that is free
_OWN_GROUP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_share = 1.0  # of the memory of its GPU that this process may use
PATTERN = r"^(auto|cpu|cuda(:\d+)?)$"


def available(asked: str) -> str:
    """Return the device that was asked for, with torch's name.

    Args:
        asked: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        InputError: this process does not see it, or there is no such device.
    """
    if asked == "cpu":
        return asked
    import torch  # it takes a second, and only processes that train need it

    count = torch.cuda.device_count()
    if asked == "auto":
        return "cuda" if count else "cpu"
    if re.fullmatch(PATTERN, asked) and int(asked.partition(":")[2] or 0) < count:
        return asked
    raise InputError(f"engine.device: {asked} is not there, torch sees {count} GPU(s); expected here: auto, cpu")


def here(asked: str) -> str:
    """Return the device that was asked for where this process sees it, else the CPU.

    The server uses it: it may have no GPU, though the scenario asks for one on the nodes.

    Args:
        asked: as for :func:`available`.
    """
    try:
        return available(asked)
    except InputError:
        return "cpu"


def is_gpu(device: str) -> bool:
    """Say whether a device, by torch's name, is any but the CPU."""
    return not device.startswith("cpu")


@contextmanager
def one_thread(device: str = "cpu") -> Iterator[None]:
    """Compute with one thread on a CPU inside the block, and with as many as before afterwards.

    Sums are then the same in every engine, and the workers of one machine do not compete for its cores.

    Args:
        device: torch's name; on a GPU the number of threads stays as it is.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(before if is_gpu(device) else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def usual_state() -> Iterator[None]:
    """Let NumPy and torch compute as in a new process, whatever the surrounding program has set.

    The block resets gradients, the default type and device, precision, and the handling of floating-point errors.
    Afterwards they are as before. It does not import torch, and does not set the number of threads
    (:func:`one_thread`). Functions that train or evaluate use it, so that a notebook's settings change no result.
    """
    torch = sys.modules.get("torch")
    with ExitStack() as held:
        held.enter_context(np.errstate(all="warn", under="ignore"))
        if torch is not None:
            held.enter_context(torch.inference_mode(False))
            held.enter_context(torch.enable_grad())
            held.enter_context(torch.autograd.set_detect_anomaly(False))
            for kind in ("cpu", "cuda"):
                held.enter_context(torch.autocast(kind, enabled=False))
            device = torch.get_default_device()
            held.callback(lambda: torch.get_default_device() == device or torch.set_default_device(device))
            if device.type != "cpu":
                held.enter_context(torch.device("cpu"))  # each operation takes longer in it
            held.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float32)
            of_cpu = torch.backends.mkldnn
            for each in (of_cpu.matmul, of_cpu.conv, of_cpu.rnn) if hasattr(of_cpu, "rnn") else ():  # since torch 2.9
                held.callback(setattr, each, "fp32_precision", each.fp32_precision)
                each.fp32_precision = "ieee"
        yield


@contextmanager
def any_order() -> Iterator[None]:
    """Let a GPU add or put numbers in any order inside the block: for sums and writes that have the same bits in each.

    Where torch is asked for deterministic algorithms, it sorts the places of such an operation first. That takes
    several times as many launches, so it is for other people's code alone.
    """
    import torch

    if not torch.are_deterministic_algorithms_enabled():
        yield
        return
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warns)


def memory() -> tuple[int, int]:
    """Read the bytes of this machine's memory, and how many of them a new process can have.

    A container, or a service with a limit, counts as a machine of its own.

    Returns:
        Both numbers in bytes; they are equal where the system does not tell what is available (other systems than
        Linux).
    """
    total = free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError):
        if found := re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE):
            free = int(found[1]) * 1024
    for limit, left in _memory_limits():
        total, free = min(total, limit), min(free, left)
    return total, free


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Read the limits of this process's control group and of those around it, and the bytes that each has left.

    Files that the kernel can drop count as free. It is for version 2 of Linux's control groups.
    """
    with suppress(OSError):
        if found := re.search(r"^0::/(.*)$", _OWN_GROUP.read_text(), re.MULTILINE):
            for group in (Path(found[1]), *Path(found[1]).parents):
                with suppress(OSError, ValueError):  # "max": it has no limit
                    limit, used = (int((_GROUPS / group / f"memory.{name}").read_text()) for name in ("max", "current"))
                    files = re.search(r"^inactive_file (\d+)$", (_GROUPS / group / "memory.stat").read_text(), re.M)
                    yield limit, max(0, limit - used + (int(files[1]) if files else 0))


def load_share() -> float:
    """Return how many processes each core of this machine has had to run in the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def patience_factor() -> int:
    """Return how many times as long as on an idle machine to wait for a process: 1 to 5, by the load of the cores."""
    return min(max(1, round(load_share())), 5)


def busy_words() -> str:
    """Say how busy this machine is, to go behind the line of a wait that was in vain; empty: it is not busy.

    A machine that is too small for what it runs is else taken for one that failed.
    """
    total, free = memory()
    if load_share() < BUSY_LOAD and free > SCARCE_MEMORY * total:
        return ""
    load = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores, {free / 1e9:.1f} GB of memory free"
    return f"; this machine is busy ({load}), so it may be late, not broken"


def take_share(device: str, share: float) -> None:
    """Let this process use a share of a GPU's memory from here on, and plan with no more; the rest is for others.

    Args:
        device: by torch's name; on a CPU nothing changes.
        share: in (0, 1].
    """
    global _share
    if is_gpu(device) and share < 1:
        import torch

        torch.cuda.set_per_process_memory_fraction(share, int(device.partition(":")[2] or 0))
        _share = share


def total_memory(device: str) -> int | None:
    """Read the bytes of a GPU's memory that this process may use (:func:`take_share`).

    None: this process does not see that GPU, or the device is none.

    Args:
        device: by torch's name.
    """
    if not is_gpu(device) or here(device) != device:
        return None
    import torch

    return int(_share * torch.cuda.get_device_properties(device).total_memory)


def names() -> list[str]:
    """List the names of the GPUs that this process sees, in torch's order; empty without a GPU."""
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def environment_of(device: str) -> dict[str, str]:
    """Return the environment variables that show a new process one GPU only, as its ``cuda``.

    Args:
        device: ``cuda:N`` as this process counts; for other devices the mapping is empty.

    Raises:
        InputError: this process does not see that GPU.
    """
    index = device.partition(":")[2]
    if not index:
        return {}
    available(device)
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"CUDA_VISIBLE_DEVICES": seen.split(",")[int(index)] if seen else index}
