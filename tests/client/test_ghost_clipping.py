"""Clipped sums of single steps without gradients of records, held against gradients one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from fedamp.client.clipping import clip_and_sum, quantum
from fedamp.client.ghost_clipping import GhostClipping
from fedamp.data import PaddedRecords
from fedamp.federation.local_training import LocalTraining
from fedamp.federation.losses import LOSSES
from fedamp.models.model import Model
from fedamp.models.networks import build
from tests.client.federation import task_of

RATE = 0.7
TASK = task_of(model=Model(name="mlp"), input_shape=(3, 4), num_classes=4, client=LocalTraining(), unit="sample")


def network():
    return build(Model(name="mlp", hidden=(9,)), (3, 4), 4)


def records(count, seed=1, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(count, 3, 4, generator=generator), torch.randint(0, 4, (count,), generator=generator)


def updates(module, inputs, labels, loss=F.cross_entropy):
    """Every record's update by a backward pass of its own."""
    each = []
    for one, label in zip(inputs, labels, strict=True):
        gradients = torch.autograd.grad(loss(module(one[None]), label[None]), list(module.parameters()))
        each.append([-RATE * gradient for gradient in gradients])
    names = [name for name, _ in module.named_parameters()]
    return {name: torch.stack([one[index] for one in each]) for index, name in enumerate(names)}


def cohort_of(inputs, labels):
    return PaddedRecords(inputs[:, None].numpy(), labels[:, None].numpy(), np.ones(len(labels), np.int64))


def stepped(module, inputs, labels, parts, clips, normalised=False, loss=None):
    start = dict(module.named_parameters())
    return GhostClipping(LAYERS, RATE, loss).sum(start, cohort_of(inputs, labels), parts, clips, normalised)


LAYERS = ("hidden.0", "output")
WHOLE = (("hidden.0.weight", "hidden.0.bias", "output.weight", "output.bias"),)
TWO = (("output.weight", "hidden.0.bias"), ("hidden.0.weight", "output.bias"))


PLAIN = {"mean-squared-error": F.mse_loss, "binary-cross-entropy": F.binary_cross_entropy_with_logits}
BIASES = (("output.bias", "hidden.0.bias"), ("hidden.0.weight", "output.weight"))
CUTS = [(WHOLE, (0.4,)), (TWO, (0.2, 0.3)), (BIASES, (0.2, 0.3)), (WHOLE, (50.0,))]
SUMS = [(*cut, normalised, None) for cut in CUTS for normalised in (False, True)]
SUMS += [(WHOLE, (0.2,), False, loss) for loss in PLAIN]


@pytest.mark.parametrize(("parts", "clips", "normalised", "loss"), SUMS)
def test_the_sum_is_that_of_the_records_own_gradients(parts, clips, normalised, loss):
    module, (inputs, labels) = network(), records(40)
    plain, labels = (PLAIN[loss], F.one_hot(labels, 4).float()) if loss else (F.cross_entropy, labels)
    found, losses = stepped(module, inputs, labels, parts, clips, normalised, LOSSES[loss]() if loss else None)
    expected = clip_and_sum(updates(module, inputs, labels, plain), parts, clips, normalised=normalised)
    assert torch.equal(found.clipped, expected.clipped)
    assert torch.equal(found.failed, expected.failed)
    for part, clip in zip(parts, clips, strict=True):
        for name in part:
            # Each factor of a record's product is truncated by at most 2**-12 of its length.
            longest = clip if normalised else min(clip, 3)
            assert (found.sums[name] - expected.sums[name]).abs().max() < 40 * longest * 2**-11
    alone = [plain(module(one[None]), label[None]) for one, label in zip(inputs, labels, strict=True)]
    assert torch.allclose(losses.float(), torch.stack(alone), atol=1e-5)


def test_a_record_that_does_not_count_adds_nothing_whatever_it_is():
    """Dummies hide who checks in: they train, and their updates must not be in the sum."""
    module, (inputs, labels) = network(), records(9)
    counted = np.array([True, False, True, True, False, True, True, True, False])
    ghost, start = GhostClipping(LAYERS, RATE), dict(module.named_parameters())
    sums = ghost.sum(start, cohort_of(inputs, labels), WHOLE, (0.4,), counted=counted)[0].sums
    expected = clip_and_sum(updates(module, inputs[counted], labels[counted]), WHOLE, (0.4,)).sums
    for name, total in sums.items():
        assert (total - expected[name]).abs().max() < 9 * 0.4 * 2**-11  # as above
    for value in (100.0, torch.nan, torch.inf):
        others = inputs.clone()
        others[~torch.from_numpy(counted)] = value
        again = ghost.sum(start, cohort_of(others, labels), WHOLE, (0.4,), counted=counted)[0].sums
        assert all(torch.equal(again[name], total) for name, total in sums.items())


SINGLE = {"steps": 1, "learning_rate": 0.3}


@pytest.mark.parametrize(
    ("client", "fast"),
    [
        ({}, True),
        ({"loss": "binary-cross-entropy"}, True),
        ({"momentum": 0.9}, True),  # a first step has none
        ({"weight_decay": 0.1}, False),
        ({"proximal": 0.1}, False),
        ({"optimizer": "adam"}, False),
        ({"loss": "token-cross-entropy"}, False),
        ({"loss": "somebody:Loss"}, False),
    ],
)
def test_only_plain_steps_of_known_losses_go_without_gradients_of_records(client, fast):
    task = TASK.model_copy(update={"client": LocalTraining(**SINGLE, **client)})
    module = build(task.model, (3, 4), 4)
    assert GhostClipping.can_run(task, module, known=True) == fast
    assert not GhostClipping.can_run(task, nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), known=False)
    assert not GhostClipping.can_run(task.model_copy(update={"unit": "client"}), module, known=True)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1e-20, 1e-4, 1.0, 1e4, 1e12]),
    clip=st.floats(1e-6, 1e6),
    normalised=st.booleans(),
)
def test_one_record_is_within_the_clip_and_on_the_grid(seed, size, clip, normalised):
    inputs, labels = records(1, seed, size)
    found, _ = stepped(network(), inputs, labels, WHOLE, (clip,), normalised)
    total = np.concatenate([each.numpy().ravel() for each in found.sums.values()])
    assert np.linalg.norm(total) <= clip
    assert (total == np.round(total / quantum(clip)) * quantum(clip)).all()


def test_sums_add_up_to_the_bit_in_any_order():
    inputs, labels = records(300)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(5))
    whole, _ = stepped(network(), inputs, labels, WHOLE, (0.3,))
    shuffled, _ = stepped(network(), inputs[order], labels[order], WHOLE, (0.3,))
    # Forward passes of other batches may differ in their last bits, so each record's own step is the summand.
    alone = [stepped(network(), inputs[[i]], labels[[i]], WHOLE, (0.3,))[0] for i in range(300)]
    for name, total in whole.sums.items():
        assert torch.allclose(total, shuffled.sums[name], atol=1e-4)
        one_way, other_way = (sum(each.sums[name] for each in way) for way in (alone, alone[::-1]))
        assert torch.equal(one_way, other_way)


def test_a_record_that_is_not_finite_counts_as_zero():
    inputs, labels = records(5)
    without, _ = stepped(network(), inputs[:4], labels[:4], WHOLE, (0.3,))
    inputs[4, 0, 0] = float("inf")
    found, _ = stepped(network(), inputs, labels, WHOLE, (0.3,))
    assert found.failed.tolist() == [False] * 4 + [True]
    for name, total in found.sums.items():
        assert torch.allclose(total, without.sums[name], atol=1e-6)
