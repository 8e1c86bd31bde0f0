"""Dropout masks: what the forward pass means, and what a dropped node silences."""

import pytest
import torch
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

from fedamp.errors import ModelError
from fedamp.models.masks import Masks
from fedamp.models.model import Model
from fedamp.models.networks import build, initial_parameters

CLASSES = 4
CASES = [
    (Model(name="mlp", hidden=(9,)), (6,)),
    (Model(name="mlp", hidden=(9, 8, 7)), (6,)),
    (Model(name="cnn"), (8, 8)),
    (Model(name="cnn"), (1, 12, 12)),
    (Model(name="resnet20"), (8, 8)),
]


def name_of(value):
    return value.name if isinstance(value, Model) else str(value)


def setting(config, shape):
    parameters = {
        name: torch.from_numpy(value) for name, value in initial_parameters(config, shape, CLASSES, seed=2).items()
    }
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(5, *shape, generator=generator)
    labels = torch.randint(0, CLASSES, (5,), generator=generator)
    return Masks(build(config, shape, CLASSES)), parameters, inputs, labels


def gradients(masks, parameters, inputs, labels, mask):
    return grad(lambda values: cross_entropy(masks.call(values, inputs, mask), labels))(parameters)


def test_a_mask_multiplies_the_hidden_units_and_rescales_nothing():
    masks, parameters, inputs, _ = setting(Model(name="mlp", hidden=(9, 8)), (6,))
    mask = torch.tensor([1.0, 0, 0, 1, 1, 0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 1])
    values = inputs
    for index, part in enumerate(mask.split([9, 8])):
        weight, bias = parameters[f"hidden.{index}.weight"], parameters[f"hidden.{index}.bias"]
        values = torch.relu(values @ weight.T + bias) * part
    expected = values @ parameters["output.weight"].T + parameters["output.bias"]
    torch.testing.assert_close(masks.call(parameters, inputs, mask), expected)


@pytest.mark.parametrize(("config", "shape"), CASES, ids=name_of)
def test_a_mask_of_ones_is_the_full_model(config, shape):
    masks, parameters, inputs, _ = setting(config, shape)
    expected = functional_call(masks.module, parameters, (inputs,))
    torch.testing.assert_close(masks.call(parameters, inputs, torch.ones(masks.nodes)), expected, rtol=0, atol=0)


@pytest.mark.parametrize(("config", "shape"), CASES, ids=name_of)
def test_masks_without_a_common_node_have_disjoint_split_gradients(config, shape):
    masks, parameters, inputs, labels = setting(config, shape)
    labels_of_nodes = torch.arange(masks.nodes) % 2  # alternating, so that every layer has nodes in both
    supports = [
        {
            name: value != 0
            for name, value in gradients(masks, parameters, inputs, labels, (labels_of_nodes == each).float()).items()
        }
        for each in (0, 1)
    ]
    for name in parameters:
        if name not in masks.shared:
            assert not bool((supports[0][name] & supports[1][name]).any()), name
    alive = [sum(int(support[name].sum()) for name in support if name not in masks.shared) for support in supports]
    assert min(alive) > 0
    assert bool((supports[0]["output.bias"] & supports[1]["output.bias"]).any())  # what is shared is shared


def test_the_module_keeps_no_trace_of_a_mask():
    masks, parameters, inputs, _ = setting(Model(name="mlp", hidden=(9,)), (6,))
    before = masks.module(inputs)
    masks.call(parameters, inputs, torch.zeros(9))
    with pytest.raises(RuntimeError):
        masks.call(parameters, inputs[:, :2], torch.zeros(9))
    torch.testing.assert_close(masks.module(inputs), before, rtol=0, atol=0)


def test_a_model_without_hidden_layers_is_refused():
    with pytest.raises(ModelError, match="declares no nodes"):
        Masks(build(Model(name="logistic"), (6,), CLASSES))
