"""k hidden rounds of T by sampling, against integrals, enumeration, other accountants and counts of wrong brackets."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from fedamp.accounting import (
    Allocation,
    CappedPoisson,
    Compose,
    Dropout,
    Gaussian,
    LinearCombination,
    Poisson,
    RandomisedResponse,
    RandomSelection,
    Repeat,
    Spaced,
    Submodels,
    arithmetic,
    calibrate,
    group,
    sampling,
)
from fedamp.accounting.bounds import NotEvaluable
from fedamp.accounting.law import Law
from fedamp.accounting.mechanism import moments_of, numerical_law
from fedamp.accounting.sampling import (
    AddProposal,
    Beginnings,
    Block,
    FiniteRound,
    GaussianRound,
    HiddenRounds,
    RemoveProposal,
    SampledProfile,
    SampledRun,
    certify_deltas,
    hidden_log_moments,
    log_beginnings,
    log_shifted_beginnings,
)
from tests.accounting.oracles import (
    allocation_on_grid,
    beginning,
    bits,
    capped,
    coins,
    declined,
    delta_of,
    product_of,
    renyi_of,
    uniform_sets,
)

DELTA = 1e-5


def run_of(ratio, k, rounds, released=None) -> SampledRun:
    found = Allocation(Gaussian(1.0), k, rounds).after(rounds if released is None else released).participation()
    return SampledRun((HiddenRounds(ratio, found.chances, found.rounds, 1, found.rounding),))


def sampled_of(noise, k, rounds, released=None) -> SampledProfile:
    run = run_of(GaussianRound(noise), k, rounds, released)
    return SampledProfile(run, run, (lambda: numerical_law(Allocation(Gaussian(noise), k, rounds)),))


def sampled_of_law(law, k, rounds) -> SampledProfile:
    upper, lower = (run_of(FiniteRound(points, law.rounding), k, rounds) for points in (law.upper, law.lower))
    return SampledProfile(upper, lower)


SMALL = [(0.8, 1, 2, 2), (1.5, 2, 3, 3), (0.7, 2, 3, 3), (1.0, 2, 5, 2), (1.2, 3, 4, 3), (0.9, 1, 6, 1)]


@pytest.mark.few(0, 3, 4)
@pytest.mark.parametrize(("noise", "k", "rounds", "released"), SMALL)
def test_brackets_hold_the_integral_in_both_directions_and_epsilon_inverts_it(noise, k, rounds, released):
    value, weight = allocation_on_grid(noise, k, rounds, released)
    sampled = sampled_of(noise, k, rounds, released)

    def exact(epsilon: float) -> tuple[float, float]:
        scale = math.exp(epsilon)
        return weight @ np.maximum(value - scale, 0), weight @ np.maximum(1 - scale * value, 0)

    epsilon = 0.8
    remove, add = sampled.delta_remove(epsilon), sampled.delta_add(epsilon)
    assert exact(epsilon)[1] <= exact(epsilon)[0] * (1 + 1e-3)  # Proposition 4'
    # The trapezoid rule with kinks is off by some 2e-4 relative at 121 nodes a side.
    for bounds, truth in zip((remove, add), exact(epsilon), strict=True):
        assert bounds.lower <= truth * (1 + 1e-3)
        assert bounds.upper >= truth * (1 - 1e-3)
        assert bounds.width <= 0.08 * bounds.upper
    assert sampled.delta(epsilon).upper >= max(remove.lower, add.lower)
    bounds = sampled.epsilon(1e-4)
    assert max(exact(bounds.lower - 1e-3)) >= 1e-4
    assert max(exact(bounds.upper + 1e-3)) <= 1e-4
    assert bounds.width <= 6e-3 * bounds.upper


TABLE = [  # brackets that an independent program certified, with 10^6 draws for the first two and 10^5 for the others
    (10, 100, 0.869, 7.4874, 7.5000),
    (10, 100, 1.0, 5.8176, 5.8259),
    (2, 10, 1.0, 3.531, 3.565),
    (4, 10, 2.0, 2.677, 2.692),
]


@pytest.mark.few(1, 3)
@pytest.mark.parametrize(("k", "rounds", "noise", "low", "high"), TABLE)
def test_table_of_the_design(k, rounds, noise, low, high):
    bounds = sampled_of(noise, k, rounds).epsilon(DELTA)
    assert bounds.lower <= high
    assert bounds.upper >= low
    assert bounds.width <= 5e-3 * bounds.upper
    split = Allocation(Gaussian(noise), k, rounds).epsilon(DELTA, points=1200)
    assert split.lower <= bounds.upper < split.upper
    assert "charged to delta" in bounds.method


def elementary(x, k):
    """e_k of each row: the coefficient of s^k in prod (1 + s x_i), from its values at roots of unity."""
    roots = np.exp(2j * math.pi * np.arange(x.shape[1] + 1) / (x.shape[1] + 1))
    return np.fft.fft(np.prod(1 + x[:, :, None] * roots, axis=1)).real[:, k] / len(roots)


def assert_holds_plain_sampling(sampled, ratios, k, epsilon):
    """``ratios``: drawn with the person in the first ``k`` rounds (by symmetry), shape (draws, rounds)."""
    x = elementary(ratios, k) / math.comb(ratios.shape[1], k)
    value = np.maximum(1 - math.exp(epsilon) / x, 0)
    margin = 5 * value.std() / math.sqrt(len(x))
    bounds = sampled.delta_remove(epsilon)
    assert bounds.lower <= value.mean() + margin
    assert bounds.upper >= value.mean() - margin


@pytest.mark.parametrize(("k", "rounds", "noise", "epsilon"), [(3, 8, 1.5, 1.0), (5, 20, 2.0, 0.5)])
def test_plain_sampling_agrees(k, rounds, noise, epsilon):
    z = np.random.default_rng(5).standard_normal((20_000, rounds))
    z[:, :k] += 1 / noise
    assert_holds_plain_sampling(sampled_of(noise, k, rounds), np.exp(z / noise - 0.5 / noise**2), k, epsilon)


def test_every_round_has_a_lower_end_without_sampling():
    """Nothing is hidden: the answer is that of the composition."""
    found = Allocation(RandomisedResponse(0.6), 25, 25).delta(1.0)
    exact = Repeat(RandomisedResponse(0.6), 25).delta(1.0)
    assert (found.lower, found.upper) == pytest.approx((exact.lower, exact.upper), rel=1e-9)  # rounding allowances


def test_little_noise_needed_costs_epsilon_zero():
    bounds = sampled_of(50.0, 2, 4).epsilon(0.3)
    assert bounds.lower == bounds.upper == 0


# Rounds that have a numerical law.


def exact_of_finite(ratios, masses, k, rounds):
    """X and Q-mass of every outcome of the rounds."""
    choices = list(itertools.combinations(range(rounds), k))
    value, weight = [], []
    for outcome in itertools.product(range(len(ratios)), repeat=rounds):
        value.append(sum(math.prod(ratios[outcome[i]] for i in choice) for choice in choices) / len(choices))
        weight.append(math.prod(masses[i] for i in outcome))
    return np.array(value), np.array(weight)


def test_finite_laws_with_impossible_outcomes_by_enumeration():
    masses, infinite = [1e-3, 0.399, 0.4, 0.2], 1e-3
    ratios = [0.0, 0.5, (1 - infinite - 0.5 * 0.399 - 3 * 0.2) / 0.4, 3.0]
    law = Law.from_points(ratios, masses, infinite=infinite)
    k, rounds = 2, 4
    value, weight = exact_of_finite(ratios, masses, k, rounds)
    sampled = sampled_of_law(law, k, rounds)
    for epsilon in (0.1, 1.0):
        remove = weight @ np.maximum(value - math.exp(epsilon), 0) + 1 - (1 - infinite) ** k
        bounds = sampled.delta_remove(epsilon)
        # The lower end leaves out what is infinite.
        assert bounds.lower <= remove <= bounds.upper
        assert bounds.upper <= 1.06 * remove
        add = weight @ np.maximum(1 - math.exp(epsilon) * value, 0)
        assert sampled.delta_add(epsilon).upper >= add
        assert sampled.delta_add(epsilon).lower <= add
    masses = [0.4, 0.4, 0.2]  # nothing but the remove direction gives a person away
    ratios = [0.5, (1 - infinite - 0.5 * 0.4 - 3 * 0.2) / 0.4, 3.0]
    value, weight = exact_of_finite(ratios, masses, k, rounds)
    spent = sampled_of_law(Law.from_points(ratios, masses, infinite=infinite), k, rounds).epsilon(3e-3).upper
    assert weight @ np.maximum(value - math.exp(spent), 0) + 1 - (1 - infinite) ** k <= 3e-3


@pytest.mark.few(1, 2)
@pytest.mark.parametrize(
    ("round_", "k", "rounds"),
    [
        (Submodels(Gaussian(0.8), 4), 3, 12),
        (Compose([Gaussian(3.0), Submodels(Gaussian(1.0), 3)]), 3, 12),
        (Poisson(Gaussian(0.9), 0.3), 3, 9),
        (RandomisedResponse(0.8), 2, 5),
    ],
)
def test_rounds_with_a_law_lie_below_the_split_and_hold_plain_sampling(round_, k, rounds):
    law = numerical_law(round_)
    sampled = sampled_of_law(law, k, rounds)
    bounds = sampled.epsilon(DELTA, precision=2e-2)
    split = Allocation(round_, k, rounds).epsilon(DELTA, points=1200)
    assert bounds.upper <= split.upper * (1 + 1e-5)  # two of five bits tell at most so much, however they are bounded
    assert bounds.lower >= 0.92 * split.upper
    rng, points = np.random.default_rng(3), law.upper
    values = np.append(np.exp(points.log_ratio), 0.0)
    outside = rng.choice(values, (10_000, rounds - k), p=_normalised(points.mass_out, points.zero))
    inside = rng.choice(values, (10_000, k), p=_normalised(points.mass_in, 0.0))
    assert_holds_plain_sampling(sampled, np.hstack([inside, outside]), k, 0.5)


def _normalised(masses, last):
    masses = np.append(masses, last)
    return masses / masses.sum()


def test_law_and_exact_gaussian_agree():
    exact = sampled_of(1.5, 3, 10).epsilon(DELTA)
    by_law = sampled_of_law(numerical_law(Gaussian(1.5)), 3, 10).epsilon(DELTA)
    assert by_law.lower <= exact.upper
    assert by_law.upper >= exact.lower
    assert by_law.width <= 6e-3 * by_law.upper
    few = sampled_of_law(Law.gaussian(1.5, points=8), 3, 10).epsilon(DELTA)  # whose two ends are far apart
    assert few.lower <= exact.upper
    assert exact.lower <= few.upper
    assert few.width >= 0.02 * few.upper


# Compositions of hidden rounds, by enumeration of all choices and outputs.


BIT = RandomisedResponse(0.8)
TWO_OF_FOUR, ONE_BIT = bits(uniform_sets(4, 2), 4, 0.8), np.array([[0.6, 0.4], [0.4, 0.6]])
MADE = {
    "epochs": (Repeat(Allocation(BIT, 2, 4), 2), lambda: product_of(TWO_OF_FOUR, TWO_OF_FOUR)),
    "another release": (
        Compose([Allocation(BIT, 2, 4), RandomisedResponse(0.6), RandomisedResponse(0.6)]),
        lambda: product_of(TWO_OF_FOUR, ONE_BIT, ONE_BIT),
    ),
    "epochs, the last not finished": (
        Repeat(Allocation(BIT, 2, 4), 2).after(7),
        lambda: product_of(TWO_OF_FOUR, bits(beginning(uniform_sets(4, 2), 3), 3, 0.8)),
    ),
    "declining": (
        Allocation(Poisson(BIT, 0.7), 3, 5),
        lambda: bits(declined(uniform_sets(5, 3), 0.7), 5, 0.8),
    ),
    "declining, a prefix": (
        Allocation(Poisson(BIT, 0.7), 3, 5).after(4),
        lambda: bits(beginning(declined(uniform_sets(5, 3), 0.7), 4), 4, 0.8),
    ),
    "opting out of everything": (
        Poisson(Allocation(BIT, 2, 4), 0.6),
        lambda: bits([*uniform_sets(4, 2, 0.6), ((), 0.4)], 4, 0.8),
    ),
    "a cap": (CappedPoisson(BIT, 0.4, 2, 5), lambda: bits(capped(5, 0.4, 2), 5, 0.8)),
    "a cap, a prefix": (
        CappedPoisson(BIT, 0.4, 3, 6).after(4),
        lambda: bits(beginning(capped(6, 0.4, 3), 4), 4, 0.8),
    ),
    "a cap, and declining": (
        CappedPoisson(Poisson(BIT, 0.5), 0.7, 3, 4),
        lambda: bits(declined(capped(4, 0.7, 3), 0.5), 4, 0.8),
    ),
    "a cap of one": (
        CappedPoisson(BIT, 0.4, 1, 5).after(4),
        lambda: bits(beginning(capped(5, 0.4, 1), 4), 4, 0.8),
    ),
    "a cap that binds nobody": (CappedPoisson(BIT, 0.3, 4, 4), lambda: bits(coins(4, 0.3), 4, 0.8)),
}


@pytest.mark.few(2, 4, 5, 8, 9)
@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_hidden_rounds_by_enumeration(name):
    event, oracle = MADE[name]
    laws = oracle()

    # 1e-9: chances of either direction are sums of products.
    for delta, precision in ((0.05, 0.02), (1e-3, 5e-3), (1e-6, 0.02)):
        found = event.epsilon(delta, precision=precision)
        assert delta_of(*laws, found.upper + 1e-9) <= delta * (1 + 1e-9)
        assert found.lower == 0 or delta_of(*laws, found.lower - 1e-9) >= delta * (1 - 1e-9)
        assert found.width <= 1.2 * precision * found.upper
    for epsilon, precision in ((0.0, 0.1), (0.4, 0.05), (1.2, 0.1)):
        found, truth = event.delta(epsilon, precision=precision), delta_of(*laws, epsilon)
        assert found.lower <= truth * (1 + 1e-9)
        assert found.upper >= truth * (1 - 1e-9)
        assert found.width <= 1.2 * precision * found.upper + 1e-12  # a cap of one tells nobody more than 1.17
    for order in (2, 4):
        assert renyi_of(*laws, order) * (1 - 1e-9) <= event.rdp(order)[0]


def test_a_merged_model_may_hide_the_hidden_rounds_of_its_parts():
    merged = LinearCombination([Allocation(BIT, 2, 4), BIT], [0.5, 0.5]).epsilon(1e-3)
    assert merged.lower == 0
    assert merged.upper <= Compose([Allocation(BIT, 2, 4), BIT]).epsilon(1e-3).upper


@pytest.mark.few(0, 2)
@pytest.mark.parametrize(
    ("event", "shortened"),
    [
        (CappedPoisson(Gaussian(1.0), 0.2, 3, 10), Repeat(Poisson(Gaussian(1.0), 0.2), 10)),
        (CappedPoisson(Gaussian(1.0), 0.2, 3, 10), Allocation(Gaussian(1.0), 3, 10)),
        (Allocation(Poisson(Gaussian(1.0), 0.8), 3, 10), Allocation(Gaussian(1.0), 3, 10)),
        (Allocation(Gaussian(1.0), 2, 10), Allocation(Gaussian(1.0), 3, 10)),
    ],
)
def test_leaving_rounds_out_never_costs(event, shortened):
    assert event.epsilon(DELTA).upper <= shortened.epsilon(DELTA).upper


def test_the_lower_end_of_dropout_in_hidden_rounds_is_met_by_a_wide_network():
    """Spread evenly over very many units, a contribution moves their sum by sqrt(keep); sets are enumerated."""
    means = np.array([np.isin(np.arange(6), each) for each in itertools.combinations(range(6), 2)]) * math.sqrt(0.3)
    z = np.random.default_rng(4).standard_normal((60_000, 6)) + means[np.arange(60_000) % len(means)]
    values = np.maximum(1 - math.exp(0.5) / np.exp(z @ means.T - (means**2).sum(1) / 2).mean(1), 0)
    margin = 5 * values.std() / math.sqrt(len(values))
    bounds = Allocation(Dropout(Gaussian(1.0), 0.3), 2, 6).delta(0.5, precision=0.05)
    assert 0.93 * values.mean() - margin <= bounds.lower <= values.mean() + margin
    run = Allocation(Dropout(Gaussian(1.0), 0.3), 5, 50)
    assert run.epsilon(1e-5, precision=0.02).lower > 1.58  # 1.63; one round alone shows 0.44


def test_a_product_with_everything_known_is_what_the_accountants_say():
    """k = T is a composition: two epochs of it and another release are one Gaussian; dp_accounting's is 1e-4 off."""
    event = Compose([Repeat(Allocation(Gaussian(4.0), 3, 3), 2), Gaussian(3.0)])
    exact = privacy_loss_distribution.from_gaussian_mechanism((6 / 16 + 1 / 9) ** -0.5).get_epsilon_for_delta(DELTA)
    found = event.sampled_profile().epsilon(DELTA)
    assert found.lower <= exact <= found.upper + 1e-4
    assert found.width <= 6e-3 * found.upper


