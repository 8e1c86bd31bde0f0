"""What this machine has: versions, devices, memory."""

import importlib.metadata
import os
import platform
import shutil
from pathlib import Path
from typing import Any

from rich.table import Table

PACKAGES = (
    "fedamp",
    "flwr",
    "torch",
    "ray",
    "numpy",
    "scipy",
    "numba",
    "scikit-learn",
    "flwr-datasets",
    "dp-accounting",
)


def examine() -> dict[str, Any]:
    """What ``fedamp doctor --json`` prints."""
    import torch

    memory = {key: kilobytes * 1024 for key, kilobytes in _meminfo().items()}
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "cores": os.cpu_count(),
        "memory_bytes": memory.get("MemTotal"),
        "free_memory_bytes": memory.get("MemAvailable"),
        "free_disk_bytes": shutil.disk_usage(Path()).free,
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] or ["cpu"],
    }


def doctor_table(answer: dict[str, Any]) -> Table:
    """The examination as a person reads it."""
    table = Table(title="this machine", show_header=False)
    table.add_row("python", f"{answer['python']} on {answer['system']}")
    for name, version in answer["packages"].items():
        table.add_row(name, version or "not installed")
    table.add_row("cores", str(answer["cores"]))
    for key in ("memory_bytes", "free_memory_bytes", "free_disk_bytes"):
        value = answer[key]
        table.add_row(
            key.removesuffix("_bytes").replace("_", " "), "unknown" if value is None else f"{value / 1e9:.1f} GB"
        )
    table.add_row("devices", ", ".join(answer["devices"]))
    return table


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _meminfo() -> dict[str, int]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}
