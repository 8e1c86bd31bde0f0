"""What a scenario costs before it runs; what Poisson sampling would cost, beside check-in to k of T rounds."""

import json
import math
import re

import pytest
from scipy.optimize import brentq

from fedamp import api
from fedamp.accounting.arithmetic import delta_left
from fedamp.accounting.bounds import Method, Origin
from fedamp.accounting.sampling import PRECISION
from fedamp.errors import ScenarioError
from fedamp.federation.plan import make_plan
from fedamp.server.setup import prepare
from tests.accounting.oracles import gaussian_delta, gaussian_epsilon
from tests.documentation import ROOT
from tests.federations import small, write_small

SETTINGS = ("rounds=30", "privacy.noise_multiplier=3", "privacy.precision=0.05", "privacy.epsilon=null")
NOISE = (*(word for setting in SETTINGS for word in ("--set", setting)), "--json")


@pytest.mark.slow
@pytest.mark.parametrize("check_in", ["{scheme: balanced, k: 3}", "{scheme: stratified, k: 3}"])
def test_poisson_sampling_of_the_same_cohort_costs_more(fedamp, check_in):
    ours = json.loads(fedamp("privacy", "balanced", "--set", f"check_in={check_in}", *NOISE).out)
    poisson = json.loads(fedamp("privacy", "balanced", "--set", "check_in={scheme: poisson, rate: 0.1}", *NOISE).out)
    assert ours["poisson_epsilon"] == poisson["epsilon"]
    assert ours["expected_cohort"] == poisson["expected_cohort"]
    assert ours["epsilon"]["upper"] < poisson["epsilon"]["lower"]
    assert poisson["poisson_epsilon"] is None
    assert "by Poisson sampling" in fedamp("privacy", "balanced", "--set", f"check_in={check_in}", *NOISE[:-1]).out


def test_the_risk_is_told_in_words(fedamp):
    """Phi(Phi^-1(0.01) + 1) = 0.0924 for one round with everybody and noise 1; a record or a group is named as such."""
    once = ("--set", "rounds=1", "--set", "check_in={scheme: all}", "--set", "privacy.noise_multiplier=1")
    answer = json.loads(fedamp("privacy", "balanced", *once, "--set", "privacy.epsilon=null", "--json").out)
    risk = answer["risk"]
    assert risk["false_positive_rate"] == 0.01
    assert risk["true_positive_rate"]["lower"] <= 0.09236 <= risk["true_positive_rate"]["upper"] < 0.0926
    assert risk["in_words"] == (
        "Somebody who suspects that you took part, and accepts a false alarm in 1 of 100 cases in which you did not, "
        "is right in at most 9.3 of 100 cases in which you did."
    )
    groups = fedamp("privacy", "balanced", *once, "--set", "privacy.group_size=3", "--set", "privacy.epsilon=null")
    assert "a group of 3 clients took part" in " ".join(groups.out.replace("│", " ").split())


def test_without_noise_neither_is_private(fedamp):
    bare = ("--set", "privacy.noise_multiplier=0", "--set", "privacy.epsilon=null", "--json")
    answer = json.loads(fedamp("privacy", "balanced", *bare).out)
    assert answer["epsilon"]["upper"] is answer["poisson_epsilon"]["upper"] is None


def test_what_is_said_of_an_epsilon_is_said_of_that_number():
    """The curve over rounds keeps one upper end for rounds that a fresh question answers more sharply, or less."""
    plan = make_plan(small(f"privacy.precision={PRECISION}"), 60)
    said = []
    for rounds in (2, 7, 8):
        spent, first = plan.charge.spent_epsilon(rounds), plan.charge.mechanism.after(rounds)
        fresh = first.epsilon(delta_left(plan.scenario.privacy.delta))
        assert spent.upper == plan.charge.epsilon_by_round[rounds - 1]
        assert spent.lower <= spent.upper
        assert spent.origin == (fresh.origin if spent.upper == fresh.upper else Origin(Method.CURVE))
        said.append(spent.origin.method)
    assert Method.CURVE in said
    assert said[-1] is not Method.CURVE


