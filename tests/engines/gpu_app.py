"""The client app of the tests of the engines, where torch believes in the GPUs that Ray shows a worker."""

import os
from types import SimpleNamespace

import torch

from tests.engines.tiny_app import app as app

torch.cuda.device_count = lambda: len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
torch.cuda.get_device_properties = lambda device: SimpleNamespace(total_memory=80 << 30)
torch.cuda.set_per_process_memory_fraction = lambda share, device: os.environ.update(TOLD_FRACTION=f"{share} {device}")
