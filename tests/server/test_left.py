"""A run is stopped before and after each thing that may leave a server: what is said of it covers what has left."""

import json
import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import fedamp
from fedamp.errors import DivergedError, FederationError, RunFolderError
from fedamp.extensions.audit.kept_models import KeptModels
from fedamp.extensions.standardise.release import PrivateMeans
from fedamp.runs.folder import RunFolder
from fedamp.runs.ledger import Ledger
from fedamp.runs.records import LedgerRecord, Summary
from fedamp.runs.verification import verify_ledger
from fedamp.server import loop, preflight
from fedamp.server.journal import RunJournal
from fedamp.strategies.pipeline import ReleasePipeline
from tests.server.plays import Killed, play_in

ROUNDS, NOISE, DELTA, STATISTICS, EVALUATION, COUNTS = 3, 2.0, 1e-3, 2.5, 3.0, 7.0
STEP = {"name": "standardise", "mean": "private", "range": [-3.0, 3.0], "noise_multiplier": STATISTICS}
EVALUATED = {"on": "clients", "noise_multiplier": EVALUATION}

KINDS = {
    "means": {"data.transform": [STEP]},
    "rounds": {},
    "evaluations in rounds": {"evaluation": EVALUATED | {"every": 1}},
    "evaluation at the end": {"evaluation": EVALUATED | {"every": "end"}},
    "clip counts": {"privacy.clip": {"initial": 0.3, "noise_multiplier": COUNTS}},
    "canaries": {"check_in": {"scheme": "balanced", "k": ROUNDS}, "privacy.canaries": 4},
}
ROUND = {"evaluations in rounds": [EVALUATION], "clip counts": [2 * COUNTS]}  # beside the model: a count is a half
AHEAD = {"means": [STATISTICS], "evaluation at the end": [EVALUATION]}  # of all rounds, as the charge has it

ENTER, APPEND = (Ledger, "enter"), (RunFolder, "append_round")
STOPS = [
    # kind, what stops the run, at which of its calls, rounds that have left, whether anything has
    ("means", (PrivateMeans, "release"), 1, 0, None),
    ("means", (preflight, "check_training"), 1, 0, True),
    ("means", ENTER, 1, 0, True),
    ("means", APPEND, 1, 1, True),
    ("rounds", ENTER, 1, 0, False),
    ("rounds", APPEND, 1, 1, True),
    ("rounds", ENTER, 2, 1, True),
    ("rounds", APPEND, ROUNDS, ROUNDS, True),
    ("evaluations in rounds", (ReleasePipeline, "side_release"), 1, 0, False),
    ("evaluations in rounds", APPEND, 1, 1, True),
    ("evaluation at the end", ENTER, 1, 0, False),
    ("evaluation at the end", (loop, "play_side_sum"), 1, ROUNDS, True),
    ("evaluation at the end", (RunJournal, "finish"), 1, ROUNDS, True),
    ("clip counts", ENTER, 1, 0, False),
    ("clip counts", APPEND, 1, 1, True),
    ("canaries", (KeptModels, "_write"), 1, 0, False),
    ("canaries", APPEND, 1, 1, True),
    ("canaries", (Ledger, "conclude"), 1, ROUNDS, True),
]


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    generator = np.random.default_rng(0)
    inputs, owners = generator.normal(size=(48, 2)).astype(np.float32), np.repeat(np.arange(12), 4)
    np.savez(folder / "train.npz", x=inputs, y=(inputs.sum(1) > 0).astype(int), client=owners)
    return folder


def scenario(people, kind):
    data = {"name": "npz", "path": str(people), "classes": 2, "test_is_public": False}
    data["partition"] = {"scheme": "natural", "column": "client"}
    settings = {
        "name": "left",
        "known_seed": True,
        "data": data,
        "model": {"name": "logistic"},
        "rounds": ROUNDS,
        "check_in": {"scheme": "all"},
        "client": {"steps": 1, "learning_rate": 0.5},
        "privacy": {"clip": 0.5, "noise_multiplier": NOISE, "delta": DELTA},
        "engine": {"kind": "serial"},
    }
    return fedamp.load(settings, **KINDS[kind])


def paid(kind, rounds) -> float:
    """Oracle: everybody is in every round, so all is Gaussian, whose composition is known (Dong, Roth, Su 2022)."""
    noises = AHEAD.get(kind, []) + [NOISE, *ROUND.get(kind, [])] * rounds
    mu = math.sqrt(sum(noise**-2 for noise in noises))
    return brentq(lambda e: norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu) - DELTA, 0, 50)


