"""Random selection: feasible weights and their cost, against closed forms of Gaussians and the paper's boundaries."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from fedamp.accounting import Allocation, Bounds, Gaussian, ModelMix, NotPrivate, RandomSelection, Repeat
from fedamp.extensions.merging.merge import draw
from fedamp.extensions.merging.weights import (
    BY_PRIVACY_LOSS,
    BY_RENYI,
    RANDOM_SELECTION,
    MergeRequest,
    best_weights,
    exact,
    least_private_first,
    selection_epsilon,
)
from tests.accounting.oracles import gaussian_delta

DELTA = 1e-5
ORDERS = np.arange(2, 257)


def gaussian_mixture_epsilon(noises, weights, open_weight: float = 0.0) -> float:
    def excess(epsilon):
        return sum(w * gaussian_delta(epsilon, s) for s, w in zip(noises, weights, strict=True)) + open_weight - DELTA

    return brentq(excess, 0, 100, xtol=1e-12)


def cost_of(mechanisms, weights) -> Bounds:
    return selection_epsilon(mechanisms, weights, DELTA)


HALF = DELTA / 2


@pytest.mark.parametrize(
    ("noises", "weights", "open_weight"),
    [
        ((2.0, 0.7), (0.5, 0.5), 0.0),
        ((2.0, 0.7), (0.999, 0.001), 0.0),
        ((2.0, 0.7), (0.9999, 0.0001), 0.0),
        ((2.0,), (1 - HALF,), HALF),
        ((2.0, 3.0), (0.5, 0.5 - HALF), HALF),
    ],
)
def test_the_cost_is_the_root_of_mixed_deltas_and_an_open_model_costs_its_weight(noises, weights, open_weight):
    exact = gaussian_mixture_epsilon(noises, weights, open_weight)
    cost = cost_of([*map(Gaussian, noises), NotPrivate()], (*weights, open_weight))
    assert cost.lower <= exact <= cost.upper
    assert cost.upper <= exact * 1.0005  # a law of 1,200 points has about four digits
    assert open_weight or cost.lower >= exact * 0.9995


def test_a_model_without_privacy_is_drawn_less_often_than_delta():
    models = [Gaussian(2.0), NotPrivate()]
    assert cost_of(models, (1 - DELTA, DELTA)).upper == math.inf
    assert cost_of(models, (1.0, 0.0)) == Gaussian(2.0).epsilon(DELTA)


def test_the_boundary_by_privacy_loss_is_the_papers():
    """Algorithm 2, with exact deltas of two Gaussians."""
    deltas = [gaussian_delta(3.0, 2.0), gaussian_delta(3.0, 0.7)]
    boundary = (DELTA - deltas[0]) / (deltas[1] - deltas[0])
    ours = best_weights([Gaussian(2.0), Gaussian(0.7)], lambda weights: weights[1], 3.0, DELTA)[BY_PRIVACY_LOSS]
    assert boundary * 0.999 < ours[1] <= boundary  # never beyond it; 0.1 % for the law and the margin


def test_the_boundary_by_renyi_is_the_papers_at_the_budget_that_is_left():
    """Algorithm 1 converts loosely; every order's limit is loosened by what the tight conversion saves there."""
    curves = [ORDERS / (2 * noise**2) for noise in (2.0, 0.7)]
    best = 0.0
    for index, order in enumerate(ORDERS):
        saved = -math.log1p(-1 / order) + math.log(order) / (order - 1)
        low, high = ((order - 1) * curve[index] for curve in curves)
        limit = (order - 1) * (3.0 + saved) + math.log(DELTA)
        if low <= limit:  # the constraint is linear in the share
            share = math.exp(limit - high) * -math.expm1(low - limit) / -math.expm1(low - high)
            best = max(best, min(share, 1.0))
    ours = best_weights([Gaussian(2.0), Gaussian(0.7)], lambda weights: weights[1], 3.0, DELTA)[BY_RENYI][1]
    # Ours searches orders between the whole ones too; the margin takes a millionth.
    assert best * (1 - 2e-6) <= ours <= best * 1.05
    log_weights = np.log([1 - best, best])[:, None]
    moments = np.logaddexp.reduce(log_weights + (ORDERS - 1) * np.array(curves))
    assert np.min((moments - math.log(DELTA)) / (ORDERS - 1)) > 3.0  # the loose conversion's view


def test_no_point_of_a_grid_has_more_utility_within_the_budget():
    noises, utility, budget = (2.5, 1.2, 0.6), (0.7, 0.85, 0.95), 4.0
    mechanisms = [Gaussian(noise) for noise in noises]
    best = best_weights(mechanisms, lambda weights: float(np.dot(weights, utility)), budget, DELTA)
    ours = best[BY_PRIVACY_LOSS]
    deltas = np.array([gaussian_delta(budget, noise) for noise in noises])
    assert ours @ deltas <= DELTA
    shares = np.concatenate([[0.0], np.geomspace(1e-9, 1, 400)])
    second, third = (grid.ravel() for grid in np.meshgrid(shares, shares))
    inside = second + third <= 1
    grid = np.stack([1 - second - third, second, third], axis=1)[inside]
    feasible = grid[grid @ deltas <= DELTA]
    assert float(np.dot(ours, utility)) >= (feasible @ utility).max() - 1e-6
    by_renyi = best[BY_RENYI]
    assert float(np.dot(by_renyi, utility)) <= float(np.dot(ours, utility))