def test_a_group_costs_at_least_what_two_people_reveal_and_less_than_by_the_split():
    """Each of two people in 2 of 3 rounds, pushing the same way, integrated over the three outputs."""
    noise, delta, event = 4.0, 1e-3, group(Allocation(Gaussian(4.0), 2, 3), 2)
    z = np.linspace(-8, 8, 121)
    mass = np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    ratios = [np.exp(c * z / noise - c * c / noise**2 / 2) for c in range(3)]
    choices = [np.isin(range(3), pair).astype(int) for pair in itertools.combinations(range(3), 2)]
    value = sum(
        np.multiply.outer(np.multiply.outer(ratios[a], ratios[b]), ratios[c])
        for a, b, c in (one + other for one in choices for other in choices)
    )
    value, weight = value / len(choices) ** 2, np.multiply.outer(np.multiply.outer(mass, mass), mass)
    found = event.epsilon(delta)
    assert found.upper < event.epsilon(delta, points=1200).upper
    for epsilon, side in ((found.upper, 1), (found.lower, -1)):
        exact = (weight * np.maximum(value - math.exp(epsilon), 0)).sum()
        assert side * exact <= side * delta * (1 + side * 1e-3)  # the kink
    three = group(Allocation(Gaussian(4.0), 2, 3), 3).epsilon(delta)
    assert three.method.startswith("group property of sampled")
    assert three.upper > found.upper


