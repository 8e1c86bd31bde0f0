"""One unit's data move the sum of a round by one clip at most, whatever they are; and what moves it more is found."""

import math

import numpy as np
import pytest

from fedamp.client.worker import TrainingNode
from fedamp.federation import reader
from fedamp.strategies.aggregation import ClippedSums
from tests.extensions.audit import planted
from tests.extensions.audit.sensitivity import search
from tests.federations import small
from tests.test_scenarios_run import OFFLINE

MLP = "model={name: mlp, hidden: [12]}"
ALL = "check_in={scheme: all}"
SAMPLE = "privacy={unit: sample, clip: 0.5, noise_multiplier: 1.0}"
CHARACTERS = [
    "data={name: shakespeare, clients: 300}",
    "model={name: lstm, vocabulary: 61, embedding: 4, hidden: [6]}",
    "client={loss: token-cross-entropy, steps: 1, learning_rate: 1.0}",
    "rounds=24",
    "check_in.k=1",
]

# Scenario, changes tried, rounds.
SMALL = {
    # Local training that amplifies every last bit: with stacks padded to their longest client this moved 2.1 clips.
    "chaotic": (
        [
            "data={name: synthetic, clients: 21, records_per_client: 17, features: 64, separation: 1.0}",
            "model={name: mlp, hidden: [64]}",
            ALL,
            "client={steps: 120, learning_rate: 4.0}",
            "privacy.clip=1.0",
        ],
        5,
        1,
    ),
    "balanced": ([], 40, 4),
    "adaptive": (["privacy.clip={initial: 0.2}", "check_in={scheme: poisson, rate: 0.3}"], 40, 4),
    "auto": (["privacy.clip=auto", "client={steps: 3, batch_size: 2, learning_rate: 0.5}"], 20, 2),
    "disjoint": ([MLP, "submodels={scheme: disjoint, count: 3, shared_clip: 2.0}"], 20, 2),
    "dropout": ([MLP, "submodels={scheme: dropout}", "client={steps: 2, learning_rate: 0.1, optimizer: adam}"], 20, 2),
    "mixing": (["check_in.k=1", "server={learning_rate: 0.7}", "mixing={width: 0.2, linf_coordinates: 9}"], 20, 2),
    "samples": ([SAMPLE, "client.steps=1", "check_in.k=1"], 20, 2),
    "samples, perceptron": ([SAMPLE, "client.steps=1", "check_in.k=1", MLP], 20, 2),
    "numbers": (["data={name: diabetes, clients: 60}", "client.loss=mean-squared-error"], 8, 1),
    "tokens": (CHARACTERS, 4, 1),
    "faults": (["faults={failing: 0.4}"], 20, 2),
}


@pytest.mark.few(0, 2, 4, 6, 8, 11)
@pytest.mark.parametrize("name", SMALL)
def test_one_unit_counts_for_one_clip_at_most_and_records_do_not_change_reports(name):
    overrides, repetitions, rounds = SMALL[name]
    moves = search(small(*overrides), repetitions, rounds)
    assert not [str(move) for move in moves if move.is_too_far]
    assert max(move.distance for move in moves) > 0.5  # the search comes near what it must not exceed


@pytest.mark.slow
@pytest.mark.parametrize("name", OFFLINE)
def test_in_the_shipped_scenarios(name):
    shorter = ["privacy.noise_multiplier=1", "privacy.epsilon=null", "engine.device=cpu"]
    assert not [str(move) for move in search(reader.load(name, shorter), 24, 2) if move.is_too_far]


# --- mistakes ---------------------------------------------------------------------------------------------------------


def weighted_by_records(monkeypatch):
    """The server divides by how many records there were, which its nodes tell it in private."""
    right = ClippedSums.aggregate

    def wrong(self, replies, asked):
        total = right(self, replies, asked)
        total.sums = {name: array * 1000 / total.records for name, array in total.sums.items()}
        return total

    monkeypatch.setattr(ClippedSums, "aggregate", wrong)


def scaled_by_everybody(monkeypatch):
    """A node looks at the records of all units, also of those that are not in the round."""
    right = TrainingNode.train

    def wrong(self, order):
        report = right(self, order)
        share = 1 / (2 + self.dataset.gather(np.arange(self.dataset.num_clients)).labels.sum())
        report.sums = {name: array * share for name, array in report.sums.items()}
        return report

    monkeypatch.setattr(TrainingNode, "train", wrong)


# The mistake, a scenario that shows it, changes and rounds, and the range of the largest distance.
PLANTED = {
    "no clipping": (planted.no_clipping_on_the_client, [ALL], 10, 1, (2, math.inf)),
    # Two arrays, each at its clip: a norm of sqrt(2).
    "clip by array": (planted.every_array_clipped_by_itself, [ALL, "client.learning_rate=50"], 10, 1, (1.2, 1.42)),
    "weighted by records": (weighted_by_records, [ALL, "data.clients=200"], 20, 1, (2, math.inf)),
    "other units": (scaled_by_everybody, [], 20, 2, (0, math.inf)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name, monkeypatch):
    plant, overrides, repetitions, rounds, (least, most) = PLANTED[name]
    plant(monkeypatch)
    too_far = [move for move in search(small(*overrides), repetitions, rounds) if move.rank[0]]
    assert least < max(move.distance for move in too_far) < most
    assert name != "other units" or any(move.allowed == 0 for move in too_far)


def test_the_same_search_finds_the_same_moves(monkeypatch):
    planted.no_clipping_on_the_client(monkeypatch)
    first, again = (search(small(ALL), 10, 1) for _ in range(2))
    assert first == again
    assert "the sum moves by" in str(max(first, key=lambda move: move.rank))
