"""Rehearsals: a small cohort gets the noise of a large one, and every page says that this protects nobody."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedamp
from fedamp.accounting import Gaussian, Poisson, Repeat
from fedamp.errors import InputError, ScenarioError
from fedamp.extensions.pages.board import check_guarantee
from fedamp.federation import model_noise
from fedamp.federation.plan import make_plan
from tests.federations import small

BALANCED = "privacy={clip: 0.5, noise_multiplier: 2.0, noise_cohort: 900}"
POISSON = (
    "privacy={clip: 0.5, epsilon: 2, delta: 1.0e-6, noise_cohort: {size: 90, check_in: {scheme: poisson, rate: 0.001}}}"
)
STILL = ("client={learning_rate: 1.0e-9}", "server={learning_rate: 1, momentum: 0}", "rounds=3", "check_in.k=1")


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    return fedamp.run(small(BALANCED, *STILL), out=tmp_path_factory.mktemp("rehearsal") / "run")


def test_the_mean_update_gets_the_noise_of_the_large_cohort(rehearsed, tmp_path):
    """Clients that hardly learn leave the noise of three rounds: 2 x 0.5 / cohort each, on 650 coordinates.

    A known seed draws the same noise again, so half the cohort adds the whole noise of 900 once more.
    """
    doubled = fedamp.run(small(BALANCED.replace("900", "450"), *STILL), out=tmp_path / "run")
    models = [load_file(run.folder / "model.safetensors") for run in (rehearsed, doubled)]
    values = np.concatenate([(models[1][name] - array).ravel() for name, array in models[0].items()])
    deviation = np.sqrt(3) * 2 * 0.5 / 900
    # The deviation of 650 numbers is known to 1 / sqrt(1300) = 2.8 %; 5 of these. The seed is fixed.
    assert values.std() == pytest.approx(deviation, rel=0.14)


def test_epsilon_is_that_of_the_federation_that_is_rehearsed():
    plan = make_plan(small(BALANCED), 60)
    assert plan.full_size.units == 2400  # 900 / (3 / 8)
    assert (
        plan.charge.mechanism == make_plan(small("privacy={clip: 0.5, noise_multiplier: 2.0}"), 2400).charge.mechanism
    )
    plan = make_plan(small(POISSON, "check_in={scheme: poisson, rate: 0.5}"), 60)
    assert plan.full_size.units == 90_000
    spent = Repeat(Poisson(Gaussian(plan.noise_multiplier), 0.001), 8).epsilon(1e-6)
    # The calibration is exact to 0.1 %, and the noise's finite precision takes 1e-9 of delta.
    assert spent.upper == pytest.approx(2, rel=0.002)


def test_auto_clips_as_the_large_federation_would():
    asked = "privacy={clip: auto, noise_multiplier: 2.0, noise_cohort: 900}"
    large = make_plan(small("privacy={clip: auto, noise_multiplier: 2.0}"), 2400)
    plan = make_plan(small(asked), 60)
    assert plan.parts[0].clip == large.parts[0].clip
    assert model_noise.per_clip(plan) == model_noise.per_clip(large)
    assert plan.noise_deviations[0] == pytest.approx(large.noise_deviations[0] * 60 / 2400, rel=1e-12)


def test_every_page_says_that_it_is_a_rehearsal(rehearsed, tmp_path):
    said = "a rehearsal: not private with 60 clients; epsilon is for 2,700 clients"
    assert rehearsed.ledger.rehearsal == said
    assert said in str(rehearsed)
    assert said in rehearsed.report(tmp_path / "report.html").read_text()
    assert rehearsed.summary.rehearsal == said
    assert ("noise", "caution", said) in [(each.name, each.verdict, each.found) for each in rehearsed.verify()]
    with pytest.raises(InputError, match="its seed is known"):
        check_guarantee(rehearsed)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("privacy={clip: 1, noise_multiplier: 1, noise_cohort: 5}",), "at least the 22.5 of the rehearsal"),
        ((BALANCED, "check_in={scheme: batches, size: 9}"), "cohorts of 9 by check_in; expected: 900"),
        (("privacy={clip: 1, noise_multiplier: 1, noise_cohort: {size: 9, rate: 1}}",), "rate"),
    ],
)
def test_what_no_federation_can_have_is_refused(overrides, said):
    with pytest.raises(ScenarioError, match=said):
        assert make_plan(small(*overrides), 60).noise_deviations