# Moments.


@pytest.mark.parametrize(("k", "rounds", "released"), [(2, 3, 3), (2, 4, 2), (3, 5, 4), (1, 4, 3)])
@pytest.mark.parametrize("one_round", [Gaussian(0.7), Poisson(Gaussian(0.5), 0.1), Submodels(Gaussian(0.6), 2)])
def test_moments_against_enumeration_of_choices(one_round, k, rounds, released):
    log_mu = moments_of(one_round).raw_moments(256)[:5]
    choices = list(itertools.combinations(range(rounds), k))
    held = Allocation(Gaussian(1.0), k, rounds).after(released).participation()
    found = hidden_log_moments(log_mu, held.chances, held.rounds, held.rounding)
    for order in (2, 3, 4):
        total = 0.0
        for drawn in itertools.product(choices, repeat=order):
            total += math.exp(sum(log_mu[sum(i in choice for choice in drawn)] for i in range(released)))
        exact = math.log(total / len(choices) ** order)
        assert exact + 1e-14 <= found[order] <= exact + 1e-9  # rounding (of the sums here: 1e-15) is allowed for


def test_proposals_reproduce_their_moment():
    """E_R[dQ/dR] = E_R[X dQ/dR] = 1, also with independent rounds or two people: they tell odds off by 5 per cent."""
    run, draws = run_of(GaussianRound(3.0), 4, 12, 9), 400_000
    pair = group(Allocation(Gaussian(3.0), 2, 6), 2).sampled_profile().upper
    for proposal in (RemoveProposal(run, 2), RemoveProposal(run, 2, 4), RemoveProposal(pair, 3)):
        log_a, log_b = proposal.draw(np.random.default_rng(2), draws)
        for values in (np.exp(log_a), np.exp(log_b)):
            assert values.mean() == pytest.approx(1.0, abs=5 * values.std() / math.sqrt(draws))


