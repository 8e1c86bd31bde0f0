"""Embedding tables of which a client trains the rows that it touches: the same sums as of the whole table."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import fedamp
from fedamp.client.clipping import TableRows, clip_and_sum
from fedamp.client.worker import TrainingNode
from fedamp.engines.wire import RoundOrder, rows
from fedamp.federation.losses import form_of
from fedamp.models.embeddings import is_spare, tables, touched
from fedamp.models.pieces import Piece
from fedamp.server.setup import prepare
from tests.client.federation import trained

TOKENS, CLIENTS, RECORDS, LENGTH = 3000, 6, 5, 7
GENERATOR = np.random.default_rng(8)
X = GENERATOR.integers(0, TOKENS, (CLIENTS * RECORDS + 4, LENGTH))
X[: 2 * RECORDS, :3] = 5  # some tokens come again, also at other clients
Y = GENERATOR.integers(0, 3, len(X))


class Bag(nn.Module):
    """The mean of the tokens' rows; padding (token 5) does not count."""

    def __init__(self, uses="tokens"):
        super().__init__()
        self.table, self.output, self.uses = nn.Embedding(TOKENS, 4), nn.Linear(4, 3), uses

    def forward(self, inputs):
        looked_up = (inputs + 1) % TOKENS if self.uses == "others" else inputs
        counts = (inputs != 5)[..., None]
        return self.output((self.table(looked_up) * counts).sum(-2) / (1 + counts.sum(-2)))


class Others(Bag):
    def __init__(self):
        super().__init__("others")


class Tied(Bag):
    """Its table is also what outputs are compared with: three of its rows."""

    def forward(self, inputs):
        return self.table(inputs).mean(-2) @ self.table.weight[:3].T + 0 * self.output.bias


