"""Dong, Chen, Özgür 2025: points of its curves by simulation, its trainings, and its statements by enumeration."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import fedamp as tool
from benchmarks.papers import partitioning, partitioning_training
from benchmarks.papers.__main__ import PAGES, tables_of
from benchmarks.papers.bounds.partitioning import cheap_rdp, exact_rdp
from fedamp.accounting import Allocation, Compose, Dropout, Gaussian, Poisson, Repeat, Submodels, epsilon_from_rdp
from tests.papers.commands import run_commands


def log_ratio(z, noise_multiplier, chosen):
    """Log likelihood ratio of ``chosen`` hidden ones of z.shape[1] rounds: an elementary symmetric polynomial."""
    blocks = z.shape[1]
    log_x = z / noise_multiplier - 1 / (2 * noise_multiplier**2)
    log_sums = np.full((chosen + 1, len(z)), -np.inf)
    log_sums[0] = 0
    for column in log_x.T:
        log_sums[1:] = np.logaddexp(log_sums[1:], log_sums[:-1] + column)
    return log_sums[chosen] - math.log(math.comb(blocks, chosen))


def with_person(generator, samples, blocks, chosen, noise_multiplier):
    """Normalised observations of somebody who took part in the first ``chosen`` rounds; by symmetry any will do."""
    z = generator.standard_normal((samples, blocks))
    z[:, :chosen] += 1 / noise_multiplier
    return z


def agree(samples, value):
    """Within five standard errors."""
    error = samples.std() / math.sqrt(len(samples))
    assert error < 0.2 * value, "the oracle says nothing"
    assert samples.mean() == pytest.approx(value, abs=5 * error)


def test_figure_1_law_by_simulation():
    noise, rounds, rate, epsilon = 1.2, 50, 0.1, 1.0
    generator = np.random.default_rng(1)
    samples = 20_000
    loss = np.zeros(samples)
    for _ in range(rounds):
        z = generator.standard_normal((samples, 3))
        took_part = generator.random(samples) < rate
        z[np.flatnonzero(took_part), generator.integers(0, 3, took_part.sum())] += 1 / noise
        mean = np.exp(z / noise - 1 / (2 * noise**2)).mean(axis=1)
        loss += np.log1p(rate * (mean - 1))
    agree(np.maximum(-np.expm1(epsilon - loss), 0), partitioning._training(noise, 3, rounds).delta(epsilon).upper)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_figure_2_by_simulation(order):
    generator = np.random.default_rng(2)
    exact = float(exact_rdp(partitioning.NOISE, 4, 10, order)[-1])
    # Under the person's own law the moment is one power lower, and its tail lighter.
    seen = with_person(generator, 100_000, 10, 4, partitioning.NOISE)
    agree(np.exp(log_ratio(seen, partitioning.NOISE, 4) * (order - 1)), math.exp((order - 1) * exact))
    # fedamp's is a bound of the larger direction; as the page says, not the tightest.
    ours = float(Allocation(Gaussian(partitioning.NOISE), 4, 10).rdp([order])[0])
    assert exact <= ours <= 1.1 * exact


@pytest.mark.statement("partitioning", "Theorem 3.8", "Remark 3.10")
@pytest.mark.parametrize(("rounds", "epochs"), [(50, 1), (10, 5)])
def test_figure_3_by_simulation(rounds, epochs):
    generator = np.random.default_rng(3)
    noise, chosen, samples, epsilon = partitioning.NOISE, 2 * rounds // 5, 20_000, 4.0
    loss = sum(log_ratio(with_person(generator, samples, rounds, chosen, noise), noise, chosen) for _ in range(epochs))
    gained = np.maximum(-np.expm1(epsilon - loss), 0)
    error = 5 * gained.std() / math.sqrt(samples)
    once = Allocation(Gaussian(noise), chosen, rounds)
    bounds = (Repeat(once, epochs) if epochs > 1 else once).delta(epsilon)
    assert bounds.lower - error <= gained.mean() <= bounds.upper + error
    assert gained.mean() > bounds.upper / 3  # k of t is charged as k groups, which is not exact


@pytest.mark.slow
def test_protocol_of_table_1(tmp_path):
    """On digits, which are always there and train in seconds."""
    digits = load_digits()
    records = (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)
    accuracy = partitioning_training.make_folder(tmp_path, records, records, partitioning_training.TUNING)
    assert 0.7 <= accuracy <= 0.8 + 0.1  # it never saw a fifth of the classes; they are a fifth of the 90 tests, about
    labels = {name: np.load(tmp_path / f"{name}.npz")["y"] for name in ("train", "test")}
    assert all(set(each) == set(range(10)) for each in labels.values())
    assert [len(each) for each in labels.values()] == [898, 90]
    tuning = partitioning_training.FineTuning(partitioning_training.METHODS[1], rounds=2)
    result = partitioning_training.fine_tune(tuning, tmp_path, seed=0)
    assert 30 < result["accuracy"] < 100
    assert 0.4 < result["work"] < 0.8  # four blocks of twelve, stem and output, and a third of the other eight


@pytest.mark.parametrize("method", partitioning_training.METHODS[1::3])
def test_a_fine_tuning_costs_what_its_scenario_does(method, tmp_path):
    tuning = partitioning_training.FineTuning(method, rounds=10)
    for name in ("train", "test"):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((20, 4), np.float32), y=np.arange(20) % 10)
    asked = tool.privacy(tool.load(partitioning_training.settings_of(tuning, tmp_path, 0, 1.5)))
    charged = partitioning_training.training(method, 10, 1.5).epsilon(1e-5).upper
    assert asked["epsilon"]["upper"] == pytest.approx(charged, rel=1e-6)


def test_noise_of_table_1_is_the_papers_to_its_decimals():
    for row in tables_of("partitioning")["noise_of_table_1"]["rows"]:
        assert round(row["paper's formula"], 2) == row["paper prints"]
        assert row["each part sampled alone"] < row["paper prints"] - 0.02


@pytest.mark.slow
def test_the_pages_commands_run(fedamp, monkeypatch):
    run_commands(PAGES["partitioning"], fedamp, monkeypatch)


@pytest.mark.statement("partitioning", "Theorem 3.4", "Corollary 3.7", "Algorithm 1", "Algorithm 2")
@pytest.mark.parametrize("order", [2, 3, 5])
def test_dropout_of_half_costs_no_more_than_two_submodels(order):
    """A subset of the nodes and what it leaves out are two submodels; the client gets one of them by a fair coin."""
    exact = math.log(two_block_moment(1, order)) / (order - 1)
    charged = Submodels(Gaussian(1.0), 2).rdp([order])[0]
    assert charged == pytest.approx(exact, rel=1e-8)
    assert Dropout(Gaussian(1.0), 0.5).rdp([order])[0] <= charged * (1 + 1e-8)


@pytest.mark.statement("partitioning", "Theorem 3.11")
@pytest.mark.parametrize(("rate", "order"), [(0.1, 2), (0.4, 5), (0.9, 3)])
def test_poisson_sampling_by_the_printed_sum(rate, order):
    noise = 1.5
    total = (1 - rate) ** (order - 1) * (order * rate - rate + 1)
    for ones in range(2, order + 1):
        weight = math.comb(order, ones) * (1 - rate) ** (order - ones) * rate**ones
        total += weight * math.exp((ones - 1) * ones / (2 * noise**2))
    assert Poisson(Gaussian(noise), rate).rdp([order])[0] == pytest.approx(math.log(total) / (order - 1), rel=1e-8)


@pytest.mark.statement("partitioning", "Proposition 2.3")
def test_the_printed_conversion_holds_and_is_not_the_sharpest():
    orders = np.linspace(1.1, 60, 2000)
    curve, delta = orders / (2 * 2.0**2), 1e-5
    printed = float(np.min(curve + math.log(1 / delta) / (orders - 1)))
    assert Gaussian(2.0).epsilon(delta).upper <= epsilon_from_rdp(orders, curve, delta) < printed


def enumerated_rdp(noise_multiplier, blocks, chosen, order):
    """The sum over all tuples of Eq. (2), as it stands."""
    vectors = list(itertools.combinations(range(blocks), chosen))
    total = 0.0
    for rows in itertools.product(vectors, repeat=order):
        column_sums = Counter(itertools.chain.from_iterable(rows)).values()
        total += math.exp(sum(n * (n - 1) for n in column_sums) / (2 * noise_multiplier**2))
    return math.log(total / len(vectors) ** order) / (order - 1)


def two_block_moment(noise_multiplier, power):
    """``E[((X_1 + X_2) / 2)^power]`` by the trapezoidal rule in the plane, to 1e-12."""
    z = np.arange(-25, 25, 0.05)
    single = np.exp(z / noise_multiplier - 1 / (2 * noise_multiplier**2))
    weight = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * 0.05
    mean = (single[:, None] + single) / 2
    return float(weight @ mean**power @ weight)


@pytest.mark.statement("partitioning", "Theorem 3.4", "Lemma 3.12")
@pytest.mark.parametrize(
    ("noise_multiplier", "blocks", "chosen", "order"),
    [(1, 3, 1, 4), (1, 4, 2, 2), (1, 4, 2, 3), (0.7, 5, 3, 3), (2, 4, 1, 4), (0.5, 3, 3, 3)],
)
def test_equation_2_is_the_enumerated_sum(noise_multiplier, blocks, chosen, order):
    enumerated = enumerated_rdp(noise_multiplier, blocks, chosen, order)
    # fedamp adds a bound on its rounding.
    assert exact_rdp(noise_multiplier, chosen, blocks, order)[-1] == pytest.approx(enumerated, rel=1e-9)
    if chosen == 1:
        assert Submodels(Gaussian(noise_multiplier), blocks).rdp([order])[0] == pytest.approx(enumerated, rel=1e-8)


@pytest.mark.statement("partitioning", "Corollary 3.14", "Theorem 3.8")
@settings(max_examples=40, deadline=None)
@given(st.floats(0.4, 5), st.integers(1, 12), st.integers(1, 3), st.integers(2, 6))
def test_exact_lies_below_both_the_cheap_bound_and_poisson(noise_multiplier, blocks, chosen, order):
    chosen = min(chosen, blocks)
    exact = exact_rdp(noise_multiplier, chosen, blocks, order)[-1]
    cheap = cheap_rdp(noise_multiplier, chosen, blocks, [order])[0]
    poisson = Repeat(Poisson(Gaussian(noise_multiplier), chosen / blocks), blocks).rdp([order])[0]
    assert 0 < exact <= cheap * (1 + 1e-9)
    assert exact <= poisson * (1 + 1e-9)  # remark after Theorem 3.11
    assert exact <= Allocation(Gaussian(noise_multiplier), chosen, blocks).rdp([order])[0] * (1 + 1e-9)
    if order == 2:
        assert exact == pytest.approx(cheap, rel=1e-8)


@pytest.mark.statement("partitioning", "Corollary 3.19", "Theorem 3.1")
@pytest.mark.parametrize(("order", "exact", "printed"), [(2, 0.56904, 0.55017), (5, 1.36912, 1.34154)])
def test_the_divergence_of_a_client_added_exceeds_corollary_3_19(order, exact, printed):
    """One of two blocks, noise multiplier 1."""
    reverse = math.log(two_block_moment(1, 1 - order)) / (order - 1)
    spread, shift = 1 / 2, order / 4
    claimed = shift + (order * spread - 2 * np.log1p(order * np.expm1(spread / 2))) / (2 * (order - 1))
    assert reverse == pytest.approx(exact, abs=1e-5)
    assert claimed == pytest.approx(printed, abs=1e-5)
    charged = Submodels(Gaussian(1.0), 2).rdp([order])[0]
    assert claimed < reverse < charged


def test_parts_sampled_alone_cost_less_wrongly():
    """Section 3.2.2 read literally; both parts share one sample."""
    orders, parts = np.array([2.0, 8.0, 32.0]), (Gaussian(2.0), Submodels(Gaussian(2.0), 3))
    together = Poisson(Compose(parts), 0.1).rdp(orders)
    assert np.all(together > sum(Poisson(part, 0.1).rdp(orders) for part in parts))
