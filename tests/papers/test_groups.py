"""The curves of the figures about groups, at points that can be had in another way; and the page's commands."""

import math
import re
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.papers import __main__ as command
from benchmarks.papers import groups_curves as curves
from benchmarks.papers.groups_replacement import substituted
from fedamp.accounting import Gaussian, Group, Poisson, RandomisedResponse, Repeat, WithoutReplacement, group

PAGE = (Path(__file__).parents[2] / "docs" / "papers" / "groups.md").read_text()
DELTA = 1e-5


def response_divergence(order: float, one: float, other: float) -> float:
    """Of two coins."""
    moment = one**order * other ** (1 - order) + (1 - one) ** order * (1 - other) ** (1 - order)
    return math.log(moment) / (order - 1)


@pytest.mark.parametrize(("rate", "size"), [(0.2, 2), (0.2, 8), (0.001, 8)])
def test_figure_4_is_a_coin_that_the_group_turns(rate, size):
    turned = 1 - (1 - rate) ** size
    coin = 0.75 + turned * (0.25 - 0.75)
    for order in (2.0, 30.0):
        exact = max(response_divergence(order, coin, 0.75), response_divergence(order, 0.75, coin))
        assert curves.tight_response(0.75, rate, size)(np.array([order]))[0] == pytest.approx(exact, rel=1e-10)
        assert curves.sampled_response(0.75, rate, size).rdp([order])[0] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("noise", "rate", "size", "order"), [(1.0, 0.2, 4, 3.0), (0.5, 0.001, 2, 2.0), (5, 0.1, 8, 30)]
)
def test_figures_5_9_and_10_are_integrals_on_a_grid(noise, rate, size, order):
    z = np.arange(-14.0, 16.0 + order * size / noise, 0.01)
    counts = np.arange(size + 1)
    log_ratio = np.logaddexp.reduce(
        binom.logpmf(counts, size, rate)[:, None] + counts[:, None] * z / noise - counts[:, None] ** 2 / (2 * noise**2)
    )
    log_mass = -z * z / 2 + math.log(0.01 / math.sqrt(2 * math.pi))
    both = [np.logaddexp.reduce(log_mass + power * log_ratio) / (order - 1) for power in (order, 1 - order)]
    for ours in (curves.tight_gaussian, lambda *case: curves.sampled_gaussian(*case).rdp):
        assert ours(noise, rate, size)(np.array([order]))[0] == pytest.approx(max(both), rel=1e-7)


def test_the_baseline_is_the_group_property_written_out():
    """A group of four: the chain p, r, q twice; the printed factor makes it larger."""
    one = curves.tight_response(0.75, 0.1, 1)
    a = 3.0

    def pair(order: float, factor: float) -> float:
        low, high = one(np.array([2 * order - 1, 2 * order]))
        return (order - 0.5) / (order - 1) * high + factor * low

    expected = (a - 0.5) / (a - 1) * pair(2 * a, 1.0) + pair(2 * a - 1, 1.0)
    assert curves.baseline(one, 4)(np.array([a]))[0] == pytest.approx(expected, rel=1e-12)
    printed = (a - 0.5) / (a - 1) * pair(2 * a, 2 * a / (2 * a - 1))
    printed += a / (a - 1) * pair(2 * a - 1, (2 * a - 1) / (2 * a - 2))
    assert curves.printed_baseline(one, 4)(np.array([a]))[0] == pytest.approx(printed, rel=1e-12)
    assert printed > expected


def test_figure_11_is_dp_accountings_mixture_of_sensitivities():
    chances = binom.pmf(np.arange(5), 4, 0.001)
    peer = dp.pld.privacy_loss_distribution.from_mixture_gaussian_mechanism(
        1.0, list(range(5)), list(chances / chances.sum()), value_discretization_interval=2e-3
    ).self_compose(1000)
    bounds = Repeat(curves.sampled_gaussian(1.0, 0.001, 4), 1000).epsilon(DELTA)
    assert bounds.lower <= peer.get_epsilon_for_delta(DELTA) <= 1.02 * bounds.upper + 1e-3  # the peer rounds losses up


def test_figure_11_renyi_is_converted_as_by_dp_accounting():
    curve = curves.tight_gaussian(2.0, 0.001, 2)
    orders = curves.conversion_orders(300)
    peer, _ = dp.rdp.compute_epsilon(orders, 1000 * curve(orders), DELTA)
    ours = curves.converted(curve, DELTA, 300)(1000)
    assert ours == pytest.approx(peer, rel=1e-9)
    assert Repeat(curves.sampled_gaussian(2.0, 0.001, 2), 1000).epsilon(DELTA).upper < 0.5 * ours


