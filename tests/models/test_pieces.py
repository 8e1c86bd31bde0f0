"""Disjoint submodels: extracted networks against the masked full model, and who owns which coordinate."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedamp.errors import ModelError
from fedamp.models.architectures import architecture_of
from fedamp.models.masks import Masks
from fedamp.models.model import Model
from fedamp.models.networks import build, initial_parameters
from fedamp.models.units import most_submodels
from tests.models.splitting import refused, split

MLP = Model(name="mlp", hidden=(7, 5))
CNN = Model(name="cnn", channels=(8, 12))
RESNET = Model(name="resnet20")
CASES = [
    (Model(name="mlp", hidden=(7,)), (6,), 3, ()),
    (MLP, (6,), 3, ()),
    (MLP, (6,), 2, ("output",)),
    (MLP, (6,), 4, ("hidden.1",)),
    (CNN, (8, 8), 4, ()),
    (CNN, (8, 8), 2, ("convolutions.0",)),
    (RESNET, (8, 8), 3, ()),
    (RESNET, (8, 8), 2, ("layer1", "layer3.2")),
]
CLASSES = 4


def name_of(value):
    if isinstance(value, set):  # in an order that does not differ between test processes
        return ",".join(sorted(value))
    return value.name if isinstance(value, Model) else str(value)


def step(forward, parameters, inputs, labels, rate=0.5):
    """One gradient step; parameters that do not matter stay."""
    leaves = {name: torch.from_numpy(value.copy()).requires_grad_() for name, value in parameters.items()}
    loss = cross_entropy(forward(leaves, inputs), labels)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {
        name: (leaf.detach() if gradient is None else leaf.detach() - rate * gradient).numpy()
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
    }


def records(shape, count=5):
    generator = np.random.default_rng(0)
    inputs = torch.from_numpy(generator.normal(size=(count, *shape)).astype(np.float32))
    return inputs, torch.from_numpy(generator.integers(0, CLASSES, size=count))


@pytest.mark.parametrize(
    ("config", "shape", "count", "shared"), [*CASES, (Model(name="resnet18"), (3, 8, 8), 5, ())], ids=name_of
)
def test_one_step_of_the_extracted_network_is_one_step_of_the_masked_full_model(config, shape, count, shared):
    parameters = initial_parameters(config, shape, CLASSES, seed=3)
    cut = split(config, shape, CLASSES, count, shared, seed=1)
    masks = Masks(build(config, shape, CLASSES))
    inputs, labels = records(shape)
    for j in range(2):
        module = cut.piece(j).module
        small = cut.piece(j).extract(parameters)
        trained = step(lambda p, x: functional_call(module, p, (x,)), small, inputs, labels)  # noqa: B023
        mask = masks.of(cut.kept[j])
        expected = step(lambda p, x: masks.call(p, x, mask), parameters, inputs, labels)  # noqa: B023
        found = {name: value.copy() for name, value in parameters.items()}
        cut.piece(j).embed_add(found, {name: trained[name] - small[name] for name in small})
        for name, value in expected.items():
            # float32, sums of other lengths (zeros left out) through up to 20 layers
            np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(("config", "shape", "count", "shared"), CASES, ids=name_of)
def test_no_split_coordinate_belongs_to_two_submodels(config, shape, count, shared):
    parameters = initial_parameters(config, shape, CLASSES, seed=3)
    cut = split(config, shape, CLASSES, count, shared, seed=1)
    owners = {name: np.zeros_like(value) for name, value in parameters.items()}
    touched = []
    for j in range(count):
        before = {name: value.copy() for name, value in owners.items()}
        part = cut.piece(j)
        part.embed_add(owners, {name: np.ones_like(value) for name, value in part.extract(parameters).items()})
        touched.append(sum(int((owners[name] - before[name])[...].sum()) for name in owners if name not in cut.shared))
    for name, value in owners.items():
        if name not in cut.shared:
            assert value.max() == 1, name  # owned by one at most, and by somebody
    assert (owners["output.bias"] == count).all()
    assert min(touched) > 0  # every submodel owns something


SHARED = [
    (Model(name="mlp", hidden=(7,)), (), {"output.bias"}),
    (Model(name="mlp", hidden=(7,)), ("output",), {"output.weight", "output.bias"}),
    (MLP, ("output",), {"output.weight", "output.bias"}),
    (MLP, ("hidden.0",), {"hidden.0.weight", "hidden.0.bias", "output.bias"}),
    (MLP, ("hidden.1",), {"hidden.1.weight", "hidden.1.bias", "output.weight", "output.bias"}),
    (CNN, (), {"output.bias"}),
    (CNN, ("norms.1",), {"norms.1.weight", "norms.1.bias", "output.bias"}),
    (
        CNN,
        ("convolutions.0",),
        {*(f"{layer}.0.{kind}" for layer in ("convolutions", "norms") for kind in ("weight", "bias")), "output.bias"},
    ),
]


def test_which_parameters_are_shared(subtests):
    for config, shared, expected in SHARED:
        with subtests.test(shared):
            assert split(config, (8, 8), CLASSES, 2, shared).shared == expected


def test_residual_networks_share_stem_output_and_blocks_that_change_shape():
    cut = split(RESNET, (8, 8), CLASSES, 2, ("layer1.1",))
    tops = {".".join(name.split(".")[:2]) for name in cut.shared}
    assert tops == {"stem.conv", "stem.norm", "layer1.1", "layer2.0", "layer3.0", "output.weight", "output.bias"}


def test_the_middle_blocks_of_the_paper():
    # Dong, Chen, Özgür 2025, section 4: the first 5 and the last 2 blocks of ResNet-101 are shared, the middle 22 split
    shared = ("layer1", "layer2", "layer4")
    assert most_submodels(architecture_of(Model(name="resnet101")).units()) == 5 + 22 + 2
    assert most_submodels(architecture_of(Model(name="resnet101")).units(), shared) == 22
    for count in (3, 8):
        sizes = [len(kept["layer3"]) for kept in split(Model(name="resnet101"), (3, 8, 8), 10, count, shared).kept]
        assert sum(sizes) == 22
        assert max(sizes) - min(sizes) <= 1


@settings(max_examples=40, deadline=None)
@given(
    hidden=st.lists(st.integers(2, 9), min_size=1, max_size=3),
    count=st.integers(2, 9),
    seed=st.integers(0, 2**63),
    partition=st.integers(0, 10**6),
)
def test_nodes_are_dealt_out_evenly_and_completely(hidden, count, seed, partition):
    config = Model(name="mlp", hidden=tuple(hidden))
    limit = most_submodels(architecture_of(config).units())
    if count > limit:
        with pytest.raises(ModelError, match=f"{count} submodels, but model"):
            split(config, (2,), 2, count, (), seed, partition)
        return
    kept = split(config, (2,), 2, count, (), seed, partition).kept
    for index, width in enumerate(hidden):
        groups = [each[f"hidden.{index}"] for each in kept]
        assert sorted(node for group in groups for node in group) == list(range(width))
        assert max(map(len, groups)) - min(map(len, groups)) <= 1
    totals = [sum(map(len, each.values())) for each in kept]
    assert max(totals) - min(totals) <= 1


def test_partitions_depend_on_seed_and_index_only():
    def kept(seed, index):
        return split(Model(name="mlp", hidden=(40,)), (3,), 2, 4, (), seed, index).kept

    torch.manual_seed(0)
    first = kept(1, 0)
    torch.manual_seed(1)
    assert kept(1, 0) == first
    assert kept(2, 0) != first
    assert kept(1, 1) != first


def test_logits_of_one_split_layer_add_up():
    # the promise about scaling: the full model is the sum of its submodels, less the repeated output bias
    config = Model(name="mlp", hidden=(9,))
    parameters = initial_parameters(config, (6,), CLASSES, seed=0)
    cut = split(config, (6,), CLASSES, 3)
    inputs, _ = records((6,))

    def logits(module, values):
        tensors = {name: torch.from_numpy(value) for name, value in values.items()}
        return functional_call(module, tensors, (inputs,)).detach().numpy()

    whole = logits(build(config, (6,), CLASSES), parameters)
    parts = sum(logits(cut.piece(j).module, cut.piece(j).extract(parameters)) for j in range(3))
    np.testing.assert_allclose(parts - 2 * parameters["output.bias"], whole, rtol=1e-5, atol=1e-6)  # float32 sums


NOT_SPLIT = [
    (Model(name="logistic"), 2, (), "declares no nodes that can be left out"),
    (Model(name="mlp", hidden=(8, 3)), 4, (), "4 submodels, but model Network has 3 nodes"),
    (Model(name="cnn"), 5, (), "5 submodels, but model Network has 4 nodes"),
    (RESNET, 8, (), "8 submodels, but model Network has 7 nodes"),
    (RESNET, 3, ("layer1", "layer2"), "3 submodels, but model Network has 2 nodes"),
    (MLP, 1, (), "1 submodels, .*; expected: 2 to"),
    (MLP, 2, ("hidden",), "0 nodes to partition beside submodels.shared"),
    (MLP, 2, ("ouput",), r"submodels\.shared: 'ouput' is unknown \(did you mean 'output'\?\); expected: hidden"),
    (MLP, 2, ("hidden.2",), r"'hidden\.2' is unknown"),
]


def test_what_cannot_be_split_is_refused_in_one_line(subtests):
    for config, count, shared, message in NOT_SPLIT:
        with subtests.test(message), refused(message):
            split(config, (8, 8), CLASSES, count, shared)
