"""ReLU and max pooling in one pass: what torch gives for the two, to the bit."""

import pytest
import torch
from torch.nn import functional as F

from fedamp.client.channels import ReluMaxPool


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (3, 2, 5, 7), (2, 2, 2, 2), (1, 1, 3, 2)])
def test_values_and_gradients_are_those_of_torch(shape: tuple[int, ...]) -> None:
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(1)).mul(2).round()  # many are equal
    inputs[0, 0, 0, :2] = torch.nan
    inputs.requires_grad_()
    expected, found = F.max_pool2d(F.relu(inputs), 2), ReluMaxPool()(inputs)
    assert torch.equal(found.nan_to_num(-1), expected.nan_to_num(-1))
    back = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).masked_fill(expected.isnan(), 0)
    assert torch.equal(torch.autograd.grad(found, inputs, back)[0], torch.autograd.grad(expected, inputs, back)[0])
