"""Means and deviations before training: bounded, released once, charged with the run, and as good as public ones."""

import json
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler

import fedamp
from fedamp.client.unit_vectors import sum_vectors
from fedamp.engines.wire import RoundOrder, rows
from fedamp.errors import RunFolderError, ScenarioError
from fedamp.extensions.merging.candidates import MergeError
from fedamp.extensions.merging.merge import merge_runs
from fedamp.extensions.merging.weights import MergeRequest
from fedamp.extensions.population.store import Population
from fedamp.extensions.standardise.release import KEY
from fedamp.extensions.standardise.transform import PrivateStandardise, with_numbers
from fedamp.extensions.standardise.vectors import vectors_of
from fedamp.federation.plan import make_plan
from fedamp.runs.folder import RunFolder
from fedamp.server import preflight
from fedamp.server.loop import play
from fedamp.server.setup import prepare
from tests.deployed import Deployment
from tests.federations import Silent, small

RANGE = [[0.0, 100.0], [-5.0, 5.0], [1e3, 3e3]]
STEP = {"name": "standardise", "mean": "private", "range": RANGE, "noise_multiplier": 2.0}
UNITS, RECORDS = 200, 3


def people(generator, units=UNITS, records=RECORDS):
    """Records [units x records, 3] of columns with very different units, and labels that follow from them."""
    inputs = generator.normal([40, 1, 2000], [10, 2, 200], (units * records, 3)).astype(np.float32)
    labels = ((inputs - [40, 1, 2000]) / [10, 2, 200]).sum(1) > 0
    return {"x": inputs, "y": labels.astype(np.int64), "client": np.repeat(np.arange(units), records)}


@pytest.fixture
def folder(tmp_path):
    np.savez(tmp_path / "train.npz", **people(np.random.default_rng(0)))
    np.savez(tmp_path / "test.npz", **people(np.random.default_rng(1), 50))
    return tmp_path


def scenario(folder, *, step=None, **changes):
    data = {"name": "npz", "path": str(folder), "classes": 2, "test_is_public": True, "transform": [step or STEP]}
    data["partition"] = {"scheme": "natural", "column": "client"}
    settings = {
        "name": "columns",
        "known_seed": True,
        "data": data,
        "model": {"name": "logistic"},
        "rounds": 4,
        "check_in": {"scheme": "balanced", "k": 2},
        "client": {"steps": 2, "learning_rate": 0.5},
        "privacy": {"clip": 0.5, "noise_multiplier": 1.0, "delta": 1e-4, "precision": 0.05},
        "engine": {"kind": "serial"},
    }
    return fedamp.load(settings, **changes)


def sum_of(folder, units, step=STEP):
    data = scenario(folder, step=step).data
    order = RoundOrder("", 1, (1.0,), rows(np.array(units), bytes(32)), {KEY: np.zeros((2, 3), np.float32)})
    before = with_numbers(data, None).load(0, folder)
    return sum_vectors(order, vectors_of(SimpleNamespace(statistics=data.transform[0]), before), before)


def test_a_hostile_person_moves_the_sum_by_at_most_the_norm_that_is_charged(folder):
    hostile = [np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0, 1e-40, 100.0, -5.0, 2e3]
    arrays = people(np.random.default_rng(2), 14)
    arrays["x"].reshape(14, RECORDS, 3)[:10] = np.reshape(hostile, (10, 1, 1))
    arrays["x"].reshape(14, RECORDS, 3)[10] = [[0, -5, 1e3], [100, 5, 3e3], [0, 5, 3e3]]  # at the ends of the ranges
    np.savez(folder / "train.npz", **arrays)
    alone = [sum_of(folder, [unit]).sums[KEY] for unit in range(14)]
    norms = np.array([np.linalg.norm(each) for each in alone])
    assert norms.max() <= 1
    assert norms[[3, 4]].min() > 0.999, "a person far outside is as long as it may be, so the bound is tight"
    assert not norms[:3].any(), "records that are not finite give nothing"
    everybody = sum_of(folder, range(14))
    assert np.array_equal(everybody.sums[KEY], np.sum(alone, axis=0)), "each adds the same, whoever else is there"
    assert (everybody.failed, everybody.reported) == (3, list(range(14)))


