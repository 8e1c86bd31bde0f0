"""Trade-off functions bracket closed forms, all tests between random finite laws, dp-accounting and riskcal."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad
from scipy.stats import norm

from fedamp.accounting import (
    Allocation,
    Gaussian,
    Laplace,
    ModelMix,
    NotPrivate,
    Poisson,
    RandomisedResponse,
    RandomSelection,
    Repeat,
    Submodels,
    TradeOff,
    WithoutReplacement,
    trade_off,
)

RATES = np.array([0.0, 1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0])


def gaussian(mu):
    """False negative rates of the Gaussian mechanism (Dong, Roth, Su 2022, Eq. 6)."""
    return lambda alpha: norm.cdf(norm.isf(alpha) - mu)


def laplace(epsilon):
    """Of the Laplace mechanism (Dong, Roth, Su 2022, appendix)."""
    ends = [lambda a: 1 - np.exp(epsilon) * a, lambda a: np.exp(-epsilon) * (1 - a)]
    middle = lambda a: np.exp(-epsilon) / (4 * np.maximum(a, 1e-300))  # noqa: E731
    return lambda a: np.where(a < np.exp(-epsilon) / 2, ends[0](a), np.where(a > 0.5, ends[1](a), middle(a)))


def randomised(probability):
    """Of randomised response."""
    ratio = probability / (1 - probability)
    return lambda a: np.maximum(1 - ratio * a, (1 - a) / ratio)


# The last number: how wide a bracket of the false negative rate may be at 100 values of delta, twice of what it is.
CLOSED_FORMS = [
    (Gaussian(0.5), gaussian(2.0), 4e-3),
    (Gaussian(1.0), gaussian(1.0), 3e-3),
    (Gaussian(5.0), gaussian(0.2), 3e-4),
    (Repeat(Gaussian(20.0), 100), gaussian(0.5), 2e-3),
    (Laplace(1.0), laplace(1.0), 1e-4),
    (Laplace(0.3), laplace(1 / 0.3), 1e-4),
    (RandomisedResponse(0.75), randomised(0.75), 1e-8),
    (RandomisedResponse(0.99), randomised(0.99), 1e-8),
]


@pytest.mark.parametrize(("mechanism", "exact", "width"), CLOSED_FORMS, ids=lambda value: str(value)[:40])
def test_the_trade_off_brackets_closed_forms(mechanism, exact, width):
    lower, upper = trade_off(mechanism).false_negative_rate(RATES)
    assert np.all(lower <= exact(RATES) + 1e-15)  # the oracle's own rounding
    assert np.all(exact(RATES) <= upper + 1e-15)
    assert np.max((upper - lower)[1:]) <= width  # at 0 the tail beyond delta = 1e-9 counts
    true_lower, true_upper = trade_off(mechanism).true_positive_rate(RATES)
    assert np.allclose(true_lower, 1 - upper, rtol=0, atol=1e-14)  # 1 - f has an absolute error, this has none
    assert np.allclose(true_upper, 1 - lower, rtol=0, atol=1e-14)
    assert np.all(true_lower <= 1 - exact(RATES) + 1e-15)
    assert np.all(1 - exact(RATES) <= true_upper + 1e-15)


def test_tiny_rates_are_known_relatively():
    """1 - f has 15 digits after the point: below 1e-13 nothing would be left of it."""
    for noise in (1.0, 10.0):
        rates = np.geomspace(1e-14, 1e-9, 5)
        lower, upper = trade_off(Gaussian(noise)).true_positive_rate(rates)
        exact = norm.sf(norm.isf(rates) - 1 / noise)
        assert np.all(lower <= exact)
        assert np.all(exact <= upper)
        assert np.all(upper <= 1.05 * exact)


def test_more_values_narrow_the_bracket():
    width = {}
    for values in (50, 200):
        lower, upper = trade_off(Gaussian(1.0), values).false_negative_rate(RATES)
        width[values] = np.max(upper - lower)
    assert width[200] < width[50] / 8  # four times as many: 16 times as narrow, save for where they fall


def finite_laws(draw):
    """Two laws on the same few outputs; some of mass 0."""
    size = draw(st.integers(2, 5))
    masses = [draw(arrays(float, size, elements=st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0, 3.0]))) for _ in range(2)]
    return [(mass + (mass.sum() == 0)) / (mass + (mass.sum() == 0)).sum() for mass in masses]


def error_rates(p, q):
    """Corners (false positives, false negatives) of all tests of q against p: outputs added by likelihood ratio."""
    with np.errstate(divide="ignore"):
        order = np.argsort(-np.where(p + q > 0, p / np.where(q > 0, q, 1e-300), 0.0))
    return np.r_[0.0, np.cumsum(q[order])], np.r_[1.0, 1.0 - np.cumsum(p[order])]


def lower_hull(x, y, at):
    """The largest convex function below some points, by every chord between two of them."""
    best = np.full(len(at), np.inf)
    for x1, y1 in zip(x, y, strict=True):
        for x2, y2 in zip(x, y, strict=True):
            inside = (x1 <= at) & (at <= x2)
            share = (at - x1) / (x2 - x1) if x2 > x1 else np.zeros_like(at)
            best = np.where(inside, np.minimum(best, y1 + share * (y2 - y1) if x2 > x1 else min(y1, y2)), best)
    return best


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_brackets_hold_for_any_laws_any_grid_and_any_brackets_of_delta(data):
    """The symmetric trade-off function of two finite laws, by listing all tests in both directions."""
    p, q = finite_laws(data.draw)
    epsilons = np.array([0.0, *sorted(data.draw(st.sets(st.floats(0.05, 8.0), max_size=6)))])
    delta = [max(np.maximum(p - np.exp(e) * q, 0).sum(), np.maximum(q - np.exp(e) * p, 0).sum()) for e in epsilons]
    slacks = arrays(float, len(epsilons), elements=st.sampled_from([0.0, 1e-6, 0.01, 0.2]))
    curve = TradeOff(epsilons, *np.clip([delta - data.draw(slacks), delta + data.draw(slacks)], 0.0, 1.0))
    rates = np.linspace(0.0, 1.0, 41)
    x, y = (np.concatenate(pair) for pair in zip(error_rates(p, q), error_rates(q, p), strict=True))
    exact = lower_hull(np.r_[x, y], np.r_[y, x], rates)
    lower, upper = curve.false_negative_rate(rates)
    # Sums of masses are off by 1e-16, in front of likelihood ratios up to 1500.
    assert np.all(lower <= exact + 1e-12)
    assert np.all(exact <= upper + 1e-12)
    advantage = np.max(1 - y - x)
    assert curve.advantage.lower - 1e-14 <= advantage <= curve.advantage.upper + 1e-14


MECHANISMS = [
    lambda s: Gaussian(s),
    lambda s: Laplace(s),
    lambda s: Repeat(Poisson(Gaussian(s), 0.1), 20),
    lambda s: Submodels(Gaussian(s), 3),
    lambda s: Allocation(Gaussian(s), 2, 8),
    lambda s: WithoutReplacement(Gaussian(2 * s), 10, 100),
    lambda s: ModelMix(s, 2.0),
    lambda s: RandomSelection([Gaussian(s), RandomisedResponse(0.999)], [0.99, 0.01]),
]


@pytest.mark.parametrize("build", MECHANISMS, ids=lambda build: str(build(1.0))[:40])
def test_shape_and_order(build):
    rates = np.linspace(0.0, 1.0, 201)
    previous = None
    for noise in (0.7, 1.5):
        curve = trade_off(build(noise))
        lower, upper = curve.false_negative_rate(rates)
        assert np.all((lower >= 0) & (lower <= upper) & (upper <= 1 - rates))
        assert np.all(np.diff(lower) <= 0)
        assert np.all(np.diff(upper) <= 0)
        assert np.all(np.diff(lower, 2) >= -1e-14)  # convex, but for the rounding of differences
        assert np.all(lower >= 1 - curve.advantage.upper - rates - 1e-14)
        # Symmetric: f(f(alpha)) = alpha, or less where f is flat. Near 0 it is so steep that rounding counts.
        inside = lower > 1e-3
        assert np.all(curve.false_negative_rate(lower[inside])[0] <= rates[inside] + 1e-8)
        if previous is not None:
            assert np.all(lower >= previous - 2e-3)  # the width of brackets, which differ
        previous = lower


def sampled_rounds(**kwargs):
    """Google's privacy loss distribution of 200 rounds of DP-SGD at rate 0.05, noise 1.1."""
    from dp_accounting.pld import privacy_loss_distribution

    law = privacy_loss_distribution.from_gaussian_mechanism(1.1, sampling_prob=0.05, **kwargs)
    return law.self_compose(200)


