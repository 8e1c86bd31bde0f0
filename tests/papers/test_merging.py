"""Yin, Zaheer, Li 2026: what fedamp charges, against closed forms; an attack on the paper's composition by steps."""

import itertools
import math

import numpy as np
import pytest

import fedamp as tool
from benchmarks.papers import merging_estimation as estimation
from benchmarks.papers import merging_training as training
from benchmarks.papers.__main__ import tables_of
from benchmarks.papers.merging_costs import DELTA, MNIST, ORDERS, Portfolio, selection_by_rdp
from benchmarks.training import train
from fedamp.accounting import FIXED_GRADIENTS, Gaussian, LinearCombination, Poisson, RandomSelection, Repeat
from tests.accounting.oracles import gaussian_delta, gaussian_epsilon
from tests.documentation import commands


def test_combinations_of_means_are_gaussians():
    share = 0.3
    spread = math.hypot(0.7 * estimation.NOISES[0], 0.3 * estimation.NOISES[1])
    assert estimation.combined_variance(share) == pytest.approx(spread**2)
    exact = gaussian_epsilon(DELTA, spread)
    assert exact <= estimation.combination_by_loss(share) <= exact * 1.0005  # a law of 1,200 points has four digits
    # Theorem 6.2, for one step in which everybody takes part.
    by_rdp = np.min(ORDERS / (2 * spread**2) + math.log(1 / DELTA) / (ORDERS - 1))
    assert estimation.combination_by_rdp(share) == pytest.approx(by_rdp, rel=1e-9)


def test_the_example_against_the_sum_over_steps_is_two_gaussians():
    claimed, revealed = (row["epsilon"]["value"] for row in tables_of("merging")["two_steps"]["rows"])
    step = 1 / (0.25 * (0.5**2 + 2**2))  # squared shift of one merged step: (1/2 + 1/2)^2 over the merged variance
    assert claimed == pytest.approx(gaussian_epsilon(DELTA, 1 / math.sqrt(2 * step)), rel=5e-4)
    assert revealed == pytest.approx(gaussian_epsilon(DELTA, 1 / math.sqrt(1 / 0.5**2 + 1 / 2**2 + step)), rel=5e-4)


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
    lines = [line.split() for line in commands("docs/research/papers/merging.md") if line.startswith("fedamp ")]
    for _, *arguments in lines:
        shorter = ["--set", "rounds=10", "--set", "check_in.rate=0.02"] if arguments[0] == "run" else []
        answer = fedamp(*arguments, *shorter)
        assert answer.status == 0, answer.err
    assert (tmp_path / "runs" / "selected" / "certificate.json").is_file()


ROUNDING = 1e-9  # the trapezoidal rule is exact to rounding for smooth densities that vanish at the ends


@pytest.mark.statement("merging", "Theorem 5.2")
def test_a_selection_is_charged_the_mean_of_the_deltas():
    runs = (Gaussian(1.0), Gaussian(3.0))
    mean = 0.3 * runs[0].delta(1.0).upper + 0.7 * runs[1].delta(1.0).upper
    found = RandomSelection(runs, (0.3, 0.7)).delta(1.0)
    assert found.lower * (1 - ROUNDING) <= mean <= found.upper * (1 + ROUNDING)


@pytest.mark.statement("merging", "Theorem 6.1")
def test_a_combination_of_two_means_costs_less_than_both():
    """Two releases of one number; their mean is a Gaussian, too."""
    orders = np.arange(2.0, 20.0)
    first, second, weights = 1.0, 2.0, np.array([0.4, 0.6])
    merged = Gaussian(math.hypot(*(weights * (first, second)))).rdp(orders)
    joint = LinearCombination((Gaussian(first), Gaussian(second)), tuple(weights))
    assert np.all(merged <= joint.rdp(orders))
    assert joint.rdp(orders) == pytest.approx(orders / 2 * (1 / first**2 + 1 / second**2), rel=1e-8)


WHOLE_ORDERS = np.arange(2.0, 60.0)


def equation_9(order: int, mixture: list[tuple[float, float]]) -> float:
    """Theorem 6.2's sum over all ways to distribute the order over the subsets, term by term."""
    total = 0.0
    for counts in itertools.product(range(order + 1), repeat=len(mixture)):
        if sum(counts) == order:
            ways = math.factorial(order) / math.prod(math.factorial(c) for c in counts)
            first = sum(c * m for c, (_, m) in zip(counts, mixture, strict=True))
            second = sum(c * m * m for c, (_, m) in zip(counts, mixture, strict=True))
            chance = math.prod(p**c for c, (p, _) in zip(counts, mixture, strict=True))
            total += ways * chance * math.exp((first**2 - second) / 2)
    return math.log(total) / (order - 1)