def test_the_released_numbers_are_those_of_the_records_within_the_noise(folder):
    """Oracle: scikit-learn's scaler. Tolerance: five deviations of the noise in the mean of t and of t squared."""
    released = fedamp.run(scenario(folder), out=folder / "run").ledger.statistics
    expected = StandardScaler().fit(np.load(folder / "train.npz")["x"])
    half = np.array([50.0, 5.0, 1000.0])
    noise = STEP["noise_multiplier"] * np.sqrt(6) / UNITS
    assert np.all(np.abs(released.mean - expected.mean_) < 5 * noise * half)
    # d(sqrt(v)) = dv / (2 sqrt(v)), and v = E t^2 - (E t)^2 has the noise of both
    place = (expected.mean_ - [50, 0, 2000]) / half
    room = 5 * noise * (0.5 + 2 * np.abs(place)) * half / (2 * expected.scale_ / half)
    assert np.all(np.abs(released.deviation - expected.scale_) < room)


def test_training_is_tried_before_the_first_round_with_the_released_numbers(folder, monkeypatch):
    seen, real = [], preflight.check_training
    monkeypatch.setattr(preflight, "check_training", lambda inputs: seen.append(inputs.task.statistics) or real(inputs))
    run = fedamp.run(scenario(folder), out=folder / "run")
    assert seen == [run.ledger.statistics]


def test_who_reads_a_run_later_has_the_released_numbers(folder):
    """All clients have as many test records, so the mean over clients is the run's own score."""
    run = fedamp.run(scenario(folder), out=folder / "run")
    found = run.by_client()
    assert found.loss.mean() == pytest.approx(run.summary.final.loss, rel=1e-5)
    assert found.score.mean() == pytest.approx(run.accuracy)
    with pytest.raises(MergeError, match="its inputs have means of its own"):
        merge_runs(MergeRequest((str(run.folder),) * 2, "random-selection", 20.0, 1e-3), folder / "merged")


@pytest.mark.parametrize(("beyond", "end"), [(1e30, 1.0), (150.0, 1.0), (np.inf, 1.0), (-1e30, 0.0), (-3.0, 0.0)])
def test_an_input_beyond_the_range_counts_as_its_end(beyond, end):
    """Else one record could move the means of all, although the vector is clipped."""
    step = PrivateStandardise(**STEP)
    low, high = np.array(STEP["range"], float).T
    inside = np.tile((low + high) / 2, (1, 2, 1))
    outside, at_end = inside.copy(), inside.copy()
    outside[0, 0, 0] = beyond * (high[0] - low[0]) / 100 if np.isfinite(beyond) else beyond
    at_end[0, 0, 0] = low[0] + end * (high[0] - low[0])
    sizes = np.array([2])
    assert np.array_equal(
        step.vectors(outside.astype(np.float32), sizes), step.vectors(at_end.astype(np.float32), sizes)
    )


def test_no_noise_leads_out_of_the_range():
    step = PrivateStandardise(**STEP)
    for noisy in (np.full((2, 3), 1e6), np.full((2, 3), -1e6), np.zeros((2, 3))):
        found = step.released(noisy.astype(np.float32), 10)
        assert np.all((np.array(found.mean) >= [0, -5, 1e3]) & (np.array(found.mean) <= [100, 5, 3e3]))
        assert np.all((np.array(found.deviation) > 0) & (np.array(found.deviation) <= [50, 5, 1e3]))