def test_sampling_agrees_with_dp_accounting():
    """Its delta at 2,000 values of epsilon, from above (connected dots) and from below."""
    pytest.importorskip("dp_accounting")
    grid, rates = np.linspace(0.0, 12.0, 2001)[:, None], RATES[1:-1]
    above = sampled_rounds(use_connect_dots=True, value_discretization_interval=1e-3)
    below = sampled_rounds(use_connect_dots=False, pessimistic_estimate=False, value_discretization_interval=1e-3)
    theirs = []
    for law in (above, below):
        delta = np.array(law.get_delta_for_epsilon(grid.ravel()))[:, None]
        theirs.append(np.maximum(1 - delta - np.exp(grid) * rates, np.exp(-grid) * (1 - delta - rates)))
    lower, upper = trade_off(Repeat(Poisson(Gaussian(1.1), 0.05), 200)).false_negative_rate(rates)
    assert np.all(theirs[0].max(axis=0) <= upper + 1e-12)
    # Their supremum is over a grid: steps of 0.006 in epsilon lose at most the square of half of that.
    assert np.all(theirs[1].max(axis=0) >= lower - 1e-5)
    assert np.all(upper - theirs[0].max(axis=0) <= 2e-3)


def test_sampling_agrees_with_riskcal():
    """riskcal reads error rates off the two directions' discretised laws, each rounded by itself, so that its rates are
    close but no bounds; at a false positive rate of 1e-6 it misses nine tenths of the true positives.
    """
    analysis = pytest.importorskip("riskcal.analysis")
    law = sampled_rounds(use_connect_dots=True, value_discretization_interval=1e-3)
    curve, rates = trade_off(Repeat(Poisson(Gaussian(1.1), 0.05), 200)), RATES[3:-1]
    lower, upper = curve.false_negative_rate(rates)
    theirs = analysis.get_beta_from_pld(law, alpha=rates)
    assert np.all(lower - 1e-4 <= theirs)
    assert np.all(theirs <= upper + 1e-4)
    assert curve.advantage.upper == pytest.approx(analysis.get_advantage_from_pld(law), abs=1e-5)
    # mu from its definition, on a fine grid of theirs.
    fine = np.geomspace(1e-3, 0.5, 2000)
    errors = analysis.get_beta_from_pld(law, alpha=fine)
    exact = np.max((norm.isf(fine) + norm.isf(errors))[errors >= fine])
    mu = curve.gaussian(smallest_rate=1e-3).mu
    assert mu.lower - 2e-3 <= exact <= mu.upper + 2e-3
    assert mu.width <= 0.01 * mu.upper


