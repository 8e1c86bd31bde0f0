"""What a program has set for its whole process, and numbers depend on."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np


@contextmanager
def usual_state() -> Iterator[None]:
    """Inside, NumPy and torch compute as in a new process, whatever the program around has set; afterwards as before.

    Gradients, the default type and device, precision, and what floating-point errors do. It does not import torch. The
    number of threads is that of :func:`fedamp.base.devices.one_thread`.
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
