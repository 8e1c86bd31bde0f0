"""The figures of Yin, Zaheer, Li 2026: their curves against quadrature, Monte Carlo and other people's accountants."""

import itertools
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import integrate
from scipy.optimize import brentq
from scipy.stats import norm

from benchmarks.papers import merging_estimation as estimation
from benchmarks.papers import merging_models as models
from benchmarks.papers.bounds.merging import Step, not_a_bound_algorithm_4, step_rdp
from benchmarks.papers.merging_curves import frontier
from benchmarks.papers.merging_portfolio import DELTA, MNIST, ORDERS, Portfolio, simplex
from benchmarks.papers.merging_tradeoffs import combination_curves, selection_curves
from benchmarks.papers.merging_weights import what_two_steps_reveal
from fedamp.runs.run import read_run
from fedamp.studies.merging import MergeRequest, merge_runs
from fedamp.studies.merging.candidates import read_candidates

PAGE = Path(__file__).parents[2] / "docs" / "papers" / "merging.md"


def gaussian_epsilon(shift: float) -> float:
    """Balle and Wang 2018, Theorem 8, for a Gaussian of deviation 1 that is moved by ``shift``."""

    def excess(epsilon: float) -> float:
        low, high = -shift / 2 - epsilon / shift, shift / 2 - epsilon / shift
        return float(norm.cdf(high) - math.exp(epsilon) * norm.cdf(low)) - DELTA

    return float(brentq(excess, 0, 200, xtol=1e-12))


# --- mean estimation --------------------------------------------------------------------------------------------------


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
    rdp = step_rdp(Step((1 - share, share), estimation.NOISES, (1.0, 1.0)), ORDERS)
    by_rdp = np.min(rdp + math.log(1 / DELTA) / (ORDERS - 1))
    assert estimation.combination_by_rdp(share) == pytest.approx(by_rdp, rel=1e-9)


def test_errors_are_those_of_real_numbers():
    generator = np.random.default_rng(1)
    samples = np.clip(generator.normal(size=(40_000, estimation.SAMPLES)), -1, 1).mean(axis=1)
    noise = estimation.SENSITIVITY * estimation.NOISES[1] * generator.normal(size=samples.shape)
    # A variance of 40,000 numbers is known to 0.7 %; four times that.
    assert np.mean((samples + noise) ** 2) == pytest.approx(
        float(estimation.mean_squared_error(estimation.NOISES[1] ** 2)), rel=0.03
    )


# --- the three models of Figure 2 -------------------------------------------------------------------------------------


def test_renyi_curves_are_dp_accountings():
    whole = [order for order in ORDERS if order == int(order)]
    for index in (0, 2):
        accountant = RdpAccountant(whole)
        step = PoissonSampledDpEvent(MNIST.rate, GaussianDpEvent(MNIST.noises[index]))
        accountant.compose(SelfComposedDpEvent(step, MNIST.steps[index]))
        ours = MNIST.curves[index][np.isin(ORDERS, whole)]
        np.testing.assert_allclose(ours, accountant._rdp, rtol=1e-6)


def test_selection_by_renyi_is_algorithm_1():
    weights = (0.25, 0.5, 0.25)
    best = math.inf
    for order, column in zip(ORDERS, MNIST.curves.T, strict=True):
        # The largest term stands for the sum where it cannot be written down.
        logs = [math.log(w) + (order - 1) * divergence for w, divergence in zip(weights, column, strict=True)]
        log_sum = max(logs) + math.log(sum(math.exp(term - max(logs)) for term in logs))
        best = min(best, (log_sum + math.log(1 / DELTA)) / (order - 1))
    assert MNIST.selection_by_rdp(np.array([weights]))[0] == pytest.approx(best, rel=1e-12)


def test_combination_by_steps_is_algorithm_4():
    weights = np.array([[0.25, 0.25, 0.5]])
    epsilon = MNIST.steps_by_loss(weights)[0]
    delta = not_a_bound_algorithm_4([MNIST.step(weights[0].tolist())] * MNIST.steps[0], epsilon)
    # Two grids, both rounded upwards; a tenth of delta is one per cent of epsilon.
    assert delta == pytest.approx(DELTA, rel=0.1)
    assert MNIST.steps_by_rdp(weights)[0] > epsilon


def test_the_joint_release_takes_all_models_with_some_weight():
    corner, edge, inside = MNIST.joint(np.array([[0, 0, 1], [0, 0.5, 0.5], [0.1, 0.1, 0.8]]))
    assert corner == MNIST.mechanisms[2].epsilon(DELTA).upper
    assert corner < edge < inside