# The certificate.


@pytest.mark.parametrize(
    ("proposal", "epsilon"),
    [
        (RemoveProposal(run_of(GaussianRound(1.0), 1, 2, 2), 3), 1.0),
        (RemoveProposal(run_of(GaussianRound(1.0), 1, 2, 2), 2, 3), 1.0),
        (AddProposal(run_of(GaussianRound(1.0), 1, 2, 2), 1.0), 1.0),
    ],
)
def test_certificates_fail_no_more_often_than_they_say(proposal, epsilon):
    """With many questions (epsilons that differ in the last digits) and a failure probability of 5 in 100."""
    value, weight = allocation_on_grid(1.0, 1, 2, 2)
    scale = math.exp(epsilon)
    inner = value - scale if isinstance(proposal, RemoveProposal) else 1 - scale * value
    exact = weight @ np.maximum(inner, 0)
    failures, trials = 0, 100
    for trial in range(trials):
        at = np.array([epsilon + 1e-9 * trial])
        upper, lower = certify_deltas(proposal, at, at, 500, 0.05)
        failures += not lower[0] <= exact <= upper[0]
        assert upper[0] < 3 * exact  # a bracket that holds everything would be no test
    # 5 expected at most; five standard deviations more.
    assert failures <= 5 + 5 * math.sqrt(5)