def stop(monkeypatch, place, call, error):
    """Raise an error instead of a call."""
    owner, name = place
    real, calls = getattr(owner, name), []

    def stopping(*arguments, **named):
        calls.append(1)
        if len(calls) == call:
            raise error
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, stopping)


def said(folder) -> dict[str, float]:
    """The guarantee and the cost of what was released, by everything that states them; they must be the same."""
    ledger, checks = LedgerRecord.read(folder / "ledger.json"), {each.name: each for each in verify_ledger(folder)}
    found = {"epsilon": {ledger.epsilon}, "released": {ledger.released_rounds_epsilon}}
    if (folder / "summary.json").exists():
        summary = Summary.read(folder / "summary.json")
        found["epsilon"].add(summary.epsilon.upper), found["released"].add(summary.released_rounds_epsilon.upper)
        assert summary.epsilon.lower <= summary.epsilon.upper
    guarantee = checks["guarantee"].found.removeprefix("epsilon ").partition(":")[0].partition(",")[0].partition(";")[0]
    assert float(guarantee) == pytest.approx(ledger.epsilon, abs=1e-3)
    assert float(checks["releases"].found.split()[1]) == pytest.approx(ledger.released_rounds_epsilon, abs=1e-3)
    [epsilon], [released] = found.values()
    return {"epsilon": epsilon, "released": released}


ERRORS = (KeyboardInterrupt, Killed, FederationError)
CASES = [  # each step in one way quickly, and in all ways slowly
    pytest.param(*row, error, marks=() if (number + other) % 3 == 0 else pytest.mark.slow)
    for number, row in enumerate(STOPS)
    for other, error in enumerate(ERRORS)
]


@pytest.mark.parametrize(("kind", "place", "call", "rounds", "left", "error"), CASES)
def test_what_has_left_is_paid_for(tmp_path, monkeypatch, people, kind, place, call, rounds, left, error):
    asked, folder = scenario(people, kind), tmp_path / "run"
    with monkeypatch.context() as patch:
        stop(patch, place, call, error)
        with pytest.raises(error):
            play_in(folder, asked)
    if left is None:
        assert not (folder / "ledger.json").exists()
    else:
        found = said(folder)
        # The accountant pays for the sampler's part of delta, and rounds its bounds up: both are below 1e-6.
        assert found["released"] == pytest.approx(paid(kind, rounds) if left else 0, rel=1e-4)
        assert found["epsilon"] == pytest.approx(paid(kind, ROUNDS) if left else 0, rel=1e-4)
        assert not [check for check in verify_ledger(folder) if check.verdict == "fail" and check.name != "chain"]
    # Who goes on pays for the whole run, and only once.
    play_in(folder, asked)
    assert list(said(folder).values()) == pytest.approx([paid(kind, ROUNDS)] * 2, rel=1e-4)
    assert not [check for check in verify_ledger(folder) if check.verdict == "fail"]


@pytest.mark.parametrize("kind", ["rounds", "means"])
@pytest.mark.parametrize("rounds", [0, 1])
def test_a_noisy_sum_that_is_no_model_has_told_something(tmp_path, monkeypatch, people, kind, rounds):
    with monkeypatch.context() as patch:
        stop(patch, (ReleasePipeline, "release"), rounds + 1 + (kind == "means"), DivergedError(rounds + 1, "a test"))
        with pytest.raises(DivergedError):
            play_in(tmp_path, scenario(people, kind))
    found = said(tmp_path)
    assert found["epsilon"] == pytest.approx(paid(kind, ROUNDS), rel=1e-4)
    assert found["released"] > 0


def test_means_without_a_round_are_named_by_whoever_opens_the_run(tmp_path, monkeypatch, people):
    with monkeypatch.context() as patch:
        stop(patch, (preflight, "check_training"), 1, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            play_in(tmp_path, scenario(people, "means"))
    with pytest.raises(
        RunFolderError, match=r"no round was released; .* means and deviations of inputs, at epsilon 2\."
    ):
        fedamp.open(tmp_path)
    assert json.loads((tmp_path / "ledger.json").read_text())["releases"] == []


def test_repr_of_a_stopped_run_says_the_cost_of_all_rounds(tmp_path, monkeypatch, people):
    with monkeypatch.context() as patch:
        stop(patch, ENTER, 2, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            play_in(tmp_path, scenario(people, "rounds"))
    # Rounded up to two digits.
    assert f"epsilon <= {math.ceil(100 * paid('rounds', ROUNDS)) / 100:.2f}" in str(fedamp.open(tmp_path))
