"""What choosing among runs costs, against laws that are written out."""

import pytest

import fedamp
from fedamp.accounting import Mechanism
from fedamp.extensions.tune.sweep import cost_of_choosing
from tests.accounting.oracles import gaussian_epsilon
from tests.federations import small


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    """Two runs of two rounds in which everybody takes part."""
    folder = tmp_path_factory.mktemp("secret")
    asked = small("known_seed=false", "rounds=2", "check_in={scheme: all}", "privacy.noise_multiplier=4")
    return {folder / name: fedamp.run(asked, out=folder / name).ledger for name in "ab"}


def test_all_runs_together_are_one_gaussian_release_of_all_their_rounds(secret):
    """Balle and Wang 2018, Theorem 8: four releases at noise multiplier 4 are one at 2."""
    answer = cost_of_choosing(secret)
    exact = gaussian_epsilon(answer["delta"], 2.0)
    assert exact <= answer["all_runs_epsilon"] <= 1.001 * exact  # the width of a bracket is promised to a thousandth
    assert answer["charged"] == 0
    assert f"epsilon = {answer['all_runs_epsilon']:.4g}" in " ".join(answer["in_words"])


def test_the_cost_of_all_runs_is_computed_once(secret, monkeypatch):
    first = cost_of_choosing(secret)
    monkeypatch.setattr(Mechanism, "epsilon", lambda *_, **__: pytest.fail("the accountant was asked"))
    assert cost_of_choosing(secret) == first


def test_nothing_is_promised_of_runs_whose_seed_is_known(secret, tmp_path):
    known = fedamp.run(small("rounds=1", "check_in.k=1"), out=tmp_path / "known").ledger
    for runs in ({tmp_path: known}, secret | {tmp_path: known}, {}):
        answer = cost_of_choosing(runs)
        assert answer["all_runs_epsilon"] is None
        assert "is not computed" in " ".join(answer["in_words"])


def test_a_run_that_did_not_finish_belongs_to_what_was_chosen_from(tmp_path):
    """The choice depends on what it released, and on that it did not finish."""
    asked = small("known_seed=false", "rounds=2", "check_in={scheme: all}", "privacy.noise_multiplier=4")
    swept = fedamp.sweep(asked, {"server.learning_rate": [0.5, 1e39]}, out=tmp_path / "sweep", jobs=1)
    answer = swept.to_json()
    assert len(answer["unfinished"]) == 1
    assert answer["choosing"]["runs"] == 2
    assert answer["choosing"]["all_runs_epsilon"] >= gaussian_epsilon(answer["choosing"]["delta"], 2.0)