def test_candidates_share_the_probability_of_failure():
    proposal, failure = RemoveProposal(run_of(GaussianRound(1.0), 1, 2, 2), 3), 0.01

    def width(candidates, draws=100_000):
        upper, lower = certify_deltas(proposal, np.full(candidates, 1.0), np.full(candidates, 1.0), draws, failure)
        return float(upper[0] - lower[0])

    # The square root of log(1 / share), where the variance decides; 0.05: the rest, and other draws.
    expected = math.sqrt(math.log(80 / failure) / math.log(2 / failure))
    assert width(40) / width(1) == pytest.approx(expected, abs=0.05)
    # Of so few draws the range of one decides, whatever their variance.
    assert width(1, draws=64) >= math.exp(proposal.log_bound(1.0)) * -math.expm1(-math.log(2 / failure) / 64)


def test_what_a_certificate_may_be_wrong_by_is_taken_from_delta(monkeypatch):
    """Were it half of delta, the other half would have to be enough."""
    monkeypatch.setattr("fedamp.accounting.sampling.CHARGE", 0.5)
    value, weight = allocation_on_grid(1.0, 1, 2, 2)
    sampled = sampled_of(1.0, 1, 2)
    assert weight @ np.maximum(value - math.exp(sampled.epsilon(1e-3).upper), 0) <= 0.5e-3 * (1 + 1e-3)  # the kink
    exact = float(weight @ np.maximum(value - math.exp(1.0), 0))
    assert sampled.delta_remove(1.0).upper >= exact + 0.49 * min(exact, 1e-3)


