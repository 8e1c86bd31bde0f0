"""The figures of Yin, Zaheer, Li 2026: their curves against quadrature, Monte Carlo and dp-accounting."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import integrate
from scipy.optimize import brentq
from scipy.stats import norm

import fedamp as tool
from benchmarks.papers import merging_estimation as estimation
from benchmarks.papers import merging_training as training
from benchmarks.papers.__main__ import tables_of
from benchmarks.papers.merging_accuracy import combination_curves, selection_curves
from benchmarks.papers.merging_costs import DELTA, MNIST, ORDERS, Portfolio, frontier, simplex
from benchmarks.training import train
from tests.documentation import commands


def gaussian_epsilon(shift: float) -> float:
    """Balle and Wang 2018, Theorem 8, for a Gaussian of deviation 1 that is moved by ``shift``."""

    def excess(epsilon: float) -> float:
        low, high = -shift / 2 - epsilon / shift, shift / 2 - epsilon / shift
        return float(norm.cdf(high) - math.exp(epsilon) * norm.cdf(low)) - DELTA

    return float(brentq(excess, 0, 200, xtol=1e-12))


def mixture(share: float):
    """The number that a selection releases: a density, and a sampler."""
    noises, weights = estimation.NOISES, (1 - share, share)

    def density(x):
        return sum(w * norm.pdf(x, scale=s) for w, s in zip(weights, noises, strict=True))

    def sample(count: int, generator: np.random.Generator):
        return generator.normal(size=count) * np.where(generator.random(count) < share, noises[1], noises[0])

    return density, sample


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_the_exact_cost_of_a_selection_is_what_sampling_finds(share):
    """At a delta that a million numbers can see."""
    density, sample = mixture(share)
    delta = 1e-2
    epsilon = estimation.selection_hidden(share, delta=delta)
    x = sample(1_000_000, np.random.default_rng(5))
    excess = np.maximum(1 - math.exp(epsilon) * density(x - 1) / density(x), 0)
    assert abs(excess.mean() - delta) < 4 * excess.std() / 1000  # four standard errors


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_selection_from_one_model_is_a_gaussian(share):
    exact = gaussian_epsilon(1 / estimation.NOISES[int(share)])
    assert estimation.selection_hidden(share) == pytest.approx(exact, abs=1e-4)  # of the grid of estimates


@pytest.mark.statement("merging", "Theorem 4.2")
def test_the_exact_cost_is_below_the_theorems_and_not_ordered_as_theorem_4_2_says():
    by_theorem, hidden = estimation.selection_by_loss(0.5), estimation.selection_hidden(0.5)
    spread = math.sqrt(estimation.selected_variance(0.5))
    assert hidden < gaussian_epsilon(1 / estimation.NOISES[0]) < gaussian_epsilon(1 / spread) < by_theorem
    for order, above in ((2.0, True), (20.0, False)):
        assert (estimation.hidden_rdp(order, 0.5) > order / (2 * spread**2)) == above


@pytest.mark.parametrize("order", [2.0, 20.0])
def test_renyi_divergences_of_the_mixture_agree_with_quadrature(order):
    wide, narrow = estimation.NOISES

    def log_density(x: float) -> float:
        return float(np.logaddexp(norm.logpdf(x, scale=wide), norm.logpdf(x, scale=narrow))) - math.log(2)

    def integrand(x: float) -> float:
        return math.exp(order * log_density(x) + (1 - order) * log_density(x - 1))

    moment, _ = integrate.quad(integrand, -80, 80, points=[-20, -4, 0, 4, 20], limit=400)
    assert estimation.hidden_rdp(order, 0.5) == pytest.approx(math.log(moment) / (order - 1), rel=1e-6)


def test_combinations_of_means_are_gaussians():
    share = 0.3
    spread = math.hypot(0.7 * estimation.NOISES[0], 0.3 * estimation.NOISES[1])
    assert estimation.combined_variance(share) == pytest.approx(spread**2)
    exact = gaussian_epsilon(1 / spread)
    assert exact <= estimation.combination_by_loss(share) <= exact * 1.0005  # a law of 1,200 points has four digits
    # Theorem 6.2, for one step in which everybody takes part.
    by_rdp = np.min(ORDERS / (2 * spread**2) + math.log(1 / DELTA) / (ORDERS - 1))
    assert estimation.combination_by_rdp(share) == pytest.approx(by_rdp, rel=1e-9)


def test_errors_are_those_of_real_numbers():
    generator = np.random.default_rng(1)
    samples = np.clip(generator.normal(size=(40_000, estimation.SAMPLES)), -1, 1).mean(axis=1)
    noise = estimation.SENSITIVITY * estimation.NOISES[1] * generator.normal(size=samples.shape)
    # A variance of 40,000 numbers is known to 0.7 %; four times that.
    assert np.mean((samples + noise) ** 2) == pytest.approx(
        float(estimation.mean_squared_error(estimation.NOISES[1] ** 2)), rel=0.03
    )


def test_renyi_curves_are_dp_accountings():
    whole = [order for order in ORDERS if order == int(order)]
    for index in (0, 2):
        accountant = RdpAccountant(whole)
        step = PoissonSampledDpEvent(MNIST.rate, GaussianDpEvent(MNIST.noises[index]))
        accountant.compose(SelfComposedDpEvent(step, MNIST.steps[index]))
        ours = MNIST.curves[index][np.isin(ORDERS, whole)]
        np.testing.assert_allclose(ours, accountant._rdp, rtol=1e-6)


def test_the_joint_release_takes_all_models_with_some_weight():
    corner, edge, inside = MNIST.joint(np.array([[0, 0, 1], [0, 0.5, 0.5], [0.1, 0.1, 0.8]]))
    assert corner == MNIST.mechanisms[2].epsilon(DELTA).upper
    assert corner < edge < inside


def test_the_example_against_the_sum_over_steps_is_two_gaussians():
    claimed, revealed = (row["epsilon"]["value"] for row in tables_of("merging")["two_steps"]["rows"])
    step = 1 / (0.25 * (0.5**2 + 2**2))  # squared shift of one merged step: (1/2 + 1/2)^2 over the merged variance
    assert claimed == pytest.approx(gaussian_epsilon(math.sqrt(2 * step)), rel=5e-4)
    assert revealed == pytest.approx(gaussian_epsilon(math.sqrt(1 / 0.5**2 + 1 / 2**2 + step)), rel=5e-4)


def test_frontiers_and_simplices():
    epsilons, best = frontier(np.array([3.0, 1.0, 2.0, math.inf, 1.0]), np.array([0.6, 0.5, 0.4, 0.9, 0.3]))
    assert epsilons.tolist() == [1.0, 3.0]
    assert best.tolist() == [0.5, 0.6]
    points = simplex(3, 4)
    assert len(points) == 15
    np.testing.assert_allclose(points.sum(axis=1), 1)
    assert len(np.unique(points, axis=0)) == 15


def test_curves_grow_and_end_at_what_both_models_cost():
    portfolio = Portfolio((0.5, 2.0), (12, 12), 0.05, (0.1, 0.1))
    weights = simplex(2, 2)
    curves = selection_curves(portfolio, np.array([0.6, 0.5]))
    curves |= combination_curves(portfolio, np.array([0.5, 0.7, 0.6]), weights)
    for epsilons, best in curves.values():
        assert (np.diff(epsilons) > 0).all()
        assert (np.diff(best) >= -1e-12).all()
    assert curves["combination, fedamp"][0][-1] == portfolio.joint(np.array([[0.5, 0.5]]))[0]


@pytest.mark.slow
def test_trained_models_cost_what_their_portfolio_says():
    for portfolio in (MNIST, training.SCRATCH, training.TUNED):
        for mechanism, settings in zip(portfolio.mechanisms, training.settings_of(portfolio, {}), strict=True):
            asked = tool.privacy(tool.load("merging", **settings))
            assert asked["epsilon"]["upper"] == pytest.approx(mechanism.epsilon(DELTA).upper, rel=1e-6)


def test_models_have_separate_noise_and_one_test_set(tmp_path):
    whole, halves = training.write_digits(tmp_path)
    settings = {"rounds": 3, "check_in.rate": 0.05, "data": {"name": "npz", "path": str(whole), "test_is_public": True}}
    models = [train(tool.load("merging", **settings), seed=seed).parameters for seed in (1, 2)]
    name = next(iter(models[0]))
    assert not np.allclose(models[0][name], models[1][name])
    summed = training.weighted_sum(models, np.array([0.25, 0.75]))[name]
    np.testing.assert_allclose(summed, 0.25 * models[0][name] + 0.75 * models[1][name], atol=1e-6)
    rows = [{row.tobytes() for row in np.load(half / "train.npz")["x"]} for half in halves]
    tests = [np.load(half / "test.npz")["x"] for half in halves]
    assert not rows[0] & rows[1]
    np.testing.assert_array_equal(*tests)
    assert not (rows[0] | rows[1]) & {row.tobytes() for row in tests[0]}


def test_the_pages_fedamp_commands_run(fedamp, tmp_path, monkeypatch):
    """With fewer rounds at a higher rate, so that they take a second."""
    monkeypatch.chdir(tmp_path)
    lines = [line.split() for line in commands("docs/papers/merging.md") if line.startswith("fedamp ")]
    for _, *arguments in lines:
        shorter = ["--set", "rounds=10", "--set", "check_in.rate=0.02"] if arguments[0] == "run" else []
        answer = fedamp(*arguments, *shorter)
        assert answer.status == 0, answer.err
    assert (tmp_path / "runs" / "selected" / "certificate.json").is_file()
