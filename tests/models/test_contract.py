"""What every built-in model keeps: a new one is tested by being registered."""

import random

import numpy as np
import pytest
import torch
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from fedamp.errors import ModelError
from fedamp.federation.submodels import DisjointSubmodels
from fedamp.models.architectures import ARCHITECTURES, architecture_of
from fedamp.models.inspection import cost, kept_per_record, prove_silence
from fedamp.models.masks import Masks
from fedamp.models.model import Model
from fedamp.models.networks import build, initial_parameters
from fedamp.models.units import most_submodels
from tests.models.splitting import split

SHAPES = [(8, 8), (3, 16, 16), (28, 28, 1)]
CLASSES = 4
SLOW = {"resnet18", "resnet101"}  # 11 and 45 million parameters, of the same code as resnet20
OF_NUMBERS = sorted(set(ARCHITECTURES) - {"lstm"})  # of tokens: test_networks.py
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in OF_NUMBERS]
SPLIT = [name for name in OF_NUMBERS if name not in SLOW and most_submodels(architecture_of(Model(name=name)).units())]

every_model = pytest.mark.parametrize("name", NAMES)
every_splittable_model = pytest.mark.parametrize("name", SPLIT)


def records(shape, count=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, *shape, generator=generator), torch.randint(CLASSES, (count,), generator=generator)


def parameters_of(name, shape=(8, 8), seed=1, **keys):
    values = initial_parameters(Model(name=name, **keys), shape, CLASSES, seed)
    return {name: torch.from_numpy(value) for name, value in values.items()}


def loss_and_gradients(forward, parameters, inputs, labels):
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    loss = cross_entropy(forward(leaves, inputs), labels)
    return loss.item(), torch.autograd.grad(loss, list(leaves.values()))


@every_model
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_answers_logits_and_a_small_step_lowers_the_loss(name, shape):
    module, parameters = build(Model(name=name), shape, CLASSES), parameters_of(name, shape)
    inputs, labels = records(shape)
    forward = lambda values, batch: functional_call(module, values, (batch,))  # noqa: E731
    assert forward(parameters, inputs).shape == (3, CLASSES)
    before, gradients = loss_and_gradients(forward, parameters, inputs, labels)
    length = sum(float((gradient**2).sum()) for gradient in gradients)
    after = {name: value - 1e-3 / length * g for (name, value), g in zip(parameters.items(), gradients, strict=True)}
    # Down a gradient of this length a step lowers the loss by 0.001, to first order.
    assert 0 < before - loss_and_gradients(forward, after, inputs, labels)[0] < 2e-3


@every_model
def test_a_record_is_answered_alike_whoever_else_is_in_the_batch(name):
    module, (inputs, _) = build(Model(name=name), (8, 8), CLASSES).train(), records((8, 8))
    # float32 sums in another order through the layers; a norm over the batch would show in the first digit
    torch.testing.assert_close(module(inputs)[:1], module(inputs[:1]), rtol=1e-4, atol=1e-4)


@every_model
def test_stacked_parameters_give_what_each_client_gets_alone(name):
    module, clients = build(Model(name=name), (8, 8), CLASSES), [parameters_of(name, seed=seed) for seed in (1, 2)]
    stacked = {name: torch.stack([client[name] for client in clients]) for name in clients[0]}
    inputs, _ = records((8, 8), count=6)
    together = vmap(lambda values, batch: functional_call(module, values, (batch,)))(stacked, inputs.view(2, 3, 8, 8))
    for answer, client, batch in zip(together, clients, inputs.view(2, 3, 8, 8), strict=True):
        # float32 sums taken in another order through many layers
        torch.testing.assert_close(answer, functional_call(module, client, (batch,)), rtol=1e-4, atol=1e-4)


@every_model
def test_initial_values_depend_on_the_seed_alone_and_disturb_no_generator(name):
    torch.manual_seed(1)
    first, expected = parameters_of(name, seed=5), torch.get_rng_state()
    random.seed(3)
    again, other = parameters_of(name, seed=5), parameters_of(name, seed=6)
    assert torch.equal(torch.get_rng_state(), expected)
    assert list(first) == [name for name, _ in build(Model(name=name), (8, 8), CLASSES).named_parameters()]
    assert all(value.dtype == torch.float32 and torch.equal(value, again[name]) for name, value in first.items())
    assert any(not torch.equal(value, other[name]) for name, value in first.items())


@every_model
def test_its_cost_is_counted(name):
    module = build(Model(name=name), (8, 8), CLASSES)
    counted = cost(module, (8, 8))
    assert counted.parameters == sum(value.numel() for value in parameters_of(name).values())
    assert counted.flops_per_record >= 4 * 64  # forward, and the weights' gradient
    assert kept_per_record(module, (8, 8)) >= 64


@every_model
def test_the_names_it_gives_are_those_of_its_modules(name):
    architecture, module = architecture_of(Model(name=name)), build(Model(name=name), (8, 8), CLASSES)
    assert set(architecture.layers()) <= {name for name, _ in module.named_modules()}
    masked = {each.layer: each.count for each in architecture.units() if each.count}
    if masked:
        assert Masks(module).layers == masked
        prove_silence(module, (8, 8))


@every_model
def test_it_can_be_split_as_far_as_it_says_and_no_further(name):
    config, most = Model(name=name), most_submodels(architecture_of(Model(name=name)).units())
    assert most != 1
    if most:
        DisjointSubmodels(scheme="disjoint", count=most).check_model(config)
        assert split(config, (8, 8), CLASSES, most).count == most
    with pytest.raises(ModelError):
        split(config, (8, 8), CLASSES, max(2, most + 1))
    with pytest.raises(ModelError, match=r"submodels\.count: .* nodes to partition"):
        DisjointSubmodels(scheme="disjoint", count=max(2, most + 1)).check_model(config)


@every_splittable_model
@pytest.mark.parametrize("share", [False, True])
def test_submodels_are_smaller_and_extract_undoes_embed(name, share):
    config, last = Model(name=name), architecture_of(Model(name=name)).layers()[-1]
    cut = split(config, (8, 8), CLASSES, 2, (last,) if share else (), seed=1)
    parameters, whole = parameters_of(name), cost(build(config, (8, 8), CLASSES), (8, 8))
    for convert in (lambda tensor: tensor, lambda tensor: tensor.numpy()):
        arrays = {name: convert(value) for name, value in parameters.items()}
        for j in range(2):
            part, module = cut.piece(j).extract(arrays), cut.piece(j).module
            assert {name: tuple(value.shape) for name, value in part.items()} == {
                name: tuple(value.shape) for name, value in module.named_parameters()
            }
            assert cost(module, (8, 8)).flops_per_record < whole.flops_per_record
            total = {name: value * 0 for name, value in arrays.items()}
            cut.piece(j).embed_add(total, part)
            for name, value in cut.piece(j).extract(total).items():
                np.testing.assert_array_equal(value, part[name])
