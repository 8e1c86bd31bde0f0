"""The client app of the tests of the engines, where torch believes in the GPUs that Ray shows a worker."""

import os

import torch

from tests.engines.tiny_app import app as app

torch.cuda.device_count = lambda: len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
