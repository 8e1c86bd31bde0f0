"""How little a command imports and computes before it answers: by counts, because no outcome may depend on seconds."""

import pytest

from benchmarks.speed.start import modules, packages
from fedamp.accounting.sampling import PRECISION
from fedamp.federation import kept_answers
from fedamp.federation.plan import make_plan
from fedamp.federation.scenario import Privacy
from tests.federations import small

LARGE = {"torch", "flwr", "ray", "numba", "matplotlib", "datasets", "transformers", "sklearn", "pandas", "pyarrow"}


@pytest.mark.parametrize(
    ("name", "needed", "most"),
    [("--help", set(), 60), ("completion", {"numpy"}, 110), ("explain privacy.clip", {"numpy"}, 110)],
)
def test_words_about_commands_and_keys_need_no_accountant(tmp_path, name, needed, most):
    found = modules(name, tmp_path)
    assert needed <= set(packages(found))
    assert not LARGE & set(packages(found))
    assert not {each for each in found if each.startswith(("fedamp.accounting", "fedamp.server.loop", "scipy.special"))}
    assert sum(each.startswith("fedamp") for each in found) <= most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "needed"),
    [("privacy digits", set()), ("check digits", {"torch", "flwr"}), ("run digits", {"torch", "flwr"})],
)
def test_what_was_asked_before_compiles_nothing(tmp_path, name, needed):
    """Neither numba nor a part of scipy that computes is imported: all answers are kept."""
    for _ in range(2):  # the advice of a check has a limit of time, and the second call may add to it
        modules(name, tmp_path)
    found = modules(name, tmp_path)
    assert LARGE & set(packages(found)) == needed
    assert not {each for each in found if each.startswith(("scipy.special", "scipy.linalg", "scipy.stats"))}


def test_a_scenario_has_the_default_precision_of_the_accountant():
    """The scenario repeats the number, because reading one must not import the accountant."""
    assert Privacy.model_fields["precision"].default == PRECISION


def test_the_guarantee_needs_no_curve_over_the_rounds(monkeypatch):
    """Where the budget pays for all rounds: a run begins to train, and a check answers, before there is a curve."""
    monkeypatch.setattr(kept_answers, "epsilon_over_rounds", None)
    charge = make_plan(small("privacy={clip: 0.5, epsilon: 4, precision: 0.05}"), 60).charge
    charge.compute_now()
    assert charge.affordable_rounds == 8
    assert charge.guaranteed_epsilon == charge.planned_epsilon
    monkeypatch.undo()
    assert charge.epsilon_by_round[-1] == charge.planned_epsilon.upper


@pytest.mark.parametrize(
    "changes",
    [
        ("check_in={scheme: poisson, rate: 0.2}",),
        ("check_in={scheme: all}",),
        ("check_in={scheme: spaced, k: 2, gap: 3}",),
        ("submodels={scheme: disjoint, count: 2}", "model={name: mlp, hidden: [4]}"),
        ("evaluation={on: clients, noise_multiplier: 20}",),
        ("privacy.group_size=2", "check_in={scheme: poisson, rate: 0.2}"),
    ],
)
def test_the_curve_ends_at_the_cost_of_all_rounds(changes):
    charge = make_plan(small(*changes), 60).charge
    if charge._steps is not None:
        assert charge.epsilon_by_round[-1] == charge.planned_epsilon.upper == charge.guaranteed_epsilon.upper
    limited = make_plan(small(*changes, f"privacy.epsilon={charge.epsilon_by_round[3]}"), 60).charge
    assert limited.affordable_rounds < 8
    assert limited.guaranteed_epsilon.upper <= charge.epsilon_by_round[3]