def test_true_positives_of_many_sampled_rounds_are_those_of_both_laws():
    """Two other accountants say fewer at a false positive rate of 0.1 %. Both laws, each on the same grid, by FFT."""
    rate, rounds, alpha, step, size = 0.01, 1000, 1e-3, 4e-4, 1 << 18
    z = np.arange(-12.0, 14.0, 1e-4) + 5e-5
    outside = norm.pdf(z) * 1e-4
    inside = (1 - rate) * outside + rate * norm.pdf(z - 1) * 1e-4
    loss = np.log(inside / outside) / step
    below = np.floor(loss).astype(int)

    def composed(chances):  # a loss is split between its neighbours on the grid, so that its mean stays
        law = np.bincount(below % size, chances * (below + 1 - loss), size)
        law += np.bincount((below + 1) % size, chances * (loss - below), size)
        return np.fft.fftshift(np.fft.irfft(np.fft.rfft(law) ** rounds, size))

    true, false = (np.cumsum(composed(chances)[::-1]) for chances in (inside, outside))
    exact = np.interp(alpha, false, true)
    lower, upper = trade_off(Repeat(Poisson(Gaussian(1.0), rate), rounds)).true_positive_rate(alpha)
    # The split adds at most step^2 / 4 of variance a round, 0.04 per thousand of that of all losses.
    assert lower * (1 - 1e-3) <= exact <= upper * (1 + 1e-3)
    assert exact > 0.00405


def regret_by_definition(exact, mu):
    """The least kappa with f(alpha + kappa) - kappa <= G_mu(alpha), by bisection on a fine grid."""
    alpha, (low, high) = np.linspace(0.0, 1.0, 20_001), (0.0, 1.0)
    for _ in range(40):
        kappa = (low + high) / 2
        holds = np.all(exact(np.minimum(alpha + kappa, 1.0)) - kappa <= gaussian(mu)(alpha))
        low, high = (low, kappa) if holds else (kappa, high)
    return high


