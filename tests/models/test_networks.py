"""Built-in models: published sizes, initial values from a file, and what is refused."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from fedamp.errors import ModelError
from fedamp.models.architectures import architecture_of
from fedamp.models.networks import Network, build, initial_parameters
from fedamp.models.section import Model
from tests.models.splitting import refused


# torchvision's tables; norms have two numbers a channel there too
@pytest.mark.parametrize(("name", "published"), [("resnet18", 11_689_512), ("resnet101", 44_549_160)])
def test_big_residual_networks_have_the_published_size(name, published):
    with torch.device("meta"):
        module = Network(architecture_of(Model(name=name)), (3, 224, 224), 1000)
    assert sum(parameter.numel() for parameter in module.parameters()) == published


def test_the_small_residual_network_has_the_size_its_layers_add_up_to():
    def stage(into, width):  # six convolutions of 3 x 3, a norm after each, and a shortcut where the width changes
        first = 9 * into * width + 5 * 9 * width * width + 6 * 2 * width
        return first + (into * width + 2 * width if into != width else 0)

    expected = 9 * 3 * 16 + 32 + stage(16, 16) + stage(16, 32) + stage(32, 64) + 64 * 10 + 10
    values = initial_parameters(Model(name="resnet20"), (3, 32, 32), 10, seed=0)
    assert sum(value.size for value in values.values()) == expected


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
    bias = values.pop("output.bias")
    wide = {"output.bias": bias.astype(np.float64)}
    for changes, message in (
        ({}, r"output\.bias is missing"),
        ({"output.bias": bias, "extra": bias}, "extra is not in the model"),
        (wide, r"output\.bias must be float32 of shape \[2\], got float64"),
    ):
        save_file(values | changes, tmp_path / "start.safetensors")
        with pytest.raises(ModelError, match=message):
            attempt()


NOT_BUILT = [
    (Model(name="mpl"), (4,), r"'mpl' is unknown \(did you mean 'mlp'\?\); expected: cnn, logistic, lstm, mlp"),
    (Model(name="mlp", options={"width": 3}), (4,), "options are for a custom model"),
    (Model(name="cnn"), (64,), r"needs images.*got input shape \[64\]"),
    (Model(name="cnn", channels=(10,)), (8, 8), "10 channels cannot be cut into model.groups = 4"),
    (Model(name="resnet20", groups=5), (8, 8), "16 channels cannot be cut into 5 groups"),
]


def test_what_cannot_be_built_is_refused_in_one_line(subtests):
    for config, shape, message in NOT_BUILT:
        with subtests.test(message), refused(message):
            build(config, shape, 10)
