"""Remember between a node's processes which stacks were found to keep their units apart.

The check (:func:`fedamp.client.stacks.stacking_refusal`) takes seconds, and Flower starts a process for each message. A
node remembers that it passed, never that it may be left out. A proof holds for one task, stack, program, library and
processor. A proof that is missing, older, or not written with this user's key is checked again.

:mod:`fedamp.client.worker` asks here before it checks; simulations keep no proofs.
"""

import hashlib
import hmac
import importlib.metadata
import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import torch

from fedamp import rng
from fedamp.base.files import cache_folder, lock, write_atomically
from fedamp.base.reading import read_regular, read_typed
from fedamp.client.task import ClientTask
from fedamp.engines import flower
from fedamp.errors import UnwritableError
from fedamp.federation.losses import LOSSES
from fedamp.models.custom import is_import_path

# Of the environment, what may choose another kernel.
_CHOOSE = ("ATEN", "CUDA", "DNNL", "FEDAMP", "GOMP", "KMP", "LD_", "MKL", "NUMBA", "OMP", "ONEDNN", "OPENBLAS", "TORCH")
_KEY = "key"
_UNREADABLE = OSError, ValueError, RuntimeError  # the last one: a user without a home


class StackProof:
    """Proof that the units of one kind of stack keep apart on this machine, in the user's cache folder.

    The file is named by the digest of all that it holds for, and contains a keyed digest of that. So others can neither
    write a proof nor use one for another stack.

    Args:
        task: of the units.
        stack: all that tells a stack from another one; its ``repr`` counts.
    """

    def __init__(self, task: ClientTask, stack: object) -> None:
        self._told = "\n".join([task.digest, repr(stack), code(), *_machine_facts()]).encode()

    @property
    def _file(self) -> Path:
        """Return the file of the proof, in the folder ``apart`` of the cache."""
        return cache_folder() / "apart" / hashlib.sha256(self._told).hexdigest()

    @staticmethod
    def is_for(task: ClientTask, device: str) -> bool:
        """Say whether such proofs are kept: in a SuperNode, on a CPU, where no code of others decides a kernel."""
        model = task.model.name
        own = is_import_path(model) or task.client.loss not in LOSSES
        return flower.in_supernode() and device == "cpu" and not own

    @property
    def holds(self) -> bool:
        """Say whether the check passed before; False where that cannot be read or trusted."""
        with suppress(*_UNREADABLE):
            return hmac.compare_digest(read_regular(self._file), self._seal())
        return False

    def keep(self) -> None:
        """Write down that the check has passed; where that cannot be written, the next process checks again."""
        with suppress(*_UNREADABLE, UnwritableError):
            key = self._file.with_name(_KEY)
            key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with lock(key.with_name(".lock")):
                if not key.exists():
                    write_atomically(key, str(rng.seed_from_system()).encode(), mode=0o600)
            write_atomically(self._file, self._seal(), durable=False, mode=0o600)

    def _seal(self) -> bytes:
        """Compute the content of the file under this user's key.

        Raises:
            OSError: others could have written the key, or what is beside it.
        """
        key = self._file.with_name(_KEY)
        for path in (key.parent, key):
            status = path.lstat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise OSError(f"{path}: not this user's alone")
        return rng.keyed_digest(int(read_typed(key)), "units apart", [self._told]).encode()


@cache
def code() -> str:
    """Compute the digest of fedamp's code, once for a process and its forks: it stands for what they have imported."""
    found, root = hashlib.sha256(), Path(__file__).parents[1]
    for file in sorted(root.rglob("*.py")):
        found.update(f"{file.relative_to(root)} {file.stat().st_size}\n".encode() + file.read_bytes())
    return found.hexdigest()


def _machine_facts() -> list[str]:
    """Describe processor, libraries and threads; a hidden processor is never the same one twice."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
        processor = [line for line in first if line.startswith(("vendor", "cpu family", "model", "stepping", "flags"))]
    except OSError:
        processor = [rng.fresh_bytes(16).hex()]
    chosen = sorted(f"{key}={value}" for key, value in os.environ.items() if key.startswith(_CHOOSE))
    versions = [platform.python_version(), np.__version__, importlib.metadata.version("numba")]
    torchs = [torch.__config__.show(), torch.__config__.parallel_info(), torch.backends.cpu.get_cpu_capability()]
    return [*processor, *chosen, *versions, *torchs, str(torch.get_num_threads())]