@pytest.mark.slow
def test_diabetes_is_predicted_as_well_as_with_public_numbers(tmp_path):
    """Columns as clinics store them; ranges that anybody knows. R2 of .28 against .30 by hand: within five hundredths.

    Without any standardisation the model would diverge: inputs are of the size of a hundred.
    """
    inputs, target = load_diabetes(return_X_y=True, scaled=False)
    order = np.random.default_rng(0).permutation(len(inputs))
    x, y = inputs[order].astype(np.float32), ((target[order] - 150) / 75).astype(np.float32)[:, None]
    np.savez(tmp_path / "train.npz", x=x[:354], y=y[:354])
    np.savez(tmp_path / "test.npz", x=x[354:], y=y[354:])
    known = [[18, 90], [1, 2], [15, 50], [50, 160], [80, 350], [30, 250], [15, 110], [1, 12], [2.5, 7], [50, 150]]
    by_hand = {"name": "standardise", "mean": x[:354].mean(0).tolist(), "deviation": x[:354].std(0).tolist()}
    scores = []
    for step in (by_hand, STEP | {"range": known}):
        data = {"name": "npz", "path": str(tmp_path), "clients": 354, "test_is_public": True, "transform": [step]}
        client = {"loss": "mean-squared-error", "steps": 1, "learning_rate": 0.1}
        privacy = {"clip": "auto", "noise_multiplier": 2.0, "delta": 1e-4}
        asked = scenario(tmp_path, data=data, client=client, privacy=privacy, rounds=40, check_in={"scheme": "all"})
        scores.append(fedamp.run(asked, out=tmp_path / str(len(scores)), anyway=True).score[1])
    assert scores[0] > 0.25, "this federation learns"
    assert scores[1] > scores[0] - 0.05


def test_the_release_is_charged_before_the_rounds_and_noise_is_found_for_both(folder):
    free = {"name": "standardise", "mean": [40.0, 1.0, 2000.0], "deviation": [10.0, 2.0, 200.0]}
    alone, both = (make_plan(scenario(folder, step=step), UNITS) for step in (free, STEP))
    assert both.charge.epsilon_by_round[0] > alone.charge.epsilon_by_round[0]
    # Everybody in every round without amplification: Gaussian uses, whose composition is known in closed form.
    shown = {"check_in": {"scheme": "all"}, "privacy.noise_multiplier": 3.0}
    spent = make_plan(scenario(folder, **shown), UNITS).charge.epsilon_by_round
    for rounds, upper in enumerate(spent, start=1):
        mu = np.sqrt(rounds / 3.0**2 + 1 / 2.0**2)
        delta = norm.cdf(mu / 2 - upper / mu) - np.exp(upper) * norm.cdf(-mu / 2 - upper / mu)
        assert delta == pytest.approx(1e-4, rel=1e-3)
    in_rounds = {"evaluation": {"on": "clients", "every": 2, "noise_multiplier": 3.0}}
    costs = [
        make_plan(scenario(folder, **shown | each), UNITS).charge.planned_epsilon.upper for each in ({}, in_rounds)
    ]
    assert costs[1] > costs[0], "an evaluation of cohorts is charged beside the statistics"
    auto = {"privacy.noise_multiplier": "auto", "privacy.epsilon": 4.0, "privacy.precision": 0.05}
    louder, noise = (make_plan(scenario(folder, step=step, **auto), UNITS) for step in (STEP, free))
    assert louder.noise_multiplier > 1.02 * noise.noise_multiplier
    assert louder.charge.planned_epsilon.upper <= 4.0
    with pytest.raises(
        ScenarioError, match=r"auto finds none: noise_multiplier of private means in data\.transform costs"
    ):
        _ = make_plan(scenario(folder, **auto | {"privacy.epsilon": 0.5}), UNITS).noise_multiplier


def test_a_resumed_run_keeps_what_was_released_and_verify_recomputes_its_cost(folder):
    secret = scenario(folder, known_seed=False)
    first = fedamp.run(secret, out=folder / "run", callbacks=lambda record: record.round < 2)
    ended = fedamp.run(secret, out=folder / "run", resume=True)
    assert ended.ledger.statistics == first.ledger.statistics
    assert "Gaussian noise of multiplier 2; then" in ended.ledger.mechanism_in_words
    assert any("means and deviations" in sentence for sentence in ended.ledger.assumptions)
    assert {check.verdict for check in ended.verify()} == {"pass"}
    ledger, text = folder / "run" / "ledger.json", (folder / "run" / "scenario.yaml").read_text()
    (folder / "run" / "scenario.yaml").write_text(text.replace("noise_multiplier: 2.0", "noise_multiplier: 3.0"))
    assert [check.found for check in ended.verify() if check.verdict == "fail"]
    (folder / "run" / "scenario.yaml").write_text(text)
    told = json.loads(ledger.read_text())
    told["statistics"]["mean"][0] += 1
    ledger.write_text(json.dumps(told))
    with pytest.raises(RunFolderError, match="not as it was written down"):
        fedamp.open(folder / "run")


