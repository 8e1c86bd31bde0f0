"""Xiao, Wan, Devadas 2022: a simulated attack, the printed epsilons, the trainings, and exact compositions."""

import math

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.special import log_ndtr, logsumexp
from scipy.stats import binom

import fedamp as tool
from benchmarks.papers import linear, modelmix_training
from benchmarks.papers.__main__ import PAGES, tables_of
from benchmarks.papers.bounds.modelmix import one_coordinate_rdp
from benchmarks.training import train
from fedamp import rng
from fedamp.accounting import Gaussian, ModelMix, Poisson, Repeat
from fedamp.accounting import ModelMix as Mechanism
from tests.accounting.oracles import gaussian_delta
from tests.papers.commands import run_commands

DELTA = 1e-5


def log_density(z, noise, width):
    """Of a centred normal plus a uniform; taken on the left, where the tails keep their digits."""
    left = -np.abs(z)
    high, low = (log_ndtr((left + edge) / noise) for edge in (width / 2, -width / 2))
    return high + np.log(-np.expm1(low - high)) - math.log(width)


@pytest.mark.statement("modelmix", "Corollary 4.1")
def test_the_bracket_of_figure_3_holds_a_simulated_attack():
    """25 coordinates with a fifth of the norm each: delta by simulation lies below what is charged."""
    noise, width, rate, rounds, coordinates, epsilon = 0.5, 4.0, 0.1, 15, 25, 0.5
    generator = np.random.default_rng(5)
    samples = 2000
    loss = np.zeros(samples)
    for _ in range(rounds):
        seen = noise * generator.standard_normal((samples, coordinates))
        seen += width * (generator.random(seen.shape) - 0.5)
        seen += (generator.random((samples, 1)) < rate) / math.sqrt(coordinates)
        log_x = log_density(seen - 1 / math.sqrt(coordinates), noise, width) - log_density(seen, noise, width)
        loss += np.log1p(rate * np.expm1(log_x.sum(axis=1)))
    gained = np.maximum(-np.expm1(epsilon - loss), 0)
    error = gained.std() / math.sqrt(samples)
    bounds = Repeat(Poisson(Mechanism(noise, width, coordinates), rate), rounds).delta(epsilon)
    assert bounds.lower - 5 * error <= gained.mean() <= bounds.upper + 5 * error
    assert gained.mean() == pytest.approx(bounds.lower, abs=5 * error)  # the lower end is this very attack


def test_section_4_3_comes_out_as_printed():
    printed = [row for row in tables_of("modelmix")["figure_3"]["rows"] if row["paper prints"] is not None]
    assert len(printed) == 11
    for row in printed:
        # The noise is not printed; a hundredth of it moves these epsilons by up to three hundredths.
        assert row["paper's bound"] == pytest.approx(row["paper prints"], rel=0.035), row[""]


@pytest.mark.parametrize("gap", [0.0, 0.15])
def test_a_training_costs_what_its_scenario_does(gap):
    training = modelmix_training.Training(0.1, 20, 2.0, gap=gap, truncation=25, noise_multiplier=1.5)
    asked = tool.privacy(tool.load(training.settings()))
    charged = training.mechanism(1.5).epsilon(modelmix_training.DELTA).upper
    assert asked["epsilon"]["upper"] == pytest.approx(charged, rel=1e-6)


def test_a_training_learns():
    training = modelmix_training.Training(0.1, 30, 2.0, gap=0.05, truncation=25, noise_multiplier=0.5)
    curve = modelmix_training.accuracies(training, seed=0, evaluate_every=10)
    assert len(curve) == 3
    assert curve[-1] > 50


@pytest.mark.statement("modelmix", "Algorithm 1")
def test_linear_models_in_closed_form_take_fedamps_own_rounds(tmp_path):
    """Everybody in four rounds on digits, clipped and without noise: the same model to rounding."""
    save_file(
        {"output.weight": np.zeros((10, 64), np.float32), "output.bias": np.zeros(10, np.float32)}, tmp_path / "zero"
    )
    sections = {
        "name": "linear",
        "seed": 3,
        "data": {"name": "digits"},
        "model": {"name": "logistic", "initial": str(tmp_path / "zero")},
        "rounds": 4,
        "check_in": {"scheme": "poisson", "rate": 1.0},
        "client": {"learning_rate": 1.0},
        "server": {"learning_rate": 4.0},
        "privacy": {"unit": "sample", "clip": 0.4, "noise_multiplier": 0, "epsilon": None, "delta": 1e-5},
    }
    asked = tool.load(sections)
    digits = asked.data.load(rng.public_seed(3, "data"), tmp_path)
    everybody = digits.by_record().gather(np.arange(digits.num_clients))
    records = linear.Records.of(everybody.inputs, everybody.labels)
    (ours,) = linear.train([linear.Training(4.0, 0.4, 0.0)], records, linear.Sampling(4, 1.0), seed=1)
    theirs = train(asked).parameters
    # fedamp cuts every record's numbers off at 2^-13 of its largest, so that sums come out the same in any order.
    np.testing.assert_allclose(theirs["output.weight"], ours[:-1].T, atol=2e-3 * np.abs(ours).max())
    np.testing.assert_allclose(theirs["output.bias"], ours[-1], atol=1e-5)


