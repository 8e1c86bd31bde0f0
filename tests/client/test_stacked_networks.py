"""Recurrent layers and fused attention in a stack of clients, against torch's own kernels for one client at a time."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import scaled_dot_product_attention

from fedamp.client.stacked_networks import for_all_clients

CLIENTS, RECORDS, PLACES, INTO = 3, 4, 5, 6


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.project, self.causal = nn.Linear(INTO, 3 * INTO), causal

    def forward(self, sequence: Tensor) -> tuple[Tensor]:
        query, key, value = self.project(sequence).unflatten(-1, (3, 2, INTO // 2)).permute(2, 0, 3, 1, 4)
        return (scaled_dot_product_attention(query, key, value, is_causal=self.causal),)


NETWORKS = {
    "LSTM": lambda: nn.LSTM(INTO, 7, batch_first=True),
    "LSTM of two layers and directions": lambda: nn.LSTM(INTO, 7, 2, batch_first=True, bidirectional=True),
    "LSTM with projections, without bias": lambda: nn.LSTM(INTO, 7, proj_size=3, bias=False, batch_first=True),
    "GRU": lambda: nn.GRU(INTO, 7, batch_first=True),
    "GRU of two layers and directions": lambda: nn.GRU(INTO, 7, 2, batch_first=True, bidirectional=True),
    "tanh": lambda: nn.RNN(INTO, 7, batch_first=True),
    "relu": lambda: nn.RNN(INTO, 7, nonlinearity="relu"),
    "attention": lambda: Attention(causal=False),
    "causal attention": lambda: Attention(causal=True),
    "encoder": lambda: nn.TransformerEncoderLayer(INTO, 2, 8, 0.0, batch_first=True),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # of one client alone
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients_are_those_of_each_client_alone(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    inputs = torch.randn(CLIENTS, RECORDS, PLACES, INTO)
    own = {key: torch.randn(CLIENTS, *value.shape, requires_grad=True) for key, value in network.named_parameters()}

    def forward(parameters: dict[str, Tensor], sequence: Tensor) -> Tensor:
        found = functional_call(network, parameters, (sequence,))
        return found if isinstance(found, Tensor) else found[0]

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's, about what it does one client at a time
        together = for_all_clients(forward)(own, inputs)
        gradients = torch.autograd.grad(together.sin().sum(), list(own.values()))
    alone = [forward({key: value[each] for key, value in own.items()}, inputs[each]) for each in range(CLIENTS)]
    expected = torch.autograd.grad(torch.stack(alone).sin().sum(), list(own.values()))
    # float32 of sums of some ten terms of size 1, in another order
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-4, atol=1e-5)
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-4)