def test_a_population_pays_for_it(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_HOME", str(tmp_path / "home"))
    file = tmp_path / "people.db"
    Population.new(file, [(str(unit), str(unit)) for unit in range(UNITS)], 20.0, 1e-4)
    fedamp.run(scenario(folder, **{"privacy.population": str(file)}), out=folder / "run")
    [use] = Population(file).read().uses.values()
    [price] = use.charges
    assert "Gaussian noise of multiplier 2; then" in str(price.mechanism)
    assert use.state == "settled"


def test_a_deployment_releases_the_same_numbers(folder):
    hosts = {"north": "0-99", "south": f"100-{UNITS - 1}"}
    asked = scenario(folder, federation={"hosts": hosts, "nodes": 2})
    grid = Deployment({name: {"hosts": units} for name, units in hosts.items()})
    runs = RunFolder(folder / "deployed"), RunFolder(folder / "run")
    runs[0].path.mkdir()
    play(prepare(asked), grid, runs[0], Silent())
    fedamp.run(scenario(folder), out=runs[1].path)
    ledgers = [json.loads(each.ledger.read_text()) for each in runs]
    assert ledgers[0]["statistics"] == ledgers[1]["statistics"]
    assert ledgers[0]["releases"][-1]["digest"] == ledgers[1]["releases"][-1]["digest"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"range": None}, "mean: private needs range and noise_multiplier"),
        ({"deviation": 1.0}, "mean: private needs range and noise_multiplier, and no deviation"),
        ({"mean": 0.5, "deviation": 1.0}, "needs mean and deviation; or mean: private"),
        ({"range": [3, 3]}, "the first below the second"),
        ({"noise_multiplier": 0}, "noise_multiplier"),
    ],
)
def test_what_is_no_step_is_refused_in_one_line(folder, changes, message):
    with pytest.raises(ScenarioError, match=message) as error:
        scenario(folder, step=STEP | changes)
    assert "\n" not in str(error.value)


def test_canaries_have_no_records_and_are_not_asked_for_means(tmp_path):
    private = "{name: standardise, mean: private, range: [0, 16], noise_multiplier: 5}"
    asked = small(f"data={{name: digits, clients: 60, transform: [{private}]}}", "privacy.canaries=20", "rounds=3")
    run = fedamp.run(asked, out=tmp_path / "run", anyway=True)
    assert "must be ids" not in (run.folder / "log.txt").read_text()


def between(generator, records=12):
    """One column of records whose mean, over the root of 2, lies between two numbers of float32: any rounding shows."""
    values = generator.uniform(0.1, 1, records - 4).astype(np.float32)
    low = np.float32(generator.uniform(0.2, 0.5))
    middle = (Fraction(float(low)) + Fraction(float(np.nextafter(low, np.float32(1))))) / 2
    for _ in range(4):
        left = middle * records * Fraction(math.sqrt(2)) - sum(map(Fraction, map(float, values)))
        values = np.append(values, np.float32(max(-1.0, min(1.0, float(left)))))
    return values


def test_no_persons_vector_depends_on_how_many_records_others_have():
    """Sums of padded records would be rounded in another order."""
    step = PrivateStandardise.model_validate(STEP | {"range": [-1, 1]})
    generator = np.random.default_rng(0)
    for _ in range(300):
        mine = between(generator)[None, :, None]
        padded = np.ones((2, 40, 1), np.float32)
        padded[0, :12], padded[0, 12:] = mine[0], 0
        alone, beside = (step.vectors(each, np.array([12, 40])[: len(each)]) for each in (mine, padded))
        np.testing.assert_array_equal(alone[0], beside[0])