def test_values_never_exceed_their_bound():
    for proposal in (
        RemoveProposal(run_of(GaussianRound(0.9), 3, 9, 9), 3),
        RemoveProposal(run_of(GaussianRound(0.9), 3, 9, 9), 1.5),
        RemoveProposal(run_of(GaussianRound(0.9), 3, 9, 5), 2, 3),
        RemoveProposal(group(Allocation(Gaussian(0.9), 3, 9), 2).sampled_profile().upper, 3),
        AddProposal(run_of(GaussianRound(0.9), 3, 9, 7), 0.7),
        RemoveProposal(run_of(FiniteRound(numerical_law(Submodels(Gaussian(0.7), 3)).upper), 3, 9, 9), 4),
    ):
        log_a, log_b = proposal.draw(np.random.default_rng(1), 20_000)
        for epsilon in (0.2, 1.0, 3.0):
            largest = np.max(proposal.excesses(log_a, log_b, epsilon)[0])
            assert largest <= math.exp(proposal.log_bound(epsilon)) * (1 + 1e-9)
            assert largest > 0


def test_smoothed_excess_is_an_integral_over_the_noise():
    """By the trapezoid rule, from losses that are hardly met to those that are certain."""
    z = np.linspace(-40, 40, 40_001)
    weight = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    log_a = np.array([-60.0, -20.0, -3.0, 0.0, 1.0, 5.0, 60.0])
    for smoothing, epsilon in ((0.1, 0.0), (1.0, 2.0), (7.0, 40.0)):
        values, falls = arithmetic.smoothed_excess(log_a, np.full(len(log_a), -1.0), epsilon, smoothing)
        off, below = arithmetic.SMOOTHED, np.full(len(log_a), -1.0)
        quick, _ = arithmetic.smoothed_excess(log_a, below, epsilon, smoothing, quick=True)
        most, _ = arithmetic.smoothed_excess(log_a, below, epsilon - off, smoothing)
        least, _ = arithmetic.smoothed_excess(log_a, below, epsilon + off, smoothing)
        assert np.all((least * (1 - off) <= quick) & (quick <= most * (1 + off)))
        for one, value, fall in zip(log_a, values, falls, strict=True):
            inside = one + smoothing * z - smoothing**2 / 2 > epsilon - 1
            excess = np.exp(one + smoothing * z - smoothing**2 / 2) - math.exp(epsilon - 1)
            # The kink, and the jump of the slope, lie between two nodes.
            assert value == pytest.approx(weight @ np.maximum(excess, 0), rel=2e-3, abs=1e-250)
            assert fall == pytest.approx(math.exp(epsilon - 1) * (weight @ inside), rel=5e-2, abs=1e-250)


