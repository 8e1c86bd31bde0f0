"""How often the audit finds a mistake, and how often it raises a false alarm: many audits, each with its own seed."""

import pytest

from fedamp.studies.audit import audit
from tests.federations import small
from tests.studies.audit import planted

SCENARIOS = {
    "all": ["check_in={scheme: all}", "rounds=1", "privacy.noise_multiplier=0.8"],
    "balanced": ["check_in={scheme: balanced, k: 1}", "rounds=2", "privacy.noise_multiplier=0.5"],
}
AUDITS = 25


def refuted(overrides: list[str], repetitions: int) -> int:
    """Of so many audits."""
    return sum(audit(small(*overrides, f"seed={seed}"), repetitions, rounds=4).refuted for seed in range(AUDITS))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_there_are_hardly_any_false_alarms(name):
    assert refuted(SCENARIOS[name], 200) <= 2  # one in a hundred is allowed; three of 25 have a chance of 0.2 % then


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_noise_that_is_too_small_by_a_third_is_nearly_always_found(name, monkeypatch):
    planted.noise_too_small_by_a_third(monkeypatch)
    assert refuted(SCENARIOS[name], 500) >= 20