@pytest.mark.parametrize(("rate", "size", "rounds"), [(0.1, 2, 100), (0.1, 8, 1000), (0.001, 8, 10_000)])
def test_figure_12_counts_how_often_the_coin_falls(rate, size, rounds):
    """All rounds' answers are a binomial number; delta of two binomial laws is a sum, in both directions."""
    law = Repeat(curves.sampled_response(0.6, rate, size), rounds)
    bounds = law.epsilon(DELTA)
    counts = np.arange(rounds + 1)
    heads = 0.6 - 0.2 * (1 - (1 - rate) ** size)
    one, other = (np.exp(binom.logpmf(counts, rounds, p)) for p in (heads, 0.6))

    def delta(epsilon: float) -> float:
        return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) for p, q in ((one, other), (other, one)))

    assert delta(bounds.upper) <= DELTA * (1 + 1e-6)
    assert delta(bounds.lower * (1 - 1e-6)) >= DELTA * (1 - 1e-6)


@pytest.mark.parametrize(("true_response", "fraction"), [(0.6, 0.001), (0.9, 0.1)])
def test_figures_3_and_6_are_the_worst_of_eight_pairs_of_coins(true_response, fraction):
    tight, generic = curves.drawn_response(true_response, fraction)
    worst = max(
        response_divergence(7.0, rest + fraction * (old - rest), rest + fraction * (new - rest))
        for rest in (true_response, 1 - true_response)
        for old in (true_response, 1 - true_response)
        for new in (true_response, 1 - true_response)
    )
    assert tight(np.array([7.0]))[0] == pytest.approx(worst, rel=1e-9)
    assert worst <= generic(np.array([7.0]))[0]
    charged = WithoutReplacement(RandomisedResponse(true_response), round(1000 * fraction), 1000).rdp([7.0])[0]
    assert charged == pytest.approx(worst, rel=1e-9)


def test_what_the_page_says_of_households():
    """6.42 for four at epsilon 2 and 6.49 by the group property: either noise keeps it, two hundredths less do not."""
    run = {noise: Repeat(Poisson(Gaussian(noise), 0.1), 60) for noise in (6.41, 6.43, 6.47, 6.5)}
    epsilons = [group(run[noise], 4).epsilon(DELTA).upper for noise in (6.41, 6.43)]
    by_property = [Group(run[noise], 4).epsilon(DELTA).upper for noise in (6.47, 6.5)]
    for above, below in (epsilons, by_property):
        assert below < 2 < above


def test_figure_7_contains_a_real_sum():
    """One of ten, group of eight: with eight chances in ten the contribution turns from 1/2 to -1/2 (noise 5)."""
    z = np.arange(-14, 14, 0.01)
    density = np.array([0.2 * np.exp(-z * z / 2) + 0.8 * np.exp(-((z - m / 10) ** 2) / 2) for m in (1, -1)])
    density *= 0.01 / math.sqrt(2 * math.pi)
    exact = math.log(np.sum(density[0] ** 4 * density[1] ** -3)) / 3
    transport, generic = substituted(1, 10, 8)
    charged = group(curves.drawn_gaussian(5.0, 1, 10), 8).rdp([4])[0]
    assert exact <= charged <= transport(np.array([4.0]))[0] * (1 + 1e-10) <= generic(np.array([4.0]))[0]


@pytest.mark.parametrize(("batch", "population", "size"), [(100, 1000, 2), (100, 1000, 8), (1, 100, 8)])
def test_figure_7_fedamps_bound_is_never_above_the_two_others(batch, population, size):
    orders = np.array([2.0, 3.0, 8.0, 20.0, 64.0])
    transport, generic = (curve(orders) for curve in substituted(batch, population, size))
    charged = group(curves.drawn_gaussian(5.0, batch, population), size).rdp(orders)
    assert np.all(charged <= np.minimum(transport, generic) * (1 + 1e-9))


@pytest.mark.slow
def test_the_pages_commands_run(fedamp, tmp_path):
    commands = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    drawing = [line for line in commands if line.startswith("python -m benchmarks.papers groups")]
    assert drawing[1].endswith(" --figure figure_4")
    command.main([*drawing[1].split()[3:], "--out", str(tmp_path)])
    assert (tmp_path / "groups-figure-4.png").stat().st_size < 100_000
    assert set(commands) - set(drawing) == {"fedamp privacy households --groups", "make papers PAPER=groups"}
    assert fedamp("privacy", "households", "--groups").status == 0
