"""The character model against torch's own LSTM."""

import pytest
import torch
from torch import nn

from fedamp.errors import ModelError
from fedamp.federation.submodels import DisjointSubmodels, DropoutSubmodels
from fedamp.models.architectures import architecture_of
from fedamp.models.cost import cost, kept_per_record
from fedamp.models.layers import LSTM
from fedamp.models.networks import build, input_type
from fedamp.models.section import Model

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
            section.check(CHARACTERS)


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
