"""Noise schemes of a scenario: what is refused, what the plan chooses, and what a run leaves."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedamp.accounting import Cyclic, Gaussian, Repeat, from_json
from fedamp.errors import InputError
from fedamp.extensions.correlated.section import BANDS
from fedamp.federation import model_noise
from fedamp.federation.cost import privacy_cost
from fedamp.federation.plan import make_plan
from fedamp.runs.verification import verify_ledger
from tests.federations import small
from tests.server.plays import ledger_of, play_in

PAGE = Path(__file__).parents[3] / "docs" / "research" / "correlated-noise.md"
CLASSES = "check_in={scheme: classes, k: 2}"
BANDED = "privacy.noise={scheme: banded}"
BUDGET = "privacy={clip: 0.5, epsilon: 8, noise: {scheme: banded}}"


def bands_of(plan) -> int:
    return len(plan.coefficients) + 1


REFUSED = {
    "too many rounds": (["check_in={scheme: classes, k: 5, classes: 2}"], "k times classes"),
    "coefficients": (
        [CLASSES, "privacy.noise={scheme: banded, bands: 2, coefficients: [0.5, 0.5]}"],
        "bands must be 3 with these coefficients",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rounds_and_coefficients_that_do_not_fit_are_refused_in_one_line(case):
    overrides, words = REFUSED[case]
    with pytest.raises(InputError, match=words) as caught:
        small(*overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_plan_takes_the_bands_with_the_least_noise():
    scenario = small("rounds=24", CLASSES, BUDGET)
    plan = make_plan(scenario, 60)
    each = {b: make_plan(scenario.with_bands(b), 60) for b in BANDS if b * 2 <= 24}
    noise = {b: model_noise.root_mean_square(other) for b, other in each.items()}
    assert bands_of(plan) == min(noise, key=noise.get) > 1
    assert plan.check_in.classes == bands_of(plan) == len(plan.coefficients) + 1
    assert plan.charge.mechanism == Cyclic(Gaussian(plan.noise_multiplier), 2, 24, bands_of(plan))
    # A user who is in all rounds of a class is hidden by nothing: no bands are the best at a small budget.
    often = small(
        "rounds=8", "check_in={scheme: classes, k: 8}", "privacy={clip: 0.5, epsilon: 1, noise: {scheme: banded}}"
    )
    assert bands_of(make_plan(often, 60)) == 1


@pytest.mark.few(0)
@pytest.mark.parametrize("clip", ["auto", "1"])
def test_bands_are_compared_by_the_noise_of_both_models_and_of_single_rounds(clip):
    """With dense matrices, for a model that is averaged: clients start from the last one."""
    rounds, errors = 12, {}
    scenario = small(
        f"rounds={rounds}",
        "check_in={scheme: classes, k: 2}",
        "server={learning_rate: 0.5, averaging: 0.9}",
        f"privacy={{clip: {clip}, epsilon: 8, precision: 0.05, noise: {{scheme: banded}}}}",
    )
    for bands in (b for b in BANDS if 2 * b <= rounds):
        plan = make_plan(scenario.with_bands(bands), 60)
        factor = np.eye(rounds)
        for k, c in enumerate(plan.coefficients, 1):
            factor += np.diag(np.full(rounds - k, c), -k)
        steps = np.tril(np.full((rounds, rounds), 0.5))
        averages = np.array([[0.1 * 0.9 ** (r - t) if t <= r else 0.0 for t in range(rounds)] for r in range(rounds)])
        both = [np.linalg.norm(path @ np.linalg.inv(factor)) for path in (steps, averages @ steps)]
        of_models = plan.parts[0].noise_multiplier * np.linalg.norm(factor[:bands, 0]) * np.sqrt(both[0] * both[1])
        errors[bands] = plan.parts[0].clip * of_models * (plan.noise_multiplier**0.5 if clip == "auto" else 1)
    assert bands_of(make_plan(scenario, 60)) == min(errors, key=errors.get) > 1


@pytest.mark.slow
def test_the_noise_in_the_model_is_told_beside_independent_noise():
    cost = privacy_cost(small("rounds=24", CLASSES, BUDGET))
    assert cost["prefix_noise"]["over_independent"] < 0.8
    assert cost["epsilon"]["upper"] <= 8
    plain = privacy_cost(small())["prefix_noise"]
    assert plain["over_independent"] == 1.0
    # One coordinate: the noise of a round over the denominator, added up with the momentum.
    steps = np.cumsum(0.5 * 0.5 ** np.arange(8))
    rounds = np.arange(8, 0, -1)
    assert plain["rms"] == pytest.approx(0.5 / (60 * 3 / 8) * np.sqrt(rounds @ steps**2 / 8))


def test_a_run_is_verified_from_its_ledger_which_holds_the_coefficients(tmp_path):
    noise = "privacy={clip: 0.5, epsilon: 20, noise: {scheme: banded}}"
    summary = play_in(tmp_path / "run", small("rounds=6", CLASSES, noise))
    assert summary.epsilon.upper <= 20
    ledger = ledger_of(tmp_path / "run")
    charged = from_json(ledger["mechanism"])
    assert isinstance(charged, Cyclic)
    assert len(ledger["noise_coefficients"]) == charged.classes - 1 > 0
    assert not [check for check in verify_ledger(tmp_path / "run") if check.verdict == "fail"]
    text = (tmp_path / "run" / "ledger.json").read_text()
    (tmp_path / "run" / "ledger.json").write_text(
        text.replace('"noise_coefficients": [', '"noise_coefficients": [0.5, ')
    )
    assert [check for check in verify_ledger(tmp_path / "run") if check.verdict == "fail"]


def test_a_run_with_buffers_is_verified_and_has_less_noise_than_independent_noise(tmp_path):
    noise = "privacy={clip: 0.5, epsilon: 20, noise: {scheme: buffered}}"
    scenario = small("rounds=12", "check_in={scheme: spaced, k: 2, gap: 5}", noise)
    assert privacy_cost(scenario)["prefix_noise"]["over_independent"] < 0.9
    play_in(tmp_path / "run", scenario)
    charged = from_json(ledger_of(tmp_path / "run")["mechanism"])
    assert len(charged.coefficients) == 11
    # Whoever sees the check-ins pays for rounds that meet in the noise: more than for two rounds with their own noise.
    known = "privacy={clip: 0.5, noise_multiplier: 1, amplification: false, noise: {scheme: buffered}}"
    charge = make_plan(small("rounds=12", "check_in={scheme: spaced, k: 2, gap: 1}", known), 60).charge
    apart = Repeat(Gaussian(1.0), 2).epsilon(1e-5)
    assert charge.planned_epsilon.lower > apart.upper
    assert charge.epsilon_by_round[-1] == pytest.approx(charge.planned_epsilon.upper)
    assert np.all(np.diff(charge.epsilon_by_round) >= 0)
    assert not [check for check in verify_ledger(tmp_path / "run") if check.verdict == "fail"]


@pytest.mark.slow  # each compares many numbers of bands
@pytest.mark.parametrize(
    ("rounds", "k", "momentum", "epsilon"), [(100, 10, 0.0, 8), (100, 10, 0.9, 4), (60, 3, 0.9, 2)]
)
def test_the_table_of_the_documentation(rounds, k, momentum, epsilon):
    overrides = f"rounds={rounds}", f"check_in={{scheme: classes, k: {k}}}", f"server.momentum={momentum}"
    scenario = small(*overrides, f"privacy={{clip: 0.5, epsilon: {epsilon}, noise: {{scheme: banded}}}}")
    over = privacy_cost(scenario)["prefix_noise"]["over_independent"]
    (row,) = [line for line in PAGE.read_text().split("\n") if line.startswith(f"| {rounds}, {k}, {momentum:g} ")]
    told, bands = re.findall(r"([\d.]+) \((\d+)\)", row)[[1, 2, 4, 8].index(epsilon)]
    # Two digits, and the noise multiplier is within half a per cent of the smallest.
    assert over == pytest.approx(float(told), abs=0.012)
    assert bands_of(make_plan(scenario, 60)) == int(bands)