@pytest.mark.parametrize("order", [3, 1.5])
def test_smoothed_values_are_means_over_the_noise_common_to_all_rounds(order):
    """Two of three rounds, by all sets and an integral: the mean of the loss over that of the density of the draws."""
    noise, drawn = 0.8, []

    class Recorded(GaussianRound):
        def draw(self, rng, exponents, counts):
            ratios, log_of_products = super().draw(rng, exponents, counts)
            drawn.append(np.log(ratios))
            return ratios, log_of_products

    proposal = RemoveProposal(run_of(Recorded(noise), 2, 3), order)
    log_a, log_b = proposal.draw(np.random.default_rng(4), 40)
    values = proposal.excesses(log_a, log_b, 2.0)[0]
    u, power, pairs = np.linspace(-12, 12, 8001), order - 1, list(itertools.combinations(range(3), 2))
    weight = np.exp(-(u**2) / 2)

    def moment(first, second, exponent):
        """E[L_A L_B^exponent] for sets of rounds; x^c has the moment exp(c (c - 1) / (2 s^2))."""
        held = [(i in first) + exponent * (i in second) for i in range(3)]
        return math.exp(sum(c * (c - 1) for c in held) / noise**2 / 2)

    if order == 3:
        total = sum(
            math.exp(sum(c * (c - 1) for c in (sum(i in each for each in three) for i in range(3))) / noise**2 / 2)
            for three in itertools.product(pairs, repeat=3)
        )
        total /= 27
    else:
        total = sum(moment(one, other, power) for one in pairs for other in pairs) * 3 ** -(1 + power)
    centred = drawn[0] - drawn[0].mean(axis=1, keepdims=True) - 0.5 / noise**2
    for row, value in zip(centred, values, strict=True):
        logs = row[:, None] + u / noise / math.sqrt(3)
        each = [np.exp(logs[list(pair)].sum(axis=0)) / 3 for pair in pairs]
        x = sum(each)
        density = x * sum(one**power for one in each) if order < 2 else x**3
        loss = weight @ np.maximum(x - math.exp(2.0), 0)
        assert value == pytest.approx(loss / (weight @ density) * total, rel=1e-4)  # the kink


def test_rounds_that_are_all_taken_have_no_spread_left():
    """Nothing is hidden, so that one draw says what a Gaussian release of all rounds costs."""
    sampled = sampled_of(2.0, 9, 9)
    pilot = RemoveProposal.best_pilot(
        sampled.upper, lambda order, log: order, lambda each: sampling.pilot_at_delta(each, DELTA)
    )
    assert pilot.spread < 0.01
    exact = Gaussian(2.0 / 3).epsilon(DELTA)
    found = sampled.epsilon(DELTA)
    assert found.lower <= exact.upper
    assert found.upper >= exact.lower


def test_answers_do_not_depend_on_chance_or_threads():
    first, second = (sampled_of(1.0, 3, 10).epsilon(DELTA) for _ in range(2))
    assert first == second


# What is refused.


def test_too_much_work_is_refused_by_name():
    with pytest.raises(NotEvaluable):
        sampled_of(1.0, 5000, 100_000).epsilon(DELTA)
    with pytest.raises(NotEvaluable):
        sampled_of(0.02, 2, 10).epsilon(DELTA)
    with pytest.raises(ValueError, match="precision must be"):
        sampled_of(1.0, 2, 5).epsilon(DELTA, precision=0.0)


# Calibration.


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("build", "budget"),
    [
        (lambda s: Allocation(Gaussian(s), 10, 100), 8.0),
        (lambda s: Compose([Repeat(Allocation(Submodels(Gaussian(s), 3), 2, 4), 2), Gaussian(9.0)]), 3.0),
        (lambda s: CappedPoisson(Gaussian(s), 0.2, 3, 10), 2.0),
        (lambda s: Spaced(Gaussian(s), 4, 40, 2, ()), 4.0),  # whose law is far off
    ],
)
def test_calibration_lands_on_the_safe_side_and_close(build, budget):
    noise = calibrate(build, budget, DELTA)
    assert 0.99 * budget <= build(noise).epsilon(DELTA).upper <= budget


