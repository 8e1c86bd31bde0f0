"""Built-in models: published sizes, initial values from a file, what is refused; the character model against torch."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

from fedamp.errors import ModelError
from fedamp.federation.submodels import DisjointSubmodels, DropoutSubmodels
from fedamp.models.architectures import architecture_of
from fedamp.models.inspection import cost, kept_per_record
from fedamp.models.layers import LSTM
from fedamp.models.model import Model
from fedamp.models.networks import Network, build, initial_parameters, input_type
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


CHARACTERS = Model(name="lstm", vocabulary=7, embedding=3, hidden=(5, 4))


def test_its_memory_is_torchs():
    ours, theirs = LSTM(3, 5), nn.LSTM(3, 5, batch_first=True)
    with torch.no_grad():
        theirs.bias_hh_l0.zero_()
        for target, source in (
            (theirs.weight_ih_l0, ours.inputs.weight),
            (theirs.bias_ih_l0, ours.inputs.bias),
            (theirs.weight_hh_l0, ours.state.weight),
        ):
            target.copy_(source)
    sequence = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0))
    # float32 through nine places
    torch.testing.assert_close(ours(sequence), theirs(sequence)[0], rtol=1e-5, atol=1e-6)


def test_it_answers_at_every_place_from_what_came_before():
    module, tokens = build(CHARACTERS, (6,), 7), torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 6, 6, 6]])
    answers = module(tokens)
    assert answers.shape == (2, 6, 7)
    torch.testing.assert_close(answers[0, :3], answers[1, :3])
    assert not torch.allclose(answers[0, 3:], answers[1, 3:])


def test_its_cost_is_counted():
    module, dtype = build(CHARACTERS, (6,), 7), input_type(CHARACTERS)
    parameters = 7 * 3 + (3 + 5 + 1) * 20 + (5 + 4 + 1) * 16 + (4 + 1) * 7
    assert cost(module, (6,), dtype).parameters == parameters
    # Forward alone, two operations a product, six places; the first place has no memory to multiply but does so.
    forward = 2 * 6 * ((3 + 5) * 20 + (5 + 4) * 16 + 4 * 7)
    assert forward < cost(module, (6,), dtype).flops_per_record <= 3 * forward
    assert kept_per_record(module, (6,), dtype) > 6 * 7


def test_it_cannot_be_cut_or_masked():
    for section in (DisjointSubmodels(scheme="disjoint", count=2), DropoutSubmodels(scheme="dropout")):
        with pytest.raises(ModelError, match=r"^submodels\."):
            section.check_model(CHARACTERS)


@pytest.mark.parametrize(
    ("name", "vocabulary", "wrong"),
    [("lstm", None, "is required with model lstm"), ("mlp", 7, "must be left out with model mlp")],
)
def test_tokens_and_numbers_are_not_mixed_up(name, vocabulary, wrong):
    with pytest.raises(ValueError, match=rf"^model\.vocabulary {wrong}"):
        architecture_of(Model(name=name, vocabulary=vocabulary))


def test_sequences_of_vectors_are_refused():
    with pytest.raises(ModelError, match=r"needs sequences of tokens, \[length\], got input shape \[2, 3\]"):
        build(CHARACTERS, (2, 3), 7)