def test_a_plan_with_a_secret_seed_keeps_the_costs_that_were_computed():
    computed = make_plan(small(), 60)
    computed.charge.compute_now()
    here, fresh = computed.with_seed(2**200 + 1), make_plan(small(), 60)
    more = make_plan(small(), 61)  # of one unit more
    others = prepare(small(), planned=more).plan
    assert here.charge.planned_epsilon is computed.charge.planned_epsilon
    assert others.charge.planned_epsilon is not more.charge.planned_epsilon
    assert (here.seed, here.known_seed) == (2**200 + 1, False)
    assert others.units == 60
    assert (here.noise_multiplier, here.charge.planned_epsilon, here.charge.spent_epsilon(8)) == (
        fresh.noise_multiplier,
        fresh.charge.planned_epsilon,
        fresh.charge.spent_epsilon(8),
    )
    assert here.charge.epsilon_by_round.tolist() == fresh.charge.epsilon_by_round.tolist()
    assert here.attendance.cohort_of(1).tolist() != computed.attendance.cohort_of(1).tolist()


# --- a budget that pays for no round ----------------------------------------------------------------------------------

POOR = ("privacy.noise_multiplier=0.6", "privacy.epsilon=0.5", "check_in={scheme: poisson, rate: 0.1}")


def least_noise_for_one_round(rate: float, epsilon: float, delta: float) -> float:
    """Of the sampled Gaussian (Balle, Wang 2018, Theorem 8; Balle, Barthe, Gaboardi 2018, Theorem 8: tight)."""
    inner = math.log1p(math.expm1(epsilon) / rate)
    return brentq(lambda noise: rate * gaussian_delta(inner, noise) - delta, 0.1, 100)