def test_the_example_against_the_sum_over_steps_is_two_gaussians():
    claimed, revealed = what_two_steps_reveal()
    step = 1 / (0.25 * (0.5**2 + 2**2))  # squared shift of one merged step: (1/2 + 1/2)^2 over the merged variance
    assert claimed == pytest.approx(gaussian_epsilon(math.sqrt(2 * step)), rel=5e-4)
    assert revealed == pytest.approx(gaussian_epsilon(math.sqrt(1 / 0.5**2 + 1 / 2**2 + step)), rel=5e-4)
    assert revealed > 1.5 * claimed


def test_frontiers_and_simplices():
    epsilons, best = frontier(np.array([3.0, 1.0, 2.0, math.inf, 1.0]), np.array([0.6, 0.5, 0.4, 0.9, 0.3]))
    assert epsilons.tolist() == [1.0, 3.0]
    assert best.tolist() == [0.5, 0.6]
    points = simplex(3, 4)
    assert len(points) == 15
    np.testing.assert_allclose(points.sum(axis=1), 1)
    assert len(np.unique(points, axis=0)) == 15


# --- trained models ---------------------------------------------------------------------------------------------------

SHORT = Portfolio((0.5, 2.0), (12, 12), 0.05, (0.1, 0.1))


@pytest.fixture(scope="module")
def short_runs(tmp_path_factory):
    """Two short runs of the scenario, with noise of their own."""
    folder = tmp_path_factory.mktemp("merging")
    return [
        models.train(
            models.Job(
                folder / str(noise),
                "merging",
                (f"privacy.noise_multiplier={noise}", "rounds=12", "check_in.rate=0.05", "server.learning_rate=1.0",
                 "federation.checkpoint_every=6"),
                seed,
            )
        )
        for seed, noise in enumerate(SHORT.noises)
    ]  # fmt: skip


def test_curves_are_of_trained_models_at_their_ledgers_cost(short_runs, tmp_path):
    candidates = read_candidates([str(run) for run in short_runs])
    assert not any(one.shares_noise_with(other) for one, other in itertools.combinations(candidates.models, 2))
    assert candidates.mechanisms == SHORT.mechanisms
    accuracies = models.alone([candidates])
    assert [read_run(run).summary.final.accuracy for run in short_runs] == pytest.approx(accuracies)
    weights = simplex(2, 2)
    np.testing.assert_allclose(models.combined([candidates], weights)[[0, 2]], accuracies[::-1])
    curves = selection_curves(SHORT, accuracies) | combination_curves(SHORT, [candidates], 2)
    for epsilons, best in curves.values():
        assert (np.diff(epsilons) > 0).all()
        assert (np.diff(best) >= -1e-12).all()
    # fedamp merge itself, at a budget for both models, charges the right end of its curve.
    both = float(SHORT.joint(np.array([[0.5, 0.5]]))[0])
    request = MergeRequest(tuple(map(str, short_runs)), "linear-combination", 1.01 * both, DELTA, weights=(0.5, 0.5))
    merger = merge_runs(request, tmp_path / "merged")
    assert merger.certificate.epsilon.upper == pytest.approx(both, rel=1e-3)
    assert merger.final.accuracy == pytest.approx(models.combined([candidates], weights)[1])


def test_noise_is_the_jobs_own_and_comes_again(short_runs, tmp_path):
    overrides = ("rounds=3", "check_in.rate=0.05", "server.learning_rate=1.0")
    jobs = [models.Job(tmp_path / str(place), "merging", overrides, seed) for place, seed in enumerate((0, 0, 1, None))]
    digests = [read_run(models.train(job)).ledger.releases[2].digest for job in jobs]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    # A checkpoint of a run is the last model of a run that stops there.
    assert read_run(short_runs[0]).ledger.releases[2].digest == digests[0]


def test_halves_share_nothing_but_the_test_set(tmp_path):
    halves = [(np.load(half / "train.npz"), np.load(half / "test.npz")) for half in models.write_halves(tmp_path)]
    sizes = [len(training["y"]) for training, _ in halves]
    assert sum(sizes) == 1437
    assert max(sizes) - min(sizes) == 1
    rows = [{row.tobytes() for row in training["x"]} for training, _ in halves]
    assert not rows[0] & rows[1]
    np.testing.assert_array_equal(halves[0][1]["x"], halves[1][1]["x"])
    assert not rows[0] & {row.tobytes() for row in halves[0][1]["x"]}


# --- the page ---------------------------------------------------------------------------------------------------------


def commands(kind: str) -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines() if line.startswith(kind)]


def test_the_pages_fedamp_commands_run(fedamp, tmp_path, monkeypatch):
    """With fewer rounds at a higher rate, so that they take a second."""
    monkeypatch.chdir(tmp_path)
    for _, *arguments in commands("fedamp "):
        shorter = ["--set", "rounds=10", "--set", "check_in.rate=0.02"] if arguments[0] == "run" else []
        answer = fedamp(*arguments, *shorter)
        assert answer.status == 0, answer.err
    assert (tmp_path / "runs" / "selected" / "certificate.json").is_file()
