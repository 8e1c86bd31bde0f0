"""The device that a process computes on, with torch's names, and what a process must have set to compute alike there.

This is the only module that looks for a GPU, or at memory.

``cuda`` is the first GPU that a process sees (Ray shows each worker one), ``cuda:1`` the second one. ``auto`` is a GPU
where torch sees one, else ``cpu``. Clipping and evaluation need float64, so ``mps`` is not supported.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from fedamp.errors import InputError

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
    """Return the device that was asked for where this process sees it, else the CPU."""
    try:
        return available(asked)
    except InputError:
        return "cpu"


def is_gpu(device: str) -> bool:
    """Say whether a device is any but the CPU."""
    return not device.startswith("cpu")


@contextmanager
def one_thread(device: str = "cpu") -> Iterator[None]:
    """Inside, torch computes with one thread on a CPU; afterwards with as many as before.

    So sums are the same in every engine, and cores are not oversubscribed.
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
    """Inside, NumPy and torch compute as in a new process, whatever the program around has set; afterwards as before.

    That is: gradients, the default type and device, precision, and what floating-point errors do. It does not import
    torch. The number of threads is that of :func:`one_thread`.
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


def memory() -> tuple[int, int]:
    """Read the bytes of this machine's memory, and how many a new process can have; equal where no system says it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError):
        if found := re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE):
            return total, int(found[1]) * 1024
    return total, total


def free_memory(device: str) -> int:
    """Read the free bytes on a GPU."""
    import torch

    return int(torch.cuda.mem_get_info(device)[0])


def names() -> list[str]:
    """List the names of the GPUs that this process sees."""
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def environment_of(device: str) -> dict[str, str]:
    """Return the variables that show a process only the GPU that is named by its number, as its ``cuda``.

    Args:
        device: ``cuda:N``; for others there are none.

    Raises:
        InputError: this process does not see it.
    """
    index = device.partition(":")[2]
    if not index:
        return {}
    available(device)
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"CUDA_VISIBLE_DEVICES": seen.split(",")[int(index)] if seen else index}
