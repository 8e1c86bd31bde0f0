"""Small tensors on a busy machine: threads would only wait for one another."""

import torch

torch.set_num_threads(1)
