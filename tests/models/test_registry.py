"""Registered models: shapes, exact sizes, initial values, vmap."""

import random

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch.func import functional_call, vmap

from fedamp.errors import ModelError
from fedamp.models import catalogue, registry
from fedamp.models.registry import build, initial_parameters
from fedamp.scenario import Model

SMALL = [
    (Model(name="logistic"), (20,), 3),
    (Model(name="mlp", hidden=(12, 8)), (8, 8), 10),
    (Model(name="cnn"), (8, 8), 10),
    (Model(name="cnn"), (1, 28, 28), 10),
    (Model(name="cnn"), (28, 28, 1), 10),
    (Model(name="cnn"), (3, 32, 32), 100),
    (Model(name="cnn", channels=(8, 8, 8, 8), groups=2), (8, 8), 10),  # more poolings than the image can take
    (Model(name="resnet20"), (3, 16, 16), 10),
    (Model(name="resnet18"), (3, 8, 8), 10),
]


def ids(case):
    return f"{case.name}" if isinstance(case, Model) else str(case)


@pytest.mark.parametrize(("config", "shape", "classes"), SMALL, ids=ids)
def test_stacked_parameters_give_what_each_client_gets_alone(config, shape, classes):
    module = build(config, shape, classes)
    clients = [initial_parameters(config, shape, classes, seed) for seed in (1, 2)]
    stacked = {name: torch.from_numpy(np.stack([client[name] for client in clients])) for name in clients[0]}
    inputs = torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(0))
    together = vmap(lambda parameters, batch: functional_call(module, parameters, (batch,)))(stacked, inputs)
    assert together.shape == (2, 3, classes)
    for index, client in enumerate(clients):
        alone = functional_call(
            module, {name: torch.from_numpy(value) for name, value in client.items()}, inputs[index]
        )
        # float32 sums taken in another order through up to 20 layers
        torch.testing.assert_close(together[index], alone, rtol=1e-4, atol=1e-4)


def test_the_catalogue_knows_exactly_the_registered_names():
    assert set(catalogue.NAMES) == set(registry._factories)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("resnet18", 11_689_512),
        ("resnet101", 44_549_160),
    ],  # torchvision's tables; norms have two numbers a channel there too
)
def test_big_residual_networks_have_the_published_size(name, published):
    with torch.device("meta"):
        module = registry._factories[name](Model(name=name), (3, 224, 224), 1000)
    assert sum(parameter.numel() for parameter in module.parameters()) == published


def test_the_small_residual_network_has_the_size_its_layers_add_up_to():
    def stage(into, width):  # six convolutions of 3 x 3, a norm after each, and a shortcut where the width changes
        first = 9 * into * width + 5 * 9 * width * width + 6 * 2 * width
        return first + (into * width + 2 * width if into != width else 0)

    expected = 9 * 3 * 16 + 32 + stage(16, 16) + stage(16, 32) + stage(32, 64) + 64 * 10 + 10
    values = initial_parameters(Model(name="resnet20"), (3, 32, 32), 10, seed=0)
    assert sum(value.size for value in values.values()) == expected


@pytest.mark.parametrize("config", [Model(name="mlp"), Model(name="cnn")], ids=ids)
def test_initial_values_depend_on_the_seed_and_on_nothing_else(config):
    torch.manual_seed(1)
    first = initial_parameters(config, (8, 8), 10, seed=5)
    torch.manual_seed(2)
    torch.rand(7)
    random.seed(3)
    again, other = initial_parameters(config, (8, 8), 10, seed=5), initial_parameters(config, (8, 8), 10, seed=6)
    assert {value.dtype for value in first.values()} == {np.dtype(np.float32)}
    assert list(first) == [name for name, _ in build(config, (8, 8), 10).named_parameters()]
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name])
    assert any(not np.array_equal(value, other[name]) for name, value in first.items())


def test_the_global_generator_is_not_disturbed():
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    build(Model(name="mlp"), (8, 8), 10)
    initial_parameters(Model(name="cnn"), (8, 8), 10, seed=1)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)


def test_initial_values_from_a_file(tmp_path):
    config = Model(name="mlp", initial="start.safetensors")
    values = initial_parameters(Model(name="mlp"), (4,), 2, seed=9)
    save_file(values, tmp_path / "start.safetensors")
    read = initial_parameters(config, (4,), 2, seed=0, folder=tmp_path)
    assert list(read) == list(values)
    for name, value in values.items():
        np.testing.assert_array_equal(read[name], value)


def test_a_file_that_does_not_fit_is_refused_by_name(tmp_path):
    config = Model(name="mlp", initial="start.safetensors")

    def attempt():
        return initial_parameters(config, (4,), 2, seed=0, folder=tmp_path)

    with pytest.raises(ModelError, match=r"start\.safetensors: cannot be read"):
        attempt()
    values = initial_parameters(Model(name="mlp"), (4,), 2, seed=9)
    path = tmp_path / "start.safetensors"
    save_file({name: value for name, value in values.items() if name != "output.bias"}, path)
    with pytest.raises(ModelError, match=r"output\.bias is missing"):
        attempt()
    save_file({**values, "extra": values["output.bias"]}, path)
    with pytest.raises(ModelError, match="extra is not in the model"):
        attempt()
    save_file({**values, "output.bias": values["output.bias"].astype(np.float64)}, path)
    with pytest.raises(ModelError, match=r"output\.bias must be float32 of shape \[2\], got float64"):
        attempt()


@pytest.mark.parametrize(
    ("config", "shape", "message"),
    [
        (Model(name="mpl"), (4,), r"'mpl' is unknown \(did you mean 'mlp'\?\); accepted: logistic, mlp, cnn"),
        (Model(name="mlp", options={"width": 3}), (4,), "options are for a model of your own"),
        (Model(name="cnn"), (64,), r"needs images.*got input shape \[64\]"),
        (Model(name="cnn", channels=(10,)), (8, 8), "10 channels cannot be cut into model.groups = 4"),
        (Model(name="resnet20", groups=5), (8, 8), "16 channels cannot be cut into 5 groups"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(config, shape, message):
    with pytest.raises(ModelError, match=message) as refused:
        build(config, shape, 10)
    assert "\n" not in str(refused.value)