def node_of(model=Bag, x=X, **client):
    training = CLIENTS * RECORDS
    asked = fedamp.load(
        name="tables",
        seed=1,
        data=(x[:training], Y[:training], np.arange(training) // RECORDS),
        test=(x[training:], Y[training:]),
        model=model,
        rounds=3,
        check_in={"scheme": "balanced", "k": 1},
        client={"steps": 2, "learning_rate": 2.0, **client},
        privacy={"clip": 0.2, "noise_multiplier": 1.0, "delta": 1e-3},
        **{"model.vocabulary": TOKENS},
    )
    prepared = prepare(asked)
    dataset = asked.data.load(0, Path(), form_of(asked.client, asked.model))
    return TrainingNode(prepared.task, dataset), prepared.state.parameters


def order(clients):
    return RoundOrder("", 1, (0.2,), rows(clients, [bytes(31) + bytes([each]) for each in clients]))


def clipped_by_hand(start, client, decay=0.0, momentum=0.0):
    """A client's clipped update, by torch's own SGD on the whole table."""
    network = Bag()
    network.load_state_dict({name: torch.from_numpy(value) for name, value in start.items()})
    optimizer = torch.optim.SGD(network.parameters(), 2.0, momentum=momentum, weight_decay=decay)
    rows = slice(client * RECORDS, (client + 1) * RECORDS)
    for _ in range(2):
        optimizer.zero_grad()
        functional.cross_entropy(network(torch.from_numpy(X[rows])), torch.from_numpy(Y[rows])).backward()
        optimizer.step()
    updates = {name: value.detach().numpy() - start[name] for name, value in network.named_parameters()}
    norm = np.sqrt(sum(float(np.square(update, dtype=float).sum()) for update in updates.values()))
    return {name: update * min(1.0, 0.2 / norm) for name, update in updates.items()}


@pytest.mark.parametrize("client", [{}, {"momentum": 0.5}, {"weight_decay": 0.01}])
def test_the_sum_is_that_of_whole_tables(client):
    node, start = node_of(**client)
    sums, report = trained(node, start, order(list(range(CLIENTS))))
    assert (report.failed, len(report.reported)) == (0, CLIENTS)
    decay, momentum = client.get("weight_decay", 0.0), client.get("momentum", 0.0)
    by_hand = [clipped_by_hand(start, each, decay, momentum) for each in range(CLIENTS)]
    for name, total in sums.items():
        assert np.allclose(total, sum(update[name] for update in by_hand), atol=2e-6)  # float32 and the margin
    norms = [
        np.sqrt(sum(np.square(total).sum() for total in trained(node, start, order([c]))[0].values())) for c in (0, 3)
    ]
    assert all(0.19 < norm <= 0.2 for norm in norms)


def test_a_client_changes_nothing_for_its_mates():
    """Neighbouring data: client 2 has other tokens. The others' summands are the same to the bit."""
    other = X.copy()
    other[2 * RECORDS : 3 * RECORDS] = 17
    alone, together = [], []
    for x in (X, other):
        node, start = node_of(x=x)
        everybody, one = (trained(node, start, order(each))[0] for each in ([0, 1, 2, 3, 4, 5], [2]))
        together.append(everybody)
        alone.append(one)
    for name in together[0]:
        assert np.array_equal(together[0][name] - alone[0][name], together[1][name] - alone[1][name])


def test_only_plain_tables_of_the_input_s_tokens_are_trained_by_row():
    for change, is_plain in [
        ({}, True),
        ({"padding_idx": 3}, False),
        ({"max_norm": 1.0}, False),
        ({"scale_grad_by_freq": True}, False),
        ({"sparse": True}, False),
    ]:
        module = nn.Sequential(nn.Embedding(9, 2, **change))
        assert (tables(module) == {"0.weight": "0"}) == is_plain
    tied = nn.Sequential(nn.Embedding(9, 2), nn.Linear(2, 9, bias=False))
    tied[1].weight = tied[0].weight
    assert tables(tied) == {}
    for model, found in ((Bag, {"table.weight": "table"}), (Others, {}), (Tied, {})):
        asked = fedamp.load("characters", model=model, **{"model.vocabulary": TOKENS}).model
        assert dict(Piece.whole(asked, (LENGTH,), 3).tables) == found


@settings(max_examples=100, deadline=None)
@given(data=st.data(), clients=st.integers(1, 3), length=st.integers(1, 8), tokens=st.integers(1, 12))
def test_each_token_has_one_place(data, clients, length, tokens):
    drawn = data.draw(st.lists(st.integers(0, tokens - 1), min_size=clients * length, max_size=clients * length))
    found = torch.tensor(drawn).reshape(clients, length)
    rows = touched(found, length)
    for own, row, spare in zip(found, rows, is_spare(rows), strict=True):
        assert row[~spare].tolist() == sorted(set(own.tolist()))
        assert set(row[spare].tolist()) <= {max(own.tolist())}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), clip=st.sampled_from([1e-3, 0.5, 40.0]), normalised=st.booleans())
def test_no_update_adds_more_than_the_clip_whatever_its_rows(seed, clip, normalised):
    """Also where spare places hold numbers, or some are not finite."""
    generator = np.random.default_rng(seed)
    rows = touched(torch.from_numpy(generator.integers(0, 6, (3, 5))), 8)
    update = torch.from_numpy(generator.normal(0, 2 * clip, (3, 8, 2)).astype(np.float32))
    if seed % 3 == 0:
        update[0, 0, 0] = torch.nan
    for unit in itertools.chain([slice(None)], (slice(each, each + 1) for each in range(3))):
        found = clip_and_sum(
            {"table": update[unit].clone()},
            [["table"]],
            [clip],
            normalised=normalised,
            rows={"table": TableRows(rows[unit], 6)},
        )
        whole = found.sums["table"]
        assert whole.isfinite().all()
        if not isinstance(unit.start, int):
            total, parts = whole, torch.zeros_like(whole)
        else:
            assert float(whole.norm()) <= clip
            parts += whole
    assert torch.equal(parts, total)