@pytest.mark.parametrize(
    ("mechanism", "exact", "mu"),
    [
        (Gaussian(0.8), gaussian(1.25), 1.25),
        (Gaussian(10.0), gaussian(0.1), 0.1),
        # Gomez et al. 2025, Proposition 6.1: of pure epsilon-privacy.
        (RandomisedResponse(0.8), randomised(0.8), -2 * norm.ppf(0.2)),
        (Laplace(1.0), laplace(1.0), np.max(norm.isf(a := np.linspace(1e-6, 0.5, 10**5)) + norm.isf(laplace(1.0)(a)))),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_closest_gaussian(mechanism, exact, mu):
    fit = trade_off(mechanism).gaussian()
    assert fit.mu.lower <= mu + 1e-9
    assert mu - 1e-9 <= fit.mu.upper <= mu * 1.01  # the width of true positive rates near 1e-6
    regret = regret_by_definition(exact, fit.mu.upper)
    assert fit.regret.lower <= regret + 1e-4  # the definition's grid: steps of 5e-5, slopes up to about 2
    assert regret - 1e-4 <= fit.regret.upper
    assert fit.regret.width <= 1e-3


def test_regret_of_a_rare_release_of_everything():
    """Far from Gaussian: with probability 1/100 it is told who took part and who did not, else next to nothing."""
    fit = trade_off(RandomSelection([NotPrivate(), Gaussian(1e4)], [0.01, 0.99])).gaussian()
    regret = regret_by_definition(lambda alpha: np.maximum(0.99 - alpha, 0.0), fit.mu.upper)
    assert fit.mu.upper > 2
    assert regret > 0.3
    assert fit.regret.lower - 1e-4 <= regret <= fit.regret.upper + 1e-4  # as above, and the noise of 1e4


def test_without_a_limit_on_rates_sampling_would_not_help_mu():
    """The far tail of a sampled Gaussian is that of an unsampled one, so that mu rises as smaller rates count."""
    curve = trade_off(Repeat(Poisson(Gaussian(1.0), 0.01), 100))
    values = [curve.gaussian(rate).mu for rate in (1e-2, 1e-4, 1e-6)]
    assert all(less.upper < more.lower for less, more in pairwise(values))


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_identification(noise):
    """Two candidates on opposite sides attain the bound; five orthogonal ones stay below."""
    lower, upper = trade_off(Gaussian(noise)).identification([1, 2, 5])
    assert lower[0] == upper[0] == 1.0
    assert lower[1] <= norm.cdf(1 / noise) <= upper[1]
    assert upper[1] <= norm.cdf(1 / noise) + 3e-3  # the bracket's width
    attack = quad(lambda x: norm.pdf(x - 1 / noise) * norm.cdf(x) ** 4, -10, 10 + 1 / noise)[0]
    assert 0.2 < attack < upper[2]


def test_posterior():
    """A threshold on a Gaussian sum, by Bayes; in a grid of priors and false positive rates."""
    prior, rate = np.array([[0.0], [0.01], [0.5], [1.0]]), np.array([1e-3, 0.05, 1.0])
    recognised = norm.sf(norm.isf(rate) - 1.0)
    exact = prior * recognised / (prior * recognised + (1 - prior) * rate)
    lower, upper = trade_off(Gaussian(1.0)).posterior(prior, rate)
    assert lower.shape == upper.shape == (4, 3)
    assert np.all(lower <= exact + 1e-14)
    assert np.all(exact <= upper + 1e-14)
    assert np.all(upper - lower <= 2e-3)  # the true positive rate's bracket, of some 1e-3 relative


def test_a_known_attack_on_hidden_rounds_stays_below_the_upper_end():
    """The sum of all rounds of a k of T is Gaussian: k / (s sqrt(T)) away."""
    _, upper = trade_off(Allocation(Gaussian(0.8), 4, 16)).true_positive_rate(RATES)
    attack = norm.sf(norm.isf(RATES) - 4 / (0.8 * 4))
    assert np.all(attack <= upper + 1e-15)
    assert np.all(upper <= trade_off(Repeat(Gaussian(0.8), 4)).true_positive_rate(RATES)[1] + 3e-3)


def test_nothing_and_everything():
    nothing, everything = trade_off(Repeat(Gaussian(1.0), 0)), trade_off(NotPrivate())
    assert np.allclose(nothing.false_negative_rate(RATES), 1 - RATES, rtol=0, atol=1e-14)
    assert nothing.gaussian().mu.upper < 1e-8
    assert np.allclose(everything.false_negative_rate(RATES), 0.0, rtol=0, atol=1e-14)
    assert everything.gaussian().mu.upper == np.inf
    assert everything.advantage.lower == 1.0