@pytest.mark.statement("merging", "Corollary 6.5", "Algorithm 3", "Algorithm 4")
def test_composition_as_printed_is_not_a_bound():
    """Corollary 6.5 and Algorithms 3 and 4 against a run of two models whose merged model is computed exactly.

    Two models, weights (0.9, 0.1), full participation, clipping norm and noise 1, two steps. In step 1 the person's
    gradient is the first coordinate, in step 2 the second one. In step 2 the gradients of many other records, each
    within its clipping norm, add up, in each model, to ``gain`` times that model's first coordinate, written to a
    coordinate of its own (the third or the fourth), and to a step that returns its second coordinate to zero. Only the
    merged model after step 2 is released. Everything is linear and Gaussian: what it reveals is one quadratic form.
    """
    weights, gain = np.array([0.9, 0.1]), 2000.0
    # The merged model's four coordinates, as linear functions of the noise (model, step, coordinate) and the person.
    response, person = np.zeros((4, 2, 2, 4)), np.zeros(4)
    for model, weight in enumerate(weights):
        for step, coordinate in itertools.product(range(2), range(4)):
            response[coordinate, model, step, coordinate] += weight
        response[1, model, 0, 1] -= weight  # the others return the second coordinate to zero
        response[2 + model, model, 0, 0] += weight * gain  # and write the first one, with its noise
        person[2 + model] += weight * gain  # and with what the person did to it in step 1
        person[:2] += weight
    response = response.reshape(4, -1)
    revealed = float(person @ np.linalg.solve(response @ response.T, person))

    runs = (Repeat(Gaussian(1.0), 2),) * 2
    by_steps = LinearCombination(runs, tuple(weights), FIXED_GRADIENTS, (1.0, 1.0))
    claimed = by_steps.rdp(WHOLE_ORDERS)  # Algorithm 3
    assert claimed == pytest.approx(2 * WHOLE_ORDERS / (2 * 0.82), rel=1e-8)  # 1.22 times the order
    truth = WHOLE_ORDERS * revealed / 2
    assert np.all(truth > 1.3 * claimed)
    assert revealed / 2 == pytest.approx(1 + 0.5 / 0.82, rel=1e-3)  # 1.61, up to the finite gain

    delta_claimed = by_steps.delta(1.0).upper  # Algorithm 4
    delta_truth = gaussian_delta(1.0, 1 / math.sqrt(revealed))
    assert delta_truth > 1.2 * delta_claimed

    # What does hold: the joint release of both models, each the sum of its two steps.
    joint = LinearCombination(runs, tuple(weights))
    assert np.all(truth <= joint.rdp(WHOLE_ORDERS))
    assert delta_truth <= joint.delta(1.0).upper


RUNS = (Poisson(Gaussian(0.8), 0.2), Poisson(Gaussian(2.0), 0.05))


SCALES = (0.1 * 1.0, 0.4 * 0.5)


@pytest.mark.statement("merging", "Theorem 6.2")
@pytest.mark.parametrize("order", [2, 7])
def test_a_merged_step_is_the_sum_of_equation_9(order):
    weighted = np.array((0.7, 0.3)) * SCALES
    noise = math.hypot(*(weighted * (0.8, 2.0)))
    mixture = []
    for drawn in itertools.product((0, 1), repeat=2):
        chance = math.prod(q if hit else 1 - q for q, hit in zip((0.2, 0.05), drawn, strict=True))
        mixture.append((chance, float(weighted @ drawn) / noise))
    charged = LinearCombination(RUNS, (0.7, 0.3), FIXED_GRADIENTS, SCALES).rdp([order])[0]
    assert charged == pytest.approx(equation_9(order, mixture), rel=1e-8)


def test_the_portfolios_step_is_fedamps():
    portfolio = Portfolio((0.8, 2.0), (1, 1), 0.2, SCALES)
    ours = portfolio._step_rdp(np.array([0.7, 0.3]))[ORDERS % 1 == 0]
    merged = LinearCombination(portfolio.mechanisms, (0.7, 0.3), FIXED_GRADIENTS, SCALES)
    np.testing.assert_allclose(ours, merged.rdp(ORDERS[ORDERS % 1 == 0]), rtol=1e-8)


@pytest.mark.few(1)
@pytest.mark.statement("merging", "Theorem 5.1", "Algorithm 1", "Algorithm 2")
@pytest.mark.parametrize("weights", [(0.6, 0.4), (0.0, 1.0)])
def test_selection_is_theorem_5_1_and_below_its_conversion(weights):
    portfolio = Portfolio((0.8, 2.0), (3, 3), 0.2, (1.0, 1.0))
    by_rdp = selection_by_rdp(portfolio.curves, np.array(weights))
    assert RandomSelection(portfolio.mechanisms, weights).epsilon(1e-5).upper < by_rdp
    assert portfolio.selection_by_loss(np.array([weights]))[0] == pytest.approx(portfolio.selection(*weights), rel=2e-3)


@pytest.mark.statement("merging", "Theorem 6.1")
def test_linear_combination_charges_the_joint_release_unless_told_otherwise():
    """Corollary 6.5 must be asked for by its assumption; the default is Theorem 6.1."""
    runs = tuple(Repeat(run, 3) for run in RUNS)
    joint = np.sum([run.rdp(WHOLE_ORDERS) for run in runs], axis=0)
    np.testing.assert_allclose(LinearCombination(runs, (0.7, 0.3)).rdp(WHOLE_ORDERS), joint, rtol=1e-8)
    cheap = LinearCombination(runs, (0.7, 0.3), FIXED_GRADIENTS, SCALES)
    once = LinearCombination(RUNS, (0.7, 0.3), FIXED_GRADIENTS, SCALES)
    np.testing.assert_allclose(cheap.rdp(WHOLE_ORDERS), 3 * once.rdp(WHOLE_ORDERS), rtol=1e-8)
    assert np.all(cheap.rdp(WHOLE_ORDERS) < joint)