@pytest.mark.parametrize("fewest", [0, 3])
def test_rows_of_a_recursion_are_those_of_enumerated_sets_wherever_they_lie(fewest):
    """300 rows, more than are summed side by side: each is the same alone, and by all sets of three of seven."""
    ratios = np.exp(np.random.default_rng(3).standard_normal((300, 7)))
    tails = np.array([[0.0, 0.0, 0.0, 1.0]])
    parts = Beginnings(np.array([7]), 0.4, tails, fewest)
    together = np.exp(log_beginnings(parts, ratios))
    alone = [np.exp(log_beginnings(parts, row[None]))[0, 0] for row in ratios]
    assert together[:, 0].tolist() == alone
    sets = sum(np.prod(ratios[:, list(some)], axis=1) for some in itertools.combinations(range(7), 3))
    assert together[:, 0] == pytest.approx(sets * 0.4**3 * 0.6**4, rel=1e-13)  # 7 rounds of a few units each


def test_a_direction_that_cannot_decide_takes_few_draws(monkeypatch):
    taken = {}

    def counted(proposal, above, below, draws, failure):
        taken[type(proposal)] = draws
        return certify_deltas(proposal, above, below, draws, failure)

    monkeypatch.setattr(sampling, "certify_deltas", counted)
    assert (
        sampled_of_law(numerical_law(Gaussian(2.0)), 4, 10).epsilon(1e-5).width < 0.015
    )  # 2.68, the add direction 2.65
    assert taken[AddProposal] < taken[RemoveProposal] / 4


def test_one_of_several_runs_is_sampled_by_the_costliest():
    """A quarter of the integral over three rounds, and three quarters of a Gaussian release in closed form."""
    event = RandomSelection([Allocation(Gaussian(1.0), 2, 3), Gaussian(4.0)], (0.25, 0.75))
    value, weight = allocation_on_grid(1.0, 2, 3, 3)

    def exact(epsilon):
        hidden = weight @ np.maximum(value - math.exp(epsilon), 0)
        known = NormalDist().cdf(0.125 - 4 * epsilon) - math.exp(epsilon) * NormalDist().cdf(-0.125 - 4 * epsilon)
        return 0.25 * hidden + 0.75 * known

    found = event.epsilon(1e-3)
    assert found.lower >= 0.99 * found.upper  # 16 % by the law of the split
    # The trapezoid rule with kinks is off by some 2e-4 relative.
    assert exact(found.upper) <= 1e-3 * (1 + 1e-3)
    assert exact(found.lower) >= 1e-3 * (1 - 1e-3)


def test_a_mean_over_common_noise_has_the_mean_of_single_draws_and_less_spread():
    """For each beginning of 3 of 12 rounds; five standard errors of both means."""
    runs = [run_of(GaussianRound(0.9), 3, 12, released) for released in range(5, 12)]
    parts = [run.factors[0] for run in runs]
    proposal, alone = RemoveProposal(runs[-1], 3), RemoveProposal(runs[-1], 3)
    assert proposal.common_points == 4
    alone.common_points = 1
    found = []
    for each in (proposal, alone):
        block, rng = Block(each, parts), np.random.default_rng(11)
        log_a, log_b = block.draw(rng, 20_000)
        assert log_a.shape == (20_000 * each.common_points, len(parts))
        values, falls = block.excesses(log_a, log_b, 1.5)
        assert values.shape == falls.shape == (20_000, len(parts))
        assert values.max() <= math.exp(block.log_bound(1.5)) * (1 + 1e-9)
        found.append((values.mean(axis=0), values.var(axis=0) / len(values)))
    (mean, variance), (expected, wider) = found
    assert np.all(np.abs(mean - expected) < 5 * np.sqrt(variance + wider))
    assert np.all(variance < 0.6 * wider)
    assert variance[-1] < 0.3 * wider[-1]


def test_a_common_factor_of_all_ratios_is_one_of_each_sum_to_its_power():
    parts = [run_of(GaussianRound(0.9), 3, 12, released).factors[0] for released in range(5, 12)]
    rng, beginnings = np.random.default_rng(2), Beginnings.of_factors(parts)
    ratios, factors = np.exp(rng.normal(size=(40, 11))), np.exp(rng.normal(size=(40, 3)))
    found = log_shifted_beginnings(beginnings, ratios, factors).reshape(40, 3, -1)
    for i in range(3):
        assert found[:, i] == pytest.approx(log_beginnings(beginnings, ratios * factors[:, [i]]), rel=1e-12, abs=1e-12)
