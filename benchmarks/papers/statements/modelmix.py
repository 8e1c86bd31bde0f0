"""Xiao, Wan, Devadas 2022, statement by statement: small optimisations, quadrature, and exact compositions.

Algorithm 1 is written out here in a few lines; nothing of fedamp's training is used.
"""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import norm

from benchmarks.papers.bounds.mixtures import sampled_gaussian_rdp
from benchmarks.papers.bounds.modelmix import one_coordinate_rdp

DELTA = 1e-5


def mixed(generator, now, before, distance):
    """Steps 4 to 9 of Algorithm 1: the models moved apart about their midpoint, and a uniform point between them."""
    gap = np.maximum(np.abs(now - before), distance)
    return (now + before) / 2 + gap * (generator.random(now.shape) - 0.5)


# --- convex optimisation ----------------------------------------------------------------------------------------------


def convex_case(dimension, rate, gamma, distance, noise, rounds, start):
    """The excess risk of the averaged model on a mean of Huber losses (1-Lipschitz, 1-smooth), and Theorem 3.1's bound.

    Returns the mean of 200 runs, its standard error, and the bound.
    """
    generator, people, runs = np.random.default_rng(1), 40, 200
    points = generator.standard_normal((people, dimension))
    points[: people // 4] += 3

    def gradients(model):
        apart = model[:, None] - points
        return apart / np.maximum(np.linalg.norm(apart, axis=-1, keepdims=True), 1)

    def risk(model):
        apart = np.linalg.norm(model[:, None] - points, axis=-1)
        return np.where(apart < 1, apart**2 / 2, apart - 0.5).mean(axis=1)

    best = np.zeros((1, dimension))
    for _ in range(3000):
        best = best - gradients(best).mean(axis=1)
    now = before = np.tile(best + start / math.sqrt(dimension), (runs, 1))
    total, step = np.zeros_like(now), gamma / (people * rate * math.sqrt(rounds))
    for _ in range(rounds):
        total += now + before
        drawn = generator.random((runs, people, 1)) < rate
        update = (gradients(now) * drawn).sum(axis=1) + noise * generator.standard_normal(now.shape)
        now, before = mixed(generator, now, before, distance) - step * update, now
    excess = risk(total / (2 * rounds)) - risk(best)

    square, size = dimension * noise**2 / people**2, math.sqrt(dimension) * noise / people
    bound = (3 * start**2 + rounds * dimension * distance**2 / 12) / (2 * gamma * math.sqrt(rounds))
    bound += gamma * (1 + square) / (rate**2 * math.sqrt(rounds))
    bound += 12 * start**2 / (8 * rounds) + 2 * gamma * start * (1 + size) / (rate * rounds**1.5)
    bound += 11 * gamma**2 * (1 + square) / (8 * rounds * rate**2)
    return excess.mean(), excess.std() / math.sqrt(runs), bound


CONVEX = [
    (3, 1.0, 1.0, 0.0, 0.0, 100, 2.0),
    (3, 0.5, 2.0, 0.1, 5.0, 100, 2.0),
    (3, 1.0, 1.0, 2.0, 0.0, 100, 0.0),
    (3, 1.0, 20.0, 2.0, 0.0, 100, 0.0),
    (30, 1.0, 1.0, 1.0, 0.0, 25, 0.0),
    (1, 0.2, 1.0, 0.3, 30.0, 50, 1.0),
]


@pytest.mark.statement("modelmix", "Theorem 3.1")
@pytest.mark.parametrize("case", CONVEX)
def test_convex_risk_is_below_theorem_3_1(case):
    """Distances up to twice the loss's curved part, sampling, noise, a start at the optimum and away from it."""
    mean, error, bound = convex_case(*case)
    assert mean + 4 * error <= bound
    assert mean - 4 * error > 0


@pytest.mark.statement("modelmix", "Theorem 3.1")
def test_theorem_3_1_is_within_a_factor_of_eight_and_falls_with_the_root_of_rounds():
    short, long = (convex_case(3, 1.0, 1.0, 2.0 * (100 / rounds) ** 0.5, 0.0, rounds, 0.0) for rounds in (100, 400))
    assert short[0] > short[2] / 8
    assert long[2] < 0.52 * short[2]  # exactly a half but for the terms of order 1 / T, which fall faster
    assert long[0] + 4 * long[1] < 0.75 * short[0]


@pytest.mark.statement("modelmix", "Theorem 3.1")
def test_the_proof_of_theorem_3_1_leaves_out_the_enforced_distance():
    """Equation (21) at the optimum, with no noise and no gradient: it bounds the next step by 11/2 eta^2 n^2 L^2.

    The enforced distance alone moves the model by tau^2 / 12 in every coordinate, however small eta is.
    """
    generator, dimension, distance, step = np.random.default_rng(0), 5, 0.4, 1e-4
    models = np.zeros((20_000, dimension))
    moved = mixed(generator, models, models, distance)
    square = (moved**2).sum(axis=1).mean()
    assert square == pytest.approx(dimension * distance**2 / 12, rel=0.02)  # 100,000 numbers: five standard errors
    assert square > 1000 * 11 / 2 * step**2


# --- clipping, and optimisation that is not convex --------------------------------------------------------------------


@pytest.mark.statement("modelmix", "Example 3.1")
def test_the_example_of_a_clipped_gradient_in_the_wrong_direction():
    samples = np.array([-20.0, -10.0, 90.0])
    assert samples.mean() == 20
    for model in (20.0, 0.0):
        gradients = model - samples
        assert gradients.mean() == model - 20
        assert gradients.std() == pytest.approx(49.7, abs=0.05)
        assert np.clip(gradients, -1, 1).mean() == pytest.approx(1 / 3)


def skewed(kappa, number=20_000):
    """Noise of mean 0 whose size has exactly the tail exp(-t / kappa): large values positive, small ones negative."""
    chance = (np.arange(number) + 0.5) / number
    sizes = -kappa * np.log(chance)
    from_top = np.cumsum(sizes)
    noise = np.where(from_top <= from_top[-1] / 2, sizes, -sizes)
    return noise - noise.mean()


@pytest.mark.statement("modelmix", "Lemma B.1")
@pytest.mark.parametrize("kappa", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("p", [2.5, 4.0, 10.0])
@pytest.mark.parametrize("share", [0.5, 1.0, 2.5, 5.0])
def test_a_clipped_gradient_of_skewed_noise_keeps_its_direction(kappa, p, share):
    noise, c0 = skewed(kappa), share * kappa
    c, tail = p * c0, math.exp(-share)
    a1, a2 = (1 - tail) / 2, ((c0 + kappa) * tail / (1 - tail)) ** 2
    a3 = c * ((1 - tail) * (1 - 1 / (p - 1) - 1 / (p - 2)) - tail)
    for size in np.concatenate([[0.0], np.geomspace(0.01, 60, 40)]) * kappa:
        for gradient in (size, -size):
            product = gradient * np.clip(gradient + noise, -c, c).mean()
            assert product >= min(a1 * size**2 - a2, a3 * size) - 1e-3 * kappa**2 * (1 + size / kappa)  # the grid's


@pytest.mark.statement("modelmix", "Lemma B.1")
def test_lemma_b1_needs_its_second_constant():
    """Without a2 it fails: where the gradient is small, the clipped noise has a mean and turns it around."""
    noise = skewed(1.0)
    gradient, c = 0.05, 2.0
    assert gradient * np.clip(gradient + noise, -c, c).mean() < 0


def rough_descent(rate, scale, clip, mixing, spread=0.0, gap=0.0):
    """Algorithm 1 on F(w) = cos w, with the step and the rounds of the proofs of Theorems B.1 and 3.2.

    ``scale`` is n epsilon / sqrt(d log(1 / delta)), so that rounds = scale^2; noise has the variance of v = 2. The
    people's gradients differ from the mean by noise with the tail of Assumption 2.1 at kappa = ``spread``.
    Returns the mean that the theorems bound, and the bound.
    """
    generator, people, rounds = np.random.default_rng(5), 10_000, round(scale**2)
    smoothness = 101 / 12 if mixing else 1.0
    step = math.sqrt(2 / smoothness) * rate / (scale * clip)  # the supremum less the infimum of F is 2
    noise = math.sqrt(2.0) * clip * generator.standard_normal(rounds)  # of the mean update
    share = generator.binomial(people, rate, rounds) / (people * rate) if rate < 1 else np.ones(rounds)
    slopes = np.linspace(-1, 1, 2001)
    kept = np.clip(slopes[:, None] + skewed(spread, 1000), -clip, clip).mean(axis=1) if spread else slopes
    draws, total, distance = generator.random(rounds) - 0.5, 0.0, gap * step
    now = before = math.pi / 2
    for k in range(rounds):
        slope = -math.sin(now)
        total += min(9 / 20 * slope**2, clip / 20 * abs(slope))
        update = share[k] * kept[round((slope + 1) * 1000)] + noise[k]
        start = (now + before) / 2 + max(abs(now - before), distance) * draws[k] if mixing else now
        now, before = start - step * update, now
    bound = (2 / 2 + 5 / 2) * clip * math.sqrt(2 * smoothness) / scale
    if mixing:  # d = 1, and the two first models are equal
        bound += (
            clip
            * math.sqrt(101 / 12)
            * math.log(1 / DELTA) ** 0.5
            / (rate * scale * math.sqrt(2))
            * (rounds * distance**2 / 12)
        )
    return total / rounds, bound


@pytest.mark.statement("modelmix", "Theorem B.1", "Theorem 3.2")
@pytest.mark.parametrize("mixing", [False, True])
def test_clipped_descent_of_a_function_that_is_not_convex(mixing):
    """Everybody in every round, clipping active: within the bounds, where the start is far outside."""
    clip, kappa, scale = 1.0, 0.1, 300.0
    assert clip >= 4 * kappa * math.log(10)
    # The condition from which the proof takes the constant psi.
    assert clip / (2 * kappa) - math.log((clip / 4 + kappa) ** 2 / clip) >= 0.4 + math.log(scale / math.sqrt(2))
    assert np.abs(1 + skewed(kappa, 1000)).max() > clip
    measured, bound = rough_descent(1.0, scale, clip, mixing, kappa, gap=1.0)
    assert measured <= bound < clip / 20  # the mean without any progress
    assert measured > bound / 50


# --- the privacy of a mixed step --------------------------------------------------------------------------------------


def log_density(z, noise, width):
    """Of a centred normal plus a uniform; taken on the left, where the tails keep their digits."""
    left = -np.abs(z)
    high, low = (log_ndtr((left + edge) / noise) for edge in (width / 2, -width / 2))
    return high + np.log(-np.expm1(low - high)) - math.log(width)


def losses(noise, width, shift, highest=1):
    """A grid of outputs: their chances and pointwise losses, the other law ``shift`` away.

    It holds what moments up to an order ``highest`` need.
    """
    step, reach = noise / 40, width / 2 + 12 * noise + shift
    z = np.arange(-reach, reach + highest * shift, step)
    first = log_density(z - shift, noise, width)
    return np.exp(first) * step, first - log_density(z, noise, width)


def minimal_log_rho(noise, width, c):
    return c / noise + math.sqrt(2 * math.log(width * max(c, 1)))


@pytest.mark.statement("modelmix", "Lemma D.1")
@pytest.mark.parametrize(("noise", "c"), [(1.0, 1.0), (2.0, 1.0), (0.5, 1.0), (3.0, 3.0)])
def test_mean_and_variance_of_the_loss_fall_with_the_width(noise, c):
    """Within the printed orders with constant 1, and both fall exactly as one over the width."""
    means, variances = [], []
    for width in (500.0, 2000.0, 8000.0):
        assert width > max(2 * noise * math.log(width) + 2 * c, math.exp(3 * c / noise), 2)
        chances, loss = losses(noise, width, c)
        mean = float(np.sum(chances * loss))
        variance = float(np.sum(chances * loss**2)) - mean**2
        rho = minimal_log_rho(noise, width, c)
        assert 0 < mean <= (c * rho**2 + noise * rho) / width
        assert 0 < variance <= (c**4 * rho / noise**3 + c**2 * rho**3 / noise + noise * rho) / width
        means.append(mean * width)
        variances.append(variance * width)
    np.testing.assert_allclose(means, means[-1], rtol=1e-3)
    np.testing.assert_allclose(variances, variances[-1], rtol=2e-2)  # the squared mean falls faster


def quantile_of_rounds(noise, width, shift, rounds, chance):
    """The loss that the sum of ``rounds`` losses exceeds with this chance: a convolution by Fourier transform."""
    step, size = 2e-4, 2**18
    chances, loss = losses(noise, width, shift)
    pmf = np.bincount(np.rint(loss / step).astype(int) % size, weights=chances, minlength=size)
    total = np.fft.irfft(np.fft.rfft(pmf / pmf.sum()) ** rounds, size)
    values = (np.arange(size) + size // 2) % size - size // 2
    order = np.argsort(values)
    tail = np.cumsum(total[order][::-1])[::-1]
    return float(values[order][np.searchsorted(-tail, -chance)] * step)


@pytest.mark.statement("modelmix", "Theorem 4.2")
def test_the_loss_of_many_rounds_falls_with_the_root_of_the_width():
    """Equation (14) with a constant number of rounds, the root dominating: four times the width, half the loss."""
    narrow, wide = (quantile_of_rounds(1.0, width, 0.1, 20_000, 1e-3) for width in (500.0, 2000.0))
    assert wide / narrow == pytest.approx(0.5, abs=0.05)
    plain = math.sqrt(20_000) * 0.1 * norm.isf(1e-3)
    assert narrow < plain / 10


@pytest.mark.statement("modelmix", "Theorem 4.2")
@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_a_contribution_spread_over_many_coordinates_keeps_the_order(noise):
    """The proof looks at one coordinate, which is not the worst for delta. Spread over very many, the loss is normal.

    Its variance is the Fisher information, of order one over width and noise, as in Equation (14).
    """

    def information(width):
        step = noise / 40
        z = np.arange(-width / 2 - 10 * noise, width / 2 + 10 * noise, step)
        slope = (norm.pdf((z + width / 2) / noise) - norm.pdf((z - width / 2) / noise)) / (noise * width)
        return float(np.sum(slope**2 / np.exp(log_density(z, noise, width))) * step)

    products = [noise * width * information(width) for width in (100.0, 400.0, 1600.0)]
    np.testing.assert_allclose(products, products[-1], rtol=1e-6)
    assert 0.5 < products[-1] < 3


@pytest.mark.statement("modelmix", "Theorem 4.2")
@pytest.mark.parametrize(("noise", "width"), [(1.0, 20.0), (0.3, 50.0)])
def test_the_delta_of_equation_14_is_that_of_showing_nothing(noise, width):
    """Its delta, T (c + sigma) / width, is above T times the total variation of a round, c / width at most.

    So for one coordinate, as in its proof, composition gives epsilon 0 at a smaller delta.
    """
    chances, loss = losses(noise, width, 1.0)
    variation = float(np.sum(chances * np.maximum(-np.expm1(-loss), 0)))
    assert variation <= 1 / width * (1 + 1e-9)
    assert variation > 0.99 / width
    assert variation < (1 + noise) / width


def laplace_loss(rate, width, c):
    """Points, weights and losses: a uniform on [0, width] plus Laplace noise, and the same c to the right."""

    def density(z):
        inside = (2 - np.exp(-rate * np.abs(z)) - np.exp(-rate * np.abs(width - z))) / (2 * width)
        outside = np.exp(-rate * np.where(z < 0, -z, z - width)) * -np.expm1(-rate * width) / (2 * width)
        return np.where((z > 0) & (z < width), inside, outside)

    z = np.linspace(-40 / rate, width + c + 40 / rate, 100_001)
    first = density(z)
    return z, first * (z[1] - z[0]), np.log(first / density(z - c))


@pytest.mark.statement("modelmix", "Lemma D.2", "Theorem 4.2")
@pytest.mark.parametrize(("rate", "c"), [(1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.2)])
def test_mean_and_variance_of_the_laplace_loss(rate, c):
    """The printed constants, at widths that the lemma admits; and both fall exactly as one over the width."""
    products = []
    for width in (30.0, 100.0, 300.0):
        assert width > max(2 * math.log(width) / rate + c, 1)
        z, chances, loss = laplace_loss(rate, width, c)
        assert chances.sum() == pytest.approx(1, abs=1e-6)
        within = quad(lambda a: rate / 2 * math.exp(-rate * abs(3 - a)), 0, 30, points=[3])[0]  # beyond: below 1e-5
        assert np.interp(3, z, chances) / (z[1] - z[0]) == pytest.approx(within / width, rel=1e-5)
        e0, outside = rate * c, -math.expm1(-rate * width) / (width * rate)
        edges, inside = outside + (2 * math.log(width) / rate + c) / width, math.expm1(rate * c) / (2 * (width - 1))
        mean, square = float(np.sum(chances * loss)), float(np.sum(chances * loss**2))
        assert np.abs(loss).max() <= e0 * (1 + 1e-9)  # mixing leaves the worst loss
        assert 0 < mean <= e0 * math.expm1(e0) * edges + inside * math.expm1(e0 / (2 * (width - 1))) * (1 - outside)
        assert square - mean**2 <= e0**2 * edges + inside**2 * (1 - outside)
        products.append((mean * width, square * width))
    np.testing.assert_allclose(products, [products[-1]] * 3, rtol=1e-3)


@pytest.mark.statement("modelmix", "Remark C.1")
@pytest.mark.parametrize("rate", [0.3, 3.0])
@pytest.mark.parametrize("width", [0.3, 5.0])
@pytest.mark.parametrize("order", [2, 8])
def test_with_laplace_noise_one_coordinate_is_the_worst(rate, width, order):
    """h is convex on a grid of shifts, to the quadrature's digits: all of c in one coordinate is the worst."""
    shifts = np.linspace(0, 1, 21)
    values = []
    for shift in shifts:
        _, chances, loss = laplace_loss(rate, width, shift)
        values.append(math.log(float(np.sum(chances * np.exp((order - 1) * loss)))))
    values = np.array(values)
    assert np.all(np.diff(values, 2) >= -1e-6 * values[-1])
    generator = np.random.default_rng(0)
    for parts in generator.dirichlet(np.ones(4), size=20):
        assert np.interp(parts, shifts, values).sum() < values[-1]


@pytest.mark.statement("modelmix", "Section 4.5")
def test_bounded_randomness_alone_hides_nothing_but_helps_noise():
    """A uniform number and a random erasure show, mostly, outcomes that only one of two data sets can have.

    A random direction of fixed length in the plane, added to normal noise, lowers every divergence of it.
    """
    grid = np.arange(-1, 7, 0.01) + 0.005
    zero, one = ((grid > edge) & (grid < edge + 5) for edge in (0, 1))
    assert np.sum(zero & ~one) * 0.01 / 5 == pytest.approx(0.2)  # delta of section 4.4's example, at any epsilon

    # Images of 3 x 3 bits that differ in two corners; a random rectangle of at most 2 x 2 gets random bits.
    def erased(corners):
        outcomes = {}
        boxes = [(i, j, h, w) for h in (1, 2) for w in (1, 2) for i in range(4 - h) for j in range(4 - w)]
        for i, j, h, w in boxes:
            covered = [i <= k < i + h and j <= k < j + w for k in (0, 2)]
            for bits in itertools.product((0, 1), repeat=2):
                seen = tuple(bit if hit else old for bit, hit, old in zip(bits, covered, corners, strict=True))
                outcomes[seen] = outcomes.get(seen, 0.0) + 1 / (4 * len(boxes))
        return outcomes

    dark, light = erased((0, 0)), erased((1, 1))
    assert sum(dark.values()) == pytest.approx(1)
    assert sum(chance for seen, chance in dark.items() if seen not in light) == pytest.approx(0.84)

    axis = np.arange(-9, 10, 0.2)
    x, y = np.meshgrid(axis, axis)
    directions = 2 * np.exp(2j * np.pi * np.arange(60) / 60)

    def density(mean):
        return sum(np.exp(-((x - mean - d.real) ** 2 + (y - d.imag) ** 2) / 2) for d in directions) / 120 / np.pi

    for order in (2, 4):
        total = np.sum(density(0.5) ** order * density(0.0) ** (1 - order)) * 0.04
        divergence = math.log(total) / (order - 1)
        assert 0 < divergence < 0.8 * order * 0.5**2 / 2


def one_coordinate_delta(noise_multiplier, width, epsilon, shift=1.0):
    """Exact hockey-stick divergence of one coordinate; the density is log-concave, so the ratio is monotone."""

    def tail(z):
        # Of the uniform-normal law beyond z: the integral of the normal's, by parts.
        def integrated(x):
            return noise_multiplier * norm.pdf(x / noise_multiplier) - x * norm.sf(x / noise_multiplier)

        return (integrated(z - width / 2) - integrated(z + width / 2)) / width

    def log_ratio(z):
        return log_density(z - shift, noise_multiplier, width) - log_density(z, noise_multiplier, width) - epsilon

    high = width / 2 + shift
    while log_ratio(high) < 0:
        high += noise_multiplier
    root = brentq(log_ratio, -width / 2, high) if log_ratio(-width / 2) < 0 else -width / 2
    return tail(root - shift) - math.exp(epsilon) * tail(root)


@pytest.mark.parametrize("noise_multiplier", [0.3, 2])
def test_a_wider_gap_is_at_least_as_private(noise_multiplier):
    # The hockey-stick too, which the paper takes for granted when it enforces |w_{k-1} - w_{k-2}| >= tau only.
    widths = [0.1, 0.5, 1, 2, 4, 8, 14, 20]
    for epsilon in (0, 0.1, 0.5, 1, 3):
        deltas = [one_coordinate_delta(noise_multiplier, width, epsilon) for width in widths]
        assert np.all(np.diff(deltas) <= 1e-13), (epsilon, deltas)
    curves = [one_coordinate_rdp(noise_multiplier, width, [2, 8, 20]) for width in widths]
    assert np.all(np.diff(curves, axis=0) <= 1e-12)


def test_one_coordinate_is_not_worst_for_the_hockey_stick():
    noise_multiplier, width = 0.5, 15.0
    one = one_coordinate_delta(noise_multiplier, width, 0)
    assert one == pytest.approx(0.067, abs=5e-4)
    # Spread over many coordinates the loss is normal, with the Fisher information of the law as its variance.
    edge = width / 2

    def derivative(z):
        return (norm.pdf((z + edge) / noise_multiplier) - norm.pdf((z - edge) / noise_multiplier)) / (
            noise_multiplier * width
        )

    information = (
        2
        * quad(
            lambda z: derivative(z) ** 2 / np.exp(log_density(z, noise_multiplier, width)),
            0,
            edge + 6,
            points=[edge],
            limit=200,
        )[0]
    )
    many = 2 * norm.cdf(math.sqrt(information) / 2) - 1
    assert many == pytest.approx(0.194, abs=5e-4)
    # And by simulation of 400 coordinates, within four standard errors (at most 0.5 / sqrt(4000) each).
    generator = np.random.default_rng(4)
    shift = 1 / 20
    noise = noise_multiplier * generator.standard_normal((4000, 400)) + width * (generator.random((4000, 400)) - 0.5)
    loss = log_density(noise, noise_multiplier, width) - log_density(noise + shift, noise_multiplier, width)
    total_variation = np.maximum(1 - np.exp(-loss.sum(axis=1)), 0).mean()
    assert total_variation == pytest.approx(many, abs=4 * 0.5 / math.sqrt(4000))
    assert total_variation > 2 * one


@pytest.mark.parametrize("order", [1.25, 1.5, 2, 5])
def test_one_coordinate_at_any_order_by_adaptive_quadrature(order):
    noise, width, rate = 0.6, 4.0, 0.15

    def integrand(z):
        out, moved = (math.exp(log_density(z - shift, noise, width)) for shift in (0, 1))
        return out * (1 - rate + rate * moved / out) ** order

    edges = [-width / 2, 1 - width / 2, width / 2, 1 + width / 2]
    moment = quad(integrand, -8, 12, points=edges, limit=400, epsabs=0, epsrel=1e-11)[0]
    assert one_coordinate_rdp(noise, width, order, rate)[0] == pytest.approx(math.log(moment) / (order - 1), rel=1e-7)


def test_without_mixing_it_is_the_sampled_gaussian():
    orders = [1.25, 1.75, 2, 8]
    np.testing.assert_allclose(
        one_coordinate_rdp(0.7, 0, orders, 0.02), sampled_gaussian_rdp(0.7, 0.02, orders), rtol=1e-7
    )