@pytest.mark.slow
def test_the_pages_commands_run(fedamp, monkeypatch):
    run_commands(PAGES["modelmix"], fedamp, monkeypatch)


@pytest.mark.statement("modelmix", "Theorem 2.2")
@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 10), (10.0, 400)])
def test_composition_by_renyi_divergence(noise, rounds):
    """The rounds' divergences add; the exact delta of Gaussian rounds lies below, and so does fedamp's charge."""
    orders = np.arange(2.0, 65.0)
    printed = float(np.min(rounds * orders / (2 * noise**2) - math.log(DELTA) / (orders - 1)))
    assert gaussian_delta(printed, noise / math.sqrt(rounds)) <= DELTA
    assert gaussian_delta(0.7 * printed, noise / math.sqrt(rounds)) > DELTA
    for mechanism in (Gaussian(noise), Poisson(Gaussian(noise), 0.2), ModelMix(noise, 3.0)):
        one = mechanism.rdp(orders)
        np.testing.assert_allclose(Repeat(mechanism, rounds).rdp(orders), rounds * one, rtol=1e-9)
        bound = float(np.min(rounds * one - math.log(DELTA) / (orders - 1)))
        assert Repeat(mechanism, rounds).epsilon(DELTA).upper <= bound * (1 + 1e-9)


@pytest.mark.statement("modelmix", "Corollary 4.1", "Theorem 4.1")
@pytest.mark.parametrize("coordinates", [1, 25])
def test_corollary_4_1_prints_a_negative_epsilon_for_one_round(coordinates):
    """Its denominator 1 - alpha is negative, and the number of rounds T is missing; fedamp charges it corrected."""
    noise, width, rate, rounds = 0.8, 4.0, 0.1, 200
    step, shift = noise / 40, coordinates**-0.5
    z = np.arange(-width / 2 - 12 * noise - shift, width / 2 + 12 * noise + 13 * shift, step)
    shifted = log_density(z - shift, noise, width)
    chances, loss = np.exp(shifted) * step, shifted - log_density(z, noise, width)
    # Under the shifted law: E[X^k] is a mean of X^(k - 1).
    moments = np.array([float(np.sum(chances * np.exp((k - 1) * loss))) ** coordinates for k in range(13)])
    orders = np.arange(2, 13)
    sums = np.array([np.sum(binom.pmf(range(a + 1), a, rate) * moments[: a + 1]) for a in orders])
    printed = np.min((np.log(sums) - math.log(DELTA)) / (1 - orders))
    assert printed < 0
    without_rounds = np.min((np.log(sums) - math.log(DELTA)) / (orders - 1))
    corrected = np.min((rounds * np.log(sums) - math.log(DELTA)) / (orders - 1))
    one = Poisson(ModelMix(noise, width, coordinates), rate)
    np.testing.assert_allclose(one.rdp(orders), np.log(sums) / (orders - 1), rtol=1e-6)  # the grid's step
    charged = Repeat(one, rounds).epsilon(DELTA)
    assert charged.upper <= corrected
    assert charged.lower > without_rounds


@pytest.mark.statement("modelmix", "Theorem 4.1")
def test_one_coordinate_at_whole_orders_is_theorem_4_1():
    orders = np.arange(2, 12)
    np.testing.assert_allclose(
        one_coordinate_rdp(0.4, 15, orders, 0.02), Poisson(ModelMix(0.4, 15, 1), 0.02).rdp(orders), rtol=1e-9
    )


@pytest.mark.statement("modelmix", "Theorem 4.1")
def test_the_charge_holds_both_directions_of_a_sampled_step():
    noise_multiplier, width, rate = 0.6, 4.0, 0.15
    z = np.arange(-15, 40, 0.005)
    out, moved = (log_density(z - shift, noise_multiplier, width) for shift in (0, 1))
    mixed = np.logaddexp(math.log1p(-rate) + out, math.log(rate) + moved)
    for order in (2, 5):
        terms = [order * a - (order - 1) * b for a, b in ((mixed, out), (out, mixed))]
        remove, add = ((logsumexp(t) + math.log(0.005)) / (order - 1) for t in terms)
        charged = Poisson(ModelMix(noise_multiplier, width, 1), rate).rdp([order])[0]
        assert charged == pytest.approx(remove, rel=1e-8)
        assert add < remove  # the direction the paper leaves out