@pytest.mark.parametrize("command", [("check",), ("privacy",), ("run",)], ids=" ".join)
def test_a_budget_for_no_round_is_refused_with_the_smallest_noise(fedamp, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    refused = fedamp(*command, write_small(tmp_path, *POOR))
    assert refused.status == 2
    said = re.fullmatch(
        r"error: privacy\.epsilon: 0\.5 pays for no round with noise_multiplier 0\.6: one round costs 4\.\d+; "
        r"expected: noise_multiplier at least ([\d.]+) for one round, or auto for all 8\n",
        refused.err,
    )
    assert said, refused.err
    assert not refused.out
    assert not (tmp_path / "runs").exists()
    needed = least_noise_for_one_round(0.1, 0.5, small().privacy.delta)
    assert needed <= float(said[1]) <= needed * 1.003  # a calibration to 0.1 per cent, and a law of 300 points
    enough = make_plan(small(*POOR, f"privacy.noise_multiplier={said[1]}"), 60)
    enough.charge.check_budget()
    assert enough.charge.affordable_rounds >= 1


@pytest.mark.few(1, 2, 3, 4)
@pytest.mark.parametrize(
    "change",
    [
        "check_in={scheme: balanced, k: 2}",
        "mixing={width: 0.2}",
        "privacy.amplification=false",
        "privacy.group_size=2",
        "rounds=1",
    ],
)
def test_the_least_noise_does_whatever_is_charged(change):
    asked = (*POOR, "server.momentum=0", change)
    with pytest.raises(ScenarioError, match="pays for no round") as refused:
        make_plan(small(*asked), 60).charge.check_budget()
    noise = str(refused.value).split("at least ")[1].split()[0]
    enough = make_plan(small(*asked, f"privacy.noise_multiplier={noise}"), 60)
    enough.charge.check_budget()
    assert enough.charge.affordable_rounds >= 1
    less = make_plan(small(*asked, f"privacy.noise_multiplier={float(noise) * 0.98}"), 60)
    assert less.charge.affordable_rounds == 0
    with pytest.raises(ScenarioError, match="pays for no round"):
        less.charge.check_budget()


def test_python_refuses_it_too(tmp_path):
    for refused in (api.privacy, lambda asked: api.run(asked, tmp_path / "run"), lambda asked: next(api.play(asked))):
        with pytest.raises(ScenarioError, match="pays for no round"):
            refused(small(*POOR))
    assert not (tmp_path / "run").exists()
    make_plan(small("privacy.noise_multiplier=auto", "privacy.epsilon=0.01"), 60).charge.check_budget()


# --- what costs the same with any noise multiplier ----------------------------------------------------------------

MEANS = (
    "data.transform=[{name: standardise, mean: private, range: [0, 16], noise_multiplier: 15}]",
    "evaluation={on: clients, noise_multiplier: 15}",
)
ALL, AUTO = "check_in={scheme: all}", ("privacy.noise_multiplier=auto", "server.momentum=0")
EVERY_ROUND = "evaluation={on: clients, every: 1, noise_multiplier: 40}"
FIXED = {  # the key that decides, the noise of one use of it, and the number of uses by a person
    "evaluation.noise_multiplier": ((ALL, MEANS[1]), 15, 1),
    "evaluation.noise_multiplier ": ((ALL, EVERY_ROUND), 40, 8),
    "noise_multiplier of private means in data.transform": ((ALL, MEANS[0]), 15, 1),
    "privacy.clip.noise_multiplier": ((ALL, "privacy.clip={initial: 0.5, noise_multiplier: 5}"), 10, 8),
    "submodels.shared_noise_multiplier": (
        (
            "model.name=mlp",
            "model.hidden=[12]",
            ALL,
            "submodels={scheme: disjoint, count: 3, shared_noise_multiplier: 9}",
        ),
        9,
        8,
    ),
}


@pytest.mark.parametrize("key", FIXED)
def test_a_refusal_names_the_key_that_costs_more_than_the_budget(key):
    asked, noise, uses = FIXED[key]
    cost = gaussian_epsilon(delta_left(1e-5), noise / math.sqrt(uses))
    with pytest.raises(ScenarioError, match=r"privacy\.noise_multiplier: auto finds none") as refused:
        _ = make_plan(small(*AUTO, *asked, f"privacy.epsilon={cost * 0.9}"), 60).noise_multiplier
    told = str(refused.value).split("auto finds none: ")[1]
    assert told.startswith(f"{key.strip()} costs "), told
    assert float(told.split(" costs ")[1].split(";")[0]) == pytest.approx(cost, abs=0.0101)  # two decimals, rounded up
    assert "\n" not in told
    assert make_plan(small(*AUTO, *asked, f"privacy.epsilon={cost * 1.5}"), 60).noise_multiplier > 0


def test_a_refusal_names_all_keys_that_together_cost_more_than_the_budget():
    alone, both = (gaussian_epsilon(delta_left(1e-5), 15 / math.sqrt(uses)) for uses in (1, 2))
    assert alone < 0.25 < both
    with pytest.raises(ScenarioError) as refused:
        _ = make_plan(small(*AUTO, *MEANS, "privacy.epsilon=0.25"), 60).noise_multiplier
    costs = f"costs {math.ceil(alone * 100) / 100:.2f}"
    means = "noise_multiplier of private means in data.transform"
    expected = (
        f"evaluation.noise_multiplier {costs}, {means} {costs}; together they cost {math.ceil(both * 100) / 100:.2f};"
    )
    assert expected in str(refused.value)


def test_a_budget_below_a_given_noise_names_the_other_key_too():
    asked = ("check_in={scheme: all}", "evaluation={on: clients, noise_multiplier: 15}", "privacy.noise_multiplier=50")
    with pytest.raises(ScenarioError, match=r"any noise_multiplier: evaluation\.noise_multiplier costs"):
        make_plan(small(*asked, "privacy.epsilon=0.1"), 60).charge.check_budget()


def test_the_curve_stands_still_where_a_round_is_charged_as_a_later_one():
    """As docs/operations.md says of ``fedamp_epsilon_spent``."""
    plan = make_plan(small("rounds=60", "check_in={scheme: poisson, rate: 0.1}", "privacy.noise_multiplier=1"), 60)
    curve = plan.charge.epsilon_by_round
    assert "may stand still" in " ".join((ROOT / "docs" / "operations.md").read_text().split())
    still = [number for number in range(1, 60) if curve[number - 1] == curve[number]]
    assert still
    for number in still[:3]:
        exact = plan.charge.mechanism.after(number).epsilon(delta_left(1e-5)).upper
        assert exact < curve[number - 1], "no round is charged less than it costs"
