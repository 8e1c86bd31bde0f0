"""Clipping rules: what they charge is the noise of what they let out; adaptive clipping by Andrew et al. 2021."""

import math

import numpy as np
import pytest

from fedamp.federation.norms import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    AdaptiveClip,
    ClippingRule,
    LayerClip,
    NormCounts,
    clipping_of,
)
from fedamp.federation.optimizers import ServerUpdate
from fedamp.federation.plan import make_plan
from fedamp.server.setup import prepare
from tests.federations import small

CLIP = AdaptiveClip(initial=0.1, noise_multiplier=2.0)

SERVER = ServerUpdate()
RULES = {"number": 0.5, "auto": "auto", "by layer": LayerClip(per_layer=0.5), "adaptive": CLIP}


def adapt(scale: float, below: int, reported: int, round_: int = 1, private: bool = False) -> float:
    return clipping_of(CLIP, SERVER, 8, 60.0).next_scale(scale, NormCounts(below, reported, 60.0), 3, round_, private)


@pytest.fixture(params=RULES)
def rule(request) -> ClippingRule:
    return clipping_of(RULES[request.param], SERVER, 8, 60.0)


def test_a_rule_that_charges_nothing_learns_nothing(rule):
    counts = [NormCounts(below, 60, 60.0) for below in (0, 20, 60)]
    scales = {rule.next_scale(1.0, each, seed=1, round_=1, private=False) for each in counts}
    assert (len(scales) == 1) == (rule.additional_releases() == ()) == rule.is_fixed


def test_what_a_rule_lets_out_has_the_noise_that_it_charges(rule):
    """The count moves by half a unit at most; 1,000 rounds, standard errors of 2.2 % and 3.2 %, five of them."""
    if rule.is_fixed:
        return
    (charged,) = rule.additional_releases()
    counts = NormCounts(30, 60, 60.0)
    scales = [rule.next_scale(1.0, counts, seed=3, round_=round_, private=True) for round_ in range(1, 1001)]
    a_unit_more = rule.next_scale(1.0, NormCounts(31, 61, 60.0), seed=3, round_=1, private=False)
    moved = np.log(a_unit_more) - np.log(rule.next_scale(1.0, counts, seed=3, round_=1, private=False))
    assert np.log(scales).std() / abs(moved) == pytest.approx(charged.noise_multiplier, rel=0.11)
    assert abs(np.log(scales).mean()) < 0.16 * np.log(scales).std()  # half of the units are below: no drift


def test_an_automatic_norm_moves_a_run_as_far_as_its_noise_allows():
    """D (1 - m) / R with D = 5 / sqrt(s / (n sqrt(R))), at most 1.6 sqrt(drift), worked out by hand.

    Momentum counts as 1 - 5 / R at most, and a server's rate above 1 divides the longest norm.
    """
    for server, rounds, cohort, noise, expected in (
        ({"momentum": 0.8}, 100, 50.0, 8.0, 5 / math.sqrt(0.016) * 0.2 / 100),
        ({"optimizer": "adam", "momentum": 0.8}, 100, 50.0, 8.0, 5 / math.sqrt(0.016) / 100),
        ({}, 4, 1000.0, 0.5, 1.6),  # 5 / sqrt(0.5 / 2000) / 4 would be 79
        ({}, 60, 300.0, 0.0, 1.6),
        ({"momentum": 0.9}, 10, 50.0, 8.0, 5 / math.sqrt(8 / (50 * math.sqrt(10))) * 0.5 / 10),
        ({"momentum": 0.9}, 4, 5.0, 8.0, 5 / math.sqrt(0.8) / 4),
        ({"learning_rate": 2.0}, 60, 300.0, 0.0, 0.8),
        ({"learning_rate": 0.5}, 60, 300.0, 0.0, 1.6),
        ({"optimizer": "adam", "learning_rate": 2.0}, 60, 300.0, 0.0, 1.6),
    ):
        rule = clipping_of("auto", ServerUpdate(**server), rounds, cohort)
        assert rule.first_norm(noise) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("client", "drift"),
    [
        ("{steps: 5, learning_rate: 0.1}", 0.5),
        ("{epochs: 2, batch_size: 4, learning_rate: [[1, 0.1], [3, 0.2]]}", 0.4),
        ("{steps: 2, learning_rate: 0.1, momentum: 0.5}", 0.4),
        ("{steps: 5, learning_rate: 0.1, optimizer: adam}", 1.0),
    ],
)
def test_an_automatic_norm_is_no_longer_than_clients_can_follow(client, drift):
    """However little the noise; with more noise it is never longer."""
    clip = "privacy.clip=auto"
    norms = [
        make_plan(small(clip, f"privacy.noise_multiplier={noise}", f"client={client}"), 60).parts[0].clip
        for noise in (0.01, 0.1, 1, 10, 100, 1000)
    ]
    assert norms[0] == pytest.approx(1.6 * math.sqrt(drift))
    assert norms == sorted(norms, reverse=True)
    assert norms[-1] < norms[0]


@pytest.mark.parametrize("below", [0, 20, 42, 60])
def test_without_noise_it_is_the_geometric_update(below):
    # C <- C exp(-eta_C (b - gamma)), b the share of updates within the norm (Andrew et al. 2021, section 2.1).
    expected = 1.7 * math.exp(-0.2 * (below / 60 - 0.5))
    assert adapt(1.7, below, reported=60) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("quantile", [0.5, 0.8])
def test_it_finds_the_quantile(quantile):
    norms = np.random.default_rng(1).lognormal(size=60)
    rule, scale = CLIP.model_copy(update={"quantile": quantile}), 1.0
    for round_ in range(1, 200):
        below = int((norms <= 0.1 * scale).sum())
        scale = rule.next_scale(scale, NormCounts(below, 60, 60.0), 3, round_, private=False)
    assert np.mean(norms <= 0.1 * scale) == pytest.approx(quantile, abs=0.05)


def test_units_that_do_not_report_leave_the_norm_where_the_centre_puts_it():
    # A unit that is away adds zero to the centred count, neither +1/2 nor -1/2.
    assert adapt(1.0, below=0, reported=0) == 1.0
    assert adapt(1.0, below=0, reported=30) == pytest.approx(math.exp(0.2 * 15 / 60))


def test_the_norm_stays_within_what_float32_can_clip():
    high = low = 1.0
    for round_ in range(1, 2000):
        high = adapt(high, below=0, reported=60, round_=round_)
        low = adapt(low, below=60, reported=60, round_=round_)
    assert high == LARGEST_SCALE
    assert low == SMALLEST_SCALE


def test_clipping_by_layer_has_the_noise_and_the_charge_of_the_same_norm():
    plans = [make_plan(small(f"privacy.clip={clip}"), 60) for clip in ("0.4", "{per_layer: 0.4}")]
    assert len({(plan.noise_multiplier, plan.parts, plan.charge.mechanism) for plan in plans}) == 1
    assert [plan.clipping.by_layer for plan in plans] == [False, True]
    assert [prepare(plan.scenario).task.by_layer for plan in plans] == [False, True]