def test_least_private_first_keeps_away_from_the_most_private_model():
    mechanisms = [Gaussian(0.6), Gaussian(2.5), Gaussian(1.2)]  # epsilon about 9, 1.7 and 3.9
    rank = least_private_first(mechanisms, DELTA)
    tight = best_weights(mechanisms, rank, 3.0, DELTA)[BY_PRIVACY_LOSS]
    assert tight[0] == 0
    assert 0 < tight[2] < 0.1
    wide = best_weights(mechanisms, rank, 5.0, DELTA)[BY_PRIVACY_LOSS]
    assert wide[1] == 0
    assert 0 < wide[0] < 0.1
    assert best_weights(mechanisms, rank, 20.0, DELTA)[BY_PRIVACY_LOSS] == (1.0, 0.0, 0.0)
    assert best_weights(mechanisms, rank, 1.0, DELTA) == {}


noise = st.floats(0.4, 5.0)


@settings(max_examples=25, deadline=None)
@given(st.lists(noise, min_size=2, max_size=4), st.floats(0.5, 12.0), st.floats(1e-8, 1e-3), st.booleans())
def test_what_is_called_feasible_keeps_the_budget(noises, epsilon, delta, with_open):
    mechanisms = [*map(Gaussian, noises), *([NotPrivate()] if with_open else [])]
    best = best_weights(mechanisms, least_private_first(mechanisms, delta), epsilon, delta)
    fits = any(part.epsilon(delta).upper <= epsilon for part in mechanisms)
    assert (BY_PRIVACY_LOSS in best) == fits
    for weights in best.values():
        assert math.isclose(sum(weights), 1, abs_tol=1e-12)
        assert min(weights) >= 0
        assert selection_epsilon(mechanisms, weights, delta).upper <= epsilon


def test_mechanisms_without_a_law_are_selected_from_by_renyi():
    mechanisms = [Repeat(ModelMix(2.0, 4.0), 10), Repeat(ModelMix(1.0, 4.0), 10)]
    alone = [part.epsilon(DELTA).upper for part in mechanisms]
    budget = sum(alone) / 2
    best = best_weights(mechanisms, least_private_first(mechanisms, DELTA), budget, DELTA)
    weights = max(best.values(), key=lambda found: found[1])
    assert 0 < weights[1] < 1
    assert cost_of(mechanisms, weights).upper <= budget


def test_a_selection_costs_between_its_models():
    mechanisms = [Allocation(Gaussian(2.0), 2, 8), Allocation(Gaussian(0.8), 2, 8)]
    low, high = (part.epsilon(DELTA).upper for part in mechanisms)
    cost = cost_of(mechanisms, (0.9, 0.1))
    assert low < cost.upper < high


@pytest.mark.parametrize(
    "asked", [(0.5, 0.5 - 9e-10, 0.0), (1 / 3, 1 / 3, 1 / 3), (0.3, 0.7), (0.0, 1.0), (1 - 1e-12, 1e-12), (0.1,) * 10]
)
def test_what_is_charged_is_drawn(asked):
    """A distribution in whole multiples of 2^-53, exactly; the accountant changes none of its weights."""
    request = MergeRequest(("one",) * len(asked), RANDOM_SELECTION, 1.0, DELTA, weights=asked)
    weights = [Fraction(weight) for weight in request.weights]
    assert sum(weights) == 1
    assert all((weight * 2**53).denominator == 1 for weight in weights)
    assert [weight == 0 for weight in weights] == [weight == 0 for weight in asked]
    # Each is rounded by less than one multiple, and the largest makes up for all of them.
    shares = [Fraction(weight) / sum(map(Fraction, asked)) for weight in asked]
    assert all(abs(w - share) < len(asked) * 2**-53 for w, share in zip(weights, shares, strict=True))
    assert RandomSelection([Gaussian(1.0)] * len(asked), request.weights).weights == request.weights
    assert exact(request.weights) == request.weights
    chosen = best_weights(
        [Gaussian(2.0), Gaussian(0.7)], least_private_first([Gaussian(2.0), Gaussian(0.7)], DELTA), 3.0, DELTA
    )
    assert all(sum(map(Fraction, each)) == 1 for each in chosen.values())


def test_weights_that_leave_something_over_are_not_drawn_from():
    """The rest would go to some model that was not charged for it: here to one of weight 0, with 9e-10."""
    with pytest.raises(ValueError, match="weights must sum to 1 exactly"):
        draw((0.5, 0.5 - 9e-10, 0.0), 1)


def test_models_are_drawn_with_their_weights():
    weights, draws = exact((0.2, 0.0, 0.5, 0.3)), 3000
    counts = np.bincount([draw(weights, seed) for seed in range(draws)], minlength=4)
    deviation = np.sqrt(draws * np.array(weights) * (1 - np.array(weights)))
    assert np.all(np.abs(counts - draws * np.array(weights)) <= 4 * deviation)  # 4 standard deviations; none for 0
    assert draw((0.0, 1.0), 5) == 1
    assert draw((1.0, 0.0), 5) == 0
